"""Both variants in ordinary floating point, as the paper runs them, for comparison.

Nothing here is exact: heads carry no digest and no certificate, only a measured deviation
(`relative_deviation`). A message is what a client would send: gram and moment (Variant A), or the R
factor of a thin QR with Q'Y (Variant B). From the latter the moment follows as R'(Q'Y), so that a
message has r * (dim + columns) numbers where the paper's has r * dim + dim * columns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge._lazy import public_dir
from expunge.errors import NotAGramError, SpecError
from expunge.exact.blas import scipy_blas, scipy_lapack, typed_routines
from expunge.ridge.encoding import checked_labels, finite_features
from expunge.ridge.spec import Spec
from expunge.solvers.inverse import InfeasibleDowndateError, TrackedInverse

__all__ = [
    "Factor",
    "FloatCholeskySolver",
    "FloatGram",
    "FloatWoodburySolver",
    "relative_deviation",
]
__dir__ = public_dir(__name__)

Array = NDArray[Any]


@dataclass(frozen=True)
class FloatGram:
    """The message of Variant A: F'F and F'Y of a batch, in float32 or float64.

    Attributes
    ----------
    gram : ndarray of shape (width, width)
        F'F, where F has a constant last column if the spec has an intercept.
    moment : ndarray of shape (width, columns)
        F'Y.

    Examples
    --------
    >>> from expunge import Spec
    >>> from expunge.solvers.float64 import FloatCholeskySolver
    >>> solver = FloatCholeskySolver(Spec(dim=2, labels=("cat", "dog"), intercept=False))
    >>> message = solver.message([[1.0, 0.5], [0.0, 1.0]], ["cat", "dog"])
    >>> message.gram.tolist()
    [[1.0, 0.5], [0.5, 1.25]]
    >>> message.moment.tolist()
    [[1.0, 0.0], [0.5, 1.0]]
    """

    gram: Array
    moment: Array


@dataclass(frozen=True)
class Factor:
    """The message of Variant B: R of the thin QR F = Q R, and Q'Y.

    R'R = F'F and R'(Q'Y) = F'Y up to rounding.

    Attributes
    ----------
    r : ndarray of shape (rank, width)
        R; the rank is at most the number of samples and the width. One sample is its own factor.
    coefficients : ndarray of shape (rank, columns)
        Q'Y.

    Examples
    --------
    >>> from expunge import Spec
    >>> from expunge.solvers.float64 import FloatWoodburySolver
    >>> solver = FloatWoodburySolver(Spec(dim=2, labels=("cat", "dog"), intercept=False))
    >>> message = solver.message([[1.0, 0.5]], ["cat"])
    >>> message.r.tolist(), message.moment.tolist()
    ([[1.0, 0.5]], [[1.0, 0.0], [0.5, 0.0]])
    """

    r: Array
    coefficients: Array

    @property
    def moment(self) -> Array:
        """F'Y, as the paper's message carries it."""
        return np.asarray(self.r.T @ self.coefficients)


class FloatSolver(ABC):
    """A ridge solver in float32 or float64 with the methods of the exact ones; `weights` instead of
    a certified head.
    """

    def __init__(self, spec: Spec, dtype: Any = np.float64) -> None:
        self.spec = spec
        self.dtype = np.dtype(dtype)
        if self.dtype not in (np.dtype(np.float32), np.dtype(np.float64)):
            raise SpecError(f"float solvers run in float32 or float64, not in {self.dtype}")
        # of which only the upper triangle is meaningful
        self.gram = np.zeros((spec.width, spec.width), dtype=self.dtype)
        self.moment = np.zeros((spec.width, spec.columns), dtype=self.dtype)

    def add(self, features: Any, labels: Any) -> None:
        """Add samples, as one client's message.

        Parameters
        ----------
        features : array-like of shape (n, dim)
            The features, in any form that `Statistics.of` takes; finite, and on no grid.
        labels : array-like
            Labels of the spec, class indices, or rows of real targets, shape (n, columns).

        Raises
        ------
        ShapeError, NotFiniteError, UnknownLabelError
            If the samples cannot be taken. Nothing was changed.
        """
        self._apply(*self._float_rows(features, labels), 1)

    def delete(self, features: Any, labels: Any) -> None:
        """Delete samples, as one client's message; whether they were added is not checked.

        Parameters
        ----------
        features : array-like of shape (n, dim)
            The features, in any form that `Statistics.of` takes; finite, and on no grid.
        labels : array-like
            Labels of the spec, class indices, or rows of real targets, shape (n, columns).

        Raises
        ------
        ShapeError, NotFiniteError, UnknownLabelError
            If the samples cannot be taken. Nothing was changed.
        """
        self._apply(*self._float_rows(features, labels), -1)

    @property
    @abstractmethod
    def weights(self) -> Array:
        """The head's weights in this arithmetic."""

    @abstractmethod
    def _apply(self, features: Array, targets: Array, sign: int) -> None:
        """Send and take in one message."""

    def _float_rows(self, features: Any, labels: Any) -> tuple[Array, Array]:
        """Features with the constant one, and targets, in this solver's arithmetic and on no
        grid.
        """
        array = finite_features(self.spec, features).astype(self.dtype)
        checked = checked_labels(self.spec, labels, len(array))
        if self.spec.intercept:
            array = np.concatenate([array, np.ones((len(array), 1), dtype=self.dtype)], axis=1)
        if checked.ndim == 2:
            return array, checked.astype(self.dtype)
        targets = np.zeros((len(array), self.spec.columns), dtype=self.dtype)
        targets[np.arange(len(array)), checked] = 1
        return array, targets

    def _solved(self, right: Array) -> Array:
        """(S + gamma I)^-1 @ right by Cholesky, from the accumulated gram."""
        from scipy import linalg  # noqa: PLC0415 - slow to load, and for servers alone

        shifted = self.gram.copy()
        shifted.flat[:: self.spec.width + 1] += self.dtype.type(self.spec.gamma)
        try:
            return np.asarray(
                linalg.cho_solve(
                    linalg.cho_factor(shifted, overwrite_a=True, check_finite=False), right
                )
            )
        except linalg.LinAlgError as problem:
            raise NotAGramError(
                f"S + gamma I is not positive definite in {self.dtype}: {problem}. Use float64, a "
                "larger gamma, or the exact solvers"
            ) from problem


class FloatCholeskySolver(FloatSolver):
    """Variant A in ordinary floating point: adds up gram messages and solves by Cholesky.

    Nothing here is exact: after deletions, `weights` equal those of retraining up to rounding.

    Parameters
    ----------
    spec : Spec
        What the head is solved under; its grids are not used.
    dtype : numpy.float32 or numpy.float64, default numpy.float64
        The arithmetic.

    Attributes
    ----------
    spec : Spec
        What the head is solved under.
    dtype : numpy.dtype
        The arithmetic.
    gram : ndarray of shape (width, width)
        The accumulated F'F.
    moment : ndarray of shape (width, columns)
        The accumulated F'Y.

    Raises
    ------
    SpecError
        If the arithmetic is another one.

    See Also
    --------
    expunge.CholeskySolver : the same methods, exact, with a certified head.

    Examples
    --------
    >>> from expunge import Spec
    >>> from expunge.solvers.float64 import FloatCholeskySolver, relative_deviation
    >>> spec = Spec(dim=2, labels=("cat", "dog"))
    >>> X, y = [[0.0, 1.0], [1.0, 0.5], [3.0, 2.0]], ["cat", "cat", "dog"]
    >>> unlearned, retrained = FloatCholeskySolver(spec), FloatCholeskySolver(spec)
    >>> unlearned.add(X, y)
    >>> unlearned.delete(X[:1], y[:1])
    >>> retrained.add(X[1:], y[1:])
    >>> relative_deviation(unlearned.weights, retrained.weights) < 1e-12
    True
    """

    def message(self, features: Any, labels: Any) -> FloatGram:
        """What a client sends for this batch.

        Parameters
        ----------
        features : array-like of shape (n, dim)
            The features, as for `add`.
        labels : array-like
            The labels, as for `add`.

        Returns
        -------
        FloatGram
            F'F and F'Y.

        Raises
        ------
        ShapeError, NotFiniteError, UnknownLabelError
            If the samples cannot be taken.
        """
        return _gram_message(*self._float_rows(features, labels))

    def apply(self, message: FloatGram, sign: int) -> None:
        """Take in a client's message.

        Parameters
        ----------
        message : FloatGram
            What `message` gave.
        sign : {1, -1}
            1 for an addition, -1 for a deletion.
        """
        self.gram += sign * message.gram
        self.moment += sign * message.moment

    @property
    def weights(self) -> Array:
        """The head's weights, (S + gamma I)^-1 G, from the accumulated sums.

        Raises
        ------
        NotAGramError
            If S + gamma I is not positive definite in this arithmetic.
        """
        return self._solved(self.moment)

    def _apply(self, features: Array, targets: Array, sign: int) -> None:
        self.apply(_gram_message(features, targets), sign)


class FloatWoodburySolver(FloatSolver):
    """Variant B in ordinary floating point: tracks inverse and head by Sherman-Morrison-Woodbury
    updates with clients' R factors.

    Nothing here is exact: after deletions, `weights` equal those of retraining up to rounding,
    which accumulates over the stream.

    Parameters
    ----------
    spec : Spec
        What the head is solved under; its grids are not used.
    dtype : numpy.float32 or numpy.float64, default numpy.float64
        The arithmetic.

    Attributes
    ----------
    spec : Spec
        What the head is solved under.
    dtype : numpy.dtype
        The arithmetic.
    gram : ndarray of shape (width, width)
        The accumulated F'F; only its upper triangle is meaningful.
    moment : ndarray of shape (width, columns)
        The accumulated F'Y.
    resets : int
        How often inverse and head were solved from the sums again, because a downdate was
        infeasible.

    Raises
    ------
    SpecError
        If the arithmetic is another one.

    See Also
    --------
    expunge.WoodburySolver : the same methods, exact, with a certified head.

    Notes
    -----
    The paper's algorithm keeps G and not S, which would make its own reset impossible; here both
    sums are kept.

    Examples
    --------
    >>> from expunge import Spec
    >>> from expunge.solvers.float64 import FloatWoodburySolver, relative_deviation
    >>> spec = Spec(dim=2, labels=("cat", "dog"))
    >>> X, y = [[0.0, 1.0], [1.0, 0.5], [3.0, 2.0]], ["cat", "cat", "dog"]
    >>> unlearned, retrained = FloatWoodburySolver(spec), FloatWoodburySolver(spec)
    >>> unlearned.add(X, y)
    >>> unlearned.delete(X[:1], y[:1])
    >>> retrained.add(X[1:], y[1:])
    >>> relative_deviation(unlearned.weights, retrained.weights) < 1e-12
    True
    """

    def __init__(self, spec: Spec, dtype: Any = np.float64) -> None:
        super().__init__(spec, dtype)
        self._inverse = TrackedInverse(
            np.eye(spec.width, dtype=self.dtype) / self.dtype.type(spec.gamma)
        )
        self._weights = np.zeros((spec.width, spec.columns), dtype=self.dtype)
        self._gemm, self._syrk = typed_routines(scipy_blas, ("gemm", "syrk"), self.dtype)
        self.resets = 0

    def message(self, features: Any, labels: Any) -> Factor:
        """What a client sends for this batch.

        Parameters
        ----------
        features : array-like of shape (n, dim)
            The features, as for `add`.
        labels : array-like
            The labels, as for `add`.

        Returns
        -------
        Factor
            R and Q'Y.

        Raises
        ------
        ShapeError, NotFiniteError, UnknownLabelError
            If the samples cannot be taken.
        """
        return _factor_message(*self._float_rows(features, labels))

    def apply(self, message: Factor, sign: int) -> None:
        """Take in a client's message.

        Parameters
        ----------
        message : Factor
            What `message` gave.
        sign : {1, -1}
            1 for an addition, -1 for a deletion.

        Raises
        ------
        NotAGramError
            If S + gamma I would not be positive definite in this arithmetic. Nothing was changed,
            but for rounding.
        """
        if not len(message.r):
            return
        self._accumulate(message, sign)
        try:
            columns = self._inverse.update(message.r, sign)
        except InfeasibleDowndateError:
            try:
                self.reset()
            except NotAGramError:
                self._accumulate(message, -sign)
                raise
            return
        error = message.coefficients - self._gemm(1.0, message.r, self._weights)
        self._weights += sign * self._gemm(1.0, columns, error)

    def _accumulate(self, message: Factor, sign: int) -> None:
        rows = np.asfortranarray(message.r.T)
        self.gram = self._syrk(sign, rows, beta=1.0, c=self.gram.T, lower=1, overwrite_c=1).T
        self.moment += sign * self._gemm(1.0, message.r, message.coefficients, trans_a=1)

    def reset(self) -> None:
        """Solve inverse and head from the accumulated sums, as Variant A would.

        Raises
        ------
        NotAGramError
            If S + gamma I is not positive definite in this arithmetic.
        """
        identity = np.eye(self.spec.width, dtype=self.dtype)
        inverse, weights = self._solved(identity), self._solved(self.moment)
        self._inverse, self._weights = TrackedInverse(inverse), weights
        self.resets += 1

    @property
    def weights(self) -> Array:
        """The tracked head."""
        return self._weights

    @property
    def inverse(self) -> Array:
        """The tracked inverse of S + gamma I, both triangles of it, as a copy."""
        upper = np.triu(self._inverse.upper)
        return upper + np.triu(upper, 1).T

    def _apply(self, features: Array, targets: Array, sign: int) -> None:
        self.apply(_factor_message(features, targets), sign)


def _gram_message(features: Array, targets: Array) -> FloatGram:
    return FloatGram(features.T @ features, features.T @ targets)


def _factor_message(features: Array, targets: Array) -> Factor:
    """R and Q'Y by Householder reflections; one row is its own factor, and none are none."""
    if len(features) <= 1:
        return Factor(features, targets)
    geqrf, ormqr = typed_routines(scipy_lapack, ("geqrf", "ormqr"), features.dtype)
    rank = min(features.shape)
    reflections, scales, _, _ = geqrf(features)
    work = max(1, 64 * targets.shape[1])
    rotated, _, _ = ormqr("L", "T", reflections[:, :rank], scales, targets, work)
    return Factor(
        np.ascontiguousarray(np.triu(reflections[:rank])), np.ascontiguousarray(rotated[:rank])
    )


def relative_deviation(weights: Array, reference: Array) -> float:
    """||weights - reference||_F / ||reference||_F, in float64.

    Parameters
    ----------
    weights : ndarray
        The weights that are judged.
    reference : ndarray of the same shape
        Those of retraining; not all zero.

    Returns
    -------
    float
        0.0 for equal weights.

    Examples
    --------
    >>> import numpy as np
    >>> from expunge.solvers.float64 import relative_deviation
    >>> relative_deviation(np.array([[1.0, 2.0]]), np.array([[1.0, 2.0]]))
    0.0
    >>> relative_deviation(np.array([[3.0, 4.5]]), np.array([[3.0, 4.0]]))
    0.1
    """
    reference = np.asarray(reference, dtype=np.float64)
    difference = np.asarray(weights, dtype=np.float64) - reference
    return float(np.linalg.norm(difference) / np.linalg.norm(reference))
