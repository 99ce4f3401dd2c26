"""Figures of `burst`: the time of every request, as in the paper, and a summary of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from expunge_experiments.figures import log_axis, look, panels
from expunge_experiments.runs.base import Drawing, Results
from expunge_experiments.runs.burst_tables import Timing, timing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Named = Sequence[tuple[str, Timing]]
_FLOOR = 1e-6  # seconds: what is drawn of requests that take less


def drawings_of(requests: int, results: Results) -> list[Drawing]:
    """The stream, on each engine of which there are results, and the summary."""
    here, there = _timings(requests, results, "process"), _timings(requests, results, "flower")
    if not here:
        return []
    stream = "Time of each request in the stream of single deletions; the same stream for all systems, in process"
    if there:
        stream += " (left) and on Flower simulation (right)"
    box = "Time per single deletion in process: median, quartiles (box), 5 and 95 % (whiskers), mean (diamond)"
    partly = [look(name).label for name, found in here if not found.complete]
    said = f". Not all requests were timed: {', '.join(partly)}." if partly else "."
    return [
        Drawing("burst-stream", stream + said, partial(_draw_stream, here, there)),
        Drawing("burst-summary", box + said, partial(_draw_summary, here)),
    ]


def _timings(requests: int, results: Results, engine: str) -> list[tuple[str, Timing]]:
    named = [(name, timing(results, name, "deleted", requests, engine)) for name in results.where(engine=engine).values("system")]
    return [(name, found) for name, found in named if found is not None]


def _draw_stream(here: Named, there: Named) -> Figure:
    figure, axes = panels(2 if there else 1, width=5.2 if not there else 4.6, height=3.8, sharey=bool(there), squeeze=False)
    titled = [("In process", here), ("On Flower simulation", there)] if there else [("In process", here)]
    for place, (title, named) in zip(axes[0], titled, strict=True):
        for name, found in named:
            _points(place, name, found)
        place.set(title=title, xlabel="request", ylabel="seconds")
        place.xaxis.get_major_locator().set_params(integer=True)
        log_axis(place)
    figure.legend(*_legend(axes[0]), loc="outside lower center", ncols=5 if there else 4)
    return figure


def _points(axes: Any, name: str, found: Timing) -> None:
    style = look(name).line() | {"linestyle": "none", "markersize": 2.4, "markeredgewidth": 0.6}
    seconds = np.maximum(found.columns["seconds"], _FLOOR)
    axes.plot(np.arange(1, found.count + 1), seconds, label=look(name).label, **style)


def _legend(axes: Sequence[Any]) -> tuple[list[Any], list[str]]:
    """Each system once."""
    known: dict[str, Any] = {}
    for one in axes:
        for handle, label in zip(*one.get_legend_handles_labels(), strict=True):
            known.setdefault(label, handle)
    return list(known.values()), list(known)


def _draw_summary(named: Named) -> Figure:
    figure, axes = panels(width=5.2, height=0.6 + 0.26 * len(named))
    axes.use_sticky_edges = False  # else the leftmost box would stand on the axis
    ordered = sorted(named, key=lambda one: -one[1].median)
    for place, (name, found) in enumerate(ordered):
        style, seconds = look(name), np.maximum(found.columns["seconds"], _FLOOR)
        low, first, middle, third, high = np.quantile(seconds, [0.05, 0.25, 0.5, 0.75, 0.95])
        axes.plot([low, high], [place, place], color=style.colour, linewidth=0.9)
        axes.barh(place, third - first, left=first, height=0.55, facecolor="white", edgecolor=style.colour, linewidth=1.0)
        axes.plot([middle, middle], [place - 0.27, place + 0.27], color=style.colour, linewidth=2.0)
        axes.plot(seconds.mean(), place, marker="d", color=style.colour, markersize=4)
    labels = [look(name).label + ("" if found.complete else f" ({found.count} timed)") for name, found in ordered]
    axes.set_yticks(range(len(ordered)), labels)
    axes.set(title="Time per single deletion", xlabel="seconds")
    log_axis(axes, "x")
    return figure
