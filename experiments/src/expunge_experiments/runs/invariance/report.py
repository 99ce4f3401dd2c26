"""Tables, figure and findings of the experiment `invariance`, made from its results alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from expunge import Spec
from expunge_experiments.report import figures, paper
from expunge_experiments.report.tables import MISSING, counted, fixed, scientific
from expunge_experiments.runs.base import Drawing, Finding, Results, Table
from expunge_experiments.systems.catalogue import entry_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ARITHMETICS = ("float32", "float64", "exact")
_FP = {"float32": "fp32", "float64": "fp64", "exact": "exact"}
Point = Mapping[str, Any]
SAME = "0"
_FLOAT64_CLAIM = 1e-9  # what the paper claims in its abstract
_FLOAT32_CLAIM = 1e3  # times the deviation of float64
_ENOUGH = 7  # gammas, to say anything of how carefully one must be chosen
_NEAR_BEST = 0.005  # of accuracy: gammas that lose no more than this are good ones


# -- clients ---------------------------------------------------------------------------------------


def client_tables(settings: Any, results: Results) -> list[Table]:
    """Ours next to the paper's; and the same from the exact head."""
    if not results:
        return []
    numbers = results.values("clients")
    columns = ("", *(f"{variant.upper()}, K = {number}" for variant in "ab" for number in numbers))
    ours, theirs, exactly = [], [], []
    for arithmetic in ARITHMETICS:
        cases = [(f"{variant}_{arithmetic}", number) for variant in "ab" for number in numbers]
        groups = [results.where(system=name, clients=number) for name, number in cases]
        if not any(groups):
            continue
        reader = _by_digest if arithmetic == "exact" else partial(_largest, name="deviation")
        ours.append([f"{_FP[arithmetic]}, ours", *map(reader, groups)])
        exactly.append(
            [
                f"{_FP[arithmetic]}, ours",
                *map(_by_digest if arithmetic == "exact" else _from_exact, groups),
            ]
        )
        if arithmetic != "exact":
            printed = [
                paper.invariance(arithmetic, variant, number)
                for variant in "ab"
                for number in numbers
            ]
            theirs.append([f"{_FP[arithmetic]}, paper", *map(scientific, printed)])
    central = next(
        (
            done.result["central_from_exact"]
            for done in results
            if "central_from_exact" in done.result
        ),
        None,
    )
    published_off = next(
        (done.result["publication"] for done in results if "publication" in done.result), None
    )
    exactly.append(["central, float64", *[scientific(central)] * (len(columns) - 1)])
    seeds = (
        f"gamma = {settings.gamma:g}; largest over "
        f"{counted(len(settings.seeds), 'partition')} of the same writers."
    )
    right = frozenset(columns[1:])
    return [
        Table(
            f"Relative Frobenius deviation from central ridge, {settings.dataset}",
            columns,
            [row for pair in zip(ours, [*theirs, []], strict=False) for row in pair if row],
            right,
            f"{seeds} Floating point: from the central float64 solution W_c, as in the paper, "
            "whose features are FeMNIST's by "
            "DINOv2. Exact: from the exact central head, by digest: 0 is equal in every bit.",
        ),
        Table(
            "The same from the exact central head",
            columns,
            exactly,
            right,
            f"{seeds} Floating point: from the exact head in the finest steps that float64 holds. "
            "Exact: by digest, as above; as it is published, in steps of "
            f"2^-{Spec.publication_bits}, that head is {scientific(published_off)} from the "
            "finest. The last row is how far W_c itself, which the paper measures from, is off.",
        ),
    ]


def _largest(results: Results, name: str) -> str:
    values = [done.result[name] for done in results if name in done.result]
    if any(done.result["failed"] for done in results):
        return "fails"
    return scientific(max(values)) if values else MISSING


_from_exact = partial(_largest, name="from_exact")


def _by_digest(results: Results) -> str:
    if not results:
        return MISSING
    if any(done.result["failed"] for done in results):
        return "refused"
    return SAME if all(done.result.get("equal") for done in results) else "differs"


def client_findings(settings: Any, results: Results) -> list[Finding]:
    """Exact variants are to be equal by digest, floating point of the order that the paper
    found.
    """
    made = []
    exact = [done for done in results if done.key["system"].endswith("exact")]
    if exact:
        equal = sum(bool(done.result.get("equal")) for done in exact)
        made.append(
            Finding(
                "Both exact variants have the head of exact central ridge, by digest, for every "
                f"number of clients and partition: {equal} of {len(exact)} runs. The paper's fp64 "
                f"deviates by up to {_theirs('float64')[1]:.1e}.",
                equal == len(exact),
            )
        )
    worst = {arithmetic: _worst(results, arithmetic) for arithmetic in ("float32", "float64")}
    if worst["float64"] is not None:
        most = f"at most {worst['float64']:.1e}; the paper: {_theirs('float64')[1]:.1e}"
        text = f"In float64 both variants stay within {_FLOAT64_CLAIM:g} of central ridge ({most})."
        made.append(Finding(text, worst["float64"] <= _FLOAT64_CLAIM))
    if worst["float32"] is not None and worst["float64"] is not None:
        ratio, (low, high) = worst["float32"] / worst["float64"], _theirs("float32")
        made.append(
            Finding(
                f"float32 deviates more than {_FLOAT32_CLAIM:,.0f} times as much as float64: "
                f"{ratio:.1g} times (at most "
                f"{worst['float32']:.1e}; the paper: {low:.1e} to {high:.1e}).",
                ratio > _FLOAT32_CLAIM,
            )
        )
    made += _a_against_b(settings, results)
    return made


def _worst(results: Results, arithmetic: str) -> float | None:
    values = [
        done.result["deviation"]
        for done in results
        if arithmetic in done.key["system"] and "deviation" in done.result
    ]
    return max(values) if values else None


def _theirs(arithmetic: str, variants: str = "ab") -> tuple[float, float]:
    """The smallest and the largest of the paper's deviations in this arithmetic."""
    values = [
        value for variant in variants for value in paper.INVARIANCE[arithmetic, variant].values()
    ]
    return min(values), max(values)


def _a_against_b(settings: Any, results: Results) -> list[Finding]:
    """In the paper A is far worse than B in fp32."""
    a, b = (
        _worst(
            Results(done for done in results if done.key["system"].startswith(letter)), "float32"
        )
        for letter in "ab"
    )
    if a is None or b is None:
        return []
    return [
        Finding(
            f"In float32 Variant A deviates by {a:.1e} and Variant B by {b:.1e} at gamma = "
            f"{settings.gamma:g}; in the paper by {_theirs('float32', 'a')[1]:.1e} and "
            f"{_theirs('float32', 'b')[1]:.1e}, with other features, another dim and a gamma that "
            "it does not state."
        )
    ]


# -- gamma -----------------------------------------------------------------------------------------


def gamma_tables(results: Results) -> list[Table]:
    """For each number of clients, a row for each gamma: deviations, and accuracies."""
    gamma_results = results.where(part="gammas")
    return [
        table
        for clients in gamma_results.values("clients")
        for table in _gamma_tables(gamma_results.where(clients=clients))
    ]


def _gamma_tables(results: Results) -> list[Table]:
    names = results.values("system")
    gammas = [point["gamma"] for point in results[0].result["points"]]
    columns = ("gamma", *(entry_of(name).title.removeprefix("Variant ") for name in names))

    def rows(read: Callable[[Mapping[str, Any]], str]) -> list[list[str]]:
        points = [results.where(system=name)[0].result["points"] for name in names]
        return [
            [f"{gamma:g}", *(read(series[index]) for series in points)]
            for index, gamma in enumerate(gammas)
        ]

    smallest = next(
        (
            done.result["smallest_gamma"]
            for done in results
            if done.result["smallest_gamma"] is not None
        ),
        None,
    )
    rule = (
        "Refused: the exact variants publish nothing that float64 could not precondition for "
        f"certain; the smallest gamma that will do here is {smallest:.2g}. "
        if smallest is not None
        else ""
    )
    where = f"{results[0].key['clients']} clients"
    fails = (
        "Fails: S + gamma I is not positive definite in that arithmetic, or the weights are "
        "not finite."
    )
    right = frozenset(columns)
    return [
        Table(
            f"Deviation from central ridge over gamma, {where}",
            columns,
            rows(_deviation),
            right,
            (
                "Floating point: from the central float64 solution with the same gamma; exact: by "
                f"digest. {rule}{fails}"
            ),
        ),
        Table(
            f"Accuracy over gamma, {where}",
            columns,
            rows(lambda point: _refused(point) or fixed(point["accuracy"])),
            right,
        ),
    ]


def _refused(point: Mapping[str, Any]) -> str:
    if not point["failed"]:
        return ""
    return "refused" if "ill-conditioned" in point["failed"] else "fails"


def _deviation(point: Mapping[str, Any]) -> str:
    if point["failed"]:
        return _refused(point)
    if "equal" in point:
        return SAME if point["equal"] else "differs"
    return scientific(point.get("deviation"))


def _good_gammas(points: Iterable[Point], best: float) -> list[float]:
    return [
        point["gamma"]
        for point in points
        if not point["failed"] and point["accuracy"] >= best - _NEAR_BEST
    ]


def gamma_findings(results: Results) -> list[Finding]:
    """The paper's remark, for each number of clients; and what the rule of conditioning refuses."""
    gamma_results, made = results.where(part="gammas"), []
    for clients in gamma_results.values("clients"):
        points = {
            done.key["system"]: done.result["points"]
            for done in gamma_results.where(clients=clients)
        }
        for letter in "ab":
            low, high = points.get(f"{letter}_float32"), points.get(f"{letter}_float64")
            if low is not None and high is not None:
                made.append(_sensitivity(f"Variant {letter.upper()}, {clients} clients", low, high))
    exact = [
        point
        for done in gamma_results
        if done.key["system"].endswith("exact")
        for point in done.result["points"]
    ]
    if exact:
        taken = [point for point in exact if not point["failed"]]
        equal = sum(bool(point.get("equal")) for point in taken)
        made.append(
            Finding(
                "At every gamma that the exact variants take, their head is that of exact central "
                f"ridge, by digest: {equal} of {len(taken)}; {len(exact) - len(taken)} of "
                f"{len(exact)} are refused as ill-conditioned, by rule.",
                equal == len(taken),
            )
        )
    return made


def _sensitivity(where: str, low: Sequence[Point], high: Sequence[Point]) -> Finding:
    """The remark holds if float64 has more good gammas than float32: all of them, and others.

    Other differences are reported.
    """
    best = max((point["accuracy"] for point in high if not point["failed"]), default=0.0)
    good32, good64 = (_good_gammas(series, best) for series in (low, high))
    fails = [point["gamma"] for point in low if point["failed"]]
    pairs = [
        (single, double)
        for single, double in zip(low, high, strict=True)
        if not single["failed"] and not double["failed"]
    ]
    loses = [
        single["gamma"]
        for single, double in pairs
        if single["accuracy"] < double["accuracy"] - _NEAR_BEST
    ]
    enough = len(high) >= _ENOUGH
    claim = "float64 makes gamma less sensitive: " if enough else ""
    points = f"{100 * _NEAR_BEST:g} points"
    text = (
        f"{where}: {claim}{len(good64)} of {len(high)} gammas ({_range(good64)}) are within "
        f"{points} of the best accuracy in float64, and {len(good32)} ({_range(good32)}) in "
        f"float32. float32 fails at {_listed(fails)} and loses more than {points} to float64 at "
        f"{_listed(loses)}."
    )
    return Finding(text, set(good32) < set(good64) if enough else None)


def _listed(gammas: Sequence[float]) -> str:
    return ", ".join(f"gamma = {gamma:g}" for gamma in gammas) or "no gamma"


def _range(gammas: Sequence[float]) -> str:
    if not gammas:
        return "none"
    return f"{gammas[0]:g}" if len(gammas) == 1 else f"{min(gammas):g} to {max(gammas):g}"


# -- figure ----------------------------------------------------------------------------------------


def drawings(settings: Any, results: Results) -> list[Drawing]:
    """Deviation over clients; and for each number of clients that was swept, deviation and accuracy
    over gamma.
    """
    made = []
    clients, gammas = results.where(part="clients"), results.where(part="gammas")
    if clients:
        caption = (
            "Deviation from central ridge over the number of clients, gamma = "
            f"{settings.gamma:g}. Bars: one standard deviation "
            f"over {counted(len(settings.seeds), 'partition')}. Exact variants are at 0, by digest."
        )
        made.append(Drawing("clients", caption, partial(_draw_clients, settings, clients)))
    for number in gammas.values("clients"):
        caption = (
            f"Deviation from central ridge (left) and accuracy (right) over gamma, {number} "
            "clients. Lines end where an arithmetic fails; exact variants are at 0, by digest, "
            "and refuse gammas in the grey zone."
        )
        made.append(
            Drawing(
                f"gamma-{number}",
                caption,
                partial(_draw_gammas, settings, gammas.where(clients=number)),
            )
        )
    return made


def _draw_clients(settings: Any, results: Results) -> Figure:
    figure, axes = figures.panels(width=4.2, height=3.0)
    numbers = results.values("clients")
    for name in settings.systems:
        heights = [
            [_height(done.result) for done in results.where(system=name, clients=number)]
            for number in numbers
        ]
        values = [[value for value in group if value is not None] for group in heights]
        figures.seeds_line(
            axes, numbers, values, label=figures.look(name).label, **figures.look(name).line()
        )
    _deviations(axes)
    axes.set(xlabel="number of clients K", xticks=numbers)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _draw_gammas(settings: Any, results: Results) -> Figure:
    figure, (left, right) = figures.panels(2, height=3.0)
    for name in settings.systems:
        style = {"label": figures.look(name).label, **figures.look(name).line()}
        points = [point for done in results.where(system=name) for point in done.result["points"]]
        gammas, heights = [point["gamma"] for point in points], [_height(point) for point in points]
        left.plot(gammas, [np.nan if height is None else height for height in heights], **style)
        right.plot(gammas, [point.get("accuracy", np.nan) for point in points], **style)
    _deviations(left)
    smallest = next(
        (
            done.result["smallest_gamma"]
            for done in results
            if done.result["smallest_gamma"] is not None
        ),
        None,
    )
    for axes in (left, right):
        figures.log_axis(axes, "x")
        axes.set_xlabel("gamma")
        if smallest is not None and smallest > min(settings.gammas):
            axes.axvspan(
                min(settings.gammas), smallest, color=figures.LIGHT, alpha=0.5, linewidth=0
            )
    left.set_title("Deviation")
    right.set(title="Accuracy", ylabel="test accuracy")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _deviations(axes: Axes) -> None:
    """An axis of deviations, with a place for 0."""
    figures.log_axis(axes, zero=1e-16)
    axes.set_ylim(-3e-17, None)
    axes.set_ylabel("relative deviation")


def _height(point: Mapping[str, Any]) -> float | None:
    """The deviation that is drawn: 0 where digests are equal."""
    if point["failed"]:
        return None
    return 0.0 if point.get("equal") else point.get("deviation")
