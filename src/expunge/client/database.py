"""The client's SQLite database: one process changes it, others may look at it meanwhile.

A transaction is durable when it returns, or nothing of it is; a snapshot sees whole transactions
only.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import Any, NoReturn
from urllib.parse import quote

from expunge.errors import StoreBusyError, StoreError
from expunge.storage.sqlite import open_database, roll_back

_SETTINGS: dict[str, str | int] = {
    "page_size": 8192,  # a row with a feature of 768 float64 fits one page
    "temp_store": "MEMORY",  # nothing is written that is not in these files
}
_PATIENCE = 2.0  # seconds that a snapshot waits for a writer that keeps readers out


class Database:
    """Law: after `with transaction()` everything in it is on disk; after an exception nothing of it
    is. Any thread may use it.
    """

    def __init__(self, path: Path, migrations: Sequence[str]) -> None:
        self.path = path
        self._lock = RLock()
        self._closed = False
        self._connection = open_database(path, migrations, _SETTINGS)

    @contextmanager
    def transaction(self) -> Iterator[Database]:
        """Everything or nothing, one at a time, not nested.

        What SQLite cannot write is a StoreError.
        """
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
        remedy = (
            "Free some space and try again"
            if "full" in str(problem)
            else "Mend the cause and try again"
        )
        return StoreError(
            f"{self.path} could not be changed, and is as it was: {problem}. {remedy}"
        )

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
                raise StoreError(
                    f"{self.path} cannot be read: {problem}. Put it back from a backup"
                ) from problem

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
            raise StoreError(
                f"the write-ahead log of {self.path} could not be cut: something else reads the "
                "database. Stop that"
            )

    def close(self) -> None:
        """Close; what was committed stays."""
        with self._lock:
            self._closed = True
            self._connection.close()


class Snapshot(Database):
    """The database as it is at one moment, read beside the process that works on it.

    Law: nothing is changed by it.

    While one is open, that process can commit, but not cut the write-ahead log, for which it waits:
    close this soon.
    """

    def __init__(self, path: Path, migrations: Sequence[str]) -> None:
        self.path = path
        self._lock = RLock()
        self._closed = False
        try:
            address = f"file:{quote(str(path))}?mode=ro"
            self._connection = sqlite3.connect(
                address, uri=True, isolation_level=None, check_same_thread=False, timeout=_PATIENCE
            )
        except sqlite3.Error as problem:
            raise StoreError(f"the database {path} cannot be opened: {problem}") from problem
        try:
            self._connection.execute("PRAGMA temp_store=MEMORY")
            self._connection.execute("BEGIN")
            version = int(self._connection.execute("PRAGMA user_version").fetchone()[0])
            self._connection.execute(
                "SELECT count(*) FROM sqlite_master"
            ).fetchone()  # from here on nothing changes
        except sqlite3.Error as problem:
            self._connection.close()
            raise StoreBusyError(
                f"{path} is in use by another process, and cannot be read beside it ({problem}): "
                "wait until that has finished"
            ) from problem
        if version != len(migrations):
            self._connection.close()
            raise StoreBusyError(
                f"{path} is in use by another process, and of version {version}; this program "
                f"reads version {len(migrations)}: wait until that process has finished"
            )

    def transaction(self) -> NoReturn:
        """Refused."""
        self._refuse()

    def truncate_log(self) -> NoReturn:
        """Refused."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise StoreError(
            f"{self.path} is open for reading only, beside the process that works on it: open it "
            "to change it"
        )
