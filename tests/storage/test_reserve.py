"""A reserve: given up when the disk is full, made again when there is room."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from expunge.errors import StoreError
from expunge.storage.machine import Machine, mounted
from expunge.storage.reserve import Reserve
from expunge.testing.simulation.disk import Disk
from expunge.testing.simulation.machine import SimulatedMachine, Trouble
from support.disks import SmallDisk

NEED = 10_000


def test_it_is_whole_while_there_is_room_and_given_up_when_there_is_none(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path)
    with mounted(tmp_path, disk):
        reserve = Reserve(tmp_path / "reserve", NEED)
        assert reserve.is_short
        assert reserve.renew()
        assert (tmp_path / "reserve").stat().st_size == reserve.size == 2 * NEED
        disk.fill(NEED)
        reserve.use()
        assert reserve.is_whole
        assert not reserve.is_short
        disk.fill(NEED - 1)
        assert reserve.is_short
        assert reserve.missing == 1
        reserve.use()
        assert not (tmp_path / "reserve").exists()
        assert disk.free == 3 * NEED - 1
        assert not reserve.renew()
        assert reserve.missing == 1
        disk.fill(3 * NEED)
        assert reserve.renew()
        assert Reserve(tmp_path / "reserve", NEED).is_whole
        larger = Reserve(tmp_path / "reserve", 2 * NEED)
        assert larger.missing == 3 * NEED
        disk.fill(4 * NEED)
        assert larger.renew()
        assert disk.free == 2 * NEED


@pytest.mark.parametrize(
    ("number", "made"), [(errno.EOPNOTSUPP, True), (errno.EDQUOT, False), (errno.ENOSPC, False)]
)
def test_disks_that_cannot_allocate_are_written_to_and_quotas_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, made: bool
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", fail)
    reserve = Reserve(tmp_path / "reserve", NEED)
    assert reserve.renew() == made
    assert reserve.path.exists() == made
    assert reserve.failure == ("" if made else os.strerror(number))


def test_one_that_cannot_be_given_up_is_named(tmp_path: Path) -> None:
    class Stubborn(SmallDisk):
        def remove(self, path: Path) -> None:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    disk = Stubborn(tmp_path)
    with mounted(tmp_path, disk):
        reserve = Reserve(tmp_path / "reserve", NEED)
        reserve.renew()
        disk.fill()
        with pytest.raises(StoreError, match="cannot be given up: Read-only file system"):
            reserve.use()
        assert reserve.is_whole


def test_a_simulated_disk_that_is_full_has_as_much_room_as_was_freed(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "disk")
    with mounted(disk.path, machine := SimulatedMachine("one", disk, b"seed")):
        reserve = Reserve(disk.path / "reserve", NEED)
        assert reserve.renew()
        descriptor = machine.open(disk.path / "file", os.O_RDWR | os.O_CREAT)
        machine.trouble = Trouble("full", 0)
        with pytest.raises(OSError, match="No space"):
            machine.write(descriptor, bytes(1), 0)
        assert reserve.free == 0
        reserve.use()
        assert reserve.free == 2 * NEED
        machine.write(descriptor, bytes(2 * NEED), 0)
        machine.write(descriptor, bytes(2 * NEED), 0)  # again, in place
        with pytest.raises(OSError, match="No space"):
            machine.write(descriptor, bytes(1), 2 * NEED)
        machine.truncate(descriptor, 0)
        assert reserve.free == 2 * NEED
        assert not reserve.renew()
        machine.mend()
        assert reserve.renew()
        machine.close(descriptor)


def test_free_room_is_that_of_the_file_system(tmp_path: Path) -> None:
    space, status = Machine().space(tmp_path), os.statvfs(tmp_path)
    assert space.free == pytest.approx(status.f_bavail * status.f_frsize, rel=0.2)
    assert not space.is_read_only
