"""A reserve: room on a disk that is kept for when the disk is full.

Without it nothing could be deleted then, because a deletion has to be written down before anything
is overwritten. It is a file that holds nothing. It is given up when less than `need` bytes are free
beside it, and made again once there is room for it and as much again.

Laws:
- while the reserve is there and `need` bytes are free beside it, there is room for whatever adds to
  the store (`is_short` is False);
- after `use`, there are `need` bytes, if the disk has them anywhere;
- that it is missing, whole or in part, harms nothing: it is made when there is room.
"""

from __future__ import annotations

import os
from pathlib import Path

from expunge.errors import StoreError
from expunge.storage.machine import machine_of


class Reserve:
    """Room on the disk of a folder, in the file at `path`.

    `need` is what a step of a deletion may take: the reserve is of `COPIES` times as much.
    """

    COPIES = 2

    def __init__(self, path: Path, need: int) -> None:
        self.path = path
        self.need = need
        self._machine = machine_of(path)
        self._held = path.stat().st_size if path.exists() else 0
        self.failure = ""  # why it could not be made, though there seemed to be room

    @property
    def size(self) -> int:
        """How many bytes it is to have."""
        return self.COPIES * self.need

    @property
    def is_whole(self) -> bool:
        """Whether it has them."""
        return self._held >= self.size

    @property
    def free(self) -> int:
        """How many bytes are free beside it."""
        return self._machine.space(self.path.parent).free

    @property
    def is_read_only(self) -> bool:
        """Whether nothing can be written there."""
        return self._machine.space(self.path.parent).is_read_only

    @property
    def is_short(self) -> bool:
        """Whether there is no room for what adds to the store."""
        return not self.is_whole or self.free < self.need

    @property
    def missing(self) -> int:
        """How many bytes have to be freed until `is_short` is over."""
        wanted = self.need + max(0, self.size - self._held)
        return max(0, wanted - self.free)

    def use(self) -> None:
        """Give it up if the disk is full, for what must not wait for room."""
        if self._held and self.free < self.need:
            try:
                self._machine.remove(self.path)
            except OSError as problem:
                raise StoreError(
                    f"the reserve {self.path} cannot be given up: {problem.strerror}. Remove it, "
                    "and try again"
                ) from problem
            self._held = 0

    def renew(self) -> bool:
        """Make it, if there is room; whether it is there."""
        if self.is_whole:
            return True
        if self.missing or self.is_read_only:
            return False
        try:
            self._make()
            self.failure = ""
        except OSError as problem:  # others were faster, or there is a quota
            self.failure = problem.strerror or str(problem)
            self._machine.remove(self.path)
            self._held = 0
        return self.is_whole

    def _make(self) -> None:
        descriptor = self._machine.open(self.path, os.O_WRONLY | os.O_CREAT)
        try:
            self._machine.allocate(descriptor, self.size)
        finally:
            self._machine.close(descriptor)
        self._held = self.size
