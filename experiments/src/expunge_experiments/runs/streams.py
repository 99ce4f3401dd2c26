"""Streams: requests drawn at random over all clients, the same for every system; and the federation
that they are made to.

Law: a stream depends on the size of the pool and the seed alone, never on the system or on what it
did before. Checks of settings that several experiments share refuse by name, with what would do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from expunge.errors import InputError
from expunge_experiments import tuned
from expunge_experiments.config import require_known
from expunge_experiments.datasets.catalogue import NAMES
from expunge_experiments.datasets.dataset import Dataset, Integers
from expunge_experiments.pool import Pool, partition
from expunge_experiments.systems import catalogue
from expunge_experiments.systems.base import System

if TYPE_CHECKING:
    from expunge_experiments.datasets.catalogue import Library

_CHUNKS, _SINGLES, _CLIENT, _SUBSET = 0x6368_6B, 0x7369_6E, 0x636C_69, 0x7375_62


def chunks_of(size: int, deleted: Sequence[float], seed: int) -> list[Integers]:
    """The samples that go at each step, ascending, such that after step i a share `deleted[i]` of
    all is gone.
    """
    order = np.random.default_rng([seed, _CHUNKS]).permutation(size)
    ends = [0, *(round(share * size) for share in deleted)]
    return [np.sort(order[start:end]).astype(np.int64) for start, end in pairwise(ends)]


def singles_of(size: int, count: int, seed: int) -> Integers:
    """`count` different samples, in the order in which they go."""
    if count > size:
        raise InputError(
            f"{count} single deletions were asked for, and there are {size} samples; ask for fewer"
        )
    return np.random.default_rng([seed, _SINGLES]).permutation(size)[:count].astype(np.int64)


def client_of(clients: int, seed: int) -> int:
    """The client that is deleted."""
    return int(np.random.default_rng([seed, _CLIENT]).integers(clients))


def subset(dataset: Dataset, samples: int, seed: int) -> Dataset:
    """`samples` training samples, drawn at random, in their order; all of the test samples."""
    if samples > len(dataset.train_labels):
        raise InputError(
            f"samples = {samples}, and {dataset.name} has {len(dataset.train_labels)} training "
            "samples; take fewer"
        )
    drawn = np.random.default_rng([seed, _SUBSET]).permutation(len(dataset.train_labels))[:samples]
    numbers = np.sort(drawn)
    groups = None if dataset.groups is None else dataset.groups[numbers]
    return replace(
        dataset,
        train_features=dataset.train_features[numbers],
        train_labels=dataset.train_labels[numbers],
        groups=groups,
    )


@dataclass(frozen=True)
class PartitionedDataset:
    """A dataset with its partition; systems are built on it with the settings that the sweep
    chose.
    """

    dataset: Dataset
    pool: Pool

    @classmethod
    def of(
        cls, library: Library, dataset: str, clients: int, seed: int, samples: int = 0
    ) -> PartitionedDataset:
        """The paper's partition of a dataset among clients; of `samples` of its training samples,
        drawn at random, or of all if 0.
        """
        data = library.load(dataset)
        if samples:
            data = subset(data, samples, seed)
        return cls(data, Pool.of(data, partition(data, clients, seed), clients))

    def system(self, name: str, seed: int) -> System:
        """An untrained system, its clients in this process."""
        return catalogue.build(
            name, self.pool, settings=tuned.settings_for(self.dataset.name, name), seed=seed
        )

    def accuracy(self, system: System) -> float:
        """The accuracy on the test samples."""
        return system.accuracy(self.dataset.test_features, self.dataset.test_labels)


def listed(value: Any) -> Any:
    """As JSON has it: tuples are lists."""
    return list(value) if isinstance(value, tuple) else value


def check_federation(
    clients: int, seeds: Sequence[int], systems: Iterable[str], samples: int = 0
) -> None:
    """Refuse what no federation can be, by name."""
    if samples < 0:
        raise InputError(f"samples = {samples} must be a number of training samples, or 0 for all")
    if clients < 1:
        raise InputError(f"clients = {clients} must be at least 1")
    if not seeds or len(set(seeds)) != len(seeds) or min(seeds) < 0:
        raise InputError(
            f"seeds = {list(seeds)} must be different whole numbers from 0, at least one of them"
        )
    for name in systems:
        catalogue.entry_of(name)


# -- checks of settings ----------------------------------------------------------------------------


def check_datasets(names: Sequence[str]) -> None:
    """Refuse names that are neither of the catalogue nor of a file or folder that is there."""
    if not names:
        raise InputError(f"datasets must name at least one of {', '.join(NAMES)}, or a path")
    for name in names:
        path = Path(name)
        if name in NAMES or path.exists():
            continue
        if path.suffix or len(path.parts) > 1:
            raise InputError(
                f"there is no file or folder {name}; a dataset is one of {', '.join(NAMES)}, or a "
                "path"
            )
        require_known("dataset", name, NAMES)


def check_positive(name: str, values: Sequence[float]) -> None:
    """Refuse an empty list, and numbers that are not positive and finite."""
    if not values or not all(math.isfinite(value) and value > 0 for value in values):
        raise InputError(f"{name} = {list(values)} must be positive numbers, at least one of them")
