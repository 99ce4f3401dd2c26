"""FedCIO after a deletion equals its own retraining with the same clusters, and leaves other
clusters alone.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from system_cases import REQUESTS, delete_retained, pool_of

from expunge.errors import InputError
from expunge_experiments.pool import Pool
from expunge_experiments.systems.catalogue import build
from expunge_experiments.systems.fedcio import FedCio, FedCioSettings, clustered

SETTINGS = FedCioSettings(
    clusters=2, rounds=3, clients_per_round=2, batch=8, rate=0.1, assignment=(0, 1, 0, 1, 1, 0)
)


def fedcio(pool: Pool | None = None, chosen: FedCioSettings = SETTINGS, seed: int = 0) -> FedCio:
    system = build("fedcio", pool or pool_of(clients=6), settings=chosen, seed=seed)
    assert isinstance(system, FedCio)
    return system


@settings(max_examples=6)
@given(requests=REQUESTS, seed=st.integers(0, 3))
def test_deletions_equal_retraining_with_the_same_clusters_bit_for_bit(
    requests: list[set[int]], seed: int
) -> None:
    system = fedcio(chosen=replace(SETTINGS, assignment=()), seed=seed)
    system.train()
    delete_retained(system, requests)
    again = fedcio(chosen=replace(SETTINGS, assignment=tuple(system.clusters.tolist())), seed=seed)
    again.train(np.flatnonzero(system.retained))
    assert np.array_equal(system.heads, again.heads)
    assert np.array_equal(system.weights, again.weights)


@given(number=st.integers(0, 59))
def test_one_deletion_retrains_one_cluster(number: int) -> None:
    system = fedcio()
    system.train()
    before = system.heads.copy()
    cost = system.delete(np.array([number]))
    touched = SETTINGS.assignment[system.pool.owners[number]]
    assert np.array_equal(system.heads[1 - touched], before[1 - touched])
    assert not np.array_equal(system.heads[touched], before[touched])
    assert (cost.recomputed, cost.rounds) == (
        3,
        4,
    )  # each round is an exchange, and so is the deletion itself


def test_two_clusters_train_side_by_side() -> None:
    system = fedcio()
    system.train()
    cost = system.delete(np.arange(30))
    assert (cost.recomputed, cost.rounds) == (6, 4)


def test_the_head_is_the_mean_of_the_clusters_by_their_samples() -> None:
    system = fedcio()
    system.train()
    first = sum((system.pool.owners == client).sum() for client in (0, 2, 5))
    mean = (first * system.heads[0].astype(float) + (60 - first) * system.heads[1]) / 60
    assert np.allclose(system.weights, mean, rtol=1e-6)
    for client in (0, 2, 5):
        system.delete_client(client)
    assert np.array_equal(system.weights, system.heads[1])
    assert not system.heads[0].any()
    for client in (1, 3, 4):
        system.delete_client(client)
    assert not system.weights.any()


def test_clients_of_alike_labels_come_together() -> None:
    owners = np.repeat(np.arange(6), 10)
    labels = np.where(owners % 2 == 0, np.arange(60) % 2, 2)
    pool = Pool(pool_of().features, labels, owners, 3, 6)
    system = fedcio(pool, replace(SETTINGS, assignment=()))
    system.train(np.flatnonzero(owners != 4))
    assert system.clusters[4] == -1
    assert (
        system.clusters[0]
        == system.clusters[2]
        != system.clusters[1]
        == system.clusters[3]
        == system.clusters[5]
    )


def test_there_are_no_more_clusters_than_different_clients() -> None:
    alike = [np.array([2, 2]), np.array([1, 1]), np.array([3, 0])]
    assert len(set(clustered(alike, 3, 0).tolist())) == 2
    assert clustered([], 3, 0).tolist() == []


def test_an_assignment_must_name_every_client() -> None:
    with pytest.raises(InputError, match="clusters of 2 clients, and there are 6"):
        fedcio(chosen=replace(SETTINGS, assignment=(0, 1)))
