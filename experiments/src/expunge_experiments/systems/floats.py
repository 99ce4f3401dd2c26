"""Variant A and Variant B in float64 and float32, as the paper has them.

A's clients send F'F and F'Y. B's clients send R and Q'Y of a thin QR, and the server follows them by Sherman-Morrison-Woodbury
updates. Training, a deletion and an addition are one exchange each. Nothing here is exact: what rounding leaves behind stays,
except that with nothing retained both begin anew, from the zero head.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from expunge import Spec
from expunge.solvers.floating import Factor, FloatCholeskySolver, FloatGram, FloatWoodburySolver
from expunge.solvers.inverse import TrackedInverse
from expunge_experiments.engine import Engine, State
from expunge_experiments.letter import Array, Letter
from expunge_experiments.pool import Pool
from expunge_experiments.systems.linear import LinearSystem, packed, unpacked
from expunge_experiments.systems.variants import Variant, VariantSettings, VariantWorker

__all__ = [
    "Float32WorkerA",
    "Float32WorkerB",
    "Float64WorkerA",
    "Float64WorkerB",
    "VariantAFloat32",
    "VariantAFloat64",
    "VariantBFloat32",
    "VariantBFloat64",
    "VariantSettings",
]


class Float64WorkerA(VariantWorker):
    """Sends F'F in full and F'Y, as the paper has it."""

    dtype: ClassVar[Any] = np.float64

    def message(self, features: Array, labels: Array) -> Letter:
        """A float Gram."""
        made = _gram_writer(self.spec, self.dtype).message(features, labels)
        return Letter("change", {}, {"gram": made.gram, "moment": made.moment})


class Float64WorkerB(VariantWorker):
    """Sends R and Q'Y of a thin QR."""

    dtype: ClassVar[Any] = np.float64

    def message(self, features: Array, labels: Array) -> Letter:
        """A factor."""
        made = _factor_writer(self.spec, self.dtype).message(features, labels)
        return Letter("change", {}, {"r": made.r, "coefficients": made.coefficients})


class Float32WorkerA(Float64WorkerA):
    """The same in float32."""

    dtype = np.float32


class Float32WorkerB(Float64WorkerB):
    """The same in float32."""

    dtype = np.float32


@lru_cache(maxsize=4)
def _gram_writer(spec: Spec, dtype: Any) -> FloatCholeskySolver:
    """A solver that writes messages only, which changes nothing in it: one serves all clients of a process."""
    return FloatCholeskySolver(spec, dtype)


@lru_cache(maxsize=4)
def _factor_writer(spec: Spec, dtype: Any) -> FloatWoodburySolver:
    return FloatWoodburySolver(spec, dtype)


class _FloatVariant(Variant, LinearSystem):
    """The server of both variants in floating point."""

    solver_class: ClassVar[type[FloatCholeskySolver | FloatWoodburySolver]]

    def __init__(self, pool: Pool, engine: Engine | None, settings: VariantSettings, seed: int) -> None:
        super().__init__(pool, engine, settings, seed)
        self.solver: Any = self.solver_class(self.spec, self.dtype)

    def _change(self, task: str, numbers: Array) -> None:
        answers = [answer for _, answer in self.tell(task, numbers)]
        if self.retained.any():
            for message in self._messages(answers):
                self.solver.apply(message, 1 if task == "add" else -1)
        else:
            self.solver = self.solver_class(self.spec, self.dtype)
        self._weights = self.solver.weights.copy()

    @abstractmethod
    def _messages(self, answers: Sequence[Letter]) -> Iterable[FloatGram | Factor]:
        """The clients' messages, as the solver takes them in."""

    def _state(self) -> State:
        return {"gram": packed(self.solver.gram), "moment": self.solver.moment, "weights": self._weights}

    def _restore(self, state: Mapping[str, Array]) -> None:
        self.solver = self.solver_class(self.spec, self.dtype)
        self.solver.gram, self.solver.moment = unpacked(state["gram"]), np.array(state["moment"])
        self._weights = np.array(state["weights"])


class VariantAFloat64(_FloatVariant):
    """Adds up Grams and solves by Cholesky at every change."""

    name = "a_float64"
    title = "Variant A, float64"
    solver_class = FloatCholeskySolver

    def _messages(self, answers: Sequence[Letter]) -> Iterable[FloatGram]:
        return (FloatGram(answer.arrays["gram"], answer.arrays["moment"]) for answer in answers)


class VariantBFloat64(_FloatVariant):
    """Follows R factors by Sherman-Morrison-Woodbury updates of inverse and head, from T = I / gamma on.

    Factors of several clients are stacked, as in the paper, into blocks of up to a quarter of the width: a larger rank would
    cost more than it saves. An infeasible downdate is solved anew from the sums; `solver.resets` counts that.
    """

    name = "b_float64"
    title = "Variant B, float64"
    solver_class = FloatWoodburySolver

    def _messages(self, answers: Sequence[Letter]) -> Iterable[Factor]:
        block: list[Letter] = []
        for answer in answers:
            if block and sum(len(one.arrays["r"]) for one in [*block, answer]) > self.spec.width // 4:
                yield _stacked(block)
                block = []
            block.append(answer)
        if block:
            yield _stacked(block)

    # Inverse and head are the state itself here, drift included: solved anew from the sums they would not go on alike.
    def _state(self) -> State:
        resets = np.array([self.solver.resets])
        return super()._state() | {"inverse": packed(self.solver._inverse.upper), "resets": resets}

    def _restore(self, state: Mapping[str, Array]) -> None:
        super()._restore(state)
        self.solver._inverse, self.solver._weights = TrackedInverse(unpacked(state["inverse"])), np.array(state["weights"])
        self.solver.resets = int(state["resets"][0])


class VariantAFloat32(VariantAFloat64):
    """The same in float32."""

    name = "a_float32"
    title = "Variant A, float32"
    dtype = np.float32


class VariantBFloat32(VariantBFloat64):
    """The same in float32."""

    name = "b_float32"
    title = "Variant B, float32"
    dtype = np.float32


def _stacked(answers: Sequence[Letter]) -> Factor:
    return Factor(*(np.concatenate([answer.arrays[name] for answer in answers]) for name in ("r", "coefficients")))
