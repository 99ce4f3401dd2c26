"""ApproximateMessage: what a client sends instead of the statistics of a batch, with how far it is
from them.

Laws: `ApproximateMessage.from_bytes(spec, message.to_bytes())` is the message, bit for bit; altered
bytes are refused. A `Batch` is samples as the real numbers that the exact statistics are sums of,
in float64 and without any error.
"""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.approximate.bounds import Interval
from expunge.errors import FormatError, InputError, SpecMismatchError
from expunge.ridge.encoding import integer_rows
from expunge.ridge.plausibility import count_problem
from expunge.ridge.spec import Spec
from expunge.ridge.sums import require_room

Float = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Batch:
    """Features (n, width), with the constant one if the spec has it, and targets (n, columns), as
    the grids hold them.

    Law: F'F and F'Y in real arithmetic are the gram and the moment of `Statistics.of(spec,
    features, labels)`. So bounds about a batch are bounds about what the exact head is made of.
    """

    spec: Spec
    features: Float
    targets: Float
    class_counts: NDArray[np.int64]

    @classmethod
    def of(cls, spec: Spec, features: Any, labels: Any) -> Batch:
        """Features and labels as for `Statistics.of`, in one piece; values are put on the spec's
        grids.
        """
        rows = integer_rows(spec, features, labels)
        return cls(
            spec,
            np.ldexp(rows.integers, -spec.grid.fraction_bits),
            np.ldexp(rows.targets.integers, -spec.label_grid.fraction_bits),
            rows.targets.class_counts,
        )

    def __len__(self) -> int:
        return len(self.features)


PRECISIONS = ("float32", "float64")
_MAGIC = b"expunge\x00approximate\x00"
_VERSION = 1
_HEADER = struct.Struct(f"<{len(_MAGIC)}sB32s32sIIIIqBBddd")
_CHECKSUM = hashlib.sha256().digest_size
_KINDS = (
    "truncated",
    "randomized",
    "frequent_directions",
    "gaussian",
    "sparse_sign",
)  # their places are their numbers


@dataclass(frozen=True, eq=False)
class ApproximateMessage:
    """A factor U (rank, width) whose Gram stands for the gram of a batch, its moment, and counts.

    `error` is proven by the sender: -below I <= F'F - U'U <= above I, for the very U that is in the
    message. `moment_error` bounds the Frobenius norm of what the float64 moment is off by. The
    receiver cannot check either before a reset.
    """

    spec: Spec
    method: str
    factor: NDArray[Any]  # float32 or float64
    moment: Float
    count: int
    class_counts: NDArray[np.int64]
    error: Interval
    moment_error: float

    def __post_init__(self) -> None:
        if self.method not in _KINDS:
            raise InputError(f"{self.method!r} is no method; there are {', '.join(_KINDS)}")
        if self.factor.dtype.name not in PRECISIONS:
            raise InputError(f"a factor is sent as float32 or float64, not as {self.factor.dtype}")
        width, columns = self.spec.width, self.spec.columns
        if (
            self.factor.ndim != 2
            or self.factor.shape[1] != width
            or self.moment.shape != (width, columns)
        ):
            raise InputError(
                f"a factor of shape {self.factor.shape} and a moment of shape {self.moment.shape} "
                f"do not fit the spec, which asks for (rank, {width}) and ({width}, {columns})"
            )
        if self.moment.dtype != np.float64 or self.class_counts.dtype != np.int64:
            raise InputError(
                f"a moment is float64 and class counts int64, not {self.moment.dtype} and "
                f"{self.class_counts.dtype}"
            )
        with np.errstate(over="ignore", invalid="ignore"):
            lengths = [
                np.square(array, dtype=np.float64).sum() for array in (self.factor, self.moment)
            ]
        if not np.isfinite(lengths).all():
            raise InputError("factor and moment of a message must be finite, and their squares too")
        if not (math.isfinite(self.moment_error) and self.moment_error >= 0.0):
            raise InputError(
                f"the bound on a moment's error is finite and not negative, not {self.moment_error}"
            )
        require_room(self.count)
        classes = (columns,) if self.spec.is_classification else (0,)
        if (
            self.class_counts.shape != classes
            or count_problem(self.spec, self.count, self.class_counts.tolist()) is not None
        ):
            raise InputError(
                f"a message of {self.count} samples cannot have the class counts "
                f"{self.class_counts.tolist()}"
            )
        for array in (self.factor, self.moment, self.class_counts):
            array.flags.writeable = False

    @property
    def rank(self) -> int:
        """The number of rows of the factor."""
        return len(self.factor)

    @property
    def size(self) -> int:
        """The number of bytes of the message, without writing it."""
        return (
            _HEADER.size
            + self.class_counts.nbytes
            + self.factor.nbytes
            + self.moment.nbytes
            + _CHECKSUM
        )

    def __repr__(self) -> str:
        return (
            f"<ApproximateMessage of {self.count} samples, {self.method} at rank {self.rank}, "
            f"{self.size} bytes, error {self.error.norm:.3g}>"
        )

    def to_bytes(self) -> bytes:
        """Versioned bytes that end with their SHA-256: header, class counts, factor and moment, all
        little-endian.
        """
        header = _HEADER.pack(
            _MAGIC,
            _VERSION,
            bytes.fromhex(self.spec.data_digest),
            bytes.fromhex(self.spec.labels_digest),
            *self.moment.shape,
            len(self.class_counts),
            self.rank,
            self.count,
            _KINDS.index(self.method),
            PRECISIONS.index(self.factor.dtype.name),
            self.error.below,
            self.error.above,
            self.moment_error,
        )
        kind = "<f4" if self.factor.dtype == np.float32 else "<f8"
        arrays = (
            self.class_counts.astype("<i8"),
            self.factor.astype(kind),
            self.moment.astype("<f8"),
        )
        content = b"".join([header, *(array.tobytes() for array in arrays)])
        return content + hashlib.sha256(content).digest()

    @classmethod
    def from_bytes(cls, spec: Spec, data: bytes) -> ApproximateMessage:
        """The inverse of `to_bytes`; refuses altered bytes and bytes of another spec."""
        if len(data) < _HEADER.size + _CHECKSUM:
            raise FormatError(
                f"an approximate message is truncated: {len(data)} bytes are less than a header; "
                "ask for it again"
            )
        magic, version, *rest = _HEADER.unpack_from(data)
        if magic != _MAGIC:
            raise FormatError(
                "these bytes are no approximate message: they do not begin as one does"
            )
        if version != _VERSION:
            raise FormatError(
                f"this approximate message is of version {version}; this release reads version "
                f"{_VERSION}"
            )
        if hashlib.sha256(data[:-_CHECKSUM]).digest() != data[-_CHECKSUM:]:
            raise FormatError(
                "an approximate message has been altered: its checksum does not match; ask for it "
                "again"
            )
        (
            digests,
            (width, columns, classes, rank, count, method, precision, below, above, moment_error),
        ) = rest[:2], rest[2:]
        if [digest.hex() for digest in digests] != [spec.data_digest, spec.labels_digest]:
            raise SpecMismatchError(
                "this approximate message was made under another spec: dim, intercept, grids, "
                "backbone and labels must agree"
            )
        if (
            (width, columns) != (spec.width, spec.columns)
            or method >= len(_KINDS)
            or precision >= len(PRECISIONS)
        ):
            raise FormatError(
                "an approximate message contradicts itself: its header does not fit its spec; ask "
                "for it again"
            )
        kind = np.dtype(PRECISIONS[precision]).newbyteorder("<")
        sizes = [8 * classes, kind.itemsize * rank * width, 8 * width * columns]
        if len(data) != _HEADER.size + sum(sizes) + _CHECKSUM or classes != (
            columns if spec.is_classification else 0
        ):
            raise FormatError(
                f"an approximate message has {len(data)} bytes, not what its header says; ask for "
                "it again"
            )
        counts = np.frombuffer(data, "<i8", classes, _HEADER.size).astype(np.int64)
        factor = np.frombuffer(data, kind, rank * width, _HEADER.size + sizes[0]).reshape(
            rank, width
        )
        moment = np.frombuffer(
            data, "<f8", width * columns, _HEADER.size + sizes[0] + sizes[1]
        ).reshape(width, columns)
        try:
            return cls(
                spec,
                _KINDS[method],
                factor.astype(PRECISIONS[precision]),
                moment.astype(np.float64),
                count,
                counts,
                Interval(below, above),
                moment_error,
            )
        except InputError as problem:
            raise FormatError(f"an approximate message says what cannot be: {problem}") from problem
