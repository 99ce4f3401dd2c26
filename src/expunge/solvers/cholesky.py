"""CholeskySolver: Variant A. The ledger is solved by a Cholesky factor of H."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from expunge.solvers.base import ExactSolver
from expunge.solvers.certify import Preconditioner
from expunge.solvers.factor import CholeskyFactor
from expunge.solvers.refinement import Propose


class CholeskySolver(ExactSolver):
    """Variant A: factors S + gamma I and refines against the exact ledger.

    A stale factor still serves to judge deletions; for the head it is made anew.
    """

    method = "cholesky"
    _factor: CholeskyFactor | None = None
    _stale = False

    def _preconditioner(self) -> Preconditioner:
        propose = self._factor.solve if self._factor is not None else self._renew()
        return Preconditioner(propose, fresh=not self._stale, renew=self._renew)

    def _head_preconditioner(self) -> Preconditioner:
        if self._stale:
            self._renew()
        return self._preconditioner()

    def _renew(self) -> Propose:
        self._factor = CholeskyFactor(self._ready_system())
        self._stale = False
        self.factorisations += 1
        return self._factor.solve

    def _absorb(self, values: NDArray[np.float64], sign: int) -> None:
        self._stale = True

    def _drop_preconditioner(self) -> None:
        self._factor = None

    def _rebuilt(self) -> None:
        super()._rebuilt()
        self._stale = True
