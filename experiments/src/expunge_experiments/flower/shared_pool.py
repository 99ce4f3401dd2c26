"""SharedPool: the pool and the test set as files that many processes map into memory, so that each
decodes and copies nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from expunge.errors import InputError
from expunge.storage.files import write_whole
from expunge_experiments.datasets.dataset import Features, Integers
from expunge_experiments.message import Array
from expunge_experiments.pool import Pool

_FOLDER = "shared-pool"
_ARRAYS = ("features", "labels", "owners", "test_features", "test_labels")
_REST = "shared-pool.json"


@dataclass(frozen=True)
class SharedPool:
    """A pool, and samples on which heads are tested."""

    pool: Pool
    test_features: Features
    test_labels: Integers

    def write(self, folder: Path) -> None:
        """Lay it out in a folder, from which any number of jobs can be measured."""
        place = folder / _FOLDER
        place.mkdir(parents=True, exist_ok=True)
        arrays: list[Array] = [
            self.pool.features,
            self.pool.labels,
            self.pool.owners,
            self.test_features,
            self.test_labels,
        ]
        for name, array in zip(_ARRAYS, arrays, strict=True):
            np.save(place / f"{name}.npy", array)
        rest = {"classes": self.pool.classes, "clients": self.pool.clients}
        write_whole(place / _REST, json.dumps(rest).encode())  # last: it says that all is there

    @classmethod
    def read(cls, folder: Path) -> Self:
        """What is laid out in a folder, mapped into memory."""
        place = folder / _FOLDER
        if not (place / _REST).is_file():
            raise InputError(
                f"{folder} has no pool: lay one out with `SharedPool(pool, test_features, "
                "test_labels).write(folder)`"
            )
        features, labels, owners, test_features, test_labels = (
            _mapped(place / f"{name}.npy") for name in _ARRAYS
        )
        rest = json.loads((place / _REST).read_bytes())
        return cls(
            Pool(features, labels, owners, rest["classes"], rest["clients"]),
            test_features,
            test_labels,
        )


def _mapped(path: Path) -> Array:
    """The array in a file, as an ordinary one whose pages are the file's."""
    return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
