"""Dataset: training and test features with labels, and, where it is known, whose each training
sample is.

Exact arithmetic takes features on the product's own grid, or on a coarser one where they are larger
than that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge import Grid
from expunge.errors import InputError
from expunge_experiments.message import Array

Features = NDArray[np.float32]
Integers = NDArray[np.int64]


def require_classes(labels: Integers, classes: int, what: str) -> None:
    """Refuse labels that are not 0 to classes - 1."""
    if len(labels) and not (labels.min() >= 0 and labels.max() < classes):
        raise InputError(
            f"{what} run from {labels.min()} to {labels.max()}, not 0 to {classes - 1}"
        )


def require_groups(groups: Integers | None, labels: Integers, dataset: str) -> None:
    """Refuse groups that are not one for each of the training samples with these labels."""
    if groups is not None and groups.shape != labels.shape:
        raise InputError(
            f"{dataset}: there are {len(groups)} groups for {len(labels)} training samples"
        )


@dataclass(frozen=True)
class Dataset:
    """Features (n, dim) in float32 and labels 0 to classes - 1.

    `groups` says whose each training sample is (writer or user, numbered from 0), and is None where
    that is unknown. `source` says in words what the features are and which backbone made them.
    """

    name: str
    source: str
    classes: int
    train_features: Features
    train_labels: Integers
    test_features: Features
    test_labels: Integers
    groups: Integers | None = None

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            features, labels = getattr(self, f"{part}_features"), getattr(self, f"{part}_labels")
            if features.ndim != 2 or labels.shape != (len(features),):
                raise InputError(
                    f"{self.name}: the {part} features have shape {features.shape} and the labels "
                    f"{labels.shape}; give one row of features and one label for each sample"
                )
            require_classes(labels, self.classes, f"{self.name}: {part} labels")
        if self.train_features.shape[1] != self.test_features.shape[1]:
            raise InputError(
                f"{self.name}: training features have {self.train_features.shape[1]} columns and "
                "test features "
                f"{self.test_features.shape[1]}; both must come from the same backbone"
            )
        require_groups(self.groups, self.train_labels, self.name)

    @property
    def dim(self) -> int:
        """The number of features, without the constant one."""
        return int(self.train_features.shape[1])

    def held_out(self, fraction: float, seed: int) -> Dataset:
        """The same training samples, of which a random fraction is the test set: for choosing
        settings without the real one.
        """
        if not 0.0 < fraction < 1.0:
            raise InputError(f"the fraction held out must be between 0 and 1, not {fraction}")
        order = np.random.default_rng([seed, 0x7661_6C]).permutation(len(self.train_labels))
        cut = max(1, round(fraction * len(order)))
        held, training = np.sort(order[:cut]), np.sort(order[cut:])
        return Dataset(
            self.name,
            self.source,
            self.classes,
            self.train_features[training],
            self.train_labels[training],
            self.train_features[held],
            self.train_labels[held],
            None if self.groups is None else self.groups[training],
        )

    def described(self) -> dict[str, Any]:
        """What goes into results."""
        return {
            "name": self.name,
            "source": self.source,
            "classes": self.classes,
            "dim": self.dim,
            "train": len(self.train_labels),
            "test": len(self.test_labels),
        }


# -- grids -----------------------------------------------------------------------------------------


USUAL = Grid()


def largest_of(features: Array) -> float:
    """The largest magnitude; 0 of nothing."""
    return float(max(features.max(), -features.min())) if features.size else 0.0


def fitting_grid(features: Array) -> Grid:
    """The usual grid where it holds these features, and otherwise the finest that does; the
    coarsest, where none does.
    """
    largest = largest_of(features)
    return USUAL if largest < USUAL.limit else Grid.covering(largest, headroom_bits=0)
