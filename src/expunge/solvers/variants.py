"""The two exact solvers, which publish the same heads bit for bit.

`CholeskySolver` is Variant A: the ledger is solved by a Cholesky factor of H. `WoodburySolver` is
Variant B: the inverse of H is tracked by Sherman-Morrison-Woodbury updates.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from expunge.solvers.base import ExactSolver
from expunge.solvers.certify import Preconditioner
from expunge.solvers.factor import CholeskyFactor
from expunge.solvers.inverse import InfeasibleDowndateError, TrackedInverse
from expunge.solvers.refinement import Propose
from expunge.solvers.stream import room_for

Float = NDArray[np.float64]


class CholeskySolver(ExactSolver):
    """Variant A: factors S + gamma I by Cholesky and refines against the exact ledger.

    After any stream of adds and deletes, `head()` is, bit for bit, the head of retraining on the
    retained samples, and that of `WoodburySolver`.

    Parameters
    ----------
    spec : Spec
        What heads are solved under; `amend` changes it.
    statistics : Statistics, optional
        What the ledger begins with; by default no samples.

    Attributes
    ----------
    method : str
        "cholesky".
    factorisations : int
        Factors made so far.
    resets : int
        Factors that were made because refinement with the old one had become slow.

    Raises
    ------
    InputError
        If `spec` is something else.
    SpecMismatchError
        If the statistics are of another spec.

    See Also
    --------
    WoodburySolver : faster for streams of single changes to wide features.
    solve : the same head from statistics, once.

    Notes
    -----
    After a few changed rows (at most an eighth of the width, or 128) the factor still serves,
    corrected for them. After more, or when refinement with it becomes slow, which is measured, it
    is rebuilt.

    Examples
    --------
    >>> import expunge
    >>> spec = expunge.Spec(dim=2, labels=("cat", "dog"))
    >>> X, y = [[0.0, 1.0], [1.0, 0.5], [3.0, 2.0], [4.0, 2.5]], ["cat", "cat", "dog", "dog"]
    >>> solver = expunge.CholeskySolver(spec)
    >>> solver.add(X, y)
    >>> solver.delete(X[3:], y[3:])
    >>> solver.count
    3
    >>> solver.head() == expunge.solve(expunge.Statistics.of(spec, X[:3], y[:3]))
    True
    """

    method = "cholesky"
    _renews_at_folds = True
    _factor: CholeskyFactor | None = None
    _stale = False  # something changed since it was made
    _followed = 0  # rows, when the last fold began

    def _preconditioner(self) -> Preconditioner:
        propose = self._factor.solve if self._factor is not None else self._renew()
        return Preconditioner(propose, fresh=not self._stale, renew=self._renew)

    def _renew(self) -> Propose:
        self._factor = CholeskyFactor(self._float_copy())
        self._stale = False
        self.factorisations += 1
        return self._factor.solve

    @property
    def _follows(self) -> bool:
        return self._factor is not None

    def _renew_worn(self) -> None:
        if self._factor is not None and self._factor.followed:
            self._factor = None

    def _fold_begins(self) -> None:
        self._followed = 0 if self._factor is None else self._factor.followed

    def _fold_ends(self, factor: CholeskyFactor | None, rows: int) -> None:
        earlier, self._factor = self._factor, factor
        self.factorisations += 1
        self._stale = rows > 0
        if factor is not None and earlier is not None:
            factor.resume(earlier, self._followed)
        elif rows:  # they are not known any more
            self._factor = None

    def _absorb(self, values: Float, sign: int, solved: Float | None = None) -> None:
        self._stale = True
        if self._factor is None:
            return
        is_full = self._factor.followed + len(values) > room_for(self.spec.width)
        if is_full or not self._factor.follow(values, sign, solved):
            self._factor = None

    def _drop_preconditioner(self) -> None:
        self._factor = None

    def _outdate(self) -> None:
        self._stale = True


class WoodburySolver(ExactSolver):
    """Variant B: tracks (S + gamma I)^-1 row by row and refines against the exact ledger.

    After any stream of adds and deletes, `head()` is, bit for bit, the head of retraining on the
    retained samples, and that of `CholeskySolver`.

    Parameters
    ----------
    spec : Spec
        What heads are solved under; `amend` changes it.
    statistics : Statistics, optional
        What the ledger begins with; by default no samples.

    Attributes
    ----------
    method : str
        "woodbury".
    factorisations : int
        Inverses made from the ledger so far.
    resets : int
        Inverses that were given up because a downdate was numerically infeasible or refinement had
        become slow.

    Raises
    ------
    InputError
        If `spec` is something else.
    SpecMismatchError
        If the statistics are of another spec.

    See Also
    --------
    CholeskySolver : the same methods and the same heads, by a Cholesky factor.
    solve : the same head from statistics, once.

    Notes
    -----
    The tracked inverse is a cache, which only proposes corrections. A change by statistics has no
    rows to update it by: it then serves as a stale preconditioner.

    Examples
    --------
    >>> import expunge
    >>> spec = expunge.Spec(dim=2, labels=("cat", "dog"))
    >>> X, y = [[0.0, 1.0], [1.0, 0.5], [3.0, 2.0], [4.0, 2.5]], ["cat", "cat", "dog", "dog"]
    >>> solver = expunge.WoodburySolver(spec, expunge.Statistics.of(spec, X, y))
    >>> solver.delete(X[:1], y[:1])
    >>> retrained = expunge.solve(expunge.Statistics.of(spec, X[1:], y[1:]))
    >>> solver.head().digest == retrained.digest
    True
    """

    method = "woodbury"
    _factor: CholeskyFactor | None = None  # in the place of an inverse, until rows are followed
    _renews_at_folds = False  # it is updated in place
    _inverse: TrackedInverse | None = None
    _tracked = False  # changed since it was made

    def _preconditioner(self) -> Preconditioner:
        made = self._inverse or self._factor
        propose = made.solve if made is not None else self._renew()
        return Preconditioner(propose, fresh=not self._tracked, renew=self._renew)

    def _renew(self) -> Propose:
        self._drop_preconditioner()
        self._factor = CholeskyFactor(self._float_copy())
        self._tracked = False
        self.factorisations += 1
        return self._factor.solve

    @property
    def _follows(self) -> bool:
        return self._inverse is not None or self._factor is not None

    def _renew_worn(self) -> None:
        """It is updated in place, and does not wear out by the number of rows."""

    def _fold_begins(self) -> None:
        """It follows every row, whatever the base is."""

    def _fold_ends(self, factor: CholeskyFactor | None, rows: int) -> None:
        """The same."""

    def _absorb(self, values: Float, sign: int, solved: Float | None = None) -> None:
        if self._factor is not None:  # used up
            self._inverse, self._factor = TrackedInverse(self._factor.inverse()), None
        if self._inverse is None:
            return
        try:
            if solved is None:
                self._inverse.update(values, sign)
            else:
                self._inverse.follow(values[0], sign, solved)
            self._tracked = True
        except InfeasibleDowndateError:
            self._inverse = None
            self.resets += 1

    def _drop_preconditioner(self) -> None:
        self._factor = self._inverse = None

    def _outdate(self) -> None:
        self._tracked = True
