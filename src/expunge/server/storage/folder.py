"""The server's folder: database, sealed files, vault and signing key, opened together by one
process.

server.db        SQLite: everything but what is large or secret
sealed/          the ledger, each client's share of it, and large messages, sealed
server.vault     the keys they are sealed under; may be mirrored to another disk
server.key       the Ed25519 key that signs receipts (PEM); keep a copy in a safe
server.reserve   room on the disk for when it is full: may be removed
server.mark      size and root of the audit log, as they were when anybody was last told of them
lock             held by the process at work

`Blobs`: sealed files, for what is too large for the database. A file is written whole and durable
before anything refers to it. `hook` is called by name around every write, and around every commit
of the database; tests make it fail there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from expunge.crypto import SigningKey
from expunge.crypto.vault import Vault
from expunge.errors import StoreDamagedError, StoreError
from expunge.server import DATABASE, KEY, MARK, RESERVE, VAULT
from expunge.server.log import AuditLog
from expunge.server.storage.sqlite import check_storage, open_storage
from expunge.server.storage.tables import Storage
from expunge.storage.files import (
    FolderLock,
    erase_drafts,
    make_folder,
    remove,
    sync_folder,
    write_all_new,
    write_whole,
)
from expunge.storage.machine import machine_of
from expunge.storage.mark import HighWaterMark, Level
from expunge.storage.reserve import Reserve
from expunge.storage.sqlite import Hook, no_hook

OpenStorage = Callable[[Path, Hook], Storage]

TO_OPEN = 1 << 20  # bytes of the disk that opening a folder may take, as for a write-ahead log


class Blobs:
    """A folder of immutable files with random names.

    What the database does not refer to is removed by `keep_only`.
    """

    def __init__(self, folder: Path, hook: Hook = no_hook) -> None:
        self._folder = folder
        self._hook = hook
        self._machine = machine_of(folder)
        make_folder(folder)

    def names(self, count: int) -> list[str]:
        """Names for so many new files."""
        return [self._machine.random(16).hex() for _ in range(count)]

    def put(self, data: bytes) -> str:
        """Write a new file; when this returns it is on disk."""
        (name,) = self.names(1)
        self.put_all({name: data})
        return name

    def put_all(self, files: Mapping[str, bytes]) -> None:
        """Write new files by their names; when this returns they are on disk.

        If one could not be written, all are removed: the disk may be full.
        """
        self._hook("before file")
        try:
            write_all_new({self._folder / name: data for name, data in files.items()})
            sync_folder(self._folder)
        except FileExistsError:
            raise
        except BaseException:
            for name in files:
                self.remove(name)
            raise
        self._hook("after file")

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
        remove(self._folder / name)

    def keep_only(self, names: Collection[str]) -> None:
        """Remove every other file."""
        for path in list(self._folder.iterdir()):
            if path.name not in names:
                remove(path)


_NEXT_KEY = "server.key.next"
_SCRUB = (
    "Put it back from a backup; or have it made anew from what is there (expunge server scrub "
    "--repair), if nothing can have been lost"
)


class ServerFolder:
    """The holder has exclusive access to these files."""

    def __init__(
        self,
        path: Path,
        lock: FolderLock,
        vault: Vault,
        key: SigningKey,
        *,
        hook: Hook,
        storage: OpenStorage,
    ) -> None:
        self.path = path
        self.machine = machine_of(path)
        self.vault = vault
        self.key = key
        self._stored = key.public.id  # of the key in its file
        self._lock = lock
        self._closed = False
        self.mark = HighWaterMark(path / MARK, _SCRUB, hook)
        self.reserve = Reserve(path / RESERVE, TO_OPEN)
        try:
            self.blobs = Blobs(path / "sealed", hook)
            self.storage = storage(path / DATABASE, hook)
        except BaseException:
            vault.close()
            raise

    @classmethod
    def create(
        cls,
        path: Path,
        key: SigningKey,
        mirrors: Sequence[Path] = (),
        hook: Hook = no_hook,
        storage: OpenStorage = open_storage,
    ) -> ServerFolder:
        """A new folder; one that holds a server already is refused."""
        make_folder(path)
        if (path / DATABASE).exists() or (path / KEY).exists():
            raise StoreError(f"{path} holds a server already: choose another folder")
        lock = FolderLock(path)
        try:
            write_whole(path / KEY, key.pem)
            vault = Vault.create(path / VAULT, mirrors)
            return cls(path, lock, vault, key, hook=hook, storage=storage)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def open(
        cls,
        path: Path,
        mirrors: Sequence[Path] = (),
        hook: Hook = no_hook,
        timeout: float = 0.0,
        storage: OpenStorage = open_storage,
        *,
        lossy: bool = False,
    ) -> ServerFolder:
        """The folder of a server that was created before.

        One whose audit log is behind its mark is refused as it is, unless it may be `lossy`.
        """
        if not (path / DATABASE).exists():
            raise StoreError(f"there is no server in {path}: make one with expunge init")
        lock = FolderLock(path, timeout)
        try:
            Reserve(path / RESERVE, TO_OPEN).use()
            erase_drafts(path)
            if not (path / KEY).exists():
                raise StoreError(
                    f"{path / KEY} is missing: put the server's signing key back from where you "
                    "keep its copy"
                )
            key = SigningKey.from_pem((path / KEY).read_bytes())
            check_storage(path / DATABASE)  # before the vault, too, is brought up to date
            vault = Vault.open(path / VAULT, mirrors)
            folder = cls(path, lock, vault, key, hook=hook, storage=storage)
        except BaseException:
            lock.release()
            raise
        try:
            if not lossy:
                with folder.storage.explaining():
                    folder.require_log()
                    folder.mark_log()  # which a crash may have kept from being raised, or made
                    folder.adopt_key()
        except StoreDamagedError:
            folder.close(abandon=True)
            raise
        except BaseException:
            folder.close()
            raise
        return folder

    def require_log(self) -> None:
        """StoreDamagedError unless the audit log has all that anybody was told of."""
        mark, log = self.mark.read(), AuditLog(self.storage)
        if mark is None or (log.size >= mark.number and log.root(mark.number) == mark.digest):
            return
        what = (
            f"has {log.size} entries, and had {mark.number}: the rest is lost"
            if log.size < mark.number
            else f"is not the one whose first {mark.number} entries were told of before"
        )
        raise StoreDamagedError(
            f"the audit log in {self.path / DATABASE} {what}, with changes that were receipted, "
            f"deletions perhaps. Nothing is served, and no file was touched. If {DATABASE} and "
            f"{DATABASE}-wal are whole elsewhere, as they were last, put both back. Otherwise "
            "restore the server from a backup (expunge server restore), or accept what is left "
            "here (expunge server accept-loss): then every client sends what it holds now, and "
            "what was deleted stays deleted"
        )

    def renew_mark(self) -> None:
        """Make a mark that is damaged anew, from the log as it is."""
        log = AuditLog(self.storage)
        self.mark.set(Level(log.size, log.root(log.size)))

    def mark_log(self) -> None:
        """Somebody may be told of the log as it is now."""
        log = AuditLog(self.storage)
        size = log.size
        if self.mark.number < size:
            self.mark.raise_to(Level(size, log.root(size)))

    def prepare_key(self, key: SigningKey) -> None:
        """Write the key that is to sign next, before anything says so."""
        self.adopt_key()  # an earlier one may still be in that file alone
        write_whole(self.path / _NEXT_KEY, key.pem)

    def adopt_key(self) -> None:
        """The database says which key signs: bring memory and file in line after a rotation, even
        after a crash midway.
        """
        state = self.storage.state.get()
        if state is not None and state.key != self.key.public.id:
            self.key = self._next_key(state.key)
        if self.key.public.id != self._stored:
            write_whole(self.path / KEY, self.key.pem)
            self._stored = self.key.public.id
        remove(self.path / _NEXT_KEY)

    def _next_key(self, wanted: str) -> SigningKey:
        following = self.path / _NEXT_KEY
        key = SigningKey.from_pem(following.read_bytes()) if following.exists() else None
        if key is None or key.public.id != wanted:
            raise StoreError(
                f"{self.path / KEY} is not the key that this server signs with ({wanted[:16]}…): "
                "put it back"
            )
        return key

    def close(self, *, abandon: bool = False) -> None:
        """Close everything and let others in; once is enough, and twice does no harm. `abandon`
        leaves the files of the store as they were found.
        """
        if not self._closed:
            self._closed = True
            if abandon:
                self.storage.abandon()
            else:
                self.storage.close()
            self.vault.close()
            self._lock.release()
