"""feasibility: the downdate lemma's three conditions in integers, and what arithmetic that rounds makes of them near the edge."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from expunge import Grid, Spec
from expunge.errors import InputError
from expunge.exact import wide
from expunge.solvers.factor import CholeskyFactor, proven_floor
from expunge.solvers.feasibility import Downdate, downdate
from expunge.solvers.system import System
from expunge_experiments.figures import BLUE, SKY, VERMILLION, log_axis, panels
from expunge_experiments.runs.base import Cell, Drawing, Experiment, Finding, Report, Results, Table
from expunge_experiments.runs.feasibility_cases import BITS, KINDS, Boundary, answer, boundary_case, random_case
from expunge_experiments.runs.integers import Matrix

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from expunge_experiments.datasets.catalogue import Library

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
    gaps: tuple[float, ...] = tuple(10.0**-power for power in range(3, 17))  # distances of the largest eigenvalue from 1
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
        "Are the lemma's three conditions equivalent on random and adversarial cases, and who can tell near the boundary: "
        "float64, float32, or expunge with its error bounds?"
    )
    paper = (
        "The lemma \"Downdate feasibility\": H - U'U is positive definite exactly if I - U H⁻¹ U' is, and exactly if the largest "
        "eigenvalue of U H⁻¹ U' is below 1. Fall back when the Cholesky factorization fails or becomes ill-conditioned."
    )
    full = FeasibilitySettings()
    quick = FeasibilitySettings(cases=200, gaps=(1e-3, 1e-6, 1e-9, 1e-12, 1e-15), boundary_cases=20)

    def cells(self, settings: FeasibilitySettings) -> list[Cell]:
        """One for each random kind, one for each gap."""
        cells = []
        for kind in KINDS:
            key: dict[str, Any] = {"part": "lemma", "kind": kind, "cases": settings.cases, "seed": settings.seed}
            cells.append(Cell(key, partial(_lemma, key)))
        for gap in settings.gaps:
            key = {"part": "boundary", "gap": gap, "cases": settings.boundary_cases, "seed": settings.seed}
            cells.append(Cell(key, partial(_boundary, key)))
        return cells

    def tables(self, settings: FeasibilitySettings, results: Results) -> list[Table]:  # noqa: ARG002
        """The lemma; the boundary."""
        lemma, boundary = results.where(part="lemma"), results.where(part="boundary")
        return [*([_lemma_table(lemma)] if lemma else []), *([_boundary_table(boundary)] if boundary else [])]

    def drawings(self, settings: FeasibilitySettings, results: Results) -> list[Drawing]:  # noqa: ARG002
        """Wrong and undecided answers against the gap."""
        boundary = results.where(part="boundary")
        if not boundary:
            return []
        caption = (
            "How often each judge is wrong (left) or leaves the case open (right) against the distance of the largest eigenvalue "
            "of U H⁻¹ U' from 1, on either side. What expunge leaves open is decided by a factorisation with a proof, or refused."
        )
        return [Drawing("feasibility", caption, partial(_draw, boundary))]

    def findings(self, settings: FeasibilitySettings, results: Results) -> list[Finding]:  # noqa: ARG002
        """Whether the lemma held, and who was wrong."""
        lemma, boundary = results.where(part="lemma"), results.where(part="boundary")
        findings = []
        if lemma:
            total, agreed = (sum(one.result[name] for one in lemma) for name in ("cases", "agree"))
            findings.append(Finding(f"The three conditions agree in {agreed:,} of {total:,} cases.", agreed == total))
            valid = [one.result for one in lemma if one.key["kind"] == KINDS[0]]
            asked, feasible = (sum(one[name] for one in valid) for name in ("cases", "feasible"))
            if asked:
                text = f"A deletion of rows that were added is feasible in {feasible:,} of {asked:,} cases (gamma > 0)."
                findings.append(Finding(text, feasible == asked))
        if boundary:
            wrong = {name: sum(_count(one, name, "wrong") for one in boundary) for name in JUDGES}
            total = sum(2 * one.key["cases"] for one in boundary)
            others = "; ".join(f"{JUDGES[name]}: {wrong[name]:,}" for name in JUDGES if name != "expunge")
            agreed = sum(one.result["agree"] for one in boundary) == total
            text = f"Near the boundary the conditions agree in all of {total:,} cases, and expunge is wrong in none of them."
            findings.append(Finding(text, agreed and wrong["expunge"] == 0))
            findings.append(Finding(f"Wrong answers of arithmetic without bounds in the same cases: {others}."))
        return findings


# -- the lemma ----------------------------------------------------------------------------------------------------------


def _lemma(key: Mapping[str, Any], library: Library, report: Report) -> Mapping[str, Any]:  # noqa: ARG001
    draw = np.random.default_rng([key["seed"], KINDS.index(key["kind"])])
    agree = feasible = 0
    for number in range(key["cases"]):
        if number % 200 == 0:
            report("cases", number, key["cases"])
        found = answer(*random_case(key["kind"], draw))
        agree += found.agree
        feasible += found.difference
    return {"cases": key["cases"], "agree": agree, "feasible": feasible}


def _lemma_table(results: Results) -> Table:
    columns = ("kind of case", "cases", "all three agree", "feasible")
    rows = [
        [one.key["kind"], f"{one.result['cases']:,}", f"{one.result['agree']:,}", f"{one.result['feasible']:,}"]
        for one in results
    ]
    note = (
        "Integers throughout: (i) by the leading minors of H - U'U, (ii) by those of det(H) I - U adj(H) U', (iii) by the "
        "characteristic polynomial of U adj(H) U' and Descartes' rule of signs."
    )
    return Table("The lemma's three conditions", columns, rows, frozenset(columns[1:]), note)


# -- near the boundary --------------------------------------------------------------------------------------------------


def _boundary(key: Mapping[str, Any], library: Library, report: Report) -> Mapping[str, Any]:  # noqa: ARG001
    counts = {side: {judge: dict.fromkeys(VERDICTS, 0) for judge in JUDGES} for side in ("feasible", "infeasible")}
    draw = np.random.default_rng([key["seed"], round(-1000 * math.log10(key["gap"]))])
    agree = 0
    for number in range(2 * key["cases"]):
        if number % 50 == 0:
            report("cases", number, 2 * key["cases"])
        case = boundary_case(key["gap"] if number % 2 else -key["gap"], draw)
        exact = answer(case.system, [case.row])
        truth = case.gap > 0
        agree += exact.agree and exact.difference == truth
        for judge, said in judged(case).items():
            verdict = "undecided" if said is None else "right" if said == truth else "wrong"
            counts["feasible" if truth else "infeasible"][judge][verdict] += 1
    return {"agree": agree, "counts": counts}


def judged(case: Boundary) -> dict[str, bool | None]:
    """What each judge says: feasible, not, or None for undecided."""
    said: dict[str, bool | None] = {}
    kinds: list[tuple[str, Any]] = [("float64", np.float64), ("float32", np.float32)]
    for name, kind in kinds:
        system: Any = np.ldexp(np.array(case.system, dtype=object).astype(np.float64), -2 * BITS).astype(kind)
        row: Any = np.ldexp(np.array(case.row, dtype=np.float64), -BITS).astype(kind)
        said[f"{name}, (i)"] = _factors(system - np.outer(row, row))
        inner = linalg.cho_solve(linalg.cho_factor(system), row)
        said[f"{name}, (ii)"] = bool(kind(1) - kind((row * inner).sum(dtype=kind)) > 0)
    said["expunge"] = _by_expunge(case)
    return said


def _factors(matrix: NDArray[Any]) -> bool:
    try:
        linalg.cholesky(matrix)
    except linalg.LinAlgError:
        return False
    return True


def _by_expunge(case: Boundary) -> bool | None:
    """The product's own test, as the solvers call it, except that any proven bound above zero counts as feasible."""
    width = len(case.row)
    spec = Spec(dim=width, outputs=1, gamma=case.gamma, intercept=False, grid=Grid(digits=2, fraction_bits=BITS))
    system = System(spec, _packed(case.system, int(case.gamma * 4**BITS)), once=True)
    row = np.ldexp(np.array([case.row], dtype=np.float64), -BITS)
    found = downdate(system, CholeskyFactor(system).solve, proven_floor(system), row, 0.0)
    return True if isinstance(found, float) else False if found is Downdate.IMPOSSIBLE else None


def _packed(system: Matrix, gamma: int) -> wide.Wide:
    """S = H - gamma I as the packed triangle of 128-bit integers that a ledger holds."""
    size = len(system)
    return wide.from_ints([system[i][j] - gamma * (i == j) for i in range(size) for j in range(i, size)])


def _count(done: Any, judge: str, verdict: str) -> int:
    return sum(int(done.result["counts"][side][judge][verdict]) for side in ("feasible", "infeasible"))


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
    for place, (verdict, title) in zip(axes, (("wrong", "Wrong"), ("undecided", "Left open")), strict=True):
        for judge, label in JUDGES.items():
            shares = [_count(done, judge, verdict) / (2 * done.key["cases"]) for done in results]
            if verdict == "undecided" and judge != "expunge":
                continue
            dashes = ":" if "(ii)" in judge else "-"
            place.plot(gaps, shares, label=label, color=colours[judge.split(",")[0]], linestyle=dashes, marker="o", ms=3)
        place.set(title=title, xlabel="distance of the largest eigenvalue from 1", ylabel="share of cases")
        log_axis(place, "x")
        place.invert_xaxis()
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure
