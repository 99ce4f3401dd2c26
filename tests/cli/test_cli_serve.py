"""`expunge serve`: a real process with TLS, spoken to by other commands; stopped, killed,
restarted.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from expunge.cli.serve import serve
from expunge.server.http.logs import LEVELS
from support.cli import ROWS_A, ROWS_B, Federation, run, set_waits, value
from support.serving import Server


@pytest.fixture
def place(tmp_path: Path) -> Federation:
    return Federation.found(tmp_path, "--dim", 3, "--labels", "cat,dog")


@pytest.fixture
def server(place: Federation) -> Iterator[Server]:
    running = Server(place.folder)
    yield running
    running.stop()


def test_it_is_not_rebuilt_while_it_is_running(place: Federation, server: Server) -> None:
    clinic = place.client("clinic-a", ROWS_A)
    files = sorted((place.folder / "server").iterdir())
    run("audit", "--rebuild", place.folder, "--client-dir", clinic, code=5)
    assert sorted((place.folder / "server").iterdir()) == files
    assert not json.loads((place.folder / "federation.json").read_text()).get("rebuilt")
    assert place.samples() == 3
    run("client", "sync", "--dir", clinic)


def test_clients_and_operators_speak_to_it_over_tls(place: Federation, server: Server) -> None:
    assert server.url.startswith("https://")
    status = run(
        "server", "status", "--office", place.office
    )  # whose address is the folder, which the server holds
    assert f"is being served: connecting to {server.url}" in status.stderr
    a, b = place.client("clinic-a", ROWS_A), place.client("clinic-b", ROWS_B)
    assert value("client", "status", "--dir", a)["address"] == server.url
    run("order", "file", "p1", "--office", place.office)
    assert value("client", "sync", "--dir", a)["orders"][0]["found"] == 2
    assert value("client", "sync", "--dir", b)["orders"][0]["found"] == 1
    head = value("head", "--office", place.office, "--at", server.url)["digest"]
    log = server.stop()
    assert server.process.returncode == 0
    assert '"actor": "clinic-a"' in log
    assert '"event": "stopped"' in log
    assert "p1" not in log
    assert (
        value("head", "--office", place.office)["digest"] == head
    )  # without a server, by the local carrier
    assert not (place.folder / "server" / "serving.json").exists()


def test_the_log_begins_at_the_chosen_level(place: Federation) -> None:
    server = Server(place.folder, "--log-level", "warning")
    try:
        run("server", "status", "--office", place.office)
        refused = run(
            "server", "forget-client", "nobody", "--yes", "--office", place.office, code=1
        )
        assert "nobody" in refused.stderr
    finally:
        log = server.stop()
    (line,) = [json.loads(one) for one in log.splitlines()]
    assert (line["level"], line["event"], line["code"]) == ("warning", "request", "unknown-actor")


def test_the_levels_to_choose_from_are_those_of_the_log() -> None:
    (level,) = [one for one in serve.params if one.name == "log_level"]
    assert isinstance(level.type, click.Choice)
    assert list(level.type.choices) == list(LEVELS)


def test_an_office_on_another_machine_is_told_the_url_once(place: Federation) -> None:
    office = place.office.rename(place.path / "desk")
    server = Server(place.folder.rename(place.path / "another-machine"))
    try:
        assert "give --at URL" in run("server", "status", "--office", office, code=1).stderr
        assert value("server", "status", "--office", office, "--at", server.url)["samples"] == 0
        token = value("server", "token", "clinic-a", "--office", office)
        assert token["urls"] == [server.url]
        run("enroll", token["token"], "--dir", place.path / "clinic-a")
    finally:
        server.stop()


def test_killed_and_started_again_nothing_is_lost(
    place: Federation, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_waits(monkeypatch, attempts=1)
    folder = place.client("clinic-a", ROWS_A)
    server.stop(signal.SIGKILL)
    assert (place.folder / "server" / "serving.json").exists()
    assert (
        "is being served" not in run("server", "status", "--office", place.office).stderr
    )  # a note of the dead
    assert (
        "pending" in run("client", "forget", "--id", "a1", "--yes", "--dir", folder, code=4).stderr
    )
    port = server.url.rpartition(":")[2]
    again = Server(place.folder, "--port", port)
    try:
        assert value("client", "sync", "--dir", folder)["receipts"][0]["deleted"] == 1
        assert place.samples() == 2
    finally:
        again.stop()


def test_a_second_server_on_the_same_folder_is_refused(place: Federation, server: Server) -> None:
    began = time.monotonic()
    assert "is in use by process" in run("serve", place.folder, code=5).stderr
    assert (
        f"connecting to {server.url}" in run("server", "status", "--office", place.office).stderr
    )  # the first is still known
    assert time.monotonic() - began < 30


def test_what_serve_refuses(place: Federation) -> None:
    assert "belong together" in run("serve", place.folder, "--tls-cert", place.key, code=2).stderr
    assert "there is no federation in" in run("serve", place.path / "nowhere", code=1).stderr
    refused = run(
        "serve", place.folder, "--tls-cert", place.key, "--tls-key", place.key, code=1
    ).stderr
    assert "cannot be used" in refused
    assert "stopped" not in refused  # it never began
    run("server", "status", "--office", place.office)  # nothing was left locked


def test_a_certificate_is_renewed_under_the_same_authority(place: Federation) -> None:
    before = (place.folder / "tls" / "tls.pem").read_bytes()
    authority = (place.folder / "tls" / "ca.pem").read_bytes()
    told = value("server", "renew-certificate", place.folder, "--host", "other.example.org")
    assert told["expires"] > "2026"
    assert (place.folder / "tls" / "tls.pem").read_bytes() != before
    assert (place.folder / "tls" / "ca.pem").read_bytes() == authority
