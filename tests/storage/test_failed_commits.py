"""A commit whose sync fails has written all of itself: after a crash it would be there, although
its caller was told that it failed. Nothing that it refers to may be gone then.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from expunge.client import ClientStore, Selection
from expunge.crypto import SigningKey
from expunge.errors import StoreError
from expunge.storage.machine import mounted
from expunge.storage.sqlite import Database
from expunge.testing.simulation.disk import Disk
from expunge.testing.simulation.machine import SimulatedMachine
from expunge.testing.simulation.scenario import Scenario

SPEC = Scenario.drawn(0, masked=False).spec
NUMBERS = ["CREATE TABLE numbers (n INTEGER)"]


class Failing(SimulatedMachine):
    """A machine whose next syncs fail, so many of them; what was written can still be read."""

    failures = 0

    def sync(self, descriptor: int) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync(descriptor)


@contextmanager
def machine(disk: Disk, seed: bytes) -> Iterator[Failing]:
    """The machine of a disk, until it is killed."""
    failing = Failing("machine", disk, seed)
    with mounted(disk.path, failing):
        yield failing
        failing.crash()


def numbers(path: Path) -> list[int]:
    database = Database(path, NUMBERS)
    found = [n for (n,) in database.rows("SELECT n FROM numbers ORDER BY n")]
    database.close()
    return found


def insert(database: Database, number: int) -> None:
    with database.transaction() as changes:
        changes.run("INSERT INTO numbers (n) VALUES (?)", (number,))


def test_what_has_failed_is_not_there_after_a_crash(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "disk")
    with machine(disk, b"first") as failing:
        database = Database(disk.path / "a.db", NUMBERS)
        insert(database, 1)
        failing.failures = 1
        with pytest.raises(StoreError, match=r"is as it was: disk I/O error"):
            insert(database, 2)
        assert database.is_certain
        assert database.rows("SELECT n FROM numbers") == [(1,)]
    with machine(disk, b"second"):
        assert numbers(disk.path / "a.db") == [1]


def test_until_the_disk_is_mended_nothing_is_certain(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "disk")
    with machine(disk, b"first") as failing:
        database = Database(disk.path / "a.db", NUMBERS)
        insert(database, 1)
        failing.failures = 4  # its own, the one over it, and those of the next transaction
        for number in (2, 3):
            with pytest.raises(StoreError):
                insert(database, number)
            assert failing.failures or database.is_certain
        failing.failures = 2
        with pytest.raises(StoreError):
            insert(database, 4)
        assert not database.is_certain
        insert(database, 5)
        assert database.is_certain
    with machine(disk, b"second"):
        assert numbers(disk.path / "a.db") == [1, 5]


def test_a_client_can_read_what_it_was_told_had_failed(tmp_path: Path) -> None:
    """The disk may have written the log as it was when the sync failed, and nothing since. Then the
    samples are there, and so are their keys.
    """
    disk = Disk(tmp_path / "disk")
    path, written = disk.path / "client", list[bytes]()
    with machine(disk, b"first") as failing:
        store = ClientStore.create(
            path, federation="0" * 32, name="a", server=SigningKey(b"s" * 32).public, spec=SPEC
        )
        failing.sync_folder(disk.path)
        store.add(["kept"], [[1.0, 0.0, 0.5, 2.0]], ["yes"], subjects=["ann"], now=0.0)
        true = failing.sync

        def sync(descriptor: int) -> None:
            """The vault's are done: it is the log's that fail."""
            file = Path(f"/proc/self/fd/{descriptor}").readlink()
            if file.name.endswith("-wal"):
                written.append(file.read_bytes())
                failing.failures = 1
            true(descriptor)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(failing, "sync", sync)
            with pytest.raises(StoreError):
                store.add(["new"], [[0.0, 1.0, 0.5, 2.0]], ["no"], subjects=["bob"], now=0.0)
    disk.write("client/client.db-wal", written[0])
    with machine(disk, b"second"):
        store = ClientStore.open(path)
        everything = store.opened(Selection(everything=True))
        assert {listed.names.id for listed, _ in everything} == {"kept", "new"}
        store.close()
