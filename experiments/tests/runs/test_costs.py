"""costs: real messages, exact heads, exponents and crossovers that are what they are said to be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from analytic_cases import require_shown, run, small_dataset
from hypothesis import given
from hypothesis import strategies as st

from expunge import Spec, Statistics, solve
from expunge.errors import InputError
from expunge.solvers.float64 import relative_deviation
from expunge_experiments.runs.base import Done, Results
from expunge_experiments.runs.costs.report import (
    byte_crossover,
    crossover,
    exponent,
    fitted,
    time_crossover,
    upper_half,
)
from expunge_experiments.runs.costs.run import Costs, CostsSettings
from expunge_experiments.runs.costs.servers import SERVERS, ExactA, ExactB, ExactServer

SMALL = CostsSettings(
    dataset="small",
    dims=(4, 8, 12, 20),
    ranks=(1, 3),
    classes=(5,),
    classes_dims=(8,),
    samples=100,
    repetitions=2,
)


@pytest.fixture(scope="module")
def results() -> Results:
    return run(Costs(), SMALL)


def test_every_size_is_measured_and_said_to_be_what_it_is(results: Results) -> None:
    assert [(done.key["dim"], done.result["classes"]) for done in results] == [
        (4, 3),
        (8, 3),
        (12, 3),
        (20, 3),
        (8, 5),
    ]
    assert all("synthetic" in done.result["source"] for done in results if done.key["dim"] > 12)
    assert all(
        "pseudo-labels" in done.result["source"] for done in results if done.key["pseudo_classes"]
    )
    for done in results:
        assert done.result["exact_as_before"]
        for system in SERVERS:
            assert all(
                len(took) == 2 and min(took) > 0.0
                for took in done.result["seconds"]["delete"][system].values()
            )


def test_deviations_of_float64_are_not_hidden_by_the_rounding_of_published_weights(
    results: Results,
) -> None:
    for done in results:
        assert max(done.result["deviations"][name] for name in ("a_float64", "b_float64")) < 1e-12
        assert done.result["deviations"]["a_exact"] == done.result["deviations"]["b_exact"] > 1e-14


def test_a_server_that_loses_a_request_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    take = ExactB.take
    monkeypatch.setattr(
        ExactB,
        "take",
        lambda self, data, count, *, add: None if add else take(self, data, count, add=add),
    )
    small = replace(SMALL, dims=(4,), classes=(), ranks=(1,), repetitions=1)
    wrong = run(Costs(), small)
    assert [done.result["exact_as_before"] for done in wrong] == [False]
    assert Costs().findings(small, wrong)[0].holds is False


def test_tables_figures_and_findings(results: Results) -> None:
    require_shown(Costs(), SMALL, results)


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_follows_its_messages_to_the_head_of_retraining(name: str) -> None:
    data = small_dataset()
    spec = Spec(dim=12, labels=tuple(range(3)), gamma=2.0)
    features, labels = data.train_features, data.train_labels
    server = SERVERS[name](Statistics.of(spec, features[:200], labels[:200]))
    server.take(server.message(features[:7], labels[:7]), 7, add=False)
    server.take(server.message(features[200:205], labels[200:205]), 5, add=True)
    retrained = solve(Statistics.of(spec, features[7:205], labels[7:205]))
    if isinstance(server, ExactServer):
        assert server.digest == retrained.digest
    assert relative_deviation(server.weights, retrained.weights) < 1e-9


def test_no_request_pays_for_a_larger_one_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []

    class Recorded(ExactB):
        def take(self, data: bytes, count: int, *, add: bool) -> None:
            taken.append(count)
            super().take(data, count, add=add)

    monkeypatch.setitem(SERVERS, "b_exact", Recorded)
    run(Costs(), replace(SMALL, dims=(8,), classes=(), ranks=(3, 1)))
    assert (
        taken == [1] * 6 + [3] * 4
    )  # twice without the clock; then each rank in two turns, deleted and added back


def test_from_the_crossover_on_rows_are_more_bytes_than_statistics(results: Results) -> None:
    data = small_dataset()
    done = next(done for done in results if done.key["dim"] == 12)
    found = byte_crossover(done)
    assert found is not None
    statistics = Statistics.of(
        Spec(dim=12, labels=tuple(range(3)), gamma=10.0), data.train_features, data.train_labels
    )
    a, b = ExactA(statistics), ExactB(statistics)
    gram = len(a.message(data.train_features[:1], data.train_labels[:1]))
    sizes = [
        len(b.message(data.train_features[:rank], data.train_labels[:rank]))
        for rank in (found - 1, found)
    ]
    assert sizes[0] <= gram < sizes[1]


@given(
    st.floats(-3.0, 4.0),
    st.floats(-10.0, 10.0),
    st.lists(st.integers(1, 10**6), min_size=3, max_size=6, unique=True),
)
def test_the_exponent_of_a_power_law_is_its_own(
    power: float, factor: float, sizes: list[int]
) -> None:
    found = exponent(sizes, [np.exp(factor) * float(size) ** power for size in sizes])
    assert found is not None
    assert found.value == pytest.approx(power, abs=1e-6)
    assert found.error == pytest.approx(0.0, abs=1e-6)


def test_an_exponent_needs_two_sizes_and_its_error_three() -> None:
    assert exponent([8], [1.0]) is None
    two = exponent([8, 16], [1.0, 4.0])
    assert two is not None
    assert two.error is None
    assert two.value == pytest.approx(2.0)
    noisy = exponent([1, 2, 4, 8], [1.0, 2.5, 3.7, 8.4])
    assert noisy is not None
    slope, cost = np.polyfit(np.log([1, 2, 4, 8]), np.log([1.0, 2.5, 3.7, 8.4]), 1, cov=True)
    assert noisy.value == pytest.approx(slope[0])
    assert noisy.error == pytest.approx(np.sqrt(cost[0, 0]))


def test_the_upper_half() -> None:
    assert upper_half([4096, 256, 512, 768, 1024, 1280, 2048]) == [1024, 1280, 2048, 4096]
    assert upper_half([3]) == [3]


def test_a_crossover_is_where_two_power_laws_meet() -> None:
    sizes = [1, 4, 16, 64]
    assert crossover(sizes, [8.0] * 4, [float(size) for size in sizes]) == pytest.approx(8.0)
    assert crossover(sizes, [100.0] * 4, [float(size) for size in sizes]) is None
    assert crossover(sizes, [0.5] * 4, [float(size) for size in sizes]) == 1.0


def test_fits_use_medians_of_the_measured_times(results: Results) -> None:
    seconds = {"delete": {name: {"1": [9.0, 1.0, 1.0]} for name in SERVERS}}
    made = Results()
    for dim in (8, 16, 32):
        slower = {
            name: {"1": [one * dim**2 for one in seconds["delete"][name]["1"]]} for name in SERVERS
        }
        key = {"dim": dim, "pseudo_classes": 0, "ranks": [1]}
        made.append(
            Done(
                key,
                {"seconds": {"delete": slower}, "bytes": {name: {"1": dim} for name in SERVERS}},
            )
        )
    found, sent = fitted(made, "a_exact", 1, "server"), fitted(made, "a_exact", 1, "bytes")
    assert found is not None
    assert sent is not None
    assert found.value == pytest.approx(2.0)
    assert sent.value == pytest.approx(1.0)
    assert time_crossover(made[0], "a_exact", "b_exact") is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dims": ()}, "dims"),
        ({"ranks": (0,)}, "ranks"),
        ({"samples": 2}, "samples"),
        ({"repetitions": 0}, "repetitions"),
    ],
)
def test_impossible_settings_are_refused_by_name(change: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        replace(SMALL, **change)  # type: ignore[arg-type]
