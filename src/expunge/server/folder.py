"""The server's folder: database, sealed files, vault and signing key, opened together by one process.

server.db        SQLite: everything but what is large or secret
sealed/          the ledger, each client's share of it, and large messages, sealed
server.vault     the keys they are sealed under; may be mirrored to another disk
server.key       the Ed25519 key that signs receipts (PEM); keep a copy in a safe
lock             held by the process at work
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from expunge.errors import StoreError
from expunge.files import FolderLock, erase_drafts, write_whole
from expunge.server.blobs import Blobs
from expunge.server.database import Database, Hook, no_hook
from expunge.server.schema import MIGRATIONS
from expunge.signing import SigningKey
from expunge.vault import Vault

_DATABASE, _VAULT, _KEY, _NEXT_KEY = "server.db", "server.vault", "server.key", "server.key.next"


class Folder:
    """Whoever holds one is alone with these files."""

    def __init__(self, path: Path, lock: FolderLock, vault: Vault, key: SigningKey, hook: Hook) -> None:
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
    def create(cls, path: Path, key: SigningKey, mirrors: Sequence[Path] = (), hook: Hook = no_hook) -> Folder:
        """A new folder; one that holds a server already is refused."""
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
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
    def open(cls, path: Path, mirrors: Sequence[Path] = (), hook: Hook = no_hook, timeout: float = 0.0) -> Folder:
        """The folder of a server that was created before."""
        if not (path / _DATABASE).exists():
            raise StoreError(f"there is no server in {path}: make one with expunge init")
        lock = FolderLock(path, timeout)
        try:
            erase_drafts(path)
            if not (path / _KEY).exists():
                raise StoreError(f"{path / _KEY} is missing: put the server's signing key back from where you keep its copy")
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
        """The database says which key signs: bring memory and file in line after a rotation, also after a crash in its middle."""
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
            raise StoreError(f"{self.path / _KEY} is not the key that this server signs with ({wanted[:16]}…): put it back")
        return key

    def close(self) -> None:
        """Close everything and let others in; once is enough, and twice does no harm."""
        if not self._closed:
            self._closed = True
            self.database.close()
            self.vault.close()
            self._lock.release()
