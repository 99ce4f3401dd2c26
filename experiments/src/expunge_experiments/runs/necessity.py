"""necessity: second-order information is necessary.

The lemma's counterexample, run, and the same on real features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from expunge import Grid, Head, Spec, Statistics, solve
from expunge.errors import InputError
from expunge.solvers.float64 import relative_deviation
from expunge_experiments.message import Array
from expunge_experiments.pool import partition
from expunge_experiments.report.figures import COLOURS, panels
from expunge_experiments.report.tables import fixed, scientific
from expunge_experiments.runs import base
from expunge_experiments.systems.linear import ridge

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from expunge_experiments.datasets.catalogue import Library

BATCHES = {"A": ((1, 0), (0, 1)), "B": ((1, 1), (0, 0))}  # the lemma's, with label 1 throughout
# Bits after the point of real features here, so that the middle of two is on the grid as well
_COARSE = 20


@dataclass(frozen=True)
class NecessitySettings:
    """Where the counterexample is run."""

    gammas: tuple[float, ...] = (0.25, 1.0, 4.0)  # of the counterexample
    dataset: str = "cifar10"  # real features, by name
    samples: int = 10000  # of these
    clients: int = 100  # among which they are divided
    gamma: float = 10.0  # on real features
    seeds: tuple[int, ...] = (0, 1, 2)  # of samples and partition

    def __post_init__(self) -> None:
        if not self.gammas or min(*self.gammas, self.gamma) <= 0.0:
            raise InputError(
                f"gammas = {list(self.gammas)} and gamma = {self.gamma} must be positive"
            )
        if self.samples < 2 or self.clients < 1:
            raise InputError("samples must be at least 2 and clients at least 1")


class Necessity(base.Experiment[NecessitySettings]):
    """First-order summaries do not determine the head."""

    name = "necessity"
    title = "Second-order information is necessary"
    question = (
        "Can a protocol that sends sums and label-weighted sums of features only, but no "
        "Gram, be exact?"
    )
    paper = (
        'The lemma "Second-order information is necessary for deterministic exactness": two '
        "batches with the same first-order "
        "summaries have different Grams, so a protocol that cannot tell them apart is wrong on "
        "one of them."
    )
    full = NecessitySettings()
    quick = NecessitySettings(seeds=(0,), samples=4000)

    def cells(self, settings: NecessitySettings) -> list[base.Cell]:
        """The counterexample for every gamma; real features for every seed."""
        cells = [
            base.Cell({"case": "lemma", "gamma": gamma}, partial(_lemma, gamma))
            for gamma in settings.gammas
        ]
        for seed in settings.seeds:
            names = ("dataset", "samples", "clients", "gamma")
            key = (
                {"case": "real"}
                | {name: getattr(settings, name) for name in names}
                | {"seed": seed}
            )
            cells.append(base.Cell(key, partial(_real, key)))
        return cells

    def tables(self, _: NecessitySettings, results: base.Results) -> list[base.Table]:
        """The counterexample; real features."""
        lemma, real = results.where(case="lemma"), results.where(case="real")
        return [*lemma.table(_lemma_table), *real.table(_real_table)]

    def drawings(self, _: NecessitySettings, results: base.Results) -> list[base.Drawing]:
        """The two solutions over gamma, and accuracy by what is sent."""
        real = results.where(case="real")
        if not real:
            return []
        caption = (
            "Test accuracy of the exact head of real samples, of the exact head of other samples "
            "with the same first-order summaries, and of a head from these summaries alone (left), "
            "and how far they are apart (right); bars: one standard deviation over seeds."
        )
        return [base.Drawing("necessity", caption, partial(_draw, real))]

    def findings(self, _: NecessitySettings, results: base.Results) -> list[base.Finding]:
        """That both claims of the lemma were seen."""
        lemma, real = results.where(case="lemma"), results.where(case="real")
        findings = []
        if lemma:
            holds = all(
                done.result["same_summaries"] and done.result["different_heads"] for done in lemma
            )
            right = all(done.result["expunge_right"] for done in lemma)
            text = (
                "Both batches of the lemma have the same sums, counts and label-weighted sums, and "
                "different heads, in rational arithmetic and by expunge, whose heads are the "
                "rational ones correctly rounded. No function of the summaries is right for both."
            )
            findings.append(base.Finding(text, holds and right))
        if real:
            holds = all(
                done.result["same_summaries"] and not done.result["same_gram"] for done in real
            )
            least = min(done.result["deviation_between"] for done in real)
            text = (
                "Real samples, and the same with pairs of one client and class replaced by their "
                "middle, have the same first-order summaries at every client, to the bit, but "
                f"heads {least:.3f} or more apart (Frobenius, relative to the former's norm): "
                f"whatever is computed from the summaries is off by at least {least / 2:.3f} on "
                "one of the two."
            )
            findings.append(base.Finding(text, holds and least > 0.0))
        return findings


# -- the counterexample ----------------------------------------------------------------------------


def _lemma(gamma: float, _: Library, __: base.Report) -> Mapping[str, Any]:
    rational = {name: _solved(rows, Fraction(gamma)) for name, rows in BATCHES.items()}
    spec = Spec(dim=2, outputs=1, gamma=gamma, intercept=False)
    heads = {name: _head(spec, rows) for name, rows in BATCHES.items()}
    right = [
        _rounded(weight, spec) == int(heads[name].integers[index, 0])
        for name in rational
        for index, weight in enumerate(rational[name])
    ]
    return {
        "batches": {
            name: _first_order(rows)
            | {
                "gram": _gram(rows),
                "rational_head": [str(weight) for weight in rational[name]],
                "expunge_head": heads[name].weights[:, 0].tolist(),
                "digest": heads[name].digest,
            }
            for name, rows in BATCHES.items()
        },
        "same_summaries": _first_order(BATCHES["A"]) == _first_order(BATCHES["B"]),
        "different_heads": rational["A"] != rational["B"]
        and heads["A"].digest != heads["B"].digest,
        "expunge_right": all(right),
    }


def _first_order(rows: Sequence[Sequence[int]]) -> dict[str, Any]:
    """All that a protocol without second-order information may send."""
    labels = [1] * len(rows)
    return {
        "samples": len(rows),
        "sum_of_features": [sum(column) for column in zip(*rows, strict=True)],
        "sum_of_labels": sum(labels),
        "label_weighted_sum": [
            sum(y * f for y, f in zip(labels, column, strict=True))
            for column in zip(*rows, strict=True)
        ],
    }


def _gram(rows: Sequence[Sequence[int]]) -> list[list[int]]:
    return [[sum(row[i] * row[j] for row in rows) for j in range(2)] for i in range(2)]


def _solved(rows: Sequence[Sequence[int]], gamma: Fraction) -> list[Fraction]:
    """(S + gamma I)^-1 G in rational arithmetic, by Cramer's rule."""
    (a, b), (_, c) = _gram(rows)
    first, second = (sum(column) for column in zip(*rows, strict=True))
    left, right = a + gamma, c + gamma
    determinant = left * right - b * b
    return [(right * first - b * second) / determinant, (left * second - b * first) / determinant]


def _head(spec: Spec, rows: Sequence[Sequence[int]]) -> Head:
    return solve(Statistics.of(spec, np.array(rows, dtype=np.float64), np.ones((len(rows), 1))))


def _rounded(value: Fraction, spec: Spec) -> int:
    """To the publication grid; there are no ties among these."""
    return round(value * Fraction(2) ** spec.publication_bits)


def _lemma_table(results: base.Results) -> base.Table:
    columns = ("gamma", "batch", "Σf", "Σy", "Σyf", "Gram", "head, rational", "head, expunge")
    rows = []
    for done in results:
        for name, batch in done.result["batches"].items():
            rational = ", ".join(batch["rational_head"])
            head = ", ".join(f"{weight:.6f}" for weight in batch["expunge_head"])
            sums = [
                str(batch["sum_of_features"]),
                str(batch["sum_of_labels"]),
                str(batch["label_weighted_sum"]),
            ]
            rows.append([f"{done.key['gamma']:g}", name, *sums, str(batch["gram"]), rational, head])
    note = (
        "Batch A: (1, 0) and (0, 1); batch B: (1, 1) and (0, 0); every label is 1. Same "
        "summaries, different heads."
    )
    return base.Table("The lemma's counterexample", columns, rows, frozenset({"gamma"}), note)


# -- real features ---------------------------------------------------------------------------------


def _real(key: Mapping[str, Any], library: Library, report: base.Report) -> Mapping[str, Any]:
    dataset = library.load(key["dataset"])
    draw = np.random.default_rng([key["seed"], 0x6E65])
    owners = partition(dataset, key["clients"], key["seed"])
    chosen = np.sort(
        draw.choice(
            len(dataset.train_labels), min(key["samples"], len(dataset.train_labels)), replace=False
        )
    )
    features = _coarse(dataset.train_features[chosen])
    labels, owners = dataset.train_labels[chosen], owners[chosen]
    spec = Spec(
        dim=dataset.dim,
        labels=tuple(range(dataset.classes)),
        gamma=key["gamma"],
        grid=Grid(fraction_bits=30),
    )
    report("statistics", 0, None)
    paired = averaged_pairs(features, labels, owners)
    ours, other = (
        Statistics.of(spec, rows, labels, lost_columns="accept") for rows in (features, paired)
    )
    same = (
        ours.count == other.count
        and bool((ours.moment == other.moment).all())
        and _same_sums(features, paired, labels, owners)
    )
    report("heads", 0, None)
    head, changed = solve(ours), solve(other)
    means = _from_means(ours, key["gamma"])
    test = _coarse(dataset.test_features)
    return {
        "samples": len(labels),
        "same_summaries": same,
        "same_gram": bool((ours.gram == other.gram).all()),
        "deviation_between": relative_deviation(changed.weights, head.weights),
        "deviation_of_means": relative_deviation(means, head.weights),
        "accuracy": {
            "exact": float((head.predict(test) == dataset.test_labels).mean()),
            "pairs": float((changed.predict(test) == dataset.test_labels).mean()),
            "means": float(
                ((test @ means[:-1] + means[-1]).argmax(axis=1) == dataset.test_labels).mean()
            ),
        },
    }


def _coarse(features: Array) -> Array:
    """Features with 20 bits after the point: their sums and middles are exact."""
    return np.asarray(np.ldexp(np.rint(np.ldexp(features.astype(np.float64), _COARSE)), -_COARSE))


def averaged_pairs(features: Array, labels: Array, owners: Array) -> Array:
    """The same samples, but of any two that follow one another within a client and class both are
    replaced by their middle.

    Law: sums over any client and class are the same, exactly; Grams are not.
    """
    result = features.copy()
    order = np.lexsort((labels, owners))
    group = owners[order] * (int(labels.max()) + 1) + labels[order]
    starts = np.flatnonzero(np.r_[True, group[1:] != group[:-1]])
    position = np.arange(len(order)) - np.repeat(starts, np.diff(np.r_[starts, len(order)]))
    first = np.flatnonzero((position[:-1] % 2 == 0) & (group[:-1] == group[1:]))
    left, right = order[first], order[first + 1]
    middle = (features[left] + features[right]) / 2.0
    result[left] = middle
    result[right] = middle
    return result


def _same_sums(left: Array, right: Array, labels: Array, owners: Array) -> bool:
    """Whether every client's sum for every class is the same, exactly: sums of so few bits are
    exact in float64.
    """
    group = owners * (int(labels.max()) + 1) + labels
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(group[order]) != 0])
    sums = [np.add.reduceat(rows[order], starts, axis=0) for rows in (left, right)]
    return bool((sums[0] == sums[1]).all())


def _from_means(statistics: Statistics, gamma: float) -> Array:
    """A head from counts and class means alone: as if every sample were at the mean of its class.

    That is S = sum of n m m' over classes, the smallest Gram that the first-order summaries allow.
    """
    moment, counts = statistics.moment_float(), statistics.class_counts.astype(np.float64)
    means = moment / np.maximum(counts, 1.0)
    return ridge((means * counts) @ means.T, moment, gamma)


def _real_table(results: base.Results) -> base.Table:
    columns = (
        "seed",
        "accuracy, exact",
        "accuracy, pairs averaged",
        "accuracy, means only",
        "pairs: deviation",
        "means: deviation",
    )
    rows = []
    for done in results:
        accuracy = [fixed(done.result["accuracy"][name]) for name in ("exact", "pairs", "means")]
        deviations = [
            scientific(done.result[f"deviation_{name}"]) for name in ("between", "of_means")
        ]
        rows.append([str(done.key["seed"]), *accuracy, *deviations])
    note = (
        f"{results[0].result['samples']} samples of {results[0].key['dataset']} at "
        f"{results[0].key['clients']} clients. Pairs averaged: other samples with the same "
        "first-order summaries at every client and class. Means only: a head from counts and "
        "class means. Deviations are from the exact head of the samples."
    )
    return base.Table("Real features", columns, rows, frozenset(columns), note)


def _draw(results: base.Results) -> Figure:
    figure, (left, right) = panels(2)
    named = {
        "exact": "Gram and moment\n(ours)",
        "pairs": "other samples,\nsame summaries",
        "means": "summaries\nonly",
    }
    for position, name in enumerate(named):
        _bar(left, position, [done.result["accuracy"][name] for done in results])
    for position, name in enumerate(("between", "of_means"), 1):
        _bar(right, position, [done.result[f"deviation_{name}"] for done in results])
    right.plot([-0.3, 0.3], [0.0, 0.0], color=COLOURS[0], linewidth=2.0)
    for axes in (left, right):
        axes.set_xticks(range(len(named)), list(named.values()))
    left.set(title="Heads behind the same summaries", ylabel="test accuracy", ylim=(0.0, 1.0))
    right.set(title="Their distance from the exact head", ylabel="relative deviation")
    return figure


def _bar(axes: Any, position: int, values: Sequence[float]) -> None:
    if (summary := base.over_seeds(values)) is not None:
        axes.bar(
            position,
            summary.mean,
            width=0.6,
            color=COLOURS[position],
            yerr=summary.deviation or None,
            capsize=2.0,
        )
