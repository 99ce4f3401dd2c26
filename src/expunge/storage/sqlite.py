"""SQLite databases as client and server keep them: durable, erasing what is deleted, and brought up
to date when opened.

A transaction is durable when it returns, or nothing of it is; a snapshot sees whole transactions
only. Whatever SQLite says is a StoreError with the path and what to do about it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from threading import RLock
from typing import Any, NoReturn, Self, cast
from urllib.parse import quote

from expunge.errors import ExpungeError, StoreBusyError, StoreDamagedError, StoreError
from expunge.storage.files import make_file
from expunge.storage.machine import Connection, machine_of

_BESIDE = ("-wal", "-shm")
_ALWAYS: dict[str, str | int] = {
    "journal_mode": "WAL",
    "synchronous": "FULL",
    "secure_delete": "ON",
    "foreign_keys": "ON",
}
# What the module raises; the second where it cannot read what SQLite says of a damaged schema
SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
IN_DOUBT = "could not be written, and whether it was changed shows when it is opened anew"
_PUT_BACK = "Put it back from a backup"
_OF_ITSELF = "sqlite_"  # how the names of SQLite's own tables begin
_TYPES = {"INTEGER": "integer", "TEXT": "text", "BLOB": "blob"}  # by the declared type of a column
_HEADER_BYTES, _VERSION_AT = 100, 60  # of every database file of SQLite
_SPARE = 1 << 20  # bytes
SNAPSHOT_PATIENCE = 2.0  # seconds to wait for a writer that keeps readers out; then it is busy

Hook = Callable[[str], None]


def no_hook(_: str) -> None:
    """No-op hook."""


class Database:
    """Law: after `with transaction()` everything in it is on disk; after an exception nothing of it
    is. Any thread may use it.

    `settings` are pragmas that come first. `hook` is called by name around every commit; tests make
    it fail there. `remedy` says what to do if it is damaged.
    """

    def __init__(
        self,
        path: Path,
        migrations: Sequence[str],
        settings: Mapping[str, str | int] | None = None,
        hook: Hook = no_hook,
        remedy: str = _PUT_BACK,
    ) -> None:
        connection = _connected(path, migrations, settings or {}, remedy)
        self._adopt(path, connection, hook, remedy)

    def _adopt(
        self, path: Path, connection: Connection, hook: Hook = no_hook, remedy: str = _PUT_BACK
    ) -> None:
        self.path = path
        self.remedy = remedy
        self._connection = connection
        self._hook = hook
        self._lock = RLock()
        self._closed = False
        self._ended = 0  # transactions
        self._is_certain = True

    # -- changing ----------------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """Everything or nothing, one at a time, not nested.

        What SQLite cannot write is a StoreError.
        """
        with self._lock:
            if not self._closed and self._connection.in_transaction:
                raise StoreError(f"{self.path} is in a transaction: it must end first")
            if not self._closed:
                self._make_certain()  # before anything is written that would have to stay
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield self
                self._hook("before commit")
                self._commit()
            except SQLITE_ERRORS as problem:
                self._undo()
                raise self._failure(problem) from problem
            except BaseException:
                self._undo()
                raise
            finally:
                self._ended += 1
            self._hook("after commit")

    @property
    def is_certain(self) -> bool:
        """Whether, after a crash, there would be what there is now. If not, there may be what a
        transaction changed that failed, and whatever it refers to must stay.
        """
        return self._is_certain

    def _undo(self) -> None:
        if not self._closed:
            _roll_back(self._connection)
            self._make_certain()

    def _commit(self) -> None:
        self._is_certain = False
        self._connection.execute("COMMIT")
        self._is_certain = True

    def _make_certain(self) -> None:
        """A commit that fails may have written all of itself to the log, of which only the end was
        not synced: another one is written over it.
        """
        if self._is_certain:
            return
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            version = self._connection.execute("PRAGMA user_version").fetchone()[0]
            self._connection.execute(f"PRAGMA user_version={version}")
            self._commit()
        except SQLITE_ERRORS:  # the disk is still failing: the next transaction does it
            _roll_back(self._connection)

    def run(self, query: str, arguments: Sequence[Any] = ()) -> int:
        """Carry out one statement; how many rows it touched. Refused outside a transaction."""
        return self._in_transaction().execute(query, arguments).rowcount

    def run_many(self, query: str, arguments: Iterable[Sequence[Any]]) -> None:
        """Carry out one statement for each of many arguments, as `run`."""
        self._in_transaction().executemany(query, arguments)

    def _in_transaction(self) -> Connection:
        with self._lock:  # of another thread's transaction only its end is seen
            if self._closed:
                raise self._was_closed()
            if not self._connection.in_transaction:
                raise StoreError(f"{self.path} is changed in transactions only")
            return self._connection

    def _was_closed(self) -> StoreError:
        return StoreError(f"{self.path} was closed: open the store again")

    def _failure(self, problem: sqlite3.Error | UnicodeDecodeError) -> StoreError:
        if self._closed:
            return self._was_closed()
        if not self._is_certain:
            return store_error(self.path, problem, self.remedy, IN_DOUBT)
        return store_error(self.path, problem, self.remedy)

    # -- reading -----------------------------------------------------------------------------------

    @property
    def version(self) -> int | None:
        """Law: as long as it is the same number, so is what was read here. None: it may change now,
        in a transaction, or was closed.
        """
        return None if self._closed or self._connection.in_transaction else self._ended

    def rows(self, query: str, arguments: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of a query."""
        with self._lock:
            try:
                return self._connection.execute(query, arguments).fetchall()
            except SQLITE_ERRORS as problem:
                raise self._failure(problem) from problem

    def row(self, query: str, arguments: Sequence[Any] = ()) -> tuple[Any, ...] | None:
        """The first row of a query, or None."""
        rows = self.rows(query, arguments)
        return rows[0] if rows else None

    def value(self, query: str, arguments: Sequence[Any] = ()) -> Any:
        """The first value of the first row, or None."""
        row = self.row(query, arguments)
        return None if row is None else row[0]

    # -- damage ------------------------------------------------------------------------------------

    def damage(self) -> list[str]:
        """What is wrong with the file, as far as SQLite can tell: pages, indexes, rules of tables,
        and values of another type than that of their column. Empty if nothing is.
        """
        try:
            found = [str(row[0]) for row in self.rows("PRAGMA integrity_check")]
            found = [] if found == ["ok"] else found
            found += [
                f"row {row[1]} of {row[0]} refers to one of {row[2]} that is not there"
                for row in self.rows("PRAGMA foreign_key_check")
            ]
            for (table,) in self.rows("SELECT name FROM sqlite_master WHERE type = 'table'"):
                if not table.startswith(_OF_ITSELF):
                    found += self._of_other_types(table)
        except StoreError as problem:
            return [str(problem)]
        return found

    def _of_other_types(self, table: str) -> list[str]:
        found = []
        for _, column, declared, *_ in self.rows(f"PRAGMA table_info({table})"):
            query = f"SELECT count(*) FROM {table} WHERE typeof({column}) NOT IN (?, 'null')"  # noqa: S608 - names in the schema
            wrong = self.value(query, (_TYPES.get(declared, declared.lower()),))
            if wrong:
                found.append(f"{wrong} values of another type in {table}.{column}")
        return found

    def rebuild_indexes(self) -> bool:
        """Make every index anew from its table, which is the truth; always true."""
        with self.transaction() as changes:
            changes.run("REINDEX")
        return True

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Whatever is raised because this database is damaged is a StoreDamagedError.

        An error that is not ours is looked into: it stays what it is if nothing is damaged.
        """
        try:
            yield
        except ExpungeError:
            raise
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as problem:
            if self._closed or not (found := self.damage()):
                raise
            raise StoreDamagedError(
                f"{self.path} is damaged: {found[0]}. {self.remedy}"
            ) from problem

    # -- the file ----------------------------------------------------------------------------------

    def truncate_log(self) -> None:
        """Bring the write-ahead log into the database and truncate it."""
        with self._lock:
            try:
                busy = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
            except SQLITE_ERRORS as problem:
                raise self._failure(problem) from problem
        if busy:
            raise StoreError(
                f"the write-ahead log of {self.path} could not be cut: something else reads the "
                "database. Stop that"
            )

    def make_room(self) -> None:
        """Cut the write-ahead log if that can be done now: on a full disk it may be all the room
        there is.
        """
        with suppress(StoreError):
            self.truncate_log()

    def copy_to(self, path: Path, emptying: Sequence[str] = ()) -> None:
        """A consistent copy in one file, made while others continue; `emptying` are statements that
        take out of it what is not to be copied, to the last byte.
        """
        make_file(path)
        target = machine_of(path).connect(path)
        try:
            with self._lock:
                self._connection.backup(target)
            target.execute("PRAGMA journal_mode=DELETE")
            target.execute("PRAGMA secure_delete=ON")
            for statement in emptying:
                target.execute(statement)
            target.execute("VACUUM")
        except SQLITE_ERRORS as problem:
            raise store_error(self.path, problem, self.remedy, "could not be copied") from problem
        finally:
            target.close()

    def close(self) -> None:
        """Close; what was committed stays."""
        with self._lock:
            self._closed = True
            self._connection.close()

    def abandon(self) -> None:
        """Close, and leave the write-ahead log as it is: whoever closes a database last brings it
        in and removes it, unless they may only read.
        """
        reader = machine_of(self.path).connect(_read_only(self.path), uri=True)
        try:
            with suppress(sqlite3.Error):
                reader.execute("SELECT count(*) FROM sqlite_master").fetchone()
            self.close()
        finally:
            reader.close()


class Snapshot(Database):
    """The database as it is at one moment, read beside the process that works on it.

    Law: nothing is changed by it.

    While one is open, that process can commit, but not cut the write-ahead log, for which it waits:
    close this soon.
    """

    def __init__(self, path: Path, migrations: Sequence[str], remedy: str = _PUT_BACK) -> None:
        connection, version = _glimpse(path, remedy)
        self._adopt(path, connection, remedy=remedy)
        if version != len(migrations):
            self.close()
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


def store_error(
    path: Path,
    problem: sqlite3.Error | UnicodeDecodeError,
    remedy: str,
    failed: str = "could not be used, and is as it was",
) -> StoreError:
    """What SQLite says of a database, with what to do about it; `remedy` is for a damaged one."""
    said = str(problem)
    code = getattr(problem, "sqlite_errorcode", 0) & 0xFF
    folder = next(folder for folder in path.absolute().parents if folder.exists())
    space = machine_of(path).space(folder)
    is_io = code == sqlite3.SQLITE_IOERR or "I/O" in said
    if code == sqlite3.SQLITE_FULL or "is full" in said or (is_io and space.free < _FULL):
        return StoreError(
            f"{path} {failed}: the disk is full ({said}; {space.free:,} bytes are free). Free some "
            "space on it and try again"
        )
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) or "is locked" in said:
        return StoreBusyError(
            f"{path} {failed}: another process is at work on it ({said}). Wait until that has "
            "finished"
        )
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM) or any(
        words in said for words in ("readonly", "unable to open")
    ):
        remedy = (
            "The file system is mounted read-only: mount it for writing"
            if space.is_read_only
            else "Let this user write the file and its folder"
        )
        return StoreError(f"{path} {failed}: {said}. {remedy}, and try again")
    if is_io:
        return StoreError(f"{path} {failed}: {said}. Look after the disk, and try again")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or any(
        words in said for words in _DAMAGED
    ):
        return StoreDamagedError(f"{path} {failed}: {said}. {remedy}")
    return StoreError(f"{path} {failed}: {said}. Mend the cause and try again")


_FULL = 1 << 16  # bytes, with less than which SQLite can make no file of its own
_DAMAGED = (
    "malformed",
    "not a database",
    "decode to UTF-8",
    "no such ",
    "already exists",
    "FOREIGN KEY",
    "codec can't decode",
)


def _connected(
    path: Path, migrations: Sequence[str], settings: Mapping[str, str | int], remedy: str
) -> Connection:
    """A connection for one process and any of its threads, which take turns.

    A database of version n has had the first n of the migrations; the others are carried out, all
    or none. One of a version that is not known yet is refused.
    """
    beside = (path.with_name(path.name + end) for end in _BESIDE)
    try:
        # SQLite gives the files that it makes beside a database the mode of the database.
        for file in (path, *(other for other in beside if other.exists())):
            make_file(file)
        connection = machine_of(path).connect(path, timeout=30.0)
    except SQLITE_ERRORS as problem:
        raise store_error(path, problem, remedy, "cannot be opened") from problem
    except OSError as problem:
        raise StoreError(
            f"the database {path} cannot be opened: {problem.strerror}. Mend that and try again"
        ) from problem
    try:
        for name, value in {**settings, **_ALWAYS}.items():
            connection.execute(f"PRAGMA {name}={value}")
        _migrate(connection, path, migrations)
    except SQLITE_ERRORS as problem:
        connection.close()
        raise store_error(path, problem, remedy, "cannot be used") from problem
    except BaseException:
        connection.close()
        raise
    return connection


def _migrate(connection: Connection, path: Path, migrations: Sequence[str]) -> None:
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    _require_known(path, version, migrations)
    missing = migrations[version:]
    if missing:
        try:
            connection.executescript(
                f"BEGIN IMMEDIATE;{';'.join(missing)};PRAGMA user_version={len(migrations)};COMMIT;"
            )
        except BaseException:
            _roll_back(connection)
            raise


def _require_known(path: Path, version: int, migrations: Sequence[str]) -> None:
    if version > len(migrations):
        raise StoreError(
            f"the database {path} is of version {version}, newer than version {len(migrations)}, "
            "which this program knows: update expunge. Nothing was changed"
        )


def require_upgradable(path: Path, migrations: Sequence[str], remedy: str) -> bool:
    """Whether a database is of an earlier version; StoreError if it cannot be brought up to date.
    It is only read: whatever is refused here, the program that wrote it can open as before.
    """
    if _version_in_file(path) in (None, len(migrations)):
        return False
    connection, version = _glimpse(path, remedy)
    try:
        _require_known(path, version, migrations)
        lacking = _columns_after(migrations[:version]) - _columns_of(connection)
        found = connection.execute("PRAGMA quick_check").fetchone()[0]
    except SQLITE_ERRORS as problem:
        raise store_error(path, problem, remedy, "cannot be read") from problem
    finally:
        connection.close()
    if lacking or found != "ok":
        what = found if not lacking else "it has no {}.{}".format(*min(lacking))
        raise StoreDamagedError(
            f"{path} cannot be brought up to date: it is damaged, or no release wrote it ({what}). "
            f"Nothing was changed: the program that wrote it can open it as before. {remedy}"
        )
    _require_room(path)
    return True


def _version_in_file(path: Path) -> int | None:
    """The version as the file's header has it, for that is written when a database is made, and
    brought in when it is closed; None if there is no such file, or one of another kind.
    """
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
    except OSError:  # to be told of by whoever opens it
        return None
    if len(header) < _HEADER_BYTES or not header.startswith(b"SQLite format 3\0"):
        return None
    return int.from_bytes(header[_VERSION_AT : _VERSION_AT + 4], "big")


def _columns_after(migrations: Sequence[str]) -> set[tuple[str, str]]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(";".join(migrations))
        return _columns_of(cast("Connection", connection))


def _columns_of(connection: Connection) -> set[tuple[str, str]]:
    """Every table with every column of it."""
    query = "SELECT m.name, c.name FROM sqlite_master m, pragma_table_info(m.name) c"
    rows = connection.execute(f"{query} WHERE m.type = 'table'").fetchall()
    return {(str(table), str(column)) for table, column in rows}


def _require_room(path: Path) -> None:
    """Room for the whole database to be written once more."""
    log = path.with_name(path.name + _BESIDE[0])
    needed = path.stat().st_size + (log.stat().st_size if log.exists() else 0) + _SPARE
    free = machine_of(path).space(path.parent).free
    if free < needed:
        raise StoreError(
            f"{path} must be brought up to date, for which {needed:,} bytes must be free on its "
            f"disk, and {free:,} are. Free some space and try again; nothing was changed, and the "
            "program that wrote it can open it as before"
        )


def _roll_back(connection: Connection) -> None:
    """End a transaction, if there is one, as if it had not begun."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _read_only(path: Path) -> str:
    return f"file:{quote(str(path))}?mode=ro"


def _glimpse(path: Path, remedy: str) -> tuple[Connection, int]:
    """A connection that reads what is there now and sees no later change, and the version."""
    try:
        connection = machine_of(path).connect(_read_only(path), uri=True, timeout=SNAPSHOT_PATIENCE)
    except SQLITE_ERRORS as problem:
        raise store_error(path, problem, remedy, "cannot be opened") from problem
    try:
        connection.execute("PRAGMA temp_store=MEMORY")
        connection.execute("BEGIN")
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()  # from here on fixed
    except SQLITE_ERRORS as problem:
        connection.close()
        raise store_error(path, problem, remedy, "cannot be read beside it") from problem
    return connection, version
