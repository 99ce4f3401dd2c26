"""Partitions: every sample has one owner, no client is empty, and the seed decides everything."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge.errors import InputError
from expunge_experiments.datasets.dataset import Dataset
from expunge_experiments.pool import Pool, by_group, dirichlet, fill_empty, partition

alphas = st.floats(1e-3, 1e6)
seeds = st.integers(0, 2**40)


@st.composite
def labelled(draw: st.DrawFn) -> tuple[np.ndarray[Any, Any], int]:
    """Labels, and a number of clients that they can be divided among."""
    labels = np.array(draw(st.lists(st.integers(0, 5), min_size=1, max_size=60)))
    return labels, draw(st.integers(1, len(labels)))


def dataset(name: str, labels: Any, groups: Any) -> Dataset:
    features = np.zeros((len(labels), 2), np.float32)
    return Dataset(
        name, "made here", 6, features, np.array(labels), features[:1], np.array([0]), groups
    )


@given(labelled(), alphas, seeds)
def test_every_client_has_some_and_every_sample_one_owner(
    case: Any, alpha: float, seed: int
) -> None:
    labels, clients = case
    owners = dirichlet(labels, clients, alpha, seed)
    assert owners.shape == labels.shape
    assert owners.dtype == np.int64
    assert set(owners.tolist()) == set(range(clients))
    assert np.array_equal(owners, dirichlet(labels, clients, alpha, seed))


@given(labelled(), seeds)
def test_a_partition_makes_a_pool(case: Any, seed: int) -> None:
    labels, clients = case
    data = dataset("cifar10", labels, None)
    pool = Pool.of(data, partition(data, clients, seed), clients)
    numbers = np.concatenate([pool.numbers_of(client) for client in range(clients)])
    assert np.array_equal(np.sort(numbers), np.arange(len(labels)))


def shares(owners: Any, labels: Any, clients: int) -> Any:
    """Which part of each class (rows) each client has."""
    return np.stack(
        [
            np.bincount(owners[labels == label], minlength=clients) / (labels == label).sum()
            for label in range(10)
        ]
    )


def test_a_large_alpha_divides_evenly_and_a_small_one_hardly_at_all() -> None:
    labels = np.arange(20_000) % 10
    even = shares(dirichlet(labels, 20, 1e6, 1), labels, 20)
    assert np.abs(even - 1 / 20).max() < 0.002
    concentrated = shares(dirichlet(labels, 20, 1e-3, 1), labels, 20)
    assert np.sort(concentrated, axis=1)[:, -1].min() > 0.95


@pytest.mark.parametrize("alpha", [0.1, 0.5, 2.0])
def test_shares_are_spread_as_a_dirichlet_says(alpha: float) -> None:
    """The variance of a share of Dirichlet(alpha) among K is (1/K)(1 - 1/K) / (K alpha + 1), seen
    over many classes.
    """
    clients, labels = 10, np.arange(40_000) % 10
    found = np.concatenate(
        [shares(dirichlet(labels, clients, alpha, seed), labels, clients) for seed in range(40)]
    )
    assert np.allclose(found.mean(axis=0), 1 / clients, atol=0.05)
    assert np.isclose(found.var(), 0.09 / (clients * alpha + 1), rtol=0.15)


def test_classes_are_divided_independently() -> None:
    """No client is large in all classes by design: shares of different classes are uncorrelated."""
    labels = np.arange(20_000) % 10
    found = np.stack(
        [shares(dirichlet(labels, 10, 0.5, seed), labels, 10)[:2] for seed in range(60)]
    )
    first, second = found[:, 0].ravel(), found[:, 1].ravel()
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.15


@given(labelled(), seeds)
def test_an_empty_client_gets_one_sample_of_the_largest_and_no_other_moves(
    case: Any, seed: int
) -> None:
    labels, clients = case
    draw = np.random.default_rng(seed)
    drawn = draw.integers(draw.integers(1, clients, endpoint=True), size=len(labels))
    owners = drawn.copy()
    fill_empty(owners, clients, draw)
    moved = np.flatnonzero(owners != drawn)
    assert sorted(owners[moved]) == sorted(set(range(clients)) - set(drawn.tolist()))
    sizes = np.bincount(owners, minlength=clients)
    assert (
        sizes[drawn[moved]] >= sizes.max() - 1
    ).all()  # whoever gave was the largest, and is so still, but for one sample


def test_seeds_differ() -> None:
    labels = np.arange(1000) % 10
    assert len({dirichlet(labels, 10, 0.5, seed).tobytes() for seed in range(20)}) == 20
    groups = np.repeat(np.arange(50), 4)
    assert len({by_group(groups, 10, seed).tobytes() for seed in range(20)}) == 20


@given(st.data(), seeds)
def test_whole_groups_go_to_clients_in_equal_numbers(data: st.DataObject, seed: int) -> None:
    groups = np.array(data.draw(st.lists(st.integers(0, 30), min_size=1, max_size=80)))
    names = np.unique(groups)
    clients = data.draw(st.integers(1, len(names)))
    owners = by_group(groups, clients, seed)
    owner_of = {int(group): set(owners[groups == group].tolist()) for group in names}
    assert all(len(found) == 1 for found in owner_of.values())
    counts = np.bincount(
        [owner for found in owner_of.values() for owner in found], minlength=clients
    )
    assert counts.min() >= 1
    assert counts.max() - counts.min() <= 1
    assert np.array_equal(owners, by_group(groups, clients, seed))


def test_groups_are_the_same_whatever_the_number_of_clients() -> None:
    """Of 100 writers, 50 clients are the 100 taken two by two, and 10 clients are the 50 taken five
    by five.
    """
    groups = np.repeat(np.arange(100), 3)
    hundred, fifty, ten = (by_group(groups, clients, 7) for clients in (100, 50, 10))
    for fine, coarse, each in ((hundred, fifty, 2), (fifty, ten, 5)):
        for client in range(coarse.max() + 1):
            assert len(np.unique(fine[coarse == client])) == each
        assert all(len(np.unique(coarse[fine == client])) == 1 for client in range(fine.max() + 1))


def test_the_papers_partition_of_each_dataset() -> None:
    labels, groups = np.arange(60) % 6, np.repeat(np.arange(20), 3)
    for name in ("digits_by_writer", "femnist"):
        assert np.array_equal(
            partition(dataset(name, labels, groups), 5, 3), by_group(groups, 5, 3)
        )
    for name in ("cifar10", "tweets_by_user", "mine"):
        assert np.array_equal(
            partition(dataset(name, labels, groups), 5, 3), dirichlet(labels, 5, 0.5, 3)
        )
    assert np.array_equal(
        partition(dataset("mine", labels, None), 5, 3, alpha=2.0), dirichlet(labels, 5, 2.0, 3)
    )
    with pytest.raises(InputError, match="femnist is divided by writer"):
        partition(dataset("femnist", labels, None), 5, 3)


@pytest.mark.parametrize("clients", [0, -1, 1.5, True, "3", 11])
def test_numbers_of_clients_that_cannot_be(clients: Any) -> None:
    with pytest.raises(InputError, match="clients"):
        dirichlet(np.zeros(10, np.int64), clients, 0.5, 0)
    with pytest.raises(InputError, match="clients"):
        by_group(np.repeat(np.arange(10), 2), clients, 0)


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf"), 1e-4, 1e7, True])
def test_alphas_that_cannot_be(alpha: Any) -> None:
    with pytest.raises(InputError, match=f"alpha={alpha}"):
        dirichlet(np.zeros(10, np.int64), 2, alpha, 0)


@pytest.mark.parametrize("seed", [-1, 0.5, None, True])
def test_seeds_that_cannot_be(seed: Any) -> None:
    with pytest.raises(InputError, match="seed="):
        dirichlet(np.zeros(10, np.int64), 2, 0.5, seed)
    with pytest.raises(InputError, match="seed="):
        by_group(np.arange(10), 2, seed)
