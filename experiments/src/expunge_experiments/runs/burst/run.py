"""burst: single deletions, one request each, in one stream that is the same for every system; then
all of them added back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from expunge.errors import InputError
from expunge_experiments import tuned
from expunge_experiments.datasets.dataset import Integers
from expunge_experiments.runs.base import Cell, Drawing, Experiment, Finding, Report, Results, Table
from expunge_experiments.runs.burst.report import drawings_of, findings_of, tables_of
from expunge_experiments.runs.retraining import Reference, Retraining
from expunge_experiments.runs.streams import (
    PartitionedDataset,
    check_federation,
    client_of,
    listed,
    singles_of,
)
from expunge_experiments.systems.base import Cost, System
from expunge_experiments.systems.catalogue import NAMES, settings_dict

if TYPE_CHECKING:
    from expunge_experiments.datasets.catalogue import Library


VARIANTS = ("a_exact", "b_exact", "a_float64", "b_float64", "a_float32", "b_float32")


@dataclass(frozen=True)
class BurstSettings:
    """What is measured, and when the time of a slow system is taken to be known."""

    dataset: str = "cifar10"  # features, by name
    clients: int = 100  # among which the samples are divided
    samples: int = 0  # training samples, drawn at random; 0 for all
    seed: int = 0  # of partition, stream and systems
    systems: tuple[str, ...] = NAMES  # by name, in process
    requests: int = 200  # single deletions
    marks: tuple[int, ...] = (
        100,
        200,
    )  # after how many deletions, and again additions, heads are compared with retraining
    in_full: tuple[str, ...] = (
        VARIANTS  # systems of which all requests are timed, whatever they take
    )
    least: int = 10  # deletions of each other system that are timed whatever they take
    budget: float = 60.0  # seconds of deletions after which its further ones are extrapolated
    least_back: int = 3  # additions of each other system that are timed whatever they take
    budget_back: float = 20.0  # seconds of additions after which its further ones are extrapolated
    flower_systems: tuple[str, ...] = (
        "fedavg",
        "fats",
        "exactfun",
        "a_exact",
        "b_exact",
    )  # by name, on Flower simulation
    flower_requests: int = 5  # of the same stream, on Flower simulation
    flower_actors: int = 2  # processes that work for clients on Flower simulation

    def __post_init__(self) -> None:
        check_federation(
            self.clients,
            [self.seed],
            [*self.systems, *self.in_full, *self.flower_systems],
            self.samples,
        )
        for name in ("requests", "least", "least_back", "flower_requests", "flower_actors"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} = {getattr(self, name)} must be at least 1")
        for name in ("budget", "budget_back"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InputError(
                    f"{name} = {getattr(self, name)} must be a positive number of seconds"
                )
        if (
            not self.marks
            or list(self.marks) != sorted(set(self.marks))
            or not 1 <= self.marks[0] <= self.marks[-1] <= self.requests
        ):
            raise InputError(
                f"marks = {list(self.marks)} must ascend from at least 1 to at most requests = "
                f"{self.requests}"
            )


class Burst(Experiment[BurstSettings]):
    """Time of single requests."""

    name = "burst"
    title = "A burst of single deletions, and adding back"
    question = (
        "What does a single deletion cost each system, over a stream of 200 drawn at random over "
        "all clients? And how far is the head from retraining after 100 and 200 of them, and after "
        "as many have been added back?"
    )
    paper = (
        'The section "Burst Deletions and Add-Back": skips make many requests of FATS and '
        "Exact-Fun free, those that retrain are "
        "costly; the variants' cost is small and constant, orders of magnitude below the others "
        "in total. Its table's "
        "deviations are 5e-12 to 4e-11 in float64."
    )
    version = 2
    full = BurstSettings()
    quick = BurstSettings(
        samples=5000,
        requests=6,
        marks=(3, 6),
        least=1,
        budget=1.0,
        least_back=1,
        budget_back=0.5,
        flower_systems=(),
    )

    def __init__(self) -> None:
        self._retraining = Retraining()

    def cells(self, settings: BurstSettings) -> list[Cell]:
        """One for each system and engine; what takes longest, Flower, comes last."""
        common = {
            name: getattr(settings, name) for name in ("dataset", "clients", "samples", "seed")
        }
        stream = {name: listed(getattr(settings, name)) for name in _STREAM}
        short = {"requests": settings.flower_requests, "actors": settings.flower_actors}

        def key(engine: str, name: str, rest: Mapping[str, Any]) -> dict[str, Any]:
            own = settings_dict(tuned.settings_for(settings.dataset, name))
            return {**common, "engine": engine, "system": name, "settings": own, **rest}

        def process(name: str) -> dict[str, Any]:
            return key("process", name, stream | {"in_full": name in settings.in_full})

        return [
            *(
                Cell(process(name), partial(self._measure, settings, name))
                for name in settings.systems
            ),
            *(
                Cell(
                    key("flower", name, short), partial(_on_flower, settings, name), engine="flower"
                )
                for name in settings.flower_systems
            ),
        ]

    def _measure(
        self, settings: BurstSettings, name: str, library: Library, report: Report
    ) -> Mapping[str, Any]:
        federation = PartitionedDataset.of(
            library, settings.dataset, settings.clients, settings.seed, settings.samples
        )
        system = federation.system(name, settings.seed)
        stream = singles_of(federation.pool.size, settings.requests, settings.seed)
        pieces = _pieces(federation.pool.size, stream, settings.marks)
        references = self._retraining.references(system, federation.dataset, pieces)
        return _Measurement(
            settings, federation, system, stream=stream, references=references, report=report
        ).result()

    def tables(self, settings: BurstSettings, results: Results) -> list[Table]:
        """Deletions, additions, deviations, a client's deletion, and Flower."""
        return tables_of(settings.requests, settings.marks, settings.samples, results)

    def drawings(self, settings: BurstSettings, results: Results) -> list[Drawing]:
        """The time of every request, and their summary."""
        return drawings_of(settings.requests, results)

    def findings(self, settings: BurstSettings, results: Results) -> list[Finding]:
        """What follows."""
        return findings_of(settings.requests, settings.samples, results)


_DIGESTS = 10
_STREAM = ("requests", "marks", "least", "budget", "least_back", "budget_back")


def _pieces(size: int, stream: Integers, marks: Sequence[int]) -> list[Integers]:
    """What goes up to each mark, and in the end all that never goes (or only after the last
    mark).
    """
    bounds = [0, *marks]
    gone = [stream[start:end] for start, end in zip(bounds, marks, strict=False)]
    return [*gone, np.setdiff1d(np.arange(size), stream[: marks[-1]])]


@dataclass
class _Measurement:
    """One system's way through the stream: deletions, additions in reverse order, and one client's
    deletion.
    """

    settings: BurstSettings
    federation: PartitionedDataset
    system: System
    stream: Integers
    references: list[Reference] | None
    report: Report
    marks: list[dict[str, Any]] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)

    def result(self) -> dict[str, Any]:
        """All that was measured.

        A system that cannot delete is trained without the stream, to add it.
        """
        system, settings = self.system, self.settings
        deletes, adds = "delete" in system.supports, "add" in system.supports
        self.report(f"{system.title} trains", 0, settings.requests)
        remaining = None if deletes else np.setdiff1d(np.arange(system.pool.size), self.stream)
        training = system.train(remaining)
        accuracy = self.federation.accuracy(system)
        self._note_digest(0)
        deleted = self._deleted() if deletes else None
        accuracy_after = self.federation.accuracy(system)
        gone = len(deleted["seconds"]) if deleted is not None else len(self.stream)
        added = self._added(gone) if adds else None
        return {
            "training": training.as_dict(),
            "accuracy": accuracy,
            "accuracy_after": accuracy_after,
            "deleted": deleted,
            "added": added,
            "marks": self.marks,
            "digests": self.digests,
            "client": self._client() if "delete_client" in system.supports else None,
        }

    def _deleted(self) -> dict[str, list[float]]:
        def request(step: int) -> Cost:
            cost = self.system.delete(self.stream[step - 1 : step])
            self._compare("delete", step)
            self._note_digest(step)
            return cost

        return self._timed(
            "deletes", request, self.settings.requests, self.settings.least, self.settings.budget
        )

    def _added(self, gone: int) -> dict[str, list[float]]:
        """What went last comes back first, so after as many additions as deletions all is as it
        was.

        Heads are compared only if the whole stream had gone: else fewer have come back than a mark
        says.
        """

        def request(step: int) -> Cost:
            cost = self.system.add(self.stream[gone - step : gone - step + 1])
            if gone == len(self.stream):
                self._compare("add_back", gone - step)
            return cost

        return self._timed(
            "adds", request, gone, self.settings.least_back, self.settings.budget_back
        )

    def _timed(
        self, doing: str, request: Callable[[int], Cost], count: int, least: int, budget: float
    ) -> dict[str, list[float]]:
        """Requests one after another until all are done, or enough of them and the budget is spent;
        costs as columns.
        """
        costs: list[Cost] = []
        spent = 0.0
        for step in range(1, count + 1):
            if (
                len(costs) >= least
                and spent >= budget
                and self.system.name not in self.settings.in_full
            ):
                break
            self.report(f"{self.system.title} {doing}", step - 1, count)
            costs.append(request(step))
            spent += costs[-1].seconds
        return columns(costs)

    def _compare(self, kind: str, gone: int) -> None:
        """At a mark, measure how far the head is from the one retrained without the first `gone` of
        the stream.
        """
        marks = (0, *self.settings.marks)
        if self.references is not None and gone in marks:
            distance = self.references[marks.index(gone)].distance(self.system).as_dict()
            self.marks.append({"kind": kind, "gone": gone, **distance})

    def _note_digest(self, step: int) -> None:
        """The first heads by digest, to be compared with those on Flower."""
        if step <= _DIGESTS:
            self.digests.append(self.system.digest)

    def _client(self) -> dict[str, Any]:
        pool = self.system.pool
        client = client_of(pool.clients, self.settings.seed)
        samples = int(self.system.retained[pool.numbers_of(client)].sum())
        self.report(f"{self.system.title} deletes a client", 0, None)
        cost = self.system.delete_client(client)
        return {
            "client": client,
            "samples": samples,
            "cost": cost.as_dict(),
            "accuracy": self.federation.accuracy(self.system),
        }


def columns(costs: Sequence[Cost]) -> dict[str, list[float]]:
    """Costs as lists, one for each part."""
    return {field.name: [getattr(cost, field.name) for cost in costs] for field in fields(Cost)}


def _on_flower(
    settings: BurstSettings, name: str, library: Library, report: Report
) -> Mapping[str, Any]:
    """The first requests of the same stream, by the same system, on Flower's simulation."""
    from expunge_experiments.flower import Job, JobRequest, SharedPool, measure  # noqa: PLC0415 - only where Flower is wanted

    federation = PartitionedDataset.of(
        library, settings.dataset, settings.clients, settings.seed, settings.samples
    )
    dataset, pool = federation.dataset, federation.pool
    stream = singles_of(pool.size, settings.flower_requests, settings.seed)
    chosen = tuned.settings_for(dataset.name, name)
    job = Job(
        name,
        chosen,
        settings.seed,
        tuple(JobRequest.delete(stream[step : step + 1]) for step in range(len(stream))),
    )
    with TemporaryDirectory(prefix="burst-") as directory:
        SharedPool(pool, dataset.test_features, dataset.test_labels).write(Path(directory))
        outcome = measure(
            job,
            folder=Path(directory),
            clients=pool.clients,
            actors=settings.flower_actors,
            report=report,
        )
    return {
        "training": outcome.training.as_dict(),
        "accuracy": outcome.accuracies[0],
        "accuracy_after": outcome.accuracy,
        "deleted": columns(outcome.requests),
        "digests": list(outcome.digests),
        "loading_seconds": outcome.loading_seconds,
        "whole_seconds": outcome.whole_seconds,
    }
