"""The sweep: gamma, learning rates, epochs and batch sizes, chosen on a validation split by the
same effort for every system.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from expunge.errors import InputError
from expunge_experiments import tuned
from expunge_experiments.datasets.dataset import Dataset
from expunge_experiments.pool import Pool, partition
from expunge_experiments.report.figures import look, panels
from expunge_experiments.runs import base
from expunge_experiments.systems import catalogue
from expunge_experiments.systems.gradient import predicted
from expunge_experiments.systems.linear import gram_and_moment, ridge

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from expunge_experiments.datasets.catalogue import Library

Point = dict[str, Any]

SYSTEMS = ("central", "fedavg", "fats", "exactfun", "sisa", "fedcio")
_POINTS = 16  # of every grid
_GAMMAS = tuple(10.0 ** (power / 2) for power in range(-8, 8))
# Learning rates, times the mean squared length of a sample (with its constant): a range that suits
# all features alike.
_RATES = {
    "fedavg": (2.0, 10.0, 50.0, 250.0),
    "exactfun": (200.0, 1000.0, 5000.0, 25000.0),
    "sisa": (2.0, 10.0, 50.0, 250.0),
    "fedcio": (2.0, 10.0, 50.0, 250.0),
    "fats": (1.0, 4.0, 10.0, 25.0, 60.0, 150.0, 400.0, 1000.0),
}
_EPOCHS, _BATCHES = (1, 3), (64, 16)
_ENOUGH = 0.01  # below the best accuracy: what is cheaper is preferred then


@dataclass(frozen=True)
class SweepSettings:
    """What to choose settings for, and on which part of the training data."""

    datasets: tuple[str, ...] = ("cifar10", "digits_by_writer", "tweets_by_user")
    systems: tuple[str, ...] = SYSTEMS  # central ridge chooses gamma for all ridge systems
    clients: int = 100
    held_out: float = 0.1  # the share of the training samples that is the validation split
    seeds: tuple[int, ...] = (
        0,
        1,
        2,
    )  # of validation split, partition and training; a point counts by its mean over them
    every: int = 1  # of the 16 points of each grid, every so-manieth is tried

    def __post_init__(self) -> None:
        for name in self.systems:
            if name not in SYSTEMS:
                raise InputError(
                    f"systems: there is no sweep of {name!r}; there are sweeps of "
                    f"{', '.join(SYSTEMS)}"
                )
        if not self.datasets or not self.systems:
            raise InputError("datasets and systems must have at least one name each")
        if not self.seeds or len(set(self.seeds)) != len(self.seeds) or min(self.seeds) < 0:
            raise InputError(
                f"seeds = {list(self.seeds)} must be different whole numbers from 0, at least one "
                "of them"
            )
        if self.clients < 1 or not 0.0 < self.held_out < 1.0:
            raise InputError("clients must be at least 1, and held_out between 0 and 1")
        if not 1 <= self.every <= _POINTS:
            raise InputError(f"every must be from 1 to {_POINTS}, and is {self.every}")


def grid(system: str, scale: float) -> list[Point]:
    """The points of a system: sixteen for each. `scale` is the mean squared length of a sample."""
    if system == "central":
        return [{"gamma": _rounded(gamma)} for gamma in _GAMMAS]
    rates = [_rounded(step / scale) for step in _RATES[system]]
    if (
        system == "fats"
        # One step a round, and its batch is the paper's: centring is what there is to choose
        # besides
    ):
        return [
            {"rate": rate, "centred": centred} for rate, centred in product(rates, (False, True))
        ]
    return [
        {"rate": rate, "epochs": epochs, "batch": batch}
        for epochs, batch, rate in product(_EPOCHS, _BATCHES, rates)
    ]


def best(system: str, points: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The cheapest point within one point (0.01) of the best mean accuracy; of equally cheap ones
    the most accurate.

    Fewer epochs are cheaper, then larger batches, and for Exact-Fun lower rates, at which deletions
    change less. Of equally accurate gammas the largest counts, for which the equation is best
    conditioned; of other settings the first.
    """
    enough = max(point["accuracy"] for point in points) - _ENOUGH

    def cost(point: Mapping[str, Any]) -> tuple[float, ...]:
        chosen = point["settings"]
        rate = chosen["rate"] if system == "exactfun" else 0.0
        return (
            chosen.get("epochs", 0),
            -chosen.get("batch", 0),
            rate,
            -point["accuracy"],
            -chosen.get("gamma", 0),
        )

    return min((point for point in points if point["accuracy"] >= enough), key=cost)


class Sweep(base.Experiment[SweepSettings]):
    """Every system's settings, by the same number of points on the same validation split."""

    name = "sweep"
    title = "Settings, chosen by a sweep"
    question = (
        "Which gamma, learning rate, epochs and batch size suit each system? Up to sixteen points "
        "each, by the mean over seeds on a tenth of the training samples that the systems do not "
        "see; test samples are not looked at."
    )
    paper = "The paper states neither gamma, learning rates, epochs nor batch sizes."
    full = SweepSettings()
    quick = SweepSettings(datasets=("tweets_by_user",), seeds=(0,), every=7)

    def cells(self, settings: SweepSettings) -> list[base.Cell]:
        """One for each dataset and system."""
        seeds = list(settings.seeds)
        shared = {
            "clients": settings.clients,
            "held_out": settings.held_out,
            "seeds": seeds,
            "every": settings.every,
        }
        return [
            base.Cell(
                {"dataset": dataset, "system": system, **shared},
                partial(_swept, settings, dataset, system),
            )
            for dataset, system in product(settings.datasets, settings.systems)
        ]

    def tables(self, _: SweepSettings, results: base.Results) -> list[base.Table]:
        """What was chosen, and every point."""
        rows = []
        for done in results:
            accuracies = [point["accuracy"] for point in done.result["points"]]
            spread = f"{min(accuracies):.4f} to {max(accuracies):.4f}"
            sizes = tuned.sizes_for(done.key["dataset"], done.key["system"])
            chosen = _words(done.result["settings"])
            title = catalogue.entry_of(done.key["system"]).title
            accuracy = f"{done.result['accuracy']:.4f}"
            rows.append(
                (
                    done.key["dataset"],
                    title,
                    chosen,
                    _words(sizes),
                    accuracy,
                    f"{len(accuracies)}",
                    spread,
                )
            )
        note = (
            "Chosen is the cheapest point within 0.01 of the best mean accuracy over seeds: fewer "
            "epochs, then larger batches, for Exact-Fun then lower rates; of equally cheap ones, "
            "the best. Ridge systems all take central ridge's gamma, the largest of those that are "
            "best."
        )
        columns = (
            "dataset",
            "system",
            "chosen",
            "sizes (the paper's)",
            "validation accuracy",
            "points",
            "of all points",
        )
        return [
            base.Table(
                "Chosen settings", columns, rows, frozenset({"validation accuracy", "points"}), note
            )
        ]

    def drawings(self, _: SweepSettings, results: base.Results) -> list[base.Drawing]:
        """Accuracy against the rate."""
        datasets = [
            name
            for name in results.values("dataset")
            if any(_rates(done.result) for done in results.where(dataset=name))
        ]
        if not datasets:
            return []
        caption = (
            "Validation accuracy against the learning rate; at each rate, the best of the "
            "other settings."
        )
        return [base.Drawing("rates", caption, partial(_drawn, datasets, results))]

    def findings(self, settings: SweepSettings, results: base.Results) -> list[base.Finding]:
        """Whether efforts were equal, and whether ranges were wide enough: of whole grids only that
        can be said.
        """
        if not results:
            return []
        counts = sorted({len(done.result["points"]) for done in results})
        findings = [
            base.Finding(
                "Every system was tried at the same number of points: "
                f"{', '.join(map(str, counts))}.",
                len(counts) == 1,
            )
        ]
        if settings.every == 1:
            edges = [
                f"{done.key['system']} on {done.key['dataset']}"
                for done in results
                if _at_edge(done.result)
            ]
            text = (
                "Neither the lowest nor the highest learning rate is anywhere more than 0.01 "
                "better than the others"
            )
            findings.append(
                base.Finding(
                    f"{text}{', except for ' + ', '.join(edges) if edges else ''}.", not edges
                )
            )
        return findings + [_short(results, done) for done in results.where(system="fats")]


def _short(results: base.Results, fats: base.Done) -> base.Finding:
    """FATS against central ridge, and what it would be if it were not stopped so early."""
    dataset = fats.key["dataset"]
    sizes = tuned.sizes_for(dataset, "fats")
    draws = sizes["rounds"] * sizes["clients_per_round"] * sizes["samples"]
    central = results.where(system="central", dataset=dataset)
    gap = (
        (
            f", {100 * (central[0].result['accuracy'] - fats.result['accuracy']):.1f} points below "
            "central ridge"
        )
        if central
        else ""
    )
    return base.Finding(
        f"{dataset}: FATS has validation accuracy {fats.result['accuracy']:.4f}{gap}. In its "
        f"{sizes['rounds']} rounds it takes {sizes['rounds'] * sizes['steps']} steps and draws "
        f"{draws:,} samples at most; with twice the rounds and the same settings it has "
        f"{fats.result['twice_the_rounds']:.4f}."
    )


def _swept(
    settings: SweepSettings, dataset: str, system: str, library: Library, report: base.Report
) -> Mapping[str, Any]:
    """One system at each of its points, for each seed."""
    whole = library.load(dataset)
    scale = mean_square(whole)
    candidates = grid(system, scale)[:: settings.every]
    accuracies: list[list[float]] = [[] for _ in candidates]
    longer: list[float] = []
    for index, seed in enumerate(settings.seeds):
        data = whole.held_out(settings.held_out, seed)
        for number, accuracy in enumerate(_tried(settings, system, data, candidates, seed)):
            report(
                f"{system} on {dataset}",
                index * len(candidates) + number,
                len(settings.seeds) * len(candidates),
            )
            accuracies[number].append(accuracy)
    points = [
        {"settings": point, "accuracy": float(np.mean(seen)), "accuracies": seen}
        for point, seen in zip(candidates, accuracies, strict=True)
    ]
    chosen = best(system, points)
    result = {
        "settings": chosen["settings"],
        "accuracy": chosen["accuracy"],
        "points": points,
        "mean_square": scale,
    }
    if system != "fats":
        return result
    twice = chosen["settings"] | {"rounds": 2 * tuned.sizes_for(dataset, system)["rounds"]}
    for seed in settings.seeds:
        longer += _tried(settings, system, whole.held_out(settings.held_out, seed), [twice], seed)
    return result | {"twice_the_rounds": float(np.mean(longer))}


def _tried(
    settings: SweepSettings, system: str, data: Dataset, candidates: Sequence[Point], seed: int
) -> Iterator[float]:
    """The validation accuracy of a system at each point."""
    if system == "central":
        yield from _ridges(data, candidates)
        return
    pool = Pool.of(data, partition(data, settings.clients, seed), settings.clients)
    for point in candidates:
        chosen = catalogue.settings_from(
            system, tuned.sizes_for(data.name, system) | point
        )  # the point may change sizes
        built = catalogue.build(system, pool, settings=chosen, seed=seed)
        built.train()
        yield built.accuracy(data.test_features, data.test_labels)


def _ridges(data: Dataset, candidates: Sequence[Point]) -> Iterator[float]:
    """The validation accuracy of central ridge at each gamma; all share one Gram."""
    gram, moment = gram_and_moment(data.train_features, data.train_labels, data.classes)
    for point in candidates:
        weights = ridge(gram, moment, point["gamma"])
        yield float(np.mean(predicted(weights, data.test_features) == data.test_labels))


def mean_square(data: Dataset) -> float:
    """The mean squared length of a training sample, with its constant."""
    return 1.0 + float(
        np.mean(np.einsum("ij,ij->i", data.train_features, data.train_features), dtype=np.float64)
    )


def _rounded(value: float) -> float:
    """To two digits, so that settings can be read and written."""
    return float(f"{value:.2g}")


def _words(settings: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:g}" if not isinstance(value, bool) else f"{name} {str(value).lower()}"
        for name, value in settings.items()
    )


def _rates(result: Mapping[str, Any]) -> dict[float, float]:
    """The best accuracy at each rate, ascending."""
    accuracies: dict[float, float] = {}
    for point in result["points"]:
        rate = point["settings"].get("rate")
        if rate is not None:
            accuracies[rate] = max(accuracies.get(rate, 0.0), point["accuracy"])
    return dict(sorted(accuracies.items()))


def _at_edge(result: Mapping[str, Any]) -> bool:
    """Whether a wider range of rates might have found better settings."""
    accuracies = list(_rates(result).values())
    return (
        len(accuracies) > 2 and max(accuracies[0], accuracies[-1]) > max(accuracies[1:-1]) + _ENOUGH
    )


def _drawn(datasets: Sequence[str], results: base.Results) -> Figure:
    figure, axes = panels(len(datasets), squeeze=False)
    for index, dataset in enumerate(datasets):
        panel = axes[0][index]
        for done in results.where(dataset=dataset):
            rates = _rates(done.result)
            if rates:
                style = look(done.key["system"])
                panel.plot(list(rates), list(rates.values()), label=style.label, **style.line())
        central = results.where(dataset=dataset, system="central")
        if central:
            panel.axhline(
                central[0].result["accuracy"],
                color="black",
                linestyle="--",
                linewidth=0.8,
                label="Central ridge",
            )
        panel.set_xscale("log")
        panel.set_title(dataset)
        panel.set_xlabel("learning rate")
        panel.set_ylabel("validation accuracy")
    axes[0][-1].legend(fontsize=6)
    return figure
