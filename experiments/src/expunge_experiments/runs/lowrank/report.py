"""Tables, figures and findings of the experiment `lowrank`, made from its results alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from expunge_experiments.report.figures import COLOURS, GREY, log_axis, panels, seeds_line
from expunge_experiments.report.tables import MISSING, bytes_text, scientific
from expunge_experiments.runs.base import Done, Drawing, Finding, Results, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLES = {
    "truncated": "Truncated",
    "randomized": "Randomized",
    "frequent_directions": "Frequent directions",
    "gaussian": "Gaussian projection",
    "sparse_sign": "Sparse-sign projection",
}
_MARKERS = dict(zip(TITLES, "osD^v", strict=True))
_SMALL = 1e-8  # a deviation that float64 explains
_WANTED_SAVING = 5.0  # of bytes, by frequent directions at rank 64


def _steps(results: Iterable[Done]) -> list[Mapping[str, Any]]:
    return [step for done in results for step in done.result["steps"]]


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def _worst(done: Done) -> Mapping[str, Any]:
    """The step of the largest deviation."""
    return max(done.result["steps"], key=lambda step: float(step["deviation"]))


# -- tables ----------------------------------------------------------------------------------------


def tables_of(settings: Any, results: Results) -> list[Table]:
    """What each method and rank sends, loses and proves; and what whole streams cost with their
    resets.
    """
    return [_heads(settings, results), _streams(settings, results)] if results else []


def _cases(results: Results) -> list[tuple[str, int, Results]]:
    return [
        (method, rank, group)
        for rank in results.values("rank")
        for method in results.values("method")
        if (group := results.where(method=method, rank=rank))
    ]


def _heads(settings: Any, results: Results) -> Table:
    columns = (
        "Method",
        "Rank",
        "Bytes",
        "Factor saved",
        "‖E‖",
        "First",
        "Its bound",
        "Worst",
        "Its bound ",
        "Paper's",
        "Accuracy",
    )
    rows = []
    for method, rank, group in _cases(results):
        steps, worst = _steps(group), [_worst(done) for done in group]
        first = [done.result["steps"][0] for done in group]
        finite = [step["paper_bound"] for step in steps if step["paper_bound"] is not None]
        changed = _mean(step["accuracy"] - step["exact_accuracy"] for step in worst)
        rows.append(
            [
                TITLES[method],
                str(rank),
                bytes_text(_mean(step["size"] for step in steps)),
                f"{_mean(step['exact_size'] / step['size'] for step in steps):.1f}",
                scientific(max(step["error"] for step in steps)),
                scientific(_mean(step["deviation"] for step in first)),
                scientific(_mean(step["bound"] for step in first)),
                scientific(_mean(step["deviation"] for step in worst)),
                scientific(_mean(step["bound"] for step in worst)),
                f"{len(finite)} of {len(steps)}" if finite else "never",
                f"{changed:+.4f}",
            ]
        )
    return Table(
        f"Low-rank messages on {settings.dataset}: bytes, true deviation, bound",
        columns,
        rows,
        frozenset(columns[1:]),
        f"gamma = {settings.gamma:g}; {settings.base} samples with exact statistics, then "
        f"{settings.requests} requests that add {settings.batch} or (every third) delete "
        f"{settings.deleted}, factors in {settings.precision}; means over "
        f"{len(results.values('seed'))} seed(s). Factor saved: against the exact statistics of "
        "these samples. ‖E‖: the largest bound that a message came with. First: relative "
        "Frobenius deviation after the first request; Worst: after that request after which it is "
        "largest. Paper's: after how many requests the premise of the paper's bound holds. "
        "Accuracy: at the worst, less that of the exact head. The truth is the head of the exact "
        "solver: retraining's.",
    )


def _streams(settings: Any, results: Results) -> Table:
    columns = (
        "Method",
        "Rank",
        "Messages",
        "Resets",
        "Both",
        "Exact statistics",
        "Share",
        "Early resets",
        "Worst",
        "After a reset",
    )
    rows = []
    for method, rank, group in _cases(results):
        values = {
            name: _mean(done.result[name] for done in group)
            for name in ("message_bytes", "reset_bytes", "exact_bytes", "rows_bytes")
        }
        both = values["message_bytes"] + values["reset_bytes"]
        after = [
            step["after_reset"]["deviation"] for step in _steps(group) if "after_reset" in step
        ]
        rows.append(
            [
                TITLES[method],
                str(rank),
                bytes_text(values["message_bytes"]),
                bytes_text(values["reset_bytes"]),
                bytes_text(both),
                bytes_text(values["exact_bytes"]),
                f"{both / values['exact_bytes']:.2f}",
                f"{_mean(done.result['refused'] for done in group):g}",
                scientific(_mean(_worst(done)["deviation"] for done in group)),
                scientific(max(after)) if after else MISSING,
            ]
        )
    rows_bytes = _mean(done.result["rows_bytes"] for done in results)
    return Table(
        "Bytes of whole streams with their resets",
        columns,
        rows,
        frozenset(columns[1:]),
        f"{settings.clients} client(s) take turns; after every {settings.reset_every} requests "
        "each of them sends the exact statistics of what it has changed since. Early resets: for "
        "deletions that approximation made infeasible; these are then done by truncation, and "
        "what was refused counts as sent. Exact statistics: every request sent exactly instead. "
        f"As rows, which are exact too, the same requests are {bytes_text(rows_bytes)}: but rows "
        "show samples.",
    )


# -- figures ---------------------------------------------------------------------------------------


def drawings_of(settings: Any, results: Results) -> list[Drawing]:
    """Bytes against deviation and bound; the course of one rank."""
    if not results:
        return []
    rank = 64 if 64 in results.values("rank") else results.values("rank")[-1]
    course = results.where(rank=rank, seed=results.values("seed")[0])
    return [
        Drawing(
            "lowrank",
            "Bytes of a message against the relative Frobenius deviation of the head from the "
            "exact one (left: the largest of the stream) and against its proven bound (right), "
            f"for ranks {', '.join(map(str, results.values('rank')))}; bars are one standard "
            "deviation over seeds. Where a projection's deletions were infeasible, truncation "
            "took their place.",
            partial(_draw_bytes, results),
        ),
        Drawing(
            "lowrank_course",
            f"The course of a stream at rank {rank}: deviation (filled) and bound (hollow) after "
            f"each request; dotted lines are resets, after every {settings.reset_every} requests. "
            "After them both fall to what float64 leaves (below the axis).",
            partial(_draw_course, course),
        ),
    ]


def _look(method: str, *, hollow: bool = False) -> dict[str, Any]:
    colour = COLOURS[list(TITLES).index(method)]
    return {
        "color": colour,
        "marker": _MARKERS[method],
        "markerfacecolor": "white" if hollow else colour,
    }


def _draw_bytes(results: Results) -> Figure:
    figure, axes = panels(2, sharey=True)
    groups = [results.where(rank=rank) for rank in results.values("rank")]
    ticks = [_mean(step["size"] for step in _steps(group)) / 1e3 for group in groups]
    for method in results.values("method"):
        by_rank = [results.where(method=method, rank=rank) for rank in results.values("rank")]
        by_rank = [group for group in by_rank if group]
        sizes = [_mean(step["size"] for step in _steps(group)) / 1e3 for group in by_rank]
        for index, (panel, name) in enumerate(zip(axes, ("deviation", "bound"), strict=True)):
            values = [[float(_worst(done)[name]) for done in group] for group in by_rank]
            seeds_line(
                panel, sizes, values, label=TITLES[method], **_look(method, hollow=index == 1)
            )
    for panel, title in zip(axes, ("True deviation", "Proven bound"), strict=True):
        log_axis(panel, "xy")
        panel.set_title(title)
        panel.minorticks_off()
        panel.set_xticks(ticks, [f"{tick:.0f}" for tick in ticks])
        panel.set_xlabel("kilobytes of a message")
    axes[0].set_ylabel("relative Frobenius norm")
    axes[0].legend()
    return figure


def _course(steps: Sequence[Mapping[str, Any]], name: str) -> tuple[list[float], list[float]]:
    """The values after each request, with a gap at each reset, so that no line runs across it."""
    positions: list[float] = []
    values: list[float] = []
    for position, step in enumerate(steps, start=1):
        if step["early_reset"]:
            positions.append(position - 0.5)
            values.append(float("nan"))
        positions.append(float(position))
        values.append(float(step[name]))
        if "after_reset" in step:
            positions.append(position + 0.5)
            values.append(float("nan"))
    return positions, values


def _draw_course(results: Results) -> Figure:
    figure, axes = panels(1, width=6.0)
    for done in results:
        steps, method = done.result["steps"], done.key["method"]
        for name, style in (
            ("deviation", {"label": TITLES[method]}),
            ("bound", {"linestyle": "--"}),
        ):
            axes.plot(*_course(steps, name), **_look(method, hollow=name == "bound"), **style)
    for position, step in enumerate(results[0].result["steps"] if results else [], start=1):
        if "after_reset" in step:
            axes.axvline(position + 0.5, color=GREY, linestyle=":", linewidth=1.0)
    log_axis(axes)
    axes.set_xticks(range(1, len(results[0].result["steps"]) + 1) if results else [])
    axes.set_xlabel("request")
    axes.set_ylabel("relative Frobenius norm")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


# -- findings --------------------------------------------------------------------------------------


def findings_of(settings: Any, results: Results) -> list[Finding]:
    """What follows from what has been measured so far."""
    if not results:
        return []
    makers: Sequence[Callable[[Any, Results], list[Finding]]] = (
        _bounds,
        _saving,
        _resets,
        _premise,
        _compared,
        _totals,
    )
    return [finding for make in makers for finding in make(settings, results)]


def holds(step: Mapping[str, Any]) -> bool:
    """Whether a step's true deviations lie below its bounds, but for the rounding of the published
    exact weights.
    """
    paper = step["paper_bound"]
    spectral, slack = step["spectral_deviation"], step["resolution"]
    return (
        step["deviation"] <= step["bound"] + slack
        and spectral <= step["spectral_bound"] + slack
        and (paper is None or spectral <= paper + slack)
    )


def _bounds(_: Any, results: Results) -> list[Finding]:
    steps = _steps(results)
    after = [step["after_reset"] for step in steps if "after_reset" in step]
    count = sum(map(holds, [*steps, *after]))
    looseness = [step["bound"] / step["deviation"] for step in steps if step["deviation"] > 0.0]
    findings = [
        Finding(
            f"The true deviation lies below every printed bound after {count} of "
            f"{len(steps) + len(after)} updates and resets.",
            count == len(steps) + len(after),
        )
    ]
    if looseness:
        findings.append(
            Finding(
                f"The bound is {min(looseness):.2g} to {max(looseness):.2g} times the true "
                f"deviation, {np.median(looseness):.2g} "
                "in the median: it must allow for an error in the worst direction."
            )
        )
    return findings


def _saving(_: Any, results: Results) -> list[Finding]:
    steps = _steps(results.where(method="frequent_directions", rank=64))
    if not steps:
        return []
    saved = min(step["exact_size"] / step["size"] for step in steps)
    worst = max(float(step["deviation"]) for step in steps)
    return [
        Finding(
            f"Frequent directions at rank 64 save a factor of {saved:.1f} of the bytes; the head "
            f"is then up to {worst:.2g} "
            "(relative Frobenius norm) away from the exact one before a reset.",
            saved >= _WANTED_SAVING,
        )
    ]


def _resets(_: Any, results: Results) -> list[Finding]:
    after = [step["after_reset"] for step in _steps(results) if "after_reset" in step]
    if not after:
        return []
    worst, bound = (
        max(float(reset["deviation"]) for reset in after),
        max(float(reset["bound"]) for reset in after),
    )
    return [
        Finding(
            f"After each of {len(after)} resets the head is within {worst:.1e} of the exact one, "
            f"with a bound of {bound:.1e}: "
            "what is left is the rounding of float64, not bit-exactness.",
            max(worst, bound) <= _SMALL,
        )
    ]


def _premise(_: Any, results: Results) -> list[Finding]:
    steps = _steps(results)
    finite = sum(step["paper_bound"] is not None for step in steps)
    refused = sum(done.result["refused"] for done in results)
    return [
        Finding(
            f"The paper's bound needs ‖T_ap E‖ < 1, which can be shown after {finite} of "
            f"{len(steps)} updates: neglected eigenvalues of a batch are above the smallest one of "
            "S + gamma I. Ours, which uses that a Gram has no negative eigenvalues, is finite "
            "always.",
        ),
        Finding(
            f"Deletions that approximation made infeasible: {refused}."
            + (
                (
                    " Each took an early reset, and truncation, which is always feasible then, in "
                    "its own method's place."
                )
                * bool(refused)
            )
        ),
    ]


def _compared(_: Any, results: Results) -> list[Finding]:
    findings = []
    for rank in results.values("rank"):
        by_method = {
            method: _mean(
                _worst(done)["deviation"] for done in results.where(method=method, rank=rank)
            )
            for method in results.values("method")
            if results.where(method=method, rank=rank)
        }
        if len(by_method) > 1:
            best = sorted(by_method, key=lambda method: by_method[method])
            listed = ", ".join(
                f"{TITLES[method].lower()} {by_method[method]:.2g}" for method in best
            )
            findings.append(
                Finding(f"Worst deviations at rank {rank}, from the smallest: {listed}.")
            )
    return findings


def _totals(settings: Any, results: Results) -> list[Finding]:
    group = results.where(method="frequent_directions", rank=64) or results
    names = ("message_bytes", "reset_bytes", "exact_bytes", "rows_bytes")
    messages, resets, exact, rows = (_mean(done.result[name] for done in group) for name in names)
    return [
        Finding(
            f"With resets counted, a stream of {settings.requests} requests sends "
            f"{(messages + resets) / exact:.2f} of the bytes of exact statistics "
            f"({bytes_text(messages)} of messages, {bytes_text(resets)} of resets, against "
            f"{bytes_text(exact)}). Resets save only where a client makes several requests "
            "between two of them: each client sends one exact change, however many requests it "
            "stands for.",
        ),
        Finding(
            f"Sent as rows, the same requests are {bytes_text(rows)} and exact, which is "
            f"{'less' if rows < messages + resets else 'more'} than messages and resets together: "
            "low ranks are for batches with many more samples than features, for clients that "
            "must not show rows, and for streams with few resets."
        ),
    ]
