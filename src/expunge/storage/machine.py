"""The machine that a folder is on: its disk, as far as it matters when a change of a file becomes
durable, and its randomness.

Whatever writes files, or draws keys, salts and nonces, asks `machine_of` its folder. That is this
computer, unless another one was mounted at a folder above: `expunge.testing.simulation` has
machines whose disks fail and whose randomness can be repeated.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


class Connection(Protocol):
    """What is used of a `sqlite3.Connection`."""

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction has begun and not ended."""
        ...

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Cursor:
        """Carry out one statement."""
        ...

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> Cursor:
        """Carry out one statement for each of many arguments."""
        ...

    def executescript(self, sql_script: str, /) -> Cursor:
        """Carry out several statements."""
        ...

    def backup(self, target: Any, /) -> None:
        """Copy the database into that of another connection."""
        ...

    def close(self) -> None:
        """Close it; a transaction that has not ended has not happened."""
        ...


class Cursor(Protocol):
    """What is used of a `sqlite3.Cursor`."""

    @property
    def rowcount(self) -> int:
        """How many rows were touched."""
        ...

    def fetchone(self) -> Any:
        """The next row, or None."""
        ...

    def fetchall(self) -> list[Any]:
        """The rows that are left."""
        ...


@dataclass(frozen=True)
class Space:
    """What a file system can still take."""

    free: int  # bytes, for this user
    is_read_only: bool


class Machine:
    """A computer: here, the one that runs the program.

    Law: what was written to a file is durable once `sync` has returned; that a file is there, has
    another name or is gone, once `sync_folder` has.
    """

    def random(self, count: int) -> bytes:
        """So many random bytes, fit for keys."""
        return secrets.token_bytes(count)

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        """The descriptor of a file; it is not inherited by other programs."""
        return os.open(path, flags | os.O_CLOEXEC, mode)

    def write(self, descriptor: int, data: bytes | memoryview, offset: int) -> None:
        """Write all of this, from this place of the file on."""
        view = memoryview(data)
        while view:
            written = os.pwrite(descriptor, view, offset)
            view, offset = view[written:], offset + written

    def truncate(self, descriptor: int, size: int) -> None:
        """Cut a file."""
        os.ftruncate(descriptor, size)

    def allocate(self, descriptor: int, size: int) -> None:
        """Give a file this size, of zeros, and the room for it on the disk."""
        try:
            os.posix_fallocate(descriptor, 0, size)
        except (AttributeError, OSError) as problem:
            if getattr(problem, "errno", errno.EOPNOTSUPP) != errno.EOPNOTSUPP:
                raise
            self.write(descriptor, bytes(size), 0)  # neither every system nor every disk has it

    def space(self, path: Path) -> Space:
        """What the file system of a folder can still take."""
        status = os.statvfs(path)
        is_read_only = bool(status.f_flag & os.ST_RDONLY)
        return Space(status.f_bavail * status.f_frsize, is_read_only)

    def sync(self, descriptor: int) -> None:
        """Make the content of a file durable."""
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        """Close a file."""
        os.close(descriptor)

    def make_folder(self, path: Path) -> None:
        """Make a folder for its owner alone; one that is there stays as it is."""
        path.mkdir(mode=0o700, exist_ok=True)

    def sync_folder(self, path: Path) -> None:
        """Make it durable which files a folder has."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, path: Path, target: Path) -> None:
        """Give a file or folder another name, in place of what has that name."""
        path.replace(target)

    def remove(self, path: Path) -> None:
        """Remove a file, if it is there."""
        path.unlink(missing_ok=True)

    def remove_tree(self, path: Path) -> None:
        """Remove a folder with everything in it."""
        shutil.rmtree(path)

    def connect(
        self, database: str | Path, *, timeout: float = 5.0, uri: bool = False
    ) -> Connection:
        """A connection to an SQLite database that several threads may take turns with, and that
        begins no transaction by itself.
        """
        return sqlite3.connect(
            database, timeout=timeout, uri=uri, isolation_level=None, check_same_thread=False
        )


THIS = Machine()
_mounted: dict[str, Machine] = {}  # by absolute path


def machine_of(path: Path) -> Machine:
    """The machine that a file or folder is on."""
    if not _mounted:
        return THIS
    at = os.path.abspath(path)
    while at not in _mounted:
        above = os.path.dirname(at)
        if above == at:
            return THIS
        at = above
    return _mounted[at]


@contextmanager
def mounted(path: Path, machine: Machine) -> Iterator[None]:
    """What is at a path, and below, is on this machine from now on. For tests and simulations: a
    program that does its work never calls this.
    """
    at = os.path.abspath(path)
    before = _mounted.get(at)
    _mounted[at] = machine
    try:
        yield
    finally:
        del _mounted[at]
        if before is not None:
            _mounted[at] = before
