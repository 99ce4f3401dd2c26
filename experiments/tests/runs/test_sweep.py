"""The sweep: equal effort for all, the cheapest of the good points, and nothing of the test
samples.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge.errors import InputError
from expunge_experiments import tuned
from expunge_experiments.datasets.catalogue import Library
from expunge_experiments.report.page import write_outcome
from expunge_experiments.runner import Runner
from expunge_experiments.runs.alpha import Alpha, AlphaSettings
from expunge_experiments.runs.base import Done, Results
from expunge_experiments.runs.sweep import SYSTEMS, Sweep, SweepSettings, best, grid, mean_square


def library(folder: Path, test_label: int | None = None) -> Library:
    """Two classes that can be told apart."""
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 2, 160)
    features = (np.outer(2.0 * labels - 1.0, np.ones(3)) + draw.standard_normal((160, 3))).astype(
        np.float32
    )
    test = labels[120:] if test_label is None else np.full(40, test_label)
    path = folder / "mine.npz"
    arrays = {
        "train_features": features[:120],
        "train_labels": labels[:120],
        "test_features": features[120:],
        "test_labels": test,
    }
    np.savez(path, allow_pickle=False, **arrays)
    return Library(folder, own={"mine": path})


SMALL = SweepSettings(datasets=("mine",), clients=3, every=8)


@pytest.mark.parametrize("scale", [1.0, 600.0])
def test_every_system_has_sixteen_different_points(scale: float) -> None:
    for system in SYSTEMS:
        points = [tuple(point.items()) for point in grid(system, scale)]
        assert len(set(points)) == len(points) == 16


def test_rates_follow_the_scale_of_the_features() -> None:
    for system in SYSTEMS[1:]:
        near, far = ([point["rate"] for point in grid(system, scale)] for scale in (1.0, 100.0))
        np.testing.assert_allclose(np.array(far) * 100.0, near, rtol=0.05)


@given(
    st.sampled_from(SYSTEMS[1:]),
    st.lists(
        st.tuples(
            st.floats(0.8, 0.85),
            st.sampled_from([1, 3]),
            st.sampled_from([16, 64]),
            st.sampled_from([0.1, 1.0]),
        ),
        min_size=1,
        max_size=16,
    ),
)
def test_the_choice_is_good_and_no_good_point_is_cheaper(
    system: str, found: list[tuple[float, int, int, float]]
) -> None:
    points = [
        {"accuracy": accuracy, "settings": {"epochs": epochs, "batch": batch, "rate": rate}}
        for accuracy, epochs, batch, rate in found
    ]
    one = best(system, points)
    good = [
        point
        for point in points
        if point["accuracy"] >= max(accuracy for accuracy, *_ in found) - 0.01
    ]
    assert one in good
    for point in good:
        mine, other = one["settings"], point["settings"]
        assert (mine["epochs"], -mine["batch"]) <= (other["epochs"], -other["batch"])
        if (mine["epochs"], mine["batch"]) == (other["epochs"], other["batch"]):
            assert (
                mine["rate"] <= other["rate"]
                if system == "exactfun"
                else one["accuracy"] >= point["accuracy"]
            )


def test_of_equally_accurate_gammas_the_largest_is_chosen() -> None:
    points = [
        {"accuracy": seen, "settings": {"gamma": gamma}}
        for gamma, seen in ((1.0, 0.9), (10.0, 0.9), (100.0, 0.899))
    ]
    assert (
        best("central", points)["settings"]
        == best("central", points[::-1])["settings"]
        == {"gamma": 10.0}
    )


@pytest.mark.parametrize(
    ("seen", "wide"),
    [((0.8, 0.9, 0.8), True), ((0.92, 0.9, 0.8), False), ((0.8, 0.9, 0.92), False)],
)
def test_ranges_that_end_too_early_on_either_side_are_told(
    seen: tuple[float, ...], wide: bool
) -> None:
    points = [
        {"settings": {"rate": 10.0**place}, "accuracy": accuracy}
        for place, accuracy in enumerate(seen)
    ]
    results = Results([Done({"system": "fedavg", "dataset": "mine"}, {"points": points})])
    assert [one.holds for one in Sweep().findings(SweepSettings(), results)] == [True, wide]
    assert [one.holds for one in Sweep().findings(SMALL, results)] == [True]


def test_a_sweep_runs_is_shown_and_can_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, sweep = Runner(tmp_path / "out", library(tmp_path)), Sweep()
    settings = replace(SMALL, systems=("central", "fats", "exactfun"), every=16)
    outcome = runner.run(sweep, settings)
    assert not outcome.failures
    assert all(finding.holds for finding in sweep.findings(settings, outcome.results)[:1])
    (table,) = sweep.tables(settings, outcome.results)
    assert [row[:2] for row in table.rows] == [
        ("mine", "Central ridge retrain"),
        ("mine", "FATS"),
        ("mine", "Exact-Fun"),
    ]
    write_outcome(outcome, runner.folder(sweep))
    monkeypatch.setenv(tuned.VARIABLE, str(runner.folder(sweep) / "results.json"))
    chosen = outcome.results.where(system="exactfun")[0].result["settings"]
    assert tuned.settings_for("mine", "exactfun").rate == chosen["rate"]
    alpha = Alpha()
    wanted = AlphaSettings(
        dataset="mine", clients=3, seeds=(0,), alphas=(0.01, 1000.0), slower=(1.0,), deletions=4
    )
    measured = runner.run(alpha, wanted)
    assert not measured.failures
    fine, coarse = (one.result for one in measured.results)
    assert fine["triggered"] >= coarse["triggered"]
    assert fine["nonzero"] > coarse["nonzero"]
    assert len(alpha.tables(wanted, measured.results)[0].rows) == 2
    write_outcome(measured, runner.folder(alpha))
    assert (runner.folder(alpha) / "table.md").read_text().count("|") > 10


def test_test_samples_are_not_looked_at(tmp_path: Path) -> None:
    found = []
    for label in (0, 1):
        folder = tmp_path / str(label)
        folder.mkdir()
        (cell,) = Sweep().cells(replace(SMALL, systems=("fats",)))
        found.append(cell.run(library(folder, label), lambda *_: None))
    assert found[0] == found[1]


def test_the_scale_is_the_mean_squared_length_with_the_constant(tmp_path: Path) -> None:
    data = library(tmp_path).load("mine")
    wanted = np.mean([np.sum(np.append(row, 1.0) ** 2) for row in data.train_features])
    assert mean_square(data) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"systems": ("a_exact",)}, "a_exact"),
        ({"every": 0}, "every"),
        ({"datasets": ()}, "datasets"),
        ({"held_out": 1.0}, "held_out"),
    ],
)
def test_impossible_sweeps_are_refused_by_name(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        SweepSettings(**wrong)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"alphas": ()}, "alphas"),
        ({"slower": (0.0,)}, "slower"),
        ({"seeds": (1, 1)}, "seeds"),
        ({"deletions": 0}, "deletions"),
    ],
)
def test_impossible_steps_are_refused_by_name(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        AlphaSettings(**wrong)
