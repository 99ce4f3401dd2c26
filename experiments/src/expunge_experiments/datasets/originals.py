"""Originals: the datasets that a user has in their standard files, and how each is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from expunge.errors import InputError
from expunge_experiments.datasets.cifar import CIFAR10, CIFAR100, read_cifar
from expunge_experiments.datasets.leaf import WRITERS, read_femnist
from expunge_experiments.datasets.raw import RawDataset
from expunge_experiments.datasets.sentiment140 import ARCHIVE, read_sentiment140


@dataclass(frozen=True)
class Subset:
    """What to take of an original; None means as in the original.

    A number of writers (FeMNIST), a fraction of users held out for the test (Sentiment140), and
    finally a number of training samples.
    """

    writers: int | None = None
    hold_out: float | None = None
    samples: int | None = None
    seed: int = 0


@dataclass(frozen=True)
class Original:
    """One original: what it is called, the official files, how it is read, and what may be chosen
    of it.
    """

    title: str
    files: str
    read: Callable[[Path, Subset], RawDataset]
    options: frozenset[str] = frozenset()


ORIGINALS: Mapping[str, Original] = {
    CIFAR10.name: Original(
        CIFAR10.title, CIFAR10.archive, lambda folder, _: read_cifar(CIFAR10, folder)
    ),
    CIFAR100.name: Original(
        CIFAR100.title, CIFAR100.archive, lambda folder, _: read_cifar(CIFAR100, folder)
    ),
    "femnist": Original(
        "FeMNIST",
        "the json files of LEAF's data/femnist",
        lambda folder, choice: read_femnist(
            folder, writers=WRITERS if choice.writers is None else choice.writers, seed=choice.seed
        ),
        frozenset({"writers"}),
    ),
    "sentiment140": Original(
        "Sentiment140",
        ARCHIVE,
        lambda folder, choice: read_sentiment140(
            folder, hold_out=choice.hold_out, seed=choice.seed
        ),
        frozenset({"hold_out"}),
    ),
}


def read_original(name: str, folder: Path, choice: Subset | None = None) -> RawDataset:
    """The raw samples of an original in a folder of data."""
    wanted = choice or Subset()
    original = ORIGINALS.get(name)
    if original is None:
        raise InputError(
            f"{name!r} is no original that can be read; there are {', '.join(ORIGINALS)}"
        )
    for option in ("writers", "hold_out"):
        if getattr(wanted, option) is not None and option not in original.options:
            raise InputError(f"{option} is not for {name}; leave it out")
    if wanted.seed < 0:
        raise InputError(f"seed={wanted.seed} must be at least 0")
    raw = original.read(folder, wanted)
    return raw if wanted.samples is None else raw.drawn(wanted.samples, wanted.seed)
