"""Sealed files: what is too large for the database. A file is written whole and durable before anything refers to it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Collection
from pathlib import Path

from expunge.errors import StoreError
from expunge.files import sync_folder
from expunge.server.database import Hook, no_hook


class Blobs:
    """A folder of immutable files named by chance. What the database does not refer to is removed by `keep_only`."""

    def __init__(self, folder: Path, hook: Hook = no_hook) -> None:
        self._folder = folder
        self._hook = hook
        folder.mkdir(mode=0o700, exist_ok=True)

    def put(self, data: bytes) -> str:
        """Write a new file; when this returns it is on disk. One that could not be written is removed: the disk may be full."""
        name = secrets.token_hex(16)
        self._hook("before file")
        descriptor = os.open(self._folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
            sync_folder(self._folder)
        except BaseException:
            (self._folder / name).unlink()
            raise
        finally:
            os.close(descriptor)
        self._hook("after file")
        return name

    def get(self, name: str) -> bytes:
        """The content of a file."""
        try:
            return (self._folder / name).read_bytes()
        except OSError as problem:
            raise StoreError(f"the sealed file {name} is missing: restore a backup, or rebuild from the clients") from problem

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        (self._folder / name).unlink(missing_ok=True)

    def keep_only(self, names: Collection[str]) -> None:
        """Remove every other file."""
        for path in list(self._folder.iterdir()):
            if path.name not in names:
                path.unlink()
