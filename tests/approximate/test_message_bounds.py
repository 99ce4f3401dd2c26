"""The bound that a message comes with is above its true error, always: thousands of random batches,
and unkind ones exactly.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge import Spec
from expunge.approximate import METHODS, Batch, compress
from support.approximate import batch_of, extremes, holds_exactly, residual, spec_of

TRIALS = 2000
PRECISIONS = ("float32", "float64")


@pytest.mark.parametrize("method", METHODS)
def test_true_error_lies_within_the_bound(method: str) -> None:
    rng = np.random.default_rng(list(METHODS).index(method))
    for trial in range(TRIALS):
        batch = batch_of(spec_of(rng), rng)
        message = compress(
            batch, method, int(rng.integers(1, 9)), seed=trial, precision=PRECISIONS[trial % 2]
        )
        low, high = extremes(residual(batch, message))
        assert -message.error.below <= low
        assert high <= message.error.above


@given(
    seed=st.integers(0, 2**32 - 1),
    method=st.sampled_from(list(METHODS)),
    rank=st.integers(1, 6),
    precision=st.sampled_from(PRECISIONS),
)
def test_the_bound_holds_in_rational_numbers(
    seed: int, method: str, rank: int, precision: str
) -> None:
    rng = np.random.default_rng(seed)
    batch = batch_of(spec_of(rng, int(rng.integers(1, 5))), rng, most=8)
    assert holds_exactly(batch, compress(batch, method, rank, seed=seed, precision=precision))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "rows",
    [
        np.zeros((3, 4)),
        np.ones((6, 4)),
        np.diag([60.0, 1e-3, 2.0**-35, 0.0]),
        np.array([[60.0, -60.0, 2.0**-34, 0.0]] * 5),
        np.tril(np.ones((4, 4))) * np.array([1e-9, 1e-3, 1.0, 50.0]),
        np.full((1, 4), 2.0**-35),
    ],
    ids=["zeros", "ones", "sizes", "repeated", "graded", "smallest"],
)
def test_unkind_rows(rows: np.ndarray, method: str, precision: str) -> None:
    spec = Spec(dim=4, labels=(0, 1), intercept=False)
    batch = Batch.of(spec, rows, np.arange(len(rows)) % 2)
    for rank in (1, 2, 4, 7):
        assert holds_exactly(batch, compress(batch, method, rank, precision=precision))


@pytest.mark.parametrize("method", ["truncated", "randomized", "frequent_directions"])
def test_low_rank_methods_lie_below_the_gram(method: str) -> None:
    """But for rounding, F'F - U'U is positive semidefinite: so deletions take away too little
    rather than too much.
    """
    rng = np.random.default_rng(5)
    batch = Batch.of(
        Spec(dim=20, labels=(0, 1)), rng.normal(size=(30, 20)), rng.integers(2, size=30)
    )
    for precision, slack in (("float32", 1e-5), ("float64", 1e-12)):
        message = compress(batch, method, 6, precision=precision)
        assert message.error.below < slack * message.error.above


@pytest.mark.parametrize("method", ["truncated", "randomized", "frequent_directions"])
def test_a_full_rank_loses_rounding_errors_only(method: str) -> None:
    rng = np.random.default_rng(6)
    batch = Batch.of(
        Spec(dim=80, labels=(0, 1)), rng.normal(size=(10, 80)), rng.integers(2, size=10)
    )
    message = compress(batch, method, 10, precision="float64")
    assert message.error.norm < 1e-9
    shorter = compress(batch, method, 9, precision="float64")
    assert shorter.error.norm > 1.0


def test_truncation_is_the_best_and_its_bound_is_tight() -> None:
    rng = np.random.default_rng(7)
    for width, count in ((30, 50), (90, 50), (90, 200)):
        batch = Batch.of(
            Spec(dim=width, labels=(0, 1)),
            rng.normal(size=(count, width)),
            rng.integers(2, size=count),
        )
        values = np.linalg.svd(batch.features, compute_uv=False) ** 2
        best = compress(batch, "truncated", 8).error
        assert values[8] <= best.above <= 1.02 * values[8]
        for method in METHODS:
            assert compress(batch, method, 8).error.norm >= 0.98 * best.norm


def test_wide_matrices_take_the_other_way_to_an_estimate() -> None:
    """Above a width of 64 eigenvalues are estimated by Lanczos: the proof must hold all the
    same.
    """
    rng = np.random.default_rng(8)
    for seed, method in enumerate(METHODS):
        batch = Batch.of(
            Spec(dim=100, labels=(0, 1)), rng.normal(size=(60, 100)), rng.integers(2, size=60)
        )
        message = compress(batch, method, 12, seed=seed)
        low, high = extremes(residual(batch, message))
        assert -message.error.below <= low
        assert high <= message.error.above <= 1.05 * high
