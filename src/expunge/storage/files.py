"""Small files that must be whole or absent, and the lock that keeps a second process away."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from contextlib import suppress
from pathlib import Path

from expunge.errors import StoreBusyError, StoreError

_DRAFT = ".part"
_OTHERS = 0o077  # permission bits of everyone but the owner


def sync_folder(folder: Path) -> None:
    """Make what was created, renamed or removed in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing, for their owner alone.

    One that is there stays as it is.
    """
    missing = [folder for folder in path.parents if not folder.exists()]
    for folder in (*reversed(missing), path):
        folder.mkdir(mode=0o700, exist_ok=True)


def make_file(path: Path) -> None:
    """Make an empty file for its owner alone, or close one that is there to others.

    So whatever is written to it later is for the owner alone from the start.
    """
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    if stat.S_IMODE(path.stat().st_mode) & _OTHERS:
        with suppress(PermissionError):  # some file systems have no modes
            path.chmod(0o600)


def write_whole(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace a file: after a crash it is the old one or the new one, never a part of either."""
    draft = path.with_name(path.name + _DRAFT)
    draft.unlink(missing_ok=True)  # one that was left by a crash may have another mode
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    draft.replace(path)
    sync_folder(path.parent)


def erase(path: Path) -> None:
    """Remove a file that held a secret: it is overwritten first. One that is not there is fine."""
    if not path.exists():
        return
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        size, done = os.fstat(descriptor).st_size, 0
        while done < size:
            done += os.pwrite(descriptor, bytes(min(size - done, 1 << 16)), done)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    path.unlink()
    sync_folder(path.parent)


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
        self._descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
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
                    os.pread(self._descriptor, 32, 0).decode("ascii", "replace").strip()
                    or "unknown"
                )
                os.close(self._descriptor)
                raise StoreBusyError(
                    f"{folder} is in use by process {holder}: wait until it has finished, or stop "
                    "it"
                ) from problem
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode("ascii"), 0)

    def release(self) -> None:
        """Let others in; once is enough, and twice does no harm."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
