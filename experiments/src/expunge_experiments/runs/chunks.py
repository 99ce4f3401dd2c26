"""chunks: four deletions of a fifth of the original data each, and a fifth one that empties the
federation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from expunge.errors import InputError
from expunge_experiments import tuned
from expunge_experiments.report import paper
from expunge_experiments.report.figures import log_axis, look, name_ends, panels, seeds_line
from expunge_experiments.report.tables import (
    MISSING,
    bytes_text,
    counted,
    scientific,
    seconds_text,
    with_deviation,
)
from expunge_experiments.runs import base
from expunge_experiments.runs.retraining import EXACT, Retraining
from expunge_experiments.runs.streams import PartitionedDataset, check_federation, chunks_of, listed
from expunge_experiments.systems.catalogue import entry_of, settings_dict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from expunge_experiments.datasets.catalogue import Library

SYSTEMS = (
    "central",
    "a_exact",
    "b_exact",
    "a_float64",
    "b_float64",
    "fedavg",
    "fats",
    "exactfun",
    "sisa",
    "fedcio",
    "acu",
    "afl",
    "acil",
)


@dataclass(frozen=True)
class ChunkSettings:
    """What is measured."""

    dataset: str = "cifar10"  # features, by name
    clients: int = 100  # among which the samples are divided
    samples: int = 0  # training samples, drawn at random; 0 for all
    seeds: tuple[int, ...] = (0, 1, 2)  # of partition, stream and systems
    systems: tuple[str, ...] = SYSTEMS  # by name
    deleted: tuple[float, ...] = (
        0.2,
        0.4,
        0.6,
        0.8,
        1.0,
    )  # the share of the original data that is gone after each step

    def __post_init__(self) -> None:
        check_federation(self.clients, self.seeds, self.systems, self.samples)
        bounds = (0.0, *self.deleted)
        if (
            not self.deleted
            or self.deleted[-1] > 1
            or any(a >= b for a, b in zip(bounds, self.deleted, strict=False))
        ):
            raise InputError(
                f"deleted = {list(self.deleted)} must be shares that ascend from above 0 to 1 at "
                "most"
            )


class Chunks(base.Experiment[ChunkSettings]):
    """Utility and time of large deletions."""

    name = "chunks"
    title = "Large deletions: a fifth of the data at a time"
    question = (
        "What do accuracy and time come to when 20 % of the original data, drawn over all clients, "
        "are deleted at each of four steps, and the rest at a fifth?"
    )
    paper = (
        f"{paper.CHUNKS_SECTION} and its figure: both variants stay with central ridge at every "
        "step; FATS and Exact-Fun almost never skip; a step of Variant A takes about "
        f"{paper.CHUNK_SECONDS:.0f} s, of which clients compute {paper.CHUNK_CLIENT_SECONDS} s."
    )
    version = 2
    full = ChunkSettings()
    quick = ChunkSettings(samples=5000, seeds=(0,), deleted=(0.8, 1.0))

    def __init__(self) -> None:
        self._retraining = Retraining()

    def cells(self, settings: ChunkSettings) -> list[base.Cell]:
        """One for each seed and system."""
        common = {
            name: listed(getattr(settings, name))
            for name in ("dataset", "clients", "samples", "deleted")
        }
        own = {
            name: settings_dict(tuned.settings_for(settings.dataset, name))
            for name in settings.systems
        }
        return [
            base.Cell(
                common | {"system": name, "seed": seed, "settings": own[name]},
                partial(self._measure, settings, name, seed),
            )
            for seed in settings.seeds
            for name in settings.systems
        ]

    def _measure(
        self, settings: ChunkSettings, name: str, seed: int, library: Library, report: base.Report
    ) -> Mapping[str, Any]:
        federation = PartitionedDataset.of(
            library, settings.dataset, settings.clients, seed, settings.samples
        )
        system = federation.system(name, seed)
        if "delete" not in system.supports:
            return {"unsupported": "delete"}
        chunks = chunks_of(federation.pool.size, settings.deleted, seed)
        everything = [
            *chunks,
            *chunks_of(federation.pool.size, (*settings.deleted, 1.0), seed)[len(chunks) :],
        ]
        references = self._retraining.references(system, federation.dataset, everything)
        steps = len(chunks)
        report(f"{system.title} trains", 0, steps)
        training = system.train()
        result: dict[str, Any] = {
            "training": training.as_dict(),
            "accuracy": federation.accuracy(system),
            "steps": [],
        }
        for step, chunk in enumerate(chunks, start=1):
            report(f"{system.title} deletes {len(chunk)} samples", step - 1, steps)
            cost = system.delete(chunk)
            distance = (
                references[step].distance(system).as_dict() if references is not None else None
            )
            accuracy = federation.accuracy(system)
            retained = int(system.retained.sum())
            result["steps"].append(
                {
                    "retained": retained,
                    "accuracy": accuracy,
                    "cost": cost.as_dict(),
                    "retraining": distance,
                }
            )
        report(f"{system.title} is done", steps, steps)
        return result

    # -- tables ------------------------------------------------------------------------------------

    def tables(self, settings: ChunkSettings, results: base.Results) -> list[base.Table]:
        """Accuracy, time, deviation from retraining, and what was repeated."""
        return [
            self._accuracies(settings, results),
            self._times(settings, results),
            self._distances(settings, results),
            self._counts(results),
        ]

    def _accuracies(self, settings: ChunkSettings, results: base.Results) -> base.Table:
        steps = _step_names(settings)

        def row(dones: Sequence[base.Done]) -> list[str]:
            trained = with_deviation(base.over_seeds(done.result["accuracy"] for done in dones))
            after = [
                with_deviation(base.over_seeds(_step(done, i)["accuracy"] for done in dones))
                for i in range(len(steps))
            ]
            return [trained, *after]

        columns = ("System", "all retained", *steps)
        note = _seeds_note(settings) + (
            " With nothing retained a head is zero and predicts the first label, for all "
            "systems alike."
        )
        rows = _rows(results, columns, row)
        return base.Table("Accuracy after each step", columns, rows, frozenset(columns[1:]), note)

    def _times(self, settings: ChunkSettings, results: base.Results) -> base.Table:
        steps = _step_names(settings)
        parts = ("client", "server", "orchestration")

        def row(dones: Sequence[base.Done]) -> list[str]:
            summed = [cumulative(done, "seconds") for done in dones]
            after = [
                _seconds(base.over_seeds(times[i] for times in summed)) for i in range(len(steps))
            ]
            split = [
                _seconds(base.over_seeds(cumulative(done, f"{part}_seconds")[-1] for done in dones))
                for part in parts
            ]
            return [
                _seconds(base.over_seeds(done.result["training"]["seconds"] for done in dones)),
                *after,
                *split,
            ]

        columns = ("System", "training", *steps, *(f"of which {part}" for part in parts))
        note = (
            "Seconds in process; deletions cumulative, without training. Clients work one after "
            "another here, so their time is that of all together; orchestration is the rest of "
            "the wait for them. The paper's Variant A, on Flower with GPUs: about "
            f"{paper.CHUNK_SECONDS:.0f} s a step, {paper.CHUNK_CLIENT_SECONDS} s of it at clients."
        )
        rows = _rows(results, columns, row)
        return base.Table(
            "Cumulative time of deletions", columns, rows, frozenset(columns[1:]), note
        )

    def _distances(self, settings: ChunkSettings, results: base.Results) -> base.Table:
        steps = _step_names(settings)

        def text(dones: Sequence[base.Done], step: int) -> str:
            distances = [_step(done, step)["retraining"] for done in dones]
            if all(distance["equal"] for distance in distances):
                return "0 (same digest)"
            if any(distance["deviation"] is None for distance in distances):
                return (
                    "0"
                    if all(distance["norm"] == 0 for distance in distances)
                    else f"norm {max(distance['norm'] for distance in distances):.1e}"
                )
            return scientific(max(distance["deviation"] for distance in distances))

        columns = ("System", *steps)
        rows = [
            [entry_of(name).title, *(text(dones, i) for i in range(len(steps)))]
            for name, dones in _supported(results)
            if all(_step(done, 0)["retraining"] is not None for done in dones)
        ]
        note = (
            "Same digest: bit for bit the head that expunge.solve gives of the retained samples. "
            "Otherwise the relative "
            "Frobenius deviation from central ridge in float64, the largest over seeds."
        )
        return base.Table("Deviation from retraining", columns, rows, frozenset(columns[1:]), note)

    def _counts(self, results: base.Results) -> base.Table:
        def row(dones: Sequence[base.Done]) -> list[str]:
            costs = [step["cost"] for done in dones for step in done.result["steps"]]
            mean = {
                name: sum(cost[name] for cost in costs) / len(costs)
                for name in ("rounds", "bytes_up", "bytes_down", "recomputed")
            }
            skipped = f"{sum(cost['skipped'] for cost in costs)} of {len(costs)}"
            checkpoint_bytes = max(cost["checkpoint_bytes"] for cost in costs)
            return [
                f"{mean['rounds']:.4g}",
                bytes_text(mean["bytes_up"]),
                bytes_text(mean["bytes_down"]),
                skipped,
                f"{mean['recomputed']:.4g}",
                bytes_text(checkpoint_bytes),
            ]

        columns = ("System", "rounds", "up", "down", "skipped", "repeated", "kept")
        note = (
            "Means of a step; skips of all steps and seeds; the most that was kept besides "
            "samples, without caches that can be made again. Rounds are exchanges with clients, "
            "the request itself among them. Repeated: rounds of FedAvg, Exact-Fun and FedCIO's "
            "clusters, local steps of FATS, slices of SISA, solves from scratch of central ridge."
        )
        return base.Table(
            "Rounds, bytes, skips and repetitions",
            columns,
            _rows(results, columns, row),
            frozenset(columns[1:]),
            note,
        )

    # -- figure ------------------------------------------------------------------------------------

    def drawings(self, settings: ChunkSettings, results: base.Results) -> list[base.Drawing]:
        """The paper's two panels."""
        if not _supported(results):
            return []
        caption = (
            "Accuracy (left, while samples are retained) and cumulative time of deletions (right) "
            f"on {settings.dataset}, {settings.clients} clients. Bars: one standard deviation over "
            f"{counted(len(settings.seeds), 'seed')}."
        )
        return [base.Drawing("chunks", caption, partial(_draw, settings, _supported(results)))]

    # -- findings ----------------------------------------------------------------------------------

    def findings(self, settings: ChunkSettings, results: base.Results) -> list[base.Finding]:
        """What follows from the steps that were measured."""
        by_system = dict(_supported(results))
        made = findings_of(settings.deleted, settings.clients, by_system)
        lacking = [
            entry_of(name).title for name in results.values("system") if name not in by_system
        ]
        if lacking:
            made.append(
                base.Finding(
                    f"Without an operation to delete, and so not measured: {', '.join(lacking)}."
                )
            )
        return made


# -- results ---------------------------------------------------------------------------------------


def _supported(results: base.Results) -> list[tuple[str, list[base.Done]]]:
    """The systems that delete, with their results over seeds."""
    named = [
        (name, [done for done in results.where(system=name) if "steps" in done.result])
        for name in results.values("system")
    ]
    return [(name, dones) for name, dones in named if dones]


def _step(done: base.Done, step: int) -> Mapping[str, Any]:
    entry: Mapping[str, Any] = done.result["steps"][step]
    return entry


def _rows(
    results: base.Results, columns: Sequence[str], row: Callable[[Sequence[base.Done]], list[str]]
) -> list[list[str]]:
    """A row for each system; those that cannot delete say so."""
    supported = dict(_supported(results))
    empty = ["unsupported", *[MISSING] * (len(columns) - 2)]
    return [
        [entry_of(name).title, *(row(supported[name]) if name in supported else empty)]
        for name in results.values("system")
    ]


def _step_names(settings: ChunkSettings) -> list[str]:
    return [f"{share:.0%} deleted".replace("%", " %") for share in settings.deleted]


def _seeds_note(settings: ChunkSettings) -> str:
    few = f", {settings.samples} training samples" if settings.samples else ""
    seeds = (
        "one seed"
        if len(settings.seeds) == 1
        else f"mean and standard deviation over {len(settings.seeds)} seeds"
    )
    return f"{settings.clients} clients{few}; {seeds}."


def _seconds(summary: base.Summary | None) -> str:
    """Three digits or so, for tables in which all are seconds."""
    if summary is None:
        return MISSING
    digits = 1 if summary.mean >= 10 else 2 if summary.mean >= 1 else 3
    return with_deviation(summary, digits)


# -- figure ----------------------------------------------------------------------------------------


def _draw(settings: ChunkSettings, systems: Sequence[tuple[str, list[base.Done]]]) -> Figure:
    figure, (left, right) = panels(2, width=4.0, height=3.4)
    shares = [100 * share for share in settings.deleted]
    leaving = [i for i, share in enumerate(settings.deleted) if share < 1]
    for name, dones in systems:
        style = {"label": look(name).label, **look(name).line()}
        accuracies = [[done.result["accuracy"] for done in dones]]
        accuracies += [[_step(done, i)["accuracy"] for done in dones] for i in leaving]
        seeds_line(left, [0, *(shares[i] for i in leaving)], accuracies, **style)
        times = [cumulative(done, "seconds") for done in dones]
        seeds_line(
            right, shares, [[seconds[i] for seconds in times] for i in range(len(shares))], **style
        )
    left.set(title="Accuracy", xlabel="% of the original data deleted", ylabel="test accuracy")
    right.set(
        title="Cumulative time of deletions",
        xlabel="% of the original data deleted",
        ylabel="seconds",
    )
    left.set_xticks([0, *(shares[i] for i in leaving)])
    right.set_xticks(shares)
    log_axis(right)
    name_ends(right, room=0.36)
    return figure


# -- findings --------------------------------------------------------------------------------------


Found = Mapping[str, Sequence[base.Done]]  # results over seeds, by system
_SKIPPERS = ("fats", "exactfun")
_ITERATIVE = ("fedavg", "fats", "exactfun")


def findings_of(deleted: Sequence[float], clients: int, by_system: Found) -> list[base.Finding]:
    """All of them.

    The step that empties the federation is left out where retraining means nothing.
    """
    leaving = sum(share < 1 for share in deleted)
    made = [*_exactness(deleted, by_system), *_one_round(by_system), *_skips(leaving, by_system)]
    if leaving:
        made += [
            *_speed(leaving, by_system),
            *_latency(leaving, by_system),
            *_split(leaving, clients, by_system),
            *_accuracy(leaving, by_system),
        ]
    return made


def cumulative(done: base.Done, name: str) -> list[float]:
    """Of a part of the cost, after each step."""
    return [
        float(total) for total in np.cumsum([step["cost"][name] for step in done.result["steps"]])
    ]


def _exactness(deleted: Sequence[float], by_system: Found) -> list[base.Finding]:
    exact = [done for name in EXACT for done in by_system.get(name, [])]
    if not exact:
        return []
    checks = [step["retraining"]["equal"] for done in exact for step in done.result["steps"]]
    text = (
        "After a step of the exact variants, the head has the digest of one solved afresh from "
        "the retained samples"
    )
    made = [base.Finding(f"{text}: {sum(checks)} of {len(checks)} times.", all(checks))]
    if deleted[-1] == 1.0:
        norms = [done.result["steps"][-1]["retraining"]["norm"] for done in exact]
        made.append(
            base.Finding(
                "When the last sample is deleted, the head of the exact variants is zero.",
                not any(norms),
            )
        )
    return made


def _one_round(by_system: Found) -> list[base.Finding]:
    ours = [step["cost"]["rounds"] for name in EXACT for step in _steps(by_system, name)]
    if not ours:
        return []
    many = [name for name in (*_ITERATIVE, "fedcio") if name in by_system]
    theirs = [
        f"{entry_of(name).title} {_mean(_steps(by_system, name), 'rounds'):.4g}" for name in many
    ]
    beside = f"; on average, {', '.join(theirs)}" if theirs else ""
    return [
        base.Finding(f"The exact variants need one round for each step{beside}.", set(ours) == {1})
    ]


def _skips(leaving: int, by_system: Found) -> list[base.Finding]:
    made = []
    for name in _SKIPPERS:
        steps = _steps(by_system, name, leaving)
        if steps:
            skipped = sum(step["cost"]["skipped"] for step in steps)
            text = (
                f"{entry_of(name).title} skips {skipped} of {len(steps)} deletions that leave "
                "samples (the paper: almost never)."
            )
            made.append(base.Finding(text, skipped <= len(steps) // 10))
    return made


def _speed(leaving: int, by_system: Found) -> list[base.Finding]:
    totals = {
        name: _average(cumulative(done, "seconds")[leaving - 1] for done in dones)
        for name, dones in by_system.items()
    }
    made = []
    for ours in EXACT:
        if ours not in totals:
            continue
        title, mine = entry_of(ours).title, totals[ours]
        others = {name: total for name, total in totals.items() if name != ours}
        slower = [
            f"{entry_of(name).title} ({total / mine:.3g} times)"
            for name, total in others.items()
            if total >= mine
        ]
        faster = [
            f"{entry_of(name).title} ({total / mine:.2g} times)"
            for name, total in others.items()
            if total < mine
        ]
        text = f"{title}, takes {mine:.3g} s in process for all steps that leave samples."
        text += f" More: {', '.join(slower)}." if slower else ""
        text += f" Less: {', '.join(faster)}." if faster else " No system takes less."
        made.append(base.Finding(text))
    return made


def _latency(leaving: int, by_system: Found) -> list[base.Finding]:
    """In process a round costs nothing but its bytes; elsewhere it does, and the systems that need
    many pay for each.
    """
    made = []
    for ours in (name for name in EXACT if name in by_system):
        mine, my_rounds = (
            _mean(_steps(by_system, ours, leaving), part) for part in ("seconds", "rounds")
        )
        for name in (system for system in _ITERATIVE if system in by_system):
            theirs, rounds = (
                _mean(_steps(by_system, name, leaving), part) for part in ("seconds", "rounds")
            )
            if mine > theirs and rounds > my_rounds:
                bound = (mine - theirs) / (rounds - my_rounds)
                text = (
                    f"Where a round takes {seconds_text(bound)} longer than in process, or "
                    f"more, a step of {entry_of(ours).title}"
                )
                made.append(
                    base.Finding(
                        f"{text}, is faster than one of {entry_of(name).title} ({rounds:.4g} "
                        "rounds)."
                    )
                )
    return made


def _split(leaving: int, clients: int, by_system: Found) -> list[base.Finding]:
    steps = _steps(by_system, "a_exact", leaving)
    if not steps:
        return []
    whole, client, server, rest = (
        _mean(steps, f"{part}seconds") for part in ("", "client_", "server_", "orchestration_")
    )
    return [
        base.Finding(
            f"A step of Variant A, exact, takes {whole:.3g} s in process: {client:.3g} s at the "
            f"{clients} clients together ({client / clients:.2g} s each), {server:.3g} s at the "
            f"server, {rest:.3g} s of orchestration. The paper: about {paper.CHUNK_SECONDS:.0f} s, "
            f"of which {paper.CHUNK_CLIENT_SECONDS} s at clients and most of the rest "
            "orchestration on Flower. Its features are narrower (768), and its machine has GPUs."
        )
    ]


def _accuracy(leaving: int, by_system: Found) -> list[base.Finding]:
    if not {"central", "a_exact"} <= set(by_system):
        return []
    means = {
        name: [_accurate(dones, step) for step in range(leaving)]
        for name, dones in by_system.items()
    }
    gap = max(
        abs(a - b)
        for name in EXACT
        if name in means
        for a, b in zip(means[name], means["central"], strict=True)
    )
    made = [
        base.Finding(
            "At every step the exact variants are within 0.001 of central ridge's accuracy "
            f"({gap:.4f}).",
            gap <= 1e-3,
        )
    ]
    for name in (system for system in _ITERATIVE if system in means):
        gains = [a - b for a, b in zip(means["a_exact"], means[name], strict=True)]
        ahead = sum(gain > 0 for gain in gains)
        made.append(
            base.Finding(
                f"Variant A, exact, is more accurate than {entry_of(name).title} at {ahead} of "
                f"{leaving} steps, by {min(gains):+.4f} to {max(gains):+.4f} (the paper: at all "
                "steps, with heads trained on another objective)."
            )
        )
    return made


def _accurate(dones: Sequence[base.Done], step: int) -> float:
    return _average(done.result["steps"][step]["accuracy"] for done in dones)


def _steps(by_system: Found, name: str, first: int | None = None) -> list[Mapping[str, Any]]:
    return [step for done in by_system.get(name, []) for step in done.result["steps"][:first]]


def _mean(steps: Sequence[Mapping[str, Any]], name: str) -> float:
    """Of a part of the cost."""
    return _average(step["cost"][name] for step in steps)


def _average(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))
