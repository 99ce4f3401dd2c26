"""Retraining: the reference of the unlearning experiments.

Heads of what is retained, solved afresh from those samples alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from expunge import Head, Spec, Statistics, solve
from expunge.errors import InputError
from expunge.solvers.float64 import relative_deviation
from expunge_experiments.datasets.dataset import Dataset, Integers
from expunge_experiments.message import Array
from expunge_experiments.systems.base import System
from expunge_experiments.systems.linear import Float, gram_and_moment, ridge

EXACT = ("a_exact", "b_exact")
_ROOM_BITS = 52  # of a weight in float64, with one to spare for rounding up


@dataclass(frozen=True)
class Distance:
    """How far a system's head is from retraining on the retained samples.

    `equal`: whether it has the digest of the head that `expunge.solve` gives; None for systems that
    are not exact. `deviation` is the relative Frobenius one from central ridge in float64, as in
    the paper, and None where that is zero; `norm` is that of the system's own head.
    """

    equal: bool | None
    deviation: float | None
    norm: float

    def as_dict(self) -> dict[str, Any]:
        """For results."""
        return asdict(self)


@dataclass(frozen=True)
class Reference:
    """Retrained heads of one set of samples: central ridge in float64, and exact for systems that
    are.
    """

    weights: Float
    head: Head | None

    def distance(self, system: System) -> Distance:
        """From the system's head to these."""
        weights = system.weights
        if weights is None:
            raise InputError(
                f"{system.title} has no single head that could be compared with a retrained one"
            )
        equal = None if self.head is None else system.digest == self.head.digest
        deviation = relative_deviation(weights, self.weights) if self.weights.any() else None
        return Distance(equal, deviation, float(np.linalg.norm(weights)))


def finest(head: Head, statistics: Statistics) -> Head:
    """The exact head of the same statistics, published in the smallest steps that float64 has room
    for.

    A reference for heads in float64: from one published in steps of 2^-40, deviations below about
    1e-11 cannot be resolved.
    """
    most = int(np.frexp(np.abs(head.weights).max(initial=0.0))[1])
    return solve(statistics.under(head.spec.with_publication_bits(_ROOM_BITS - most)))


class Retraining:
    """Solves the heads of a stream. What was deleted has never been in them: nothing is subtracted.

    The last heads are remembered, since one stream is the same for every system.
    """

    def __init__(self) -> None:
        self._exact = _Memory()
        self._float = _Memory()

    def references(
        self, system: System, dataset: Dataset, pieces: Sequence[Integers]
    ) -> list[Reference] | None:
        """With `pieces` that go one after another: before the first has gone, after it, and so on
        until all have.

        `pieces` are disjoint; together they are all that is there in the beginning. Ridge is with
        the system's own gamma; None for systems that do not learn one ridge head.
        """
        if system.weights is None or not hasattr(system.settings, "gamma"):
            return None
        gamma = system.settings.gamma
        weights = self._float.recall(
            dataset, repr(gamma), pieces, lambda: _float_heads(dataset, gamma, pieces)
        )
        if system.name not in EXACT:
            return [Reference(float_head, None) for float_head in weights]
        spec: Spec = system.spec  # type: ignore[attr-defined]
        heads = self._exact.recall(
            dataset, spec.digest, pieces, lambda: _exact_heads(dataset, spec, pieces)
        )
        return [
            Reference(float_head, head) for float_head, head in zip(weights, heads, strict=True)
        ]


class _Memory:
    """Remembers the last thing that was made."""

    def __init__(self) -> None:
        self._key = ""
        self._made: list[Any] = []

    def recall(
        self, dataset: Dataset, name: str, pieces: Sequence[Integers], make: Callable[[], list[Any]]
    ) -> list[Any]:
        key = hashlib.sha256(name.encode())
        arrays: list[Array] = [dataset.train_features, dataset.train_labels, *pieces]
        for array in arrays:
            key.update(f"{array.dtype.str} {array.shape} ".encode())
            key.update(np.ascontiguousarray(array).data)
        if key.hexdigest() != self._key:
            self._made, self._key = make(), key.hexdigest()
        return self._made


def _exact_heads(dataset: Dataset, spec: Spec, pieces: Sequence[Integers]) -> list[Head]:
    """Built up from what goes last: each head's statistics are sums over samples that are
    retained.
    """
    retained = Statistics.zero(spec)
    heads = [solve(retained)]
    for piece in reversed(pieces):
        features, labels = dataset.train_features[piece], dataset.train_labels[piece]
        retained = retained + Statistics.of(spec, features, labels, lost_columns="accept")
        heads.append(solve(retained))
    return heads[::-1]


def _float_heads(dataset: Dataset, gamma: float, pieces: Sequence[Integers]) -> list[Float]:
    heads = []
    for gone in range(len(pieces) + 1):
        retained = np.sort(np.concatenate([np.empty(0, dtype=np.int64), *pieces[gone:]]))
        features, labels = dataset.train_features[retained], dataset.train_labels[retained]
        heads.append(ridge(*gram_and_moment(features, labels, dataset.classes), gamma))
    return heads
