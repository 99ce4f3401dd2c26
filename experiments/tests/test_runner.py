"""The runner: nothing is measured twice, an interrupted run goes on, a failing cell stops no
other.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiment_cases import Toy, ToySettings, tiny_library
from expunge.errors import InputError, StoreBusyError
from expunge.storage.files import FolderLock
from expunge_experiments.runner import Runner, available_engines, cell_name
from expunge_experiments.runs.base import Cell

PROCESS = ("process",)


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(tmp_path / "out", tiny_library(tmp_path))


def run(runner: Runner, toy: Toy, settings: ToySettings | None = None, **options: Any) -> Any:
    return runner.run(toy, settings or toy.full, **({"engines": PROCESS} | options))


def test_cells_are_measured_once(runner: Runner) -> None:
    toy = Toy()
    first = run(runner, toy)
    assert (toy.measured, first.measured) == ([0, 1, 2], 3)
    again = run(runner, toy)
    assert (toy.measured, again.measured) == ([0, 1, 2], 0)
    assert list(again.results) == list(first.results)
    assert again.seconds == first.seconds > 0
    assert again.data["tiny"]["dim"] == 5
    assert again.environments[0]["versions"]["numpy"]


def test_what_depends_on_other_settings_is_left_out(runner: Runner) -> None:
    toy = Toy()
    run(runner, toy)
    other = run(runner, toy, replace(toy.full, factor=5.0, seeds=(1,)))
    assert [one.key["factor"] for one in other.results] == [5.0]
    more = run(runner, toy, replace(toy.full, seeds=(2, 0, 7)))
    assert [one.key["seed"] for one in more.results] == [2, 0, 7]
    assert toy.measured == [0, 1, 2, 1, 7]


def test_changed_data_are_measured_anew_and_missing_data_change_nothing(tmp_path: Path) -> None:
    toy = Toy()
    before = run(Runner(tmp_path / "out", tiny_library(tmp_path)), toy)
    changed = run(Runner(tmp_path / "out", tiny_library(tmp_path, seed=1)), toy)
    assert toy.measured == [0, 1, 2] * 2
    assert changed.results[0].result != before.results[0].result
    (tmp_path / "tiny.npz").unlink()
    library = tiny_library(tmp_path)
    (tmp_path / "tiny.npz").unlink()
    gone = run(Runner(tmp_path / "out", library), toy, replace(toy.full, seeds=(0, 5)))
    assert [one.key["seed"] for one in gone.results] == [0]
    assert "tiny.npz" in gone.failures[0].error


def test_a_failing_cell_is_told_of_and_tried_again(runner: Runner) -> None:
    toy = Toy()
    toy.broken = {1}
    outcome = run(runner, toy)
    assert [one.key["seed"] for one in outcome.results] == [0, 2]
    (failed,) = outcome.failures
    assert "seed=1" in failed.cell
    assert failed.error.startswith(
        "ZeroDivisionError: this seed is broken (experiment_cases.py, line "
    )
    toy.broken = set()
    assert not run(runner, toy).failures
    assert toy.measured == [0, 2, 1]


def test_a_result_that_json_does_not_have_is_a_failure(runner: Runner) -> None:
    toy = Toy()
    toy.result = {"total": float("nan")}
    outcome = run(runner, toy)
    assert len(outcome.failures) == 3
    assert "which JSON does not have" in outcome.failures[0].error


def test_an_interrupted_run_goes_on(runner: Runner) -> None:
    class Interrupted(Toy):
        def _measure(self, key: Any, library: Any, report: Any) -> Any:
            if key["seed"] == 1:
                raise KeyboardInterrupt
            return super()._measure(key, library, report)

    with pytest.raises(KeyboardInterrupt):
        run(runner, Interrupted())
    toy = Toy()
    assert run(runner, toy).measured == 2
    assert toy.measured == [1, 2]


KILLED = """
import sys
from pathlib import Path
from experiment_cases import Toy, tiny_library
from expunge_experiments.runner import Runner
folder = Path(sys.argv[1])
toy = Toy()
toy.fatal = folder / "killed"
outcome = Runner(folder / "out", tiny_library(folder)).run(toy, toy.full, engines=("process",))
print(toy.measured, len(outcome.results))
"""


def test_a_killed_run_goes_on(tmp_path: Path) -> None:
    def start() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", KILLED, str(tmp_path)]
        where = str(Path(__file__).parent)
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=where)  # noqa: S603 - ours

    assert start().returncode == -9
    after = start()
    assert after.stdout.strip() == "[1, 2] 3", after.stderr


def test_fresh_and_only(runner: Runner) -> None:
    toy = Toy()
    run(runner, toy)
    run(runner, toy, fresh=True, only="seed=1")
    assert toy.measured == [0, 1, 2, 1]
    run(runner, toy, fresh=True)
    assert toy.measured == [0, 1, 2, 1, 0, 1, 2]
    part = run(runner, toy, replace(toy.full, factor=7.0), only="seed=?")
    assert not part.not_run
    part = run(runner, toy, replace(toy.full, factor=8.0), only="seed=2")
    assert [one.key["seed"] for one in part.results] == [2]
    assert "without --only" in part.not_run[0].error
    with pytest.raises(InputError, match=r"no cell of toy has 'sead'.*seed=0"):
        run(runner, toy, only="sead")


def test_cells_of_an_engine_that_is_not_there_are_listed(runner: Runner) -> None:
    toy = Toy()
    with_flower = replace(toy.full, flower=True)
    outcome = run(runner, toy, with_flower)
    (missing,) = outcome.not_run
    assert "--flower-python" in missing.error
    assert outcome.wanted == 4
    there = run(runner, toy, with_flower, engines=("process", "flower"))
    assert not there.not_run
    assert toy.measured == [0, 1, 2, 9]
    assert "process" in available_engines()


def test_two_processes_do_not_measure_at_the_same_time(runner: Runner) -> None:
    toy = Toy()
    run(runner, toy)
    lock = FolderLock(runner.folder(toy))
    with pytest.raises(StoreBusyError):
        run(runner, toy)
    lock.release()
    run(runner, toy)
    assert (runner.out / ".gitignore").read_text() == "lock\n"


def test_cells_must_differ_and_name_an_engine(runner: Runner) -> None:
    with pytest.raises(InputError, match="the same key"):
        run(runner, Toy(), replace(Toy.full, seeds=(1, 1)))

    class Elsewhere(Toy):
        def cells(self, settings: ToySettings) -> list[Cell]:
            return [replace(one, engine="cloud") for one in super().cells(settings)]

    with pytest.raises(InputError, match="engine 'cloud'"):
        run(runner, Elsewhere())


def test_progress_is_reported(tmp_path: Path) -> None:
    told: list[tuple[str, int, int | None]] = []
    Runner(tmp_path / "out", tiny_library(tmp_path), lambda *what: told.append(what)).run(
        Toy(), Toy.quick
    )
    name = "dataset=tiny factor=2.0 mode=sum seed=0"
    assert told == [
        ("toy: cells", 0, 1),
        (f"now: toy, {name}", 0, None),
        (f"now: {name}: adding up", 1, 2),
        ("toy: cells", 1, 1),
    ]


def test_names_of_cells() -> None:
    assert cell_name({"system": "fats", "settings": {"rate": 1}, "seed": 0}) == "system=fats seed=0"
    assert cell_name({}) == "everything"
