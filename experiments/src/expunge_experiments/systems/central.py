"""Central: ridge retraining in one place, in float64, as one would write it with numpy and
scipy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from expunge_experiments.engine import State
from expunge_experiments.message import Array
from expunge_experiments.systems.linear import LinearSystem, RidgeSettings, gram_and_moment, ridge


@dataclass(frozen=True)
class CentralSettings(RidgeSettings):
    """gamma."""


class Central(LinearSystem):
    """W = (F'F + gamma I)^-1 F'Y on the retained samples, from scratch at every change: F'F by
    syrk, then Cholesky.

    Law: the head is a function of the retained samples alone, so after any changes it equals
    retraining, bit for bit on one machine with one number of threads.
    """

    name = "central"
    title = "Central ridge retrain"

    def _train(self, numbers: Array) -> None:
        gram, moment = gram_and_moment(
            self.pool.features[numbers], self.pool.labels[numbers], self.pool.classes
        )
        self._weights = ridge(gram, moment, self.settings.gamma)

    def _delete(self, _: Array) -> None:  # what is retained is all that matters
        self._train(np.flatnonzero(self.retained))
        self.recomputed += 1

    def _add(self, numbers: Array) -> None:
        self._delete(numbers)

    def _state(self) -> State:
        return {"weights": self._weights}

    def _restore(self, state: Mapping[str, Array]) -> None:
        self._weights = np.array(state["weights"])
