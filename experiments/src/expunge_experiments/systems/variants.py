"""Variant A and Variant B: exact, by the product's own solvers and messages; in float64 and
float32, as the paper has them.

Training is one exchange in which every client sends one message; so is a deletion or an addition,
of any client's samples. Exact A's clients send statistics. Exact B's clients send rows of integers,
or statistics where these are fewer bytes (as from about dim rows on). Law: after any stream of
changes `digest` is that of `expunge.solve` on the retained samples. With nothing retained, that is
the zero head.

In floating point A's clients send F'F and F'Y. B's clients send R and Q'Y of a thin QR, and the
server follows them by Sherman-Morrison-Woodbury updates. Nothing there is exact: what rounding
leaves behind stays, except that with nothing retained both restart from the zero head.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from expunge import CholeskySolver, Grid, Head, Spec, Statistics, WoodburySolver
from expunge.ridge.encoding import integer_rows
from expunge.ridge.sums import Sums
from expunge.solvers.float64 import Factor, FloatCholeskySolver, FloatGram, FloatWoodburySolver
from expunge.solvers.inverse import TrackedInverse
from expunge.wire.commitment import SALT_BYTES
from expunge.wire.messages import GramPart, Message, Part, RowsPart, read, statistics_bytes
from expunge_experiments.datasets.dataset import USUAL, fitting_grid
from expunge_experiments.engine import MessageEngine, State, Worker
from expunge_experiments.message import Array, ArrayMessage
from expunge_experiments.pool import ClientSamples, Pool
from expunge_experiments.systems.base import System
from expunge_experiments.systems.linear import LinearSystem, RidgeSettings, packed, unpacked

_SALT = bytes(
    SALT_BYTES
    # In place of the salts of commitments, which nobody opens here; their bytes are counted all the
    # same
)


@dataclass(frozen=True)
class VariantSettings(RidgeSettings):
    """gamma, and the grid of the exact variants, which holds features below 2^(41 - fraction_bits)
    in magnitude.

    The usual grid, of 35 fraction bits, gives way to a coarser one for a pool that it cannot hold;
    any other is meant, and refuses features beyond it.
    """

    fraction_bits: int = USUAL.fraction_bits

    def __post_init__(self) -> None:
        super().__post_init__()
        Grid(fraction_bits=self.fraction_bits)

    def fitted(self, features: Array) -> VariantSettings:
        """The settings for a pool of these features."""
        usual = self.fraction_bits == USUAL.fraction_bits
        return replace(self, fraction_bits=fitting_grid(features).fraction_bits) if usual else self

    def spec(self, dim: int, classes: int) -> Spec:
        """What server and clients agree on."""
        grid = Grid(fraction_bits=self.fraction_bits)
        return Spec(dim=dim, labels=tuple(range(classes)), gamma=self.gamma, grid=grid)


class VariantWorker(Worker):
    """Answers "add" and "forget" with one message about the samples that are named."""

    def __init__(
        self,
        client: int,
        samples: ClientSamples,
        *,
        settings: VariantSettings,
        seed: int,
        classes: int,
    ) -> None:
        super().__init__(client, samples)
        del seed  # nothing is drawn
        self.spec = settings.spec(samples.features.shape[1], classes)

    def answer(self, message: ArrayMessage) -> ArrayMessage:
        """The message."""
        positions = np.searchsorted(self.samples.numbers, message.arrays["numbers"])
        return self.message(self.samples.features[positions], self.samples.labels[positions])

    @abstractmethod
    def message(self, features: Array, labels: Array) -> ArrayMessage:
        """What is sent for these samples."""


class ExactWorkerA(VariantWorker):
    """Sends the exact statistics, in the bytes of docs/protocol.md."""

    def message(self, features: Array, labels: Array) -> ArrayMessage:
        """A gram message."""
        statistics = Statistics.of(self.spec, features, labels, lost_columns="accept")
        return _told(self.spec, Message("gram", GramPart(statistics)), len(labels))


class ExactWorkerB(ExactWorkerA):
    """Sends rows of integers, or the exact statistics where these are fewer bytes."""

    def message(self, features: Array, labels: Array) -> ArrayMessage:
        """A message of rows, or a gram message."""
        if len(labels) * (SALT_BYTES + 8 * self.spec.dim + 4) > statistics_bytes(self.spec):
            return super().message(features, labels)
        part = RowsPart(integer_rows(self.spec, features, labels), (_SALT,) * len(labels))
        return _told(self.spec, Message("rows", part), len(labels))


class Variant(System):
    """What all variants have in common: training, adding and deleting are each one exchange, and
    one change of the sums.
    """

    def __init__(
        self, pool: Pool, engine: MessageEngine | None, settings: VariantSettings, seed: int
    ) -> None:
        super().__init__(pool, engine, settings, seed)
        self.spec = settings.spec(pool.dim, pool.classes)

    def _train(self, numbers: Array) -> None:
        self._add(numbers)

    def _add(self, numbers: Array) -> None:
        self._change("add", numbers)

    def _delete(self, numbers: Array) -> None:
        self._change("forget", numbers)

    @abstractmethod
    def _change(self, task: str, numbers: Array) -> None:
        """Tell the clients to add or forget these samples, and change sums and head by what they
        answer.
        """


class _ExactVariant(Variant):
    """The server of both variants: a solver of the product, fed with the product's messages.

    Truth is the ledger of sums, which is all that is kept. Factor and tracked inverse are caches;
    the head is solved from it.
    """

    solver_class: ClassVar[type[CholeskySolver | WoodburySolver]]

    def __init__(
        self, pool: Pool, engine: MessageEngine | None, settings: VariantSettings, seed: int
    ) -> None:
        super().__init__(pool, engine, settings, seed)
        self.solver = self.solver_class(self.spec)
        self._kept = len(Statistics.zero(self.spec).to_bytes())  # as many for any number of samples

    @property
    def head(self) -> Head:
        """The certified head."""
        return self.solver.head()

    @property
    def digest(self) -> str:
        """Of the head: equal digests are equal bits."""
        return self.head.digest

    @property
    def weights(self) -> Array:
        """The published weights."""
        return self.head.weights

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.int64]:
        """The label of the largest score, as the product predicts."""
        return np.asarray(self.head.predict(features), dtype=np.int64)

    def _change(self, task: str, numbers: Array) -> None:
        """One exchange, then one change of the ledger by rows and one by statistics, then one
        solve.
        """
        answers = [answer for _, answer in self.tell(task, numbers)]
        rows = [answer for answer in answers if answer.settings["kind"] == "rows"]
        grams = [answer for answer in answers if answer.settings["kind"] == "gram"]
        solver, adds = self.solver, task == "add"
        if rows and sum(answer.settings["count"] for answer in rows) <= max(
            16, self.spec.width // 4
        ):
            features, targets = _floats(self.spec, [_heard(self.spec, answer) for answer in rows])
            solver.add(features, targets, lost_columns="accept") if adds else solver.delete(
                features, targets
            )
            rows = []  # more are not followed one by one: the solver would sum them up, too
        if rows or grams:
            statistics = self._summed(rows, grams)
            solver.add_statistics(statistics) if adds else solver.delete_statistics(statistics)
        solver.head()

    def _summed(self, rows: Sequence[ArrayMessage], grams: Sequence[ArrayMessage]) -> Statistics:
        """The statistics of all these messages, read one at a time."""
        batches = (_floats(self.spec, [_heard(self.spec, answer)]) for answer in rows)
        sums = Sums(self.spec)
        sums.merge(Statistics.of(self.spec, batches, lost_columns="accept"))
        for answer in grams:
            part = _heard(self.spec, answer)
            if isinstance(part, GramPart):
                sums.merge(part.statistics)
        return Statistics.snapshot(sums)

    @property
    def checkpoint_bytes(self) -> int:
        """The bytes of the ledger, which are known without writing it, and of what clients keep."""
        return self._kept + self.engine.state_bytes()

    def _state(self) -> State:
        return {"statistics": np.frombuffer(self.solver.statistics.to_bytes(), dtype=np.uint8)}

    def _restore(self, state: Mapping[str, Array]) -> None:
        self.solver = self.solver_class(
            self.spec, Statistics.from_bytes(self.spec, state["statistics"].tobytes())
        )
        self.solver.head()


class VariantAExact(_ExactVariant):
    """Statistics from the clients; a Cholesky factor of the exact ledger, refined to the certified
    head.
    """

    name = "a_exact"
    title = "Variant A, exact"
    solver_class = CholeskySolver


class VariantBExact(_ExactVariant):
    """Rows from the clients; a tracked inverse, refined against the exact ledger to the same
    certified head.
    """

    name = "b_exact"
    title = "Variant B, exact"
    solver_class = WoodburySolver


def _told(spec: Spec, message: Message, count: int) -> ArrayMessage:
    return ArrayMessage(
        "change",
        {"kind": message.kind, "count": count},
        {"message": np.frombuffer(message.to_bytes(spec), np.uint8)},
    )


def _heard(spec: Spec, message: ArrayMessage) -> Part | None:
    return read(
        spec, message.settings["kind"], message.settings["count"], 0, message.arrays["message"].data
    ).added


def _floats(spec: Spec, parts: Sequence[Part | None]) -> tuple[Array, Array]:
    """Rows of integers as the float64 features and targets that they are, exactly."""
    rows = [part.rows for part in parts if isinstance(part, RowsPart)]
    features = np.concatenate([batch.integers[:, : spec.dim] for batch in rows])
    targets = np.concatenate([batch.targets.integers for batch in rows])
    return np.ldexp(features, -spec.grid.fraction_bits), np.ldexp(
        targets, -spec.label_grid.fraction_bits
    )


# -- in floating point -----------------------------------------------------------------------------


class Float64WorkerA(VariantWorker):
    """Sends F'F in full and F'Y, as the paper has it."""

    dtype: ClassVar[Any] = np.float64

    def message(self, features: Array, labels: Array) -> ArrayMessage:
        """A float Gram."""
        made = _gram_writer(self.spec, self.dtype).message(features, labels)
        return ArrayMessage("change", {}, {"gram": made.gram, "moment": made.moment})


class Float64WorkerB(VariantWorker):
    """Sends R and Q'Y of a thin QR."""

    dtype: ClassVar[Any] = np.float64

    def message(self, features: Array, labels: Array) -> ArrayMessage:
        """A factor."""
        made = _factor_writer(self.spec, self.dtype).message(features, labels)
        return ArrayMessage("change", {}, {"r": made.r, "coefficients": made.coefficients})


class Float32WorkerA(Float64WorkerA):
    """The same in float32."""

    dtype = np.float32


class Float32WorkerB(Float64WorkerB):
    """The same in float32."""

    dtype = np.float32


@lru_cache(maxsize=4)
def _gram_writer(spec: Spec, dtype: Any) -> FloatCholeskySolver:
    """A solver that writes messages only, which changes nothing in it: one serves all clients of a
    process.
    """
    return FloatCholeskySolver(spec, dtype)


@lru_cache(maxsize=4)
def _factor_writer(spec: Spec, dtype: Any) -> FloatWoodburySolver:
    return FloatWoodburySolver(spec, dtype)


class _FloatVariant(Variant, LinearSystem):
    """The server of both variants in floating point."""

    solver_class: ClassVar[type[FloatCholeskySolver | FloatWoodburySolver]]

    def __init__(
        self, pool: Pool, engine: MessageEngine | None, settings: VariantSettings, seed: int
    ) -> None:
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
    def _messages(self, answers: Sequence[ArrayMessage]) -> Iterable[FloatGram | Factor]:
        """The clients' messages, as the solver takes them in."""

    def _state(self) -> State:
        return {
            "gram": packed(self.solver.gram),
            "moment": self.solver.moment,
            "weights": self._weights,
        }

    def _restore(self, state: Mapping[str, Array]) -> None:
        self.solver = self.solver_class(self.spec, self.dtype)
        self.solver.gram, self.solver.moment = unpacked(state["gram"]), np.array(state["moment"])
        self._weights = np.array(state["weights"])


class VariantAFloat64(_FloatVariant):
    """Adds up Grams and solves by Cholesky at every change."""

    name = "a_float64"
    title = "Variant A, float64"
    solver_class = FloatCholeskySolver

    def _messages(self, answers: Sequence[ArrayMessage]) -> Iterable[FloatGram]:
        return (FloatGram(answer.arrays["gram"], answer.arrays["moment"]) for answer in answers)


class VariantBFloat64(_FloatVariant):
    """Follows R factors by Sherman-Morrison-Woodbury updates of inverse and head, from T = I /
    gamma on.

    Factors of several clients are stacked, as in the paper, into blocks of up to a quarter of the
    width: a larger rank would cost more than it saves. After an infeasible downdate the head is
    solved again from the sums; `solver.resets` counts that.
    """

    name = "b_float64"
    title = "Variant B, float64"
    solver_class = FloatWoodburySolver

    def _messages(self, answers: Sequence[ArrayMessage]) -> Iterable[Factor]:
        block: list[ArrayMessage] = []
        for answer in answers:
            if (
                block
                and sum(len(message.arrays["r"]) for message in [*block, answer])
                > self.spec.width // 4
            ):
                yield _stacked(block)
                block = []
            block.append(answer)
        if block:
            yield _stacked(block)

    # Inverse and head are the state itself here, drift included: solved again from the sums, they
    # would continue differently.
    def _state(self) -> State:
        resets = np.array([self.solver.resets])
        return super()._state() | {"inverse": packed(self.solver._inverse.upper), "resets": resets}

    def _restore(self, state: Mapping[str, Array]) -> None:
        super()._restore(state)
        self.solver._inverse, self.solver._weights = (
            TrackedInverse(unpacked(state["inverse"])),
            np.array(state["weights"]),
        )
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


def _stacked(answers: Sequence[ArrayMessage]) -> Factor:
    return Factor(
        *(
            np.concatenate([answer.arrays[name] for answer in answers])
            for name in ("r", "coefficients")
        )
    )
