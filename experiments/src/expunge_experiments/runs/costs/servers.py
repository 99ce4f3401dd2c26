"""The servers that `costs` measures: a message comes as bytes, is taken in, and a head is
published.

Messages are the protocol's own for the exact variants (statistics for A, rows of integers for B),
and for float64 what the paper sends (F'F and F'Y for A, the R factor with Q'Y for B), as messages.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from expunge import CholeskySolver, Statistics, WoodburySolver
from expunge.ridge.encoding import integer_rows
from expunge.solvers.float64 import Factor, FloatCholeskySolver, FloatGram, FloatWoodburySolver
from expunge.wire.commitment import SALT_BYTES
from expunge.wire.messages import GramPart, Message, RowsPart, read
from expunge_experiments.message import Array, ArrayMessage

_SALT = bytes(SALT_BYTES)  # commitments are not opened here, but their salts' bytes count


class Server(ABC):
    """One variant's server with everything retained that `statistics` say."""

    @abstractmethod
    def message(self, features: Array, labels: Array) -> bytes:
        """What a client sends about these samples. The server does not change."""

    @abstractmethod
    def take(self, data: bytes, count: int, *, add: bool) -> None:
        """From the bytes about `count` samples to the published head."""

    @property
    @abstractmethod
    def weights(self) -> NDArray[np.float64]:
        """The published head."""


class ExactServer(Server):
    """Variant A or B in exact arithmetic."""

    kind: ClassVar[type[CholeskySolver | WoodburySolver]]

    def __init__(self, statistics: Statistics) -> None:
        self.spec = statistics.spec
        self.solver = self.kind(self.spec, statistics)
        self.solver.head()

    @property
    def digest(self) -> str:
        """Of the published head."""
        return self.solver.head().digest

    @property
    def weights(self) -> NDArray[np.float64]:
        """The certified head's."""
        return self.solver.head().weights


class ExactA(ExactServer):
    """Statistics in, a Cholesky factor behind the head."""

    kind = CholeskySolver

    def message(self, features: Array, labels: Array) -> bytes:
        """A gram message."""
        part = GramPart(Statistics.of(self.spec, features, labels, lost_columns="accept"))
        return Message("gram", part).to_bytes(self.spec)

    def take(self, data: bytes, count: int, *, add: bool) -> None:
        """Add or subtract statistics, and solve."""
        part = read(self.spec, "gram", count, 0, data).added
        if isinstance(part, GramPart):
            (self.solver.add_statistics if add else self.solver.delete_statistics)(part.statistics)
        self.solver.head()


class ExactB(ExactServer):
    """Rows in, a tracked inverse behind the head."""

    kind = WoodburySolver

    def message(self, features: Array, labels: Array) -> bytes:
        """A message of rows."""
        part = RowsPart(integer_rows(self.spec, features, labels), (_SALT,) * len(labels))
        return Message("rows", part).to_bytes(self.spec)

    def take(self, data: bytes, count: int, *, add: bool) -> None:
        """Add or delete rows, and solve."""
        part = read(self.spec, "rows", count, 0, data).added
        if isinstance(part, RowsPart):
            features = np.ldexp(
                part.rows.integers[:, : self.spec.dim], -self.spec.grid.fraction_bits
            )
            labels = np.asarray(part.rows.targets.integers.argmax(axis=1))
            if add:
                self.solver.add(features, labels, lost_columns="accept")
            else:
                self.solver.delete(features, labels)
        self.solver.head()


class FloatA(Server):
    """F'F and F'Y in, a Cholesky solve in float64."""

    def __init__(self, statistics: Statistics) -> None:
        self.solver = FloatCholeskySolver(statistics.spec)
        self.solver.gram += statistics.gram_float()
        self.solver.moment += statistics.moment_float()
        self._weights = self.solver.weights

    def message(self, features: Array, labels: Array) -> bytes:
        """The whole of F'F, as in the paper, and F'Y."""
        made = self.solver.message(features, labels)
        return ArrayMessage("change", {}, {"gram": made.gram, "moment": made.moment}).to_bytes()

    def take(self, data: bytes, count: int, *, add: bool) -> None:
        """Add or subtract, and solve."""
        del count  # the message says
        arrays = ArrayMessage.from_bytes(data).arrays
        self.solver.apply(FloatGram(arrays["gram"], arrays["moment"]), 1 if add else -1)
        self._weights = self.solver.weights

    @property
    def weights(self) -> NDArray[np.float64]:
        """The last solution."""
        return self._weights


class FloatB(Server):
    """R and Q'Y in, Sherman-Morrison-Woodbury updates in float64."""

    def __init__(self, statistics: Statistics) -> None:
        self.solver = FloatWoodburySolver(statistics.spec)
        self.solver.gram += statistics.gram_float()
        self.solver.moment += statistics.moment_float()
        self.solver.reset()

    def message(self, features: Array, labels: Array) -> bytes:
        """R of a thin QR, and Q'Y."""
        made = self.solver.message(features, labels)
        return ArrayMessage(
            "change", {}, {"r": made.r, "coefficients": made.coefficients}
        ).to_bytes()

    def take(self, data: bytes, count: int, *, add: bool) -> None:
        """Update inverse and head."""
        del count  # the message says
        arrays = ArrayMessage.from_bytes(data).arrays
        self.solver.apply(Factor(arrays["r"], arrays["coefficients"]), 1 if add else -1)

    @property
    def weights(self) -> NDArray[np.float64]:
        """The tracked head."""
        return np.asarray(self.solver.weights)


SERVERS: dict[str, type[ExactA | ExactB | FloatA | FloatB]] = {
    "a_exact": ExactA,
    "b_exact": ExactB,
    "a_float64": FloatA,
    "b_float64": FloatB,
}
