"""Leaving: the server is asked first, what is noted is said, and can be taken back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from expunge.client import Agent
from expunge.errors import CarrierError
from support.cli import ROWS_A, Federation, run, value


@pytest.fixture
def place(tmp_path: Path) -> Federation:
    return Federation.found(tmp_path)


def test_nothing_is_noted_while_the_server_cannot_be_trusted(place: Federation) -> None:
    a = place.client("clinic-a", ROWS_A)
    run("server", "backup", "monday", "--office", place.office)
    old_key = place.path / "old.key"
    shutil.copy(place.folder / "server" / "server.key", old_key)
    run("server", "rotate-key", "--yes", "--office", place.office)
    run("client", "sync", "--dir", a)
    new = place.path / "new"
    backup = ("--backup", "monday", "--from", place.folder)
    run("server", "restore", new, *backup, "--key", old_key)
    run("client", "leave", "--yes", "--dir", a, "--at", new, code=3)
    assert not value("client", "status", "--dir", a)["leaving"]
    assert "is not leaving" in run("client", "leave", "--withdraw", "--dir", a, code=1).stderr


def test_a_departure_that_was_noted_is_said_and_taken_back(
    place: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = place.client("clinic-a", ROWS_A)
    with monkeypatch.context() as patched:

        def sync(*_: object, **__: object) -> None:
            raise CarrierError("no answer came")

        patched.setattr(Agent, "sync", sync)
        said = " ".join(run("client", "leave", "--yes", "--dir", a, code=None).stderr.split())
    assert "That clinic-a leaves is noted in its folder" in said
    assert "expunge client leave --withdraw --dir" in said
    assert value("client", "status", "--dir", a)["leaving"]
    told = value("client", "leave", "--withdraw", "--dir", a)
    assert told == {"left": False, "count": 3}
    assert value("client", "status", "--dir", a)["live"] == 3
    run("client", "sync", "--dir", a)
    assert value("server", "status", "--office", place.office)["samples"] == 3
