"""SQLite on a simulated disk: a virtual file system, and connections with the interface of
`sqlite3`.

The module that comes with Python cannot be given a file system; apsw can, and has an SQLite of its
own. Connections keep the write-ahead log's index in memory (a virtual file system has no shared
memory), and so have their database to themselves, as processes that hold a folder's lock do.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from errno import ENOSPC, EROFS
from functools import cache
from pathlib import Path
from typing import Any

from expunge.errors import requires_extra
from expunge.storage.machine import machine_of
from expunge.testing.simulation.disk import CrashedError

with requires_extra("simulation", "a simulation"):
    import apsw

_NAME = "expunge-simulation"
_IS_JOURNAL = apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL | apsw.SQLITE_OPEN_WAL
_ERRORS: tuple[tuple[type[apsw.Error], type[sqlite3.Error]], ...] = (
    (apsw.ConstraintError, sqlite3.IntegrityError),
    (apsw.CorruptError, sqlite3.DatabaseError),
    (apsw.NotADBError, sqlite3.DatabaseError),
    (apsw.Error, sqlite3.OperationalError),
)


class SimulatedConnection:
    """A connection to a database on the disk of a machine."""

    def __init__(
        self, database: str | Path, require_on: Callable[[], None], *, is_uri: bool = False
    ) -> None:
        """`require_on` raises CrashedError if the machine has stopped."""
        self._require_on = require_on
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
        flags |= apsw.SQLITE_OPEN_URI if is_uri else 0
        with _as_sqlite3(require_on):
            self._connection = apsw.Connection(str(database), flags=flags, vfs=_file_system())
            self._run("PRAGMA locking_mode=EXCLUSIVE")
            self._run("PRAGMA temp_store=MEMORY")

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction has begun and not ended."""
        return self._connection.in_transaction

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> SimulatedCursor:
        """Carry out one statement."""
        try:  # as `_as_sqlite3`, which would cost as much as a small statement
            return self._run(sql, tuple(parameters))
        except (apsw.Error, UnicodeDecodeError) as problem:
            with _as_sqlite3(self._require_on):
                raise problem from None

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> SimulatedCursor:
        """Carry out one statement for each of many arguments."""
        with _as_sqlite3(self._require_on):
            for each in parameters:
                self._run(sql, tuple(each))
        return SimulatedCursor([], self._connection)

    def executescript(self, sql_script: str, /) -> SimulatedCursor:
        """Carry out several statements."""
        return self.execute(sql_script)

    def backup(self, target: Any, /) -> None:
        """Copy the database into that of another connection."""
        with (
            _as_sqlite3(self._require_on),
            target.connection.backup("main", self._connection, "main") as backup,
        ):
            while not backup.done:
                backup.step(-1)

    def close(self) -> None:
        """Close it; a transaction that has not ended has not happened. What cannot be written
        then, as the log into the database, waits for the next time.
        """
        with suppress(apsw.Error):
            self._connection.close(force=True)
        self._require_on()

    @property
    def connection(self) -> apsw.Connection:
        """That of apsw."""
        return self._connection

    def abandon(self) -> None:
        """Close it after a crash: no file is changed."""
        with suppress(CrashedError, apsw.Error):
            self._connection.close(force=True)

    def _run(self, sql: str, parameters: tuple[Any, ...] = ()) -> SimulatedCursor:
        rows = self._connection.execute(sql, parameters or None).fetchall()
        return SimulatedCursor(rows, self._connection)


class SimulatedCursor:
    """What a statement has found."""

    def __init__(self, rows: list[Any], connection: apsw.Connection) -> None:
        self._rows, self._connection = rows, connection

    @property
    def rowcount(self) -> int:
        """How many rows the last statement has changed that changed any."""
        return self._connection.changes()

    def fetchone(self) -> Any:
        """The next row, or None."""
        return self._rows.pop(0) if self._rows else None

    def fetchall(self) -> list[Any]:
        """The rows that are left."""
        rows, self._rows = self._rows, []
        return rows


@contextmanager
def _as_sqlite3(require_on: Callable[[], None]) -> Iterator[None]:
    """Errors as Python's module raises them; none of them hides a crash."""
    try:
        yield
    except apsw.Error as problem:
        require_on()
        kind = next(ours for theirs, ours in _ERRORS if isinstance(problem, theirs))
        raise kind(str(problem)) from problem
    except UnicodeDecodeError as problem:
        raise sqlite3.OperationalError("Could not decode to UTF-8") from problem


# -- the virtual file system -----------------------------------------------------------------------


@contextmanager
def _as_sqlite() -> Iterator[None]:
    """Errors of the disk as SQLite knows them."""
    try:
        yield
    except OSError as problem:
        if problem.errno == ENOSPC:
            raise apsw.FullError("database or disk is full") from problem
        if problem.errno == EROFS:
            raise apsw.ReadOnlyError("attempt to write a readonly database") from problem
        raise apsw.IOError("disk I/O error") from problem


class _SimulatedFile:
    """An open file of a database."""

    def __init__(self, path: Path, flags: int) -> None:
        self._path = path
        self._machine = machine_of(path)
        self._names_are_durable = not (flags & _IS_JOURNAL and flags & apsw.SQLITE_OPEN_CREATE)
        mode = os.O_RDONLY if flags & apsw.SQLITE_OPEN_READONLY else os.O_RDWR
        create = os.O_CREAT if flags & apsw.SQLITE_OPEN_CREATE else 0
        self._descriptor = self._machine.open(path, mode | create)
        self._is_temporary = bool(flags & apsw.SQLITE_OPEN_DELETEONCLOSE)

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802 - SQLite's names
        """Read."""
        return os.pread(self._descriptor, amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        """Write."""
        with _as_sqlite():
            self._machine.write(self._descriptor, data, offset)

    def xTruncate(self, size: int) -> None:  # noqa: N802
        """Cut."""
        with _as_sqlite():
            self._machine.truncate(self._descriptor, size)

    def xSync(self, _flags: int) -> None:  # noqa: N802
        """Make it durable; of a journal that it may have made, as on Unix, the name as well."""
        with _as_sqlite():
            self._machine.sync(self._descriptor)
            if not self._names_are_durable:
                self._machine.sync_folder(self._path.parent)
                self._names_are_durable = True

    def xFileSize(self) -> int:  # noqa: N802
        """The size."""
        return os.fstat(self._descriptor).st_size

    def xClose(self) -> None:  # noqa: N802
        """Close."""
        self._machine.close(self._descriptor)
        if self._is_temporary:
            self._machine.remove(self._path)

    def xLock(self, _level: int) -> None:  # noqa: N802
        """Nobody else has the database open: its folder is locked."""

    def xUnlock(self, _level: int) -> None:  # noqa: N802
        """The same."""

    def xCheckReservedLock(self) -> bool:  # noqa: N802
        """The same."""
        return False

    def xFileControl(self, _operation: int, _pointer: int) -> bool:  # noqa: N802
        """Nothing is known."""
        return False

    def xSectorSize(self) -> int:  # noqa: N802
        """What is written whole, or not at all."""
        return 512

    def xDeviceCharacteristics(self) -> int:  # noqa: N802
        """A write damages nothing beside it."""
        return apsw.SQLITE_IOCAP_POWERSAFE_OVERWRITE


class _SimulatedFileSystem(apsw.VFS):
    """Every file is on the machine of its folder."""

    def __init__(self) -> None:
        self.random: Callable[[int], bytes] = os.urandom
        super().__init__(_NAME, base="", makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> Any:  # noqa: N802
        """Open a file; temporary ones are kept in memory, and never get here."""
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        with _as_sqlite():
            file = _SimulatedFile(Path(path), flags[0])
        flags[1] = flags[0]
        return file

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        """Remove a file."""
        path = Path(filename)
        with _as_sqlite():
            machine_of(path).remove(path)
            if syncdir:
                machine_of(path).sync_folder(path.parent)

    def xAccess(self, pathname: str, _flags: int) -> bool:  # noqa: N802
        """Whether a file is there."""
        return Path(pathname).exists()

    def xRandomness(self, numbytes: int) -> bytes:  # noqa: N802
        """What salts of logs are drawn from."""
        return self.random(numbytes)

    def excepthook(self, *_: Any) -> bool:
        """What cannot be raised any more has been raised where it happened."""
        return True


@cache
def _registered() -> _SimulatedFileSystem:
    return _SimulatedFileSystem()


def _file_system() -> str:
    _registered()
    return _NAME


def draw_salts_from(random: Callable[[int], bytes]) -> None:
    """What SQLite draws at random comes from here from now on."""
    _registered().random = random
    apsw.randomness(0)
