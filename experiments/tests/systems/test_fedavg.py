"""FedAvg retrain: rounds as they are defined, and the same head as training on what is retained."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from system_cases import pool_of

from expunge.errors import InputError
from expunge_experiments.pool import Pool
from expunge_experiments.systems.base import System
from expunge_experiments.systems.catalogue import build
from expunge_experiments.systems.fedavg import FedAvgSettings
from expunge_experiments.systems.gradient import descend, turns, with_constant, zero_head

SMALL = FedAvgSettings(rounds=4, clients_per_round=2, epochs=2, batch=5, rate=0.2)


def trained(
    pool: Pool, numbers: Any = None, *, settings: FedAvgSettings = SMALL, seed: int = 0
) -> System:
    system = build("fedavg", pool, settings=settings, seed=seed)
    system.train(numbers)
    return system


@given(st.sets(st.integers(0, 59)), st.integers(0, 5))
@examples(max_examples=15)
def test_after_a_deletion_it_is_what_training_on_the_rest_gives(gone: set[int], seed: int) -> None:
    pool = pool_of()
    system = trained(pool, seed=seed)
    cost = system.delete(np.array(sorted(gone), dtype=np.int64))
    again = trained(pool, np.setdiff1d(np.arange(60), sorted(gone)), seed=seed)
    assert np.array_equal(system.weights, again.weights)
    assert cost.recomputed == (4 if 0 < len(gone) < 60 else 0)
    assert cost.skipped == 0


def test_adding_back_gives_the_head_of_before() -> None:
    system = trained(pool_of())
    before = np.array(system.weights)
    system.delete(np.arange(7))
    assert not np.array_equal(system.weights, before)
    assert system.add(np.arange(7)).recomputed == 4
    assert np.array_equal(system.weights, before)


def test_one_round_of_all_clients_in_full_batches_is_one_step_on_all_samples() -> None:
    pool = pool_of()
    settings = FedAvgSettings(rounds=3, clients_per_round=4, epochs=1, batch=0, rate=0.5)
    wanted = descend(
        zero_head(5, 3),
        with_constant(pool.features),
        pool.labels,
        epochs=3,
        batch=0,
        rate=0.5,
        draw=np.random.default_rng(0),
    )
    np.testing.assert_allclose(
        trained(pool, settings=settings).weights, wanted, rtol=1e-5, atol=1e-6
    )


def test_clients_without_samples_are_passed_over() -> None:
    pool = pool_of()
    system = trained(pool)
    asked: list[list[int]] = []
    ask = system.engine.ask

    def noted(messages: Any) -> Any:
        asked.append([client for client, message in messages if message.task == "train"])
        return ask(messages)

    system.engine.ask = noted  # type: ignore[method-assign]
    cost = system.delete_client(2)
    assert [clients for clients in asked if clients] == [
        sorted([one for one in turns(0, round_, 4).tolist() if one != 2][:2]) for round_ in range(4)
    ]
    assert cost.rounds == 5  # one to forget, and four of training


def test_participants_differ_from_round_to_round_and_by_seed() -> None:
    orders = {tuple(turns(seed, round_, 20).tolist()) for seed in range(3) for round_ in range(5)}
    assert len(orders) == 15
    assert turns(1, 2, 20).tolist() == turns(1, 2, 20).tolist()


def test_the_emptied_federation_has_the_zero_head() -> None:
    system = trained(pool_of())
    system.delete(np.arange(60))
    assert not np.asarray(system.weights).any()


def test_deleting_nobody_asks_nobody() -> None:
    system = trained(pool_of())
    system.delete_client(1)
    cost = system.delete_client(1)
    assert (cost.rounds, cost.recomputed, cost.bytes_up) == (0, 0, 0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"rounds": 0},
        {"clients_per_round": 0},
        {"epochs": 0},
        {"batch": -1},
        {"rate": 0.0},
        {"rounds": True},
    ],
)
def test_impossible_settings_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        FedAvgSettings(**wrong)
