"""Samples for the tests of the posterior, and its formulas in exact rational arithmetic
(python-flint).
"""

from __future__ import annotations

from fractions import Fraction

import flint
import numpy as np
from hypothesis import strategies as st

import expunge

GAMMAS = [0.25, 1.0, 3.0, 0.1, 1e-3]


# -- exact oracles ---------------------------------------------------------------------------------


def rational(value: float | int) -> flint.fmpq:
    fraction = Fraction(value)
    return flint.fmpq(fraction.numerator, fraction.denominator)


def matrix(array) -> flint.fmpq_mat:
    array = np.asarray(array)
    return flint.fmpq_mat(
        array.shape[0], array.shape[1], [rational(value) for value in array.ravel().tolist()]
    )


def floats(exact: flint.fmpq_mat) -> np.ndarray:
    values = [Fraction(int(entry.p), int(entry.q)) for entry in exact.entries()]
    return np.array([float(value) for value in values]).reshape(exact.nrows(), exact.ncols())


def identity(size: int) -> flint.fmpq_mat:
    return matrix(np.eye(size, dtype=int))


def exact_system(features, targets, gamma):
    """H and G as rational matrices."""
    rows, labels = matrix(features), matrix(targets)
    return rows.transpose() * rows + rational(gamma) * identity(
        rows.ncols()
    ), rows.transpose() * labels


def trace(exact: flint.fmpq_mat) -> flint.fmpq:
    return sum((exact[index, index] for index in range(exact.nrows())), flint.fmpq(0))


def exact_kl(first, second, sigmas) -> float:
    """KL between MN(H^-1 G, sigma^2 H^-1, I) for two pairs (H, G), in 300-bit ball arithmetic."""
    (h1, g1), (h2, g2) = first, second
    variance1, variance2 = (rational(sigma) ** 2 for sigma in sigmas)
    width, columns = g1.nrows(), g1.ncols()
    ratio = h2 * h1.inv() * (variance1 / variance2)
    shift = h1.solve(g1) - h2.solve(g2)
    rest = columns * (trace(ratio) - width) + trace(shift.transpose() * h2 * shift) / variance2
    with flint.ctx.workprec(300):
        ball = flint.arb(rest) - columns * flint.arb(ratio.det()).log()
        return float(ball / 2)


def is_positive_semidefinite(exact: flint.fmpq_mat) -> bool:
    """By the signs of the characteristic polynomial's coefficients, which alternate exactly for
    such a matrix.
    """
    coefficients = exact.charpoly().coeffs()
    size = len(coefficients) - 1
    return all((-1) ** (size - power) * value >= 0 for power, value in enumerate(coefficients))


def exact_noise(spec, features, targets) -> float:
    system, moment = exact_system(features, targets, spec.gamma)
    rows = matrix(features)
    residuals = matrix(targets) - rows * system.solve(moment)
    freedom = len(features) - trace(rows.transpose() * rows * system.inv())
    squares = trace(residuals.transpose() * residuals) / (spec.columns * freedom)
    return float(Fraction(int(squares.p), int(squares.q))) ** 0.5


# -- small cases -----------------------------------------------------------------------------------


@st.composite
def cases(draw, least_rows=0, most_rows=6, largest=9):
    """A spec without intercept and integer samples: small enough for rational arithmetic."""
    width, columns = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    count = draw(st.integers(least_rows, most_rows))
    entries = st.integers(-largest, largest)
    features = np.array(
        draw(st.lists(entries, min_size=count * width, max_size=count * width)), dtype=float
    ).reshape(count, width)
    targets = np.array(
        draw(st.lists(entries, min_size=count * columns, max_size=count * columns)), dtype=float
    )
    spec = expunge.Spec(
        dim=width, outputs=columns, gamma=draw(st.sampled_from(GAMMAS)), intercept=False
    )
    return spec, features, targets.reshape(count, columns)


def of(spec, features, targets):
    return expunge.Statistics.of(spec, features, targets)


def example(rows=40, seed=0, *, gamma=0.5, sigma=0.3, intercept=True, **options):
    generator = np.random.default_rng(seed)
    spec = expunge.Spec(dim=4, outputs=2, gamma=gamma, intercept=intercept, **options)
    features = np.round(generator.standard_normal((rows, 4)), 4)
    features = np.ldexp(
        np.rint(np.ldexp(features, 20)), -20
    )  # on the grid, so that floats can stand in for integers
    weights = generator.standard_normal((4, 2))
    targets = features @ weights + sigma * generator.standard_normal((rows, 2)) + 0.5
    targets = np.ldexp(np.rint(np.ldexp(targets, 20)), -20)
    return spec, features, targets


def augmented(spec, features):
    return np.column_stack([features, np.ones(len(features))]) if spec.intercept else features
