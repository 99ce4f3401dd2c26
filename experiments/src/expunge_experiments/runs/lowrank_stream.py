"""The stream of the experiment `lowrank`: requests of a few clients, with the exact head after each of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from expunge import CholeskySolver, Spec, Statistics
from expunge.approximation import Batch
from expunge.errors import InputError
from expunge.protocol.messages import Message, RowsPart
from expunge.rows import integer_rows
from expunge_experiments.datasets.dataset import Dataset
from expunge_experiments.grids import fitting_grid
from expunge_experiments.runs.base import Report

PUBLICATION_BITS = 48  # so fine that rounding the exact head is nothing next to any deviation


@dataclass(frozen=True)
class Plan:
    """What a stream is made of: `base` samples to begin with, then requests of `batch` added or `deleted` deleted samples.

    Every third request deletes, from samples of the base that the client owns; the others add new ones. Clients take turns.
    """

    dataset: str
    gamma: float
    base: int
    batch: int
    deleted: int
    clients: int
    requests: int
    seed: int

    @property
    def deletions(self) -> int:
        """How many of the requests delete."""
        return self.requests // 3

    def deletes(self, request: int) -> bool:
        """Whether a request (from 0) deletes."""
        return request % 3 == 2

    def check(self, samples: int) -> None:
        """Refuse a stream for which there are not enough samples."""
        needed = self.base + self.batch * (self.requests - self.deletions)
        if needed > samples or self.deleted * self.deletions > self.base:
            raise InputError(
                f"this stream needs {needed} samples, and a base of at least {self.deleted * self.deletions}; {self.dataset} has "
                f"{samples} and the base is {self.base}: fewer requests or smaller batches would do"
            )


@dataclass(frozen=True)
class Request:
    """One request with its truth: the exact statistics of its samples, and the exact head afterwards."""

    client: int
    sign: int
    batch: Batch
    statistics: Statistics
    weights: NDArray[np.float64]
    accuracy: float
    rows_bytes: int


@dataclass(frozen=True)
class Stream:
    """A plan carried out exactly. `resolution` is how far the published exact weights may be from the exact solution."""

    spec: Spec
    start: Statistics
    requests: tuple[Request, ...]
    resolution: float

    @classmethod
    def of(cls, plan: Plan, dataset: Dataset, report: Report) -> Stream:
        """Carry out a plan with the exact solver: its heads are those of retraining, bit for bit."""
        plan.check(len(dataset.train_labels))
        labels = tuple(range(dataset.classes))
        grid = fitting_grid(dataset.train_features)
        spec = Spec(dim=dataset.dim, labels=labels, gamma=plan.gamma, publication_bits=PUBLICATION_BITS, grid=grid)
        order = np.random.default_rng([plan.seed, 0x6C72]).permutation(len(dataset.train_labels))
        features, targets = dataset.train_features, dataset.train_labels
        report("exact statistics to begin with", 0, plan.requests)
        start = Statistics.of(spec, features[order[: plan.base]], targets[order[: plan.base]])
        solver = CholeskySolver(spec, start)
        requests, fresh, gone = [], plan.base, 0
        for index in range(plan.requests):
            report("exact heads of the stream", index, plan.requests)
            sign = -1 if plan.deletes(index) else 1
            if sign > 0:
                numbers, fresh = order[fresh : fresh + plan.batch], fresh + plan.batch
            else:
                numbers, gone = order[gone : gone + plan.deleted], gone + plan.deleted
            rows, own = features[numbers], targets[numbers]
            statistics = Statistics.of(spec, rows, own, lost_columns="accept")
            (solver.add_statistics if sign > 0 else solver.delete_statistics)(statistics)
            head = solver.head()
            accuracy = float(np.mean(head.predict(dataset.test_features) == dataset.test_labels))
            part = RowsPart(integer_rows(spec, rows, own), (bytes(32),) * len(numbers))
            size = len(Message("rows", part).to_bytes(spec))
            batch = Batch.of(spec, rows, own)
            requests.append(Request(index % plan.clients, sign, batch, statistics, head.weights, accuracy, size))
        resolution = 2.0 ** -(PUBLICATION_BITS + 1) * float(np.sqrt(spec.width * spec.columns))
        return cls(spec, start, tuple(requests), resolution)

    def changes(self, first: int, last: int) -> list[Statistics]:
        """What each client sends at a reset after request `last`, the reset before having been before request `first`."""
        totals: dict[int, Statistics] = {}
        for request in self.requests[first : last + 1]:
            change = request.statistics if request.sign > 0 else -request.statistics
            totals[request.client] = totals[request.client] + change if request.client in totals else change
        return list(totals.values())
