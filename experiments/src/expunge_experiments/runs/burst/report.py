"""Tables, figures and findings of `burst`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from expunge_experiments.report import paper
from expunge_experiments.report.figures import log_axis, look, panels
from expunge_experiments.report.tables import MISSING, bytes_text, scientific, seconds_text
from expunge_experiments.runs.base import Done, Drawing, Finding, Results, Table
from expunge_experiments.runs.retraining import EXACT
from expunge_experiments.systems.catalogue import entry_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Columns = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Timing:
    """Requests of one kind by one system: `wanted` of them, of which those in `columns` were
    timed.
    """

    columns: Columns
    wanted: int

    @property
    def count(self) -> int:
        """How many were timed."""
        return len(self.columns["seconds"])

    @property
    def complete(self) -> bool:
        """Whether all were timed."""
        return self.count >= self.wanted

    @property
    def median(self) -> float:
        """Seconds of a request."""
        return float(np.median(self.columns["seconds"]))

    @property
    def total(self) -> float:
        """Seconds of all: their sum; or, where not all were timed, extrapolated: the mean times how
        many are wanted.
        """
        return self.sum("seconds") if self.complete else self.mean("seconds") * self.wanted

    def mean(self, name: str) -> float:
        """Of a part of the cost."""
        return float(np.mean(self.columns[name]))

    def sum(self, name: str) -> float:
        """Of a part of the cost, over those that were timed."""
        return float(np.sum(self.columns[name]))

    def texts(self) -> list[str]:
        """How many were timed, median, mean, 95th percentile and total."""
        seconds = np.asarray(self.columns["seconds"])
        total = seconds_text(self.total) if self.complete else f"~{seconds_text(self.total)}"
        summary = (self.median, float(seconds.mean()), float(np.quantile(seconds, 0.95)))
        return [str(self.count), *map(seconds_text, summary), total]

    def counts(self) -> list[str]:
        """Rounds and bytes of a request on average; skips; repetitions of a request on average; the
        most that was kept.
        """
        return [
            f"{self.mean('rounds'):.4g}",
            bytes_text(self.mean("bytes_up")),
            bytes_text(self.mean("bytes_down")),
            f"{self.sum('skipped'):.0f} of {self.count}",
            f"{self.mean('recomputed'):.4g}",
            bytes_text(max(self.columns["checkpoint_bytes"])),
        ]


def timing(
    results: Results, system: str, kind: str, wanted: int, engine: str = "process"
) -> Timing | None:
    """A system's timed requests ("deleted" or "added"); None for what it does not support or what
    is not done yet.
    """
    costs = [done.result.get(kind) for done in results.where(system=system, engine=engine)]
    return Timing(costs[0], wanted) if costs and costs[0] else None


def tables_of(requests: int, marks: Sequence[int], samples: int, results: Results) -> list[Table]:
    """All tables; that of Flower only where there is something of it."""
    process = results.where(engine="process")
    few = f"{samples} training samples. " if samples else ""
    made = [_stream(kind, requests, few, process) for kind in ("deleted", "added")]
    made += [_deviations(requests, marks, process), _clients(requests, process)]
    return [*made, _flower_table(results)] if results.where(engine="flower") else made


_NOTE = (
    "Same stream for all, in process. Rounds (exchanges with clients, the request itself among "
    "them), bytes and repetitions: mean of a request; kept: the most that a system must keep "
    "besides samples, without caches that it can make again. ~: not all were timed, the total is "
    "the mean times {count}."
)


def _stream(kind: str, requests: int, few: str, results: Results) -> Table:
    columns = (
        "System",
        "timed",
        "median",
        "mean",
        "95 %",
        f"total of {requests}",
        "rounds",
        "up",
        "down",
        "skipped",
        "repeated",
        "kept",
    )
    rows = []
    for name in results.values("system"):
        times = timing(results, name, kind, requests)
        texts = (
            [*times.texts(), *times.counts()]
            if times is not None
            else ["unsupported", *[MISSING] * (len(columns) - 2)]
        )
        rows.append([entry_of(name).title, *texts])
    title = "Time per single deletion" if kind == "deleted" else "Time per single sample added back"
    return Table(title, columns, rows, frozenset(columns[1:]), few + _NOTE.format(count=requests))


def _deviations(requests: int, marks: Sequence[int], results: Results) -> Table:
    wanted = [("delete", mark) for mark in marks] + [
        ("add_back", gone) for gone in (*reversed(marks[:-1]), 0)
    ]
    names = [
        f"{gone} deleted" if kind == "delete" else f"{requests - gone} back"
        for kind, gone in wanted
    ]
    rows = []
    for done in results:
        if done.result["marks"]:
            by_mark = {(mark["kind"], mark["gone"]): mark for mark in done.result["marks"]}
            rows.append(
                [
                    entry_of(done.key["system"]).title,
                    *(_deviation(by_mark.get(step)) for step in wanted),
                ]
            )
    for variant, row in paper.STREAM.items():
        steps = [(kind, gone if kind == "delete" else requests - gone) for kind, gone in wanted]
        texts = [scientific(row[kind].get(step)) for kind, step in steps]
        rows.append([f"The paper's Variant {variant.upper()} (fp64, DINOv2)", *texts])
    columns = ("System", *names)
    note = (
        "Same digest: bit for bit the head that expunge.solve gives of the retained samples. "
        "Otherwise the relative Frobenius deviation from central ridge in float64, as in the "
        "paper. What was deleted last is added back first. AFL gives ordinary least squares by "
        "design, not ridge."
    )
    return Table(
        "Deviation from retraining over the stream", columns, rows, frozenset(columns[1:]), note
    )


def _deviation(mark: Mapping[str, Any] | None) -> str:
    if mark is None:
        return MISSING
    return "0 (same digest)" if mark["equal"] else scientific(mark["deviation"])


def _clients(requests: int, results: Results) -> Table:
    """A sample against a client."""
    columns = (
        "System",
        "a sample: median",
        "rounds",
        "a client",
        "rounds of it",
        "up",
        "down",
        "repeated",
    )
    rows, samples = [], 0
    for done in results:
        name, deletion = done.key["system"], done.result["client"]
        times = timing(results, name, "deleted", requests)
        texts = (
            [seconds_text(times.median), f"{times.mean('rounds'):.4g}"]
            if times is not None
            else ["unsupported", MISSING]
        )
        if deletion is None:
            rows.append([entry_of(name).title, *texts, "unsupported", *[MISSING] * 4])
            continue
        samples, cost = max(samples, deletion["samples"]), deletion["cost"]
        sizes = [bytes_text(cost["bytes_up"]), bytes_text(cost["bytes_down"])]
        whole = [
            seconds_text(cost["seconds"]),
            str(cost["rounds"]),
            *sizes,
            str(cost["recomputed"]),
        ]
        rows.append([entry_of(name).title, *texts, *whole])
    note = (
        "One client, the same for all, is deleted after the stream; one measurement a system. It "
        f"has {samples} samples, or a few less where what the stream deleted was not added back."
    )
    return Table(
        "Deleting a sample, and deleting a client", columns, rows, frozenset(columns[1:]), note
    )


def _flower_table(results: Results) -> Table:
    columns = (
        "System",
        "timed",
        "median",
        "client",
        "server",
        "orchestration",
        "rounds",
        "skipped",
        "in process",
        "training",
        "start",
    )
    rows = []
    for done in results.where(engine="flower"):
        name = done.key["system"]
        times, here = (
            Timing(done.result["deleted"], done.key["requests"]),
            timing(results, name, "deleted", done.key["requests"]),
        )
        parts = [
            seconds_text(times.mean(f"{part}_seconds"))
            for part in ("client", "server", "orchestration")
        ]
        counts = [f"{times.mean('rounds'):.4g}", f"{times.sum('skipped'):.0f} of {times.count}"]
        rest = [
            seconds_text(here.median if here is not None else None),
            seconds_text(done.result["training"]["seconds"]),
        ]
        row = [
            entry_of(name).title,
            str(times.count),
            seconds_text(times.median),
            *parts,
            *counts,
            *rest,
        ]
        rows.append([*row, seconds_text(_started(done))])
    note = (
        "The first requests of the same stream on Flower simulation (Ray). Client, server and "
        "orchestration: mean of a request. Start: Flower, Ray and the apps, before and after the "
        "work. In process: the median of the table above."
    )
    return Table(
        "Time per single deletion on Flower simulation", columns, rows, frozenset(columns[1:]), note
    )


def _started(done: Done) -> float:
    """What a run took besides training and requests."""
    work = done.result["training"]["seconds"] + sum(done.result["deleted"]["seconds"])
    return float(done.result["whole_seconds"] - work)


# -- figures ---------------------------------------------------------------------------------------


Named = Mapping[str, Timing]
_FLOOR = 1e-6  # seconds: what is drawn of requests that take less


def drawings_of(requests: int, results: Results) -> list[Drawing]:
    """The stream, on each engine of which there are results, and the summary."""
    here, there = _timings(requests, results, "process"), _timings(requests, results, "flower")
    if not here:
        return []
    stream = (
        "Time of each request in the stream of single deletions; the same stream for all "
        "systems, in process"
    )
    if there:
        stream += " (left) and on Flower simulation (right)"
    box = (
        "Time per single deletion in process: median, quartiles (box), 5 and 95 % (whiskers), "
        "mean (diamond)"
    )
    partly = [look(name).label for name, times in here.items() if not times.complete]
    note = f". Not all requests were timed: {', '.join(partly)}." if partly else "."
    return [
        Drawing("burst-stream", stream + note, partial(_draw_stream, here, there)),
        Drawing("burst-summary", box + note, partial(_draw_summary, here)),
    ]


def _draw_stream(here: Named, there: Named) -> Figure:
    figure, axes = panels(
        2 if there else 1,
        width=5.2 if not there else 4.6,
        height=3.8,
        sharey=bool(there),
        squeeze=False,
    )
    titled = (
        [("In process", here), ("On Flower simulation", there)] if there else [("In process", here)]
    )
    for panel, (title, named) in zip(axes[0], titled, strict=True):
        for name, times in named.items():
            _points(panel, name, times)
        panel.set(title=title, xlabel="request", ylabel="seconds")
        panel.xaxis.get_major_locator().set_params(integer=True)
        log_axis(panel)
    figure.legend(*_legend(axes[0]), loc="outside lower center", ncols=5 if there else 4)
    return figure


def _points(axes: Any, name: str, times: Timing) -> None:
    style = look(name).line() | {"linestyle": "none", "markersize": 2.4, "markeredgewidth": 0.6}
    seconds = np.maximum(times.columns["seconds"], _FLOOR)
    axes.plot(np.arange(1, times.count + 1), seconds, label=look(name).label, **style)


def _legend(axes: Sequence[Any]) -> tuple[list[Any], list[str]]:
    """Each system once."""
    handles: dict[str, Any] = {}
    for panel in axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    return list(handles.values()), list(handles)


def _draw_summary(named: Named) -> Figure:
    figure, axes = panels(width=5.2, height=0.6 + 0.26 * len(named))
    axes.use_sticky_edges = False  # else the leftmost box would touch the axis
    ordered = sorted(named.items(), key=lambda item: -item[1].median)
    for position, (name, times) in enumerate(ordered):
        style, seconds = look(name), np.maximum(times.columns["seconds"], _FLOOR)
        low, first, middle, third, high = np.quantile(seconds, [0.05, 0.25, 0.5, 0.75, 0.95])
        axes.plot([low, high], [position, position], color=style.colour, linewidth=0.9)
        axes.barh(
            position,
            third - first,
            left=first,
            height=0.55,
            facecolor="white",
            edgecolor=style.colour,
            linewidth=1.0,
        )
        axes.plot(
            [middle, middle], [position - 0.27, position + 0.27], color=style.colour, linewidth=2.0
        )
        axes.plot(seconds.mean(), position, marker="d", color=style.colour, markersize=4)
    labels = [
        look(name).label + ("" if times.complete else f" ({times.count} timed)")
        for name, times in ordered
    ]
    axes.set_yticks(range(len(ordered)), labels)
    axes.set(title="Time per single deletion", xlabel="seconds")
    log_axis(axes, "x")
    return figure


# -- findings --------------------------------------------------------------------------------------


AIM = 50.0  # times faster per request than FedAvg retrain
_ITERATIVE = ("fedavg", "fats", "exactfun")
_SKIPPERS = ("fats", "exactfun")
_FURTHER = ("central", "sisa", "fedcio", "acu")
_FLOAT = ("a_float64", "b_float64")


def findings_of(requests: int, samples: int, results: Results) -> list[Finding]:
    """All of them.

    With fewer samples than there are, retraining is faster, and no claim is made about how much
    faster ours is.
    """
    process = results.where(engine="process")
    timings = _timings(requests, process, "process")
    made = [*_exactness(process), *_grid(process), *_ratio(samples, timings), *_rounds(timings)]
    made += [
        finding for name in _SKIPPERS if name in timings for finding in _skipper(name, timings)
    ]
    made += [*_others(timings), *_kept(timings), *_partly(timings)]
    there = _timings(requests, results, "flower")
    return [*made, *_flower_findings(there), *_same_heads(results)] if there else made


def _timings(requests: int, results: Results, engine: str) -> dict[str, Timing]:
    named = {
        name: timing(results, name, "deleted", requests, engine)
        for name in results.where(engine=engine).values("system")
    }
    return {name: times for name, times in named.items() if times is not None}


def _title(name: str) -> str:
    return entry_of(name).title


def _exact_marks(results: Results) -> Iterator[Mapping[str, Any]]:
    """What was compared with retraining at the marks of the exact variants."""
    for name in EXACT:
        for done in results.where(system=name):
            yield from done.result["marks"]


def _exactness(results: Results) -> list[Finding]:
    checks = [mark["equal"] for mark in _exact_marks(results)]
    if not checks:
        return []
    text = (
        "At every mark of the stream, deletions and additions, the head of the exact variants "
        "has the digest of one solved afresh"
    )
    return [
        Finding(
            f"{text} from the retained samples: {sum(checks)} of {len(checks)} times.", all(checks)
        )
    ]


def _grid(results: Results) -> list[Finding]:
    deviations = [mark["deviation"] for mark in _exact_marks(results)]
    values = [value for value in deviations if value is not None]
    if not values:
        return []
    bounds = f"{min(values):.1e} to {max(values):.1e}"
    text = (
        f"At these marks, exact heads are {bounds} (relative Frobenius) from central ridge in "
        "float64"
    )
    return [
        Finding(
            f"{text}: that is the rounding of float64, and of features and published weights to "
            "their grids."
        )
    ]


def _ratio(samples: int, timings: Mapping[str, Timing]) -> list[Finding]:
    if "fedavg" not in timings:
        return []
    made = []
    for name in (system for system in EXACT if system in timings):
        ratio = timings["fedavg"].median / timings[name].median
        text = (
            f"{_title(name)}, deletes a sample {ratio:.3g} times as fast as FedAvg retrains, in "
            f"process, by medians ({seconds_text(timings[name].median)} and "
            f"{seconds_text(timings['fedavg'].median)}; wanted: {AIM:.0f} "
            f"times{f' with all samples, not with {samples}' if samples else ''})."
        )
        made.append(Finding(text, None if samples else ratio >= AIM))
    return made


def _rounds(timings: Mapping[str, Timing]) -> list[Finding]:
    ours = [
        rounds for name in EXACT if name in timings for rounds in timings[name].columns["rounds"]
    ]
    if not ours:
        return []
    theirs = [
        (
            f"{_title(name)} {timings[name].mean('rounds'):.3g} on average, "
            f"{max(timings[name].columns['rounds']):.0f} at most"
        )
        for name in _ITERATIVE
        if name in timings
    ]
    beside = f" Others: {'; '.join(theirs)}." if theirs else ""
    return [
        Finding(f"The exact variants need one round for each request.{beside}", set(ours) == {1})
    ]


def _skipper(name: str, timings: Mapping[str, Timing]) -> list[Finding]:
    """How often a system skips, and whether it is faster than ours for that."""
    times, skipped = timings[name], int(timings[name].sum("skipped"))
    retrained = [
        seconds
        for seconds, skip in zip(times.columns["seconds"], times.columns["skipped"], strict=True)
        if not skip
    ]
    text = f"{_title(name)} skips {skipped} of {times.count} requests"
    text += (
        f"; the others take {seconds_text(sum(retrained) / len(retrained))} on average."
        if retrained
        else "."
    )
    made = [Finding(text)]
    for ours in (mine for mine in EXACT if mine in timings):
        median = _faster(name, times.median, ours, timings[ours].median)
        total = _faster(name, times.total, ours, timings[ours].total)
        made.append(
            Finding(
                f"In process, by median, {median}. In total, {total}. {_title(name)} skipped "
                f"{skipped} of {times.count}."
            )
        )
    return made


def _faster(name: str, seconds: float, other: str, others: float) -> str:
    """Which of two is faster, and how much."""
    (first, fast), (second, slow) = sorted(
        [(name, seconds), (other, others)], key=lambda item: item[1]
    )
    ratio = f"{slow / fast:.3g} times as fast as" if fast > 0 else "faster than"
    comma = "," if "," in _title(first) else ""
    return (
        f"{_title(first)}{comma} is {ratio} {_title(second)} ({seconds_text(fast)} and "
        f"{seconds_text(slow)})"
    )


def _others(timings: Mapping[str, Timing]) -> list[Finding]:
    """Further systems that are faster than ours are named; and what exactness costs."""
    made = []
    for ours, rounded in zip(EXACT, _FLOAT, strict=True):
        if ours not in timings:
            continue
        mine = timings[ours].median
        rest = {name: timings[name].median for name in _FURTHER if name in timings}
        faster = [
            f"{_title(name)} ({seconds_text(median)})"
            for name, median in rest.items()
            if median < mine
        ]
        if faster:
            text = (
                f"Also faster in process than {_title(ours)} ({seconds_text(mine)}), by "
                f"median: {', '.join(faster)}."
            )
            made.append(Finding(text))
        if rounded in timings:
            ratio, theirs = mine / timings[rounded].median, seconds_text(timings[rounded].median)
            text = (
                f"{_title(ours)}, takes {ratio:.3g} times as long as the same in float64 "
                f"({seconds_text(mine)} and {theirs})"
            )
            made.append(Finding(f"{text}, which is the price of exactness."))
    return made


def _kept(timings: Mapping[str, Timing]) -> list[Finding]:
    sizes = [
        f"{_title(name)} {bytes_text(max(times.columns['checkpoint_bytes']))}"
        for name, times in timings.items()
    ]
    return (
        [Finding(f"Kept besides samples, at server and clients: {', '.join(sizes)}.")]
        if sizes
        else []
    )


def _partly(timings: Mapping[str, Timing]) -> list[Finding]:
    partly = [
        f"{_title(name)} {times.count} of {times.wanted}"
        for name, times in timings.items()
        if not times.complete
    ]
    if not partly:
        return []
    return [
        Finding(
            f"Timed in part, and extrapolated (~): {', '.join(partly)}. All others were timed in "
            "full."
        )
    ]


def _flower_findings(timings: Mapping[str, Timing]) -> list[Finding]:
    made = []
    for ours in (system for system in EXACT if system in timings):
        mine = timings[ours].median
        text = (
            f"On Flower simulation, {_title(ours)}, deletes a sample in {seconds_text(mine)} "
            "by median."
        )
        for name in (system for system in _ITERATIVE if system in timings):
            theirs = timings[name].median
            text += f" {_title(name)}: {seconds_text(theirs)}, {theirs / mine:.3g} times as long."
        made.append(Finding(text))
        rounds = set(timings[ours].columns["rounds"])
        made.append(
            Finding(
                f"On Flower simulation, {_title(ours)}, needs one round for each request.",
                rounds == {1},
            )
        )
    return made


def _same_heads(results: Results) -> list[Finding]:
    """Bit for bit the same heads on both engines: a law for the exact variants, worth knowing of
    the others.
    """
    made = []
    for done in results.where(engine="flower"):
        name = done.key["system"]
        here = [
            digest
            for other in results.where(engine="process", system=name)
            for digest in other.result["digests"]
        ]
        pairs = list(zip(here, done.result["digests"], strict=False))
        if pairs:
            same = sum(a == b for a, b in pairs)
            text = (
                f"{_title(name)}: {same} of {len(pairs)} heads on Flower are bit for bit those "
                "in process."
            )
            made.append(Finding(text, same == len(pairs) if name in EXACT else None))
    return made
