"""Messages: the changes of a request as bytes, of the kinds gram, rows, factor and group.

A group message is an aggregator's: what its whole group adds minus what it deletes. A net message
is the sum of a round of masked ones, and is never sent.

Laws: `read(spec, kind, added, deleted, write(...))` gives back what was written; bytes that are
left over, missing, or not what the numbers say are refused. `request_bytes`, the size of a request
before it is made, is never less than what the request turns out to be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from expunge.errors import FormatError
from expunge.exact import wide
from expunge.exact.blas import packed_diagonal
from expunge.frame import Reader, pack
from expunge.kinds import ChangeKind, MessageKind
from expunge.ridge.encoding import Rows, Targets
from expunge.ridge.spec import Spec
from expunge.ridge.statistics import Statistics
from expunge.wire.commitment import COMMITMENT_BYTES, SALT_BYTES

if TYPE_CHECKING:
    from expunge.solvers.float64 import Factor

_LOG = "Q32s"  # of a group: size and root
_HARD, _REAL = 0, 1
_LARGEST_IN_FACTOR = 2.0**200


@dataclass(frozen=True)
class RowsPart:
    """Samples as integers, with the salts that open their commitments."""

    rows: Rows
    salts: tuple[bytes, ...]

    @property
    def count(self) -> int:
        """How many samples there are."""
        return len(self.rows)

    @property
    def class_counts(self) -> NDArray[np.int64]:
        """How many of them have each hard label."""
        return self.rows.targets.class_counts

    def diagonal(self) -> wide.Wide:
        """Each feature's sum of squares, as 128-bit integers."""
        total = wide.zeros((self.rows.integers.shape[1],))
        whole = self.rows.integers.astype(np.int64)
        high, low = whole >> 21, whole & ((1 << 21) - 1)
        for left, right, shift in ((high, high, 42), (high, low, 22), (low, low, 0)):
            for start in range(0, len(whole), 1 << 18):  # terms below 2^43: so many fit 63 bits
                part = slice(start, start + (1 << 18))
                squares = np.einsum("ij,ij->j", left[part], right[part], optimize=False)
                wide.add_shifted(total, squares, shift)
        return total


@dataclass(frozen=True)
class GramPart:
    """Samples as their exact statistics."""

    statistics: Statistics

    @property
    def count(self) -> int:
        """How many samples there are."""
        return self.statistics.count

    @property
    def class_counts(self) -> NDArray[np.int64]:
        """How many of them have each hard label."""
        return self.statistics.class_counts

    def diagonal(self) -> wide.Wide:
        """Each feature's sum of squares, as 128-bit integers."""
        return np.ascontiguousarray(
            self.statistics.gram[:, packed_diagonal(self.statistics.spec.width)]
        )


@dataclass(frozen=True)
class FactorPart:
    """Samples as a factor in float64, with counts that the sender states."""

    factor: Factor
    count: int
    class_counts: NDArray[np.int64]


Part = RowsPart | GramPart | FactorPart


@dataclass(frozen=True)
class Message:
    """What a request adds and what it deletes; None for no samples."""

    kind: ChangeKind
    added: Part | None = None
    deleted: Part | None = None
    # of a group: size and root of its audit log, of which the message is the state
    log: tuple[int, bytes] | None = field(default=None, kw_only=True)

    def to_bytes(self, spec: Spec) -> bytes:
        """The bytes of docs/protocol.md."""
        parts = [part for part in (self.added, self.deleted) if part is not None]
        if self.kind == "factor":
            return b"".join(_factor_bytes(spec, part) for part in (self.added, self.deleted))
        start = [] if self.log is None else [pack(_LOG, *self.log)]
        return b"".join([*start, *(piece for part in parts for piece in _pieces(spec, part))])


def _pieces(spec: Spec, part: Part) -> list[bytes]:
    """The bytes of a part, which may be large, to be joined once."""
    if isinstance(part, GramPart):
        data = part.statistics.to_bytes()
        return [pack("Q", len(data)), data]
    if not isinstance(part, RowsPart):
        raise FormatError(f"a {type(part).__name__} is not part of a gram or rows message")
    targets = part.rows.targets
    hard = spec.is_classification and int(targets.class_counts.sum()) == part.count
    if hard:
        labels = bytes([_HARD]) + targets.integers.argmax(axis=1).astype("<u4").tobytes()
    else:
        labels = bytes([_REAL]) + targets.integers.astype("<i8").tobytes()
    return [*part.salts, part.rows.integers[:, : spec.dim].astype("<i8").tobytes(), labels]


def _factor_bytes(spec: Spec, part: Part | None) -> bytes:
    if part is None:
        return pack("I", 0)
    if not isinstance(part, FactorPart):
        raise FormatError(f"a {type(part).__name__} is not part of a factor message")
    numbers = (
        part.factor.r.astype("<f8").tobytes() + part.factor.coefficients.astype("<f8").tobytes()
    )
    counts = part.class_counts.astype("<i8").tobytes() if spec.is_classification else b""
    return pack("I", len(part.factor.r)) + numbers + counts


def read(
    spec: Spec, kind: ChangeKind, added: int, deleted: int, data: bytes | memoryview
) -> Message:
    """The message of these bytes, which must have exactly these counts of samples added and
    deleted.
    """
    reader = Reader(data, "the message", "offer it again")
    if kind == "none":
        message = Message(kind)
    elif kind == "gram":
        message = Message(kind, _gram(spec, added, reader), _gram(spec, deleted, reader))
    elif kind == "rows":
        message = Message(kind, _rows(spec, added, reader), _rows(spec, deleted, reader))
    elif kind == "net":
        message = Message(kind, _statistics(spec, added - deleted, reader))
    elif kind == "group":
        size, root = reader.fields(_LOG, "the log of a group")
        message = Message(kind, _statistics(spec, added - deleted, reader), log=(size, root))
    elif kind == "factor":
        message = Message(kind, _factor(spec, added, reader), _factor(spec, deleted, reader))
    else:
        raise FormatError(
            f"there is no message of kind {kind!r:.40}: it must be gram, rows, factor, group or "
            "none"
        )
    reader.end()
    if kind == "none" and added + deleted:
        raise FormatError("a request that changes samples needs a message")
    return message


def _gram(spec: Spec, count: int, reader: Reader) -> GramPart | None:
    return _statistics(spec, count, reader) if count else None


def _statistics(spec: Spec, count: int, reader: Reader) -> GramPart:
    statistics = Statistics.from_bytes(spec, reader.prefixed("the statistics", "Q"))
    if statistics.count != count:
        raise FormatError(
            f"the statistics are of {statistics.count} samples, but the request speaks of {count}"
        )
    return GramPart(statistics)


def _rows(spec: Spec, count: int, reader: Reader) -> RowsPart | None:
    if not count:
        return None
    salts = reader.pieces(count, SALT_BYTES, "the salts")
    features = reader.array("<i8", (count, spec.dim), "the features")
    limit = 1 << spec.grid.bits
    # Python's integers: -2^63 has no opposite in 64 bits
    largest = max(int(features.max()), -int(features.min()))
    if largest >= limit:
        raise FormatError(
            f"a feature of {largest} units is beyond the grid, whose limit is {limit}"
        )
    integers = np.empty((count, spec.width))
    integers[:, : spec.dim] = features
    if spec.intercept:
        integers[:, -1] = 2.0**spec.grid.fraction_bits
        largest = max(largest, 1 << spec.grid.fraction_bits)
    rows = Rows(integers, float(largest), _targets(spec, count, reader))
    return RowsPart(rows, tuple(salts))


def _targets(spec: Spec, count: int, reader: Reader) -> Targets:
    (form,) = reader.fields("B", "the form of the targets")
    integers = np.zeros((count, spec.columns))
    if form == _HARD and spec.is_classification:
        indices = reader.array("<u4", (count,), "the labels").astype(np.int64)
        if (indices >= spec.columns).any():
            raise FormatError(
                f"class index {indices.max()} is beyond the spec's {spec.columns} labels"
            )
        integers[np.arange(count), indices] = 2.0**spec.label_grid.fraction_bits
        return Targets(integers, np.bincount(indices, minlength=spec.columns))
    if form != _REAL:
        raise FormatError(f"targets of form {form} are unknown here")
    values = reader.array("<i8", (count, spec.columns), "the targets")
    limit = 1 << spec.label_grid.bits
    if values.max() >= limit or values.min() <= -limit:
        raise FormatError(f"a target is beyond the label grid, whose limit is {limit} units")
    integers[:] = values
    return Targets.of(spec, integers)


def _factor(spec: Spec, count: int, reader: Reader) -> FactorPart | None:
    from expunge.solvers.float64 import Factor  # noqa: PLC0415 - for federations in float64 only

    (rank,) = reader.fields("I", "the rank of a factor")
    if not rank and not count:
        return None
    if not 0 < rank <= min(count, spec.width):
        raise FormatError(
            f"a factor of rank {rank} cannot be of {count} samples of width {spec.width}"
        )
    r = np.array(reader.array("<f8", (rank, spec.width), "R"), dtype=np.float64)
    coefficients = np.array(reader.array("<f8", (rank, spec.columns), "Q'Y"), dtype=np.float64)
    if not (
        (np.abs(r) <= _LARGEST_IN_FACTOR).all()
        and (np.abs(coefficients) <= _LARGEST_IN_FACTOR).all()
    ):
        raise FormatError(
            "the numbers of a factor must be finite, and at most 2^200 so that their squares are"
        )
    classes = spec.columns if spec.is_classification else 0
    counts = np.array(reader.array("<i8", (classes,), "the class counts"), dtype=np.int64)
    if (counts < 0).any() or sum(
        counts.tolist()
    ) > count:  # Python's integers: these may not fit 64 bits together
        raise FormatError(f"the class counts of a factor contradict its {count} samples")
    return FactorPart(Factor(r, coefficients), count, counts)


_HEADER_BYTES = 1024  # with its signature and the longest name
_ORDER_BYTES = 80  # of each answer to an order, in the header
_STATISTICS_BYTES = 136  # of statistics, beside their numbers
_WIDE_BYTES = 16
_NUMBER_BYTES = 8


def request_bytes(spec: Spec, kind: MessageKind, added: int, deleted: int, orders: int = 0) -> int:
    """An upper bound for a request with these counts of samples, by a message of this kind."""
    samples, parts = added + deleted, (added > 0) + (deleted > 0)
    if kind == "rows":
        message = parts + samples * (SALT_BYTES + _NUMBER_BYTES * (spec.dim + spec.columns))
    elif kind == "gram":
        message = parts * (_NUMBER_BYTES + statistics_bytes(spec))
    else:
        message = 2 * _NUMBER_BYTES * (1 + spec.width * (spec.width + spec.columns) + spec.columns)
    return _HEADER_BYTES + _ORDER_BYTES * orders + COMMITMENT_BYTES * samples + message


def fitting(
    spec: Spec,
    kind: MessageKind,
    largest: int | None,
    *,
    added: int = 0,
    deleted: int = 0,
    orders: int = 0,
) -> MessageKind | None:
    """The kind of message by which such a request is within `largest` bytes: this one, or else
    gram; None if neither is.

    Rows may go as gram where the spec allows that.
    """
    kinds: list[MessageKind] = [kind]
    if kind == "rows" and "gram" in spec.messages:
        kinds.append("gram")
    for candidate in kinds:
        if largest is None or request_bytes(spec, candidate, added, deleted, orders) <= largest:
            return candidate
    return None


def statistics_bytes(spec: Spec) -> int:
    """The bytes of statistics, which are as many for any number of samples."""
    classes = spec.columns if spec.is_classification else 0
    numbers = (
        spec.width * (spec.width + 1) // 2
        + spec.width * spec.columns
        + spec.columns * (spec.columns + 1) // 2
    )
    return _STATISTICS_BYTES + _NUMBER_BYTES * classes + _WIDE_BYTES * numbers


def beyond(spec: Spec, orders: Sequence[str], deleted: int, largest: int | None) -> str:
    """Why what these orders delete cannot be sent."""
    kind: MessageKind = "gram" if "gram" in spec.messages else "rows"
    needed = request_bytes(spec, kind, 0, deleted, len(orders))
    return (
        f"the {deleted} samples to delete for order {', '.join(orders)} must travel in one "
        f"request, which needs up to {needed} bytes, and the server takes {largest}. Nothing is "
        "lost: have its operator raise largest_request (expunge serve --largest-request), then "
        "sync again"
    )
