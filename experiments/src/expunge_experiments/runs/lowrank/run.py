"""lowrank: Gram messages of low rank, their bytes, the true deviation of the head and its bound.

Requests of a few clients make a stream with resets, with the exact head after each of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from expunge import CholeskySolver, Spec, Statistics
from expunge.approximate import (
    METHODS,
    ApproximateHead,
    ApproximateLedger,
    ApproximateMessage,
    Batch,
    compress,
)
from expunge.errors import InputError, NotAGramError
from expunge.ridge.encoding import integer_rows
from expunge.wire.messages import Message, RowsPart
from expunge_experiments.config import require_known
from expunge_experiments.datasets.dataset import Dataset, fitting_grid
from expunge_experiments.runs.base import Cell, Drawing, Experiment, Finding, Report, Results, Table
from expunge_experiments.runs.lowrank.report import drawings_of, findings_of, tables_of
from expunge_experiments.runs.streams import check_datasets, check_positive

if TYPE_CHECKING:
    from expunge_experiments.datasets.catalogue import Library
    from expunge_experiments.datasets.dataset import Dataset

PUBLICATION_BITS = 48  # so fine that rounding the exact head is nothing next to any deviation


@dataclass(frozen=True)
class StreamSettings:
    """What a stream is made of: `base` samples to begin with, then requests of `batch` added or
    `deleted` deleted samples.

    Every third request deletes, from samples of the base that the client owns; the others add new
    ones. Clients take turns.
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
                f"this stream needs {needed} samples, and a base of at least "
                f"{self.deleted * self.deletions}; {self.dataset} has "
                f"{samples} and the base is {self.base}: fewer requests or smaller batches would do"
            )


@dataclass(frozen=True)
class StreamRequest:
    """One request with its truth: the exact statistics of its samples, and the exact head
    afterwards.
    """

    client: int
    sign: int
    batch: Batch
    statistics: Statistics
    weights: NDArray[np.float64]
    accuracy: float
    rows_bytes: int


@dataclass(frozen=True)
class Stream:
    """A stream of requests, carried out exactly.

    `resolution` is how far the published exact weights may be from the exact solution.
    """

    spec: Spec
    start: Statistics
    requests: tuple[StreamRequest, ...]
    resolution: float

    @classmethod
    def of(cls, plan: StreamSettings, dataset: Dataset, report: Report) -> Stream:
        """Carry out a stream with the exact solver: its heads are those of retraining, bit for
        bit.
        """
        plan.check(len(dataset.train_labels))
        labels = tuple(range(dataset.classes))
        grid = fitting_grid(dataset.train_features)
        spec = Spec(
            dim=dataset.dim,
            labels=labels,
            gamma=plan.gamma,
            publication_bits=PUBLICATION_BITS,
            grid=grid,
        )
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
            requests.append(
                StreamRequest(
                    index % plan.clients, sign, batch, statistics, head.weights, accuracy, size
                )
            )
        resolution = 2.0 ** -(PUBLICATION_BITS + 1) * float(np.sqrt(spec.width * spec.columns))
        return cls(spec, start, tuple(requests), resolution)

    def changes(self, first: int, last: int) -> list[Statistics]:
        """What each client sends at a reset after request `last`, the reset before having been
        before request `first`.
        """
        totals: dict[int, Statistics] = {}
        for request in self.requests[first : last + 1]:
            change = request.statistics if request.sign > 0 else -request.statistics
            totals[request.client] = (
                totals[request.client] + change if request.client in totals else change
            )
        return list(totals.values())


# -- the experiment --------------------------------------------------------------------------------


# Takes away no more than the truth, so that after a reset its deletions are feasible
_ONE_SIDED = "truncated"


@dataclass(frozen=True)
class LowRankSettings:
    """What is measured."""

    dataset: str = "cifar10"  # features, by name
    gamma: float = 100.0  # of the ridge
    methods: tuple[str, ...] = tuple(METHODS)  # how a Gram is made small
    ranks: tuple[int, ...] = (16, 32, 64, 128, 256)  # rows of the factor that is sent
    precision: str = "float32"  # in which it is sent
    base: int = 20000  # samples with exact statistics to begin with
    batch: int = 500  # samples that a request adds
    deleted: int = 250  # samples that every third request deletes
    clients: int = 2  # which take turns
    requests: int = 12  # in the stream
    reset_every: int = 6  # requests between two resets
    seeds: tuple[int, ...] = (0, 1)  # of the order of samples, and of the methods that draw

    def __post_init__(self) -> None:
        check_datasets([self.dataset])
        check_positive("gamma", [self.gamma])
        for name in self.methods:
            require_known("method", name, METHODS)
        if self.precision not in ("float32", "float64"):
            raise InputError(f"precision = {self.precision!r} must be 'float32' or 'float64'")
        for name in ("methods", "ranks", "seeds"):
            if not getattr(self, name):
                raise InputError(f"{name} must have at least one entry")
        counts = {
            name: getattr(self, name)
            for name in ("base", "batch", "deleted", "clients", "requests", "reset_every")
        }
        for name, value in {**counts, "ranks": min(self.ranks)}.items():
            if value < 1:
                raise InputError(f"{name} = {value} must be at least 1")

    def plan(self, seed: int) -> StreamSettings:
        """The stream of a seed."""
        sizes = (self.base, self.batch, self.deleted, self.clients, self.requests)
        return StreamSettings(self.dataset, self.gamma, *sizes, seed)


@dataclass(frozen=True)
class _Case:
    """What one cell measures."""

    seed: int
    method: str
    rank: int


class LowRank(Experiment[LowRankSettings]):
    """Communication-efficient updates."""

    name = "lowrank"
    title = "Low-rank and sketched Gram messages"
    question = (
        "What do low-rank and sketched Gram messages save, how far do they take the head from the "
        "exact one, and how far above that is what can be proven?"
    )
    paper = (
        'The appendix, "Communication-efficient approximations and bounds": a bound for '
        "approximate additions, and periodic "
        "exact resets; no measurements."
    )
    full = LowRankSettings()
    quick = LowRankSettings(ranks=(64,), base=10000, requests=4, reset_every=3, seeds=(0,))

    def __init__(self) -> None:
        self._streams: dict[
            StreamSettings, Stream
        ] = {}  # a cache: all methods and ranks follow the same stream

    def cells(self, settings: LowRankSettings) -> list[Cell]:
        """One for each seed, method and rank."""
        names = (
            "dataset",
            "gamma",
            "precision",
            "base",
            "batch",
            "deleted",
            "clients",
            "requests",
            "reset_every",
        )
        common = {name: getattr(settings, name) for name in names}
        return [
            Cell(
                {**common, "seed": seed, "method": method, "rank": rank},
                partial(self._measure, settings, _Case(seed, method, rank)),
            )
            for seed in settings.seeds
            for rank in settings.ranks
            for method in settings.methods
        ]

    def tables(self, settings: LowRankSettings, results: Results) -> list[Table]:
        """Bytes, deviation and bound by method and rank; and bytes of whole streams."""
        return tables_of(settings, results)

    def drawings(self, settings: LowRankSettings, results: Results) -> list[Drawing]:
        """Deviation and bound against bytes; the course of a stream."""
        return drawings_of(settings, results)

    def findings(self, settings: LowRankSettings, results: Results) -> list[Finding]:
        """Whether bounds hold, what is saved, what resets cost."""
        return findings_of(settings, results)

    # -- measuring ---------------------------------------------------------------------------------

    def _stream(self, plan: StreamSettings, dataset: Dataset, report: Report) -> Stream:
        if plan not in self._streams:
            self._streams = {plan: Stream.of(plan, dataset, report)}
        return self._streams[plan]

    def _measure(
        self, settings: LowRankSettings, case: _Case, library: Library, report: Report
    ) -> Mapping[str, Any]:
        dataset = library.load(settings.dataset)
        stream = self._stream(settings.plan(case.seed), dataset, report)
        ledger = ApproximateLedger.of(stream.spec, [stream.start], reset_every=settings.reset_every)
        began = ledger.traffic.total_bytes
        steps: list[dict[str, Any]] = []
        first = refused_bytes = 0
        for index, request in enumerate(stream.requests):
            report(f"{case.method} at rank {case.rank}", index, settings.requests)
            seed = case.seed * 1000 + index
            message = compress(
                request.batch, case.method, case.rank, seed=seed, precision=settings.precision
            )
            refused = 0
            try:
                _take(ledger, request, message)
            except NotAGramError:
                refused = message.size  # bytes that were sent in vain, and count
                ledger.reset(stream.changes(first, index - 1))
                first = index
                message = compress(
                    request.batch, _ONE_SIDED, case.rank, precision=settings.precision
                )
                _take(ledger, request, message)
            step = _step(stream, request, message, ledger.head(), dataset)
            if ledger.reset_due:
                ledger.reset(stream.changes(first, index))
                first = index + 1
                step["after_reset"] = _distance(stream, request, ledger.head())
            refused_bytes += refused
            sent = ledger.traffic.total_bytes - began + refused_bytes
            steps.append(
                {**step, "early_reset": refused > 0, "refused_bytes": refused, "bytes": sent}
            )
        return {
            "steps": steps,
            "refused": sum(step["early_reset"] for step in steps),
            "message_bytes": ledger.traffic.message_bytes + refused_bytes,
            "reset_bytes": ledger.traffic.reset_bytes - began,
            "exact_bytes": sum(len(request.statistics.to_bytes()) for request in stream.requests),
            "rows_bytes": sum(request.rows_bytes for request in stream.requests),
        }


def _take(ledger: ApproximateLedger, request: StreamRequest, message: ApproximateMessage) -> None:
    (ledger.add if request.sign > 0 else ledger.delete)(message)


def _distance(stream: Stream, request: StreamRequest, head: ApproximateHead) -> dict[str, Any]:
    """Deviation from the exact head and its bounds, in Frobenius and spectral norm, over the exact
    head's own norm.
    """
    missed = head.weights - request.weights
    frobenius, spectral = (float(np.linalg.norm(request.weights, kind)) for kind in ("fro", 2))
    bounds = head.bounds
    paper = bounds.paper_spectral
    return {
        "deviation": float(np.linalg.norm(missed)) / frobenius,
        "bound": bounds.frobenius / frobenius,
        "spectral_deviation": float(np.linalg.norm(missed, 2)) / spectral,
        "spectral_bound": bounds.spectral / spectral,
        "paper_bound": paper / spectral if math.isfinite(paper) else None,
        "resolution": stream.resolution / spectral,
    }


def _step(
    stream: Stream,
    request: StreamRequest,
    message: ApproximateMessage,
    head: ApproximateHead,
    dataset: Dataset,
) -> dict[str, Any]:
    accuracy = float(np.mean(head.predict(dataset.test_features) == dataset.test_labels))
    return {
        "sign": request.sign,
        "samples": message.count,
        "size": message.size,
        "exact_size": len(request.statistics.to_bytes()),
        "error": message.error.norm,
        "accuracy": accuracy,
        "exact_accuracy": request.accuracy,
        **_distance(stream, request, head),
    }
