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


class CholeskySolver(ExactSolver):
    """Variant A: factors S + gamma I and refines against the exact ledger.

    After a few changed rows the factor still serves, corrected for them; after more, or when
    refinement with it becomes slow (which is measured, not guessed), it is made anew.
    """

    method = "cholesky"
    _factor: CholeskyFactor | None = None
    _stale = False  # something changed since it was made

    def _preconditioner(self) -> Preconditioner:
        propose = self._factor.solve if self._factor is not None else self._renew()
        return Preconditioner(propose, fresh=not self._stale, renew=self._renew)

    def _renew(self) -> Propose:
        self._factor = CholeskyFactor(self._ready_system())
        self._stale = False
        self.factorisations += 1
        return self._factor.solve

    def _absorb(self, values: NDArray[np.float64], sign: int) -> None:
        self._stale = True
        if self._factor is None:
            return
        if self._factor.followed + len(values) > max(4, self.spec.width // 32):
            self._factor = None
        else:
            self._factor.follow(values, sign)

    def _drop_preconditioner(self) -> None:
        self._factor = None

    def _rebuilt(self) -> None:
        super()._rebuilt()
        self._stale = True


class WoodburySolver(ExactSolver):
    """Variant B: tracks T = (S + gamma I)^-1 row by row and refines against the exact ledger.

    T is reset from the ledger when a downdate is numerically infeasible or when refinement with it
    becomes slow. A change by statistics has no rows to update T by: it then serves as a stale
    preconditioner.
    """

    method = "woodbury"
    _inverse: TrackedInverse | None = None
    _tracked = False  # changed since it was made

    def _preconditioner(self) -> Preconditioner:
        propose = self._inverse.solve if self._inverse is not None else self._renew()
        return Preconditioner(propose, fresh=not self._tracked, renew=self._renew)

    def _renew(self) -> Propose:
        self._inverse = TrackedInverse(CholeskyFactor(self._ready_system()).inverse())
        self._tracked = False
        self.factorisations += 1
        return self._inverse.solve

    def _absorb(self, values: NDArray[np.float64], sign: int) -> None:
        if self._inverse is None:
            return
        try:
            self._inverse.update(values, sign)
            self._tracked = True
        except InfeasibleDowndateError:
            self._inverse = None
            self.resets += 1

    def _drop_preconditioner(self) -> None:
        self._inverse = None

    def _rebuilt(self) -> None:
        super()._rebuilt()
        self._tracked = True
