"""SQLite databases as client and server keep them: durable, erasing what is deleted, and brought up
to date when opened.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

from expunge.errors import StoreError
from expunge.storage.files import make_file

_BESIDE = ("-wal", "-shm")
_ALWAYS = {
    "journal_mode": "WAL",
    "synchronous": "FULL",
    "secure_delete": "ON",
    "foreign_keys": "ON",
}


def open_database(
    path: Path, migrations: Sequence[str], settings: Mapping[str, str | int]
) -> sqlite3.Connection:
    """A connection for one process and any of its threads, which take turns; `settings` are pragmas
    that come first.

    A database of version n has had the first n of the migrations; the others are carried out, each
    whole or not at all. One of a version that is not known yet is refused.
    """
    beside = (path.with_name(path.name + end) for end in _BESIDE)
    try:
        # SQLite gives the files that it makes beside a database the mode of the database.
        for file in (path, *(one for one in beside if one.exists())):
            make_file(file)
        connection = sqlite3.connect(
            path, isolation_level=None, check_same_thread=False, timeout=30.0
        )
    except (sqlite3.Error, OSError) as problem:
        raise StoreError(f"the database {path} cannot be opened: {problem}") from problem
    try:
        for name, value in {**settings, **_ALWAYS}.items():
            connection.execute(f"PRAGMA {name}={value}")
        _migrate(connection, path, migrations)
    except sqlite3.Error as problem:
        connection.close()
        raise StoreError(
            f"the database {path} cannot be used: {problem}. Put it back from a backup"
        ) from problem
    except BaseException:
        connection.close()
        raise
    return connection


def _migrate(connection: sqlite3.Connection, path: Path, migrations: Sequence[str]) -> None:
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > len(migrations):
        raise StoreError(
            f"the database {path} is of version {version}, newer than version {len(migrations)}, "
            "which this program knows: update expunge"
        )
    for number, script in enumerate(migrations[version:], start=version + 1):
        try:
            connection.executescript(
                f"BEGIN IMMEDIATE;{script};PRAGMA user_version={number};COMMIT;"
            )
        except BaseException:
            roll_back(connection)
            raise


def roll_back(connection: sqlite3.Connection) -> None:
    """End a transaction, if there is one, as if it had not begun."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")
