"""ACU: analytic continual unlearning, centralized. It deletes by recursion and cannot add."""

from __future__ import annotations

from dataclasses import dataclass

from expunge_experiments.letter import Array
from expunge_experiments.systems.linear import RidgeSettings
from expunge_experiments.systems.recursion import Recursive


@dataclass(frozen=True)
class AcuSettings(RidgeSettings):
    """gamma."""


class Acu(Recursive):
    """T += T F'(I - F T F')^-1 F T, then W += T F'(F W - Y), in float64. With nothing retained, the zero head."""

    name = "acu"
    title = "ACU"
    supports = frozenset({"delete", "delete_client"})

    def _delete(self, numbers: Array) -> None:
        self._follow(numbers, -1)
