"""ApproximateMessage: what a client sends instead of the statistics of a batch, with how far it is
from them.

Laws: `ApproximateMessage.from_bytes(spec, message.to_bytes())` is the message, bit for bit; altered
bytes are refused. A `Batch` is samples as the real numbers that the exact statistics are sums of,
in float64 and without any error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.approximate.bounds import Interval
from expunge.errors import FormatError, InputError, SpecMismatchError
from expunge.frame import CHECKSUM_BYTES, Format, with_checksum
from expunge.ridge.encoding import integer_rows
from expunge.ridge.plausibility import count_problem
from expunge.ridge.spec import Spec
from expunge.ridge.sums import require_room

Float = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Batch:
    """Samples as the real numbers that their exact statistics are sums of, in float64.

    F'F and F'Y in real arithmetic are the gram and the moment of `Statistics.of(spec, features,
    labels)`. So bounds about a batch are bounds about what the exact head is made of. `Batch.of`
    makes one.

    Attributes
    ----------
    spec : Spec
        Whose grids the values are on.
    features : float64 ndarray of shape (n, width)
        With the constant feature last, if the spec has an intercept.
    targets : float64 ndarray of shape (n, columns)
        Real targets, or hard labels as 0 and 1.
    class_counts : int64 ndarray of shape (columns,)
        How many samples are hard labels of each class; empty in regression.

    Examples
    --------
    >>> import expunge
    >>> from expunge.approximate import Batch
    >>> spec = expunge.Spec(dim=2, labels=("cat", "dog"))
    >>> batch = Batch.of(spec, [[0.5, 1.0], [2.0, 0.0]], ["dog", "cat"])
    >>> len(batch), batch.features.tolist()
    (2, [[0.5, 1.0, 1.0], [2.0, 0.0, 1.0]])
    >>> batch.targets.tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """

    spec: Spec
    features: Float
    targets: Float
    class_counts: NDArray[np.int64]

    @classmethod
    def of(cls, spec: Spec, features: Any, labels: Any) -> Batch:
        """The batch of samples, put on the spec's grids.

        Parameters
        ----------
        spec : Spec
            Whose grids and labels are used.
        features : array-like of shape (n, dim)
            As for `Statistics.of`, in one piece.
        labels : array-like of shape (n,) or (n, columns)
            As for `Statistics.of`.

        Returns
        -------
        Batch
            Of all samples, in memory.

        Raises
        ------
        InputError
            If features or labels have the wrong shape, are not finite, are beyond the grid, or are
            not in the spec; by the same subclasses as `Statistics.of`. Lost columns are not looked
            for.
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
_FORMAT = Format(
    "an approximate message",
    b"expunge\x00approximate\x00",
    "32s32sIIIIqBBddd",
    remedy="ask for it again",
)
_KINDS = (
    "truncated",
    "randomized",
    "frequent_directions",
    "gaussian",
    "sparse_sign",
)  # their places are their numbers


@dataclass(frozen=True, eq=False)
class ApproximateMessage:
    """What a client sends instead of the exact statistics of a batch, with its proven error.

    A factor U stands for the gram of the batch by its own Gram: -error.below I <= F'F - U'U <=
    error.above I, for the very U that is in the message. `compress` and `rank_for` make messages.

    Attributes
    ----------
    spec : Spec
        What the batch was made under.
    method : str
        How the factor was found; a key of `METHODS`.
    factor : float32 or float64 ndarray of shape (rank, width)
        U; read-only.
    moment : float64 ndarray of shape (width, columns)
        F'Y, rounded; read-only.
    count : int
        The number of samples.
    class_counts : int64 ndarray of shape (columns,)
        How many samples are hard labels of each class; empty in regression.
    error : Interval
        Of F'F - U'U, proven by the sender.
    moment_error : float
        A bound on the Frobenius norm of what the moment is off by.

    Raises
    ------
    InputError
        If shapes, types or values do not fit each other and the spec.

    Notes
    -----
    The receiver cannot check the sender's claims before a reset.

    Examples
    --------
    >>> import expunge
    >>> from expunge.approximate import ApproximateMessage, Batch, compress
    >>> spec = expunge.Spec(dim=2, labels=("cat", "dog"))
    >>> batch = Batch.of(spec, [[0.5, 1.0], [2.0, 0.0]], ["dog", "cat"])
    >>> message = compress(batch, "frequent_directions", rank=2)
    >>> data = message.to_bytes()
    >>> len(data) == message.size
    True
    >>> ApproximateMessage.from_bytes(spec, data).to_bytes() == data
    True
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
            _FORMAT.size
            + self.class_counts.nbytes
            + self.factor.nbytes
            + self.moment.nbytes
            + CHECKSUM_BYTES
        )

    def __repr__(self) -> str:
        return (
            f"<ApproximateMessage of {self.count} samples, {self.method} at rank {self.rank}, "
            f"{self.size} bytes, error {self.error.norm:.3g}>"
        )

    def to_bytes(self) -> bytes:
        """The message as versioned bytes that end with their SHA-256; `from_bytes` is the inverse.

        Returns
        -------
        bytes
            Header, class counts, factor and moment, all little-endian, and the checksum.
        """
        header = _FORMAT.begin(
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
        return with_checksum([header, *(array.tobytes() for array in arrays)])

    @classmethod
    def from_bytes(cls, spec: Spec, data: bytes) -> ApproximateMessage:
        """The message that `to_bytes` wrote, bit for bit.

        Parameters
        ----------
        spec : Spec
            With the data and labels digests that the message was made under.
        data : bytes
            All of the message.

        Returns
        -------
        ApproximateMessage
            Equal in every bit.

        Raises
        ------
        FormatError
            If the bytes are truncated, altered, or contradict themselves.
        SpecMismatchError
            If they were made under another spec.
        """
        fields, reader = _FORMAT.open(data)
        reader.require_checksum()
        digests = fields[:2]
        width, columns, classes, rank, count, method, precision, *errors = fields[2:]
        if [digest.hex() for digest in digests] != [spec.data_digest, spec.labels_digest]:
            raise SpecMismatchError(
                "this approximate message was made under another spec: dim, intercept, grids, "
                "backbone and labels must agree"
            )
        if (
            (width, columns) != (spec.width, spec.columns)
            or classes != (columns if spec.is_classification else 0)
            or method >= len(_KINDS)
            or precision >= len(PRECISIONS)
        ):
            raise FormatError(
                "an approximate message contradicts itself: its header does not fit its spec; ask "
                "for it again"
            )
        kind = np.dtype(PRECISIONS[precision]).newbyteorder("<").str
        counts = reader.array("<i8", (classes,), "the class counts").astype(np.int64)
        factor = reader.array(kind, (rank, width), "the factor")
        moment = reader.array("<f8", (width, columns), "the moment")
        reader.end()
        below, above, moment_error = errors
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
