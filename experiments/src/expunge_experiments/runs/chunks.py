"""chunks: four deletions of a fifth of the original data each, and a fifth one that empties the federation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from expunge.errors import InputError
from expunge_experiments import published, tuned
from expunge_experiments.markdown import MISSING, bytes_text, counted, scientific, with_deviation
from expunge_experiments.runs.base import Cell, Done, Drawing, Experiment, Finding, Report, Results, Summary, Table, over_seeds
from expunge_experiments.runs.chunk_findings import cumulative, findings_of
from expunge_experiments.runs.retraining import Retraining
from expunge_experiments.runs.streams import Federation, check_federation, chunks_of, listed
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
    deleted: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8, 1.0)  # the share of the original data that is gone after each step

    def __post_init__(self) -> None:
        check_federation(self.clients, self.seeds, self.systems, self.samples)
        bounds = (0.0, *self.deleted)
        if not self.deleted or self.deleted[-1] > 1 or any(a >= b for a, b in zip(bounds, self.deleted, strict=False)):
            raise InputError(f"deleted = {list(self.deleted)} must be shares that ascend from above 0 to 1 at most")


class Chunks(Experiment[ChunkSettings]):
    """Utility and time of large deletions."""

    name = "chunks"
    title = "Large deletions: a fifth of the data at a time"
    question = (
        "What do accuracy and time come to when 20 % of the original data, drawn over all clients, are deleted at each of four "
        "steps, and the rest at a fifth?"
    )
    paper = (
        f"{published.CHUNKS_SECTION} and its figure: both variants stay with central ridge at every step; FATS and Exact-Fun "
        f"almost never skip; a step of Variant A takes about {published.CHUNK_SECONDS:.0f} s, of which clients compute "
        f"{published.CHUNK_CLIENT_SECONDS} s."
    )
    version = 2
    full = ChunkSettings()
    quick = ChunkSettings(samples=5000, seeds=(0,), deleted=(0.8, 1.0))

    def __init__(self) -> None:
        self._retraining = Retraining()

    def cells(self, settings: ChunkSettings) -> list[Cell]:
        """One for each seed and system."""
        common = {name: listed(getattr(settings, name)) for name in ("dataset", "clients", "samples", "deleted")}
        own = {name: settings_dict(tuned.settings_for(settings.dataset, name)) for name in settings.systems}
        return [
            Cell(common | {"system": name, "seed": seed, "settings": own[name]}, partial(self._measure, settings, name, seed))
            for seed in settings.seeds
            for name in settings.systems
        ]

    def _measure(self, settings: ChunkSettings, name: str, seed: int, library: Library, report: Report) -> Mapping[str, Any]:
        federation = Federation.of(library, settings.dataset, settings.clients, seed, settings.samples)
        system = federation.system(name, seed)
        if "delete" not in system.supports:
            return {"unsupported": "delete"}
        chunks = chunks_of(federation.pool.size, settings.deleted, seed)
        everything = [*chunks, *chunks_of(federation.pool.size, (*settings.deleted, 1.0), seed)[len(chunks) :]]
        references = self._retraining.references(system, federation.dataset, everything)
        steps = len(chunks)
        report(f"{system.title} trains", 0, steps)
        training = system.train()
        result: dict[str, Any] = {"training": training.as_dict(), "accuracy": federation.accuracy(system), "steps": []}
        for step, chunk in enumerate(chunks, start=1):
            report(f"{system.title} deletes {len(chunk)} samples", step - 1, steps)
            cost = system.delete(chunk)
            found = references[step].distance(system).as_dict() if references is not None else None
            accuracy = federation.accuracy(system)
            retained = int(system.retained.sum())
            result["steps"].append({"retained": retained, "accuracy": accuracy, "cost": cost.as_dict(), "retraining": found})
        report(f"{system.title} is done", steps, steps)
        return result

    # -- tables ---------------------------------------------------------------------------------------------------------

    def tables(self, settings: ChunkSettings, results: Results) -> list[Table]:
        """Accuracy, time, deviation from retraining, and what was repeated."""
        return [
            self._accuracies(settings, results),
            self._times(settings, results),
            self._distances(settings, results),
            self._counts(results),
        ]

    def _accuracies(self, settings: ChunkSettings, results: Results) -> Table:
        steps = _step_names(settings)

        def row(found: Sequence[Done]) -> list[str]:
            trained = with_deviation(over_seeds(one.result["accuracy"] for one in found))
            after = [with_deviation(over_seeds(_step(one, i)["accuracy"] for one in found)) for i in range(len(steps))]
            return [trained, *after]

        columns = ("System", "all retained", *steps)
        note = (
            _seeds_note(settings) + " With nothing retained a head is zero and predicts the first label, for all systems alike."
        )
        return Table("Accuracy after each step", columns, _rows(results, columns, row), frozenset(columns[1:]), note)

    def _times(self, settings: ChunkSettings, results: Results) -> Table:
        steps = _step_names(settings)
        parts = ("client", "server", "orchestration")

        def row(found: Sequence[Done]) -> list[str]:
            summed = [cumulative(one, "seconds") for one in found]
            after = [_seconds(over_seeds(one[i] for one in summed)) for i in range(len(steps))]
            split = [_seconds(over_seeds(cumulative(one, f"{part}_seconds")[-1] for one in found)) for part in parts]
            return [_seconds(over_seeds(one.result["training"]["seconds"] for one in found)), *after, *split]

        columns = ("System", "training", *steps, *(f"of which {part}" for part in parts))
        note = (
            "Seconds in process; deletions cumulative, without training. Clients work one after another here, so their time is "
            "that of all together; orchestration is the rest of the wait for them. The paper's Variant A, on Flower with GPUs: "
            f"about {published.CHUNK_SECONDS:.0f} s a step, {published.CHUNK_CLIENT_SECONDS} s of it at clients."
        )
        return Table("Cumulative time of deletions", columns, _rows(results, columns, row), frozenset(columns[1:]), note)

    def _distances(self, settings: ChunkSettings, results: Results) -> Table:
        steps = _step_names(settings)

        def text(found: Sequence[Done], step: int) -> str:
            distances = [_step(one, step)["retraining"] for one in found]
            if all(one["equal"] for one in distances):
                return "0 (same digest)"
            if any(one["deviation"] is None for one in distances):
                return "0" if all(one["norm"] == 0 for one in distances) else f"norm {max(one['norm'] for one in distances):.1e}"
            return scientific(max(one["deviation"] for one in distances))

        columns = ("System", *steps)
        rows = [
            [entry_of(name).title, *(text(found, i) for i in range(len(steps)))]
            for name, found in _supported(results)
            if all(_step(one, 0)["retraining"] is not None for one in found)
        ]
        note = (
            "Same digest: bit for bit the head that expunge.solve gives of the retained samples. Otherwise the relative "
            "Frobenius deviation from central ridge in float64, the largest over seeds."
        )
        return Table("Deviation from retraining", columns, rows, frozenset(columns[1:]), note)

    def _counts(self, results: Results) -> Table:
        def row(found: Sequence[Done]) -> list[str]:
            costs = [step["cost"] for one in found for step in one.result["steps"]]
            mean = {
                name: sum(cost[name] for cost in costs) / len(costs)
                for name in ("rounds", "bytes_up", "bytes_down", "recomputed")
            }
            skipped = f"{sum(cost['skipped'] for cost in costs)} of {len(costs)}"
            kept = max(cost["checkpoint_bytes"] for cost in costs)
            return [
                f"{mean['rounds']:.4g}",
                bytes_text(mean["bytes_up"]),
                bytes_text(mean["bytes_down"]),
                skipped,
                f"{mean['recomputed']:.4g}",
                bytes_text(kept),
            ]

        columns = ("System", "rounds", "up", "down", "skipped", "repeated", "kept")
        note = (
            "Means of a step; skips of all steps and seeds; the most that was kept besides samples, without caches that can be "
            "made again. Rounds are exchanges with clients, the request itself among them. Repeated: rounds of FedAvg, Exact-Fun "
            "and FedCIO's clusters, local steps of FATS, slices of SISA, solves from scratch of central ridge."
        )
        return Table("Rounds, bytes, skips and repetitions", columns, _rows(results, columns, row), frozenset(columns[1:]), note)

    # -- figure ---------------------------------------------------------------------------------------------------------

    def drawings(self, settings: ChunkSettings, results: Results) -> list[Drawing]:
        """The paper's two panels."""
        if not _supported(results):
            return []
        caption = (
            f"Accuracy (left, while samples are retained) and cumulative time of deletions (right) on {settings.dataset}, "
            f"{settings.clients} clients. Bars: one standard deviation over {counted(len(settings.seeds), 'seed')}."
        )
        return [Drawing("chunks", caption, partial(_draw, settings, _supported(results)))]

    # -- findings -------------------------------------------------------------------------------------------------------

    def findings(self, settings: ChunkSettings, results: Results) -> list[Finding]:
        """What follows from the steps that were measured."""
        found = dict(_supported(results))
        made = findings_of(settings.deleted, settings.clients, found)
        lacking = [entry_of(name).title for name in results.values("system") if name not in found]
        if lacking:
            made.append(Finding(f"Without an operation to delete, and so not measured: {', '.join(lacking)}."))
        return made


# -- results ----------------------------------------------------------------------------------------------------------------


def _supported(results: Results) -> list[tuple[str, list[Done]]]:
    """The systems that delete, with their results over seeds."""
    named = [(name, [one for one in results.where(system=name) if "steps" in one.result]) for name in results.values("system")]
    return [(name, found) for name, found in named if found]


def _step(done: Done, step: int) -> Mapping[str, Any]:
    found: Mapping[str, Any] = done.result["steps"][step]
    return found


def _rows(results: Results, columns: Sequence[str], row: Callable[[Sequence[Done]], list[str]]) -> list[list[str]]:
    """A row for each system; those that cannot delete say so."""
    supported = dict(_supported(results))
    empty = ["unsupported", *[MISSING] * (len(columns) - 2)]
    return [[entry_of(name).title, *(row(supported[name]) if name in supported else empty)] for name in results.values("system")]


def _step_names(settings: ChunkSettings) -> list[str]:
    return [f"{share:.0%} deleted".replace("%", " %") for share in settings.deleted]


def _seeds_note(settings: ChunkSettings) -> str:
    few = f", {settings.samples} training samples" if settings.samples else ""
    seeds = "one seed" if len(settings.seeds) == 1 else f"mean and standard deviation over {len(settings.seeds)} seeds"
    return f"{settings.clients} clients{few}; {seeds}."


def _seconds(summary: Summary | None) -> str:
    """Three digits or so, for tables in which all are seconds."""
    if summary is None:
        return MISSING
    digits = 1 if summary.mean >= 10 else 2 if summary.mean >= 1 else 3
    return with_deviation(summary, digits)


# -- figure -----------------------------------------------------------------------------------------------------------------


def _draw(settings: ChunkSettings, found: Sequence[tuple[str, list[Done]]]) -> Figure:
    from expunge_experiments.figures import log_axis, look, name_ends, panels, seeds_line  # noqa: PLC0415 - an extra

    figure, (left, right) = panels(2, width=4.0, height=3.4)
    shares = [100 * share for share in settings.deleted]
    leaving = [i for i, share in enumerate(settings.deleted) if share < 1]
    for name, dones in found:
        style = {"label": look(name).label, **look(name).line()}
        accuracies = [[one.result["accuracy"] for one in dones]]
        accuracies += [[_step(one, i)["accuracy"] for one in dones] for i in leaving]
        seeds_line(left, [0, *(shares[i] for i in leaving)], accuracies, **style)
        times = [cumulative(one, "seconds") for one in dones]
        seeds_line(right, shares, [[one[i] for one in times] for i in range(len(shares))], **style)
    left.set(title="Accuracy", xlabel="% of the original data deleted", ylabel="test accuracy")
    right.set(title="Cumulative time of deletions", xlabel="% of the original data deleted", ylabel="seconds")
    left.set_xticks([0, *(shares[i] for i in leaving)])
    right.set_xticks(shares)
    log_axis(right)
    name_ends(right, room=0.36)
    return figure
