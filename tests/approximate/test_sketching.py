from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge import Spec
from expunge.approximate import METHODS, Batch, FrequentDirections, compress
from expunge.approximate.lowrank import gaussian, sparse_sign
from expunge.errors import ShapeError


@given(
    seed=st.integers(0, 2**32 - 1),
    rank=st.integers(1, 6),
    count=st.integers(0, 60),
    width=st.integers(1, 9),
)
def test_frequent_directions_keep_their_promise(
    seed: int, rank: int, count: int, width: int
) -> None:
    """0 <= F'F - B'B <= shrunk I, and shrunk <= ||F - F_k||_F^2 / (rank + 1 - k) for every k <=
    rank.
    """
    rows = np.random.default_rng(seed).normal(size=(count, width)) * np.geomspace(1, 0.1, width)
    sketch = FrequentDirections(width, rank)
    sketch.extend(rows)
    factor = sketch.factor()
    assert factor.shape[0] <= rank
    values = np.linalg.eigvalsh(rows.T @ rows - factor.T @ factor)
    inner = np.linalg.svd(rows, compute_uv=False) ** 2 if count else np.zeros(1)
    slack = 1e-9 * (1 + inner[0])
    assert values[0] >= -slack
    tails = [inner[k:].sum() / (rank + 1 - k) for k in range(rank + 1)]
    assert values[-1] <= min(tails) + slack
    assert sketch.shrunk <= min(tails) + slack


@given(seed=st.integers(0, 2**32 - 1), cut=st.integers(0, 40))
def test_how_rows_are_cut_into_blocks_does_not_matter(seed: int, cut: int) -> None:
    rows = np.random.default_rng(seed).normal(size=(40, 5))
    whole, parts = FrequentDirections(5, 3), FrequentDirections(5, 3)
    whole.extend(rows)
    parts.extend(rows[:cut])
    parts.extend(rows[cut:])
    assert np.array_equal(whole.factor(), parts.factor())
    assert np.array_equal(whole.factor(), whole.factor())


def test_no_row_is_sent_as_it_came() -> None:
    """Even where nothing is lost, what is sent is a mixture of rows."""
    rng = np.random.default_rng(1)
    batch = Batch.of(Spec(dim=9, labels=(0, 1)), rng.normal(size=(4, 9)), rng.integers(2, size=4))
    for method in METHODS:
        factor = compress(batch, method, 4, precision="float64").factor
        distances = np.abs(factor[:, None] - batch.features[None]).max(axis=2)
        assert distances.min() > 1e-3


@pytest.mark.parametrize("project", [gaussian, sparse_sign])
def test_random_projections_are_right_on_average(project: object) -> None:
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(12, 4))
    draws = [project(rows, 6, rng) for _ in range(3000)]  # type: ignore[operator]
    mean = np.mean([one.T @ one for one in draws], axis=0)
    spread = np.std([one.T @ one for one in draws], axis=0) / np.sqrt(len(draws))
    assert (np.abs(mean - rows.T @ rows) <= 5 * spread + 1e-9).all()


def test_sparse_signs_enter_each_row_as_often() -> None:
    mixing = sparse_sign(np.eye(50), 20, np.random.default_rng(3))
    assert (np.count_nonzero(mixing, axis=0) == 8).all()
    assert np.allclose(np.square(mixing).sum(axis=0), 1.0)


@pytest.mark.parametrize("method", METHODS)
def test_equal_arguments_give_equal_messages(method: str) -> None:
    rng = np.random.default_rng(4)
    batch = Batch.of(Spec(dim=9, labels=(0, 1)), rng.normal(size=(20, 9)), rng.integers(2, size=20))
    first = compress(batch, method, 4, seed=11).to_bytes()
    assert first == compress(batch, method, 4, seed=11).to_bytes()
    draws = method in ("randomized", "gaussian", "sparse_sign")
    assert (first != compress(batch, method, 4, seed=12).to_bytes()) == draws


@pytest.mark.parametrize(("width", "rank"), [(0, 3), (3, 0), (3, -1)])
def test_a_sketch_without_room_is_refused(width: int, rank: int) -> None:
    """With rank 0, taking in rows never came to an end."""
    with pytest.raises(ShapeError, match="width and rank of 1 or more"):
        FrequentDirections(width, rank)


@pytest.mark.parametrize("shape", [(2, 4), (2, 1), (3,)])
def test_rows_of_another_width_leave_a_sketch_as_it_was(shape: tuple[int, ...]) -> None:
    sketch = FrequentDirections(3, 2)
    sketch.extend(np.eye(3))
    before = sketch.factor()
    with pytest.raises(ShapeError, match="width 3"):
        sketch.extend(np.ones(shape))
    assert np.array_equal(sketch.factor(), before)
