"""Central ridge retraining is the closed form, from scratch at every change."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from system_cases import pool_of

from expunge.errors import NotAGramError
from expunge_experiments.pool import Pool
from expunge_experiments.systems.catalogue import build, settings_from


def closed_form(pool: Pool, numbers: np.ndarray, gamma: float) -> np.ndarray:
    rows = np.column_stack([pool.features[numbers].astype(float), np.ones(len(numbers))])
    targets = np.eye(pool.classes)[pool.labels[numbers]]
    return np.linalg.solve(rows.T @ rows + gamma * np.eye(pool.dim + 1), rows.T @ targets)


@given(gone=st.sets(st.integers(0, 59), max_size=60), gamma=st.sampled_from([1e-2, 1.0, 100.0]))
def test_it_is_the_closed_form_of_what_is_retained(gone: set[int], gamma: float) -> None:
    pool = pool_of()
    system = build("central", pool, settings=settings_from("central", {"gamma": gamma}))
    system.train()
    system.delete(np.array(sorted(gone), dtype=np.int64))
    kept = np.flatnonzero(system.retained)
    assert np.allclose(system.weights, closed_form(pool, kept, gamma), rtol=1e-9, atol=1e-12)


def test_more_rows_than_one_block_are_all_there() -> None:
    pool = pool_of(samples=4100, dim=3)
    system = build("central", pool)
    system.train()
    assert np.allclose(system.weights, closed_form(pool, np.arange(4100), 1.0), rtol=1e-9)


def test_deleting_and_adding_again_gives_the_same_bits() -> None:
    system = build("central", pool_of())
    system.train()
    before = system.weights.copy()
    cost = system.delete(np.arange(20))
    assert not np.array_equal(system.weights, before)
    assert cost.recomputed == 1
    system.add(np.arange(20))
    assert np.array_equal(system.weights, before)


def test_nothing_retained_is_the_zero_head() -> None:
    system = build("central", pool_of())
    assert not system.weights.any()
    system.train()
    system.delete(np.arange(60))
    assert not system.weights.any()


def test_a_gamma_too_small_for_float64_is_refused_with_the_remedy() -> None:
    pool = pool_of()
    twins = Pool(
        np.repeat(pool.features, 2, axis=1), pool.labels, pool.owners, pool.classes, pool.clients
    )
    system = build("central", twins, settings=settings_from("central", {"gamma": 1e-30}))
    with pytest.raises(NotAGramError, match=r"at gamma = 1e-30.*larger gamma"):
        system.train()
