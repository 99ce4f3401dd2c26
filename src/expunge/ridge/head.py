"""Head: the immutable published ridge weights, with their digest.

What every kind of head predicts by is here too: scores and labels from weights, in ordinary float64
arithmetic (`scores_of`, `predictions_of`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.errors import FormatError
from expunge.ridge.encoding import finite_features
from expunge.ridge.spec import Spec

Float = NDArray[np.float64]


def scores_of(spec: Spec, weights: Float, features: Any) -> Float:
    """features @ weights plus the intercept, shape (n, columns)."""
    array = finite_features(spec, features).astype(np.float64, copy=False)
    scores: Float = array @ weights[: spec.dim]
    return scores + weights[-1] if spec.intercept else scores


def predictions_of(spec: Spec, weights: Float, features: Any) -> NDArray[Any]:
    """Labels of the largest scores (the first of equals), shape (n,); in regression the scores."""
    scores = scores_of(spec, weights, features)
    if spec.labels is None:
        return scores
    names: NDArray[Any] = np.asarray(spec.labels)
    return np.asarray(names[scores.argmax(axis=1)])


_TAG = b"expunge\x00head\x00\x01"


@dataclass(frozen=True)
class Diagnostics:
    """How a head was reached. Depends on the path, and is therefore outside the digest.

    `condition` is about the trace of H over its proven smallest eigenvalue, and so above its
    condition number; `contraction` is the worst factor by which a refinement step shrank the
    residual; `digits` counts the digits of the iterate that were multiplied exactly;
    `factorisations` and `resets` count fresh factors, and those forced by drift, since the solver
    began.
    """

    method: str
    condition: float
    contraction: float
    refinement_steps: int
    digits: int
    factorisations: int = 1
    resets: int = 0


@dataclass(frozen=True, eq=False)
class Head:
    """The correctly rounded exact ridge solution on the publication grid.

    Law: `digest` is a function of the spec and of the retained samples' integers alone. It covers
    the spec's data, labels and head digests and the integers weights * 2^publication_bits;
    `error_bound` and `diagnostics` are outside it.

    `error_bound` bounds the Frobenius distance of the refined solution, before it was rounded, to
    the exact one; every published weight is within 2^-(publication_bits + 1) of the exact one.
    """

    spec: Spec
    integers: NDArray[np.int64]
    error_bound: float
    diagnostics: Diagnostics | None = None

    def __post_init__(self) -> None:
        if self.integers.shape != (self.spec.width, self.spec.columns):
            raise FormatError(
                f"weights of shape {self.integers.shape} do not fit the spec, which asks for "
                f"({self.spec.width}, {self.spec.columns})"
            )
        self.integers.flags.writeable = False

    @cached_property
    def weights(self) -> Float:
        """The weights as float64, exactly; the last row is the intercept, if the spec has one."""
        weights = np.ldexp(self.integers.astype(np.float64), -self.spec.publication_bits)
        weights.flags.writeable = False
        return weights

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the spec's data, labels and head digests, and the weights as `<i8`."""
        content = hashlib.sha256(_TAG)
        for digest in (self.spec.data_digest, self.spec.labels_digest, self.spec.head_digest):
            content.update(bytes.fromhex(digest))
        content.update(np.ascontiguousarray(self.integers, dtype="<i8").tobytes())
        return content.hexdigest()

    def scores(self, features: Any) -> Float:
        """features @ weights plus the intercept, shape (n, columns); ordinary float64
        arithmetic.
        """
        return scores_of(self.spec, self.weights, features)

    def predict(self, features: Any) -> NDArray[Any]:
        """For classification the label of the largest score (the first of equals), shape (n,); for
        regression the scores.
        """
        return predictions_of(self.spec, self.weights, features)

    def __reduce__(self) -> tuple[Any, ...]:
        return Head, (self.spec, self.integers, self.error_bound, self.diagnostics)

    def __eq__(self, other: object) -> bool:
        return self.digest == other.digest if isinstance(other, Head) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return (
            f"<Head {self.spec.width} x {self.spec.columns}, gamma={self.spec.gamma:g}, digest "
            f"{self.digest[:16]}…>"
        )
