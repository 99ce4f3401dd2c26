"""Pool: the training samples of a federation, each with the client that owns it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from expunge.errors import InputError
from expunge_experiments.datasets.dataset import Dataset, Features, Integers


@dataclass(frozen=True)
class Samples:
    """Features (n, dim), labels and the numbers in the pool of one client's samples, retained or not, in ascending order."""

    features: Features
    labels: Integers
    numbers: Integers


@dataclass(frozen=True)
class Pool:
    """Samples are named by their number in the pool; `owners[i]` is the client of sample i, from 0 to clients - 1."""

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
        return [order[bounds[client] : bounds[client + 1]].astype(np.int64) for client in range(self.clients)]

    def numbers_of(self, client: int) -> Integers:
        """The numbers of a client's samples, ascending."""
        return self._by_client[client]

    def samples_of(self, client: int) -> Samples:
        """A client's samples, copied into arrays of their own."""
        numbers = self.numbers_of(client)
        return Samples(self.features[numbers], self.labels[numbers], numbers)
