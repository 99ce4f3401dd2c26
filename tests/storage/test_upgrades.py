"""Stores of earlier versions are brought up to date whole, or refused before anything is written:
then the version that wrote them opens them as before.
"""

from __future__ import annotations

import sqlite3
import tarfile
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from expunge.client import ClientStore
from expunge.client import schema as client_schema
from expunge.errors import StoreError
from expunge.server.service import Service
from expunge.server.storage import schema as server_schema
from expunge.storage.machine import Machine, Space
from expunge.storage.sqlite import Database

RELEASE = Path(__file__).parents[1] / "fixtures" / "0.1.0" / "plain.tar.gz"
VERSIONS = {"client.db": client_schema, "server.db": server_schema}
STORES = {"client": ("west", "client.db"), "server": ("federation/server", "server.db")}


@pytest.fixture(params=STORES)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Of a store with data, as 0.1.0 has written it."""
    folder, name = STORES[request.param]
    with tarfile.open(RELEASE) as archive:
        archive.extractall(tmp_path, filter="tar")
    return tmp_path / folder / name


def opened(database: Path) -> None:
    if database.name == "client.db":
        ClientStore.open(database.parent).close()
    else:
        Service.open(database.parent).close()


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a store, but what SQLite and the lock leave beside it."""
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file() and not file.name.endswith(("-wal", "-shm", "lock"))
    }


def changed(database: Path, script: str) -> None:
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript(script)


def version_of(database: Path) -> int:
    with closing(sqlite3.connect(database)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


def test_a_release_has_one_migration_for_each_database(database: Path) -> None:
    schema = VERSIONS[database.name]
    assert version_of(database) == schema.RELEASED
    assert len(schema.MIGRATIONS) <= schema.RELEASED + 1
    opened(database)
    assert version_of(database) == len(schema.MIGRATIONS)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("PRAGMA user_version = 99", "newer than version"),
        ("ALTER TABLE {table} RENAME TO other", "cannot be brought up to date"),
    ],
)
def test_what_cannot_be_brought_up_to_date_is_refused_as_it_was(
    database: Path, script: str, said: str
) -> None:
    changed(database, script.format(table="audits"))
    before = contents(database.parent)
    with pytest.raises(StoreError, match=said) as problem:
        opened(database)
    assert "Nothing was changed" in str(problem.value)
    assert contents(database.parent) == before


def test_an_upgrade_needs_room(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(database.parent)
    monkeypatch.setattr(Machine, "space", lambda *_: Space(4096, is_read_only=False))
    with pytest.raises(StoreError, match="Free some space"):
        opened(database)
    assert contents(database.parent) == before
    monkeypatch.undo()
    opened(database)


def test_of_several_migrations_all_or_none_take_place(tmp_path: Path) -> None:
    first, second, bad = "CREATE TABLE a (x)", "CREATE TABLE b (x)", "CREATE TABLE a (x)"
    Database(tmp_path / "s.db", [first]).close()
    with pytest.raises(StoreError):
        Database(tmp_path / "s.db", [first, second, bad])
    assert version_of(tmp_path / "s.db") == 1
    with closing(sqlite3.connect(tmp_path / "s.db")) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("a",)]


def _columns(connection: sqlite3.Connection, tables: Iterable[str]) -> dict[str, str]:
    return {
        table: ", ".join(row[1] for row in connection.execute(f"PRAGMA table_info({table})"))
        for table in tables
    }


def _rows(connection: sqlite3.Connection, columns: dict[str, str]) -> dict[str, list[Any]]:
    return {
        table: sorted(connection.execute(f"SELECT {names} FROM {table}"), key=repr)  # noqa: S608
        for table, names in columns.items()
    }


def test_every_row_is_there_after_a_migration(database: Path) -> None:
    """Of the columns that it had; before anything else is done with the store."""
    schema = VERSIONS[database.name]
    with closing(sqlite3.connect(database)) as connection:
        tables = [
            row[0]
            for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            if not row[0].startswith("sqlite_")
        ]
        columns = _columns(connection, tables)
        before = _rows(connection, columns)
    assert sum(map(len, before.values())) > 20
    Database(database, schema.MIGRATIONS).close()
    with closing(sqlite3.connect(database)) as connection:
        assert _rows(connection, columns) == before
