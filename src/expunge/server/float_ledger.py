"""The ledger of a federation that computes in float64: for factor messages, and for comparison with
the paper.

Nothing here is exact: a head carries no bound, two orders of the same changes may differ in their
last bits, and what is deleted leaves rounding errors behind. Certificates of such a federation say
so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from expunge.errors import FormatError, PublicationRangeError
from expunge.frame import Format
from expunge.ridge.head import Head
from expunge.ridge.spec import Spec
from expunge.server.rules import Account
from expunge.solvers.float64 import Factor, FloatCholeskySolver, FloatGram, FloatWoodburySolver
from expunge.wire.messages import FactorPart, GramPart, Part, RowsPart

Float = NDArray[np.float64]

_FORMAT = Format(
    "the float64 ledger",
    b"expunge\x00float64\x00",
    "IIqI",
    remedy="rebuild the server from its clients",
)
_MOST_INTEGER = 2.0**53


class FloatSums:
    """Gram (its upper triangle), moment and counts in float64."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.gram = np.zeros((spec.width, spec.width))
        self.moment = np.zeros((spec.width, spec.columns))
        self.count = 0
        self.class_counts = np.zeros(spec.columns if spec.is_classification else 0, dtype=np.int64)

    def change(self, part: Part | None, sign: int) -> None:
        """Add (sign 1) or subtract (sign -1) a part of a message."""
        if part is not None:
            gram = float_gram(self.spec, part)
            self._add(gram.gram, gram.moment, part.count, part.class_counts, sign)

    def merge(self, other: FloatSums, sign: int = 1) -> None:
        """Add or subtract other sums."""
        self._add(other.gram, other.moment, other.count, other.class_counts, sign)

    def _add(
        self, gram: Float, moment: Float, count: int, class_counts: NDArray[np.int64], sign: int
    ) -> None:
        self.gram += sign * np.triu(gram)
        self.moment += sign * moment
        self.count += sign * count
        self.class_counts += sign * class_counts

    def account(self) -> Account:
        """What the ledger checks of a client: here, counts alone."""
        return replace(Account.empty(self.spec), count=self.count, class_counts=self.class_counts)

    def _pieces(self) -> Iterator[bytes]:
        spec = self.spec
        yield _FORMAT.begin(spec.width, spec.columns, self.count, len(self.class_counts))
        yield self.class_counts.astype("<i8").tobytes()
        yield self.gram[np.triu_indices(spec.width)].astype("<f8").tobytes()
        yield self.moment.astype("<f8").tobytes()

    @property
    def digest(self) -> str:
        """SHA-256 of the bytes: of these exact bits, not of what they represent."""
        content = hashlib.sha256()
        for piece in self._pieces():
            content.update(piece)
        return content.hexdigest()

    def to_bytes(self) -> bytes:
        """For the store."""
        return b"".join(self._pieces())

    @classmethod
    def from_bytes(cls, spec: Spec, data: bytes) -> FloatSums:
        """The inverse of `to_bytes`; labels appended since have no samples."""
        (width, columns, count, classes), reader = _FORMAT.open(data)
        triangle = width * (width + 1) // 2
        reader.require(8 * (classes + triangle + width * columns))
        sums = cls(spec)
        sums.class_counts[:classes] = reader.array("<i8", (classes,), "the class counts")
        sums.gram[np.triu_indices(width)] = reader.array("<f8", (triangle,), "the gram")
        sums.moment[:, :columns] = reader.array("<f8", (width, columns), "the moment")
        sums.count = count
        return sums


class FloatLedger:
    """The ledger in memory, with a solver of the paper's kind on top of it."""

    def __init__(self, spec: Spec, method: str, sums: FloatSums | None = None) -> None:
        self.method = method
        self._sums = sums or FloatSums(spec)
        self._renew()

    def _renew(self) -> None:
        """Make the solver from the sums."""
        spec = self._sums.spec
        self._solver = (
            FloatWoodburySolver(spec) if self.method == "woodbury" else FloatCholeskySolver(spec)
        )
        self._solver.gram += self._sums.gram
        self._solver.moment += self._sums.moment
        if isinstance(self._solver, FloatWoodburySolver) and self._sums.count:
            self._solver.reset()

    @property
    def spec(self) -> Spec:
        """What the head is solved under."""
        return self._sums.spec

    @property
    def count(self) -> int:
        """The number of retained samples."""
        return self._sums.count

    @property
    def statistics(self) -> FloatSums:
        """A copy of the sums."""
        copy = FloatSums(self.spec)
        copy.merge(self._sums)
        return copy

    def settled(self) -> FloatSums:
        """The sums themselves, to be read only until the next change."""
        return self._sums

    def change(self, part: Part | None, sign: int) -> None:
        """Add or delete a part of a message.

        Variant B follows rows and factors, and starts over after a gram.
        """
        if part is None:
            return
        self._sums.change(part, sign)
        if isinstance(self._solver, FloatCholeskySolver):
            self._solver.apply(float_gram(self.spec, part), sign)
        elif isinstance(part, GramPart) or part.count > self.spec.width // 4:
            self._renew()
        elif isinstance(self._solver, FloatWoodburySolver):
            self._solver.apply(_factor(self.spec, part), sign)

    def delete_statistics(self, share: FloatSums) -> None:
        """Delete a client's whole share."""
        self._sums.merge(share, -1)
        self._renew()

    def amend(self, spec: Spec) -> None:
        """Continue under another spec, perhaps with labels appended."""
        self._sums = FloatSums.from_bytes(spec, self._sums.to_bytes())
        self._renew()

    def head(self) -> Head:
        """The weights rounded to the publication grid, with no bound on their error."""
        scaled = np.rint(np.ldexp(self._solver.weights, self.spec.publication_bits))
        if not (np.abs(scaled) <= _MOST_INTEGER).all():
            raise PublicationRangeError(
                "a weight is too large for the publication grid: choose fewer publication_bits"
            )
        return Head(self.spec, scaled.astype(np.int64), float("inf"))


def _factor(spec: Spec, part: Part) -> Factor:
    if isinstance(part, FactorPart):
        return part.factor
    if not isinstance(part, RowsPart):
        raise FormatError("a gram has no factor")
    return Factor(*_float_rows(spec, part))


def _float_rows(spec: Spec, part: RowsPart) -> tuple[Float, Float]:
    integers, targets = part.rows.integers, part.rows.targets.integers
    return np.ldexp(integers, -spec.grid.fraction_bits), np.ldexp(
        targets, -spec.label_grid.fraction_bits
    )


def float_gram(spec: Spec, part: Part) -> FloatGram:
    """Gram and moment of a part of a message, in float64."""
    if isinstance(part, GramPart):
        return FloatGram(part.statistics.gram_float(), part.statistics.moment_float())
    factor = _factor(spec, part)
    return FloatGram(factor.r.T @ factor.r, factor.moment)
