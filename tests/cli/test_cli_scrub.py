"""Scrubs at the command line: what is read, what is damaged, what to do, and the exit code."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from support.cli import ROWS_A, Federation, value
from support.printed import run


@pytest.fixture
def place(tmp_path: Path) -> Federation:
    place = Federation.found(tmp_path)
    place.client("clinic-a", ROWS_A)
    return place


def change(file: Path, statement: str) -> None:
    with closing(sqlite3.connect(file)) as database, database:
        database.execute(statement)


def test_a_whole_client_and_a_whole_server(place: Federation) -> None:
    client = place.path / "clinic-a"
    assert "Nothing is damaged" in run("client", "scrub", "--dir", client).stdout
    assert value("client", "scrub", "--repair", "--dir", client) == {
        "whole": True,
        "read": {
            "database": 1, "samples": 3, "notes": 5, "receipts": 1, "head": 1, "vault": 4
        },
        "damage": [],
    }  # fmt: skip
    assert "Nothing is damaged" in run("server", "scrub", place.folder).stdout
    assert value("server", "scrub", place.folder, "--repair")["whole"]


def test_a_damaged_tag_is_shown_and_put_right(place: Federation) -> None:
    client = place.path / "clinic-a"
    change(client / "client.db", "UPDATE samples SET subject_tag = zeroblob(32) WHERE slot = 1")
    printed = run("client", "scrub", "--dir", client, code=3).stdout
    assert "DAMAGED: subject_tag of the sample in slot 1" in printed
    assert "--repair" in printed
    (damage,) = value("client", "scrub", "--repair", "--dir", client)["damage"]
    assert damage["repaired"]
    assert "put right" not in run("client", "scrub", "--dir", client).stdout


def test_a_damaged_log_is_shown_and_put_right(place: Federation) -> None:
    database = place.folder / "server" / "server.db"
    change(database, "UPDATE nodes SET hash = zeroblob(32) WHERE level = 0 AND position = 1")
    (damage,) = value("server", "scrub", place.folder, code=3)["damage"]
    assert (damage["what"], damage["repaired"]) == ("log", False)
    assert "log, put right:" in run("server", "scrub", place.folder, "--repair").stdout
    assert value("server", "scrub", place.folder)["whole"]


@pytest.mark.parametrize("name", ["client.db", "server.db"])
def test_what_is_no_database_is_damage(place: Federation, name: str) -> None:
    folder = place.path / "clinic-a" if name == "client.db" else place.folder / "server"
    (folder / name).write_bytes(b"not a database at all" * 500)
    command = (
        ("client", "scrub", "--dir", folder)
        if name == "client.db"
        else ("server", "scrub", place.folder)
    )
    for options in ((), ("--repair",)):
        (damage,) = value(*command, *options, code=3)["damage"]
        assert "file is not a database" in damage["text"]
        assert name in damage["text"]
