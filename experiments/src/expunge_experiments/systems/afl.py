"""AFL: analytic federated learning by its absolute aggregation law. It adds, and cannot delete.

A client sends C = F'F + gamma I and its local head C^-1 F'Y. The server's aggregate of K
contributions is (sum C)^-1 sum(C W), which carries K gammas; taking them off again, (sum C - K
gamma I)^-1 sum(C W), gives ordinary least squares, not ridge. Where sum F'F is singular, least
squares has many solutions: that of least norm is taken, and `rank` tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import linalg
from scipy.linalg import lapack

from expunge_experiments.engine import MessageEngine, State, Worker
from expunge_experiments.message import Array, ArrayMessage
from expunge_experiments.pool import ClientSamples, Pool
from expunge_experiments.systems.linear import (
    Float,
    LinearSystem,
    RidgeSettings,
    gram_and_moment,
    packed,
    ridge,
    unpacked,
)


@dataclass(frozen=True)
class AflSettings(RidgeSettings):
    """gamma, which a client needs to solve for its local head, and which the server takes off
    again.
    """


class AflWorker(Worker):
    """Answers "add" with C and the local head of the samples that are added."""

    def __init__(
        self, client: int, samples: ClientSamples, *, settings: AflSettings, seed: int, classes: int
    ) -> None:
        super().__init__(client, samples)
        del seed  # nothing is drawn
        self._settings, self._classes = settings, classes

    def answer(self, message: ArrayMessage) -> ArrayMessage:
        """C in full, as its authors send it, and the head."""
        positions = np.searchsorted(self.samples.numbers, message.arrays["numbers"])
        gram, moment = gram_and_moment(
            self.samples.features[positions], self.samples.labels[positions], self._classes
        )
        head = ridge(gram, moment, self._settings.gamma)
        gram.flat[:: len(gram) + 1] += self._settings.gamma
        return ArrayMessage("contribution", {}, {"gram": _full(gram), "head": head})


class Afl(LinearSystem):
    """Ordinary least squares from one message of each client.

    Samples added later are a contribution of their own.
    """

    name = "afl"
    title = "AFL"
    supports = frozenset({"add"})

    def __init__(self, pool: Pool, engine: MessageEngine | None, settings: Any, seed: int) -> None:
        super().__init__(pool, engine, settings, seed)
        width = pool.dim + 1
        self._sum = np.zeros((width, width))  # of C
        self._product = np.zeros((width, pool.classes))  # of C W
        self._contributions = 0
        self.rank = 0  # of sum F'F

    def _train(self, numbers: Array) -> None:
        self._add(numbers)

    def _add(self, numbers: Array) -> None:
        for _, answer in self.tell("add", numbers):
            self._sum += answer.arrays["gram"]
            self._product += answer.arrays["gram"] @ answer.arrays["head"]
            self._contributions += 1
        self._solve()

    def _solve(self) -> None:
        plain = self._sum.copy()
        plain.flat[:: len(plain) + 1] -= self._contributions * self.settings.gamma
        self._weights, self.rank = least_squares(plain, self._product)

    def _state(self) -> State:
        return {
            "sum": packed(self._sum),
            "product": self._product,
            "contributions": np.array([self._contributions]),
        }

    def _restore(self, state: Mapping[str, Array]) -> None:
        self._sum, self._product = unpacked(state["sum"]), np.array(state["product"])
        self._contributions = int(state["contributions"][0])
        self._solve()


def least_squares(gram: Float, moment: Float) -> tuple[Float, int]:
    """The solution of least norm of `gram @ x = moment`, and the rank of the Gram.

    By Cholesky if its reciprocal condition is above width * 2^-52, else by eigenvectors, leaving
    out eigenvalues that are not above width * 2^-52 of the largest.
    """
    width = len(gram)
    tolerance = width * 2.0**-52
    routines: Any = lapack.get_lapack_funcs(("potrf", "pocon"), (gram,))
    potrf, pocon = routines
    factor, failed = potrf(gram, lower=0)
    if not failed and pocon(factor, np.abs(gram).sum(axis=0).max())[0] > tolerance:
        return np.asarray(linalg.cho_solve((factor, False), moment, check_finite=False)), width
    values, vectors = linalg.eigh(gram, check_finite=False)
    mask = values > tolerance * max(float(values[-1]), 0.0)
    basis = vectors[:, mask]
    return np.asarray(basis @ ((basis.T @ moment) / values[mask, None])), int(mask.sum())


def _full(upper: Float) -> Float:
    return np.asarray(np.triu(upper) + np.triu(upper, 1).T)
