"""Small files that must be whole or absent, and the lock that keeps a second process away."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

from expunge.errors import StoreBusyError, StoreError
from expunge.storage.machine import machine_of

_DRAFT = ".part"
_ZEROS = 1 << 16  # written at a time
_HOLDER = 32  # bytes of a lock's file, which say who holds it
_OTHERS = 0o077  # permission bits of everyone but the owner


def sync_folder(folder: Path) -> None:
    """Make what was created, renamed or removed in a folder durable."""
    machine_of(folder).sync_folder(folder)


def rename(path: Path, target: Path) -> None:
    """Give a file or folder another name, in place of what has that name."""
    machine_of(path).rename(path, target)


def remove(path: Path) -> None:
    """Remove a file, if it is there."""
    machine_of(path).remove(path)


def remove_tree(path: Path) -> None:
    """Remove a folder with everything in it."""
    machine_of(path).remove_tree(path)


def make_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing, for their owner alone.

    One that is there stays as it is.
    """
    missing = [folder for folder in path.parents if not folder.exists()]
    for folder in (*reversed(missing), path):
        machine_of(folder).make_folder(folder)


def make_file(path: Path) -> None:
    """Make an empty file for its owner alone, or close one that is there to others.

    So whatever is written to it later is for the owner alone from the start.
    """
    machine = machine_of(path)
    machine.close(machine.open(path, os.O_WRONLY | os.O_CREAT))
    if stat.S_IMODE(path.stat().st_mode) & _OTHERS:
        with suppress(PermissionError):  # some file systems have no modes
            path.chmod(0o600)


def write_whole(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace a file: after a crash it is the old one or the new one, never a part of either."""
    draft, machine = path.with_name(path.name + _DRAFT), machine_of(path)
    machine.remove(draft)  # one that was left by a crash may have another mode
    write_new(draft, data, mode)
    machine.rename(draft, path)
    machine.sync_folder(path.parent)


def write_new(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write a file that is not there yet; its content is durable, its name not before the folder is
    synced.
    """
    write_all_new({path: data}, mode)


def write_all_new(files: Mapping[Path, bytes], mode: int = 0o600) -> None:
    """The same of several files. All are written before the first is synced: most disks then have
    the others by that.
    """
    with ExitStack() as closing:
        descriptors = []
        for path, data in files.items():
            machine = machine_of(path)
            descriptor = machine.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            closing.callback(machine.close, descriptor)
            machine.write(descriptor, data, 0)
            descriptors.append((machine, descriptor))
        for machine, descriptor in descriptors:
            machine.sync(descriptor)


def erase(path: Path) -> None:
    """Remove a file that held a secret: it is overwritten. One that is not there is fine.

    It loses its name first, so that after a crash it is there whole or not at all; what is left
    then, this or `erase_drafts` overwrites the next time.
    """
    machine = machine_of(path)
    draft = path if path.name.endswith(_DRAFT) else path.with_name(path.name + _DRAFT)
    if draft.exists():
        _overwrite_and_remove(draft)
    if path.exists():
        machine.rename(path, draft)
        machine.sync_folder(path.parent)
        _overwrite_and_remove(draft)


def _overwrite_and_remove(path: Path) -> None:
    machine = machine_of(path)
    descriptor = machine.open(path, os.O_WRONLY)
    try:
        size = os.fstat(descriptor).st_size
        for start in range(0, size, _ZEROS):
            machine.write(descriptor, bytes(min(size - start, _ZEROS)), start)
        machine.sync(descriptor)
    finally:
        machine.close(descriptor)
    machine.remove(path)
    machine.sync_folder(path.parent)


def erase_drafts(folder: Path) -> None:
    """Remove what `write_whole` leaves in a folder if the process is killed midway.

    The caller holds the folder.
    """
    for draft in sorted(folder.glob(f"*{_DRAFT}")):
        erase(draft)


class FolderLock:
    """Held by the one process that works on a folder; freed by the system when that process ends,
    however it ends.
    """

    def __init__(self, folder: Path, timeout: float = 0.0) -> None:
        if not folder.is_dir():
            raise StoreError(f"there is no folder {folder}")
        self._machine = machine_of(folder)
        try:
            self._descriptor = self._machine.open(folder / "lock", os.O_RDWR | os.O_CREAT)
        except OSError as problem:
            raise self._failure(folder, problem) from problem
        deadline = time.monotonic() + timeout
        while True:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as problem:
                if time.monotonic() < deadline:
                    time.sleep(0.02)
                    continue
                holder = (
                    os.pread(self._descriptor, _HOLDER, 0).decode("ascii", "replace").strip()
                    or "unknown"
                )
                self._machine.close(self._descriptor)
                raise StoreBusyError(
                    f"{folder} is in use by process {holder}: wait until it has finished, or stop "
                    "it"
                ) from problem
        try:  # in the place of the last one: that needs no room on the disk
            line = f"{os.getpid()}\n".ljust(_HOLDER)
            self._machine.write(self._descriptor, line.encode("ascii"), 0)
        except OSError as problem:
            self.release()
            raise self._failure(folder, problem) from problem

    def _failure(self, folder: Path, problem: OSError) -> StoreError:
        remedy = "Mend that and try again"
        if self._machine.space(folder).is_read_only:
            remedy = "Its file system is mounted read-only: mount it for writing, and try again"
        return StoreError(f"{folder} cannot be locked: {problem.strerror}. {remedy}")

    def release(self) -> None:
        """Let others in; once is enough, and twice does no harm."""
        if self._descriptor >= 0:
            self._machine.close(self._descriptor)
            self._descriptor = -1
