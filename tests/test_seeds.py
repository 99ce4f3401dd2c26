"""One seed rules whatever tests draw, and a run that failed can be replayed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
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
"""
FAILING = """
import pytest
from support import seeds

@pytest.mark.parametrize("name", ["it's one"])
def test_it(name):
    assert seeds.given() is None
"""


@pytest.fixture
def drawing(tmp_path: Path) -> Path:
    (tmp_path / "test_drawing.py").write_text(DRAWING)
    return tmp_path


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


def drawn(folder: Path, seed: str | None, *arguments: str) -> tuple[list[str], str]:
    """What the tests in a folder draw, as they run; and what the run says of its seed."""
    done = run(folder, seed, "-m", "pytest", "-s", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    (told,) = re.findall(rf"^{seeds.VARIABLE}: (.*)$", done.stdout, re.MULTILINE)
    return re.findall(r"drawn (.*)", done.stdout), told


def test_runs_draw_the_same_unless_told_otherwise(drawing: Path) -> None:
    assert drawn(drawing, None) == drawn(drawing, "") == drawn(drawing, None)
    assert "same for every run" in drawn(drawing, None)[1]


def test_a_number_draws_other_things_and_the_same_ones_again(drawing: Path) -> None:
    usual, first, second = (set(drawn(drawing, seed)[0]) for seed in (None, "1", "2"))
    assert first == set(drawn(drawing, "1")[0])
    for one, another in ((usual, first), (usual, second), (first, second)):
        by_hand = {line for line in one & another if " " in line}
        assert by_hand == set()
        assert one - another > by_hand  # examples may have some numbers in common, such as 0


def test_a_fresh_seed_is_told_and_replays_the_run(drawing: Path) -> None:
    fresh, told = drawn(drawing, "random")
    assert told.isdigit()
    assert drawn(drawing, told) == (fresh, told)
    assert drawn(drawing, "random")[1] != told


def test_a_test_draws_the_same_by_itself(drawing: Path) -> None:
    everything, _ = drawn(drawing, "7")
    alone, _ = drawn(drawing, "7", "-k", "by_hand and 3")
    assert len(alone) == 2
    assert set(alone) < set(everything)


def test_continuous_integration_by_itself_changes_nothing(
    drawing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hypothesis has settings of its own where the variable CI is set."""
    for seed in (None, "7"):
        monkeypatch.setenv("CI", "true")
        there = drawn(drawing, seed)
        monkeypatch.delenv("CI")
        assert drawn(drawing, seed) == there


@pytest.mark.parametrize("seed", ["yes", "-1", "1.5", str(2**32), "²"])
def test_other_seeds_are_refused(tmp_path: Path, seed: str) -> None:
    done = run(tmp_path, seed, "-m", "pytest")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "EXPUNGE_SEED must be a number below 2^32, or 'random'" in done.stderr


# -- runs with fresh seeds -------------------------------------------------------------------------


def test_random_runs_end_when_time_is_up(drawing: Path) -> None:
    done = run(drawing, None, str(ROOT / "tests" / "random_runs.py"), "0.1")
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
