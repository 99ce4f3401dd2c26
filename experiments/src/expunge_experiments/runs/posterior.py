"""posterior: the posterior after a stream is that of retraining, and deletions only ever make it
less certain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from expunge import Posterior, Spec, Statistics, WoodburySolver
from expunge.errors import InputError
from expunge.solvers.float64 import FloatWoodburySolver, relative_deviation
from expunge_experiments.datasets.dataset import Dataset, fitting_grid
from expunge_experiments.message import Array
from expunge_experiments.report.figures import BLUE, SKY, panels
from expunge_experiments.report.tables import fixed, scientific
from expunge_experiments.runs.base import Cell, Drawing, Experiment, Finding, Report, Results, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from expunge_experiments.datasets.catalogue import Library

Float = NDArray[np.float64]
_PUBLICATION_BITS = (
    48  # more than usual: the rounding of the reference must not hide what float64 is off by
)
ARITHMETIC = ("float64", "float32")


@dataclass(frozen=True)
class PosteriorSettings:
    """The stream, and the chain of deletions."""

    dataset: str = "digits_by_writer"  # features, by name
    gamma: float = 10.0  # the ridge penalty
    start: int = 8000  # samples retained before the stream
    requests: int = 400  # single deletions and additions, drawn at random
    marks: tuple[int, ...] = (
        0,
        100,
        200,
        300,
        400,
    )  # after how many requests posteriors are compared
    steps: int = 8  # deletions of a tenth of the start each; the same are added back
    probes: int = 500  # test samples whose predictive variance is followed
    seed: int = 0  # of the stream

    def __post_init__(self) -> None:
        if not self.gamma > 0.0 or self.start < 20 or self.requests < 1 or self.probes < 1:
            raise InputError(
                "gamma must be positive, start at least 20, requests and probes at least 1"
            )
        if (
            not self.marks
            or list(self.marks) != sorted(set(self.marks))
            or self.marks[0] < 0
            or self.marks[-1] > self.requests
        ):
            raise InputError(
                f"marks = {list(self.marks)} must ascend from at least 0 to at most requests = "
                f"{self.requests}"
            )
        if not 1 <= self.steps <= 9:
            raise InputError(f"steps = {self.steps} must be 1 to 9: each deletes a tenth")


class PosteriorRun(Experiment[PosteriorSettings]):
    """KL divergence and monotonicity."""

    name = "posterior"
    title = "The posterior after a stream"
    question = (
        "Is the posterior after a stream of additions and deletions the one of retraining, and is "
        "it true that deletions only increase its covariance and additions only decrease it?"
    )
    paper = (
        'The theorem "Exact Bayesian federated continual unlearning": the KL divergence between '
        "the posteriors of unlearning and "
        "of retraining is 0; and valid deletions can only increase posterior uncertainty in the "
        "PSD order."
    )
    full = PosteriorSettings()
    quick = PosteriorSettings(start=3000, requests=20, marks=(20,), steps=1, probes=200)

    def cells(self, settings: PosteriorSettings) -> list[Cell]:
        """The stream, and the chain."""
        shared = {name: getattr(settings, name) for name in ("dataset", "gamma", "start", "seed")}
        stream: dict[str, Any] = (
            {"part": "stream"}
            | shared
            | {"requests": settings.requests, "marks": list(settings.marks)}
        )
        chain: dict[str, Any] = (
            {"part": "chain"} | shared | {"steps": settings.steps, "probes": settings.probes}
        )
        return [Cell(stream, partial(_stream, stream)), Cell(chain, partial(_chain, chain))]

    def tables(self, _: PosteriorSettings, results: Results) -> list[Table]:
        """KL divergences; the chain."""
        stream, chain = results.where(part="stream"), results.where(part="chain")
        return [*stream.table(_stream_table), *chain.table(_chain_table)]

    def drawings(self, _: PosteriorSettings, results: Results) -> list[Drawing]:
        """Predictive variance along the chain."""
        chain = results.where(part="chain")
        if not chain:
            return []
        caption = (
            "Predictive variance of test samples (without noise, relative to that of all samples) "
            "along deletions of a tenth "
            "each, and along the same additions: median, and the range of all probes."
        )
        return [Drawing("posterior", caption, partial(_draw, chain))]

    def findings(self, _: PosteriorSettings, results: Results) -> list[Finding]:
        """That KL is zero and the order holds."""
        findings = []
        for done in results.where(part="stream"):
            marks = done.result["marks"]
            zero = all(
                mark["same_statistics"] and mark["same_head"] and mark["kl_exact"] == 0.0
                for mark in marks
            )
            last = marks[-1]
            text = (
                f"After {last['request']} requests the exact posterior and that of retraining have "
                "the same digests, so their KL divergence is 0 by identity, and `Posterior.kl_to` "
                f"gives 0.0; float64 Variant B's is {scientific(last['float64']['kl'])} nats, "
                f"float32's {_kl_text(last['float32'])}."
            )
            findings.append(Finding(text, zero))
        for done in results.where(part="chain"):
            steps = done.result["steps"]
            holds = all(step["ordered"] and step["probes_wrong"] == 0 for step in steps)
            probes, count = done.key["probes"], len(steps)
            text = (
                f"In {count} steps every deletion increased the posterior covariance in the PSD "
                "order and every addition decreased it, and so did the predictive variance of "
                f"each of {probes} test samples; undone, the statistics are those of before, by "
                "digest."
            )
            findings.append(Finding(text, holds and done.result["returned"]))
        return findings


def _start(key: Mapping[str, Any], library: Library) -> tuple[Dataset, Spec, NDArray[np.int64]]:
    """Samples in a random order, of which the first `start` are retained."""
    dataset = library.load(key["dataset"])
    if key["start"] > len(dataset.train_labels):
        raise InputError(
            f"start = {key['start']} is more than the {len(dataset.train_labels)} samples of "
            f"{dataset.name}"
        )
    labels = tuple(range(dataset.classes))
    grid = fitting_grid(dataset.train_features)
    spec = Spec(
        dim=dataset.dim,
        labels=labels,
        gamma=key["gamma"],
        publication_bits=_PUBLICATION_BITS,
        grid=grid,
    )
    return (
        dataset,
        spec,
        np.random.default_rng([key["seed"], 0x706F]).permutation(len(dataset.train_labels)),
    )


def _statistics(spec: Spec, dataset: Dataset, numbers: Array) -> Statistics:
    return Statistics.of(
        spec, dataset.train_features[numbers], dataset.train_labels[numbers], lost_columns="accept"
    )


# -- the stream ------------------------------------------------------------------------------------


def _stream(key: Mapping[str, Any], library: Library, report: Report) -> Mapping[str, Any]:
    dataset, spec, order = _start(key, library)
    retained, spare = list(order[: key["start"]]), list(order[key["start"] :])
    draw = np.random.default_rng([key["seed"], 0x7374])
    report("starting", 0, None)
    statistics = _statistics(spec, dataset, np.array(retained))
    sigma = Posterior.with_estimated_noise(statistics).sigma
    exact = WoodburySolver(spec, statistics)
    floats = {name: _float_solver(spec, statistics, name) for name in ARITHMETIC}
    marks = []
    for request in range(key["requests"] + 1):
        if request:
            add = bool(spare) and draw.random() < 0.5
            source, target = (spare, retained) if add else (retained, spare)
            number = source.pop(int(draw.integers(len(source))))
            target.append(number)
            sample = dataset.train_features[[number]], dataset.train_labels[[number]]
            solvers: list[WoodburySolver | FloatWoodburySolver] = [exact, *floats.values()]
            for solver in solvers:
                (solver.add if add else solver.delete)(*sample)
        if request in key["marks"]:
            report("comparing posteriors", key["marks"].index(request), len(key["marks"]))
            retrained = Posterior(_statistics(spec, dataset, np.array(retained)), sigma=sigma)
            marks.append({"request": request} | _compared(exact, floats, retrained))
    return {"sigma": sigma, "marks": marks}


def _float_solver(spec: Spec, statistics: Statistics, name: str) -> FloatWoodburySolver:
    """Begins where the exact one does, rounded: what is measured is the stream."""
    solver = FloatWoodburySolver(spec, name)
    solver.gram += statistics.gram_float().astype(name)
    solver.moment += statistics.moment_float().astype(name)
    solver.reset()
    return solver


def _compared(
    exact: WoodburySolver, floats: Mapping[str, FloatWoodburySolver], retrained: Posterior
) -> dict[str, Any]:
    mine = Posterior(exact.statistics, sigma=retrained.sigma)
    system = retrained.statistics.gram_float()
    system.flat[:: len(system) + 1] += retrained.spec.gamma
    factor = linalg.cholesky(system, lower=True)
    comparison: dict[str, Any] = {
        "same_statistics": mine.statistics.digest == retrained.statistics.digest,
        "same_head": exact.head().digest == retrained.head.digest,
        "kl_exact": mine.kl_to(retrained),
    }
    for name, solver in floats.items():
        inverse = solver.inverse.astype(np.float64)
        comparison[name] = {
            "kl": kl_from(
                factor, inverse, solver.weights.astype(np.float64) - retrained.mean, retrained.sigma
            ),
            "deviation": relative_deviation(solver.weights, retrained.mean),
            "resets": solver.resets - 1,
        }
    return comparison


def kl_from(factor: Float, inverse: Float, shift: Float, sigma: float) -> float | None:
    """KL(MN(M + shift, sigma^2 T, I) || MN(M, sigma^2 H^-1, I)) for H = L L'; None if T is not
    positive definite, so not a covariance.

    With E = L' T L - I it is (columns * tr(E - log(I + E)) + ||L' shift||^2 / sigma^2) / 2.
    Computed in float64, it cannot be seen below about width * (condition number * 2^-53)^2.
    """
    excess = factor.T @ inverse @ factor
    excess.flat[:: len(excess) + 1] -= 1.0
    values = linalg.eigvalsh((excess + excess.T) / 2.0)
    if not values[0] > -1.0:
        return None
    small = np.abs(values) < 1e-4
    spread = np.where(small, values**2 * (0.5 - values / 3.0), values - np.log1p(values)).sum()
    return float(0.5 * (shift.shape[1] * spread + np.square(factor.T @ shift).sum() / sigma**2))


def _kl_text(comparison: Mapping[str, Any]) -> str:
    return (
        "none (its T is no covariance any more)"
        if comparison["kl"] is None
        else f"{scientific(comparison['kl'])} nats"
    )


def _stream_table(results: Results) -> Table:
    columns = (
        "requests",
        "exact: KL",
        "exact: digests",
        "float64: KL",
        "float64: head off by",
        "float32: KL",
        "float32: head off by",
    )
    rows = []
    for done in results:
        for mark in done.result["marks"]:
            same = "equal" if mark["same_statistics"] and mark["same_head"] else "different"
            row = [str(mark["request"]), scientific(mark["kl_exact"]), same]
            for name in ARITHMETIC:
                kl = "no covariance" if mark[name]["kl"] is None else scientific(mark[name]["kl"])
                row += [kl, scientific(mark[name]["deviation"])]
            rows.append(row)
    note = (
        f"Variant B on {results[0].key['dataset']}, from {results[0].key['start']} samples on, "
        f"gamma = {results[0].key['gamma']:g}; KL in nats against the posterior of retraining, "
        "sigma estimated once. Float solvers begin with a fresh solve. Divergences of float64 are "
        "about as small as can be seen in float64."
    )
    return Table(
        "KL divergence between the posteriors of unlearning and of retraining",
        columns,
        rows,
        frozenset(columns),
        note,
    )


# -- the chain -------------------------------------------------------------------------------------


def _chain(key: Mapping[str, Any], library: Library, report: Report) -> Mapping[str, Any]:
    dataset, spec, order = _start(key, library)
    pieces = np.array_split(order[: key["start"]], 10)
    probes = dataset.test_features[: key["probes"]]
    report("starting", 0, None)
    statistics = _statistics(spec, dataset, order[: key["start"]])
    before = Posterior.with_estimated_noise(statistics)
    first, sigma = statistics.digest, before.sigma
    variances = np.square(before.predictive_std(probes, include_noise=False))
    alone, summaries = variances, [_summary(0, variances, variances)]
    steps = []
    changes = [(piece, "delete") for piece in pieces[: key["steps"]]]
    changes += [(piece, "add") for piece, _ in reversed(changes)]
    for number, (piece, kind) in enumerate(changes):
        report("steps", number, len(changes))
        change = _statistics(spec, dataset, piece)
        statistics = statistics - change if kind == "delete" else statistics + change
        after = Posterior(statistics, sigma=sigma)
        less, more = (after, before) if kind == "delete" else (before, after)
        smallest, largest = less.variance_ratios(more)
        now = np.square(after.predictive_std(probes, include_noise=False))
        grown = now >= variances if kind == "delete" else now <= variances
        summaries.append(_summary(number + 1, now, alone))
        steps.append(
            {
                "kind": kind,
                "samples": statistics.count,
                "ordered": less.is_no_more_certain_than(more),
                "smallest_ratio": smallest,
                "largest_ratio": largest,
                "probes_wrong": int((~grown).sum()),
                "mean_variance": float(now.mean()),
            }
        )
        before, variances = after, now
    return {
        "sigma": sigma,
        "steps": steps,
        "variances": summaries,
        "returned": statistics.digest == first,
    }


def _summary(step: int, variances: Float, alone: Float) -> dict[str, float]:
    ratio = variances / alone
    return {
        "step": step,
        "low": float(ratio.min()),
        "median": float(np.median(ratio)),
        "high": float(ratio.max()),
    }


def _chain_table(results: Results) -> Table:
    columns = (
        "step",
        "samples left",
        "in the PSD order",
        "smallest variance ratio",
        "largest",
        "probes against it",
        "mean variance",
    )
    rows = []
    for done in results:
        for number, step in enumerate(done.result["steps"], 1):
            ratios = [fixed(step["smallest_ratio"], 6), fixed(step["largest_ratio"], 4)]
            words = [
                f"{number}: {step['kind']}",
                f"{step['samples']:,}",
                "yes" if step["ordered"] else "no",
            ]
            rows.append(
                [*words, *ratios, str(step["probes_wrong"]), scientific(step["mean_variance"])]
            )
    note = (
        "Ratios of the variance with fewer samples to that with more, over all directions of the "
        "weights; at least 1 is what the "
        "law says. Probes against it: test samples whose predictive variance moved the other way."
    )
    return Table("Monotonicity", columns, rows, frozenset(columns[1:]), note)


def _draw(results: Results) -> Figure:
    figure, axes = panels(width=4.6)
    for done in results:
        summaries, steps = done.result["variances"], done.key["steps"]
        x = [summary["step"] for summary in summaries]
        low, middle, high = (
            [summary[name] for summary in summaries] for name in ("low", "median", "high")
        )
        axes.fill_between(x, low, high, color=SKY, alpha=0.3, linewidth=0)
        axes.plot(x, middle, color=BLUE, marker="o")
        axes.axvline(steps, color="#6b6b6b", linestyle=":", linewidth=0.9)
        axes.text(
            steps / 2,
            0.97,
            "deletions",
            transform=axes.get_xaxis_transform(),
            ha="center",
            va="top",
        )
        axes.text(
            steps * 1.5,
            0.97,
            "additions",
            transform=axes.get_xaxis_transform(),
            ha="center",
            va="top",
        )
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(title="Predictive variance", xlabel="step", ylabel="relative to all samples")
    return figure
