"""invariance: how far the number of clients and the arithmetic move the head from central ridge;
and the same over gamma.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from expunge import Head, Spec, Statistics, solve
from expunge.errors import InputError, NotAGramError, SolveError
from expunge.solvers.float64 import FloatCholeskySolver, FloatGram, relative_deviation
from expunge_experiments.datasets.dataset import Dataset
from expunge_experiments.report import paper
from expunge_experiments.runs import base
from expunge_experiments.runs.invariance import report as report_of
from expunge_experiments.runs.retraining import finest
from expunge_experiments.runs.streams import (
    PartitionedDataset,
    check_datasets,
    check_federation,
    check_positive,
)
from expunge_experiments.systems import catalogue
from expunge_experiments.systems.linear import gram_and_moment, ridge
from expunge_experiments.systems.variants import VariantSettings

if TYPE_CHECKING:
    from expunge_experiments.datasets.catalogue import Library

Float = NDArray[np.float64]
SYSTEMS = ("a_float32", "b_float32", "a_float64", "b_float64", "a_exact", "b_exact")
EXACT = ("a_exact", "b_exact")


@dataclass(frozen=True)
class InvarianceSettings:
    """What is varied."""

    dataset: str = "digits_by_writer"  # a name, or the path of features of your own
    systems: tuple[str, ...] = SYSTEMS  # variants, by name
    clients: tuple[int, ...] = (10, 50, 100)  # each divides the same samples
    seeds: tuple[int, ...] = (0, 1, 2)  # of the partition
    gamma: float = 1.0  # while the number of clients varies
    gammas: tuple[float, ...] = tuple(10.0**power for power in range(-6, 7))
    gamma_clients: tuple[int, ...] = (10, 100)  # while gamma varies

    def __post_init__(self) -> None:
        check_datasets((self.dataset,))
        check_positive("gamma", (self.gamma,))
        check_positive("gammas", self.gammas)
        if not self.systems or not set(self.systems) <= set(SYSTEMS):
            raise InputError(f"systems = {list(self.systems)} must be some of {', '.join(SYSTEMS)}")
        if not self.clients or not self.gamma_clients:
            raise InputError(
                "clients and gamma_clients must have at least one number each, such as [10, 50, "
                "100]"
            )
        for clients in (*self.clients, *self.gamma_clients):
            check_federation(clients, self.seeds, ())


class Invariance(base.Experiment[InvarianceSettings]):
    """The paper's invariance table, and its remark on gamma."""

    name = "invariance"
    title = "Invariance to clients and arithmetic"
    question = (
        "Is the head the same, whoever holds the samples? And does the arithmetic change "
        "how carefully gamma must be chosen?"
    )
    paper = (
        f"{paper.INVARIANCE_TABLE}: deviations of about 1e-9 in fp64 and of 1e-4 (B) to 5e-3 (A) "
        "in fp32, for 10, 50 and 100 "
        "clients alike; and the remark that fp64 makes the choice of gamma less sensitive."
    )
    version = 2
    full = InvarianceSettings()
    quick = InvarianceSettings(clients=(100,), seeds=(0,), gammas=(1e-6, 1e6), gamma_clients=(10,))

    def __init__(self) -> None:
        self._central: CentralReference | None = None

    def cells(self, settings: InvarianceSettings) -> list[base.Cell]:
        """One for each variant, number of clients and seed; and one for each variant over all
        gammas.
        """
        common = {"dataset": settings.dataset}
        keys: list[dict[str, Any]] = [
            common
            | {
                "part": "clients",
                "system": name,
                "clients": clients,
                "seed": seed,
                "gamma": settings.gamma,
            }
            for seed in settings.seeds
            for clients in settings.clients
            for name in settings.systems
        ]
        over = common | {
            "part": "gammas",
            "seed": settings.seeds[0],
            "gammas": list(settings.gammas),
        }
        keys += [
            over | {"clients": clients, "system": name}
            for clients in settings.gamma_clients
            for name in settings.systems
        ]
        return [base.Cell(key, partial(self._measure, key)) for key in keys]

    def _measure(self, key: base.Key, library: Library, report: base.Report) -> Mapping[str, Any]:
        federation = PartitionedDataset.of(library, key["dataset"], key["clients"], key["seed"])
        if self._central is None or self._central.dataset is not federation.dataset:
            report("central ridge", 0, None)
            self._central = CentralReference(federation.dataset)
        if key["part"] == "clients":
            return _measured(federation, self._central, key["system"], key["gamma"], report)
        return _over_gammas(federation, self._central, key, report)

    def tables(self, settings: InvarianceSettings, results: base.Results) -> list[base.Table]:
        """Deviations for every number of clients, next to the paper's; then deviations and
        accuracies over gamma.
        """
        return [
            *report_of.client_tables(settings, results.where(part="clients")),
            *report_of.gamma_tables(results),
        ]

    def drawings(self, settings: InvarianceSettings, results: base.Results) -> list[base.Drawing]:
        """Deviation and accuracy over gamma; deviation over clients."""
        return report_of.drawings(settings, results)

    def findings(self, settings: InvarianceSettings, results: base.Results) -> list[base.Finding]:
        """The claims that these tables can refute."""
        return [
            *report_of.client_findings(settings, results.where(part="clients")),
            *report_of.gamma_findings(results),
        ]


class CentralReference:
    """Central ridge on all training samples: in float64 by one solve, as the paper has it, and
    exactly. Not timed.
    """

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self._gram, self._moment = gram_and_moment(
            dataset.train_features, dataset.train_labels, dataset.classes
        )
        self._statistics = Statistics.of(
            _spec(dataset, 1.0), dataset.train_features, dataset.train_labels, lost_columns="accept"
        )
        self._heads: dict[float, tuple[Head, Head] | str] = {}

    def float64(self, gamma: float) -> Float | None:
        """The float64 weights; None where S + gamma I is not positive definite in float64."""
        try:
            return ridge(self._gram, self._moment, gamma)
        except NotAGramError:
            return None

    def exact(self, gamma: float) -> tuple[Head, Head] | str:
        """The exact head as the variants publish it, and in the finest steps, to measure from; or
        why it is refused.
        """
        if gamma not in self._heads:
            try:
                statistics = self._statistics.under(_spec(self.dataset, gamma))
                head = solve(statistics)
                self._heads[gamma] = head, finest(head, statistics)
            except SolveError as problem:
                self._heads[gamma] = str(problem)
        return self._heads[gamma]

    @property
    def smallest_gamma(self) -> float:
        """The smallest gamma, to six digits, with which the rule of conditioning takes these
        samples.

        The rule is width * (trace(S) + width * gamma) <= gamma * 2^47.
        """
        spec = self._statistics.spec
        trace = sum(self._statistics.diagonal()) / 4.0**spec.grid.fraction_bits
        return spec.width * trace / (2.0**47 - spec.width**2)


def _spec(dataset: Dataset, gamma: float) -> Spec:
    return (
        VariantSettings(gamma=gamma)
        .fitted(dataset.train_features)
        .spec(dataset.dim, dataset.classes)
    )


def _measured(
    federation: PartitionedDataset,
    central: CentralReference,
    name: str,
    gamma: float,
    report: base.Report,
) -> dict[str, Any]:
    """A variant trained under this partition, and how far it is from central ridge."""
    system = catalogue.build(name, federation.pool, settings=VariantSettings(gamma=gamma))
    report(f"{system.title} trains", 0, None)
    try:
        system.train()
    except SolveError as problem:
        return {"gamma": gamma, "failed": str(problem)}
    if system.weights is None:
        raise InputError(f"{system.title} has no single head to compare")
    digest = system.digest if name in EXACT else None
    return _compared(federation.dataset, central, gamma, np.asarray(system.weights), digest)


def _compared(
    dataset: Dataset, central: CentralReference, gamma: float, weights: Float, digest: str | None
) -> dict[str, Any]:
    """Accuracy, and deviations from both references, where there are any at this gamma."""
    if not np.isfinite(weights).all():
        return {"gamma": gamma, "failed": "the weights are not finite"}
    scores = dataset.test_features.astype(weights.dtype) @ weights[:-1] + weights[-1]
    accuracy = float(np.mean(scores.argmax(axis=1) == dataset.test_labels))
    point: dict[str, Any] = {"gamma": gamma, "failed": None, "accuracy": accuracy}
    reference, exact = central.float64(gamma), central.exact(gamma)
    if reference is not None:
        point["deviation"] = relative_deviation(weights, reference)
    if not isinstance(exact, str):
        head, fine = exact
        point["from_exact"] = relative_deviation(weights, fine.weights)
        point["publication"] = relative_deviation(head.weights, fine.weights)
        if reference is not None:
            point["central_from_exact"] = relative_deviation(reference, fine.weights)
        if digest is not None:
            point["equal"] = digest == head.digest
    return point


# -- over gamma ------------------------------------------------------------------------------------

Found = (
    tuple[Float, str | None] | str
)  # weights and, of exact ones, the digest; or why there are none


def _over_gammas(
    federation: PartitionedDataset, central: CentralReference, key: base.Key, report: base.Report
) -> dict[str, Any]:
    name, gammas = key["system"], key["gammas"]
    points: list[dict[str, Any]] = []
    solved = _exactly if name in EXACT else _from_sums if name.startswith("a_") else _by_training
    for gamma, solution in zip(gammas, solved(federation, name, gammas), strict=True):
        report("gammas", len(points), len(gammas))
        failed = isinstance(solution, str)
        points.append(
            {"gamma": gamma, "failed": solution}
            if failed
            else _compared(federation.dataset, central, gamma, *solution)
        )
    return {"points": points, "smallest_gamma": central.smallest_gamma if name in EXACT else None}


def _exactly(federation: PartitionedDataset, name: str, gammas: Sequence[float]) -> Iterator[Found]:
    """One training; gamma is not part of the statistics, so the solver is amended."""
    system: Any = catalogue.build(
        name, federation.pool, settings=VariantSettings(gamma=max(gammas))
    )
    try:
        system.train()
    except SolveError as problem:
        yield from [str(problem)] * len(gammas)  # the largest gamma is the last to be refused
        return
    for gamma in gammas:
        try:
            system.solver.amend(system.spec.with_gamma(gamma))
            head = system.solver.head()
        except SolveError as problem:
            yield str(problem)
        else:
            yield head.weights, head.digest


def _from_sums(
    federation: PartitionedDataset, name: str, gammas: Sequence[float]
) -> Iterator[Found]:
    """Variant A: one training, whose sums are solved for each gamma."""
    system: Any = catalogue.build(
        name, federation.pool, settings=VariantSettings(gamma=max(gammas))
    )
    system.train()
    sums = FloatGram(system.solver.gram, system.solver.moment)
    for gamma in gammas:
        solver = FloatCholeskySolver(system.spec.with_gamma(gamma), system.solver.dtype)
        solver.apply(sums, 1)
        try:
            yield solver.weights, None
        except NotAGramError as problem:
            yield str(problem)


def _by_training(
    federation: PartitionedDataset, name: str, gammas: Sequence[float]
) -> Iterator[Found]:
    """Variant B: its inverse begins at I / gamma, so each gamma is a training of its own."""
    for gamma in gammas:
        system: Any = catalogue.build(name, federation.pool, settings=VariantSettings(gamma=gamma))
        try:
            with np.errstate(
                over="ignore", invalid="ignore"
            ):  # weights that are not finite are a result
                system.train()
        except NotAGramError as problem:
            yield str(problem)
        else:
            yield system.weights, None
