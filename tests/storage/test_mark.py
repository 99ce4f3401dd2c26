"""High-water marks: never ahead, never lost to a torn write or a flipped bit."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from expunge.errors import StoreDamagedError, StoreError
from expunge.storage.machine import Machine, mounted
from expunge.storage.mark import HighWaterMark, Level

MARKS = [Level(number, bytes([number]) * 32) for number in (1, 2, 5, 6, 40)]
REMEDY = "Do this."


def raised(path: Path, marks: list[Level]) -> HighWaterMark:
    mark = HighWaterMark(path, REMEDY)
    for each in marks:
        mark.raise_to(each)
    return mark


def read(path: Path) -> Level | None:
    return HighWaterMark(path, REMEDY).read()


def test_it_is_what_it_was_raised_to_and_never_lower(tmp_path: Path) -> None:
    path = tmp_path / "mark"
    assert read(path) is None
    for end in range(1, len(MARKS) + 1):
        path.unlink(missing_ok=True)
        mark = raised(path, MARKS[:end])
        assert read(path) == MARKS[end - 1]
        mark.raise_to(MARKS[0])
        assert (read(path), mark.number) == (MARKS[end - 1], MARKS[end - 1].number)
        again = HighWaterMark(path, REMEDY)
        assert again.read() == MARKS[end - 1]
        again.raise_to(Level(99))
        assert read(path) == Level(99)
    mark.set(Level(3))
    assert read(path) == Level(3)


def test_no_bit_of_it_matters(tmp_path: Path) -> None:
    path = tmp_path / "mark"
    raised(path, MARKS)
    data = path.read_bytes()
    assert len(data) == 1024
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        assert read(path) == MARKS[-1]


def test_a_torn_write_leaves_the_mark_before(tmp_path: Path) -> None:
    path = tmp_path / "mark"
    raised(path, MARKS[:-1])
    before = path.read_bytes()
    raised(path, [])
    mark = HighWaterMark(path, REMEDY)
    mark.read()
    mark.raise_to(MARKS[-1])
    after = path.read_bytes()
    for torn in range(len(after) + 1):
        path.write_bytes(after[:torn] + before[torn:])
        assert read(path) in MARKS[-2:]
        path.write_bytes(before[:torn] + after[torn:])
        assert read(path) in MARKS[-2:]


def test_one_that_is_damaged_in_both_places_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "mark"
    raised(path, MARKS)
    for content in (b"", bytes(1024), os.urandom(1024), path.read_bytes()[:40]):
        path.write_bytes(content)
        with pytest.raises(StoreDamagedError, match=r"mark .* is damaged.* Do this.") as caught:
            read(path)
        assert str(path) in str(caught.value)


class FullMachine(Machine):
    """Nothing more can be taken from its disk."""

    def write(self, descriptor: int, data: bytes | memoryview, offset: int) -> None:
        if offset + len(data) > os.fstat(descriptor).st_size:
            raise OSError(28, "No space left on device")
        super().write(descriptor, data, offset)


def test_a_full_disk_does_not_stop_it(tmp_path: Path) -> None:
    path = tmp_path / "mark"
    mark = raised(path, MARKS[:2])
    with mounted(tmp_path, FullMachine()):
        mark.raise_to(MARKS[2])
        assert read(path) == MARKS[2]
        with pytest.raises(StoreError, match="could not be written: No space left"):
            raised(tmp_path / "another", MARKS)
    shutil.rmtree(tmp_path)
    with pytest.raises(StoreError, match="could not be written"):
        mark.raise_to(MARKS[3])
