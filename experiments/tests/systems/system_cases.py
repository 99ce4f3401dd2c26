"""Small pools and settings for tests of compared systems, and a small system that keeps every law
of `check_system`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from expunge_experiments.engine import MessageEngine, ProcessEngine, State, Worker
from expunge_experiments.message import Array, ArrayMessage
from expunge_experiments.pool import Pool
from expunge_experiments.systems.base import System
from expunge_experiments.systems.catalogue import settings_from
from expunge_experiments.systems.check import fingerprint

SMALL: Mapping[str, Mapping[str, Any]] = {
    "fedavg": {"rounds": 4, "clients_per_round": 2},
    "exactfun": {"rounds": 4, "clients_per_round": 2},
    "fats": {"rounds": 6, "clients_per_round": 2, "samples": 8},
    "sisa": {"shards": 3, "slices": 3, "batch": 8, "rate": 0.1},
    "fedcio": {"clusters": 2, "rounds": 3, "clients_per_round": 2, "batch": 8},
}
# Numbers of the samples of a small pool, one set for each request
REQUESTS = st.lists(st.sets(st.integers(0, 59), min_size=1, max_size=30), min_size=1, max_size=3)


def small_settings(name: str) -> Any:
    return settings_from(name, SMALL.get(name, {}))


def pool_of(
    *, samples: int = 60, dim: int = 5, classes: int = 3, clients: int = 4, seed: int = 0
) -> Pool:
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, classes, samples)
    features = (2.0 * np.eye(classes, dim)[labels] + draw.standard_normal((samples, dim))).astype(
        np.float32
    )
    return Pool(features, labels, draw.integers(0, clients, samples), classes, clients)


def one_feature_each() -> Pool:
    """Large features, each of twelve samples of its own: to delete those is nearly infeasible."""
    return replace(pool_of(), features=np.diag([1e4] * 5).repeat(12, axis=0).astype(np.float32))


def delete_retained(system: System, requests: list[set[int]]) -> None:
    """Delete of each request what the system still has."""
    for request in requests:
        numbers = np.array(sorted(request))
        system.delete(numbers[system.retained[numbers]])


def goes_on_elsewhere(system: System, code: str, folder: Path) -> None:
    """Another process that runs `code` goes on from what a system saves, bit for bit."""
    system.delete(np.array([1, 2]))
    system.save(folder)
    command = [sys.executable, "-c", code, str(folder), str(Path(__file__).parent)]
    elsewhere = subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603 - our own Python
    system.delete(np.array([4, 9]))
    system.delete_client(1)
    assert elsewhere == fingerprint(system)


class MeansWorker(Worker):
    """Answers with the sums and counts, by class, of the samples that are named: as integers, so
    that they can be taken back.
    """

    def __init__(self, client: int, samples: Any, classes: int) -> None:
        super().__init__(client, samples)
        self._classes = classes

    def answer(self, message: ArrayMessage) -> ArrayMessage:
        places = np.searchsorted(self.samples.numbers, message.arrays["numbers"])
        labels = self.samples.labels[places]
        sums = np.zeros((self._classes, self.samples.features.shape[1]), dtype=np.int64)
        np.add.at(sums, labels, np.rint(self.samples.features[places] * 2.0**20).astype(np.int64))
        return ArrayMessage(
            "sums", {}, {"sums": sums, "counts": np.bincount(labels, minlength=self._classes)}
        )


class Means(System):
    """Predicts the class with the nearest mean. Exact: sums are integers."""

    name = "means"
    title = "Class means"

    def __init__(self, pool: Pool, engine: MessageEngine | None, settings: Any, seed: int) -> None:
        super().__init__(pool, engine, settings, seed)
        self.sums = np.zeros((pool.classes, pool.dim), dtype=np.int64)
        self.counts = np.zeros(pool.classes, dtype=np.int64)

    @property
    def weights(self) -> Array:
        means = self.sums.T * 2.0**-20 / np.maximum(self.counts, 1)
        return np.concatenate([means, -0.5 * (means**2).sum(axis=0, keepdims=True)])

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.int64]:
        return np.asarray((features @ self.weights[:-1] + self.weights[-1]).argmax(axis=1))

    def _train(self, numbers: Array) -> None:
        self._change("add", numbers, 1)

    def _add(self, numbers: Array) -> None:
        self._change("add", numbers, 1)

    def _delete(self, numbers: Array) -> None:
        self._change("forget", numbers, -1)

    def _change(self, task: str, numbers: Array, sign: int) -> None:
        for _, answer in self.tell(task, numbers):
            self.sums += sign * answer.arrays["sums"]
            self.counts += sign * answer.arrays["counts"]

    def _state(self) -> State:
        return {"sums": self.sums, "counts": self.counts}

    def _restore(self, state: Mapping[str, Array]) -> None:
        self.sums, self.counts = np.array(state["sums"]), np.array(state["counts"])

    @classmethod
    def make(cls, pool: Pool, seed: int) -> System:
        return cls(
            pool,
            ProcessEngine(pool, lambda client, samples: MeansWorker(client, samples, pool.classes)),
            None,
            seed,
        )
