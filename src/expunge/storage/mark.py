"""High-water marks: how far something that only grows had come, in a small file beside a database.

A database that has lost its write-ahead log, or the end of it, opens as it was before and says
nothing: SQLite stops reading at the first frame that is damaged. A mark is written after each
commit, and before anybody is told of it. So a database that is behind its mark has lost something
that somebody was told of.

Laws:
- when `raise_to` has returned, the mark is durable. A crash or a power cut at any moment leaves the
  mark as it was or as it was to be; it is never ahead of what was committed;
- nothing is taken from the disk for it after it has been made: a full disk does not stop it;
- one bit that has flipped changes nothing: it is found by a checksum, and put right.

The file is two sectors of 512 bytes, written in turn, of which the higher one counts: magic,
version, number (8 bytes, little-endian), digest (32 bytes), the CRC-32 of all that (4 bytes), and
zeros.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from expunge.errors import FormatError, StoreDamagedError, StoreError
from expunge.frame import Format, is_whole, mended, pieces, with_crc
from expunge.storage.files import write_whole
from expunge.storage.machine import machine_of
from expunge.storage.sqlite import Hook, no_hook

DIGEST_BYTES = 32
_SECTOR = 512
_FORMAT = Format("a high-water mark", b"expunge\0mark\0", f"Q{DIGEST_BYTES}s")
_SIZE = _FORMAT.size + 4


@dataclass(frozen=True, order=True)
class Level:
    """How many there were, and a digest of them all."""

    number: int
    digest: bytes = bytes(DIGEST_BYTES)


class HighWaterMark:
    """The mark in a file; `read` it before it is raised. `remedy` says what to do if it is damaged;
    `hook` is called by name around every write.
    """

    def __init__(self, path: Path, remedy: str, hook: Hook = no_hook) -> None:
        self.path = path
        self._remedy = remedy
        self._hook = hook
        self._mark: Level | None = None  # as it is in the file
        self._next = 0  # the sector that is written next: the lower one

    def read(self) -> Level | None:
        """The mark; None if there is none yet."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as problem:
            raise StoreError(
                f"the high-water mark {self.path} cannot be read: {problem.strerror}. Mend that "
                "and try again"
            ) from problem
        marks = [_parsed(sector) for sector in pieces(data, _SECTOR)[:2]]
        whole = [mark for mark in marks if mark is not None]
        if not whole:
            raise StoreDamagedError(
                f"the high-water mark {self.path} is damaged, so it cannot be told whether the end "
                f"of the database beside it is lost. {self._remedy}"
            )
        self._mark = max(whole)
        self._next = 1 if marks[0] == self._mark else 0
        return self._mark

    @property
    def number(self) -> int:
        """Of the mark; 0 as long as none is known."""
        return 0 if self._mark is None else self._mark.number

    def raise_to(self, mark: Level) -> None:
        """From now on, what has come less far than this has lost something; nothing if the mark is
        as high already.
        """
        if self._mark is not None and mark.number <= self._mark.number:
            return
        if self._mark is None:
            self.set(mark)
            return
        machine = machine_of(self.path)
        try:
            self._hook("before mark")
            descriptor = machine.open(self.path, os.O_WRONLY)
            try:
                machine.write(descriptor, _sector(mark), self._next * _SECTOR)
                machine.sync(descriptor)
            finally:
                machine.close(descriptor)
            self._hook("after mark")
        except OSError as problem:
            raise self._failure(problem) from problem
        self._mark, self._next = mark, 1 - self._next

    def set(self, mark: Level) -> None:
        """Make the file, or put it in the place of the one that is there, whatever that says."""
        try:
            self._hook("before mark")
            write_whole(self.path, 2 * _sector(mark))
            self._hook("after mark")
        except OSError as problem:
            raise self._failure(problem) from problem
        self._mark = mark

    def _failure(self, problem: OSError) -> StoreError:
        return StoreError(
            f"the high-water mark {self.path} could not be written: {problem.strerror}. What was "
            "changed is in the database; mend that and try again"
        )


def _sector(mark: Level) -> bytes:
    return with_crc(_FORMAT.begin(mark.number, mark.digest)).ljust(_SECTOR, b"\0")


def _parsed(sector: bytes) -> Level | None:
    """What a sector says; None if it is damaged, as by a write that was torn."""
    data = mended(sector[:_SIZE]) if len(sector) >= _SIZE else None
    if data is None or not is_whole(data):
        return None
    try:
        (number, digest), _ = _FORMAT.open(data)
    except FormatError:
        return None
    return Level(number, digest)
