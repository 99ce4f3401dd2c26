"""SISA after a deletion equals its own retraining, checkpoint by checkpoint, and repeats no more
than it must.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from system_cases import REQUESTS, delete_retained, pool_of

from expunge_experiments.systems.catalogue import build
from expunge_experiments.systems.gradient import descend, with_constant, zero_head
from expunge_experiments.systems.sisa import LEARNING, Sisa, SisaSettings

SETTINGS = SisaSettings(shards=3, slices=3, epochs=1, batch=8, rate=0.1)


def sisa(seed: int = 0, **of_pool: int) -> Sisa:
    system = build("sisa", pool_of(**of_pool), settings=SETTINGS, seed=seed)
    assert isinstance(system, Sisa)
    return system


@settings(max_examples=25)
@given(requests=REQUESTS, seed=st.integers(0, 3))
def test_deletions_equal_retraining_bit_for_bit(requests: list[set[int]], seed: int) -> None:
    system = sisa(seed)
    system.train()
    delete_retained(system, requests)
    again = sisa(seed)
    again.train(np.flatnonzero(system.retained))
    assert np.array_equal(system.checkpoints, again.checkpoints)
    assert np.array_equal(system.predict(system.pool.features), again.predict(system.pool.features))


@given(number=st.integers(0, 59))
def test_one_deletion_touches_one_shard_from_its_slice_on(number: int) -> None:
    system = sisa()
    system.train()
    before = system.checkpoints.copy()
    cost = system.delete(np.array([number]))
    changed = (system.checkpoints != before).any(axis=(2, 3))
    expected = np.zeros((3, 3), dtype=bool)
    expected[system.shard_of[number], system.slice_of[number] :] = True
    assert np.array_equal(changed, expected)
    assert cost.recomputed == expected.sum()


def test_a_slice_is_learnt_together_with_those_before_it() -> None:
    system = sisa()
    system.train()
    for shard in range(SETTINGS.shards):
        weights = zero_head(5, 3)
        for place in range(SETTINGS.slices):
            mine = np.flatnonzero((system.shard_of == shard) & (system.slice_of <= place))
            mine = mine[np.argsort(system.slice_of[mine], kind="stable")]
            weights = descend(
                weights,
                with_constant(system.pool.features[mine]),
                system.pool.labels[mine],
                epochs=SETTINGS.epochs,
                batch=SETTINGS.batch,
                rate=SETTINGS.rate,
                draw=np.random.default_rng([0, LEARNING, shard, place]),
            )
            assert np.array_equal(system.checkpoints[shard, place], weights)


def test_samples_are_dealt_out_evenly() -> None:
    system = sisa(samples=90)
    cells, counts = np.unique(3 * system.shard_of + system.slice_of, return_counts=True)
    assert (len(cells), set(counts.tolist())) == (9, {10})


def test_most_shards_decide_and_those_without_samples_do_not() -> None:
    system = sisa()
    system.train()
    features = system.pool.features[:1]
    for shard, label in enumerate((2, 2, 1)):
        system.checkpoints[shard, -1] = 0
        system.checkpoints[shard, -1, -1, label] = 1
    assert system.predict(features).tolist() == [2]
    system.retained[system.shard_of == 0] = False
    assert system.predict(features).tolist() == [1]  # one against one: the first of equals
    system.retained[:] = False
    assert system.predict(features).tolist() == [0]


def test_a_client_is_deleted_by_its_samples() -> None:
    system, other = sisa(), sisa()
    system.train()
    other.train()
    system.delete_client(2)
    other.delete(system.pool.numbers_of(2))
    assert np.array_equal(system.checkpoints, other.checkpoints)
