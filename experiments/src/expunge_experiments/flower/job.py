"""Job: what a system is to do on Flower, as data that a ServerApp finds in a file; Outcome: what
came of it; and SharedPool: the pool and the test set as files that many processes map into memory,
so that each decodes and copies nothing.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from expunge import __version__
from expunge.errors import FormatError, InputError
from expunge.storage.files import write_whole
from expunge_experiments.datasets.dataset import Features, Integers
from expunge_experiments.message import Array
from expunge_experiments.pool import Pool
from expunge_experiments.systems.base import OPERATIONS, Cost
from expunge_experiments.systems.catalogue import settings_dict, settings_from

_JOB, _OUTCOME = "job.json", "outcome.json"


@dataclass(frozen=True)
class JobRequest:
    """One operation of a system: "delete" or "add" samples by their numbers, or "delete_client"
    with the client's.
    """

    operation: str
    numbers: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.operation not in OPERATIONS:
            raise InputError(
                f"there is no operation {self.operation!r}; there are {', '.join(OPERATIONS)}"
            )
        if self.operation == "delete_client" and len(self.numbers) != 1:
            raise InputError(f"delete_client takes one client, not {len(self.numbers)}")

    @classmethod
    def delete(cls, numbers: NDArray[np.int64]) -> Self:
        """Delete samples, as one request."""
        return cls("delete", tuple(map(int, numbers)))

    @classmethod
    def add(cls, numbers: NDArray[np.int64]) -> Self:
        """Add samples, as one request."""
        return cls("add", tuple(map(int, numbers)))


@dataclass(frozen=True)
class Job:
    """A system by name, the settings and the seed that it is made with, and what is asked of it
    after it is trained.

    `settings` are those of the system (`systems.catalogue.settings_from` makes them of values of
    JSON), or None for the usual ones. It is trained on the samples `training`, or on all of the
    pool.
    """

    system: str
    settings: Any = None
    seed: int = 0
    requests: tuple[JobRequest, ...] = ()
    training: tuple[int, ...] | None = None

    def write(self, folder: Path) -> None:
        """Leave the job in a folder."""
        settings = None if self.settings is None else settings_dict(self.settings)
        content = asdict(replace(self, settings=None)) | {
            "settings": settings,
            "version": __version__,
        }
        write_whole(folder / _JOB, json.dumps(content).encode())

    @classmethod
    def read(cls, folder: Path) -> Job:
        """The job in a folder."""
        content = _read(folder / _JOB)
        if content.pop("version", None) != __version__:
            raise InputError(
                f"{folder / _JOB} was not written by this version of Expunge ({__version__}): "
                "Flower's environment has another one than yours; install the same in both"
            )
        requests = tuple(
            JobRequest(entry["operation"], tuple(entry["numbers"]))
            for entry in content.pop("requests")
        )
        system, training, settings = content["system"], content["training"], content["settings"]
        return cls(
            system,
            None if settings is None else settings_from(system, settings),
            content["seed"],
            requests,
            None if training is None else tuple(training),
        )


@dataclass(frozen=True)
class JobOutcome:
    """What came of a job: costs of training and of each request; accuracy and the head's digest
    after each of them.

    The digest is empty for systems without a single head. `loading_seconds` is the time of all
    clients together that is in no cost's `client_seconds` (it is orchestration): finding samples,
    making the worker, and reading and writing its state. `whole_seconds` is everything as a user
    would wait for it, with the start of Flower, Ray and the app.
    """

    training: Cost
    requests: tuple[Cost, ...]
    accuracies: tuple[float, ...]
    digests: tuple[str, ...]
    loading_seconds: float = 0.0
    whole_seconds: float = 0.0

    @property
    def accuracy(self) -> float:
        """The accuracy in the end."""
        return self.accuracies[-1]

    @property
    def digest(self) -> str:
        """The head's digest in the end."""
        return self.digests[-1]

    def as_dict(self) -> dict[str, Any]:
        """For results."""
        return asdict(self)


@dataclass
class Diary:
    """A job's progress so far, in a file of its folder, visible to those who wait."""

    folder: Path
    costs: list[Cost]
    accuracies: list[float]
    digests: list[str]
    loading_seconds: float = 0.0
    problem: str = ""

    @classmethod
    def begin(cls, folder: Path) -> Self:
        """An empty one."""
        return cls(folder, [], [], [])

    def write(self) -> None:
        """Leave it in its folder."""
        write_whole(self.folder / _OUTCOME, json.dumps({**asdict(self), "folder": ""}).encode())

    @classmethod
    def read(cls, folder: Path) -> Self:
        """What is there; an empty one, if nothing is."""
        if not (folder / _OUTCOME).exists():
            return cls.begin(folder)
        content = _read(folder / _OUTCOME)
        return cls(
            **(content | {"folder": folder, "costs": [Cost(**cost) for cost in content["costs"]]})
        )

    def outcome(self, whole_seconds: float) -> JobOutcome:
        """What came of it all."""
        training, *requests = self.costs
        accuracies, digests = tuple(self.accuracies), tuple(self.digests)
        return JobOutcome(
            training, tuple(requests), accuracies, digests, self.loading_seconds, whole_seconds
        )


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as problem:
        raise FormatError(f"{path} cannot be read: {problem}") from problem
    if not isinstance(content, dict):
        raise FormatError(f"{path} is not what was written there")
    return content


_POOL_FOLDER = "shared-pool"
_POOL_ARRAYS = ("features", "labels", "owners", "test_features", "test_labels")
_SIZES = "shared-pool.json"


@dataclass(frozen=True)
class SharedPool:
    """A pool, and samples on which heads are tested."""

    pool: Pool
    test_features: Features
    test_labels: Integers

    def write(self, folder: Path) -> None:
        """Lay it out in a folder, from which any number of jobs can be measured."""
        target = folder / _POOL_FOLDER
        target.mkdir(parents=True, exist_ok=True)
        arrays: list[Array] = [
            self.pool.features,
            self.pool.labels,
            self.pool.owners,
            self.test_features,
            self.test_labels,
        ]
        for name, array in zip(_POOL_ARRAYS, arrays, strict=True):
            np.save(target / f"{name}.npy", array)
        sizes = {"classes": self.pool.classes, "clients": self.pool.clients}
        write_whole(target / _SIZES, json.dumps(sizes).encode())  # last: it says that all is there

    @classmethod
    def read(cls, folder: Path) -> Self:
        """What is laid out in a folder, mapped into memory."""
        target = folder / _POOL_FOLDER
        if not (target / _SIZES).is_file():
            raise InputError(
                f"{folder} has no pool: lay one out with `SharedPool(pool, test_features, "
                "test_labels).write(folder)`"
            )
        features, labels, owners, test_features, test_labels = (
            _mapped(target / f"{name}.npy") for name in _POOL_ARRAYS
        )
        sizes = json.loads((target / _SIZES).read_bytes())
        return cls(
            Pool(features, labels, owners, sizes["classes"], sizes["clients"]),
            test_features,
            test_labels,
        )


def _mapped(path: Path) -> Array:
    """The array in a file, as an ordinary one whose pages are the file's."""
    return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
