"""The client's SQLite database, used by one process: a transaction is durable when it returns, or nothing of it is."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import Any

from expunge.errors import StoreError
from expunge.sqlite import opened, roll_back

_SETTINGS: dict[str, str | int] = {
    "page_size": 8192,  # a row with a feature of 768 float64 fits one page
    "locking_mode": "EXCLUSIVE",  # the folder's lock keeps others out, and this keeps out a shared memory file
    "temp_store": "MEMORY",  # nothing is written that is not in these files
}


class Database:
    """Law: after `with transaction()` everything in it is on disk; after an exception nothing of it is. Any thread may use it."""

    def __init__(self, path: Path, migrations: Sequence[str]) -> None:
        self.path = path
        self._lock = RLock()
        self._closed = False
        self._connection = opened(path, migrations, _SETTINGS)

    @contextmanager
    def transaction(self) -> Iterator[Database]:
        """Everything or nothing, one at a time, not nested. What SQLite cannot write is a StoreError."""
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield self
                self._connection.execute("COMMIT")
            except sqlite3.Error as problem:
                raise self._failure(problem) from problem
            finally:
                self._roll_back()

    def _roll_back(self) -> None:
        if not self._closed:
            roll_back(self._connection)

    def _failure(self, problem: sqlite3.Error) -> StoreError:
        if self._closed:
            return StoreError(f"{self.path} was closed: open the store again")
        remedy = "Free some space and try again" if "full" in str(problem) else "Mend the cause and try again"
        return StoreError(f"{self.path} could not be changed, and is as it was: {problem}. {remedy}")

    def run(self, query: str, arguments: Sequence[Any] = ()) -> int:
        """Carry out one statement within a transaction; how many rows it touched."""
        return self._connection.execute(query, arguments).rowcount

    def run_many(self, query: str, arguments: Iterable[Sequence[Any]]) -> None:
        """Carry out one statement for each of many arguments, within a transaction."""
        self._connection.executemany(query, arguments)

    def rows(self, query: str, arguments: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of a query."""
        with self._lock:
            try:
                return self._connection.execute(query, arguments).fetchall()
            except sqlite3.Error as problem:
                if self._closed:
                    raise self._failure(problem) from problem
                raise StoreError(f"{self.path} cannot be read: {problem}. Put it back from a backup") from problem

    def row(self, query: str, arguments: Sequence[Any] = ()) -> tuple[Any, ...] | None:
        """The first row of a query, or None."""
        found = self.rows(query, arguments)
        return found[0] if found else None

    def value(self, query: str, arguments: Sequence[Any] = ()) -> Any:
        """The first value of the first row, or None."""
        found = self.row(query, arguments)
        return None if found is None else found[0]

    def truncate_log(self) -> None:
        """Bring the write-ahead log into the database and cut it to nothing."""
        with self._lock:
            try:
                busy = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
            except sqlite3.Error as problem:
                raise self._failure(problem) from problem
        if busy:
            raise StoreError(f"the write-ahead log of {self.path} could not be cut: something else reads the database. Stop that")

    def close(self) -> None:
        """Close; what was committed stays."""
        with self._lock:
            self._closed = True
            self._connection.close()
