"""Exact-Fun's quantization step: accuracy against how often the deletion of a single sample makes
it train again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from expunge.errors import InputError
from expunge_experiments import tuned
from expunge_experiments.pool import Pool, partition
from expunge_experiments.report.figures import COLOURS, panels, seeds_line
from expunge_experiments.runs import base
from expunge_experiments.systems import catalogue
from expunge_experiments.systems.exactfun import ExactFun, ExactFunSettings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from expunge_experiments.datasets.catalogue import Library

_HALF = 0.5  # of the deletions
_PAPER = 0.08
_DELETIONS = 0x616C_70


@dataclass(frozen=True)
class AlphaSettings:
    """Steps, learning rates and single deletions, each asked about on its own."""

    dataset: str = "cifar10"
    clients: int = 100
    seeds: tuple[int, ...] = (0, 1, 2)
    alphas: tuple[float, ...] = (0.04, 0.06, 0.08, 0.10, 0.12)
    slower: tuple[float, ...] = (
        1.0,
        0.3,
        0.1,
    )  # shares of the rate that the sweep chose: the smaller, the less a deletion moves
    deletions: int = (
        100  # single samples, each of which is asked about on its own: would it be skipped?
    )

    def __post_init__(self) -> None:
        if not self.alphas or not self.slower or min(self.alphas) <= 0 or min(self.slower) <= 0:
            raise InputError("alphas and slower must be positive numbers, at least one of each")
        if not self.seeds or len(set(self.seeds)) != len(self.seeds) or min(self.seeds) < 0:
            raise InputError(
                f"seeds = {list(self.seeds)} must be different whole numbers from 0, at least one "
                "of them"
            )
        if self.clients < 1 or self.deletions < 1:
            raise InputError("clients and deletions must be at least 1")


class Alpha(base.Experiment[AlphaSettings]):
    """Coarse steps forget what a deletion changes, and what training does as well."""

    name = "alpha"
    title = "Exact-Fun's quantization step"
    question = (
        "How do accuracy and the share of single deletions that trigger retraining depend on the "
        "quantization step alpha, and on the learning rate?"
    )
    paper = (
        "Appendix: alpha = 0.08 was chosen; at 0.06, single deletions frequently triggered "
        "partial retraining."
    )
    full = AlphaSettings()
    quick = AlphaSettings(seeds=(0,), alphas=(0.04, 0.08, 0.12), slower=(0.3,), deletions=30)

    def cells(self, settings: AlphaSettings) -> list[base.Cell]:
        """One for each step, rate and seed."""
        shared = {
            "dataset": settings.dataset,
            "clients": settings.clients,
            "deletions": settings.deletions,
        }
        swept = tuned.settings_for(settings.dataset, "exactfun")
        made = []
        for slower, alpha, seed in product(settings.slower, settings.alphas, settings.seeds):
            chosen = replace(swept, alpha=alpha, rate=slower * swept.rate)
            key = {
                **shared,
                "slower": slower,
                "alpha": alpha,
                "seed": seed,
                "settings": catalogue.settings_dict(chosen),
            }
            made.append(base.Cell(key, partial(_measured, settings, chosen, seed)))
        return made

    def tables(self, settings: AlphaSettings, results: base.Results) -> list[base.Table]:
        """Means over seeds."""
        rows = []
        for slower, alpha in product(settings.slower, settings.alphas):
            runs = results.where(slower=slower, alpha=alpha)
            if runs:
                names = ("accuracy", "triggered", "nonzero", "recomputed", "trainings")
                accuracy, triggered, nonzero, recomputed, trainings = (
                    _mean(runs, name) for name in names
                )
                rate = f"{runs[0].key['settings']['rate']:g}"
                rows.append(
                    (
                        rate,
                        f"{alpha:g}",
                        f"{accuracy:.4f}",
                        f"{triggered:.0%}",
                        f"{nonzero:.0%}",
                        f"{recomputed:.0f}",
                        f"{trainings:.1f}",
                    )
                )
        columns = (
            "rate",
            "alpha",
            "accuracy",
            "triggered",
            "weights that are not 0",
            "rounds redone",
            "local trainings",
        )
        note = (
            "Triggered: the share of single deletions, each from the same trained state, that "
            "change a quantized aggregate. Rounds redone are the mean over those; local trainings "
            "are what the deletion's own client repeats before, even if it is skipped."
        )
        return [base.Table("Accuracy and trigger rate", columns, rows, frozenset(columns), note)]

    def drawings(self, settings: AlphaSettings, results: base.Results) -> list[base.Drawing]:
        """Both against alpha."""
        caption = (
            "Exact-Fun: accuracy (left) and the share of single deletions that trigger "
            "retraining (right) against alpha."
        )
        return (
            [base.Drawing("steps", caption, partial(_drawn, settings, results))] if results else []
        )

    def findings(self, settings: AlphaSettings, results: base.Results) -> list[base.Finding]:
        """At the paper's step, and how both move with it."""
        findings = []
        for slower in settings.slower:
            here = results.where(slower=slower)
            alphas = here.values("alpha")
            if len(alphas) < 2:
                continue
            rate = here[0].key["settings"]["rate"]
            parts = [
                f"alpha {alpha:g}: accuracy {_mean(here.where(alpha=alpha), 'accuracy'):.4f}, "
                f"{_mean(here.where(alpha=alpha), 'triggered'):.0%} triggered"
                for alpha in (min(alphas), *([_PAPER] if _PAPER in alphas else []), max(alphas))
            ]
            findings.append(base.Finding(f"Learning rate {rate:g}. {'; '.join(parts)}."))
            low, high = (
                _mean(here.where(alpha=alpha), "triggered") for alpha in (min(alphas), max(alphas))
            )
            text = (
                f"Learning rate {rate:g}: the finest step triggers at least as often as the "
                f"coarsest ({low:.0%} and {high:.0%})."
            )
            findings.append(base.Finding(text, low >= high))
        return findings + _price(results)


def _price(results: base.Results) -> list[base.Finding]:
    """What accuracy skips cost, where there are some runs with many and some with few."""
    groups = [
        results.where(slower=slower, alpha=alpha)
        for slower in results.values("slower")
        for alpha in results.values("alpha")
    ]
    pairs = [(_mean(group, "accuracy"), _mean(group, "triggered")) for group in groups if group]
    skipping = [accuracy for accuracy, triggered in pairs if triggered < _HALF]
    if not skipping or len(skipping) == len(pairs):
        return []
    best = max(accuracy for accuracy, _ in pairs)
    return [
        base.Finding(
            f"Where fewer than half of the deletions trigger, accuracy is {max(skipping):.4f} at "
            f"most, {100 * (best - max(skipping)):.1f} points below the best here: a deletion is "
            "skipped only if not one weight of any round's aggregate moves to another step, and "
            "where that is usual, too few weights move at all."
        )
    ]


def _measured(
    settings: AlphaSettings,
    chosen: ExactFunSettings,
    seed: int,
    library: Library,
    report: base.Report,
) -> Mapping[str, Any]:
    """Train once; then ask about single deletions, none of which is made."""
    data = library.load(settings.dataset)
    pool = Pool.of(data, partition(data, settings.clients, seed), settings.clients)
    system = cast("ExactFun", catalogue.build("exactfun", pool, settings=chosen, seed=seed))
    report(f"trains at alpha {chosen.alpha:g}", 0, None)
    cost = system.train()
    samples = np.random.default_rng([seed, _DELETIONS]).permutation(pool.size)[: settings.deletions]
    first, trainings = [], []
    for number, sample in enumerate(samples):
        report(f"single deletions at alpha {chosen.alpha:g}", number, len(samples))
        before = system.engine.usage.exchanges
        first.append(system.first_change(np.array([sample])))
        trainings.append(system.engine.usage.exchanges - before)
    changed = [chosen.rounds - round_ for round_ in first if round_ is not None]
    return {
        "accuracy": system.accuracy(data.test_features, data.test_labels),
        "triggered": len(changed) / len(first),
        "first": first,
        "recomputed": float(np.mean(changed)) if changed else 0.0,
        "trainings": float(np.mean(trainings)),
        "nonzero": float(np.mean(np.asarray(system.weights) != 0)),
        "training_seconds": cost.seconds,
    }


def _mean(results: base.Results, name: str) -> float:
    summary = base.over_seeds(done.result[name] for done in results)
    return summary.mean if summary is not None else float("nan")


def _values(results: base.Results, name: str, alphas: Sequence[float]) -> list[list[float]]:
    return [[done.result[name] for done in results.where(alpha=alpha)] for alpha in alphas]


def _drawn(settings: AlphaSettings, results: base.Results) -> Figure:
    figure, axes = panels(2)
    for index, slower in enumerate(settings.slower):
        here = results.where(slower=slower)
        if not here:
            continue
        label = f"rate {here[0].key['settings']['rate']:g}"
        style = {"color": COLOURS[index], "marker": "o"}
        for panel, name in zip(axes, ("accuracy", "triggered"), strict=True):
            seeds_line(
                panel, settings.alphas, _values(here, name, settings.alphas), label=label, **style
            )
    for panel, name in zip(
        axes, ("test accuracy", "share of single deletions that trigger"), strict=True
    ):
        panel.set_xlabel("quantization step alpha")
        panel.set_ylabel(name)
        panel.legend()
    axes[1].set_ylim(-0.03, 1.03)
    return figure
