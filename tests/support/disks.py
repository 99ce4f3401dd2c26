"""Disks that are full."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from expunge.storage.machine import Machine, Space


class SmallDisk(Machine):
    """A disk of this computer of which only so much may be used; SQLite's own files are measured,
    and not stopped.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 1 << 30

    @property
    def free(self) -> int:
        files = (file for file in self.path.rglob("*") if file.is_file())
        return self.size - sum(file.stat().st_size for file in files)

    def fill(self, left: int = 0) -> None:
        """From now on so many bytes are free."""
        self.size -= self.free - left

    def space(self, path: Path) -> Space:
        assert path.is_relative_to(self.path)
        return Space(max(0, self.free), is_read_only=False)

    def write(self, descriptor: int, data: bytes | memoryview, offset: int) -> None:
        self._take(offset + len(data) - os.fstat(descriptor).st_size)
        super().write(descriptor, data, offset)

    def allocate(self, descriptor: int, size: int) -> None:
        self._take(size - os.fstat(descriptor).st_size)
        super().allocate(descriptor, size)

    def _take(self, count: int) -> None:
        if count > max(0, self.free):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
