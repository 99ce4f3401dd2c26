"""Tables, figures and findings of `costs`: growth fitted to medians, and where curves cross."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from expunge_experiments.report import paper
from expunge_experiments.report.figures import log_axis, look, panels
from expunge_experiments.report.tables import MISSING, bytes_text, seconds_text
from expunge_experiments.runs.base import Done, Drawing, Finding, Results, Table
from expunge_experiments.runs.costs.servers import SERVERS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Exponent:
    """The slope of log(cost) against log(size), with its standard error (None for two points,
    through which any line goes).
    """

    value: float
    error: float | None

    def text(self) -> str:
        """As in 2.03 ± 0.04."""
        return f"{self.value:.2f}" if self.error is None else f"{self.value:.2f} ± {self.error:.2f}"


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> Exponent | None:
    """By least squares; None for fewer than two sizes."""
    if len(set(sizes)) < 2:
        return None
    x, y = np.log(np.asarray(sizes, float)), np.log(np.asarray(costs, float))
    centred = x - x.mean()
    spread = float(np.square(centred).sum())
    slope = float((centred * y).sum()) / spread
    rest = y - y.mean() - slope * centred
    freedom = len(x) - 2
    error = math.sqrt(float(np.square(rest).sum()) / freedom / spread) if freedom > 0 else None
    return Exponent(slope, error)


def upper_half(sizes: Sequence[int]) -> list[int]:
    """The larger half of some sizes, the middle one included: where the leading term shows."""
    ordered = sorted(set(sizes))
    return ordered[len(ordered) // 2 :]


def crossover(
    sizes: Sequence[float], falling: Sequence[float], rising: Sequence[float]
) -> float | None:
    """From which size on `falling` is the cheaper one of two costs; None if it is not, even at the
    largest size.

    Between two measured sizes it is interpolated, on logarithmic scales. The smallest size means:
    everywhere measured.
    """
    if not sizes or not falling[-1] < rising[-1]:
        return None
    last = next(
        (index for index in reversed(range(len(sizes))) if falling[index] >= rising[index]), None
    )
    if last is None:
        return float(sizes[0])
    gaps = [math.log(rising[index] / falling[index]) for index in (last, last + 1)]
    share = -gaps[0] / (gaps[1] - gaps[0])
    low, high = math.log(sizes[last]), math.log(sizes[last + 1])
    return math.exp(low + share * (high - low))


# -- what is fitted, and tables --------------------------------------------------------------------


_VARIANT = {"a_exact": "a", "a_float64": "a", "b_exact": "b", "b_float64": "b"}
_LARGE = 256  # d from which on the leading terms of bytes show beside headers, labels and moments
_NEAR = 0.15  # of an exponent: bytes that grow within this of the paper's order grow as it says
_PAIRS = (("exact", "a_exact", "b_exact"), ("float64", "a_float64", "b_float64"))


def plain(results: Results) -> Results:
    """Those with the dataset's own number of classes, by d."""
    return Results(sorted(results.where(pseudo_classes=0), key=lambda done: done.key["dim"]))


def median(done: Done, system: str, rank: int, what: str = "delete") -> float | None:
    """Seconds; None where such requests were not made."""
    seconds = done.result["seconds"][what][system].get(str(rank))
    return float(np.median(seconds)) if seconds else None


def size(done: Done, system: str, rank: int) -> int | None:
    """Bytes of a message; None where such requests were not made."""
    length = done.result["bytes"][system].get(str(rank))
    return int(length) if length is not None else None


def fitted(results: Results, system: str, rank: int, what: str) -> Exponent | None:
    """The exponent of d, over the upper half of all d, of "bytes" or "server" time."""
    values = {
        done.key["dim"]: size(done, system, rank) if what == "bytes" else median(done, system, rank)
        for done in plain(results)
    }
    measured = {dim: value for dim, value in values.items() if value}
    dims = upper_half(list(measured))
    return exponent(dims, [measured[dim] for dim in dims])


def fitted_rank(done: Done, system: str, what: str) -> Exponent | None:
    """The exponent of r, over the upper half of all r up to a quarter of d (from where on B is no
    longer meant to be used).
    """
    ranks = upper_half(
        [rank for rank in done.key["ranks"] if rank <= max(16, done.key["dim"] // 4)]
    )
    values = [
        size(done, system, rank) if what == "bytes" else median(done, system, rank)
        for rank in ranks
    ]
    return exponent(ranks, values) if all(values) else None  # type: ignore[arg-type]


def byte_crossover(done: Done) -> int | None:
    """From which r on an exact message of B is larger than one of A: rows have bytes in proportion
    to r, statistics have not.
    """
    ranks = done.key["ranks"]
    if len(ranks) < 2:
        return None
    low, high = ranks[0], ranks[-1]
    first, last = (
        done.result["bytes"]["b_exact"][str(low)],
        done.result["bytes"]["b_exact"][str(high)],
    )
    slope = (last - first) // (high - low)
    return int((done.result["bytes"]["a_exact"][str(low)] - (first - slope * low)) // slope + 1)


def time_crossover(done: Done, a: str, b: str) -> float | None:
    """From which measured r on a deletion by A is faster than one by B."""
    ranks = done.key["ranks"]
    rows = [(rank, median(done, a, rank), median(done, b, rank)) for rank in ranks]
    measured = [(rank, first, second) for rank, first, second in rows if first and second]
    return crossover(
        [row[0] for row in measured], [row[1] for row in measured], [row[2] for row in measured]
    )


# -- tables ----------------------------------------------------------------------------------------


def tables_of(ranks: Sequence[int], results: Results) -> list[Table]:
    """All of them."""
    if not results:
        return []
    return [
        _orders(ranks, results),
        _bytes(ranks, results),
        _seconds(ranks, results),
        _crossovers(results),
    ]


def _label(done: Done) -> str:
    classes = done.result["classes"]
    return f"{done.key['dim']}, c = {classes}" + (
        " (pseudo-labels)" if done.key["pseudo_classes"] else ""
    )


def _orders(ranks: Sequence[int], results: Results) -> Table:
    shown = [rank for rank in (1, 16, 256) if rank in ranks] or list(ranks[:1])
    columns = [
        "Variant",
        "paper: bytes",
        "paper: server",
        *(f"bytes ~ d^, r = {rank}" for rank in shown),
    ]
    columns += [*(f"time ~ d^, r = {rank}" for rank in shown), "bytes ~ r^", "time ~ r^"]
    largest = plain(results)[-1] if plain(results) else None
    rows = []
    for system in SERVERS:
        orders = paper.COSTS[_VARIANT[system]]
        fits = [
            fitted(results, system, rank, what) for what in ("bytes", "server") for rank in shown
        ]
        fits += [
            fitted_rank(largest, system, what) if largest else None for what in ("bytes", "server")
        ]
        rows.append(
            [
                look(system).label,
                *orders,
                *(fit.text() if fit is not None else MISSING for fit in fits),
            ]
        )
    dims = upper_half([done.key["dim"] for done in plain(results)])
    note = (
        "Exponents by least squares on logarithmic scales, ± a standard error: of d over d = "
        f"{', '.join(map(str, dims))}; of r at the largest d, over the upper half of r ≤ d/4. Time "
        "is of a deletion, from the message's bytes to the head."
    )
    return Table("Measured orders next to the paper's", columns, rows, frozenset(columns[3:]), note)


def _bytes(ranks: Sequence[int], results: Results) -> Table:
    columns = ["d", "A, exact", *(f"B, exact, r = {rank}" for rank in ranks)]
    columns += ["A, float64", *(f"B, float64, r = {rank}" for rank in ranks)]
    rows = []
    for done in results:
        texts = []
        for _, a, b in _PAIRS:
            texts += [
                bytes_text(size(done, a, done.key["ranks"][0])),
                *(bytes_text(size(done, b, rank)) for rank in ranks),
            ]
        rows.append([_label(done), *texts])
    note = (
        "One client's message. Exact: statistics of 128-bit integers as a triangle (A), rows of "
        "64-bit integers with labels and salts (B). Float64: F'F in full with F'Y (A), R with Q'Y "
        "(B). Neither B sends a d x c moment: the server makes it."
    )
    return Table("Bytes of a message", columns, rows, frozenset(columns[1:]), note)


def _seconds(ranks: Sequence[int], results: Results) -> Table:
    columns = ["d", "Variant", *(f"r = {rank}" for rank in ranks)]
    rows = [
        [
            _label(done),
            look(system).label,
            *(seconds_text(median(done, system, rank)) for rank in ranks),
        ]
        for done in results
        for system in SERVERS
    ]
    turns = " or ".join(str(count) for count in sorted(results.values("repetitions")))
    fewer = " (fewer for wide features)" if " or " in turns else ""
    note = (
        "A deletion, from the message's bytes to the published head; median of "
        f"{turns}{fewer}, variants taking turns."
    )
    return Table("Server time of a deletion", columns, rows, frozenset(columns[2:]), note)


def _crossovers(results: Results) -> Table:
    columns = ["d", "bytes, exact", "time, exact", "time, float64", "features"]
    rows = []
    for done in results:
        rank = byte_crossover(done)
        times = [time_crossover(done, a, b) for _, a, b in _PAIRS]
        largest = max(done.key["ranks"])
        texts = [f"r ≥ {rank}" if rank is not None else MISSING]
        texts += [
            f"r ≥ {crossing:.0f}" if crossing is not None else f"not up to {largest}"
            for crossing in times
        ]
        rows.append([_label(done), *texts, done.result["source"]])
    note = (
        "Bytes: computed from measured messages, which grow by as many bytes with every row. In "
        "float64 a message of B never "
        "exceeds one of A: R has at most d + 1 rows. Time: interpolated between measured r."
    )
    return Table(
        "From which r on Variant A is cheaper than Variant B",
        columns,
        rows,
        frozenset(columns[1:4]),
        note,
    )


# -- figures ---------------------------------------------------------------------------------------


def drawings_of(ranks: Sequence[int], results: Results) -> list[Drawing]:
    """Time and bytes against d for a small and a large r; time against r for some d."""
    ordered = plain(results)
    if not ordered:
        return []
    shown = [ranks[0], *([256] if 256 in ranks[1:] else list(ranks[-1:]) if len(ranks) > 1 else [])]
    listed = " and ".join(f"r = {rank}" for rank in shown)
    rest = "d above the dataset's own is synthetic."
    return [
        Drawing(
            "costs-time",
            f"Server time of a deletion against d, for {listed}; medians. {rest}",
            partial(_against_d, ordered, shown, "time"),
        ),
        Drawing(
            "costs-bytes",
            f"Bytes of a message against d, for {listed}. {rest}",
            partial(_against_d, ordered, shown, "bytes"),
        ),
        Drawing(
            "costs-rank",
            "Server time of a deletion against r, for several d; medians.",
            partial(_against_r, ordered),
        ),
    ]


def _against_d(results: Results, ranks: Sequence[int], what: str) -> Figure:
    figure, axes = panels(len(ranks), squeeze=False, sharey=True)
    for panel, rank in zip(axes[0], ranks, strict=True):
        for system in SERVERS:
            values = [
                (
                    done.key["dim"],
                    median(done, system, rank) if what == "time" else size(done, system, rank),
                )
                for done in results
            ]
            points = [(dim, value) for dim, value in values if value]
            if points:
                panel.plot(
                    *zip(*points, strict=True), label=look(system).label, **look(system).line()
                )
        panel.set(title=f"r = {rank}", xlabel="d", ylabel="seconds" if what == "time" else "bytes")
        log_axis(panel, "xy")
        _ticks(panel, [done.key["dim"] for done in results])
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def _against_r(results: Results) -> Figure:
    dims = [done.key["dim"] for done in results]
    shown = [results[index] for index in sorted({0, len(dims) // 2, len(dims) - 1})]
    figure, axes = panels(len(shown), squeeze=False, sharey=True)
    for panel, done in zip(axes[0], shown, strict=True):
        for system in SERVERS:
            values: list[Any] = [median(done, system, rank) for rank in done.key["ranks"]]
            panel.plot(done.key["ranks"], values, label=look(system).label, **look(system).line())
        panel.set(title=f"d = {done.key['dim']}", xlabel="r", ylabel="seconds")
        log_axis(panel, "xy")
        _ticks(panel, done.key["ranks"])
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def _ticks(axes: Any, values: Sequence[int]) -> None:
    """The measured sizes themselves; of those that are close to one another, the first."""
    ticks: list[int] = []
    for value in sorted(set(values)):
        if not ticks or value >= 1.6 * ticks[-1]:
            ticks.append(value)
    axes.set_xticks(ticks, [str(value) for value in ticks])
    axes.set_xticks([], minor=True)


# -- findings --------------------------------------------------------------------------------------


def findings_of(results: Results) -> list[Finding]:
    """What follows."""
    if not plain(results):
        return []
    findings = [_exactness(results), *_exponents(results)]
    done = plain(results)[-1]
    rank = done.key["ranks"][0]
    for named, a, b in _PAIRS:
        a_seconds, b_seconds = median(done, a, rank), median(done, b, rank)
        sizes = size(done, a, rank), size(done, b, rank)
        if a_seconds and b_seconds and all(sizes):
            ratio = sizes[0] / sizes[1]  # type: ignore[operator]
            findings.append(
                Finding(
                    f"At d = {done.key['dim']} and r = {rank}, {named} Variant B is "
                    f"{a_seconds / b_seconds:.1f} times as fast as Variant A "
                    f"at the server, and A sends {ratio:,.0f} times the bytes of B."
                )
            )
    return findings


def _exactness(results: Results) -> Finding:
    worst = max(
        value
        for done in results
        for name, value in done.result["deviations"].items()
        if name.endswith("float64")
    )
    return Finding(
        "After deletions of every r, each undone, both exact variants publish the head of "
        f"retraining, by digest, at every d and c; the float64 ones are off by up to {worst:.1e} "
        "(relative Frobenius, from the exact head in the finest steps that float64 holds).",
        all(done.result["exact_as_before"] for done in results),
    )


def _exponents(results: Results) -> list[Finding]:
    rank = results[0].key["ranks"][0]
    findings = []
    leading = min(upper_half([done.key["dim"] for done in plain(results)])) >= _LARGE
    for system in SERVERS:
        sent, took = fitted(results, system, rank, "bytes"), fitted(results, system, rank, "server")
        if sent is None or took is None:
            continue
        orders = paper.COSTS_EXPONENTS[_VARIANT[system]]
        wanted = orders["bytes"]["d"]
        text = (
            f"{look(system).label}, r = {rank}: bytes grow as d^{sent.text()}, within {_NEAR} "
            f"of the paper's d^{wanted}."
        )
        findings.append(Finding(text, abs(sent.value - wanted) < _NEAR if leading else None))
        order = orders["server"]["d"]
        text = (
            f"{look(system).label}, r = {rank}: server time grows as d^{took.text()}; the "
            f"paper's leading order is d^{order}"
        )
        below = took.value < order - 2 * _NEAR
        findings.append(
            Finding(
                f"{text}, which terms of lower order still hide at these d."
                if below
                else f"{text}."
            )
        )
    return findings
