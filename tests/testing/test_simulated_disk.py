"""The simulated disk: what was made durable is there after the power was cut, everything else may
or may not be; and nothing is where nobody put it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge.storage.files import rename, sync_folder, write_whole
from expunge.storage.machine import THIS, Machine, mounted
from expunge.storage.sqlite import Database
from expunge.testing.simulation.disk import SECTOR, CrashedError, Disk
from expunge.testing.simulation.machine import TROUBLES, SimulatedMachine, Trouble, TroubleKind

LOSSES = st.sampled_from((0.0, 0.5, 1.0))


class Place:
    """A simulated disk, and the machine that it is in now."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.disk = Disk(path)
        self.machine = SimulatedMachine("machine", self.disk, b"seed")

    @contextmanager
    def running(self) -> Iterator[SimulatedMachine]:
        with mounted(self.path, self.machine):
            yield self.machine

    def cut_power(self, seed: int, loss: float) -> None:
        self.machine.crash()
        self.disk.cut_power(Random(seed), loss)  # noqa: S311 - it is to be repeated
        self.machine = SimulatedMachine("machine", self.disk, b"again")


@contextmanager
def fresh() -> Iterator[Place]:
    with TemporaryDirectory() as folder:
        yield Place(Path(folder) / "disk")


@given(
    parts=st.lists(
        st.tuples(st.integers(0, 3000), st.binary(min_size=1, max_size=1500)), max_size=6
    ),
    synced=st.integers(0, 6),
    seed=st.integers(0, 2**32),
    loss=LOSSES,
)
def test_what_was_synced_is_there_and_of_the_rest_whole_sectors(
    parts: list[tuple[int, bytes]], synced: int, seed: int, loss: float
) -> None:
    with fresh() as place:
        path, durable, all_of_it = place.path / "file", bytearray(), bytearray()
        with place.running() as machine:
            descriptor = machine.open(path, os.O_RDWR | os.O_CREAT)
            machine.sync_folder(place.path)
            for number, (offset, data) in enumerate(parts):
                machine.write(descriptor, data, offset)
                for content in (durable, all_of_it) if number < synced else (all_of_it,):
                    content.extend(bytes(max(0, offset + len(data) - len(content))))
                    content[offset : offset + len(data)] = data
                if number < synced:
                    machine.sync(descriptor)
            assert path.read_bytes() == all_of_it
        place.cut_power(seed, loss)
        left = path.read_bytes()
        if loss == 0.0 or synced >= len(parts):
            assert left == all_of_it
        if loss == 1.0:  # a lost write may be torn, and is in whole sectors then
            assert len(durable) <= len(left) <= len(all_of_it)
        untouched = set(range(0, len(durable), SECTOR))
        for offset, data in parts[synced:]:
            untouched -= set(range(offset // SECTOR * SECTOR, offset + len(data), SECTOR))
        for start in untouched:
            end = min(start + SECTOR, len(durable))
            assert left[start:end] == durable[start:end]


@given(
    seed=st.integers(0, 2**32), loss=LOSSES, kind=st.sampled_from(TROUBLES), after=st.integers(0, 9)
)
def test_a_file_that_is_replaced_is_the_old_one_or_the_new_one(
    seed: int, loss: float, kind: TroubleKind, after: int
) -> None:
    with fresh() as place:
        path = place.path / "file"
        with place.running() as machine:
            write_whole(path, b"old" * 300)
            machine.trouble = Trouble(kind, after)
            with suppress(CrashedError, OSError):
                write_whole(path, b"new" * 900)
        place.cut_power(seed, loss)
        assert path.read_bytes() in (b"old" * 300, b"new" * 900)


def test_a_name_that_was_not_synced_is_lost() -> None:
    """Or not: both are seen."""
    seen = set()
    for seed in range(20):
        with fresh() as place:
            with place.running():
                write_whole(place.path / "first", b"data")
                rename(place.path / "first", place.path / "second")
            place.cut_power(seed, 0.5)
            seen.add(tuple(sorted(file.name for file in place.path.iterdir())))
    assert seen == {("first",), ("second",)}


@given(
    seed=st.integers(0, 2**32),
    loss=LOSSES,
    kind=st.sampled_from(TROUBLES),
    after=st.integers(0, 60),
)
def test_a_database_has_every_transaction_that_was_committed(
    seed: int, loss: float, kind: TroubleKind, after: int
) -> None:
    with fresh() as place:
        committed, attempted = 0, 0
        with place.running() as machine:
            database = Database(place.path / "a.db", ["CREATE TABLE numbers (n INTEGER)"])
            sync_folder(place.path)
            machine.trouble = Trouble(kind, after)
            with suppress(CrashedError, Exception):
                for number in range(8):
                    attempted = number + 1
                    with database.transaction() as changes:
                        changes.run("INSERT INTO numbers (n) VALUES (?)", (number,))
                    committed = number + 1
        place.cut_power(seed, loss)
        with place.running():
            database = Database(place.path / "a.db", ["CREATE TABLE numbers (n INTEGER)"])
            found = [n for (n,) in database.rows("SELECT n FROM numbers ORDER BY n")]
            database.close()
        assert found == list(range(len(found)))
        assert committed <= len(found) <= attempted


def test_a_machine_that_has_stopped_changes_nothing(tmp_path: Path) -> None:
    place = Place(tmp_path / "disk")
    with place.running() as machine:
        write_whole(place.path / "file", b"data")
        machine.trouble = Trouble("crash-before", 0)
        for _ in range(2):
            with pytest.raises(CrashedError):
                write_whole(place.path / "file", b"other")
            with pytest.raises(CrashedError):
                machine.remove(place.path / "file")
    assert (place.path / "file").read_bytes() == b"data"


def test_a_full_disk_takes_nothing_more_and_what_can_be_overwritten(tmp_path: Path) -> None:
    place = Place(tmp_path / "disk")
    with place.running() as machine:
        descriptor = machine.open(place.path / "file", os.O_RDWR | os.O_CREAT)
        machine.write(descriptor, bytes(100), 0)
        machine.trouble = Trouble("full", 0)
        with pytest.raises(OSError, match="No space left"):
            machine.write(descriptor, bytes(100), 100)
        machine.write(descriptor, b"x" * 100, 0)
        with pytest.raises(OSError, match="No space left"):
            write_whole(place.path / "other", b"data")
        machine.mend()
        machine.write(descriptor, bytes(100), 100)
        machine.close(descriptor)


def test_bytes_are_found_also_where_a_file_was_removed(tmp_path: Path) -> None:
    place = Place(tmp_path / "disk")
    with place.running() as machine:
        write_whole(place.path / "file", b"a secret key")
        machine.remove(place.path / "file")
    assert place.disk.finds([b"secret", b"others"]) == {0}


def test_a_machine_does_all_that_this_computer_does() -> None:
    """Whatever is asked of one can be asked of the other."""
    asked = {name for name in vars(Machine) if not name.startswith("_")}
    assert asked <= {name for name in dir(SimulatedMachine) if not name.startswith("_")}
    assert isinstance(THIS, Machine)
