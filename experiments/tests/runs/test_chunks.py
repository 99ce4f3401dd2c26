from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from unlearning_cases import NAME, library, measured

from expunge.errors import InputError
from expunge_experiments.report.figures import house_style
from expunge_experiments.runs.base import Done, Results
from expunge_experiments.runs.catalogue import EXPERIMENTS
from expunge_experiments.runs.chunks import SYSTEMS, Chunks, ChunkSettings

DELETED = (0.4, 0.8, 1.0)


def settings(**changed: Any) -> ChunkSettings:
    return ChunkSettings(
        **{"dataset": NAME, "clients": 4, "seeds": (0,), "deleted": DELETED} | changed
    )


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    with pytest.MonkeyPatch.context() as patch:
        return measured(Chunks(), settings(), library(tmp_path_factory.mktemp("data"), patch))


def test_every_system_goes_through_all_steps_or_is_unsupported(results: Results) -> None:
    assert results.values("system") == list(SYSTEMS)
    for done in results:
        if done.key["system"] in ("afl", "acil"):
            assert done.result == {"unsupported": "delete"}
            continue
        assert [step["retained"] for step in done.result["steps"]] == [72, 24, 0]
        for step in done.result["steps"]:
            cost = step["cost"]
            parts = cost["client_seconds"] + cost["server_seconds"] + cost["orchestration_seconds"]
            assert parts == pytest.approx(cost["seconds"], abs=1e-9)
            assert 0 <= step["accuracy"] <= 1


def test_exact_variants_equal_retraining_at_every_step_and_end_at_zero(results: Results) -> None:
    for name in ("a_exact", "b_exact"):
        steps = results.where(system=name)[0].result["steps"]
        assert [step["retraining"]["equal"] for step in steps] == [True] * 3
        assert [step["cost"]["rounds"] for step in steps] == [1, 1, 1]
        assert steps[-1]["retraining"]["norm"] == 0
        assert steps[-1]["retraining"]["deviation"] is None
    for name in ("central", "a_float64", "b_float64", "acu"):
        found = [step["retraining"] for step in results.where(system=name)[0].result["steps"]]
        assert all(one["equal"] is None for one in found)
        assert max(one["deviation"] for one in found[:-1]) < 1e-9


def test_ridge_systems_agree_in_accuracy(results: Results) -> None:
    ridge = [
        results.where(system=name)[0].result
        for name in ("central", "a_exact", "b_exact", "a_float64", "b_float64", "acu")
    ]
    for step in range(2):
        assert len({result["steps"][step]["accuracy"] for result in ridge}) == 1


def test_tables_have_a_row_for_each_system_and_say_what_is_unsupported(results: Results) -> None:
    accuracy, times, deviations, counts = Chunks().tables(settings(), results)
    for table in (accuracy, times, counts):
        assert [row[0] for row in table.rows][:2] == ["Central ridge retrain", "Variant A, exact"]
        assert {row[0] for row in table.rows if row[1] == "unsupported"} == {"AFL", "ACIL"}
        assert all(len(row) == len(table.columns) for row in table.rows)
    exact = next(row for row in deviations.rows if row[0] == "Variant B, exact")
    assert exact[1:] == ["0 (same digest)"] * 3
    assert "FedAvg retrain" not in [row[0] for row in deviations.rows]


def test_cumulative_times_never_fall(results: Results) -> None:
    _, times, _, _ = Chunks().tables(settings(), results)
    for row in times.rows:
        if row[1] != "unsupported":
            steps = [float(text) for text in row[2:5]]
            assert steps == sorted(steps)


def changed(results: Results, system: str, change: Any) -> Results:
    made = Results(Done(one.key, copy.deepcopy(one.result)) for one in results)
    for one in made.where(system=system):
        for step in one.result["steps"]:
            change(step)
    return made


def claims(results: Results, words: str) -> list[bool | None]:
    return [one.holds for one in Chunks().findings(settings(), results) if words in one.text]


def test_findings_hold_of_what_was_measured(results: Results) -> None:
    assert claims(results, "has the digest of one solved afresh") == [True]
    assert claims(results, "head of the exact variants is zero") == [True]
    assert claims(results, "need one round for each step") == [True]
    assert "AFL, ACIL" in Chunks().findings(settings(), results)[-1].text


@pytest.mark.parametrize(
    ("words", "system", "change"),
    [
        (
            "has the digest of one solved afresh",
            "a_exact",
            lambda step: step["retraining"].update(equal=False),
        ),
        (
            "head of the exact variants is zero",
            "b_exact",
            lambda step: step["retraining"].update(norm=1e-300),
        ),
        ("need one round for each step", "b_exact", lambda step: step["cost"].update(rounds=2)),
        ("FATS skips", "fats", lambda step: step["cost"].update(skipped=1)),
        ("of central ridge's accuracy", "a_exact", lambda step: step.update(accuracy=0.0)),
    ],
)
def test_claims_fail_when_results_contradict_them(
    results: Results, words: str, system: str, change: Any
) -> None:
    assert False in claims(changed(results, system, change), words)


def test_a_faster_central_ridge_is_named(results: Results) -> None:
    slow = changed(results, "a_exact", lambda step: step["cost"].update(seconds=100.0))
    text = next(
        one.text
        for one in Chunks().findings(settings(), slow)
        if one.text.startswith("Variant A, exact, takes")
    )
    assert "Less: Central ridge retrain" in text


def test_it_is_said_from_which_latency_on_one_round_is_faster_than_many(results: Results) -> None:
    def texts(seconds: float) -> list[str]:
        ours = changed(results, "b_exact", lambda step: step["cost"].update(seconds=seconds))
        both = changed(ours, "fedavg", lambda step: step["cost"].update(seconds=1.0, rounds=5))
        return [
            one.text
            for one in Chunks().findings(settings(), both)
            if "a step of Variant B, exact, is faster" in one.text
        ]

    assert any(
        text.startswith("Where a round takes 250 ms longer") and "FedAvg" in text
        for text in texts(2.0)
    )
    assert not any("FedAvg" in text for text in texts(0.5))


def test_tables_and_findings_are_made_of_any_part_of_the_results(results: Results) -> None:
    experiment = Chunks()
    for count in range(len(results)):
        part = Results(results[:count])
        assert len(experiment.tables(settings(), part)) == 4
        assert all(one.text for one in experiment.findings(settings(), part))
        assert len(experiment.drawings(settings(), part)) == min(count, 1)


def test_the_figure_shows_every_system_that_deletes(results: Results) -> None:
    (drawing,) = Chunks().drawings(settings(), results)
    with house_style():
        figure = drawing.draw()
    left, right = figure.axes
    assert len(left.containers) == len(right.containers) == len(SYSTEMS) - 2
    drawn = {str(one.get_label()): list(one.lines[0].get_ydata()) for one in right.containers}
    seconds = [
        step["cost"]["seconds"] for step in results.where(system="fedavg")[0].result["steps"]
    ]
    assert drawn["FedAvg retrain"] == pytest.approx(np.cumsum(seconds))
    shown = {str(one.get_label()): list(one.lines[0].get_xdata()) for one in left.containers}
    assert shown["FATS"] == pytest.approx(
        [0, 40, 80]
    )  # the empty federation's accuracy says nothing


def test_the_stream_is_the_same_for_every_system_and_differs_between_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = library(tmp_path, monkeypatch)
    chosen = settings(systems=("a_float64", "b_float64"), seeds=(0, 1), deleted=(0.5,))
    found = measured(Chunks(), chosen, data)
    accuracies = {
        (one.key["system"], one.key["seed"]): one.result["steps"][0]["retraining"]["norm"]
        for one in found
    }
    for seed in (0, 1):
        assert np.isclose(accuracies["a_float64", seed], accuracies["b_float64", seed], rtol=1e-9)
    assert not np.isclose(accuracies["a_float64", 0], accuracies["a_float64", 1], rtol=1e-6)


def test_quick_has_the_same_clients_and_systems(tmp_path: Path) -> None:
    experiment = EXPERIMENTS["chunks"]
    assert isinstance(experiment, Chunks)
    assert experiment.quick.clients == experiment.full.clients == 100
    assert experiment.quick.systems == experiment.full.systems
    assert experiment.quick.deleted[-1] == experiment.full.deleted[-1] == 1.0


@pytest.mark.parametrize("deleted", [(), (0.5, 0.5), (0.5, 0.4), (0.0, 1.0), (0.5, 1.5)])
def test_shares_that_do_not_ascend_are_refused(deleted: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match="deleted"):
        settings(deleted=deleted)
