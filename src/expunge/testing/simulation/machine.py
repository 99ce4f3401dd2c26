"""A simulated machine: its disk, its randomness, and what goes wrong with them.

`Trouble` happens at a chosen operation of the disk. After a crash the machine is off: whatever its
programs still do, as they unwind, fails and changes nothing; it goes on as a new `SimulatedMachine`
on the same disk.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from expunge.storage.machine import THIS, Connection, Machine, Space
from expunge.testing.simulation.database import SimulatedConnection
from expunge.testing.simulation.disk import CrashedError, Disk, File

# What can happen at an operation of a disk. The last two stay until the machine is mended.
TroubleKind = Literal["crash-before", "crash-after", "torn", "failed-sync", "full", "read-only"]
TROUBLES: tuple[TroubleKind, ...] = (
    "crash-before",
    "crash-after",
    "torn",
    "failed-sync",
    "full",
    "read-only",
)
_LASTING = {"full": errno.ENOSPC, "read-only": errno.EROFS}
_NEW_FILE = 4096  # bytes that a new file or folder takes of a disk, however small it is
_ROOMY = 1 << 40  # bytes that are free on a disk that is not full


_T = TypeVar("_T")


@dataclass
class Trouble:
    """What is to happen after so many more operations of the disk."""

    kind: TroubleKind
    after: int


class SimulatedMachine(Machine):
    """A machine from when it is started to when it crashes."""

    def __init__(self, name: str, disk: Disk, seed: bytes) -> None:
        """The same `seed` draws the same bytes."""
        self.name = name
        self.disk = disk
        self.is_on = True
        self.trouble: Trouble | None = None
        self.had_trouble = False
        self.counts: Counter[str] = Counter()  # operations of the disk, and what went wrong
        self._seed = hashlib.sha256(seed).digest()
        self._drawn = 0
        self._lasting = ""
        self._freed = 0  # bytes, since the disk was full
        self._open: dict[int, File] = {}
        self._connections: list[SimulatedConnection] = []

    def random(self, count: int) -> bytes:
        """The next bytes of a stream that the seed determines."""
        drawn = b""
        while len(drawn) < count:
            drawn += hashlib.sha256(self._seed + self._drawn.to_bytes(8, "big")).digest()
            self._drawn += 1
        return drawn[:count]

    # -- the disk ----------------------------------------------------------------------------------

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        """The descriptor of a file."""
        if flags & os.O_CREAT and not path.exists():
            return self._do(
                "create", lambda: self._opened(path, flags, mode, created=True), takes=_NEW_FILE
            )
        self.require_on()
        return self._opened(path, flags, mode, created=False)

    def _opened(self, path: Path, flags: int, mode: int, *, created: bool) -> int:
        descriptor = THIS.open(path, flags, mode)
        file = self.disk.create(path) if created else self.disk.file(path)
        if file is None:
            THIS.close(descriptor)
            raise FileNotFoundError(f"{path} was not made through its simulated machine")
        self._open[descriptor] = file
        return descriptor

    def write(self, descriptor: int, data: bytes | memoryview, offset: int) -> None:
        """Write all of this, from this place of the file on."""
        data = bytes(data)

        def write(part: bytes = data) -> None:
            THIS.write(descriptor, part, offset)
            self._open[descriptor].pending.append((offset, part))

        takes = 0
        if self.has_trouble:
            takes = max(0, offset + len(data) - self._size(descriptor))
        half = data[: len(data) // 2]
        kind = "write" if takes or not self.has_trouble else "overwrite"
        self._do(kind, write, takes=takes, torn=lambda: write(half))

    def truncate(self, descriptor: int, size: int) -> None:
        """Cut a file."""

        def truncate() -> None:
            THIS.truncate(descriptor, size)
            self._open[descriptor].pending.append(size)

        self._do("truncate", truncate, takes=size - self._size(descriptor))

    def allocate(self, descriptor: int, size: int) -> None:
        """Give a file this size, of zeros, and the room for it."""

        def allocate() -> None:
            THIS.truncate(descriptor, size)
            self._open[descriptor].pending.append(size)

        self._do("allocate", allocate, takes=size - self._size(descriptor))

    def _size(self, descriptor: int) -> int:
        """The size of an open file; those of a machine that has stopped are closed."""
        return os.fstat(descriptor).st_size if self.is_on else 0

    def space(self, path: Path) -> Space:  # noqa: ARG002 - it has one disk
        """What the disk can still take: when it is full, what has been freed since."""
        free = self._freed if self._lasting == "full" else _ROOMY
        return Space(free, self._lasting == "read-only")

    def sync(self, descriptor: int) -> None:
        """Make the content of a file durable."""

        def sync() -> None:
            self._open[descriptor].sync()

        def fail() -> None:
            self._open[descriptor].forget()

        self._do("sync", sync, failed=fail)

    def close(self, descriptor: int) -> None:
        """Close a file; one that the crash has closed stays closed."""
        if self._open.pop(descriptor, None) is not None:
            THIS.close(descriptor)

    def make_folder(self, path: Path) -> None:
        """Make a folder; one that is there stays as it is."""

        def make() -> None:
            THIS.make_folder(path)
            self.disk.make_folder(path)

        if not path.is_dir():
            self._do("make folder", make, takes=_NEW_FILE)

    def sync_folder(self, path: Path) -> None:
        """Make it durable which files a folder has."""
        self._do("sync folder", self.disk.folder(path).sync, failed=lambda: None)

    def rename(self, path: Path, target: Path) -> None:
        """Give a file or folder another name, in place of what has that name."""

        def rename() -> None:
            THIS.rename(path, target)
            self.disk.rename(path, target)

        replaced = target.stat().st_size if target.is_file() else 0
        self._do("rename", rename, takes=-replaced)

    def remove(self, path: Path) -> None:
        """Remove a file, if it is there."""

        def remove() -> None:
            THIS.remove(path)
            self.disk.remove(path)

        if path.exists():
            self._do("remove", remove, takes=-path.stat().st_size)

    def remove_tree(self, path: Path) -> None:
        """Remove a folder with everything in it."""

        def remove() -> None:
            THIS.remove_tree(path)
            self.disk.remove(path)

        self._do("remove", remove)

    def connect(
        self,
        database: str | Path,
        *,
        timeout: float = 5.0,  # noqa: ARG002 - nobody else has a database open
        uri: bool = False,
    ) -> Connection:
        """A connection to an SQLite database on this disk."""
        self.require_on()
        connection = SimulatedConnection(database, self.require_on, is_uri=uri)
        self._connections.append(connection)
        return connection

    # -- trouble -----------------------------------------------------------------------------------

    def crash(self) -> None:
        """Stop: everything that is open is closed."""
        self.is_on = False
        for connection in self._connections:
            connection.abandon()
        for descriptor in list(self._open):
            self.close(descriptor)

    @property
    def has_trouble(self) -> bool:
        """Whether something goes wrong, or is about to."""
        return self.trouble is not None or bool(self._lasting)

    def mend(self) -> None:
        """The disk has room again, and can be written to."""
        self._lasting, self.trouble = "", None

    def require_on(self) -> None:
        """Whatever a program does on a machine that has stopped ends here."""
        if not self.is_on:
            raise CrashedError(f"the machine of {self.name} has stopped")

    def _do(
        self,
        kind: str,
        do: Callable[[], _T],
        *,
        takes: int = 0,
        torn: Callable[[], None] | None = None,
        failed: Callable[[], None] | None = None,
    ) -> _T:
        """An operation of the disk, which takes so many bytes of it, with what goes wrong at it."""
        self.require_on()
        self.counts[f"disk: {kind}"] += 1
        happening = self._due(can_tear=torn is not None, can_fail=failed is not None)
        if self._lasting == "read-only" or (self._lasting == "full" and takes > self._freed):
            number = _LASTING[self._lasting]
            raise OSError(number, os.strerror(number))
        if happening == "failed-sync" and failed is not None:
            failed()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if happening == "torn" and torn is not None:
            torn()
        if happening in ("torn", "crash-before"):
            self._stop()
        result = do()
        self._freed -= takes
        if happening == "crash-after":
            self._stop()
        return result

    def _due(self, *, can_tear: bool, can_fail: bool) -> TroubleKind | None:
        """The trouble whose time has come; a torn write waits for a write, and so on."""
        trouble = self.trouble
        if trouble is None:
            return None
        trouble.after -= 1
        if (
            trouble.after >= 0
            or (trouble.kind == "torn" and not can_tear)
            or (trouble.kind == "failed-sync" and not can_fail)
        ):
            return None
        self.trouble, self.had_trouble = None, True
        self.counts[f"fault: {trouble.kind}"] += 1
        if trouble.kind in _LASTING:
            self._lasting, self._freed = trouble.kind, 0
        return trouble.kind

    def _stop(self) -> None:
        self.is_on = False
        self.require_on()
