"""What is written of outcomes: the same bytes from the same results, and nothing missing in
silence.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiment_cases import Toy, tiny_library
from expunge_experiments import config, machine
from expunge_experiments.report import paper, tables
from expunge_experiments.report.page import command, page, write_outcome, write_page
from expunge_experiments.runner import ExperimentOutcome, Runner
from expunge_experiments.runs.base import Results, Summary, Table, over_seeds
from expunge_experiments.systems.catalogue import NAMES

FILES = ["results.json", "config.toml", "table.md", "toy.png", "toy.svg"]


@pytest.fixture
def outcome(tmp_path: Path) -> ExperimentOutcome:
    toy = Toy()
    toy.broken = {2}
    return Runner(tmp_path / "out", tiny_library(tmp_path)).run(
        toy, replace(toy.full, flower=True), engines=("process",)
    )


def test_everything_is_written_and_is_the_same_bytes_again(
    outcome: ExperimentOutcome, tmp_path: Path
) -> None:
    folders = [tmp_path / "one", tmp_path / "other"]
    for folder in folders:
        write_outcome(outcome, folder)
    for name in FILES:
        first, second = ((folder / name).read_bytes() for folder in folders)
        assert first == second, name
    assert b"date" not in (folders[0] / "toy.svg").read_bytes().lower()


def test_results_say_everything(outcome: ExperimentOutcome, tmp_path: Path) -> None:
    write_outcome(outcome, tmp_path / "toy")
    found = json.loads((tmp_path / "toy" / "results.json").read_text())
    assert found["config"]["seeds"] == [0, 1, 2]
    assert found["data"]["tiny"]["digest"]
    assert found["environments"][0]["machine"]["cores"] >= 1
    assert [one["key"]["seed"] for one in found["results"]] == [0, 1]
    assert found["findings"][0] == {"text": "Totals are positive.", "holds": True}
    assert found["failed"][0]["error"].startswith("ZeroDivisionError")
    assert "Flower" in found["not_run"][0]["reason"]
    assert str(tmp_path) not in json.dumps(found)


def test_the_page_has_claims_tables_figures_and_what_is_missing(
    outcome: ExperimentOutcome, tmp_path: Path
) -> None:
    write_outcome(outcome, tmp_path / "toy")
    text = write_page([outcome], tmp_path).read_text()
    for part in (
        "| holds | Totals are positive. | [toy](#a-toy-sums-of-features) |",
        "## A toy: sums of features",
        "What do the features add up to?",
        "*In the paper:* nothing about it.",
        "| seed | total |\n| --- | ---: |",
        "\\| x |",
        "[![A toy: sums of features](toy/toy.png)](toy/toy.svg)\n\n*Totals by seed.*",
        "- There are 2.",
        "failed: ZeroDivisionError",
        "not run: needs Flower",
        (
            "`expunge experiment toy --config config.toml`, with the settings in "
            "[config.toml](toy/config.toml)"
        ),
        "[results.json](toy/results.json)",
        "not in the paper",
    ):
        assert part in text, part
    assert "Of 1 claims that these results could refute, 1 holds." in text
    assert "to measure: toy " in text
    assert "quick run" not in text
    assert "**A quick run:**" in page([replace(outcome, quick=True)], tmp_path)


def test_the_command_gives_these_very_settings(outcome: ExperimentOutcome, tmp_path: Path) -> None:
    write_outcome(outcome, tmp_path / "toy")
    assert command(outcome) == "expunge experiment toy --config config.toml"
    assert f"`{command(outcome)}`" in (tmp_path / "toy" / "table.md").read_text()
    table = config.read(tmp_path / "toy" / "config.toml")["toy"]
    assert config.settings_of(outcome.experiment, table, quick=False) == outcome.settings
    assert command(replace(outcome, settings=outcome.experiment.full)) == "expunge experiment toy"
    assert (
        command(replace(outcome, settings=outcome.experiment.quick, quick=True))
        == "expunge experiment toy --quick"
    )


def test_a_coarser_grid_is_stated(outcome: ExperimentOutcome, tmp_path: Path) -> None:
    assert "fraction bits" not in page([outcome], tmp_path)
    large = {"tiny": {**outcome.data["tiny"], "largest": 1526.2, "fraction_bits": 30}}
    assert "reach 1526 in magnitude" in page([replace(outcome, data=large)], tmp_path)


def test_a_claim_that_fails_is_said_to(outcome: ExperimentOutcome, tmp_path: Path) -> None:
    results = Results(replace(one, result={"total": -1.0}) for one in outcome.results)
    text = page([replace(outcome, results=results)], tmp_path)
    assert "| **does not hold** | Totals are positive." in text
    assert "**Does not hold:** Totals are positive." in text
    both = page([outcome, replace(outcome, results=results)], tmp_path)
    assert both.index("| **does not hold** |") < both.index("| holds |")
    assert "Sections: [toy](#a-toy-sums-of-features) · [toy](#a-toy-sums-of-features).\n" in both


def test_nothing_measured_is_still_a_page(outcome: ExperimentOutcome, tmp_path: Path) -> None:
    empty = replace(outcome, results=Results(), data={}, environments=[])
    write_outcome(empty, tmp_path / "toy")
    assert "not run" in write_page([empty], tmp_path).read_text()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),  # noqa: RUF001 - what stands for nothing
        (0.0, "0 s"),
        (3.21e-9, "3.21 ns"),
        (4.5e-5, "45 µs"),
        (0.0321, "32.1 ms"),
        (1.0, "1 s"),
        (41.26, "41.3 s"),
        (99.4, "99.4 s"),
        (125.2, "2 min 5 s"),
        (7261.0, "2 h 1 min"),
    ],
)
def test_times_in_words(value: float | None, text: str) -> None:
    assert tables.seconds_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (512, "512 B"), (1000, "1 kB"), (13_100_000, "13.1 MB"), (5e12, "5 TB")],
)
def test_sizes_in_words(value: float, text: str) -> None:
    assert tables.bytes_text(value) == text


def test_numbers_in_words() -> None:
    assert tables.with_deviation(Summary(0.88312, 0.0012, 5)) == "0.8831 ± 0.0012"
    assert tables.with_deviation(Summary(0.88312, 0.0, 1)) == "0.8831"
    assert tables.scientific(1.42e-9) == "1.42e-09"
    assert tables.scientific(0.0) == "0"
    assert tables.fixed(None) == "–"  # noqa: RUF001 - what stands for nothing
    assert [tables.counted(number, "seed") for number in (1, 1200)] == ["1 seed", "1,200 seeds"]


def test_over_seeds() -> None:
    assert over_seeds([]) is None
    assert over_seeds([2.0]) == Summary(2.0, 0.0, 1)
    assert over_seeds([1.0, 3.0]) == Summary(2.0, 2.0**0.5, 2)


def test_tables_escape_what_would_break_them() -> None:
    text = tables.table_text(Table("T", ("a",), [["x|y\nz"]]))
    assert text.endswith("| x\\|y z |\n")


def test_the_machine_in_words_names_no_path() -> None:
    text = machine.in_words(machine.environment())
    assert "numpy" in text
    assert "/" not in text.replace("(tm)", "")


def test_the_papers_numbers_by_our_names() -> None:
    assert paper.accuracy("cifar10", "central") == 0.9802
    assert (
        paper.accuracy("digits_by_writer", "b_exact")
        == paper.accuracy("femnist", "b_float64")
        == 0.8080
    )
    assert paper.accuracy("cifar10", "sisa") is None
    assert paper.accuracy("mine.npz", "central") is None
    assert paper.invariance("float64", "b", 10) == 6.18e-10
    assert paper.invariance("exact", "a", 10) is None
    known: set[Any] = {"a", "b", *NAMES}
    assert all(set(row) <= known for row in paper.ACCURACY.values())
