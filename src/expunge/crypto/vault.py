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
  the file with the most changes counts, and the others are brought into step. So an old copy of a
  vault does not bring back what has been shredded since;
- one bit that has flipped costs no key, with or without a mirror: header and slots have checksums
  by which it is found and put right. Of damage beyond that, a slot is taken from a file in which it
  is whole; where files disagree, what was sealed under the slot decides. Nothing is written over a
  key before its copy has been found whole.

A file of version 2 is magic, version, identity (16 bytes), number of slots and number of changes (8
bytes each, little-endian) and the CRC-32 of all that (4 bytes); from byte 512 on, sectors of 512
bytes, each with 14 slots of 36 bytes: a key and its CRC-32; a slot of zeros is empty. In version 1
there were no checksums, and slots of 32 bytes from byte 64 on: such a file is brought up to date
when it is opened. Overwriting in place is as good as the disk beneath: on a file system that keeps
snapshots, or on flash that remaps, keep the vault (and only the vault) on a device whose encryption
key can be destroyed.
"""

from __future__ import annotations

import hashlib
import heapq
import hmac
import os
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from expunge.errors import FormatError, ShreddedError, StoreError
from expunge.frame import Format, is_whole, mended, pack, pieces, with_crc
from expunge.storage.files import remove, rename, sync_folder
from expunge.storage.machine import machine_of

KEY_BYTES = 32
SECTOR = 512  # every slot lies within one of the disk
SLOT_BYTES = KEY_BYTES + 4
SLOTS = SECTOR // SLOT_BYTES  # in a sector
_EMPTY = bytes(SLOT_BYTES)  # the content of a slot without a key
_REMEDY = "if there is a mirror of it, copy it here"
_FORMAT = Format("a vault", b"expunge\0vault\0", "16sQQ", version=2, remedy=_REMEDY)
_FIRST_FORMAT = Format("a vault", b"expunge\0vault\0", "16sQQ", remedy=_REMEDY)
_FIRST_START = 64  # of slot 0, in version 1
_GROWTH = 10 * SLOTS  # slots added at a time, at the least
_SEALED_VERSION = b"\x01"
_TAG_BYTES = 8
_NONCE_BYTES = 12
_OVERHEAD = len(_SEALED_VERSION) + _TAG_BYTES + _NONCE_BYTES + 16


def _key_in(slot: bytes) -> bytes | None:
    """The key in the bytes of a slot, as far as it can be told."""
    whole = mended(slot)
    return None if whole is None else whole[:KEY_BYTES]


def _place(slot: int) -> int:
    """Where a slot begins, after the sector of the header."""
    return slot // SLOTS * SECTOR + slot % SLOTS * SLOT_BYTES


def _size(slots: int) -> int:
    """How many bytes so many slots take, in whole sectors."""
    return -(-slots // SLOTS) * SECTOR


def _slots_of(body: bytes | bytearray) -> Iterator[bytes]:
    """The bytes of every slot, in order."""
    for sector in pieces(bytes(body), SECTOR):
        yield from pieces(sector[: SLOTS * SLOT_BYTES], SLOT_BYTES)


class VaultFile:
    """One file of keys: the vault itself, or a mirror of it."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._machine = machine_of(path)
        self._descriptor = descriptor
        self.identity = b""
        self.slots = 0
        self.changes = 0
        self.version = 2
        self.damaged = False  # as it was read, and as far as that was seen

    @classmethod
    def create(cls, path: Path, identity: bytes, body: bytes = b"", changes: int = 0) -> VaultFile:
        """A new file, durable; one that exists is refused."""
        try:
            descriptor = machine_of(path).open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
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
            file._put(bytes(SECTOR), 0)
            file.write(len(body) // SECTOR * SLOTS, [(0, body)], changes)
            sync_folder(path.parent)
        except BaseException:
            file.close()
            remove(path)
            raise
        return file

    @classmethod
    def open(cls, path: Path, *, read_only: bool = False) -> tuple[VaultFile, bytearray]:
        """A file that was made before, and the sectors of its slots."""
        mode = os.O_RDONLY if read_only else os.O_RDWR
        try:
            descriptor = machine_of(path).open(path, mode)
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
            start, end = self._read_header(content)
        except FormatError as problem:
            raise StoreError(f"the vault {self.path} cannot be read: {problem}") from problem
        if len(content) < end:
            raise StoreError(
                f"the vault {self.path} is truncated: {self.slots} slots need {end} bytes, it has "
                f"{len(content)}"
            )
        if self.version == 1:
            return self._first_slots(content[start:end], content[end:])
        if len(content) > end and not read_only:
            # A growth that was interrupted: nothing refers to what it left. (While another process
            # works on the file, it may be in progress.)
            self._machine.truncate(self._descriptor, end)
        return content[start:end]

    def _read_header(self, content: bytearray) -> tuple[int, int]:
        """Take the header in; where the slots begin and end."""
        header = bytes(content[: _FORMAT.size + 4])
        whole = mended(header)
        if whole is None:
            self.version = header[len(_FORMAT.magic)] if len(header) > len(_FORMAT.magic) else 1
            fields, reader = (_FIRST_FORMAT if self.version == 1 else _FORMAT).open(content)
            if self.version != 1:
                reader.take(4, "the checksum")
                raise FormatError(f"its header is damaged; {_REMEDY}")
        else:
            fields, _ = _FORMAT.open(whole)
            self.damaged = whole != header
        self.identity, self.slots, self.changes = fields
        if self.version == 1:
            return _FIRST_START, _FIRST_START + self.slots * KEY_BYTES
        return SECTOR, SECTOR + _size(self.slots)

    def _first_slots(self, keys: bytearray, rest: bytearray) -> bytearray:
        """The sectors of slots that a file of version 1 would have by now."""
        if any(rest):
            raise StoreError(
                f"the header of the vault {self.path} says that it has {self.slots} slots, and "
                f"there are keys beyond: it is damaged; {_REMEDY}"
            )
        slots = [with_crc(key) if any(key) else _EMPTY for key in pieces(bytes(keys), KEY_BYTES)]
        sectors = (b"".join(some).ljust(SECTOR, b"\0") for some in _some(slots, SLOTS))
        self.slots = -(-self.slots // SLOTS) * SLOTS
        return bytearray(b"".join(sectors))

    def renew(self, body: bytes, changes: int) -> None:
        """In the place of a file of version 1, one of this version; the old one is overwritten."""
        draft = self.path.with_name(f"{self.path.name}.new")
        remove(draft)  # of a renewal that was interrupted
        fresh = VaultFile.create(draft, self.identity, body, changes)
        old = self._descriptor
        try:
            size = os.fstat(old).st_size
            rename(draft, self.path)
            sync_folder(self.path.parent)
            self._put(bytes(size), 0)
            self._machine.sync(old)
        finally:
            self._machine.close(old)
            self._descriptor, self.version = fresh._descriptor, 2
            self.slots, self.changes = fresh.slots, fresh.changes

    def write(self, slots: int, runs: Iterable[tuple[int, bytes]], changes: int) -> None:
        """Write runs of bytes, each at its place after the header, and the header, durably; `slots`
        is the number of slots from now on.
        """
        try:
            if slots > self.slots:
                # Zeros rather than a hole: that the disk is full is found out here, and not when a
                # key must be overwritten.
                size = _size(self.slots)
                self._put(bytes(_size(slots) - size), SECTOR + size)
                self._machine.sync(self._descriptor)
            for place, run in runs:
                self._put(run, SECTOR + place)
            self._put(with_crc(_FORMAT.begin(self.identity, slots, changes)), 0)
            self._machine.sync(self._descriptor)
        except OSError as problem:
            raise StoreError(
                f"the vault {self.path} cannot be written: {problem.strerror}. Mend that and try "
                "again"
            ) from problem
        self.slots, self.changes = slots, changes

    def _put(self, data: bytes, offset: int) -> None:
        self._machine.write(self._descriptor, data, offset)

    def close(self) -> None:
        """Close the file."""
        self._machine.close(self._descriptor)


def _some(items: Sequence[bytes], count: int) -> Iterator[Sequence[bytes]]:
    """So many items at a time."""
    return (items[start : start + count] for start in range(0, len(items), count))


@dataclass
class _Copy:
    file: VaultFile
    body: bytearray  # the sectors of its slots


def _candidates(newest: Sequence[bytes], older: Sequence[bytes]) -> list[bytes]:
    """The content of a slot, by the copies that count most changes; and if that is in doubt, all
    that it may be.

    A key goes before an empty slot: if nothing refers to it, it is cleared away. Older copies have
    a say where all others are damaged.
    """
    whole = list(dict.fromkeys(filter(None, map(mended, filter(any, newest)))))
    if len(whole) == 1:
        return whole
    if whole:
        return [whole[0], *whole]
    if _EMPTY in newest:
        return [_EMPTY]
    return [newest[0], *dict.fromkeys(filter(None, map(mended, filter(any, older))))]


def _missing(path: Path, mirror: Path, problem: StoreError) -> str:
    cause = problem.__cause__
    why = cause.strerror if isinstance(cause, OSError) else problem
    return (
        f"the mirror {mirror} of {path} is left out ({why}): it does not protect the keys that are "
        "made from now on, and those that are destroyed stay in it. Put its disk back, and it is "
        f"brought into step; or copy {path} there while nothing uses it"
    )


def _put_right(path: Path, where: str = "") -> str:
    return (
        f"the vault {path} was damaged{where} and has been put right as far as that can be told: "
        "look after the disk that it is on"
    )


class Vault:
    """Keys in slots, and what is sealed under them.

    May be used from several threads; by one process at a time. `warnings` says what was found
    damaged or missing and does no harm yet.
    """

    def __init__(
        self,
        files: list[VaultFile],
        body: bytearray,
        doubtful: dict[int, list[bytes]] | None = None,
        warnings: Sequence[str] = (),
    ) -> None:
        self._files = files  # mirrors first, the vault itself last
        self._machine = machine_of(files[-1].path)
        self._body = body  # the sectors of all slots
        self._doubtful = doubtful or {}  # by slot: the keys that it may hold
        self.warnings = list(warnings)
        self._lock = threading.RLock()
        self._closed = False
        self._live: set[int] = set()
        self._free: list[int] = []  # sorted, hence a heap
        for slot, content in enumerate(_slots_of(body)):
            if content == _EMPTY and slot not in self._doubtful:
                self._free.append(slot)
            else:
                self._live.add(slot)

    @classmethod
    def create(cls, path: Path, mirrors: Sequence[Path] = ()) -> Vault:
        """A new vault without keys, durable, that only its owner may read.

        An existing file is refused.
        """
        identity = machine_of(Path(path)).random(16)
        files: list[VaultFile] = []
        try:
            files += (VaultFile.create(Path(file_path), identity) for file_path in (*mirrors, path))
        except BaseException:
            for file in files:
                file.close()
                remove(file.path)
            raise
        return cls(files, bytearray())

    @classmethod
    def open(cls, path: Path, mirrors: Sequence[Path] = ()) -> Vault:
        """The vault in a file, with its mirrors brought into step.

        A mirror that is missing, or cannot be read, is a warning: the vault is whole without it.
        """
        copies: list[_Copy] = []
        warnings: list[str] = []
        try:
            for mirror in mirrors:
                try:
                    copies.append(_Copy(*VaultFile.open(Path(mirror))))
                except StoreError as problem:
                    warnings.append(_missing(Path(path), Path(mirror), problem))
            copies.append(_Copy(*VaultFile.open(Path(path))))
            if any(copy.file.identity != copies[-1].file.identity for copy in copies):
                raise StoreError(
                    f"the mirrors of {path} are not all of this vault: "
                    f"{', '.join(str(copy.file.path) for copy in copies)}"
                )
            return cls._in_step(copies, warnings)
        except BaseException:
            for copy in copies:
                copy.file.close()
            raise

    @classmethod
    def _in_step(cls, copies: list[_Copy], warnings: list[str]) -> Vault:
        files = [copy.file for copy in copies]
        changes, size = max(file.changes for file in files), max(len(copy.body) for copy in copies)
        for copy in copies:
            copy.body += bytes(size - len(copy.body))
        newest = [copy for copy in reversed(copies) if copy.file.changes == changes]
        doubtful = dict[int, list[bytes]]()
        body = bytearray(newest[0].body)
        if any(copy.body != body or copy.file.changes != changes for copy in copies):
            slots = zip(*(_slots_of(copy.body) for copy in newest), strict=True)
            older = [list(_slots_of(copy.body)) for copy in copies if copy not in newest]
            for slot, contents in enumerate(slots):
                for copy, content in zip(newest, contents, strict=True):
                    copy.file.damaged |= content != _EMPTY and not is_whole(content)
                found, *others = _candidates(contents, [old[slot] for old in older])
                body[_place(slot) : _place(slot) + SLOT_BYTES] = found
                if others:
                    doubtful[slot] = [content[:KEY_BYTES] for content in others]
        count = size // SECTOR * SLOTS
        for copy in copies:
            content = bytearray(body)
            for slot in doubtful:  # each keeps what it has, until it is known which is right
                span = slice(_place(slot), _place(slot) + SLOT_BYTES)
                content[span] = copy.body[span]
            is_same = (copy.file.slots, copy.file.changes) == (count, changes)
            if copy.file.version == 1:
                copy.file.renew(bytes(content), changes)
            elif copy.file.damaged or copy.body != content or not is_same:
                copy.file.write(count, [(0, bytes(content))], changes)
            warnings += [_put_right(copy.file.path)] if copy.file.damaged else []
        return cls(files, body, doubtful, warnings)

    def add_mirror(self, path: Path) -> None:
        """Make one more mirror: a copy on another disk that is kept in step from now on, and named
        at every later `open`.
        """
        with self._lock:
            self._require_open()
            main = self._files[-1]
            self._files.insert(
                0, VaultFile.create(Path(path), main.identity, bytes(self._body), main.changes)
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
            have = len(self._body) // SECTOR * SLOTS
            missing = count - len(slots)
            slots += range(have, have + missing)
            grown = _size(max(missing, _GROWTH, have // 8)) // SECTOR * SLOTS if missing else 0
            fresh = pieces(self._machine.random(KEY_BYTES * len(slots)), KEY_BYTES)
            try:
                self._write(have + grown, dict(zip(slots, map(with_crc, fresh), strict=True)))
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
        nonce = self._machine.random(_NONCE_BYTES)
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
        tag, nonce, rest = sealed[1 : 1 + _TAG_BYTES], sealed[1 + _TAG_BYTES : 21], sealed[21:]
        self._decide(slot, tag)
        key = self._key(slot)
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
            self._write(len(self._body) // SECTOR * SLOTS, dict.fromkeys(gone, _EMPTY))
            self._live.difference_update(gone)
            for slot in gone:
                self._doubtful.pop(slot, None)
                heapq.heappush(self._free, slot)

    def keep_only(self, slots: Collection[int]) -> int:
        """Shred every live slot that is not among these; how many that were."""
        with self._lock:
            gone = self._live.difference(slots)
            self.shred(gone)
            return len(gone)

    @property
    def identity(self) -> str:
        """What a vault and its mirrors have in common, and no other vault has."""
        return self._files[-1].identity.hex()

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
            self._body[:] = bytes(len(self._body))
            self._doubtful.clear()
            for file in self._files:
                file.close()

    def __enter__(self) -> Vault:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Vault {self._files[-1].path}, {len(self._live)} keys>"

    def _write(self, slots: int, changed: Mapping[int, bytes]) -> None:
        """Put content into slots, given in ascending order, in every file, mirrors first.

        A failure leaves memory as it was, fit for use.
        """
        runs = list(_runs(changed))
        changes = max(file.changes for file in self._files) + 1
        for file in self._files:
            file.write(slots, runs, changes)
        self._body += bytes(_size(slots) - len(self._body))
        for place, run in runs:
            self._body[place : place + len(run)] = run

    def _key(self, slot: int) -> bytes:
        with self._lock:
            self._require_open()
            if slot not in self._live:
                raise ShreddedError(
                    f"slot {slot} is empty: its key has been destroyed, and what it sealed is gone"
                )
            content = bytes(self._body[_place(slot) : _place(slot) + SLOT_BYTES])
            whole = None if slot in self._doubtful else mended(content)
            if whole is None:
                raise StoreError(
                    f"the key in slot {slot} of the vault {self._files[-1].path} is damaged, and "
                    "its mirrors do not tell what it was: what it sealed cannot be read. Put back "
                    "a whole copy of the vault that is as new as this one, if there is one"
                )
            if whole != content:
                self._keep(slot, whole)
            return whole[:KEY_BYTES]

    def _decide(self, slot: int, tag: bytes) -> None:
        """Which key a slot holds, if copies of the vault disagree: the one that something was
        sealed under, by the tag of it.
        """
        with self._lock:
            for key in self._doubtful.get(slot, ()):
                if hmac.compare_digest(tag, _key_tag(key)):
                    self._keep(slot, with_crc(key))
                    del self._doubtful[slot]
                    return

    def _keep(self, slot: int, content: bytes) -> None:
        """Keep what a damaged slot was found to hold, in every file."""
        self.warnings.append(_put_right(self._files[-1].path, f", in slot {slot},"))
        self._write(len(self._body) // SECTOR * SLOTS, {slot: content})

    def _require_open(self) -> None:
        if self._closed:
            raise StoreError(f"the vault {self._files[-1].path} is closed")


class ReadOnlyVault(Vault):
    """The keys as they are at one moment, read beside the process that works on the vault.

    Law: no file is ever written. A key that was being written at that moment is as good as
    destroyed: what is sealed under it is not opened wrongly, but not at all.
    """

    def __init__(self, path: Path) -> None:
        file, body = VaultFile.open(path, read_only=True)
        super().__init__([file], body)

    def add_mirror(self, path: Path) -> NoReturn:  # noqa: ARG002 - as a vault has it
        """Refused."""
        self._refuse()

    def _write(self, slots: int, changed: Mapping[int, bytes]) -> NoReturn:  # noqa: ARG002 - as a vault has it
        self._refuse()

    def _keep(self, slot: int, content: bytes) -> None:
        """In memory alone: whoever works on the vault puts it right in the file."""
        self._body[_place(slot) : _place(slot) + SLOT_BYTES] = content

    def _refuse(self) -> NoReturn:
        raise StoreError(
            f"the vault {self._files[-1].path} is open for reading only, beside the process that "
            "works on it"
        )


def _runs(changed: Mapping[int, bytes]) -> Iterator[tuple[int, bytes]]:
    """Neighbouring slots together, each run with its place: few writes instead of many.

    What is between the slots of two sectors is zeros.
    """
    first, last, run = 0, -2, bytearray()
    for slot, content in changed.items():
        if slot != last + 1:
            if run:
                yield first, bytes(run)
            first, run = _place(slot), bytearray()
        run += bytes(_place(slot) - first - len(run)) + content
        last = slot
    if run:
        yield first, bytes(run)


def _key_tag(key: bytes) -> bytes:
    """Tells one key from another and nothing about either: so that a destroyed key is not taken for
    an altered text.
    """
    return hmac.digest(key, b"expunge\0key tag\0", hashlib.sha256)[:_TAG_BYTES]


def _associated(slot: int, context: bytes) -> bytes:
    return b"expunge\0sealed\0" + _SEALED_VERSION + pack("Q", slot) + context
