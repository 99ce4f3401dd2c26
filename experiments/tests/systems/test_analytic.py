"""AFL, ACIL and ACU: least squares without the penalty; recursions that agree with ridge up to
rounding.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from system_cases import one_feature_each, pool_of
from test_central import closed_form

from expunge.errors import SolveError
from expunge_experiments.pool import Pool
from expunge_experiments.systems.base import UnsupportedError
from expunge_experiments.systems.catalogue import build, settings_from
from expunge_experiments.systems.linear import packed, unpacked


def ordinary(pool: Pool, numbers: np.ndarray) -> np.ndarray:
    rows = np.column_stack([pool.features[numbers].astype(float), np.ones(len(numbers))])
    return np.linalg.lstsq(rows, np.eye(pool.classes)[pool.labels[numbers]], rcond=None)[0]


@given(gamma=st.sampled_from([1e-3, 1.0, 1e3]), seed=st.integers(0, 5), first=st.integers(30, 60))
def test_afl_is_ordinary_least_squares_whatever_gamma_and_partition(
    gamma: float, seed: int, first: int
) -> None:
    pool = pool_of(seed=seed)
    system = build("afl", pool, settings=settings_from("afl", {"gamma": gamma}))
    system.train(np.arange(first))
    system.add(np.arange(first, 60))
    assert np.allclose(system.weights, ordinary(pool, np.arange(60)), rtol=1e-7, atol=1e-8)
    assert system.rank == 6


def test_afl_is_what_its_authors_recursion_gives() -> None:
    """The absolute aggregation law one client after another, as published, and then the
    regularisation taken off.
    """
    pool, gamma, one = pool_of(), 0.5, np.eye(6)
    system = build("afl", pool, settings=settings_from("afl", {"gamma": gamma}))
    system.train()
    grams, heads = [], []
    for client in range(pool.clients):
        mine = pool.numbers_of(client)
        rows = np.column_stack([pool.features[mine].astype(float), np.ones(len(mine))])
        grams.append(rows.T @ rows + gamma * one)
        heads.append(np.linalg.solve(grams[-1], rows.T @ np.eye(pool.classes)[pool.labels[mine]]))
    gram, head = grams[0], heads[0]
    for other, theirs in zip(grams[1:], heads[1:], strict=True):
        both = np.linalg.inv(gram + other)
        ours_share = one - np.linalg.inv(gram) @ other @ (one - both @ other)
        their_share = one - np.linalg.inv(other) @ gram @ (one - both @ gram)
        head, gram = ours_share @ head + their_share @ theirs, gram + other
    assert np.allclose(
        head,
        np.linalg.solve(sum(grams), sum(c @ w for c, w in zip(grams, heads, strict=True))),
        rtol=1e-8,
    )
    assert np.allclose(
        system.weights,
        np.linalg.solve(gram - pool.clients * gamma * one, gram @ head),
        rtol=1e-7,
        atol=1e-9,
    )


def test_afl_is_not_ridge() -> None:
    pool = pool_of(samples=20)
    system = build("afl", pool)
    system.train()
    assert np.abs(system.weights - closed_form(pool, np.arange(20), 1.0)).max() > 1e-2


def test_afl_takes_the_solution_of_least_norm_where_there_are_many() -> None:
    pool = pool_of()
    twins = Pool(
        np.repeat(pool.features, 2, axis=1), pool.labels, pool.owners, pool.classes, pool.clients
    )
    system = build("afl", twins)
    system.train()
    assert system.rank == 6 < system.weights.shape[0]
    assert np.allclose(system.weights, ordinary(twins, np.arange(60)), atol=1e-9)
    few = build("afl", pool)
    few.train(np.arange(3))
    assert few.rank == 3
    assert np.allclose(few.weights, ordinary(pool, np.arange(3)), atol=1e-9)


def test_afl_of_nobody_is_the_zero_head() -> None:
    system = build("afl", pool_of())
    system.train(np.arange(0))
    assert (system.rank, system.weights.any()) == (0, False)


def test_afl_sends_its_gram_and_head_in_one_exchange() -> None:
    pool = pool_of()
    cost = build("afl", pool).train()
    floats = (pool.dim + 1) * (pool.dim + 1 + pool.classes)
    assert cost.rounds == 1
    assert pool.clients * 8 * floats < cost.bytes_up < pool.clients * (8 * floats + 128)


@settings(max_examples=25)
@given(
    order=st.permutations(range(40)),
    cuts=st.lists(st.integers(0, 40), max_size=4),
    gamma=st.sampled_from([0.1, 1.0, 10.0]),
)
def test_acil_adds_and_acu_deletes_as_ridge_would(
    order: list[int], cuts: list[int], gamma: float
) -> None:
    pool = pool_of(samples=60)
    acil = build("acil", pool, settings=settings_from("acil", {"gamma": gamma}))
    acu = build("acu", pool, settings=settings_from("acu", {"gamma": gamma}))
    acil.train(np.arange(40, 60))
    acu.train()
    bounds = [0, *sorted(cuts), 40]
    for start, end in pairwise(bounds):
        acil.add(np.array(order[start:end], dtype=np.int64))
        acu.delete(np.array(order[start:end], dtype=np.int64))
    assert np.allclose(acil.weights, closed_form(pool, np.arange(60), gamma), rtol=1e-8, atol=1e-10)
    assert np.allclose(
        acu.weights, closed_form(pool, np.arange(40, 60), gamma), rtol=1e-8, atol=1e-10
    )


def test_more_rows_than_a_block_are_all_followed() -> None:
    pool = pool_of(samples=300)
    acil, acu = build("acil", pool), build("acu", pool)
    acil.train(np.arange(100))
    acil.add(np.arange(100, 300))
    acu.train()
    acu.delete(np.arange(100, 300))
    assert np.allclose(acil.weights, closed_form(pool, np.arange(300), 1.0), rtol=1e-9)
    assert np.allclose(acu.weights, closed_form(pool, np.arange(100), 1.0), rtol=1e-9)


def test_acu_emptied_is_the_zero_head() -> None:
    system = build("acu", pool_of())
    system.train()
    system.delete(np.arange(30))
    system.delete(np.arange(30, 60))
    assert not system.weights.any()


@pytest.mark.parametrize(
    ("name", "operation"),
    [("afl", "delete"), ("acil", "delete"), ("acil", "delete_client"), ("acu", "add")],
)
def test_what_they_lack_is_unsupported(name: str, operation: str) -> None:
    system = build(name, pool_of())
    system.train(np.arange(50))
    with pytest.raises(UnsupportedError, match=f"has no operation '{operation}'"):
        getattr(system, operation)(0 if operation == "delete_client" else np.arange(1))


@pytest.mark.parametrize(
    ("name", "triangles"), [("acu", 1), ("acil", 1), ("a_float64", 1), ("b_float64", 2)]
)
def test_a_symmetric_matrix_is_kept_as_one_triangle(name: str, triangles: int) -> None:
    pool = pool_of()
    system = build(name, pool)
    system.train()
    kept = {
        one: array.nbytes
        for one, array in system._state().items()
        if array.ndim == 1 and array.size > 1
    }
    assert kept == dict.fromkeys(kept, 8 * 6 * 7 // 2)
    assert len(kept) == triangles


@given(st.integers(0, 8), st.integers(0, 5))
def test_unpacking_gives_back_what_was_packed(width: int, seed: int) -> None:
    draw = np.random.default_rng(seed).standard_normal((width, width))
    matrix = draw + draw.T
    assert packed(matrix).shape == (width * (width + 1) // 2,)
    assert np.array_equal(unpacked(packed(matrix)), matrix)


def test_an_infeasible_downdate_of_acu_is_said() -> None:
    system = build("acu", one_feature_each())
    system.train()
    with pytest.raises(
        SolveError, match=r"ACU: .* no Gram to start anew from.*gamma larger than 1"
    ):
        system.delete(np.arange(12))
