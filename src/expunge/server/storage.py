"""The server's folder: database, sealed files, vault and signing key, opened together by one
process.

server.db        SQLite: everything but what is large or secret
sealed/          the ledger, each client's share of it, and large messages, sealed
server.vault     the keys they are sealed under; may be mirrored to another disk
server.key       the Ed25519 key that signs receipts (PEM); keep a copy in a safe
lock             held by the process at work

`Database`: one SQLite database, used by one process, with transactions that are durable when they
return (write-ahead log, full synchronous, secure delete). `hook` is called by name around every
commit; tests make it fail there.

`Blobs`: sealed files, for what is too large for the database. A file is written whole and durable
before anything refers to it.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import RLock
from typing import Any

from expunge.crypto import SigningKey
from expunge.crypto.vault import Vault
from expunge.errors import StoreError
from expunge.server.schema import MIGRATIONS
from expunge.storage.files import (
    FolderLock,
    erase_drafts,
    make_file,
    make_folder,
    sync_folder,
    write_whole,
)
from expunge.storage.sqlite import open_database, roll_back

Hook = Callable[[str], None]


def no_hook(_: str) -> None:
    """Nothing happens."""


class Database:
    """Law: after `with transaction()` everything in it is on disk; after an exception nothing of it
    is.
    """

    def __init__(self, path: Path, migrations: Sequence[str], hook: Hook = no_hook) -> None:
        self.path = path
        self._hook = hook
        self._lock = RLock()
        self._connection = open_database(path, migrations, {"wal_autocheckpoint": 4000})

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
        """Cut the write-ahead log if that can be done now: on a full disk it may be all the room
        there is.
        """
        with suppress(sqlite3.Error):
            self.truncate_log()

    def copy_to(self, path: Path) -> None:
        """A consistent copy, made while others go on."""
        make_file(path)
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


class Blobs:
    """A folder of immutable files named by chance.

    What the database does not refer to is removed by `keep_only`.
    """

    def __init__(self, folder: Path, hook: Hook = no_hook) -> None:
        self._folder = folder
        self._hook = hook
        make_folder(folder)

    def put(self, data: bytes) -> str:
        """Write a new file; when this returns it is on disk.

        One that could not be written is removed: the disk may be full.
        """
        name = secrets.token_hex(16)
        self._hook("before file")
        descriptor = os.open(
            self._folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
        )
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
            sync_folder(self._folder)
        except BaseException:
            (self._folder / name).unlink()
            raise
        finally:
            os.close(descriptor)
        self._hook("after file")
        return name

    def get(self, name: str) -> bytes:
        """The content of a file."""
        try:
            return (self._folder / name).read_bytes()
        except OSError as problem:
            raise StoreError(
                f"the sealed file {name} is missing: restore a backup, or rebuild from the clients"
            ) from problem

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        (self._folder / name).unlink(missing_ok=True)

    def keep_only(self, names: Collection[str]) -> None:
        """Remove every other file."""
        for path in list(self._folder.iterdir()):
            if path.name not in names:
                path.unlink()


_DATABASE, _VAULT, _KEY, _NEXT_KEY = "server.db", "server.vault", "server.key", "server.key.next"


class ServerFolder:
    """Whoever holds one is alone with these files."""

    def __init__(
        self, path: Path, lock: FolderLock, vault: Vault, key: SigningKey, hook: Hook
    ) -> None:
        self.path = path
        self.vault = vault
        self.key = key
        self._stored = key.public.id  # of the key in its file
        self._lock = lock
        self._closed = False
        try:
            self.blobs = Blobs(path / "sealed", hook)
            self.database = Database(path / _DATABASE, MIGRATIONS, hook)
        except BaseException:
            vault.close()
            raise

    @classmethod
    def create(
        cls, path: Path, key: SigningKey, mirrors: Sequence[Path] = (), hook: Hook = no_hook
    ) -> ServerFolder:
        """A new folder; one that holds a server already is refused."""
        make_folder(path)
        if (path / _DATABASE).exists() or (path / _KEY).exists():
            raise StoreError(f"{path} holds a server already: choose another folder")
        lock = FolderLock(path)
        try:
            write_whole(path / _KEY, key.pem)
            return cls(path, lock, Vault.create(path / _VAULT, mirrors), key, hook)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def open(
        cls, path: Path, mirrors: Sequence[Path] = (), hook: Hook = no_hook, timeout: float = 0.0
    ) -> ServerFolder:
        """The folder of a server that was created before."""
        if not (path / _DATABASE).exists():
            raise StoreError(f"there is no server in {path}: make one with expunge init")
        lock = FolderLock(path, timeout)
        try:
            erase_drafts(path)
            if not (path / _KEY).exists():
                raise StoreError(
                    f"{path / _KEY} is missing: put the server's signing key back from where you "
                    "keep its copy"
                )
            key = SigningKey.from_pem((path / _KEY).read_bytes())
            folder = cls(path, lock, Vault.open(path / _VAULT, mirrors), key, hook)
        except BaseException:
            lock.release()
            raise
        try:
            folder.adopt_key()
        except BaseException:
            folder.close()
            raise
        return folder

    def prepare_key(self, key: SigningKey) -> None:
        """Write the key that is to sign next, before anything says so."""
        self.adopt_key()  # an earlier one may still be in that file alone
        write_whole(self.path / _NEXT_KEY, key.pem)

    def adopt_key(self) -> None:
        """The database says which key signs: bring memory and file in line after a rotation, also
        after a crash in its middle.
        """
        current = self.database.value("SELECT key FROM state")
        if current is not None and current != self.key.public.id:
            self.key = self._next_key(current)
        if self.key.public.id != self._stored:
            write_whole(self.path / _KEY, self.key.pem)
            self._stored = self.key.public.id
        (self.path / _NEXT_KEY).unlink(missing_ok=True)

    def _next_key(self, wanted: str) -> SigningKey:
        following = self.path / _NEXT_KEY
        key = SigningKey.from_pem(following.read_bytes()) if following.exists() else None
        if key is None or key.public.id != wanted:
            raise StoreError(
                f"{self.path / _KEY} is not the key that this server signs with ({wanted[:16]}…): "
                "put it back"
            )
        return key

    def close(self) -> None:
        """Close everything and let others in; once is enough, and twice does no harm."""
        if not self._closed:
            self._closed = True
            self.database.close()
            self.vault.close()
            self._lock.release()
