"""What the bound rests on: the residual is exact at all times, the float copy's error and the
eigenvalue's floor are proven.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from expunge import Grid, Spec, Statistics
from expunge.errors import NotAGramError, UndecidableTieError
from expunge.exact import wide
from expunge.ridge.encoding import Rows, Targets, integer_rows
from expunge.solvers.certify import Preconditioner, certified
from expunge.solvers.change import Change, trace_of
from expunge.solvers.factor import CholeskyFactor, proven_floor
from expunge.solvers.inverse import InfeasibleDowndateError, TrackedInverse
from expunge.solvers.refinement import Proposal, Refinement
from expunge.solvers.system import RidgeSystem
from support.oracle import (
    Exact,
    Matrix,
    Rational,
    gram_of,
    is_positive_semidefinite,
    moment_of,
    of_statistics,
)

Array = NDArray[Any]
Floats = NDArray[np.float64]


def rational(values: wide.Wide, unit: int) -> Rational:
    """A wide matrix as fractions, in units of 2^-unit."""
    flat, columns = wide.to_ints(values), values.shape[2]
    step = Fraction(2) ** -unit
    return [
        [value * step for value in flat[start : start + columns]]
        for start in range(0, len(flat), columns)
    ]


def exact_residual(spec: Spec, gram: Matrix, moment: Matrix, weights: Rational) -> Rational:
    """G - (S + gamma I) W in fractions."""
    features, labels = (
        Fraction(2) ** -spec.grid.fraction_bits,
        Fraction(2) ** -spec.label_grid.fraction_bits,
    )
    return [
        [
            moment[row][column] * features * labels
            - sum(
                gram[row][other] * features**2 * weights[other][column]
                for other in range(spec.width)
            )
            - spec.exact_gamma * weights[row][column]
            for column in range(spec.columns)
        ]
        for row in range(spec.width)
    ]


def require_exact_residual(refinement: Refinement, statistics: Statistics) -> None:
    """The one invariant of a refinement: R = G - H W, as integers."""
    weights = rational(refinement.iterate, refinement.bits)
    residual = rational(refinement.residual, refinement.system.unit(refinement.bits))
    assert residual == exact_residual(
        statistics.spec, gram_of(statistics), moment_of(statistics), weights
    )


def require_true_bounds(refinement: Refinement, proposal: Proposal, exact: Exact) -> None:
    """Each column of iterate + correction is within its bound of the exact solution."""
    iterate = rational(refinement.iterate, refinement.bits)
    refined = [
        [weight + Fraction(step) for weight, step in zip(row, steps, strict=True)]
        for row, steps in zip(iterate, proposal.correction.tolist(), strict=True)
    ]
    for column, bound in enumerate(proposal.bounds.tolist()):
        assert exact.distance(refined, column) <= Fraction(bound) ** 2


@st.composite
def samples(draw: st.DrawFn, least: int = 1) -> tuple[Spec, Array, Array]:
    """A spec and samples on its grid: sizes, grids and gamma of all kinds, but a system that the
    conditioning rule lets pass.
    """
    dim, columns, count = (
        draw(st.integers(1, 4)),
        draw(st.integers(1, 2)),
        draw(st.integers(least, 6)),
    )
    digits = draw(st.sampled_from([1, 2]))
    grid, label_grid = Grid(digits, draw(st.integers(-8, 30))), Grid(2, draw(st.integers(-8, 50)))
    size = draw(st.integers(1, grid.bits))
    entries = st.integers(-(1 << size) + 1, (1 << size) - 1)
    values = draw(st.lists(entries, min_size=count * dim, max_size=count * dim))
    targets = draw(
        st.lists(
            st.integers(-(1 << 30), 1 << 30), min_size=count * columns, max_size=count * columns
        )
    )
    trace = sum(value * value for value in values) * 2.0 ** (-2 * grid.fraction_bits) or 1.0
    gamma = (
        trace
        * 2.0 ** -draw(st.integers(-10, 42))
        * draw(st.sampled_from([1.0, 0.1, math.pi, 1 + 2.0**-52]))
    )
    gamma = min(max(gamma, 2.0**-100), 2.0**100)
    bits = draw(st.integers(-5, 60)) + label_grid.fraction_bits - grid.fraction_bits
    spec = Spec(
        dim=dim,
        outputs=columns,
        gamma=gamma,
        intercept=False,
        grid=grid,
        label_grid=label_grid,
        publication_bits=bits,
    )
    features = np.ldexp(np.array(values, dtype=np.float64).reshape(count, dim), -grid.fraction_bits)
    return (
        spec,
        features,
        np.ldexp(
            np.array(targets, dtype=np.float64).reshape(count, columns), -label_grid.fraction_bits
        ),
    )


# -- refinement ------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(samples(), st.floats(0.0, 0.4))
def test_the_residual_is_exact_and_the_bounds_are_true_at_every_step(
    drawn: tuple[Spec, Array, Array], noise: float
) -> None:
    """With a preconditioner that is up to 40 % wrong, as a stale one may be."""
    spec, features, targets = drawn
    statistics = Statistics.of(spec, features, targets)
    exact, system = of_statistics(statistics), RidgeSystem(spec, statistics.gram)
    factor, refinement = CholeskyFactor(system), Refinement(system, statistics.moment)
    require_exact_residual(refinement, statistics)
    for _ in range(4):
        proposal = refinement.propose(lambda right: factor.solve(right) * (1.0 - noise), spec.gamma)
        assert proposal.contraction <= noise + 0.1
        require_true_bounds(refinement, proposal, exact)
        refinement.apply(proposal)
        require_exact_residual(refinement, statistics)


@settings(max_examples=60)
@given(samples(least=3), st.data())
def test_the_residual_stays_exact_while_rows_come_and_go(
    drawn: tuple[Spec, Array, Array], data: st.DataObject
) -> None:
    spec, features, targets = drawn
    retained = [0, 1]
    first = Statistics.of(spec, features[:2], targets[:2], lost_columns="accept")
    system = RidgeSystem(spec, first.gram)
    refinement = Refinement(system, first.moment)
    for _ in range(4):
        refinement.apply(refinement.propose(CholeskyFactor(system).solve, spec.gamma))
        picked = data.draw(st.integers(0, len(features) - 1))
        sign = -1 if picked in retained and data.draw(st.booleans()) else 1
        change = Change(spec, integer_rows(spec, features[[picked]], targets[[picked]]))
        refinement.change(change.digits, change.targets, sign)
        system.change(change.digits, change.values, sign)
        (retained.append if sign > 0 else retained.remove)(picked)
        statistics = Statistics.of(spec, features[retained], targets[retained])
        require_exact_residual(refinement, statistics)
        require_true_float_copy(system, statistics)
        proposal = refinement.propose(CholeskyFactor(system).solve, spec.gamma)
        require_true_bounds(refinement, proposal, of_statistics(statistics))


def test_rounding_waits_until_the_bound_allows_it() -> None:
    """A weight close to a boundary is not rounded on a bound that reaches across it."""
    spec = Spec(dim=1, outputs=1, gamma=1.0, intercept=False, grid=Grid(2, 20), publication_bits=0)
    statistics = Statistics.of(spec, [[1.0]], [3.0 - 2.0**-30])  # W* = 1.5 - 2^-31
    refinement = Refinement(RidgeSystem(spec, statistics.gram), statistics.moment)
    factor = CholeskyFactor(refinement.system)
    refinement.apply(refinement.propose(factor.solve, 1.0))
    proposal = refinement.propose(factor.solve, 1.0)
    assert refinement.rounded(replace(proposal, bounds=np.array([2.0**-30]))) is None
    integers = refinement.rounded(replace(proposal, bounds=np.array([2.0**-32])))
    assert integers is not None
    assert integers.tolist() == [[1]]


@pytest.mark.parametrize("value", [-2.5, -1.5, -0.5, 0.5, 1.5, 2.5])
@pytest.mark.parametrize("side", [-1, 1])
def test_rounding_is_to_nearest_on_both_sides_of_zero(value: float, side: int) -> None:
    spec = Spec(dim=1, outputs=1, gamma=1.0, intercept=False, grid=Grid(2, 20), publication_bits=0)
    statistics = Statistics.of(spec, [[1.0]], [2.0 * value + side * 2.0**-34])
    refinement = Refinement(RidgeSystem(spec, statistics.gram), statistics.moment)
    factor = CholeskyFactor(refinement.system)
    integers = None
    while integers is None:
        proposal = refinement.propose(factor.solve, 1.0)
        integers = refinement.rounded(proposal)
        refinement.apply(proposal)
    assert integers.tolist() == [[math.floor(value) + (side > 0)]]


@pytest.mark.parametrize("bits", [0, 30])
def test_nothing_is_called_a_tie_before_the_bound_is_far_below_the_grid(bits: int) -> None:
    spec = Spec(dim=1, outputs=1, gamma=1.0, intercept=False, publication_bits=bits)
    statistics = Statistics.of(spec, [[1.0]], [2.0**-bits])  # W* lies exactly between 0 and 2^-bits
    refinement = Refinement(RidgeSystem(spec, statistics.gram), statistics.moment)
    factor = CholeskyFactor(refinement.system)
    refinement.apply(refinement.propose(factor.solve, 1.0))
    proposal = refinement.propose(factor.solve, 1.0)
    for more in (10, 60, 127):
        assert (
            refinement.rounded(replace(proposal, bounds=np.array([2.0 ** -(bits + more)]))) is None
        )
    with pytest.raises(UndecidableTieError):
        refinement.rounded(replace(proposal, bounds=np.array([2.0 ** -(bits + 129)])))


def test_a_stale_preconditioner_that_has_broken_down_is_made_anew() -> None:
    """NaN compares as neither slow nor fast: it must count as slow."""
    spec = Spec(dim=2, outputs=1, gamma=0.1)
    statistics = Statistics.of(spec, [[1.0, 2.0], [3.0, -1.0]], [1.0, 2.0])
    system = RidgeSystem(spec, statistics.gram)
    broken = Preconditioner(
        lambda right: np.full_like(right, np.nan),
        fresh=False,
        renew=lambda: CholeskyFactor(system).solve,
    )
    head, _ = certified(Refinement(system, statistics.moment), broken, spec.gamma)
    assert broken.renewals == 1
    np.testing.assert_array_equal(head.integers, of_statistics(statistics).integers)


# -- the system and its float copy -----------------------------------------------------------------


def require_true_float_copy(system: RidgeSystem, statistics: Statistics) -> None:
    """gram_error, entry_error and gram_norm bound what they say they bound."""
    unit = Fraction(4) ** -system.spec.grid.fraction_bits
    exact = [[value * unit for value in row] for row in gram_of(statistics)]
    width, squares, norm = system.spec.width, Fraction(0), Fraction(0)
    for row in range(width):
        for column in range(row, width):
            missed = abs(Fraction(float(system.gram[row, column])) - exact[row][column])
            assert missed <= Fraction(system.entry_error)
            squares += missed**2 * (1 if row == column else 2)
            norm += exact[row][column] ** 2 * (1 if row == column else 2)
    assert squares <= Fraction(system.gram_error) ** 2
    assert norm <= Fraction(system.gram_norm) ** 2


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 2**20)), min_size=1, max_size=5))
def test_the_error_of_the_float_copy_is_known_however_large_the_rows_that_came_and_went(
    sizes: list[tuple[int, int]],
) -> None:
    spec = Spec(dim=2, outputs=1, gamma=1.0, intercept=False, grid=Grid(2, 0))
    kept = Statistics.of(spec, [[3.0, 1.0], [-2.0, 5.0]], [1.0, 1.0])
    system = RidgeSystem(spec, kept.gram)
    for size, seed in sizes:
        row = np.random.default_rng(seed).uniform(-(2.0**size), 2.0**size, (1, 2))
        change = Change(spec, integer_rows(spec, row, [0.0]))
        for sign in (1, -1):
            system.change(change.digits, change.values, sign)
        require_true_float_copy(system, kept)


@settings(max_examples=60)
@given(samples(), st.lists(st.integers(-(2**40), 2**40), min_size=4, max_size=4))
def test_a_float_product_is_within_its_bound(
    drawn: tuple[Spec, Array, Array], vector: list[int]
) -> None:
    spec, features, targets = drawn
    statistics = Statistics.of(spec, features, targets)
    system = RidgeSystem(spec, statistics.gram)
    require_true_float_copy(system, statistics)
    right = np.array(vector[: spec.width], dtype=np.float64).reshape(-1, 1)
    unit = Fraction(4) ** -spec.grid.fraction_bits
    missed = Fraction(0)
    for row, values in enumerate(gram_of(statistics)):
        truth = sum(
            (value * unit * vector[index] for index, value in enumerate(values)),
            spec.exact_gamma * vector[row],
        )
        missed += (Fraction(float(system.multiply_float(right)[row, 0])) - truth) ** 2
    length = math.sqrt(sum(value * value for value in vector[: spec.width])) * (1 + 2.0**-50)
    assert missed <= Fraction(float(system.product_error(np.array(length)))) ** 2


@settings(max_examples=80)
@given(samples(), samples(), st.floats(0.0, 1.2))
def test_a_proven_floor_is_below_the_smallest_eigenvalue(
    kept: tuple[Spec, Array, Array], gone: tuple[Spec, Array, Array], share: float
) -> None:
    """Whatever is subtracted from S: if a floor is proven, H - floor I is positive semidefinite,
    shown by elimination.
    """
    spec, features, targets = kept
    integers = np.rint(np.ldexp(gone[1], gone[0].grid.fraction_bits))[:1]
    scale = share * math.sqrt(spec.gamma) / (float(np.square(integers).sum()) ** 0.5 or 1.0)
    row = np.resize(integers, (1, spec.dim)) * scale
    if float(np.abs(row).max()) >= spec.grid.limit / 2:
        return
    statistics = Statistics.of(spec, features, targets)
    statistics = statistics - Statistics.of(
        spec, row, np.zeros((1, spec.columns)), lost_columns="accept"
    )
    try:
        floor = proven_floor(RidgeSystem(spec, statistics.gram))
    except NotAGramError:
        assert not is_positive_semidefinite(gram_of(statistics))
        return
    assert 0.0 < floor <= spec.gamma
    unit = Fraction(4) ** -spec.grid.fraction_bits
    lowered = [[value * unit for value in line] for line in gram_of(statistics)]
    for index in range(spec.width):
        lowered[index][index] += spec.exact_gamma - Fraction(floor)
    assert is_positive_semidefinite(lowered)


def test_guard_bits_and_products_do_not_depend_on_how_rows_arrived() -> None:
    generator = np.random.default_rng(0)
    spec = Spec(dim=3, outputs=2, gamma=math.pi * 2.0**-30, intercept=False, grid=Grid(2, 10))
    features, targets = (
        generator.integers(-9, 9, (5, 3)).astype(float),
        generator.integers(-9, 9, (5, 2)).astype(float),
    )
    step = generator.integers(-(2**60), 2**60, (3, 2))
    late = RidgeSystem(spec, Statistics.of(spec, features[:1], targets[:1]).gram)
    for index in range(1, 5):
        change = Change(spec, integer_rows(spec, features[[index]], targets[[index]]))
        late.change(change.digits, change.values, 1)
    assert late.pending_rows == 4
    early = RidgeSystem(spec, Statistics.of(spec, features, targets).gram)
    products = []
    for system in (late, early):
        target = wide.zeros((3, 2), 5)
        system.subtract_product(target, step, 7)
        products.append(wide.to_ints(target))
    assert products[0] == products[1]
    assert any(products[0])


def test_the_trace_of_many_rows_does_not_overflow() -> None:
    """725 x 2900 integers -1: their low digits, taken by floor, are all 2^21 - 1, and the sum of
    their squares passes 2^63.
    """
    integers = np.full((725, 2900), -1.0)
    rows = Rows(integers, 1.0, Targets(np.zeros((725, 1)), np.zeros(0, dtype=np.int64)))
    assert trace_of(rows) == integers.size


@given(st.lists(st.integers(-(2**41) + 1, 2**41 - 1), min_size=1, max_size=9))
def test_the_trace_of_rows_is_their_sum_of_squares(values: list[int]) -> None:
    integers = np.array(values, dtype=np.float64).reshape(1, -1)
    rows = Rows(
        integers,
        float(np.abs(integers).max()),
        Targets(np.zeros((1, 1)), np.zeros(0, dtype=np.int64)),
    )
    assert trace_of(rows) == sum(value * value for value in values)


# -- the tracked inverse ---------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_tracked_inverse_follows_adds_and_deletes(count: int) -> None:
    generator = np.random.default_rng(count)
    rows = generator.standard_normal((count, 6))
    base = generator.standard_normal((9, 6))
    matrix = base.T @ base + np.eye(6)
    tracked = TrackedInverse(np.linalg.inv(matrix))
    for sign in (1, -1):
        matrix = matrix + sign * rows.T @ rows
        after = tracked.update(rows, sign)
        inverse = np.triu(tracked.upper) + np.triu(tracked.upper, 1).T
        np.testing.assert_allclose(inverse, np.linalg.inv(matrix), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(after, np.linalg.inv(matrix) @ rows.T, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("count", [1, 3])
def test_an_infeasible_downdate_changes_nothing(count: int) -> None:
    rows = np.full((count, 2), 10.0)
    tracked = TrackedInverse(np.eye(2))
    with pytest.raises(InfeasibleDowndateError):
        tracked.update(rows, -1)
    np.testing.assert_array_equal(np.triu(tracked.upper), np.eye(2))
