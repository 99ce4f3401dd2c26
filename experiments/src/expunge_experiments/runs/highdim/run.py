"""highdim: exact statistics and certified heads up to d = 8192, with their time and memory, next to
plain float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

from expunge.errors import InputError
from expunge_experiments.report.figures import BLACK, BLUE, GREEN, SKY, log_axis, panels
from expunge_experiments.report.tables import MISSING, bytes_text, seconds_text
from expunge_experiments.runs import base
from expunge_experiments.runs.highdim.jobs import JOBS, measured

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from expunge_experiments.datasets.catalogue import Library

PHASES = {
    "statistics": "statistics of all samples",
    "solve": "certified head",
    "start": "solver and first head",
    "delete": "delete a sample, new head",
    "again": "delete another",
}
TITLES = {
    "retrain": "exact: retraining",
    "a": "exact: Variant A",
    "b": "exact: Variant B",
    "float64": "float64 (numpy, scipy)",
}


@dataclass(frozen=True)
class HighdimSettings:
    """Sizes."""

    dims: tuple[int, ...] = (2048, 4096, 8192)  # d, without the constant feature
    samples: int = 4000  # standard normal, in float32, with labels drawn uniformly
    classes: int = 10  # of these
    gamma: float = 10.0  # the ridge penalty
    seed: int = 0  # of the samples

    def __post_init__(self) -> None:
        if (
            not self.dims
            or min(self.dims) < 1
            or self.samples < 4
            or self.classes < 2
            or not self.gamma > 0.0
        ):
            raise InputError(
                "dims must be positive, samples at least 4, classes at least 2 and gamma positive"
            )


class Highdim(base.Experiment[HighdimSettings]):
    """Wide features."""

    name = "highdim"
    title = "High dimensions"
    question = (
        "What do exact statistics, a certified head and one exact deletion cost in time "
        "and memory at d = 2048 to 8192?"
    )
    paper = (
        "The appendix: dimensions of 768 or 1024 are handled directly, much higher ones by "
        "approximate updates. Here higher ones are handled exactly."
    )
    full = HighdimSettings()
    quick = HighdimSettings(dims=(2048,), samples=2500)

    def cells(self, settings: HighdimSettings) -> list[base.Cell]:
        """One for each d and job, each in a process of its own."""
        cells = []
        for dim in settings.dims:
            for job in JOBS:
                key: dict[str, Any] = {"dim": dim, "job": job}
                key |= {
                    name: getattr(settings, name)
                    for name in ("samples", "classes", "gamma", "seed")
                }
                cells.append(base.Cell(key, partial(_apart, key)))
        return cells

    def tables(self, _: HighdimSettings, results: base.Results) -> list[base.Table]:
        """Time and memory of each job."""
        return results.table(_table)

    def drawings(self, _: HighdimSettings, results: base.Results) -> list[base.Drawing]:
        """Time and memory against d."""
        if len(results.values("dim")) < 2:
            return []
        caption = (
            "Time of retraining from samples, and of one deletion with its new head (left); the "
            "most memory a job's process had, "
            "everything included (right), with the bytes of the ledger."
        )
        return [base.Drawing("highdim", caption, partial(_draw, results))]

    def findings(self, _: HighdimSettings, results: base.Results) -> list[base.Finding]:
        """Memory against the ledger, and that heads are right."""
        if not results:
            return []
        exact = base.Results(done for done in results if done.key["job"] != "float64")
        text = (
            "Every exact head was checked by a residual of its own: G - H W, in integers, is as "
            "small as a correctly rounded W has it; heads of both variants after two deletions "
            "have the digest of retraining without these samples."
        )
        findings = [
            base.Finding(
                text, all(done.result["verified"] for done in exact) and _same_digests(exact)
            )
        ]
        dim = max(done.key["dim"] for done in exact) if exact else 0
        worst = max(
            (_peak(done) / done.result["ledger_bytes"] for done in exact.where(dim=dim)),
            default=None,
        )
        if worst is not None:
            text = (
                f"At d = {dim} no exact job's process had more than {worst:.1f} times the bytes of "
                "its ledger in memory, with the interpreter and the samples included."
            )
            findings.append(base.Finding(text, worst < 5.0 if dim >= 8192 else None))
        text = (
            "By construction: with w = d + 1, the ledger is L = 8 w (w + 1) bytes. Statistics take "
            "L and the rows that wait (up to 1024, of 24 w bytes each); retraining takes 3 L: "
            "ledger, float64 copy, factor; a solver beyond w = 4097 takes 3.75 L: also the words "
            "of S as they were when it was made (3/4 L). Up to there it keeps these as float64 (3 "
            "L), which is faster."
        )
        findings.append(base.Finding(text))
        return findings


def _apart(key: Mapping[str, Any], _: Library, report: base.Report) -> Mapping[str, Any]:
    """Measure in a fresh process, whose memory is then that of this job alone."""
    report(f"{TITLES[key['job']]}, d = {key['dim']}", 0, None)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        result: Mapping[str, Any] = pool.submit(measured, dict(key)).result()
    return result


def _peak(done: base.Done) -> float:
    return float(max(phase["peak_bytes"] for phase in done.result["phases"].values()))


def _same_digests(results: base.Results) -> bool:
    """Whether at every d all jobs that deleted the same samples have the same head."""
    heads = [
        {done.result["digest"] for done in results.where(dim=dim)} for dim in results.values("dim")
    ]
    return all(len(digests) == 1 for digests in heads)


def _table(results: base.Results) -> base.Table:
    columns = [
        "d",
        "job",
        "ledger",
        *(f"{label}" for label in PHASES.values()),
        "most memory",
        "over the ledger",
    ]
    rows = []
    for done in results:
        phases = done.result["phases"]
        times = [
            seconds_text(phases[name]["seconds"]) if name in phases else MISSING for name in PHASES
        ]
        ledger = done.result["ledger_bytes"]
        sizes = [bytes_text(_peak(done)), f"{_peak(done) / ledger:.2f}"]
        rows.append(
            [str(done.key["dim"]), TITLES[done.key["job"]], bytes_text(ledger), *times, *sizes]
        )
    key = results[0].key
    note = (
        f"{key['samples']:,} synthetic samples (standard normal, float32; labels of "
        f"{key['classes']} classes drawn uniformly), gamma = {key['gamma']:g}. One measurement "
        f"each, in a process of its own. Most memory: {_by(results)}, samples and interpreter "
        "included. Retraining leaves the two samples out from the start; the others delete them. "
        "float64 does the same job with numpy and scipy: a Gram by dsyrk, Cholesky anew at every "
        "deletion."
    )
    return base.Table(
        "Time and memory in high dimensions", columns, rows, frozenset(columns[2:]), note
    )


def _by(results: base.Results) -> str:
    return ", ".join(sorted({done.result["peak_by"] for done in results}))


def _draw(results: base.Results) -> Figure:
    figure, (left, right) = panels(2)
    dims = results.values("dim")
    colours = {"retrain": GREEN, "a": BLUE, "b": SKY, "float64": BLACK}
    for job, title in TITLES.items():
        by_dim = {done.key["dim"]: done for done in results.where(job=job)}
        shown = [dim for dim in dims if dim in by_dim]
        if not shown:
            continue
        phases = [by_dim[dim].result["phases"] for dim in shown]
        name = "again" if "again" in phases[0] else "solve"
        label = f"{title}: {'a deletion' if name == 'again' else 'statistics and head'}"
        times = [
            phase[name]["seconds"] + (phase["statistics"]["seconds"] if name == "solve" else 0.0)
            for phase in phases
        ]
        dashes = "--" if job == "float64" else "-"
        left.plot(shown, times, marker="o", color=colours[job], linestyle=dashes, label=label)
        right.plot(
            shown,
            [_peak(by_dim[dim]) for dim in shown],
            marker="o",
            color=colours[job],
            linestyle=dashes,
            label=title,
        )
    ledgers = {done.key["dim"]: done.result["ledger_bytes"] for done in results}
    right.plot(dims, [ledgers[dim] for dim in dims], color="#6b6b6b", linestyle=":", label="ledger")
    for panel, title, unit in ((left, "Time", "seconds"), (right, "Memory", "bytes")):
        panel.set(title=title, xlabel="d", ylabel=unit)
        log_axis(panel, "xy")
        panel.set_xticks(dims, [str(dim) for dim in dims])
        panel.set_xticks([], minor=True)
        panel.legend()
    left.set_ylim(top=20.0 * left.get_ylim()[1])  # room for the legend
    return figure
