"""ACIL and ACU, centralized, and the recursion that they share: T = (F'F + gamma I)^-1 and W follow
rows X.

Adding: T -= T X'(I + X T X')^-1 X T, then W += T X'(Y - X W). Deleting: T += T X'(I - X T X')^-1 X
T, then W += T X'(X W - Y). Neither keeps samples or their Gram, so rounding errors stay and grow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import lapack

from expunge.errors import SolveError
from expunge.solvers.inverse import InfeasibleDowndateError, TrackedInverse
from expunge_experiments.engine import MessageEngine, State
from expunge_experiments.message import Array
from expunge_experiments.pool import Pool
from expunge_experiments.systems.linear import (
    Float,
    LinearSystem,
    RidgeSettings,
    augmented,
    gram_and_moment,
    one_hot,
    packed,
    unpacked,
)


class Recursive(LinearSystem):
    """Trains in one solve; after that T and W follow rows, a block at a time, which is
    algebraically the same as all at once.

    With nothing retained, T = I / gamma and W = 0, exactly.
    """

    def __init__(self, pool: Pool, engine: MessageEngine | None, settings: Any, seed: int) -> None:
        super().__init__(pool, engine, settings, seed)
        self._block = max(
            16, (pool.dim + 1) // 4
        )  # rows at a time: more would cost more than they save
        self._begin()

    def _begin(self) -> None:
        self._inverse = TrackedInverse(np.eye(self.pool.dim + 1) / self.settings.gamma)
        self._weights = np.zeros_like(self._weights)

    def _train(self, numbers: Array) -> None:
        gram, moment = gram_and_moment(
            self.pool.features[numbers], self.pool.labels[numbers], self.pool.classes
        )
        self._inverse = TrackedInverse(_inverted(gram, self.settings.gamma))
        self._weights = self._inverse.solve(moment)

    def _follow(self, numbers: Array, sign: int) -> None:
        if not self.retained.any():
            self._begin()
            return
        for start in range(0, len(numbers), self._block):
            block = numbers[start : start + self._block]
            rows, targets = (
                augmented(self.pool.features[block]),
                one_hot(self.pool.labels[block], self.pool.classes),
            )
            try:
                columns = self._inverse.update(rows, sign)
            except InfeasibleDowndateError as problem:
                raise SolveError(
                    f"{self.title}: I - X T X' is not safely positive definite in float64, and "
                    "there is no Gram to start anew "
                    f"from. Use a gamma larger than {self.settings.gamma:g}"
                ) from problem
            self._weights = self._weights + sign * (columns @ (targets - rows @ self._weights))

    def _state(self) -> State:
        return {"inverse": packed(self._inverse.upper), "weights": self._weights}

    def _restore(self, state: Mapping[str, Array]) -> None:
        self._inverse = TrackedInverse(unpacked(state["inverse"]))
        self._weights = np.array(state["weights"])


def _inverted(gram: Float, gamma: float) -> Float:
    """(S + gamma I)^-1 by Cholesky; both are upper triangles."""
    shifted = gram.copy()
    shifted.flat[:: len(gram) + 1] += gamma
    routines: Any = lapack.get_lapack_funcs(("potrf", "potri"), (shifted,))
    potrf, potri = routines
    factor, failed = potrf(shifted.T, lower=1, overwrite_a=1)
    inverse, singular = potri(factor, lower=1, overwrite_c=1)
    if failed or singular:
        raise SolveError(
            f"S + gamma I is not positive definite in float64 at gamma = {gamma:g}: use a larger "
            "one"
        )
    return np.asarray(inverse.T)


# -- ACIL ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AcilSettings(RidgeSettings):
    """gamma."""


class Acil(Recursive):
    """R -= R X'(I + X R X')^-1 X R, then W += R X'(Y - X W), in float64."""

    name = "acil"
    title = "ACIL"
    supports = frozenset({"add"})

    def _add(self, numbers: Array) -> None:
        self._follow(numbers, 1)


# -- ACU -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AcuSettings(RidgeSettings):
    """gamma."""


class Acu(Recursive):
    """T += T F'(I - F T F')^-1 F T, then W += T F'(F W - Y), in float64.

    With nothing retained, the zero head.
    """

    name = "acu"
    title = "ACU"
    supports = frozenset({"delete", "delete_client"})

    def _delete(self, numbers: Array) -> None:
        self._follow(numbers, -1)
