"""One SQLite database, used by one process: transactions that are durable when they return.

Write-ahead log, full synchronous, secure delete. `hook` is called by name around every commit; tests make it fail there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import RLock
from typing import Any

from expunge.sqlite import opened, roll_back

Hook = Callable[[str], None]


def no_hook(_: str) -> None:
    """Nothing happens."""


class Database:
    """Law: after `with transaction()` everything in it is on disk; after an exception nothing of it is."""

    def __init__(self, path: Path, migrations: Sequence[str], hook: Hook = no_hook) -> None:
        self.path = path
        self._hook = hook
        self._lock = RLock()
        self._connection = opened(path, migrations, {"wal_autocheckpoint": 4000})

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Everything or nothing; one at a time; not to be nested."""
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._hook("before commit")
                self._connection.execute("COMMIT")
            except BaseException:
                roll_back(self._connection)
                raise
            self._hook("after commit")

    def rows(self, query: str, arguments: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of a query."""
        with self._lock:
            return self._connection.execute(query, arguments).fetchall()

    def row(self, query: str, arguments: Sequence[Any] = ()) -> tuple[Any, ...] | None:
        """The first row of a query, or None."""
        with self._lock:
            found: tuple[Any, ...] | None = self._connection.execute(query, arguments).fetchone()
            return found

    def value(self, query: str, arguments: Sequence[Any] = ()) -> Any:
        """The first value of the first row, or None."""
        found = self.row(query, arguments)
        return None if found is None else found[0]

    def truncate_log(self) -> None:
        """Bring the write-ahead log into the database and cut it to nothing."""
        with self._lock:
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def make_room(self) -> None:
        """Cut the write-ahead log if that can be done now: on a full disk it may be all the room there is."""
        with suppress(sqlite3.Error):
            self.truncate_log()

    def copy_to(self, path: Path) -> None:
        """A consistent copy, made while others go on."""
        target = sqlite3.connect(path, isolation_level=None)
        try:
            with self._lock:
                self._connection.backup(target)
            target.execute("PRAGMA journal_mode=DELETE")
        finally:
            target.close()

    def close(self) -> None:
        """Close; what was committed stays."""
        with self._lock:
            self._connection.close()
