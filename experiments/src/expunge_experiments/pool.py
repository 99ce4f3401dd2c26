"""Pool: the training samples of a federation, each with the client that owns it; and partitions,
which say who owns which.

Every sample has exactly one owner, and no client is empty.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.errors import InputError
from expunge_experiments.datasets.dataset import Dataset, Features, Integers


@dataclass(frozen=True)
class ClientSamples:
    """Features (n, dim), labels and the numbers in the pool of one client's samples, retained or
    not, in ascending order.
    """

    features: Features
    labels: Integers
    numbers: Integers


@dataclass(frozen=True)
class Pool:
    """Samples are named by their number in the pool; `owners[i]` is the client of sample i, from 0
    to clients - 1.
    """

    features: Features
    labels: Integers
    owners: Integers
    classes: int
    clients: int

    def __post_init__(self) -> None:
        if not len(self.features) == len(self.labels) == len(self.owners):
            raise InputError("features, labels and owners must have one entry for each sample")
        if len(self.owners) and not (self.owners.min() >= 0 and self.owners.max() < self.clients):
            raise InputError(f"owners must be clients 0 to {self.clients - 1}")

    @classmethod
    def of(cls, dataset: Dataset, owners: Integers, clients: int) -> Pool:
        """The training samples of a dataset under a partition."""
        return cls(dataset.train_features, dataset.train_labels, owners, dataset.classes, clients)

    @property
    def size(self) -> int:
        """The number of samples, retained or not."""
        return len(self.labels)

    @property
    def dim(self) -> int:
        """The number of features, without the constant one."""
        return int(self.features.shape[1])

    @cached_property
    def _by_client(self) -> list[NDArray[np.int64]]:
        order = np.argsort(self.owners, kind="stable")
        bounds = np.searchsorted(self.owners[order], np.arange(self.clients + 1))
        return [
            order[bounds[client] : bounds[client + 1]].astype(np.int64)
            for client in range(self.clients)
        ]

    def numbers_of(self, client: int) -> Integers:
        """The numbers of a client's samples, ascending."""
        return self._by_client[client]

    def samples_of(self, client: int) -> ClientSamples:
        """A client's samples, copied into arrays of their own."""
        numbers = self.numbers_of(client)
        return ClientSamples(self.features[numbers], self.labels[numbers], numbers)


# -- partitions ------------------------------------------------------------------------------------


BY_GROUP = frozenset({"digits_by_writer", "femnist"})  # whole writers per client, as in the paper
_ALPHAS = (1e-3, 1e6)  # beyond these, draws underflow, or are the even division for all purposes
_DIRICHLET, _GROUPS = 0x6469_72, 0x6772_70


def partition(dataset: Dataset, clients: int, seed: int, alpha: float = 0.5) -> Integers:
    """The paper's partition of a dataset: whole writers for digits and FeMNIST, Dirichlet(alpha)
    over labels for all others.
    """
    if dataset.name not in BY_GROUP:
        return dirichlet(dataset.train_labels, clients, alpha, seed)
    if dataset.groups is None:
        raise InputError(
            f"{dataset.name} is divided by writer, and it is not known who wrote its samples: "
            "give train_groups"
        )
    return by_group(dataset.groups, clients, seed)


def dirichlet(labels: NDArray[Any], clients: int, alpha: float, seed: int) -> Integers:
    """Each class is divided among the clients in proportions of its own, drawn from a symmetric
    Dirichlet(alpha).

    The smaller alpha, the fewer clients share a class; the larger, the more evenly it is divided. A
    client that would be empty is given one sample of the client that has most at that moment (of
    several, the first), drawn at random; no other sample changes its owner. A pure function of its
    arguments.
    """
    count = _required(len(labels), clients, "samples")
    if isinstance(alpha, bool) or not math.isfinite(alpha) or not _ALPHAS[0] <= alpha <= _ALPHAS[1]:
        raise InputError(
            f"alpha={alpha} must be a number from {_ALPHAS[0]:g} to {_ALPHAS[1]:g}; the paper has "
            "0.5"
        )
    draw = _generator(seed, _DIRICHLET)
    owners = np.empty(count, dtype=np.int64)
    for label in np.unique(labels):
        members = draw.permutation(np.flatnonzero(labels == label))
        ends = np.round(np.cumsum(draw.dirichlet(np.full(clients, alpha))) * len(members)).astype(
            np.int64
        )
        owners[members] = np.searchsorted(ends[:-1], np.arange(len(members)), side="right")
    fill_empty(owners, clients, draw)
    return owners


def by_group(groups: NDArray[Any], clients: int, seed: int) -> Integers:
    """Whole groups (writers, users) to clients, whose numbers of groups differ by one at most.

    The groups are the same, and in the same random order, for every number of clients: the clients
    take them in turns.
    """
    names, which = np.unique(groups, return_inverse=True)
    count = _required(len(names), clients, "groups")
    turn = np.empty(count, dtype=np.int64)
    turn[_generator(seed, _GROUPS).permutation(count)] = np.arange(count) % clients
    return turn[which]


def _required(count: int, clients: int, what: str) -> int:
    if isinstance(clients, bool) or not isinstance(clients, (int, np.integer)) or clients < 1:
        raise InputError(f"clients={clients!r} must be an integer of at least 1")
    if count < clients:
        raise InputError(
            f"{count} {what} cannot be divided among {clients} clients such that each has some; "
            "take fewer clients"
        )
    return count


def _generator(seed: int, purpose: int) -> np.random.Generator:
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise InputError(f"seed={seed!r} must be an integer of at least 0")
    return np.random.default_rng([int(seed), purpose])


def fill_empty(owners: Integers, clients: int, draw: np.random.Generator) -> None:
    """One sample for each empty client, of the one that has most; there are at least as many
    samples as clients.
    """
    sizes = np.bincount(owners, minlength=clients)
    for client in np.flatnonzero(sizes == 0):
        giver = int(sizes.argmax())
        owners[draw.choice(np.flatnonzero(owners == giver))] = client
        sizes[giver] -= 1
        sizes[client] += 1
