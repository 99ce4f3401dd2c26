"""Logs and metrics: every request is in them, and nothing personal or secret is."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from expunge.crypto import SigningKey
from expunge.server.http import logs
from expunge.wire.request import OrderAnswer
from support.https_server import HandClient, Served, served

SUBJECT, AT_CLIENT = "Erika Mustermann", "patient-4711"


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    handler = logs.write_to(stream)
    yield stream
    logs.stop_writing(handler)


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def everything(server: Served) -> list[str]:
    """Enrol, add, answer an order and delete, fail in several ways; returns what must not be seen
    anywhere.
    """
    site = server.site
    secret = site.token("clinic")
    client = HandClient("clinic", SigningKey(b"\x07" * 32), site.federation, 4)
    enrolment = client.enrolment(secret)
    server.ask("POST", "/v1/enrolments", enrolment)
    server.ask("POST", "/v1/requests", client.request(add=[0, 1, 2]))
    site.number += 1
    order = server.ask(
        "POST",
        "/v1/commands",
        site.ask("order", site.number, subject=SUBJECT, subjects={"clinic": AT_CLIENT}),
    )
    assert order.status == 200
    assert site.service.status()["orders"]["open"] == 1
    row = site.service.state.storage.database.value("SELECT id FROM orders")
    server.ask("POST", "/v1/sync", client.question())
    server.ask("POST", "/v1/requests", client.request(delete=[1], orders=(OrderAnswer(row, 1),)))
    server.ask("POST", "/v1/requests", client.request(delete=[1], sequence=3))
    server.ask("POST", "/v1/requests", client.request(delete=[2], sequence=9))
    server.ask("POST", "/v1/requests", b"nonsense " + client.commitments[0])
    server.ask("GET", f"/v1/{SUBJECT.replace(' ', '%20')}/{secret}")
    server.ask("GET", f"/v1/log/entries?start={secret}&end=1")
    server.ask("POST", "/v1/commands", site.ask("show-order", order=SUBJECT))
    server.ask("POST", "/v1/commands", site.ask(SUBJECT))
    return [
        SUBJECT,
        "Erika",
        AT_CLIENT,
        secret,
        row,
        client.key.public.text,
        client.key.public.id,
        *(one.hex() for one in client.commitments),
        *(one.hex() for one in client.salts),
        site.service.head_digest(),
    ]


def test_logs_say_what_happened_and_nothing_about_whom(
    tmp_path: Path, written: io.StringIO
) -> None:
    with served(tmp_path) as server:
        hidden = everything(server)
    text = written.getvalue()
    for secret in hidden:
        assert secret not in text
        assert secret.upper() not in text
    requests = [line for line in lines(written) if line["event"] == "request"]
    assert not any("peer" in line for line in requests)
    assert "127.0.0.1" not in "".join(json.dumps(line) for line in requests)
    assert all(isinstance(line["ms"], float) and line["ms"] > 0.0 for line in requests)
    found = [
        (
            line["method"],
            line["route"],
            line["status"],
            line["code"],
            line.get("actor"),
            line.get("sequence"),
        )
        for line in requests
    ]
    assert found == [
        ("POST", "/v1/enrolments", 200, "ok", "clinic", 0),
        ("POST", "/v1/requests", 200, "ok", "clinic", 1),
        ("POST", "/v1/commands", 200, "ok", "operator", 2),
        ("POST", "/v1/sync", 200, "ok", "clinic", 1),
        ("POST", "/v1/requests", 200, "ok", "clinic", 2),
        ("POST", "/v1/requests", 422, "not-live", "clinic", 3),
        ("POST", "/v1/requests", 409, "sequence-gap", "clinic", 9),
        ("POST", "/v1/requests", 400, "malformed", None, None),
        ("GET", "none", 404, "not-found", None, None),
        ("GET", "/v1/log/entries", 400, "malformed", None, None),
        ("POST", "/v1/commands", 422, "unknown-order", "operator", 0),
        ("POST", "/v1/commands", 422, "unknown-action", None, None),
    ]
    assert all(
        isinstance(line["in"], int) and isinstance(line["out"], int) and line["out"] > 0
        for line in requests
    )
    assert requests[1]["in"] > 200
    assert [line["event"] for line in lines(written)][:1] == ["listening"]
    assert [line["event"] for line in lines(written)][-1] == "stopped"


def test_every_line_has_its_level(tmp_path: Path, written: io.StringIO) -> None:
    with served(tmp_path) as server:
        everything(server)
    found = {(line["event"], str(line.get("status"))[:1], line["level"]) for line in lines(written)}
    assert found == {
        ("listening", "N", "info"),
        ("request", "2", "info"),
        ("request", "4", "warning"),
        ("stopped", "N", "info"),
    }


@pytest.mark.parametrize(
    ("level", "own", "uvicorn"),
    [
        ("debug", ["debug", "info", "warning", "error"], ["info", "warning", "error", "error"]),
        ("info", ["info", "warning", "error"], ["warning", "error", "error"]),
        ("warning", ["warning", "error"], ["warning", "error", "error"]),
        ("error", ["error"], ["error", "error"]),
    ],
)
def test_lines_below_the_chosen_level_are_left_out(
    level: str, own: list[str], uvicorn: list[str]
) -> None:
    stream = io.StringIO()
    handler = logs.write_to(stream, level)
    try:
        for one in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
            logs.log_event("something", one)
            logging.getLogger("uvicorn.error").log(one, "something")
        logging.getLogger("uvicorn.error").critical("something")
    finally:
        logs.stop_writing(handler)
    told = lines(stream)
    assert [line["level"] for line in told if line["event"] == "something"] == own
    assert [line["level"] for line in told if line["event"] == "uvicorn.error"] == uvicorn


@pytest.mark.parametrize(
    ("status", "level"),
    [(0, "warning"), (200, "info"), (304, "info"), (429, "warning"), (503, "error")],
)
def test_the_level_of_a_request_follows_its_outcome(
    written: io.StringIO, status: int, level: str
) -> None:
    logs.log_request(logs.Note("GET", "127.0.0.1", status=status), 0.001, peers=False)
    (line,) = lines(written)
    assert (line["level"], line["status"]) == (level, status)


def test_addresses_are_logged_only_when_asked_for(tmp_path: Path, written: io.StringIO) -> None:
    with served(tmp_path, log_peers=True) as server:
        server.ask("GET", "/healthz")
    assert [line["peer"] for line in lines(written) if line["event"] == "request"] == ["127.0.0.1"]


def test_metrics_count_what_happened_and_name_nobody(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        hidden = everything(server)
        server.site.service.upkeep.fold()
        text = server.ask("GET", "/metrics").data.decode()
    for secret in [*hidden, "clinic", "operator"]:
        assert secret not in text
    values = dict(re.findall(r"^([a-z_]+(?:\{[^}]*\})?) ([0-9.e+-]+)$", text, re.MULTILINE))

    def value(name: str) -> float:
        return float(values[name])

    assert (
        value(
            'expunge_http_requests_total{method="POST",outcome="ok",route="/v1/requests",status="200"}'
        )
        == 2
    )
    assert (
        value(
            'expunge_http_requests_total{method="POST",outcome="sequence-gap",route="/v1/requests",status="409"}'
        )
        == 1
    )
    assert (
        value(
            'expunge_http_requests_total{method="GET",outcome="not-found",route="none",status="404"}'
        )
        == 1
    )
    assert value('expunge_http_request_seconds_count{route="/v1/requests"}') == 5
    assert value('expunge_request_phase_seconds_count{phase="write"}') == 2
    assert value("expunge_samples") == 2
    assert value('expunge_clients{status="active"}') == 1
    assert value("expunge_queue_length") == 0
    assert value("expunge_journal_entries") == 0
    assert value("expunge_journal_oldest_seconds") == 0
    assert value("expunge_rounds_total") == 2
    assert value("expunge_log_entries") > 5
    assert value('expunge_orders{state="complete"}') == 1
    assert value('expunge_orders{state="open"}') == 0
    assert 0 <= value("expunge_seconds_since_erasure") < 60
    assert value("expunge_audit_equal") == -1
    assert value("expunge_http_requests_under_way") == 1
    assert value("expunge_http_received_bytes_total") > 1000
    assert value("expunge_tls_certificate_expires_timestamp_seconds") > 1.7e9


def test_an_error_of_our_own_is_told_by_kind_and_place_only(
    tmp_path: Path, written: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> bytes:
        raise ZeroDivisionError(SUBJECT)

    with served(tmp_path) as server:
        with monkeypatch.context() as patched:
            patched.setattr(server.site.service, "checkpoint", broken)
            answer = server.ask("GET", "/v1/checkpoint")
        assert answer.status == 500
        assert SUBJECT.encode() not in answer.data
        assert server.ask("GET", "/v1/checkpoint").status == 200
    assert SUBJECT not in written.getvalue()
    (told,) = [line for line in lines(written) if line["event"] == "a request failed"]
    assert (told["error"], told["level"]) == ("ZeroDivisionError", "error")
    assert str(told["at"][-1]).startswith("test_http_traces.py:")  # type: ignore[index]
    assert [line["code"] for line in lines(written) if line["event"] == "request"] == [
        "internal",
        "ok",
    ]


def test_other_lines_are_json_too(written: io.StringIO) -> None:
    logs.report("audit finished: equal", None)
    try:
        raise ValueError(SUBJECT)
    except ValueError as problem:
        logs.report("upkeep failed", problem)
        logging.getLogger("uvicorn.error").exception("Exception in ASGI application\n")
    logging.getLogger("uvicorn.error").info("Started server process")
    first, second, third = lines(written)
    assert first["event"] == "audit finished: equal"
    assert (second["event"], second["error"]) == ("upkeep failed", "ValueError")
    assert (third["message"], third["error"]) == ("Exception in ASGI application", "ValueError")
    assert SUBJECT not in written.getvalue()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", str(first["time"]))


def test_without_listeners_nothing_is_written(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with served(tmp_path) as server:
        server.ask("GET", "/healthz")
    assert capfd.readouterr() == ("", "")
