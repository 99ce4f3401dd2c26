"""Batches of every awkward kind, and the truth about them in more precision than the code under
test has.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from flint import fmpq, fmpq_mat
from numpy.typing import NDArray

from expunge import Spec
from expunge.approximate import ApproximateLedger, ApproximateMessage, Batch

Long = NDArray[np.longdouble]


def spec_of(rng: np.random.Generator, dim: int | None = None) -> Spec:
    """A spec of random width and gamma; gammas range over six orders of magnitude."""
    return Spec(
        dim=int(rng.integers(1, 9)) if dim is None else dim,
        labels=(0, 1, 2),
        gamma=float(10.0 ** rng.uniform(-3, 3)),
        intercept=bool(rng.integers(2)),
    )


def batch_of(spec: Spec, rng: np.random.Generator, most: int = 13) -> Batch:
    """Ordinary rows, rows of low rank, columns of very different sizes, repeated rows, tiny rows,
    and no rows at all.
    """
    count = int(rng.integers(0, most + 1))
    kind = int(rng.integers(6))
    features = rng.normal(size=(count, spec.dim))
    if kind == 1:
        inner = int(rng.integers(1, 3))
        features = rng.normal(size=(count, inner)) @ rng.normal(size=(inner, spec.dim))
    elif kind == 2:
        features *= 10.0 ** rng.uniform(-8, 1, size=spec.dim)
    elif kind == 3 and count:
        features = features[rng.integers(max(1, count // 4), size=count)]
    elif kind == 4:
        features *= 10.0 ** rng.uniform(-8, 0)
    elif kind == 5:
        features *= 10.0 ** rng.uniform(-6, 1, size=(count, 1))
    return Batch.of(spec, np.clip(features, -60, 60), rng.integers(3, size=count))


def long_gram(rows: Any) -> Long:
    wide = np.asarray(rows).astype(np.longdouble)
    return np.asarray(np.einsum("ki,kj->ij", wide, wide))


def residual(batch: Batch, message: ApproximateMessage) -> Long:
    """F'F - U'U with eleven bits more than float64 has."""
    return long_gram(batch.features) - long_gram(message.factor)


def extremes(symmetric: Long) -> tuple[float, float]:
    """The smallest and the largest eigenvalue, to float64's precision of the matrix itself."""
    values = np.linalg.eigvalsh(symmetric.astype(np.float64))
    return float(values[0]), float(values[-1])


def exact_gram(rows: Any) -> fmpq_mat:
    """The Gram of float rows in rational numbers."""
    columns = rows.shape[1]
    entries = [fmpq(*float(value).as_integer_ratio()) for value in np.asarray(rows).ravel()]
    matrix = fmpq_mat(len(rows), columns, entries)
    return matrix.transpose() * matrix if len(rows) else fmpq_mat(columns, columns)


def is_positive_semidefinite(matrix: fmpq_mat) -> bool:
    """By symmetric elimination in rational numbers: no pivot is negative, and a zero pivot has
    zeros beside it.
    """
    size = matrix.nrows()
    rows = [[matrix[i, j] for j in range(size)] for i in range(size)]
    for k in range(size):
        pivot = rows[k][k]
        if pivot < 0 or (pivot == 0 and any(rows[k][j] != 0 for j in range(k + 1, size))):
            return False
        if pivot == 0:
            continue
        for i in range(k + 1, size):
            share = rows[i][k] / pivot
            for j in range(k + 1, size):
                rows[i][j] -= share * rows[k][j]
    return True


def holds_exactly(batch: Batch, message: ApproximateMessage) -> bool:
    """Whether -below I <= F'F - U'U <= above I, decided in rational numbers."""
    size = batch.spec.width
    error = exact_gram(batch.features) - exact_gram(message.factor)
    below, above = (
        fmpq(*value.as_integer_ratio()) for value in (message.error.below, message.error.above)
    )
    identity = fmpq_mat(size, size, [fmpq(int(i == j)) for i in range(size) for j in range(size)])
    return is_positive_semidefinite(error + below * identity) and is_positive_semidefinite(
        above * identity - error
    )


def exact_weights(gram: Long, moment: Long, gamma: float) -> Long:
    """(S + gamma I)^-1 G, refined until its residual is at the level of extended precision."""
    system = gram + np.longdouble(gamma) * np.eye(len(gram), dtype=np.longdouble)
    double = system.astype(np.float64)
    weights = np.zeros_like(moment)
    for _ in range(4):
        rest = moment - np.einsum("ij,jk->ik", system, weights)
        weights = weights + np.linalg.solve(double, rest.astype(np.float64)).astype(np.longdouble)
    return weights


def sums_of(ledger: ApproximateLedger) -> Any:
    """The floating-point sums that a ledger keeps to itself: `gram`, of which the upper triangle
    counts, and `moment`, with their errors.
    """
    return ledger._sums


def facts(ledger: ApproximateLedger) -> tuple[Any, ...]:
    """Everything about a ledger that a refused call must leave alone."""
    sums = sums_of(ledger)
    errors = sums.error, sums.moment_error
    counts = ledger.count, ledger.class_counts.tolist(), ledger.requests
    return sums.gram.tobytes(), sums.moment.tobytes(), errors, counts, repr(ledger.traffic)
