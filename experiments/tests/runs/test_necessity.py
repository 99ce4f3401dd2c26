"""necessity: the same first-order summaries, different heads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from analytic_cases import require_shown, run
from hypothesis import given
from hypothesis import strategies as st

from expunge.errors import InputError
from expunge_experiments.runs.base import Results
from expunge_experiments.runs.necessity import (
    Necessity,
    NecessitySettings,
    _same_sums,
    averaged_pairs,
)

SMALL = NecessitySettings(
    gammas=(0.25, 1.0, 3.0), dataset="small", samples=200, clients=4, gamma=0.5, seeds=(0, 1)
)


@pytest.fixture(scope="module")
def results() -> Results:
    return run(Necessity(), SMALL)


def test_the_lemma_for_every_gamma(results: Results) -> None:
    for done in results.where(case="lemma"):
        a, b = done.result["batches"]["A"], done.result["batches"]["B"]
        for name in ("samples", "sum_of_features", "sum_of_labels", "label_weighted_sum"):
            assert a[name] == b[name]
        assert a["gram"] == [[1, 0], [0, 1]]
        assert b["gram"] == [[1, 1], [1, 1]]
        gamma = done.key["gamma"]
        assert a["expunge_head"] == pytest.approx([1 / (1 + gamma)] * 2)
        assert b["expunge_head"] == pytest.approx([1 / (2 + gamma)] * 2)
        assert a["digest"] != b["digest"]
        assert done.result["expunge_right"]
    assert results.where(gamma=1.0)[0].result["batches"]["B"]["rational_head"] == ["1/3", "1/3"]


def test_real_features_with_the_same_sums_have_different_heads(results: Results) -> None:
    for done in results.where(case="real"):
        assert done.result["same_summaries"]
        assert not done.result["same_gram"]
        assert done.result["deviation_between"] > 0.0
        assert done.result["deviation_of_means"] > 0.0


def test_tables_figures_and_findings(results: Results) -> None:
    require_shown(Necessity(), SMALL, results)


def test_sums_are_compared_for_every_client_and_class() -> None:
    features, labels, owners = (
        np.arange(8.0).reshape(4, 2),
        np.array([0, 0, 1, 1]),
        np.array([0, 1, 0, 1]),
    )
    assert _same_sums(features, features.copy(), labels, owners)
    swapped = features[[1, 0, 2, 3]]  # the same sums of every class, but not at every client
    assert not _same_sums(features, swapped, labels, owners)
    assert _same_sums(features, swapped, labels, np.zeros(4, dtype=np.int64))


@given(st.integers(1, 40), st.integers(1, 4), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_averaging_pairs_keeps_every_sum_of_a_client_and_class(
    count: int, clients: int, classes: int, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    features = np.ldexp(draw.integers(-1000, 1000, (count, 3)).astype(np.float64), -10)
    labels, owners = draw.integers(0, classes, count), draw.integers(0, clients, count)
    paired = averaged_pairs(features, labels, owners)
    moved = (paired != features).any(axis=1)
    for client in range(clients):
        for label in range(classes):
            mine = (owners == client) & (labels == label)
            assert np.array_equal(paired[mine].sum(axis=0), features[mine].sum(axis=0))
            assert moved[mine].sum() <= 2 * (mine.sum() // 2)
    if moved.any():
        assert np.trace(paired.T @ paired) < np.trace(features.T @ features)


@pytest.mark.parametrize(
    "change", [{"gammas": ()}, {"gammas": (0.0,)}, {"gamma": -1.0}, {"samples": 1}, {"clients": 0}]
)
def test_impossible_settings_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(InputError, match=next(iter(change))[:5]):
        replace(SMALL, **change)  # type: ignore[arg-type]
