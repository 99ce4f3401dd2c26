"""Vaults: erasure by destroying keys.

A vault is a small file of 32-byte keys in numbered slots. Whatever is sensitive is sealed under one
of them before it is written anywhere, so that overwriting 32 bytes in place erases every copy of
it, wherever one lingers: write-ahead logs, freed pages, backups.

Laws:
- what `seal` gives, `unseal` opens while its slot holds the key it was sealed under, and never
  again after that, also when the slot has been given another key;
- `new` is durable before it returns, so a key exists before anything refers to it; `shred` is
  called when nothing refers to the key. A crash in the middle of either, and a torn write, can only
  touch keys that nothing refers to: `keep_only` clears them away;
- mirrors (copies on other disks) are written first, and every file counts its changes: at `open`
  the file with the most changes is copied over the others. So an old copy of a vault does not bring
  back what has been shredded since.

A file is magic, version, identity (16 bytes), number of slots and number of changes (8 bytes each,
little-endian), then from byte 64 the slots; a slot of zeros is empty. Overwriting in place is as
good as the disk beneath: on a file system that keeps snapshots, or on flash that remaps, keep the
vault (and only the vault) on a device whose encryption key can be destroyed.
"""

from __future__ import annotations

import hashlib
import heapq
import hmac
import os
import secrets
import threading
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import NoReturn

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from expunge.errors import FormatError, ShreddedError, StoreError
from expunge.frame import Format, pack, pieces
from expunge.storage.files import sync_folder

KEY_BYTES = 32
_ERASED = bytes(KEY_BYTES)  # the content of a slot without a key
_FORMAT = Format(
    "a vault", b"expunge\0vault\0", "16sQQ", remedy="if there is a mirror of it, copy it here"
)
_START = 64  # of slot 0: every slot lies within one sector of the disk
_GROWTH = 128  # slots added at a time, at the least
_SEALED_VERSION = b"\x01"
_TAG_BYTES = 8
_NONCE_BYTES = 12
_OVERHEAD = len(_SEALED_VERSION) + _TAG_BYTES + _NONCE_BYTES + 16


class VaultFile:
    """One file of keys: the vault itself, or a mirror of it."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self.identity = b""
        self.slots = 0
        self.changes = 0

    @classmethod
    def create(cls, path: Path, identity: bytes, keys: bytes = b"", changes: int = 0) -> VaultFile:
        """A new file, durable; one that exists is refused."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError as problem:
            raise StoreError(
                f"{path} exists already: a vault is never overwritten. Open it, or name another "
                "file"
            ) from problem
        except OSError as problem:
            raise StoreError(f"the vault {path} cannot be made: {problem.strerror}") from problem
        file = cls(path, descriptor)
        file.identity = identity
        try:
            file._put(bytes(_START), 0)
            file.write(len(keys) // KEY_BYTES, [(0, keys)], changes)
            sync_folder(path.parent)
        except BaseException:
            file.close()
            path.unlink()
            raise
        return file

    @classmethod
    def open(cls, path: Path, *, read_only: bool = False) -> tuple[VaultFile, bytearray]:
        """A file that was made before, and the keys in it."""
        mode = os.O_RDONLY if read_only else os.O_RDWR
        try:
            descriptor = os.open(path, mode | os.O_CLOEXEC)
        except OSError as problem:
            raise StoreError(
                f"the vault {path} cannot be opened: {problem.strerror}. Without it nothing that "
                "it sealed can be read; if there is a mirror of it, copy the mirror here"
            ) from problem
        file = cls(path, descriptor)
        try:
            return file, file._read(read_only)
        except BaseException:
            file.close()
            raise

    def _read(self, read_only: bool) -> bytearray:
        content = bytearray()
        try:
            while part := os.pread(self._descriptor, 1 << 24, len(content)):
                content += part
        except OSError as problem:
            raise StoreError(
                f"the vault {self.path} cannot be read: {problem.strerror}"
            ) from problem
        try:
            (self.identity, self.slots, self.changes), _ = _FORMAT.open(content)
        except FormatError as problem:
            raise StoreError(f"the vault {self.path} cannot be read: {problem}") from problem
        end = _START + self.slots * KEY_BYTES
        if len(content) < end:
            raise StoreError(
                f"the vault {self.path} is truncated: {self.slots} slots need {end} bytes, it has "
                f"{len(content)}"
            )
        if len(content) > end and not read_only:
            # A growth that was interrupted: nothing refers to what it left. (While another process
            # works on the file, it may be in progress.)
            os.ftruncate(self._descriptor, end)
        return content[_START:end]

    def write(self, slots: int, runs: Iterable[tuple[int, bytes]], changes: int) -> None:
        """Write runs of keys and the header, durably; `slots` is the number of slots from now
        on.
        """
        try:
            if slots > self.slots:
                # Zeros rather than a hole: that the disk is full is found out here, and not when a
                # key must be overwritten.
                self._put(bytes((slots - self.slots) * KEY_BYTES), _START + self.slots * KEY_BYTES)
                os.fsync(self._descriptor)
            for slot, run in runs:
                self._put(run, _START + slot * KEY_BYTES)
            self._put(_FORMAT.begin(self.identity, slots, changes), 0)
            os.fsync(self._descriptor)
        except OSError as problem:
            raise StoreError(
                f"the vault {self.path} cannot be written: {problem.strerror}. Mend that and try "
                "again"
            ) from problem
        self.slots, self.changes = slots, changes

    def _put(self, data: bytes, offset: int) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self._descriptor, view, offset)
            view, offset = view[written:], offset + written

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


class Vault:
    """Keys in slots, and what is sealed under them.

    May be used from several threads; by one process at a time.
    """

    def __init__(self, files: list[VaultFile], keys: bytearray) -> None:
        self._files = files  # mirrors first, the vault itself last
        self._keys = keys
        self._lock = threading.RLock()
        self._closed = False
        self._live: set[int] = set()
        self._free: list[int] = []  # sorted, hence a heap
        for slot, key in enumerate(pieces(keys, KEY_BYTES)):
            if key == _ERASED:
                self._free.append(slot)
            else:
                self._live.add(slot)

    @classmethod
    def create(cls, path: Path, mirrors: Sequence[Path] = ()) -> Vault:
        """A new vault without keys, durable, that only its owner may read.

        An existing file is refused.
        """
        identity = secrets.token_bytes(16)
        files: list[VaultFile] = []
        try:
            files += (VaultFile.create(Path(file_path), identity) for file_path in (*mirrors, path))
        except BaseException:
            for file in files:
                file.close()
                file.path.unlink()
            raise
        return cls(files, bytearray())

    @classmethod
    def open(cls, path: Path, mirrors: Sequence[Path] = ()) -> Vault:
        """The vault in a file, with its mirrors brought into step: the one that counts most changes
        is copied over the others.
        """
        files: list[VaultFile] = []
        contents: list[bytearray] = []
        try:
            for file_path in (*mirrors, path):
                file, keys = VaultFile.open(Path(file_path))
                files.append(file)
                contents.append(keys)
            if any(file.identity != files[-1].identity for file in files):
                raise StoreError(
                    f"the mirrors of {path} are not all of this vault: "
                    f"{', '.join(str(file.path) for file in files)}"
                )
            # On a tie the vault itself is taken: what differs was never referred to.
            newest = max(reversed(range(len(files))), key=lambda index: files[index].changes)
            keys, changes = contents[newest], files[newest].changes
            slots = max(file.slots for file in files)
            keys += bytes(slots * KEY_BYTES - len(keys))
            for file, content in zip(files, contents, strict=True):
                if content != keys or (file.slots, file.changes) != (slots, changes):
                    file.write(slots, [(0, bytes(keys))], changes)
        except BaseException:
            for file in files:
                file.close()
            raise
        return cls(files, keys)

    def add_mirror(self, path: Path) -> None:
        """Make one more mirror: a copy on another disk that is kept in step from now on, and named
        at every later `open`.
        """
        with self._lock:
            self._require_open()
            main = self._files[-1]
            self._files.insert(
                0, VaultFile.create(Path(path), main.identity, bytes(self._keys), main.changes)
            )

    def new(self, count: int = 1) -> list[int]:
        """Slots with fresh keys, the lowest empty ones, durable in every mirror before this
        returns.
        """
        with self._lock:
            self._require_open()
            if count < 1:
                return []
            slots = [heapq.heappop(self._free) for _ in range(min(count, len(self._free)))]
            have = len(self._keys) // KEY_BYTES
            missing = count - len(slots)
            slots += range(have, have + missing)
            grown = max(missing, _GROWTH, have // 8) if missing else 0
            fresh = secrets.token_bytes(KEY_BYTES * len(slots))
            try:
                self._write(have + grown, slots, fresh)
            except BaseException:
                for slot in slots[: len(slots) - missing]:
                    heapq.heappush(self._free, slot)
                raise
            for slot in range(have + missing, have + grown):
                heapq.heappush(self._free, slot)
            self._live.update(slots)
            return slots

    def seal(self, slot: int, data: bytes, context: bytes) -> bytes:
        """`data` under the key of a slot, to be opened with the same context only."""
        key = self._key(slot)
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return (
            _SEALED_VERSION
            + _key_tag(key)
            + nonce
            + AESGCM(key).encrypt(nonce, data, _associated(slot, context))
        )

    def unseal(self, slot: int, sealed: bytes, context: bytes) -> bytes:
        """The inverse of `seal`.

        ShreddedError if its key has been destroyed; StoreError if it was altered or moved.
        """
        sealed = bytes(sealed)
        if len(sealed) < _OVERHEAD or sealed[:1] != _SEALED_VERSION:
            raise StoreError(
                f"what was sealed under slot {slot} is truncated or of another version"
            )
        key = self._key(slot)
        tag, nonce, rest = sealed[1 : 1 + _TAG_BYTES], sealed[1 + _TAG_BYTES : 21], sealed[21:]
        if not hmac.compare_digest(tag, _key_tag(key)):
            raise ShreddedError(
                f"slot {slot} holds another key by now: the one this was sealed under has been "
                "destroyed"
            )
        try:
            return AESGCM(key).decrypt(nonce, rest, _associated(slot, context))
        except InvalidTag as problem:
            raise StoreError(
                f"what was sealed under slot {slot} was altered, or moved here from another place"
            ) from problem

    def mac(self, slot: int, data: bytes) -> bytes:
        """HMAC-SHA256 of `data` under the key of a slot: to find things by names that are nowhere
        written.
        """
        return hmac.digest(self._key(slot), b"expunge\0mac\0" + data, hashlib.sha256)

    def shred(self, slots: Iterable[int]) -> None:
        """Overwrite the keys of these slots with zeros, in every mirror and durably.

        An empty slot stays empty.
        """
        with self._lock:
            self._require_open()
            gone = sorted(self._live.intersection(slots))
            if not gone:
                return
            self._write(len(self._keys) // KEY_BYTES, gone, bytes(KEY_BYTES * len(gone)))
            self._live.difference_update(gone)
            for slot in gone:
                heapq.heappush(self._free, slot)

    def keep_only(self, slots: Collection[int]) -> int:
        """Shred every live slot that is not among these; how many that were."""
        with self._lock:
            gone = self._live.difference(slots)
            self.shred(gone)
            return len(gone)

    def live(self) -> set[int]:
        """The slots that hold a key."""
        with self._lock:
            return set(self._live)

    def close(self) -> None:
        """Close the files and drop the keys from memory."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._keys[:] = bytes(len(self._keys))
            for file in self._files:
                file.close()

    def __enter__(self) -> Vault:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Vault {self._files[-1].path}, {len(self._live)} keys>"

    def _write(self, slots: int, changed: list[int], keys: bytes) -> None:
        """Put `keys` into the slots `changed`, in every file, mirrors first.

        A failure leaves memory as it was, fit for use.
        """
        runs = list(_runs(changed, keys))
        changes = max(file.changes for file in self._files) + 1
        for file in self._files:
            file.write(slots, runs, changes)
        self._keys += bytes(slots * KEY_BYTES - len(self._keys))
        for slot, run in runs:
            self._keys[slot * KEY_BYTES : slot * KEY_BYTES + len(run)] = run

    def _key(self, slot: int) -> bytes:
        with self._lock:
            self._require_open()
            if slot not in self._live:
                raise ShreddedError(
                    f"slot {slot} is empty: its key has been destroyed, and what it sealed is gone"
                )
            return bytes(self._keys[slot * KEY_BYTES : (slot + 1) * KEY_BYTES])

    def _require_open(self) -> None:
        if self._closed:
            raise StoreError(f"the vault {self._files[-1].path} is closed")


class ReadOnlyVault(Vault):
    """The keys as they are at one moment, read beside the process that works on the vault.

    Law: no file is ever written. A key that was being written at that moment is as good as
    destroyed: what is sealed under it is not opened wrongly, but not at all.
    """

    def __init__(self, path: Path) -> None:
        file, keys = VaultFile.open(path, read_only=True)
        super().__init__([file], keys)

    def add_mirror(self, path: Path) -> NoReturn:  # noqa: ARG002 - as a vault has it
        """Refused."""
        self._refuse()

    def _write(self, slots: int, changed: list[int], keys: bytes) -> NoReturn:  # noqa: ARG002 - as a vault has it
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise StoreError(
            f"the vault {self._files[-1].path} is open for reading only, beside the process that "
            "works on it"
        )


def _runs(slots: list[int], keys: bytes) -> Iterable[tuple[int, bytes]]:
    """Neighbouring slots together, each run with its keys: few writes instead of many.

    `slots` are ascending.
    """
    start = 0
    for index in range(1, len(slots) + 1):
        if index == len(slots) or slots[index] != slots[index - 1] + 1:
            yield slots[start], keys[start * KEY_BYTES : index * KEY_BYTES]
            start = index


def _key_tag(key: bytes) -> bytes:
    """Tells one key from another and nothing about either: so that a destroyed key is not taken for
    an altered text.
    """
    return hmac.digest(key, b"expunge\0key tag\0", hashlib.sha256)[:_TAG_BYTES]


def _associated(slot: int, context: bytes) -> bytes:
    return b"expunge\0sealed\0" + _SEALED_VERSION + pack("Q", slot) + context
