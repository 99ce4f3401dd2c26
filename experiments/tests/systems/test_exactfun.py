"""Exact-Fun: what is kept after deletions is, bit for bit, what training on the rest gives; skips
are real skips.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from system_cases import goes_on_elsewhere, pool_of

from expunge.errors import InputError
from expunge_experiments.pool import Pool
from expunge_experiments.systems.base import UnsupportedError
from expunge_experiments.systems.catalogue import build
from expunge_experiments.systems.check import fingerprint
from expunge_experiments.systems.exactfun import ExactFun, ExactFunSettings
from expunge_experiments.systems.gradient import LOCAL, cut, follow, with_constant

LIVELY = ExactFunSettings(alpha=0.01, rounds=5, clients_per_round=2, epochs=1, batch=4, rate=0.5)
DULL = ExactFunSettings(alpha=0.3, rounds=5, clients_per_round=2, epochs=1, batch=4, rate=0.5)
STILL = ExactFunSettings(alpha=100.0, rounds=5, clients_per_round=2, epochs=1, batch=4, rate=0.5)


def trained(pool: Pool, settings: ExactFunSettings, numbers: Any = None, seed: int = 0) -> ExactFun:
    system = cast("ExactFun", build("exactfun", pool, settings=settings, seed=seed))
    system.train(numbers)
    return system


def kept(system: ExactFun) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in system._state().items() if name != "repeated"}


@given(
    st.lists(st.sets(st.integers(0, 59), min_size=1, max_size=6), min_size=1, max_size=4),
    st.sampled_from([LIVELY, DULL, STILL]),
    st.integers(0, 9),
)
@examples(max_examples=20)
def test_after_any_deletions_all_that_is_kept_is_that_of_training_on_the_rest(
    requests: list[set[int]], settings: ExactFunSettings, seed: int
) -> None:
    pool = pool_of()
    system = trained(pool, settings, seed=seed)
    for request in requests:
        chosen = np.array([one for one in sorted(request) if system.retained[one]], dtype=np.int64)
        cost = system.delete(chosen)
        assert bool(cost.recomputed) != bool(cost.skipped) or not len(chosen)
    assert kept(system) == kept(trained(pool, settings, np.flatnonzero(system.retained), seed=seed))


@given(st.permutations(range(4)), st.sampled_from([LIVELY, DULL]))
@examples(max_examples=10)
def test_clients_go_one_by_one_until_nothing_is_left(
    order: list[int], settings: ExactFunSettings
) -> None:
    pool = pool_of()
    system = trained(pool, settings)
    for client in order:
        system.delete_client(client)
        assert kept(system) == kept(trained(pool, settings, np.flatnonzero(system.retained)))
    assert not np.asarray(system.weights).any()


@given(st.integers(0, 59), st.sampled_from([LIVELY, DULL, STILL]), st.integers(0, 9))
@examples(max_examples=30)
def test_asking_tells_what_deleting_does_and_changes_nothing(
    sample: int, settings: ExactFunSettings, seed: int
) -> None:
    system = trained(pool_of(), settings, seed=seed)
    before = fingerprint(system)
    first = system.first_change(np.array([sample]))
    assert fingerprint(system) == before
    cost = system.delete(np.array([sample]))
    assert cost.skipped == (first is None)
    assert cost.recomputed == (0 if first is None else settings.rounds - first)


def test_a_skip_leaves_the_head_and_costs_one_training_for_each_round_of_the_client() -> None:
    pool = pool_of()
    system = trained(pool, STILL)
    head, joined = (
        np.array(system.weights),
        [int((system.participants == client).any(axis=1).sum()) for client in range(4)],
    )
    sample = 11
    cost = system.delete(np.array([sample]))
    assert np.array_equal(system.weights, head)
    assert (cost.skipped, cost.recomputed) == (1, 0)
    assert system.repeated == joined[int(pool.owners[sample])]
    assert cost.rounds == 1 + system.repeated


def test_steps_decide_between_skips_and_recomputation() -> None:
    pool = pool_of()
    counts = {}
    for settings in (LIVELY, DULL, STILL):
        system = trained(pool, settings)
        counts[settings.alpha] = sum(
            system.first_change(np.array([sample])) is not None for sample in range(60)
        )
    assert counts[LIVELY.alpha] > counts[DULL.alpha] > counts[STILL.alpha] == 0


def test_the_head_lies_on_the_grid_and_rounds_start_on_it() -> None:
    system = trained(pool_of(), DULL)
    levels = np.asarray(system.weights, dtype=np.float64) / DULL.alpha
    np.testing.assert_allclose(levels, np.rint(levels), atol=1e-6)
    assert np.asarray(system.weights).any()


def test_a_deletion_changes_no_batch_that_it_is_not_in() -> None:
    """Where every batch is one sample, and the deleted one's step is the only one missing, heads
    differ by that step alone.
    """
    pool = pool_of()
    settings = ExactFunSettings(
        alpha=1e-6, rounds=1, clients_per_round=1, epochs=1, batch=1, rate=1e-4
    )
    system = trained(pool, settings)
    client = int(system.participants[0, 0])
    sample = int(pool.numbers_of(client)[0])
    before = system.models[0, 0].copy()
    system.delete(np.array([sample]))
    row = np.append(pool.features[sample], 1.0)
    step = -1e-4 * np.outer(row, np.full(3, 1 / 3) - np.eye(3)[pool.labels[sample]])
    np.testing.assert_allclose(before - system.models[0, 0], step, atol=2e-6)


@pytest.mark.parametrize("settings", [LIVELY, DULL])
def test_training_is_as_the_method_is_described(settings: ExactFunSettings) -> None:
    """Written out anew: all clients that take part start from the quantized head, and their mean by
    samples is quantized.
    """
    pool, seed, alpha = pool_of(), 3, settings.alpha
    system, head = trained(pool, settings, seed=seed), np.zeros((6, 3))
    for round_ in range(settings.rounds):
        total, count = np.zeros((6, 3)), 0
        taking_part = system.participants[round_].tolist()
        assert len(set(taking_part)) == settings.clients_per_round
        for client in taking_part:
            mine = pool.numbers_of(client)
            draw = np.random.default_rng([seed, LOCAL, round_, client])
            batches = cut(len(mine), epochs=settings.epochs, batch=settings.batch, draw=draw)
            start = (alpha * np.round(head / alpha)).astype(np.float32)
            local = follow(
                start, with_constant(pool.features[mine]), pool.labels[mine], batches, settings.rate
            )
            total, count = total + len(mine) * local.astype(np.float64), count + len(mine)
        head = total / count
    assert np.array_equal(system.weights, (alpha * np.round(head / alpha)).astype(np.float32))


def test_it_cannot_add() -> None:
    system = trained(pool_of(), DULL)
    system.delete(np.array([3]))
    with pytest.raises(UnsupportedError, match="add"):
        system.add(np.array([3]))


def test_asking_about_what_is_gone_is_refused() -> None:
    system = trained(pool_of(), DULL)
    system.delete(np.array([3]))
    with pytest.raises(InputError, match="not retained"):
        system.first_change(np.array([3]))


_GO_ON = """
import sys
from pathlib import Path
import numpy as np
sys.path.insert(0, sys.argv[2])
from system_cases import pool_of
from expunge_experiments.systems.catalogue import build
from expunge_experiments.systems.check import fingerprint
from expunge_experiments.systems.exactfun import ExactFunSettings
settings = ExactFunSettings(alpha=0.01, rounds=5, clients_per_round=2, epochs=1, batch=4, rate=0.5)
system = build("exactfun", pool_of(), settings=settings, seed=0).load(Path(sys.argv[1]))
system.delete(np.array([4, 9]))
system.delete_client(1)
sys.stdout.write(fingerprint(system))
"""


def test_another_process_goes_on_bit_for_bit(tmp_path: Path) -> None:
    goes_on_elsewhere(trained(pool_of(), LIVELY), _GO_ON, tmp_path)
