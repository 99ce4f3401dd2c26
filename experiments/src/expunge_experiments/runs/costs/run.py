"""costs: bytes and server time of Variant A and Variant B against d, r and c, next to the paper's
table of orders.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from expunge import Spec, Statistics, solve
from expunge.errors import InputError
from expunge.solvers.float64 import relative_deviation
from expunge_experiments.datasets.dataset import fitting_grid
from expunge_experiments.message import Array
from expunge_experiments.runs.base import Cell, Drawing, Experiment, Finding, Report, Results, Table
from expunge_experiments.runs.costs.report import drawings_of, findings_of, tables_of
from expunge_experiments.runs.costs.servers import SERVERS, ExactServer
from expunge_experiments.runs.retraining import finest

if TYPE_CHECKING:
    from expunge_experiments.datasets.catalogue import Library

_WIDE = 2048


@dataclass(frozen=True)
class CostsSettings:
    """What is measured."""

    # Features, by name; where they have too few columns, synthetic ones take their place
    dataset: str = "cifar10"
    dims: tuple[int, ...] = (
        256,
        512,
        768,
        1024,
        1280,
        2048,
        4096,
    )  # d, without the constant feature
    ranks: tuple[int, ...] = (
        1,
        4,
        16,
        64,
        256,
        1024,
    )  # r, the samples of a request; those above d are left out
    classes: tuple[int, ...] = (62, 100)  # further numbers of classes, with pseudo-labels
    classes_dims: tuple[int, ...] = (768, 1280)  # d for these
    samples: int = 6000  # retained, more than the largest d
    repetitions: int = 5  # of every request, the variants taking turns; medians are reported
    wide_repetitions: int = 3  # the same for d from 2048 on
    gamma: float = 10.0  # the ridge penalty
    seed: int = 0  # of the choice of samples, synthetic features and pseudo-labels

    def __post_init__(self) -> None:
        for name in ("dims", "ranks", "classes_dims", "classes"):
            if any(value < 1 for value in getattr(self, name)):
                raise InputError(f"{name} = {list(getattr(self, name))} must be positive")
        if not self.dims or not self.ranks or min(self.repetitions, self.wide_repetitions) < 1:
            raise InputError(
                "dims and ranks must not be empty, and repetitions and wide_repetitions must be "
                "at least 1"
            )
        if self.samples <= max(self.ranks):
            raise InputError(
                f"samples = {self.samples} must be more than the largest of ranks = "
                f"{list(self.ranks)}"
            )


class Costs(Experiment[CostsSettings]):
    """Bytes and seconds of one request."""

    name = "costs"
    title = "Bytes and server time of both variants"
    question = (
        "How do the bytes of a message and the server's time from the message to the published "
        "head grow with d, r and c, and from which r on is Variant A cheaper than Variant B?"
    )
    paper = (
        'The table "Per-round cost summary": Variant A sends Θ(d² + dc) and computes O(d³ + d²c); '
        "Variant B sends Θ(dr + dc) and "
        "computes O(rd² + r³), for d much larger than r."
    )
    version = 3
    full = CostsSettings()
    quick = CostsSettings(
        dims=(256, 768, 1280, 2048),
        ranks=(1, 16, 256),
        classes=(100,),
        classes_dims=(768,),
        samples=3000,
        repetitions=1,
        wide_repetitions=1,
    )

    def cells(self, settings: CostsSettings) -> list[Cell]:
        """One for each d and number of classes."""
        pairs = [(dim, None) for dim in settings.dims]
        pairs += [(dim, classes) for classes in settings.classes for dim in settings.classes_dims]  # type: ignore[misc]
        shared = {name: getattr(settings, name) for name in ("dataset", "samples", "gamma", "seed")}
        cells = []
        for dim, classes in pairs:
            ranks = [rank for rank in settings.ranks if rank <= dim]
            turns = settings.wide_repetitions if dim >= _WIDE else settings.repetitions
            key = shared | {
                "dim": dim,
                "pseudo_classes": classes or 0,
                "ranks": ranks,
                "repetitions": turns,
            }
            cells.append(Cell(key, partial(_measure, key)))
        return cells

    def tables(self, settings: CostsSettings, results: Results) -> list[Table]:
        """Bytes, seconds, exponents, crossovers."""
        return tables_of(settings.ranks, results)

    def drawings(self, settings: CostsSettings, results: Results) -> list[Drawing]:
        """Time and bytes against d, time against r."""
        return drawings_of(settings.ranks, results)

    def findings(self, _: CostsSettings, results: Results) -> list[Finding]:
        """Exponents against the paper's, and where the crossover is."""
        return findings_of(results)


def _measure(key: Mapping[str, Any], library: Library, report: Report) -> Mapping[str, Any]:
    features, labels, classes, source = _samples(key, library)
    spec = Spec(
        dim=key["dim"],
        labels=tuple(range(classes)),
        gamma=key["gamma"],
        grid=fitting_grid(features),
    )
    report("statistics", 0, None)
    statistics = Statistics.of(spec, features, labels, lost_columns="accept")
    servers = {}
    for number, (name, kind) in enumerate(SERVERS.items()):
        report("starting servers", number, len(SERVERS))
        servers[name] = kind(statistics)
        message = servers[name].message(features[:1], labels[:1])
        for add in (False, True):  # once without the clock, so that nobody's first request counts
            servers[name].take(message, 1, add=add)
    retrained = solve(statistics)
    sizes: dict[str, dict[str, int]] = {name: {} for name in servers}
    seconds: dict[str, dict[str, dict[str, list[float]]]] = {
        what: {name: {str(rank): [] for rank in key["ranks"]} for name in servers}
        for what in ("delete", "add", "client")
    }
    for number, rank in enumerate(
        sorted(key["ranks"])
    ):  # ascending: a large change may leave work to the request after it
        for turn in range(key["repetitions"]):
            report(f"r = {rank}, turn {turn + 1}", number, len(key["ranks"]))
            first = (turn * rank) % (len(labels) - rank)
            chosen = slice(first, first + rank)
            for name, server in servers.items():
                began = time.perf_counter()
                message = server.message(features[chosen], labels[chosen])
                sent = time.perf_counter()
                server.take(message, rank, add=False)
                deleted = time.perf_counter()
                server.take(message, rank, add=True)
                for what, took in (
                    ("client", sent - began),
                    ("delete", deleted - sent),
                    ("add", time.perf_counter() - deleted),
                ):
                    seconds[what][name][str(rank)].append(took)
                sizes[name][str(rank)] = len(message)
    after = {server.digest for server in servers.values() if isinstance(server, ExactServer)}
    fine = finest(retrained, statistics)
    return {
        "source": source,
        "classes": classes,
        "bytes": sizes,
        "seconds": seconds,
        "exact_as_before": after == {retrained.digest},
        "deviations": {
            name: relative_deviation(server.weights, fine.weights)
            for name, server in servers.items()
        },
    }


def _samples(key: Mapping[str, Any], library: Library) -> tuple[Array, Array, int, str]:
    """Real features where they have enough columns, else synthetic ones; pseudo-labels where they
    are asked for.
    """
    dataset = library.load(key["dataset"])
    draw = np.random.default_rng([key["seed"], key["dim"]])
    if key["dim"] <= dataset.dim:
        count = min(key["samples"], len(dataset.train_labels))
        chosen = np.sort(draw.choice(len(dataset.train_labels), count, replace=False))
        features, labels = (
            np.ascontiguousarray(dataset.train_features[chosen, : key["dim"]]),
            dataset.train_labels[chosen],
        )
        classes, source = dataset.classes, f"{dataset.name}, first {key['dim']} columns"
    else:
        features = draw.standard_normal((key["samples"], key["dim"]), dtype=np.float32)
        labels = draw.integers(0, dataset.classes, key["samples"])
        classes, source = (
            dataset.classes,
            "synthetic: standard normal, float32; labels drawn uniformly",
        )
    if key["pseudo_classes"]:
        classes = key["pseudo_classes"]
        labels = draw.integers(0, classes, len(labels))
        source += f"; pseudo-labels of {classes} classes, drawn uniformly"
    if len(labels) <= max(key["ranks"]):
        raise InputError(
            f"{dataset.name} has {len(labels)} samples, which are too few for requests of "
            f"{max(key['ranks'])}"
        )
    return features, labels, classes, source
