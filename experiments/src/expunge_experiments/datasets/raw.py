"""Raw: the samples of a dataset before any backbone has seen them, images or texts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from expunge.errors import InputError
from expunge_experiments.datasets.dataset import Integers, require_classes, require_groups

Samples = NDArray[np.uint8] | list[str]


@dataclass(frozen=True)
class RawDataset:
    """Training and test samples with labels 0 to classes - 1, and whose each training sample is,
    where that is known.

    Images are uint8 arrays (n, height, width) or (n, height, width, 3); texts are strings. `source`
    says in words what they are, and what was left out.
    """

    name: str
    source: str
    modality: Literal["image", "text"]
    classes: int
    train: Samples
    train_labels: Integers
    test: Samples
    test_labels: Integers
    groups: Integers | None = None

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            samples, labels = getattr(self, part), getattr(self, f"{part}_labels")
            if not len(samples) == len(labels) > 0:
                raise InputError(
                    f"{self.name}: there are {len(samples)} {part} samples and {len(labels)} "
                    "labels; some of each"
                )
            require_classes(labels, self.classes, f"{self.name}: {part} labels")
        require_groups(self.groups, self.train_labels, self.name)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over name, samples, labels and groups, in their order: other samples have another
        digest.
        """
        hasher = hashlib.sha256(f"{self.name} {self.modality} {self.classes}\n".encode())
        for samples in (self.train, self.test):
            _add(hasher, samples)
        for numbers in (self.train_labels, self.test_labels, self.groups):
            hasher.update(
                b"none\n"
                if numbers is None
                else f"{len(numbers)}\n".encode() + numbers.astype("<i8").tobytes()
            )
        return hasher.hexdigest()

    def drawn(self, count: int, seed: int) -> RawDataset:
        """The same with this many training samples, drawn at random and left in their order."""
        if not 0 < count <= len(self.train_labels):
            raise InputError(
                f"{self.name} has {len(self.train_labels)} training samples, of which {count} "
                "cannot be drawn"
            )
        chosen = np.sort(
            np.random.default_rng([seed, 0x6472_61]).permutation(len(self.train_labels))[:count]
        )
        return replace(
            self,
            source=(
                f"{self.source}; {count} of {len(self.train_labels)} training samples drawn "
                f"with seed {seed}"
            ),
            train=taken(self.train, chosen),
            train_labels=self.train_labels[chosen],
            groups=None if self.groups is None else self.groups[chosen],
        )


def taken(samples: Samples, numbers: Sequence[int] | NDArray[Any]) -> Samples:
    """These of the samples, in this order."""
    if isinstance(samples, list):
        return [samples[number] for number in numbers]
    return samples[np.asarray(numbers, dtype=np.int64)]


def _add(hasher: Any, samples: Samples) -> None:
    if isinstance(samples, list):
        for text in samples:
            data = text.encode("utf-8", "surrogatepass")
            hasher.update(f"{len(data)}\n".encode() + data)
        return
    hasher.update(f"{samples.shape}\n".encode())
    hasher.update(np.ascontiguousarray(samples).data)
