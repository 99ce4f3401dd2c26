"""Solvers on either side of the widths beyond which sums and products go by panels: the same
integers, refusals and heads.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from expunge import CholeskySolver, Spec, Statistics, WoodburySolver, solve
from expunge.errors import ImpossibleDeletionError
from expunge.exact import blas, wide
from expunge.exact import gram as panels_module
from expunge.exact.gram import GramSum, PanelGramSum, digits_of
from expunge.ridge import sums as sums_module
from expunge.solvers import system as system_module

VARIANTS = [CholeskySolver, WoodburySolver]
Variant = type[CholeskySolver | WoodburySolver]
Float = NDArray[np.float64]
PANEL, ONCE, KEPT = (
    4,
    5,
    7,
)  # instead of 2048, 2048 and 4097: widths from 3 to 9 meet every combination
LARGEST = 2.0**41 - 1


@pytest.fixture(autouse=True, scope="module")
def small_thresholds() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(panels_module, "PANEL_ROWS", 2)
        patch.setattr(panels_module, "MOST_WAITING", 6)
        patch.setattr(sums_module, "PANEL_WIDTH", PANEL)
        patch.setattr(system_module, "KEPT_ONCE", ONCE)
        patch.setattr(system_module, "KEPT_WIDTH", KEPT)
        yield


def whole_pieces(spec: Spec, features: Float, labels: NDArray[np.int64]) -> tuple[str, str]:
    """The digests of statistics and head, made without any panel."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sums_module, "PANEL_WIDTH", 10**6)
        patch.setattr(system_module, "KEPT_ONCE", 10**6)
        statistics = Statistics.of(spec, features, labels, lost_columns="accept")
        return statistics.digest, solve(statistics).digest


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=25)
@given(dim=st.integers(2, 8), seed=st.integers(0, 2**32 - 1))
def test_interleaved_changes_reach_the_digests_of_whole_pieces(
    variant: Variant, dim: int, seed: int
) -> None:
    """Rows and statistics, added and deleted in any order, with heads in between or not; sizes from
    the grid's step on.
    """
    rng = np.random.default_rng(seed)
    spec = Spec(dim=dim, labels=(0, 1), gamma=2.0)
    sizes = rng.choice([2.0**-35, 1e-3, 1.0, 63.0], size=(60, 1))
    features = rng.uniform(-1.0, 1.0, (60, dim)) * sizes  # never beyond the grid
    labels = rng.integers(2, size=60)
    solver, inside = variant(spec), np.zeros(60, dtype=bool)
    for _ in range(10):
        adds = not inside.any() or rng.random() < 0.6
        there = np.flatnonzero(inside != adds)
        chosen = rng.permutation(there)[: int(rng.choice([1, 2, 5, 20]))]
        if not len(chosen):
            continue
        if rng.random() < 0.5:
            statistics = Statistics.of(
                spec, features[chosen], labels[chosen], lost_columns="accept"
            )
            (solver.add_statistics if adds else solver.delete_statistics)(statistics)
        elif adds:
            solver.add(features[chosen], labels[chosen], lost_columns="accept")
        else:
            solver.delete(features[chosen], labels[chosen])
        inside[chosen] = adds
        if rng.random() < 0.4:
            solver.head()
    assert (solver.statistics.digest, solver.head().digest) == whole_pieces(
        spec, features[inside], labels[inside]
    )
    again = pickle.loads(pickle.dumps(solver))  # noqa: S301 - our own bytes
    assert (again.statistics.digest, again.head().digest) == (
        solver.statistics.digest,
        solver.head().digest,
    )


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dim", [3, 4, 5, 6, 7])
@pytest.mark.parametrize("headed", [False, True])
def test_refused_deletions_leave_solver_and_head_as_they_were(
    variant: Variant, dim: int, headed: bool
) -> None:
    """Caches are dropped before a deletion by statistics is judged; whether it is refused shows
    nowhere afterwards.
    """
    rng = np.random.default_rng(dim)
    spec = Spec(dim=dim, labels=(0, 1), gamma=0.5)
    features, labels = rng.normal(size=(40, dim)), rng.integers(2, size=40)
    stranger = rng.normal(size=(3, dim)) * 9.0
    solver = variant(spec, Statistics.of(spec, features, labels))
    head = solver.head() if headed else None
    digest = solver.statistics.digest
    for refused in (
        lambda: solver.delete_statistics(Statistics.of(spec, stranger, [0, 1, 1])),
        lambda: solver.delete(stranger, [0, 1, 1]),
        lambda: solver.delete_statistics(
            Statistics.of(spec, np.tile(features, (2, 1)), np.tile(labels, 2))
        ),
    ):
        with pytest.raises(ImpossibleDeletionError, match="nothing was deleted"):
            refused()
        assert solver.statistics.digest == digest
        if headed:
            assert solver.head() is head
    assert (solver.statistics.digest, solver.head().digest) == whole_pieces(spec, features, labels)
    solver.delete(features[:2], labels[:2])
    solver.delete_statistics(Statistics.of(spec, features[2:30], labels[2:30]))
    assert (solver.statistics.digest, solver.head().digest) == whole_pieces(
        spec, features[30:], labels[30:]
    )


def begun(
    variant: Variant, seed: int
) -> tuple[Spec, Float, NDArray[np.int64], CholeskySolver | WoodburySolver]:
    """Sixty samples, and a solver that has the first forty of them."""
    rng = np.random.default_rng(seed)
    spec = Spec(dim=8, labels=(0, 1), gamma=0.5)
    features, labels = rng.normal(size=(60, 8)), rng.integers(2, size=60)
    return spec, features, labels, variant(spec, Statistics.of(spec, features[:40], labels[:40]))


@pytest.mark.parametrize("variant", VARIANTS)
def test_words_made_anew_do_not_see_rows_that_came_later(variant: Variant) -> None:
    """The sums go on changing under a wide system: its words must be of the sums that it was made
    from.
    """
    spec, features, labels, solver = begun(variant, seed=3)
    solver.head()
    for place in range(40, 60):
        solver.add(features[place : place + 1], labels[place : place + 1])
        solver.settled()  # brings the rows into the very arrays that the words are of
        assert (
            solver.head().digest
            == whole_pieces(spec, features[: place + 1], labels[: place + 1])[1]
        )


@pytest.mark.parametrize("variant", VARIANTS)
def test_threads_take_turns_on_a_wide_solver(variant: Variant) -> None:
    spec, features, labels, solver = begun(variant, seed=5)

    def work(place: int) -> None:
        solver.add(features[40 + place : 41 + place], labels[40 + place : 41 + place])
        solver.head()
        solver.delete(features[place : place + 1], labels[place : place + 1])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(20)))
    assert (solver.statistics.digest, solver.head().digest) == whole_pieces(
        spec, features[20:], labels[20:]
    )


@pytest.mark.parametrize("limit", [2048, 2049, 4096])
def test_both_sums_agree_at_the_budget_with_either_sign(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of the largest digits there are, added and deleted in turn, so that every sum of
    absolute products reaches 2^53.
    """
    monkeypatch.setattr(panels_module, "MOST_WAITING", 1 << 20)
    rows = np.full((limit, 3), LARGEST)
    rows[:, 1] -= np.arange(limit) % 5
    rows[:, 2] *= -1.0
    found, expected = wide.zeros((6,)), wide.zeros((6,))
    panel, whole = PanelGramSum(3), GramSum(3)
    for start in range(0, limit, 512):
        digits = digits_of(rows[start : start + 512], 2)
        for total, target in ((panel, found), (whole, expected)):
            total.add(digits, target, 1)
            total.add(digits[:100], target, -1)
    panel.drain(found)
    whole.drain(expected)
    kept = np.concatenate([rows[start + 100 : start + 512] for start in range(0, limit, 512)])
    exact = kept.astype(np.int64).astype(object)
    assert wide.to_ints(found) == list(exact.T.dot(exact)[np.triu_indices(3)])
    assert np.array_equal(found, expected)
    assert blas.packed_length(3) == 6
