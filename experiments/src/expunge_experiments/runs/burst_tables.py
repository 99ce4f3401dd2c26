"""Tables of `burst`, and the summary of timed requests that they, the figures and the findings share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from expunge_experiments import published
from expunge_experiments.markdown import MISSING, bytes_text, scientific, seconds_text
from expunge_experiments.runs.base import Done, Results, Table
from expunge_experiments.systems.catalogue import entry_of

Columns = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Timing:
    """Requests of one kind by one system: `wanted` of them, of which those in `columns` were timed."""

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
        """Seconds of all: their sum; or, where not all were timed, extrapolated: the mean times how many are wanted."""
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
        found = (self.median, float(seconds.mean()), float(np.quantile(seconds, 0.95)))
        return [str(self.count), *map(seconds_text, found), total]

    def counts(self) -> list[str]:
        """Rounds and bytes of a request on average; skips; repetitions of a request on average; the most that was kept."""
        return [
            f"{self.mean('rounds'):.4g}",
            bytes_text(self.mean("bytes_up")),
            bytes_text(self.mean("bytes_down")),
            f"{self.sum('skipped'):.0f} of {self.count}",
            f"{self.mean('recomputed'):.4g}",
            bytes_text(max(self.columns["checkpoint_bytes"])),
        ]


def timing(results: Results, system: str, kind: str, wanted: int, engine: str = "process") -> Timing | None:
    """A system's timed requests ("deleted" or "added"); None for what it does not support or what is not done yet."""
    found = [one.result.get(kind) for one in results.where(system=system, engine=engine)]
    return Timing(found[0], wanted) if found and found[0] else None


def tables_of(requests: int, marks: Sequence[int], samples: int, results: Results) -> list[Table]:
    """All tables; that of Flower only where there is something of it."""
    process = results.where(engine="process")
    few = f"{samples} training samples. " if samples else ""
    made = [_stream(kind, requests, few, process) for kind in ("deleted", "added")]
    made += [_deviations(requests, marks, process), _clients(requests, process)]
    return [*made, _flower(results)] if results.where(engine="flower") else made


_NOTE = (
    "Same stream for all, in process. Rounds (exchanges with clients, the request itself among them), bytes and repetitions: "
    "mean of a request; kept: the most that a system must keep besides samples, without caches that it can make again. ~: not "
    "all were timed, the total is the mean times {count}."
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
        found = timing(results, name, kind, requests)
        texts = [*found.texts(), *found.counts()] if found is not None else ["unsupported", *[MISSING] * (len(columns) - 2)]
        rows.append([entry_of(name).title, *texts])
    title = "Time per single deletion" if kind == "deleted" else "Time per single sample added back"
    return Table(title, columns, rows, frozenset(columns[1:]), few + _NOTE.format(count=requests))


def _deviations(requests: int, marks: Sequence[int], results: Results) -> Table:
    wanted = [("delete", mark) for mark in marks] + [("add_back", gone) for gone in (*reversed(marks[:-1]), 0)]
    names = [f"{gone} deleted" if kind == "delete" else f"{requests - gone} back" for kind, gone in wanted]
    rows = []
    for done in results:
        if done.result["marks"]:
            found = {(one["kind"], one["gone"]): one for one in done.result["marks"]}
            rows.append([entry_of(done.key["system"]).title, *(_deviation(found.get(one)) for one in wanted)])
    for variant, row in published.STREAM.items():
        steps = [(kind, gone if kind == "delete" else requests - gone) for kind, gone in wanted]
        texts = [scientific(row[kind].get(step)) for kind, step in steps]
        rows.append([f"The paper's Variant {variant.upper()} (fp64, DINOv2)", *texts])
    columns = ("System", *names)
    note = (
        "Same digest: bit for bit the head that expunge.solve gives of the retained samples. Otherwise the relative Frobenius "
        "deviation from central ridge in float64, as in the paper. What was deleted last is added back first. AFL gives "
        "ordinary least squares by design, not ridge."
    )
    return Table("Deviation from retraining over the stream", columns, rows, frozenset(columns[1:]), note)


def _deviation(mark: Mapping[str, Any] | None) -> str:
    if mark is None:
        return MISSING
    return "0 (same digest)" if mark["equal"] else scientific(mark["deviation"])


def _clients(requests: int, results: Results) -> Table:
    """A sample against a client."""
    columns = ("System", "a sample: median", "rounds", "a client", "rounds of it", "up", "down", "repeated")
    rows, samples = [], 0
    for done in results:
        name, found = done.key["system"], done.result["client"]
        one = timing(results, name, "deleted", requests)
        texts = [seconds_text(one.median), f"{one.mean('rounds'):.4g}"] if one is not None else ["unsupported", MISSING]
        if found is None:
            rows.append([entry_of(name).title, *texts, "unsupported", *[MISSING] * 4])
            continue
        samples, cost = max(samples, found["samples"]), found["cost"]
        sizes = [bytes_text(cost["bytes_up"]), bytes_text(cost["bytes_down"])]
        whole = [seconds_text(cost["seconds"]), str(cost["rounds"]), *sizes, str(cost["recomputed"])]
        rows.append([entry_of(name).title, *texts, *whole])
    note = (
        f"One client, the same for all, is deleted after the stream; one measurement a system. It has {samples} samples, or a "
        "few less where what the stream deleted was not added back."
    )
    return Table("Deleting a sample, and deleting a client", columns, rows, frozenset(columns[1:]), note)


def _flower(results: Results) -> Table:
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
        found, here = Timing(done.result["deleted"], done.key["requests"]), timing(results, name, "deleted", done.key["requests"])
        parts = [seconds_text(found.mean(f"{part}_seconds")) for part in ("client", "server", "orchestration")]
        counts = [f"{found.mean('rounds'):.4g}", f"{found.sum('skipped'):.0f} of {found.count}"]
        rest = [seconds_text(here.median if here is not None else None), seconds_text(done.result["training"]["seconds"])]
        row = [entry_of(name).title, str(found.count), seconds_text(found.median), *parts, *counts, *rest]
        rows.append([*row, seconds_text(_started(done))])
    note = (
        "The first requests of the same stream on Flower simulation (Ray). Client, server and orchestration: mean of a request. "
        "Start: Flower, Ray and the apps, before and after the work. In process: the median of the table above."
    )
    return Table("Time per single deletion on Flower simulation", columns, rows, frozenset(columns[1:]), note)


def _started(done: Done) -> float:
    """What a run took besides training and requests."""
    work = done.result["training"]["seconds"] + sum(done.result["deleted"]["seconds"])
    return float(done.result["whole_seconds"] - work)
