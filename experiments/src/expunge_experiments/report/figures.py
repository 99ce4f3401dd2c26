"""The house style of figures: sizes, fonts, and for every system one colour and one marker that it
has everywhere.

Colours are Okabe and Ito's, which colour-blind readers tell apart; markers and dashes repeat what
colours say. Law: the same drawing gives the same bytes: files carry no date and no program's
version.

A run draws on `panels(...)`; the style is in force while its `Drawing.draw` is called (`render`
sees to that). matplotlib is imported where something is drawn, not before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from expunge_experiments.runs.base import Drawing, over_seeds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLACK, GREY, LIGHT = "#000000", "#6b6b6b", "#d9d9d9"
ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILLION, PURPLE = (
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#F0E442",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
)
COLOURS = (
    BLUE,
    VERMILLION,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    BLACK,
    GREY,
)  # for series that are not systems, in this order

WIDTH = 3.5  # inches of one panel
HEIGHT = 2.6
_DOTS = 200  # an inch, in PNG files


@dataclass(frozen=True)
class Look:
    """How a system is drawn, and what it is called in figures."""

    label: str
    colour: str
    marker: str
    dashes: str = "-"
    hollow: bool = False

    def line(self) -> dict[str, Any]:
        """For `Axes.plot` and `Axes.errorbar`."""
        face = "white" if self.hollow else self.colour
        return {
            "color": self.colour,
            "marker": self.marker,
            "linestyle": self.dashes,
            "markerfacecolor": face,
            "markeredgecolor": self.colour,
        }


LOOKS = {
    "central": Look("Central ridge", BLACK, "s", "--", hollow=True),
    "a_exact": Look("Variant A, exact", BLUE, "o"),
    "b_exact": Look("Variant B, exact", SKY, "D"),
    "a_float64": Look("Variant A, float64", BLUE, "o", "--", hollow=True),
    "b_float64": Look("Variant B, float64", SKY, "D", "--", hollow=True),
    "a_float32": Look("Variant A, float32", BLUE, "^", ":", hollow=True),
    "b_float32": Look("Variant B, float32", SKY, "v", ":", hollow=True),
    "fedavg": Look("FedAvg retrain", VERMILLION, "v"),
    "fats": Look("FATS", ORANGE, "P"),
    "exactfun": Look("Exact-Fun", PURPLE, "X"),
    "sisa": Look("SISA", GREEN, "<"),
    "fedcio": Look("FedCIO", "#8A7F00", ">"),
    "afl": Look("AFL", GREY, "*"),
    "acil": Look("ACIL", GREY, "h", "--", hollow=True),
    "acu": Look("ACU", GREY, "p", ":", hollow=True),
}


def look(system: str) -> Look:
    """A system's look; one that is not ours has a plain one, under its own name."""
    return LOOKS.get(system, Look(system, GREY, "d", "-."))


def panels(
    columns: int = 1, rows: int = 1, *, width: float = WIDTH, height: float = HEIGHT, **options: Any
) -> tuple[Figure, Any]:
    """A figure of some panels, and its axes: one, a list, or a list of lists (as `Figure.subplots`
    gives them).
    """
    from matplotlib.figure import Figure  # noqa: PLC0415 - slow to import

    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, **options)


def seeds_line(
    axes: Axes, x: Sequence[float], values: Sequence[Sequence[float]], *, label: str, **style: Any
) -> None:
    """A line through the means of `values[i]` (over seeds) at `x[i]`, with bars of one standard
    deviation.

    Places without any value are left out. `style` is as for `Axes.errorbar`, for instance
    `**look(name).line()`.
    """
    summaries = [(position, over_seeds(group)) for position, group in zip(x, values, strict=True)]
    positions = [position for position, summary in summaries if summary is not None]
    points = [summary for _, summary in summaries if summary is not None]
    means, spread = [summary.mean for summary in points], [summary.deviation for summary in points]
    axes.errorbar(
        positions,
        means,
        yerr=spread if any(spread) else None,
        label=label,
        capsize=2.0,
        elinewidth=0.8,
        **style,
    )


def log_axis(axes: Axes, which: str = "y", *, zero: float | None = None) -> None:
    """Make "x" or "y" (or "xy") logarithmic.

    With `zero`, values of 0 have a place of their own below `zero`, marked 0.
    """
    from matplotlib.ticker import SymmetricalLogLocator  # noqa: PLC0415 - slow to import

    for letter in which:
        setter, axis = getattr(axes, f"set_{letter}scale"), getattr(axes, f"{letter}axis")
        if zero is None:
            setter("log")
            continue
        setter("symlog", linthresh=zero, linscale=0.6)
        locator = SymmetricalLogLocator(base=10.0, linthresh=zero)
        locator.set_params(numticks=7)
        axis.set_major_locator(locator)


def name_ends(axes: Axes, *, room: float = 0.28, gap: float = 0.07) -> None:
    """Write each line's label at its right end in its own colour, instead of a legend; labels never
    overlap.

    `room` is the share of the panel's width that is kept for them; `gap` the least distance, as a
    share of its height.
    """
    ends = []
    for line, label in _labelled(axes):
        x, y = np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float)
        usable = np.isfinite(x) & np.isfinite(y)
        if usable.any():
            ends.append((label, line.get_color(), float(x[usable][-1]), float(y[usable][-1])))
    if not ends:
        return
    _widen(axes, room)
    to_share = axes.transScale + axes.transLimits
    placed = sorted(
        (*map(float, to_share.transform((x, y))[::-1]), label, colour)
        for label, colour, x, y in ends
    )
    heights = _spread([height for height, _, _, _ in placed], gap)
    for height, (end, right, label, colour) in zip(heights, placed, strict=True):
        way = (
            [right + 0.012, 1.0 - room + 0.04],
            [end, height],
        )  # from the line to its name, which may have moved away
        axes.plot(
            *way,
            color=colour,
            linewidth=0.5,
            marker="",
            transform=axes.transAxes,
            label="_way",
            clip_on=False,
        )
        axes.text(
            1.0 - room + 0.05,
            height,
            label,
            color=colour,
            transform=axes.transAxes,
            va="center",
            fontsize=7,
        )


def _widen(axes: Axes, room: float) -> None:
    """Let the x axis end later, so that this share of the panel is empty on the right."""
    low, high = axes.get_xlim()
    scale = axes.get_xaxis().get_transform()
    start, end = (float(scale.transform(np.array([limit]))[0]) for limit in (low, high))
    wider = end + (end - start) * room / (1 - room)
    axes.set_xlim(low, float(scale.inverted().transform(np.array([wider]))[0]))
    axes.autoscale_view(scalex=False)


def _labelled(axes: Axes) -> Iterator[tuple[Any, str]]:
    """Lines with their labels; an error bar's line carries none of its own, but its container
    does.
    """
    barred = [
        (container.lines[0], container.get_label())
        for container in axes.containers
        if hasattr(container, "lines")
    ]
    plain = [(line, line.get_label()) for line in axes.lines]
    for line, label in [*barred, *plain]:
        if label and not str(label).startswith("_"):
            yield line, str(label)


def _spread(heights: Sequence[float], gap: float) -> list[float]:
    """Ascending heights, moved apart as little as needed to be `gap` apart, within 0 and 1 where
    there is room.
    """
    placed = [float(height) for height in heights]
    for _ in range(200):
        moved = False
        for index in range(len(placed) - 1):
            overlap = gap - (placed[index + 1] - placed[index])
            if overlap > 1e-6:
                placed[index] -= overlap / 2
                placed[index + 1] += overlap / 2
                moved = True
        shift = max(0.0, 0.01 - placed[0]) - max(0.0, placed[-1] - 0.99)
        placed = [height + shift for height in placed]
        if not moved:
            break
    return placed


@contextmanager
def house_style() -> Iterator[None]:
    """The style, in force within; the reader's own settings count for nothing."""
    import matplotlib as mpl  # noqa: PLC0415 - slow to import
    from cycler import cycler  # noqa: PLC0415 - comes with matplotlib

    with mpl.rc_context():
        mpl.rcdefaults()
        settings: Any = mpl.rcParams
        settings.update(_STYLE | {"axes.prop_cycle": cycler(color=COLOURS)})
        yield


_STYLE: dict[str, Any] = {
    "backend": "agg",
    "font.family": "DejaVu Sans",  # comes with matplotlib, so files are the same everywhere
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 8,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 2.2,
    "lines.linewidth": 1.3,
    "lines.markersize": 4.5,
    "lines.markeredgewidth": 1.0,
    "errorbar.capsize": 2.0,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.hashsalt": "expunge",
    "svg.fonttype": "path",
}


def render(drawing: Drawing, folder: Path) -> list[Path]:
    """Draw, and write NAME.png and NAME.svg into a folder; the same drawing gives the same
    bytes.
    """
    png, svg = folder / f"{drawing.name}.png", folder / f"{drawing.name}.svg"
    with house_style():
        figure = drawing.draw()
        figure.savefig(png, dpi=_DOTS, metadata={"Software": None})
        figure.savefig(svg, metadata={"Date": None, "Creator": None})
    return [png, svg]
