"""Bounds in rational numbers where float64 is at its worst: a grid's largest features next to its
step, and sums that cancel.

The truth is exact throughout: the integers of `Statistics`, and rational arithmetic on the floats
of messages and ledgers.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from flint import fmpq, fmpq_mat
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from expunge import Grid, Spec, Statistics
from expunge.approximate import (
    METHODS,
    ApproximateHead,
    ApproximateLedger,
    Batch,
    Interval,
    bounds,
    compress,
)
from expunge.errors import InputError, NotAGramError
from expunge.exact import wide
from support.approximate import exact_gram, holds_exactly, is_positive_semidefinite, sums_of

Float = NDArray[np.float64]
SCALES = (-100, -60, 0, 35, 60, 100)


def rational(value: float) -> fmpq:
    return fmpq(*float(value).as_integer_ratio())


def matrix(array: Float) -> fmpq_mat:
    return fmpq_mat(*array.shape, [rational(value) for value in array.ravel()])


def identity(size: int) -> fmpq_mat:
    return fmpq_mat(
        size, size, [fmpq(int(row == column)) for row in range(size) for column in range(size)]
    )


def lies_within(error: fmpq_mat, below: float, above: float) -> bool:
    one = identity(error.nrows())
    return is_positive_semidefinite(error + rational(below) * one) and is_positive_semidefinite(
        rational(above) * one - error
    )


def squares(error: fmpq_mat) -> fmpq:
    return sum((value**2 for row in error.tolist() for value in row), fmpq(0))


def truth(statistics: Statistics) -> tuple[fmpq_mat, fmpq_mat]:
    """S and G from their integers."""
    spec = statistics.spec
    unit, other = fmpq(2) ** -spec.grid.fraction_bits, fmpq(2) ** -spec.label_grid.fraction_bits
    gram = fmpq_mat(spec.width, spec.width)
    places = zip(*np.triu_indices(spec.width), wide.to_ints(statistics.gram), strict=True)
    for row, column, value in places:
        gram[int(row), int(column)] = gram[int(column), int(row)] = fmpq(value) * unit**2
    moment = [fmpq(value) * unit * other for value in wide.to_ints(statistics.moment)]
    return gram, fmpq_mat(spec.width, spec.columns, moment)


def rows_of(spec: Spec, rng: np.random.Generator) -> Float:
    """None, one, few or many rows of the grid's largest values and its smallest, repeated, zero, or
    of every size between.
    """
    count = int(rng.choice([0, 1, 2, spec.dim, 3 * spec.dim + 1]))
    step, top = spec.grid.step, spec.grid.limit - spec.grid.step
    shape, kind = (count, spec.dim), int(rng.integers(5))
    sizes = np.exp(rng.uniform(np.log(step), np.log(top), size=shape))
    if kind == 1:
        sizes = np.where(rng.random(shape) < 0.5, top, step)
    elif kind == 2:
        sizes = np.where(np.arange(spec.dim) == 0, top, step) * np.ones(shape)
    elif kind == 3:
        sizes = np.zeros(shape)
    elif kind == 4 and count:
        sizes = np.repeat(sizes[:1], count, axis=0)
    return np.minimum(sizes, top) * rng.choice([-1.0, 1.0], size=shape)


def spec_of(rng: np.random.Generator) -> Spec:
    fraction = int(rng.choice(SCALES))
    gamma = (
        4.0**-fraction * 10.0 ** rng.uniform(0, 26)
        if rng.random() < 0.5
        else 10.0 ** rng.uniform(-6, 6)
    )
    return Spec(
        dim=int(rng.integers(1, 5)),
        outputs=2,
        grid=Grid(2, fraction),
        intercept=fraction in (0, 35),
        gamma=float(np.clip(gamma, 2.0**-100, 2.0**100)),
    )


def check(ledger: ApproximateLedger, head: ApproximateHead, statistics: Statistics) -> None:
    gram, moment = truth(statistics)
    upper = np.triu(sums_of(ledger).gram)
    approximate, one = matrix(upper + np.triu(upper, 1).T), identity(len(upper))
    assert lies_within(gram - approximate, ledger.error.below, ledger.error.above)
    assert squares(moment - matrix(sums_of(ledger).moment)) <= rational(ledger.moment_error) ** 2
    systems = [system + rational(head.gamma) * one for system in (gram, approximate)]
    found = head.bounds
    assert is_positive_semidefinite(systems[1] - rational(found.floor) * one)
    missed = systems[0].solve(moment) - matrix(head.weights)
    assert squares(missed) <= rational(found.frobenius) ** 2
    inner = missed.transpose() * missed
    assert is_positive_semidefinite(rational(found.spectral) ** 2 * identity(inner.nrows()) - inner)
    apart = systems[0].inv() - systems[1].inv()
    assert lies_within(apart, found.inverse, found.inverse)
    if math.isfinite(found.paper_spectral):
        assert lies_within(apart, found.paper_inverse, found.paper_inverse)
        assert is_positive_semidefinite(
            rational(found.paper_spectral) ** 2 * identity(inner.nrows()) - inner
        )


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1))
def test_bounds_of_streams_hold_in_rational_numbers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    spec = spec_of(rng)
    ledger, total, since = ApproximateLedger(spec), Statistics.zero(spec), Statistics.zero(spec)
    retained: list[tuple[Float, Float]] = []
    for _ in range(8):
        deletes = bool(retained) and rng.random() < 0.5
        samples = (
            retained[-1]
            if deletes
            else (rows := rows_of(spec, rng), rng.normal(size=(len(rows), 2)))
        )
        batch, rank = Batch.of(spec, *samples), int(rng.integers(1, 7))
        precision = (
            "float64"
            if abs(spec.grid.fraction_bits) > 60
            else ("float32", "float64")[int(rng.integers(2))]
        )
        message = compress(
            batch, list(METHODS)[int(rng.integers(5))], rank, seed=seed, precision=precision
        )
        assert holds_exactly(batch, message)
        try:
            (ledger.delete if deletes else ledger.add)(message)
        except NotAGramError:
            continue
        change = Statistics.of(spec, *samples, lost_columns="accept")
        total, since = (
            (total - change, since - change) if deletes else (total + change, since + change)
        )
        retained = retained[:-1] if deletes else [*retained, samples]
        if rng.random() < 0.2:
            ledger.reset([since])
            since = Statistics.zero(spec)
        try:
            head = ledger.head()
        except NotAGramError:  # gamma is below what float64 can prove at this scale
            continue
        check(ledger, head, total)


@pytest.mark.parametrize("scale", [-560, -530, -300, 0, 300])
def test_proofs_hold_where_squares_vanish(scale: int) -> None:
    """Frobenius norms are sums of squares, and squares of numbers below 2^-537 are zero in
    float64.
    """
    rng = np.random.default_rng(7)
    array = np.ldexp(rng.normal(size=(4, 4)), scale)
    whole = matrix(np.triu(array) + np.triu(array, 1).T)
    assert squares(whole) <= rational(bounds.frobenius(array)) ** 2
    factor = np.ldexp(rng.normal(size=(2, 4)), scale // 2)
    found = bounds.residual_enclosure(np.zeros((1, 4)), factor, 0.0)
    assert lies_within(-exact_gram(factor), found.below, found.above)


@settings(max_examples=50)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 6),
    columns=st.integers(1, 5),
    scale=st.integers(-250, 250),
)
def test_spectral_norms_are_proven(seed: int, rows: int, columns: int, scale: int) -> None:
    rng = np.random.default_rng(seed)
    array = np.ldexp(
        rng.normal(size=(rows, columns)) * 10.0 ** rng.uniform(-12, 0, size=columns), scale
    )
    found = bounds.spectral(array)
    assert is_positive_semidefinite(rational(found) ** 2 * identity(columns) - exact_gram(array))
    assert found <= 1.01 * float(np.linalg.norm(array, 2)) + 2.0**-249
    assert bounds.spectral(np.zeros((rows, columns))) == 0.0


@pytest.mark.parametrize("size", [1e-250, 1.0, 1e160, 1e290])
def test_formulas_neither_overflow_nor_vanish(size: float) -> None:
    """In units where everything is as large as `size`, the bounds are those at 1, scaled."""
    norms = bounds.Norms(3.0, 5.0 * size, 0.0, 0.0)
    error = Interval(size / 4, 3 * size)
    plain = bounds.Norms(3.0, 5.0, 0.0, 0.0)
    assert bounds.inverse_bound(error, size, size) * size == pytest.approx(
        bounds.inverse_bound(Interval(0.25, 3.0), 1.0, 1.0)
    )
    assert bounds.paper_inverse(Interval(0.0, size / 2), size) * size == pytest.approx(1.0)
    expected = bounds.weights_bound(Interval(0.25, 3.0), 1.0, 1.0, plain)
    assert bounds.weights_bound(error, size, size, norms) == pytest.approx(expected)


def test_a_factor_beyond_float32_is_refused_and_fits_float64() -> None:
    spec = Spec(dim=2, outputs=1, intercept=False, grid=Grid(2, -100))
    batch = Batch.of(spec, np.full((2, 2), 2.0**140), np.ones((2, 1)))
    with pytest.raises(InputError, match="float64"):
        compress(batch, "truncated", 2)
    assert holds_exactly(batch, compress(batch, "truncated", 2, precision="float64"))
    tiny = Batch.of(
        Spec(dim=2, outputs=1, intercept=False, grid=Grid(2, 100)),
        np.full((2, 2), 2.0**-100),
        np.ones((2, 1)),
    )
    assert holds_exactly(tiny, compress(tiny, "gaussian", 2))
