"""The oracles of `make kills` and `make damage`, and a short run of each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import damage
from support import seeds
from support.operations import Operations, Story, filed, ordered, sample

ROOT = Path(__file__).resolve().parent
KILLS, FLIPS = 10, 4


@pytest.mark.long
def test_everything_holds_whatever_is_killed() -> None:
    """A server, three clients and an operator, in processes of their own, over HTTPS."""
    command = [sys.executable, str(ROOT / "kills.py"), str(KILLS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{KILLS} kills: everything holds" in done.stdout
    assert "| broken | nothing |" in done.stdout


@pytest.mark.long
def test_no_flipped_bit_is_silently_wrong(tmp_path: Path) -> None:
    left = damage.Left(tmp_path)
    chance = seeds.chance("damage")
    flips = list(damage.tags(left))
    assert len(flips) >= 2 * len(damage.SUBJECTS) * 8 * damage.TAG_BYTES
    in_tables = [flip for flip in flips if flip[0].endswith(".db")]  # not in the log
    for flip in chance.sample(in_tables, FLIPS):
        assert left.try_order(flip) == "harmless"
    frames = list(damage.frames(left, chance))
    assert {name.rpartition("/")[2] for name, _ in frames} == {"client.db-wal", "server.db-wal"}
    for flip in (*chance.sample(frames, FLIPS), *damage.anywhere(left, chance, FLIPS)):
        assert left.try_out(flip) in ("told", "harmless")


def test_another_head_than_that_of_a_retrain_is_found(tmp_path: Path) -> None:
    """Played: the oracle knows of other samples than the stores."""
    left = damage.Left(tmp_path)
    left.held = {"north 1"}
    (name, bit), *_ = damage.tags(left)
    with pytest.raises(AssertionError, match="the stores hold"):
        left.try_out((name, bit))
    left.held = {"north 1", "south 1"}
    assert left.try_out((name, bit)) == "harmless"


def held_by(story: Story) -> dict[str, tuple[object, ...]]:
    return {id_: (*sample(id_, version), who) for id_, (version, who) in story.held.items()}


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """One sample that is corrected, one that is being forgotten when the party is killed."""
    path = tmp_path / "north.operations"
    told = Operations(path)
    told.note("add", ids=["a", "b"], subjects=["ann", "ben"])
    told.note("done", of="add")
    told.note("correct", id="a", version=7)
    told.note("done", of="correct")
    told.note("forget", ids=["b"])
    return path


def test_a_store_holds_what_was_done_or_also_what_was_attempted(notes: Path) -> None:
    story = Story.read(notes)
    assert story.held == {"a": (7, "ann"), "b": (0, "ben")}
    everything = held_by(story)
    assert story.explained(everything, set()) == story.held
    assert story.explained({"a": everything["a"]}, set()) == {"a": (7, "ann")}
    Operations(notes).note("done", of="forget")
    assert Story.read(notes).held == {"a": (7, "ann")}


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"b": (*sample("b", 0), "ben")},
        {"a": (*sample("a", 0), "ann"), "b": (*sample("b", 0), "ben")},
        {"a": (*sample("a", 7), "ann"), "c": (*sample("c", 0), "ann")},
    ],
    ids=["nothing", "one is lost", "before the correction", "another one"],
)
def test_whatever_else_a_store_holds_is_found(
    notes: Path, wrong: dict[str, tuple[object, ...]]
) -> None:
    with pytest.raises(AssertionError, match="a store lacks"):
        Story.read(notes).explained(wrong, set())


def test_only_those_are_missing_about_whom_there_is_an_order(notes: Path) -> None:
    story = Story.read(notes)
    assert story.explained({}, {"ann", "ben"}) == {}
    with pytest.raises(AssertionError):
        story.explained({}, {"ben"})


def test_an_order_counts_as_filed_when_it_was_answered(tmp_path: Path) -> None:
    path = tmp_path / "operator.operations"
    told = Operations(path)
    told.note("order", subject="ann")
    told.note("order", subject="ben")
    told.note("done", of="order")
    with path.open("ab") as file:
        file.write(b'{"what": "order", "subj')  # killed in the middle of a line
    assert set(ordered(path)) == {"ann", "ben"}
    assert set(filed(path)) == {"ben"}
