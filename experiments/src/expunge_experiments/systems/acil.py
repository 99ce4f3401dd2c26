"""ACIL: analytic class-incremental learning, centralized. It adds by recursion and cannot delete."""

from __future__ import annotations

from dataclasses import dataclass

from expunge_experiments.letter import Array
from expunge_experiments.systems.linear import RidgeSettings
from expunge_experiments.systems.recursion import Recursive


@dataclass(frozen=True)
class AcilSettings(RidgeSettings):
    """gamma."""


class Acil(Recursive):
    """R -= R X'(I + X R X')^-1 X R, then W += R X'(Y - X W), in float64."""

    name = "acil"
    title = "ACIL"
    supports = frozenset({"add"})

    def _add(self, numbers: Array) -> None:
        self._follow(numbers, 1)
