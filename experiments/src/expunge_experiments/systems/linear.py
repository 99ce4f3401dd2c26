"""What linear systems share: features with their constant column, labels as targets, predictions,
gamma, and ridge itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import linalg
from scipy.linalg import blas

from expunge.errors import InputError, NotAGramError
from expunge_experiments.engine import MessageEngine
from expunge_experiments.message import Array
from expunge_experiments.pool import Pool
from expunge_experiments.systems.base import System

Float = NDArray[np.float64]
_BLOCK = 4096  # rows that are in float64 at a time


@dataclass(frozen=True)
class RidgeSettings:
    """gamma, the weight of the penalty."""

    gamma: float = 1.0

    def __post_init__(self) -> None:
        require_positive(self, "gamma")


def require_positive(settings: Any, *names: str) -> None:
    """Refuse settings of which one of these is not positive and finite."""
    for name in names:
        value = getattr(settings, name)
        if not (math.isfinite(value) and value > 0):
            raise InputError(f"{name} must be positive and finite, and is {value!r}")


class LinearSystem(System):
    """A system with one head, which is zero before it is trained; it predicts the label of the
    largest score.
    """

    dtype: ClassVar[Any] = np.float64

    def __init__(self, pool: Pool, engine: MessageEngine | None, settings: Any, seed: int) -> None:
        super().__init__(pool, engine, settings, seed)
        self._weights: Array = np.zeros((pool.dim + 1, pool.classes), dtype=self.dtype)

    @property
    def weights(self) -> Array:
        """The head, its last row the intercept."""
        return self._weights

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.int64]:
        """The label of the largest score of each row, the first of equals."""
        scores = (
            features.astype(self.weights.dtype, copy=False) @ self.weights[:-1] + self.weights[-1]
        )
        return np.asarray(scores.argmax(axis=1), dtype=np.int64)


def augmented(features: Array, dtype: Any = np.float64) -> Array:
    """Features with a constant column of ones after the others."""
    made = np.empty((len(features), features.shape[1] + 1), dtype=dtype)
    made[:, :-1] = features
    made[:, -1] = 1
    return made


def one_hot(labels: Array, classes: int) -> Float:
    """Labels as targets: 1 in the column of the label, 0 elsewhere."""
    made = np.zeros((len(labels), classes))
    made[np.arange(len(labels)), labels] = 1
    return made


def gram_and_moment(features: Array, labels: Array, classes: int) -> tuple[Float, Float]:
    """F'F (of which only the upper triangle is meaningful) and F'Y in float64, where F has the
    constant column.
    """
    width = features.shape[1] + 1
    lower: Any = np.zeros(
        (width, width), order="F"
    )  # what is lower here is upper in its transpose, which is row-major
    moment = np.zeros((width, classes))
    for start in range(0, len(features), _BLOCK):
        rows = augmented(features[start : start + _BLOCK])
        lower = blas.dsyrk(1.0, rows.T, beta=1.0, c=lower, lower=1, overwrite_c=1)
        moment += blas.dgemm(1.0, rows.T, one_hot(labels[start : start + _BLOCK], classes))
    return lower.T, moment


def packed(matrix: Array) -> Array:
    """The upper triangle of a symmetric matrix, row after row: what of it must be kept."""
    return np.asarray(matrix[np.triu_indices(len(matrix))])


def unpacked(triangle: Array) -> Array:
    """The symmetric matrix, both triangles of it, of which `packed` gave this one."""
    width = (math.isqrt(8 * len(triangle) + 1) - 1) // 2
    made = np.zeros((width, width), dtype=triangle.dtype)
    rows, columns = np.triu_indices(width)
    made[rows, columns] = triangle
    made[columns, rows] = triangle
    return made


def ridge(gram: Float, moment: Float, gamma: float) -> Float:
    """(S + gamma I)^-1 G by Cholesky, from the upper triangle of S."""
    shifted = gram.copy()
    shifted.flat[:: len(gram) + 1] += gamma
    try:
        factor = linalg.cho_factor(shifted, overwrite_a=True, check_finite=False)
    except linalg.LinAlgError as problem:
        raise NotAGramError(
            f"S + gamma I is not positive definite in float64 at gamma = {gamma:g}: {problem}. "
            "Use a larger gamma"
        ) from problem
    return np.asarray(linalg.cho_solve(factor, moment, check_finite=False))
