"""One seed rules whatever tests draw, and a run that failed can be replayed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from support import seeds

ROOT = Path(__file__).parent.parent
DRAWING = """
import random, secrets
import pytest
from support import seeds
from hypothesis import given, strategies

MODULE = secrets.token_hex(4)

@given(strategies.integers())
def test_examples(number):
    print("drawn", number)

@pytest.mark.parametrize("name", range(5))
def test_by_hand(name, surroundings):
    print("drawn", MODULE, random.random(), secrets.token_hex(4), secrets.randbelow(10**9))
    print("drawn", seeds.chance(name).random(), surroundings.columns)

@pytest.mark.long
def test_that_takes_long():
    print("drawn early")
"""
FAILING = """
import pytest
from support import seeds

@pytest.mark.parametrize("name", ["it's one"])
def test_it(name):
    assert seeds.given() is None
"""


@pytest.fixture(scope="module")
def drawing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drawing")
    (folder / "test_drawing.py").write_text(DRAWING)
    return folder


def run(folder: Path, seed: str | None, *command: str) -> subprocess.CompletedProcess[str]:
    """A program of ours on a folder of tests, under our conftest."""
    paths = (ROOT, ROOT / "tests", *sys.path)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    environment.pop(seeds.VARIABLE, None)
    environment.pop("PYTEST_ADDOPTS", None)
    if seed is not None:
        environment[seeds.VARIABLE] = seed
    given = ["-p", "conftest", "-p", "no:cacheprovider", "--rootdir", str(folder)]
    return subprocess.run(  # noqa: S603 - our own program
        [sys.executable, *command, *given, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=folder,
    )


@cache
def drawn(folder: Path, seed: str | None, *arguments: str) -> tuple[list[str], str]:
    """What the tests in a folder draw, as they run; and what the run says of its seed."""
    done = run(folder, seed, "-m", "pytest", "-s", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    (told,) = re.findall(rf"^{seeds.VARIABLE}: (.*)$", done.stdout, re.MULTILINE)
    return re.findall(r"drawn (.*)", done.stdout), told


def drawn_again(folder: Path, seed: str | None) -> tuple[list[str], str]:
    """The same of another run, in continuous integration.

    Hypothesis has settings of its own where the variable CI is set.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CI", "true")
        return drawn.__wrapped__(folder, seed)


@pytest.fixture(autouse=True)
def _outside_of_continuous_integration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)


def test_runs_draw_the_same_unless_told_otherwise(drawing: Path) -> None:
    usual = drawn(drawing, None)
    assert "same for every run" in usual[1]
    assert drawn_again(drawing, "") == usual


def test_a_number_draws_the_same_again(drawing: Path) -> None:
    assert drawn_again(drawing, "1") == drawn(drawing, "1")


def test_a_fresh_seed_is_told_and_replays_the_run(drawing: Path) -> None:
    fresh, told = drawn(drawing, "random")
    assert told.isdigit()
    assert drawn(drawing, told) == (fresh, told)


def test_each_seed_draws_other_things(drawing: Path) -> None:
    usual, number, fresh = (set(drawn(drawing, seed)[0]) for seed in (None, "1", "random"))
    for one, another in ((usual, number), (usual, fresh), (number, fresh)):
        by_hand = {line for line in one & another if " " in line}
        assert by_hand == set()
        assert one - another > by_hand  # examples may have some numbers in common, such as 0


def test_what_takes_long_begins_first_whatever_the_seed(drawing: Path) -> None:
    assert {drawn(drawing, seed)[0][0] for seed in (None, "1", "random")} == {"early"}


def test_a_test_draws_the_same_by_itself(drawing: Path) -> None:
    everything, _ = drawn(drawing, "1")
    alone, _ = drawn(drawing, "1", "-k", "by_hand and 3")
    assert len(alone) == 2
    assert set(alone) < set(everything)


def test_a_fresh_seed_is_another_one_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    settled = set()
    for _ in range(3):
        monkeypatch.setenv(seeds.VARIABLE, "random")
        seeds.settle()
        settled.add(seeds.given())
    assert len(settled) == 3


@pytest.mark.parametrize("seed", ["yes", "-1", "1.5", str(2**32), "²"])
def test_other_seeds_are_refused(monkeypatch: pytest.MonkeyPatch, seed: str) -> None:
    monkeypatch.setenv(seeds.VARIABLE, seed)
    with pytest.raises(ValueError, match=r"EXPUNGE_SEED must be a number below 2\^32, or 'random'"):
        seeds.settle()


def test_a_run_with_a_refused_seed_does_not_begin(tmp_path: Path) -> None:
    done = run(tmp_path, "yes", "-m", "pytest")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "EXPUNGE_SEED must be a number below 2^32, or 'random', got 'yes'" in done.stderr


# -- runs with fresh seeds -------------------------------------------------------------------------


def test_random_runs_end_when_time_is_up(drawing: Path) -> None:
    done = run(drawing, None, str(ROOT / "tests" / "random_runs.py"), "0.04")
    assert done.returncode == 0, done.stdout + done.stderr
    numbers = re.findall(r"^Run \d+: EXPUNGE_SEED=(\d+)$", done.stdout, re.MULTILINE)
    assert len(set(numbers)) == len(numbers) > 0
    assert re.search(r"^Time is up: \d+ runs have passed", done.stdout, re.MULTILINE)


def test_random_runs_stop_at_a_failure_that_can_be_replayed(tmp_path: Path) -> None:
    (tmp_path / "test_failing.py").write_text(FAILING)
    done = run(tmp_path, None, str(ROOT / "tests" / "random_runs.py"), "5")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    (number,) = re.findall(r"^Run 1: EXPUNGE_SEED=(\d+)$", done.stdout, re.MULTILINE)
    (told,) = re.findall(rf"^Replay: EXPUNGE_SEED={number} pytest (.*)$", done.stdout, re.MULTILINE)
    assert shlex.split(told) == ["test_failing.py::test_it[it's one]"]
    (replay,) = re.findall(r"^Run 1 has failed\. Replay it: (.*)$", done.stdout, re.MULTILINE)
    assert replay.startswith(f"EXPUNGE_SEED={number} ")
    assert str(tmp_path) in replay
