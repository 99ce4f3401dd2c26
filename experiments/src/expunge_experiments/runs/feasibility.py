"""feasibility: the downdate lemma's three conditions in integers, and what arithmetic that rounds
makes of them near the edge.

Cases are H = S + gamma I and rows U to be deleted, all integers, with the exact answer. `random`
cases are small integers of any kind. `boundary` cases are built so that u H^-1 u' is 1 - gap for a
rational gap that is known, down to 1e-16: H = L'L for a triangular L, whose rows are orthonormal
directions in the sense of H^-1, and u is an integer combination of these, with weights whose
squares add up to (1 - gap) 4^bits.

The reference is exact linear algebra on Python's integers: nothing in it rounds and nothing in it
uses the solvers. Elimination is fraction-free (Bareiss): all entries are minors, so all divisions
come out even.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from math import comb, isqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from expunge import Grid, Spec
from expunge.errors import InputError
from expunge.exact import wide
from expunge.solvers.factor import CholeskyFactor, Downdate, downdate, proven_floor
from expunge.solvers.system import RidgeSystem
from expunge_experiments.report.figures import BLUE, SKY, VERMILLION, log_axis, panels
from expunge_experiments.runs.base import Cell, Drawing, Experiment, Finding, Report, Results, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from expunge_experiments.datasets.catalogue import Library


# -- exact linear algebra --------------------------------------------------------------------------


Matrix = list[list[int]]


def product(left: Matrix, right: Matrix) -> Matrix:
    """left @ right."""
    columns = list(zip(*right, strict=True))
    return [
        [sum(a * b for a, b in zip(row, column, strict=True)) for column in columns] for row in left
    ]


def transposed(matrix: Matrix) -> Matrix:
    """The transpose."""
    return [list(column) for column in zip(*matrix, strict=True)]


def gram(rows: Matrix) -> Matrix:
    """rows' @ rows."""
    return product(transposed(rows), rows)


def is_positive_definite(symmetric: Matrix) -> bool:
    """Whether every leading principal minor is positive (Sylvester)."""
    work = [row[:] for row in symmetric]
    previous = 1
    for pivot in range(len(work)):
        if work[pivot][pivot] <= 0:
            return False
        _eliminate(work, pivot, previous, range(pivot + 1, len(work)))
        previous = work[pivot][pivot]
    return True


def solved(symmetric: Matrix, right: Matrix) -> tuple[int, Matrix]:
    """det(H) and det(H) * H^-1 @ right, for a positive definite H."""
    size = len(symmetric)
    work = [row[:] + other[:] for row, other in zip(symmetric, right, strict=True)]
    previous = 1
    for pivot in range(size):
        _eliminate(work, pivot, previous, [row for row in range(size) if row != pivot])
        previous = work[pivot][pivot]
    return previous, [row[size:] for row in work]


def _eliminate(work: Matrix, pivot: int, previous: int, rows: Sequence[int]) -> None:
    """One step of Bareiss' elimination on these rows."""
    head = work[pivot]
    for row in rows:
        factor = work[row][pivot]
        work[row] = [
            (head[pivot] * entry - factor * above) // previous
            for entry, above in zip(work[row], head, strict=True)
        ]


def characteristic(matrix: Matrix) -> list[int]:
    """The coefficients of det(x I - M), the leading one first (Faddeev and LeVerrier); divisions
    come out even.
    """
    size = len(matrix)
    coefficients = [1]
    work = [[0] * size for _ in range(size)]
    for step in range(1, size + 1):
        for index in range(size):
            work[index][index] += coefficients[-1]
        work = product(matrix, work)
        coefficients.append(-sum(work[index][index] for index in range(size)) // step)
    return coefficients


def all_roots_below(coefficients: Sequence[int], bound: int) -> bool:
    """Whether a polynomial with real roots only has all of them below `bound`.

    By Descartes' rule, which is exact where all roots are real: shifted by the bound, the
    polynomial must have no root at 0 and no change of sign among its coefficients.
    """
    degree = len(coefficients) - 1
    shifted = [0] * (degree + 1)
    for index, coefficient in enumerate(coefficients):
        power = degree - index
        for exponent in range(power + 1):
            shifted[degree - exponent] += (
                coefficient * comb(power, exponent) * bound ** (power - exponent)
            )
    signs = [value > 0 for value in shifted if value]
    return shifted[-1] != 0 and all(signs) == any(signs)


# -- cases -----------------------------------------------------------------------------------------


BITS = 29  # of the scale of boundary cases: rows stay below 2^41, which the grid holds
_STRETCH = 10  # rows of L are up to 2^10 times as long as others, so that H is not well-conditioned
_EXACT_PLACES = 6  # directions that take up what is left over: enough for 1e-16
KINDS = (
    "deletes retained rows",
    "arbitrary rows",
    "on the boundary",
    "scaled rows",
    "repeated rows",
)


@dataclass(frozen=True)
class LemmaVerdict:
    """The lemma's three conditions, each by a computation of its own."""

    difference: bool  # H - U'U is positive definite: leading minors
    small: bool  # I - U H^-1 U' is positive definite: leading minors
    largest: bool  # the largest eigenvalue of U H^-1 U' is below 1: characteristic polynomial

    @property
    def agree(self) -> bool:
        """What the lemma says."""
        return self.difference == self.small == self.largest


def answer(system: Matrix, rows: Matrix) -> LemmaVerdict:
    """All three conditions in integers, for a positive definite system."""
    size = len(rows)
    removed = gram(rows)
    difference = [
        [a - b for a, b in zip(left, right, strict=True)]
        for left, right in zip(system, removed, strict=True)
    ]
    determinant, columns = solved(system, transposed(rows))
    scaled = product(rows, columns)  # det(H) * U H^-1 U'
    small = [[determinant * (i == j) - scaled[i][j] for j in range(size)] for i in range(size)]
    return LemmaVerdict(
        is_positive_definite(difference),
        is_positive_definite(small),
        all_roots_below(characteristic(scaled), determinant),
    )


def random_case(kind: str, draw: np.random.Generator) -> tuple[Matrix, Matrix]:
    """A positive definite H and rows U."""
    width, rank, most = (
        int(draw.integers(1, 6)),
        int(draw.integers(1, 5)),
        int(2 ** draw.integers(1, 12)),
    )
    if kind == "on the boundary":  # rows of a factor: U H^-1 U' is the identity
        factor = _unit_triangular(width, draw)
        return gram(factor), _some_rows(factor, min(rank, width), draw)
    features = _rows(width + rank + 1, width, most, draw)
    gamma = int(draw.integers(1, most + 1))
    system = _plus(gram(features), gamma)
    if kind == "deletes retained rows":
        return system, _some_rows(features, rank, draw)
    if kind == "repeated rows":  # more often than they were added
        return system, _some_rows(features, 1, draw) * (rank + 1)
    if kind == "scaled rows":
        times = int(draw.integers(1, 4))
        return system, [
            [times * entry for entry in row] for row in _some_rows(features, rank, draw)
        ]
    return system, _rows(rank, width, most, draw)


@dataclass(frozen=True)
class Boundary:
    """H = `system` * 4^-BITS and u = `row` * 2^-BITS with u H^-1 u' = 1 - gap exactly; gamma is a
    regularisation that H may contain.
    """

    system: Matrix
    row: list[int]
    gap: Fraction
    gamma: float


def boundary_case(gap: float, draw: np.random.Generator, width: int = 9) -> Boundary:
    """A case whose gap is close to `gap` (negative: infeasible), and known exactly."""
    stretch = [1 << int(bits) for bits in draw.integers(0, _STRETCH + 1, width)]
    factor = [
        [times * entry for entry in line]
        for times, line in zip(stretch, _unit_triangular(width, draw), strict=True)
    ]
    scale = 1 << BITS
    rest = scale * scale - round(Fraction(gap) * scale * scale)
    weights = []
    for index, share in enumerate(draw.dirichlet(np.ones(width))):
        part = int(share * scale * scale) if index < width - _EXACT_PLACES else rest
        weights.append(isqrt(min(part, rest)) * int(draw.choice((-1, 1))))
        rest -= weights[-1] ** 2
    row = [
        sum(weight * line[column] for weight, line in zip(weights, factor, strict=True))
        for column in range(width)
    ]
    reached = Fraction(sum(weight**2 for weight in weights), scale * scale)
    system = gram(factor)
    smallest = float(np.linalg.eigvalsh(np.array(system, dtype=float))[0])
    gamma = 2.0 ** (int(np.floor(np.log2(smallest))) - 1)
    return Boundary(
        [[entry * scale * scale for entry in line] for line in system], row, 1 - reached, gamma
    )


def _unit_triangular(width: int, draw: np.random.Generator) -> Matrix:
    """Upper triangular with ones on the diagonal and -1, 0 or 1 above."""
    above = np.triu(draw.integers(-1, 2, (width, width)), 1) + np.eye(width, dtype=np.int64)
    matrix: Matrix = above.astype(int).tolist()
    return matrix


def _rows(count: int, width: int, most: int, draw: np.random.Generator) -> Matrix:
    rows: Matrix = draw.integers(-most, most + 1, (count, width)).tolist()
    return rows


def _some_rows(rows: Matrix, count: int, draw: np.random.Generator) -> Matrix:
    return [rows[index] for index in draw.choice(len(rows), count, replace=False)]


def _plus(matrix: Matrix, shift: int) -> Matrix:
    return [
        [entry + shift * (i == j) for j, entry in enumerate(row)] for i, row in enumerate(matrix)
    ]


# -- the experiment --------------------------------------------------------------------------------


JUDGES = {
    "float64, (i)": "float64: Cholesky of H - U'U",
    "float64, (ii)": "float64: I - U H⁻¹ U'",
    "float32, (i)": "float32: Cholesky of H - U'U",
    "float32, (ii)": "float32: I - U H⁻¹ U'",
    "expunge": "expunge: (ii) with error bounds",
}
VERDICTS = ("right", "wrong", "undecided")


@dataclass(frozen=True)
class FeasibilitySettings:
    """How many cases."""

    cases: int = 2000  # of each random kind
    gaps: tuple[float, ...] = tuple(
        10.0**-power for power in range(3, 17)
    )  # distances of the largest eigenvalue from 1
    boundary_cases: int = 200  # on either side, for each gap
    seed: int = 0  # of all cases

    def __post_init__(self) -> None:
        if self.cases < 1 or self.boundary_cases < 1:
            raise InputError("cases and boundary_cases must be at least 1")
        if not self.gaps or not all(1e-17 <= gap <= 0.5 for gap in self.gaps):
            raise InputError(f"gaps = {list(self.gaps)} must lie between 1e-17 and 0.5")


class Feasibility(Experiment[FeasibilitySettings]):
    """When a deletion is possible."""

    name = "feasibility"
    title = "Feasibility of exact downdates"
    question = (
        "Are the lemma's three conditions equivalent on random and adversarial cases, and who can "
        "tell near the boundary: float64, float32, or expunge with its error bounds?"
    )
    paper = (
        "The lemma \"Downdate feasibility\": H - U'U is positive definite exactly if I - U H⁻¹ U' "
        "is, and exactly if the largest eigenvalue of U H⁻¹ U' is below 1. Fall back when the "
        "Cholesky factorization fails or becomes ill-conditioned."
    )
    full = FeasibilitySettings()
    quick = FeasibilitySettings(cases=200, gaps=(1e-3, 1e-6, 1e-9, 1e-12, 1e-15), boundary_cases=20)

    def cells(self, settings: FeasibilitySettings) -> list[Cell]:
        """One for each random kind, one for each gap."""
        cells = []
        for kind in KINDS:
            key: dict[str, Any] = {
                "part": "lemma",
                "kind": kind,
                "cases": settings.cases,
                "seed": settings.seed,
            }
            cells.append(Cell(key, partial(_lemma, key)))
        for gap in settings.gaps:
            key = {
                "part": "boundary",
                "gap": gap,
                "cases": settings.boundary_cases,
                "seed": settings.seed,
            }
            cells.append(Cell(key, partial(_boundary, key)))
        return cells

    def tables(self, _: FeasibilitySettings, results: Results) -> list[Table]:
        """The lemma; the boundary."""
        lemma, boundary = results.where(part="lemma"), results.where(part="boundary")
        return [*lemma.table(_lemma_table), *boundary.table(_boundary_table)]

    def drawings(self, _: FeasibilitySettings, results: Results) -> list[Drawing]:
        """Wrong and undecided answers against the gap."""
        boundary = results.where(part="boundary")
        if not boundary:
            return []
        caption = (
            "How often each judge is wrong (left) or leaves the case open (right) against the "
            "distance of the largest eigenvalue of U H⁻¹ U' from 1, on either side. What expunge "
            "leaves open is decided by a factorisation with a proof, or refused."
        )
        return [Drawing("feasibility", caption, partial(_draw, boundary))]

    def findings(self, _: FeasibilitySettings, results: Results) -> list[Finding]:
        """Whether the lemma held, and who was wrong."""
        lemma, boundary = results.where(part="lemma"), results.where(part="boundary")
        findings = []
        if lemma:
            total, agreed = (
                sum(done.result[name] for done in lemma) for name in ("cases", "agree")
            )
            findings.append(
                Finding(
                    f"The three conditions agree in {agreed:,} of {total:,} cases.", agreed == total
                )
            )
            valid = [done.result for done in lemma if done.key["kind"] == KINDS[0]]
            cases, feasible = (
                sum(result[name] for result in valid) for name in ("cases", "feasible")
            )
            if cases:
                text = (
                    f"A deletion of rows that were added is feasible in {feasible:,} of "
                    f"{cases:,} cases (gamma > 0)."
                )
                findings.append(Finding(text, feasible == cases))
        if boundary:
            wrong = {name: sum(_count(done, name, "wrong") for done in boundary) for name in JUDGES}
            total = sum(2 * done.key["cases"] for done in boundary)
            others = "; ".join(
                f"{JUDGES[name]}: {wrong[name]:,}" for name in JUDGES if name != "expunge"
            )
            agreed = sum(done.result["agree"] for done in boundary) == total
            text = (
                f"Near the boundary the conditions agree in all of {total:,} cases, and "
                "expunge is wrong in none of them."
            )
            findings.append(Finding(text, agreed and wrong["expunge"] == 0))
            findings.append(
                Finding(f"Wrong answers of arithmetic without bounds in the same cases: {others}.")
            )
        return findings


# -- the lemma -------------------------------------------------------------------------------------


def _lemma(key: Mapping[str, Any], _: Library, report: Report) -> Mapping[str, Any]:
    draw = np.random.default_rng([key["seed"], KINDS.index(key["kind"])])
    agree = feasible = 0
    for number in range(key["cases"]):
        if number % 200 == 0:
            report("cases", number, key["cases"])
        outcome = answer(*random_case(key["kind"], draw))
        agree += outcome.agree
        feasible += outcome.difference
    return {"cases": key["cases"], "agree": agree, "feasible": feasible}


def _lemma_table(results: Results) -> Table:
    columns = ("kind of case", "cases", "all three agree", "feasible")
    rows = [
        [
            done.key["kind"],
            f"{done.result['cases']:,}",
            f"{done.result['agree']:,}",
            f"{done.result['feasible']:,}",
        ]
        for done in results
    ]
    note = (
        "Integers throughout: (i) by the leading minors of H - U'U, (ii) by those of det(H) I - U "
        "adj(H) U', (iii) by the "
        "characteristic polynomial of U adj(H) U' and Descartes' rule of signs."
    )
    return Table("The lemma's three conditions", columns, rows, frozenset(columns[1:]), note)


# -- near the boundary -----------------------------------------------------------------------------


def _boundary(key: Mapping[str, Any], _: Library, report: Report) -> Mapping[str, Any]:
    counts = {
        side: {judge: dict.fromkeys(VERDICTS, 0) for judge in JUDGES}
        for side in ("feasible", "infeasible")
    }
    draw = np.random.default_rng([key["seed"], round(-1000 * math.log10(key["gap"]))])
    agree = 0
    for number in range(2 * key["cases"]):
        if number % 50 == 0:
            report("cases", number, 2 * key["cases"])
        case = boundary_case(key["gap"] if number % 2 else -key["gap"], draw)
        exact = answer(case.system, [case.row])
        truth = case.gap > 0
        agree += exact.agree and exact.difference == truth
        for judge, judgement in judged(case).items():
            verdict = (
                "undecided" if judgement is None else "right" if judgement == truth else "wrong"
            )
            counts["feasible" if truth else "infeasible"][judge][verdict] += 1
    return {"agree": agree, "counts": counts}


def judged(case: Boundary) -> dict[str, bool | None]:
    """What each judge says: feasible, not, or None for undecided."""
    judgements: dict[str, bool | None] = {}
    kinds: list[tuple[str, Any]] = [("float64", np.float64), ("float32", np.float32)]
    for name, kind in kinds:
        system: Any = np.ldexp(
            np.array(case.system, dtype=object).astype(np.float64), -2 * BITS
        ).astype(kind)
        row: Any = np.ldexp(np.array(case.row, dtype=np.float64), -BITS).astype(kind)
        judgements[f"{name}, (i)"] = _factors(system - np.outer(row, row))
        inner = linalg.cho_solve(linalg.cho_factor(system), row)
        judgements[f"{name}, (ii)"] = bool(kind(1) - kind((row * inner).sum(dtype=kind)) > 0)
    judgements["expunge"] = _by_expunge(case)
    return judgements


def _factors(matrix: NDArray[Any]) -> bool:
    try:
        linalg.cholesky(matrix)
    except linalg.LinAlgError:
        return False
    return True


def _by_expunge(case: Boundary) -> bool | None:
    """The product's own test, as the solvers call it, except that any proven bound above zero
    counts as feasible.
    """
    width = len(case.row)
    spec = Spec(
        dim=width,
        outputs=1,
        gamma=case.gamma,
        intercept=False,
        grid=Grid(digits=2, fraction_bits=BITS),
    )
    system = RidgeSystem(spec, _packed(case.system, int(case.gamma * 4**BITS)), once=True)
    row = np.ldexp(np.array([case.row], dtype=np.float64), -BITS)
    result = downdate(system, CholeskyFactor(system).solve, proven_floor(system), row, 0.0)
    return True if isinstance(result, float) else False if result is Downdate.IMPOSSIBLE else None


def _packed(system: Matrix, gamma: int) -> wide.Wide:
    """S = H - gamma I as the packed triangle of 128-bit integers that a ledger holds."""
    size = len(system)
    return wide.from_ints(
        [system[i][j] - gamma * (i == j) for i in range(size) for j in range(i, size)]
    )


def _count(done: Any, judge: str, verdict: str) -> int:
    return sum(
        int(done.result["counts"][side][judge][verdict]) for side in ("feasible", "infeasible")
    )


def _boundary_table(results: Results) -> Table:
    columns = ["distance from 1", "cases", *(f"{JUDGES[judge]}" for judge in JUDGES)]
    rows = []
    for done in results:
        texts = []
        for judge in JUDGES:
            wrong, undecided = (_count(done, judge, verdict) for verdict in ("wrong", "undecided"))
            texts.append(f"{wrong} wrong" + (f", {undecided} open" if judge == "expunge" else ""))
        rows.append([f"{done.key['gap']:.0e}", str(2 * done.key["cases"]), *texts])
    note = "Half of the cases on either side of the boundary; the rest of the answers are right."
    return Table("Near the boundary", columns, rows, frozenset(columns), note)


def _draw(results: Results) -> Figure:
    figure, axes = panels(2, sharey=True)
    gaps = [done.key["gap"] for done in results]
    colours = {"float64": BLUE, "float32": VERMILLION, "expunge": SKY}
    for panel, (verdict, title) in zip(
        axes, (("wrong", "Wrong"), ("undecided", "Left open")), strict=True
    ):
        for judge, label in JUDGES.items():
            shares = [_count(done, judge, verdict) / (2 * done.key["cases"]) for done in results]
            if verdict == "undecided" and judge != "expunge":
                continue
            dashes = ":" if "(ii)" in judge else "-"
            panel.plot(
                gaps,
                shares,
                label=label,
                color=colours[judge.split(",")[0]],
                linestyle=dashes,
                marker="o",
                ms=3,
            )
        panel.set(
            title=title, xlabel="distance of the largest eigenvalue from 1", ylabel="share of cases"
        )
        log_axis(panel, "x")
        panel.invert_xaxis()
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure
