"""drift: streams that can be, followers that drift, and an exact variant that does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from analytic_cases import SmallLibrary, require_shown, run, small_dataset

from expunge import WoodburySolver
from expunge.errors import InputError
from expunge_experiments.runs import drift
from expunge_experiments.runs.base import Results
from expunge_experiments.runs.drift import (
    PATTERNS,
    SERIES,
    SOURCES,
    Drift,
    DriftSettings,
    Follower,
    condition_of,
    requests_of,
    samples_of,
    spec_for,
)

SMALL = DriftSettings(
    dataset="small", dim=6, conditions=(1e3, 1e9), requests=60, every=20, period=25
)


def key(**changed: Any) -> dict[str, Any]:
    return {
        "source": "spectrum",
        "pattern": "long runs",
        "condition": 1e6,
        "dim": 8,
        "requests": 100,
        "seed": 3,
    } | changed


@pytest.fixture(scope="module")
def results() -> Results:
    return run(Drift(), SMALL)


def test_exact_variant_b_is_retraining_at_every_check(results: Results) -> None:
    assert len(results) == len(SOURCES) * len(PATTERNS) * 2
    for done in results:
        assert done.result["checks"] == [0, 20, 40, 60]
        assert done.result["equal"] == 4


def test_float_variants_drift_and_single_precision_more(results: Results) -> None:
    for done in results.where(condition=1e3):
        double, single = (
            done.result["series"][name]["deviations"] for name in ("float64", "float32")
        )
        assert all(0.0 < a < 1e-7 < b < 1.0 for a, b in zip(double, single, strict=True))


def test_tables_figures_and_findings(results: Results) -> None:
    require_shown(Drift(), SMALL, results)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("source", SOURCES)
def test_a_stream_deletes_what_is_retained_and_adds_what_is_not(source: str, pattern: str) -> None:
    given = key(source=source, pattern=pattern, dataset="small")
    samples = samples_of(given, SmallLibrary())  # type: ignore[arg-type]
    retained = set(range(samples.start))
    sizes = []
    for number, add in requests_of(given, samples):
        assert (number in retained) != add
        (retained.add if add else retained.remove)(number)
        sizes.append(len(retained))
    assert len(sizes) == 100
    assert min(sizes) == samples.least
    assert (min(sizes) < 8) == (pattern == "long runs")


def test_samples_begin_alike_in_every_arithmetic() -> None:
    samples = samples_of(key(), SmallLibrary())  # type: ignore[arg-type]
    assert samples.features.dtype == np.float32
    units = np.ldexp(samples.features.astype(np.float64), 35)
    assert np.array_equal(units, np.rint(units))


def test_gamma_makes_the_condition_number() -> None:
    samples = samples_of(key(pattern="alternating"), SmallLibrary())  # type: ignore[arg-type]
    spec = spec_for(1e6, samples)
    found = condition_of(spec, samples.features[: samples.start])
    assert 1e5 < found <= 1.001e6
    few = condition_of(spec, samples.features[:3])
    rows = np.column_stack([samples.features[:3].astype(np.float64), np.ones(3)])
    assert few == pytest.approx(np.linalg.norm(rows, 2) ** 2 / spec.gamma + 1.0, rel=1e-6)


def test_a_follower_that_even_a_reset_cannot_mend_is_lost_and_says_when() -> None:
    data = small_dataset()
    samples = samples_of(key(source="real", dataset="small"), SmallLibrary(data))  # type: ignore[arg-type]
    spec = spec_for(1e6, samples)
    follower = Follower("float64", 0)
    follower.begin(spec, samples.features, samples.labels)
    assert follower.lost is None
    follower.take(1, 100 * samples.features[:1], samples.labels[:1], add=False)
    assert follower.lost == 1
    follower.check(1, np.ones((spec.width, spec.columns)))
    follower.take(2, samples.features[:1], samples.labels[:1], add=False)
    assert follower.as_dict() == {"deviations": [None], "resets": [], "lost": 1}


def test_a_periodic_reset_is_not_counted_as_forced(results: Results) -> None:
    for done in results.where(condition=1e3, pattern="alternating"):
        assert all(done.result["series"][name]["resets"] == [] for name in SERIES)


def test_a_periodic_reset_happens() -> None:
    samples = samples_of(key(), SmallLibrary())  # type: ignore[arg-type]
    for period, resets in ((0, 0), (4, 2)):
        follower = Follower("float64", period)
        follower.begin(spec_for(1e4, samples), samples.features, samples.labels)
        before = follower.solver.resets
        for request in range(1, 11):
            follower.take(
                request, samples.features[[request]], samples.labels[[request]], add=False
            )
        assert follower.solver.resets - before == resets
        assert follower.resets == []


def test_an_exact_variant_that_misses_a_request_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Lazy(WoodburySolver):
        def add(self, *_: Any, **__: Any) -> None:
            """Forget to."""

    monkeypatch.setattr(drift, "WoodburySolver", Lazy)
    small = replace(SMALL, conditions=(1e3,), sources=("spectrum",), patterns=("alternating",))
    wrong = run(Drift(), small)
    assert wrong[0].result["equal"] == 1  # before the first request
    assert Drift().findings(small, wrong)[0].holds is False


def test_too_few_columns_are_refused() -> None:
    with pytest.raises(InputError, match="small has too few columns or samples for dim = 13"):
        samples_of(key(source="real", dataset="small", dim=13), SmallLibrary())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {"sources": ("x",)},
        {"patterns": ()},
        {"dim": 2},
        {"every": 61},
        {"conditions": (1e12,)},
        {"period": 0},
    ],
)
def test_impossible_settings_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(InputError, match=next(iter(change))):
        replace(SMALL, **change)  # type: ignore[arg-type]
