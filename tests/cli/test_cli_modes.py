"""Data of people and secrets are for their owner alone from the start, whatever the umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from expunge.client import ClientStore
from expunge.federation import Federation as Embedded
from expunge.server.service import Service
from support.cli import ROWS_A, Federation, run

PUBLIC = ("server.pub", "federation.json", "serving.json")


@pytest.fixture(params=[0o022, 0o000], ids=["022", "000"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Federation]:
    def refused(*_: object, **__: object) -> None:
        raise AssertionError("a file was there before its mode was right")

    for name in ("chmod", "fchmod"):
        monkeypatch.setattr(os, name, refused)
    before = os.umask(request.param)
    try:
        yield Federation(tmp_path)
    finally:
        os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def open_to_others(folder: Path) -> list[str]:
    """What in a folder somebody else may look at, with its mode."""
    return [
        f"{path} {mode(path):o}"
        for path in (folder, *sorted(folder.rglob("*")))
        if path.name not in PUBLIC and mode(path) != (0o700 if path.is_dir() else 0o600)
    ]


def test_all_that_commands_write_is_for_its_owner_alone(place: Federation) -> None:
    whole = place.path / "made" / "for"
    place = Federation(whole)
    run(
        "init",
        place.folder,
        "--dim",
        3,
        "--labels",
        "cat,dog",
        "--mirror",
        place.path.parent / "mirror.vault",
    )
    token, samples = place.path / "a.token", place.path / "a.csv"
    run("server", "token", "clinic-a", "-o", token, "--office", place.office)
    run("enroll", token, "--dir", place.path / "clients" / "clinic-a")
    client = place.path / "clients" / "clinic-a"
    os.close(os.open(samples, os.O_CREAT | os.O_WRONLY, 0o600))
    samples.write_text(ROWS_A)
    run("client", "add", samples, "--dir", client)
    run("predict", samples, "-o", place.path / "predictions.csv", "--dir", client)
    run("client", "export", "--all", "-o", place.path / "all.csv", "--dir", client)
    run("client", "receipts", "-o", place.path / "receipts" / "of-2026", "--dir", client)
    run("client", "receipts", "1", "-o", place.path / "receipt.json", "--dir", client)
    run("order", "file", "p1", "--office", place.office)
    run("client", "sync", "--dir", client)
    run("order", "bundle", "last", "-o", place.path / "bundle.html", "--office", place.office)
    run("server", "backup", "monday", "--office", place.office)
    backup, key = (
        place.folder / "server" / "backups" / "monday",
        place.folder / "server" / "server.key",
    )
    run("server", "restore", place.path / "again", "--backup", backup, "--key", key)
    assert open_to_others(whole.parent) == []


def test_databases_and_their_logs_are_for_their_owner_alone_while_they_are_open(
    place: Federation,
) -> None:
    run("init", place.folder, "--dim", 3, "--labels", "cat,dog")
    client = place.enrol("clinic-a")
    with ClientStore.open(client) as store:
        store.add(["a"], [[1, 2, 3]], ["cat"], now=1.0)
        assert (client / "client.db-wal").stat().st_size > 0
        assert open_to_others(client) == []
    service = Service.open(place.folder / "server")
    try:
        assert (place.folder / "server" / "server.db-wal").exists()
        assert open_to_others(place.folder / "server") == []
    finally:
        service.close()


def test_a_federation_in_one_process(place: Federation) -> None:
    run("init", place.folder, "--dim", 3, "--labels", "cat,dog")
    with Embedded.open(place.folder) as federation:
        federation.client("clinic-a")
        assert open_to_others(place.folder) == []


def test_a_database_that_others_could_read_is_closed_to_them_when_it_is_opened(
    tmp_path: Path,
) -> None:
    place = Federation.found(tmp_path)
    database = place.folder / "server" / "server.db"
    database.chmod(0o644)
    run("server", "status", "--office", place.office)
    assert mode(database) == 0o600
