"""Softmax regression by SGD: against the formula in float64, and laws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from expunge.errors import InputError
from expunge_experiments.systems.gradient import (
    cut,
    descend,
    follow,
    predicted,
    with_constant,
    zero_head,
)

Float = NDArray[np.float64]


def case(
    count: int, dim: int = 7, classes: int = 4, seed: int = 0
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64]]:
    draw = np.random.default_rng(seed)
    rows = with_constant(draw.standard_normal((count, dim)))
    weights = draw.standard_normal((dim + 1, classes)).astype(np.float32)
    return weights, rows, draw.integers(0, classes, count)


def loss(weights: Float, rows: Float, labels: NDArray[np.int64]) -> float:
    scores = rows @ weights
    highest = scores.max(axis=1)
    sums = highest + np.log(np.exp(scores - highest[:, None]).sum(axis=1))
    return float(np.mean(sums - scores[np.arange(len(labels)), labels]))


def stepped(weights: Float, rows: Float, labels: NDArray[np.int64], rate: float) -> Float:
    """One step by the textbook's formula."""
    scores = np.exp(rows @ weights)
    shares = scores / scores.sum(axis=1, keepdims=True) - np.eye(weights.shape[1])[labels]
    return weights - rate / len(labels) * rows.T @ shares


@pytest.mark.parametrize("count", [1, 5, 64, 65, 200])
@pytest.mark.parametrize("batch", [0, 1, 16, 64, 100, 500])
def test_passes_are_the_formula_on_batches_of_a_fresh_order(count: int, batch: int) -> None:
    weights, rows, labels = case(count)
    found = descend(
        weights, rows, labels, epochs=3, batch=batch, rate=0.3, draw=np.random.default_rng(5)
    )
    wanted, draw = weights.astype(np.float64), np.random.default_rng(5)
    for _ in range(3):
        whole = batch <= 0 or batch >= count
        order = np.arange(count) if whole else draw.permutation(count)
        size = count if whole else batch
        for start in range(0, count, size):
            chosen = order[start : start + size]
            wanted = stepped(wanted, rows[chosen].astype(np.float64), labels[chosen], 0.3)
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)


def test_a_step_goes_down_the_gradient_of_the_loss() -> None:
    weights, rows, labels = case(40)
    exact, wide = weights.astype(np.float64), rows.astype(np.float64)
    step = (follow(weights, rows, labels, (None,), 1.0) - weights).astype(np.float64)
    for place in [(0, 0), (3, 2), (7, 1)]:
        nudge = np.zeros_like(exact)
        nudge[place] = 1e-6
        slope = (loss(exact + nudge, wide, labels) - loss(exact - nudge, wide, labels)) / 2e-6
        assert step[place] == pytest.approx(-slope, abs=1e-4)


@given(st.integers(1, 150), st.integers(0, 80), st.integers(0, 3), st.integers(0, 2**32))
def test_it_is_a_function_of_its_arguments_and_changes_none(
    count: int, batch: int, epochs: int, seed: int
) -> None:
    weights, rows, labels = case(count, seed=seed)
    before = weights.copy(), rows.copy(), labels.copy()
    first, second = (
        descend(
            weights,
            rows,
            labels,
            epochs=epochs,
            batch=batch,
            rate=0.1,
            draw=np.random.default_rng(seed),
        )
        for _ in range(2)
    )
    assert first.tobytes() == second.tobytes()
    assert first.dtype == np.float32
    assert first.flags.c_contiguous
    assert all(
        np.array_equal(one, two) for one, two in zip(before, (weights, rows, labels), strict=True)
    )


@given(st.integers(1, 100), st.integers(0, 40), st.integers(1, 3), st.integers(0, 2**32))
def test_every_pass_has_every_place_once(count: int, batch: int, epochs: int, seed: int) -> None:
    batches = list(cut(count, epochs=epochs, batch=batch, draw=np.random.default_rng(seed)))
    assert sorted(np.concatenate(batches).tolist()) == sorted(list(range(count)) * epochs)
    assert max(map(len, batches)) <= (batch or count)


def test_huge_scores_are_no_problem() -> None:
    weights, rows, labels = case(30)
    found = follow(weights * np.float32(1e6), rows, labels, (None, np.arange(10)), 0.1)
    assert np.isfinite(found).all()


def test_shares_too_small_to_matter_are_zero() -> None:
    """They would be subnormal numbers, on which products are slow: a sample that is this sure of
    its label moves nothing.
    """
    rows = with_constant(np.array([[1.0], [1.0]]))
    sure = np.array([[80.0, 0.0], [0.0, 0.0]], dtype=np.float32)
    assert np.array_equal(follow(sure, rows, np.zeros(2, dtype=np.int64), (None,), 1.0), sure)
    less = np.array([[40.0, 0.0], [0.0, 0.0]], dtype=np.float32)
    assert not np.array_equal(follow(less, rows, np.zeros(2, dtype=np.int64), (None,), 1.0), less)


def test_read_only_heads_as_letters_have_them_can_be_learnt_from() -> None:
    weights, rows, labels = case(30)
    weights.flags.writeable = False
    assert not np.array_equal(follow(weights, rows, labels, (None,), 0.1), weights)


def test_no_rows_and_no_epochs_leave_the_head_alone() -> None:
    weights, rows, labels = case(10)
    nothing = np.zeros(0, dtype=np.int64)
    assert np.array_equal(follow(weights, rows, labels, (nothing,), 1.0), weights)
    draw = np.random.default_rng(0)
    assert np.array_equal(
        descend(weights, rows[:0], labels[:0], epochs=2, batch=4, rate=1.0, draw=draw), weights
    )
    assert np.array_equal(
        descend(weights, rows, labels, epochs=0, batch=4, rate=1.0, draw=draw), weights
    )


def test_it_learns_what_can_be_learnt() -> None:
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 3, 300)
    features = (3.0 * np.eye(3)[labels] + 0.5 * draw.standard_normal((300, 3))).astype(np.float32)
    weights = descend(
        zero_head(3, 3), with_constant(features), labels, epochs=10, batch=16, rate=0.2, draw=draw
    )
    assert np.mean(predicted(weights, features) == labels) > 0.97


@pytest.mark.parametrize("wrong", ["no constant", "a label too few"])
def test_wrong_shapes_are_refused(wrong: str) -> None:
    weights, rows, labels = case(10)
    with pytest.raises(InputError, match="constant column"):
        follow(
            weights,
            rows[:, :-1] if wrong == "no constant" else rows,
            labels[1:] if "label" in wrong else labels,
            (None,),
            1.0,
        )
