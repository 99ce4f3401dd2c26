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
from expunge.ridge.encoding import finite_blocks
from expunge.ridge.spec import Spec

Float = NDArray[np.float64]


def scores_of(spec: Spec, weights: Float, features: Any) -> Float:
    """features @ weights plus the intercept, shape (n, columns)."""
    blocks = [block @ weights[: spec.dim] for block in finite_blocks(spec, features)]
    scores: Float = np.concatenate([np.empty((0, spec.columns)), *blocks])
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
    """How a head was reached; it depends on the path and is outside the digest.

    Attributes
    ----------
    method : str
        "retrain" (from `solve`), "cholesky" or "woodbury".
    condition : float
        About the trace of H = S + gamma I over its proven smallest eigenvalue, which is above the
        condition number.
    contraction : float
        The worst factor by which a refinement step shrank the residual; 0 for a head that was moved
        row by row.
    refinement_steps : int
        Corrections that were applied exactly, for this head; 1 for a head that was moved row by
        row, and had to be corrected because a weight was undecided.
    digits : int
        Digits of corrections that were multiplied exactly, for this head.
    factorisations : int
        Factors made from the ledger since the solver began.
    resets : int
        Factors or inverses given up for numerical reasons since the solver began.

    See Also
    --------
    Head : has one as `diagnostics`.

    Examples
    --------
    >>> import expunge
    >>> spec = expunge.Spec(dim=1, outputs=1)
    >>> head = expunge.solve(expunge.Statistics.of(spec, [[1.0], [2.0]], [3.0, 5.0]))
    >>> head.diagnostics.method, head.diagnostics.factorisations, head.diagnostics.resets
    ('retrain', 1, 0)
    >>> head.diagnostics.contraction < 1e-9
    True
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
    """The published ridge weights: the exact solution, correctly rounded to the publication grid.

    `digest` is a function of the spec and of the retained samples' integers alone. Heads are equal
    where their digests are, and immutable. `solve` and the solvers make them.

    Attributes
    ----------
    spec : Spec
        What the head was solved under.
    integers : int64 ndarray of shape (width, columns)
        The weights in units of 2^-publication_bits; read-only.
    error_bound : float
        A proven bound on the Frobenius distance between the refined solution, before it was
        rounded, and the exact one. Infinite for a federation that computes in float64.
    diagnostics : Diagnostics, optional
        How the head was reached; None if it was loaded.

    Raises
    ------
    FormatError
        If the integers do not have the shape that the spec asks for.

    See Also
    --------
    solve : from statistics to a head.
    expunge.export : heads as files.

    Notes
    -----
    The digest covers the spec's data, labels and head digests and `integers`; `error_bound` and
    `diagnostics` depend on the path and are outside it. Every published weight is within
    2^-(publication_bits + 1) of the exact one.

    Examples
    --------
    >>> import expunge
    >>> spec = expunge.Spec(dim=2, labels=("cat", "dog"), gamma=0.5)
    >>> features = [[0.0, 1.0], [1.0, 0.5], [3.0, 2.0], [4.0, 2.5]]
    >>> statistics = expunge.Statistics.of(spec, features, ["cat", "cat", "dog", "dog"])
    >>> head = expunge.solve(statistics)
    >>> head
    <Head 3 x 2, gamma=0.5, digest 9e250c9b1e541fa1…>
    >>> head.predict([[0.5, 1.0], [3.5, 2.0]]).tolist()
    ['cat', 'dog']
    >>> expunge.WoodburySolver(spec, statistics).head() == head
    True
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
        """The weights as exact float64, of shape (width, columns); an intercept is the last row."""
        weights = np.ldexp(self.integers.astype(np.float64), -self.spec.publication_bits)
        weights.flags.writeable = False
        return weights

    @cached_property
    def digest(self) -> str:
        """SHA-256, in hexadecimal, of the spec's data, labels and head digests and the integers."""
        content = hashlib.sha256(_TAG)
        for digest in (self.spec.data_digest, self.spec.labels_digest, self.spec.head_digest):
            content.update(bytes.fromhex(digest))
        content.update(np.ascontiguousarray(self.integers, dtype="<i8").tobytes())
        return content.hexdigest()

    def scores(self, features: Any) -> Float:
        """The products of features and weights, plus the intercept, in ordinary float64 arithmetic.

        Parameters
        ----------
        features : array-like, table, tensor, sparse matrix or iterable of batches
            Shape (n, dim), real and finite; any form that `Statistics.of` takes. They are not put
            on the grid. Columns of a table go by position: a head has no names.

        Returns
        -------
        float64 ndarray of shape (n, columns)
            Their last bits may depend on BLAS.

        Raises
        ------
        ShapeError
            If the features have another shape, or are not real numbers.
        NotFiniteError
            If a feature is NaN or infinite.
        """
        return scores_of(self.spec, self.weights, features)

    def predict(self, features: Any) -> NDArray[Any]:
        """The label of the largest score, the first of equals; in regression the scores.

        Parameters
        ----------
        features : array-like, table, tensor, sparse matrix or iterable of batches
            Shape (n, dim), real and finite; any form that `Statistics.of` takes. They are not put
            on the grid. Columns of a table go by position: a head has no names.

        Returns
        -------
        ndarray
            Labels of shape (n,), or scores of shape (n, outputs).

        Raises
        ------
        ShapeError
            If the features have another shape, or are not real numbers.
        NotFiniteError
            If a feature is NaN or infinite.
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
