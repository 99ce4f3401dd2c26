"""The client's folder: database, vault and signing key, opened together by one process; others may
only read it.

client.db        SQLite: samples (sealed), pending changes, receipts. Truth; may not be lost
client.vault     the keys that samples are sealed under; may be mirrored to another disk. Truth;
                 may not be lost
client.key       the Ed25519 key that signs requests (PEM)
client.reserve   room on the disk for when it is full: may be removed
client.mark      how many changes the database has had: one that has had fewer has lost some. May be
                 lost, but not together with changes
head             the newest published head with its certificate. A copy; may be lost
lock             held by the process that has the folder open

client.db-wal and client.db-shm are SQLite's own files while the database is open; the second holds
page numbers only.

Laws: a change that has returned is in the database at every later `open`, or that `open` says that
it is not, before it touches anything. When `create`, `open` and every change have returned, the
vault holds keys only for what the database refers to, and after each erasure the write-ahead log is
empty. `open` restores this after a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from threading import RLock
from typing import Concatenate, ParamSpec, Protocol, Self, TypeVar

from expunge.client.schema import MIGRATIONS, SETTINGS
from expunge.crypto import SigningKey, canonical
from expunge.crypto.vault import ReadOnlyVault, Vault
from expunge.errors import ShreddedError, StoreDamagedError, StoreError
from expunge.ridge.spec import Spec
from expunge.storage.files import (
    FolderLock,
    erase_drafts,
    make_folder,
    remove,
    remove_tree,
    rename,
    sync_folder,
    write_whole,
)
from expunge.storage.machine import machine_of
from expunge.storage.mark import HighWaterMark, Level
from expunge.storage.reserve import Reserve
from expunge.storage.sqlite import Database, Snapshot, require_upgradable

DATABASE, VAULT, KEY, _HEAD = "client.db", "client.vault", "client.key", "head"
_MARK, _RESERVE = "client.mark", "client.reserve"
_STEP = 1 << 18  # bytes of the disk that a deletion may take
_CHANGES = "changes"  # the setting that counts them
_REMEDY = (
    "Put it back from a backup of the whole folder; or, if nothing can have been lost, have it "
    "made anew from what is there (expunge client scrub --repair)"
)
STORE_SLOT = 0  # of the key that makes tags

_P = ParamSpec("_P")
_T = TypeVar("_T")


class _CountedDatabase(Database):
    """A database whose changes are counted in it, and by a mark beside it.

    If the disk is full, they use the reserve.
    """

    def __init__(self, path: Path) -> None:
        self.mark = HighWaterMark(path.with_name(_MARK), _REMEDY)
        self.level = self.mark.read()
        self.reserve = Reserve(path.with_name(_RESERVE), _STEP)
        self.reserve.use()
        super().__init__(path, MIGRATIONS, SETTINGS, remedy=_remedy(path))

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """As `Database.transaction`; when it is over, it is counted."""
        with self._lock:
            self.reserve.use()
            with super().transaction():
                yield self
                count = _changes_in(self) + 1
                put_settings(self, {_CHANGES: str(count)})
            self.mark.raise_to(Level(count))


def _remedy(database: Path) -> str:
    return (
        "See what is damaged, and have it put right as far as possible (expunge client scrub "
        f"--repair --dir {database.parent}), or put the folder back from a backup"
    )


def _changes_in(database: Database) -> int:
    text = database.value("SELECT value FROM settings WHERE name = ?", (_CHANGES,))
    try:
        return 0 if text is None else int(text)
    except ValueError as problem:
        raise StoreDamagedError(
            f"{database.path} does not say how many changes it has had. {database.remedy}"
        ) from problem


def _require_changes(database: Database, level: Level | None) -> None:
    """StoreDamagedError unless a database has had all the changes that were counted."""
    count = _changes_in(database)
    if level is not None and count < level.number:
        raise StoreDamagedError(
            f"{database.path} is an older copy, or has lost its last changes: it has had {count} "
            f"of {level.number}. What it lacks may be additions, and deletions that were asked "
            f"for. No file was touched. If {DATABASE} and {DATABASE}-wal are whole elsewhere, as "
            "they were last, put both back. Otherwise open what is left as a restored one "
            "(restored=True), and compare it with your own records: add, and forget, again what "
            "is missing"
        )


class ClientFolder:
    """The files of a client. Holding the lock gives exclusive access to these files.

    A folder that is opened without a lock is read-only.
    """

    def __init__(
        self, path: Path, lock: FolderLock | None, database: Database, vault: Vault, key: SigningKey
    ) -> None:
        self.path = path
        self._reserve = database.reserve if isinstance(database, _CountedDatabase) else None
        self.machine = machine_of(path)
        self.database = database
        self.vault = vault
        self.key = key
        self.mutex = RLock()
        self._lock = lock
        self._closed = False
        self._clean = True  # no erasure has failed since the last one that succeeded

    @staticmethod
    def is_at(path: Path) -> bool:
        """Whether a folder is a client's."""
        return (path / DATABASE).is_file()

    @classmethod
    def create(
        cls, path: Path, key: SigningKey, settings: Mapping[str, str], mirrors: Sequence[Path] = ()
    ) -> ClientFolder:
        """A new folder, which appears whole or not at all; one that holds anything already is
        refused.
        """
        path = path.absolute()
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise StoreError(f"{path} is not empty: choose another folder for the client's store")
        draft = path.with_name(path.name + ".new")
        if draft.exists():  # left by a creation that was interrupted; nothing was ever in it
            remove_tree(draft)
        make_folder(draft)
        try:
            vault = Vault.create(draft / VAULT, mirrors)
        except BaseException:
            remove_tree(draft)
            raise
        try:
            with vault:
                vault.new()
            write_whole(draft / KEY, key.pem)
            _write_settings(
                draft / DATABASE,
                {**settings, "mirrors": _list_text(str(mirror.absolute()) for mirror in mirrors)},
            )
            sync_folder(draft)
            rename(draft, path)
        except BaseException:
            remove_tree(draft)
            for mirror in mirrors:
                remove(mirror)
            raise
        sync_folder(path.parent)
        return cls.open(path)

    @classmethod
    def open(cls, path: Path, *, timeout: float = 0.0, restored: bool = False) -> ClientFolder:
        """The folder of a client that was created before.

        Remains of a crash are removed.

        `restored` says that the database was put back from a backup, or has lost its last changes:
        samples that have been erased since are dropped.
        """
        path = path.absolute()
        _require_files(path)
        lock = FolderLock(path, timeout)
        database: _CountedDatabase | None = None
        vault: Vault | None = None
        try:
            erase_drafts(path)
            key = SigningKey.from_pem((path / KEY).read_bytes())
            if require_upgradable(path / DATABASE, MIGRATIONS, _remedy(path / DATABASE)):
                ReadOnlyVault(path / VAULT).close()  # which must do before anything is written
            database = _CountedDatabase(path / DATABASE)
            if not restored:
                _require_changes(database, database.level)
            vault = _vault_of(path / VAULT, _mirrors_in(database))
            folder = cls(path, lock, database, vault, key)
            folder._recover(restored)
            database.reserve.renew()
            count = _changes_in(database)
            if database.level is None or count != database.level.number:
                database.mark.set(Level(count))
        except BaseException as problem:
            if vault is not None:
                vault.close()
            if database is not None and isinstance(problem, StoreDamagedError):
                database.abandon()
            elif database is not None:
                database.close()
            lock.release()
            raise
        return folder

    @classmethod
    def open_read_only(cls, path: Path) -> ClientFolder:
        """The folder as it is at this moment, beside the process that works on it.

        Nothing in it can be changed by this.

        The database is read first: every key that it refers to was there when it was written. One
        that has been destroyed since is a ShreddedError where it is needed; then look again.
        """
        path = path.absolute()
        _require_files(path)
        level = HighWaterMark(path / _MARK, _REMEDY).read()  # before the database, which may grow
        database = Snapshot(path / DATABASE, MIGRATIONS, _remedy(path / DATABASE))
        try:
            _require_changes(database, level)
            return cls(
                path,
                None,
                database,
                ReadOnlyVault(path / VAULT),
                SigningKey.from_pem((path / KEY).read_bytes()),
            )
        except BaseException:
            database.close()
            raise

    @classmethod
    def renew_mark(cls, path: Path, *, timeout: float = 0.0) -> bool:
        """Make a mark that is damaged anew, from what is in the database; whether it was."""
        _require_files(path)
        lock = FolderLock(path, timeout)
        try:
            HighWaterMark(path / _MARK, _REMEDY).read()
        except StoreDamagedError:
            remove(path / _MARK)
            sync_folder(path)
            return True
        finally:
            lock.release()
        return False

    def _recover(self, restored: bool) -> None:
        if restored:
            self._require_unmasked()
            self._drop_erased()
        slots = self._referred()
        lost = slots - self.vault.live()
        if lost:
            raise StoreError(
                f"the database in {self.path} refers to {len(lost)} samples whose keys have been "
                "destroyed: it is an older copy. "
                "Open it as a restored one (restored=True), which drops what has been erased since"
            )
        self.vault.keep_only(slots)
        self.database.truncate_log()

    def _require_unmasked(self) -> None:
        """An old copy does not know what it has masked since: two sums with its change could differ
        by one sample.
        """
        text = self.database.value("SELECT value FROM settings WHERE name = 'spec'")
        if Spec.from_dict(canonical.decode(str(text).encode())).is_masked:
            raise StoreError(
                f"the store in {self.path} is an old copy, which cannot go on in a federation with "
                "secure aggregation: it no longer knows what it has masked, and the server could "
                "see a sample by the difference. Have the operator forget this client, enrol a new "
                "one, and add the samples there"
            )

    def unreferred(self) -> int:
        """How many keys the vault has that the database does not refer to."""
        return len(self.vault.live() - self._referred())

    def _referred(self) -> set[int]:
        query = (  # from the tables: a damaged index must cost no key
            "SELECT slot FROM samples NOT INDEXED UNION ALL SELECT slot FROM compositions "
            "NOT INDEXED UNION ALL SELECT slot FROM kept NOT INDEXED"
        )
        return {STORE_SLOT, *(row[0] for row in self.database.rows(query))}

    def _drop_erased(self) -> None:
        """Drop what can no longer be read, and a request that may be long outdated: the server will
        report its state.
        """
        gone = []
        counted = False  # whether the server counts any of them, as far as this copy knows
        for slot, id_tag, names, held in self.database.rows(
            "SELECT slot, id_tag, names, held FROM samples"
        ):
            try:
                self.vault.unseal(slot, names, names_context(id_tag))
            except ShreddedError:
                gone.append((slot,))
                counted = counted or bool(held)
        with self.database.transaction() as changes:
            changes.run("DELETE FROM samples WHERE state = 'withdrawn' AND held = 0")
            changes.run(
                "UPDATE samples SET sequence = NULL, state = 'deleting' WHERE state = 'withdrawn'"
            )
            changes.run("UPDATE samples SET sequence = NULL")
            changes.run("UPDATE orders SET sequence = NULL WHERE answered = 0")
            changes.run("DELETE FROM compositions")
            changes.run("DELETE FROM kept")
            changes.run_many("DELETE FROM samples WHERE slot = ?", gone)
            if (
                counted
            ):  # then what the server counts is not what is here, whatever number it has reached
                put_settings(changes, {"rejoin": "1"})

    def erase(self, slots: Iterable[int] = ()) -> None:
        """Destroy the keys of what the database no longer refers to, and cut the write-ahead log.

        If that fails, the next call makes up for it, and so does `open`. Not to be called between
        `vault.new` and the commit of what refers to the new keys.
        """
        self._shred(slots)
        self.database.truncate_log()
        self._clean = self.database.is_certain

    def drop(self, slots: Iterable[int]) -> None:
        """Destroy keys that were made for a change that failed, unless it failed after it was
        committed; the reason why it failed comes first, so this never raises.
        """
        with suppress(StoreError):
            self._shred(set(slots) - self._referred())

    def _shred(self, slots: Iterable[int]) -> None:
        if not self.database.is_certain:
            self._clean = False
        elif self._clean:
            self._clean = False
            self.vault.shred(slots)
        else:  # slots of an earlier failure may be in use again by now: only the database knows
            self.vault.keep_only(self._referred())

    def id_tag(self, sample: str) -> bytes:
        """What a sample's id is found by."""
        return self.vault.mac(STORE_SLOT, b"id\0" + sample.encode("utf-8", "surrogatepass"))

    def subject_tag(self, subject: str) -> bytes:
        """What a subject is found by."""
        return self.vault.mac(STORE_SLOT, b"subject\0" + subject.encode("utf-8", "surrogatepass"))

    def write_head(self, data: bytes) -> None:
        """Replace the head, whole."""
        self._require_held()
        try:
            write_whole(self.path / _HEAD, data)
        except OSError as problem:
            raise StoreError(
                f"the newest head could not be written to {self.path}: {problem.strerror}. "
                "Everything else has been done; mend that, and sync again"
            ) from problem

    def drop_head(self) -> None:
        """Remove the head."""
        self._require_held()
        remove(self.path / _HEAD)
        sync_folder(self.path)

    def read_head(self) -> bytes | None:
        """The head, if there is one."""
        file = self.path / _HEAD
        return file.read_bytes() if file.exists() else None

    def require_room(self) -> None:
        """StoreError if the disk is full: what is left of it is for deletions."""
        if self._reserve is not None and self._reserve.is_short:
            raise StoreError(
                f"the disk of {self.path} is full: {self._reserve.free:,} bytes are free, and what "
                "is left is for deletions. Nothing was added: free "
                f"{self._reserve.missing:,} bytes on it, and try again"
            )

    def _require_held(self) -> None:
        if self._lock is None:
            raise StoreError(
                f"{self.path} is open for reading only, beside the process that works on it: open "
                "it to change it"
            )

    def close(self) -> None:
        """Close everything and let others in. Once is enough; twice does no harm."""
        if self._closed:
            return
        self._closed = True
        self.database.close()
        if self._reserve is not None:
            self._reserve.renew()
        self.vault.close()
        if self._lock is not None:
            self._lock.release()


class _InFolder(Protocol):
    """A part of the store, which shares the folder with the others."""

    _folder: ClientFolder


_Part = TypeVar("_Part", bound=_InFolder)


def exclusive(
    method: Callable[Concatenate[_Part, _P], _T],
) -> Callable[Concatenate[_Part, _P], _T]:
    """A method that one thread at a time may be in, of all such methods on one folder."""

    @wraps(method)
    def guarded(self: _Part, /, *arguments: _P.args, **options: _P.kwargs) -> _T:
        with self._folder.mutex, self._folder.database.explaining():
            return method(self, *arguments, **options)

    return guarded


def put_settings(changes: Database, settings: Mapping[str, str]) -> None:
    """Change settings, within a transaction of the caller."""
    changes.run_many(
        "INSERT OR REPLACE INTO settings (name, value) VALUES (?, ?)", settings.items()
    )


def _require_files(path: Path) -> None:
    for name in (DATABASE, VAULT, KEY):
        if not (path / name).exists():
            mirror = (
                " If the vault has a mirror (enroll --mirror), copy the mirror there."
                if name == VAULT
                else ""
            )
            raise StoreError(
                f"{path / name} is missing: this is no client's store, or one that must be put "
                f"back from a backup.{mirror}"
            )


def copy_of_database(folder: ClientFolder, target: Path) -> None:
    """A copy of a client's database, which says what vault it opens with."""
    note = f"INSERT OR REPLACE INTO settings VALUES ('vault', '{folder.vault.identity}')"  # noqa: S608 - hexadecimal digits
    folder.database.copy_to(target, [note])


def recorded_vault(path: Path) -> tuple[str | None, list[Path]]:
    """The identity of the vault that the copy of a client's database opens with, and the mirrors of
    it; nobody else may work on it, and one of an earlier version is brought up to date.
    """
    database = Database(path / DATABASE, MIGRATIONS, SETTINGS, remedy=_remedy(path / DATABASE))
    try:
        identity = database.value("SELECT value FROM settings WHERE name = 'vault'")
        return identity, _mirrors_in(database)
    finally:
        database.close()


def _mirrors_in(database: Database) -> list[Path]:
    text = database.value("SELECT value FROM settings WHERE name = 'mirrors'")
    return [Path(mirror) for mirror in canonical.decode(str(text).encode())]


def _vault_of(path: Path, mirrors: Sequence[Path]) -> Vault:
    """The vault; if it cannot be used, where it could be had from."""
    try:
        return Vault.open(path, mirrors)
    except StoreError as problem:
        paths = ", ".join(str(mirror) for mirror in mirrors)
        remedy = f"Its mirrors are {paths}: copy a whole one of them to {path}"
        raise StoreError(f"{problem}. {remedy if mirrors else 'It has no mirror'}") from problem


def names_context(id_tag: bytes) -> bytes:
    """Binds sealed names to the row that they are in."""
    return b"names\0" + bytes(id_tag)


def content_context(id_tag: bytes, commitment: bytes) -> bytes:
    """Binds sealed content to the row that it is in."""
    return b"content\0" + bytes(id_tag) + bytes(commitment)


def _write_settings(path: Path, settings: Mapping[str, str]) -> None:
    database = Database(path, MIGRATIONS, SETTINGS)
    try:
        with database.transaction() as changes:
            put_settings(changes, settings)
        database.truncate_log()
    finally:
        database.close()


def _list_text(values: Iterable[str]) -> str:
    return canonical.encode(list(values)).decode("ascii")
