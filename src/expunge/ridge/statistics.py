"""Statistics: gram, moment and counts of a set of samples; a commutative group with canonical
bytes.

Laws, bit for bit: addition is associative and commutative, `Statistics.zero(spec)` is neutral, `a +
b - b == a`, and `of(spec, rows)` is the sum of `of(spec, row)` over the rows, whatever their order
and however they are split.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from expunge.errors import InputError, SpecMismatchError
from expunge.exact import blas, wide
from expunge.ridge import codec
from expunge.ridge.codec import Parts
from expunge.ridge.encoding import ColumnWatch, Rows, check_lost_columns
from expunge.ridge.spec import Spec
from expunge.ridge.sums import (
    Progress,
    Sums,
    add_batch,
    add_rows,
    batches,
    embedded,
    require_room,
)

Float = NDArray[np.float64]


class Statistics:
    """Exact sufficient statistics of samples: the group of 128-bit integer sums behind the ridge
    head.

    Make one with `Statistics.of`; add and subtract freely. Any element of the group is allowed,
    negative ones included: what may be deleted is for solvers and ledgers to judge.
    """

    __slots__ = (
        "__dict__",
        "_gram_by_construction",
        "class_counts",
        "count",
        "gram",
        "label_gram",
        "moment",
        "spec",
    )

    spec: Spec
    gram: wide.Wide  # packed upper triangle of S, in units of 2^(-2 fraction_bits)
    moment: wide.Wide  # G, in units of 2^-(fraction_bits + label fraction_bits)
    label_gram: wide.Wide  # Y'Y, in units of 2^(-2 label fraction_bits)
    count: int
    class_counts: NDArray[np.int64]
    _gram_by_construction: bool

    def __init__(self) -> None:
        raise TypeError(
            "make statistics with Statistics.of(spec, features, labels), .zero(spec) or "
            ".from_bytes(spec, data)"
        )

    @classmethod
    def _make(
        cls, source: Any, *, spec: Spec | None = None, by_construction: bool = False
    ) -> Statistics:
        self = object.__new__(cls)
        set_slot = object.__setattr__
        set_slot(self, "spec", spec if spec is not None else source.spec)
        for name in ("gram", "moment", "label_gram", "class_counts"):
            array = getattr(source, name)
            array.flags.writeable = False
            set_slot(self, name, array)
        set_slot(self, "count", int(source.count))
        set_slot(self, "_gram_by_construction", by_construction)
        return self

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"statistics are immutable; {name} cannot be set")

    # -- making ------------------------------------------------------------------------------------

    @classmethod
    def zero(cls, spec: Spec) -> Statistics:
        """The statistics of no samples: the neutral element."""
        return cls._make(Sums(spec), by_construction=True)

    @classmethod
    def snapshot(cls, sums: Sums, *, by_construction: bool = False) -> Statistics:
        """The value of sums that go on changing; `by_construction` says that they were only ever
        added to.
        """
        sums.settle()
        parts = object.__new__(Parts)
        for name in ("gram", "moment", "label_gram", "class_counts"):
            setattr(parts, name, getattr(sums, name).copy())
        parts.count = sums.count
        return cls._make(parts, spec=sums.spec, by_construction=by_construction)

    @classmethod
    def of(
        cls,
        spec: Spec,
        features: Any,
        labels: Any = None,
        *,
        lost_columns: str = "refuse",
        living: NDArray[np.bool_] | None = None,
        progress: Progress | None = None,
    ) -> Statistics:
        """The statistics of samples, given as arrays or as batches.

        `features` (n, dim) and `labels`: integers are class indices, strings are label names, an
        (n, columns) array holds soft or real targets, one-dimensional floats mean outputs=1.
        Memory-mapped arrays are read block by block. Without `labels`, `features` is an iterable of
        (features, labels) batches, read one at a time. `progress` is called with the number of
        samples done so far.

        Refuses by row and column what the grid cannot hold; with lost_columns="refuse" also a
        column that is not zero but whose every value rounds to zero, unless `living` says that it
        is known to live elsewhere.
        """
        if not isinstance(spec, Spec):
            raise InputError(
                "Statistics.of takes a Spec first, then features and labels; got "
                f"{type(spec).__name__}"
            )
        check_lost_columns(lost_columns)
        sums, watch = Sums(spec), ColumnWatch(spec)
        for batch_features, batch_labels in batches(features, labels):
            add_batch(sums, watch, batch_features, batch_labels, progress)
        if lost_columns == "refuse":
            watch.require_none_lost(living)
        sums.settle()
        return cls._make(sums, by_construction=True)

    @classmethod
    def of_rows(cls, spec: Spec, rows: Rows) -> Statistics:
        """The statistics of samples that are integers already, as a message has them."""
        sums = Sums(spec)
        add_rows(sums, rows)
        sums.settle()
        return cls._make(sums, by_construction=True)

    # -- the group ---------------------------------------------------------------------------------

    def __add__(self, other: object) -> Statistics:
        if isinstance(other, int) and other == 0:
            return self
        if not isinstance(other, Statistics):
            return NotImplemented
        return self._combined(other, 1)

    __radd__ = __add__

    def __sub__(self, other: object) -> Statistics:
        return self._combined(other, -1) if isinstance(other, Statistics) else NotImplemented

    def __neg__(self) -> Statistics:
        return Statistics.zero(self.spec) - self

    def _combined(self, other: Statistics, sign: int) -> Statistics:
        spec = _joined(self.spec, other.spec, "add" if sign > 0 else "subtract")
        left, right = self.under(spec), other.under(spec)
        change = wide.add if sign > 0 else wide.subtract
        result = object.__new__(Parts)
        result.gram = change(left.gram, right.gram)
        result.moment = change(left.moment, right.moment)
        result.label_gram = change(left.label_gram, right.label_gram)
        result.class_counts = left.class_counts + sign * right.class_counts
        result.count = left.count + sign * right.count
        require_room(result.count)
        known = sign > 0 and left._gram_by_construction and right._gram_by_construction
        return Statistics._make(result, spec=spec, by_construction=known)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Statistics):
            return NotImplemented
        return (
            self.spec.data_digest == other.spec.data_digest
            and self.spec.labels_digest == other.spec.labels_digest
            and self.count == other.count
            and np.array_equal(self.class_counts, other.class_counts)
            and np.array_equal(self.moment, other.moment)
            and np.array_equal(self.label_gram, other.label_gram)
            and np.array_equal(self.gram, other.gram)
        )

    def __hash__(self) -> int:
        return hash(self.digest)

    def __reduce__(self) -> tuple[Any, ...]:
        arrays = (self.gram, self.moment, self.label_gram, self.class_counts)
        return _unpickled, (self.spec, self.count, arrays, self._gram_by_construction)

    def __repr__(self) -> str:
        kind = (
            f"{self.spec.columns} labels"
            if self.spec.is_classification
            else f"{self.spec.columns} outputs"
        )
        return f"<Statistics of {self.count} samples, {self.spec.width} features, {kind}>"

    def under(self, spec: Spec) -> Statistics:
        """The same statistics under another head spec (gamma, publication, policy) or with labels
        appended.
        """
        if spec == self.spec:
            return self
        if not spec.grows_from(self.spec):
            raise SpecMismatchError(
                f"these statistics cannot be put under that spec: {self.spec.difference(spec)}"
            )
        if spec.columns == self.spec.columns:
            return Statistics._make(self, spec=spec, by_construction=self._gram_by_construction)
        parts = object.__new__(Parts)
        parts.gram, parts.count = self.gram, self.count
        parts.moment, parts.label_gram, parts.class_counts = embedded(
            spec, self.moment, self.label_gram, self.class_counts
        )
        return Statistics._make(parts, spec=spec, by_construction=self._gram_by_construction)

    @property
    def gram_by_construction(self) -> bool:
        """Whether S is known to be a Gram because it was only ever added up from samples.

        Never part of the digest.
        """
        return self._gram_by_construction

    # -- views -------------------------------------------------------------------------------------

    def gram_float(self) -> Float:
        """S as a symmetric float64 matrix, each entry within one part in 2^51."""
        packed = wide.to_float(self.gram, -2 * self.spec.grid.fraction_bits)
        upper = np.triu(blas.upper_from_packed(self.spec.width, packed))
        return upper + np.triu(upper, 1).T

    def moment_float(self) -> Float:
        """G as float64, each entry within one part in 2^51."""
        return wide.to_float(
            self.moment, -self.spec.grid.fraction_bits - self.spec.label_grid.fraction_bits
        )

    def label_gram_float(self) -> Float:
        """Y'Y as float64, each entry within one part in 2^51."""
        return wide.to_float(self.label_gram, -2 * self.spec.label_grid.fraction_bits)

    def diagonal(self) -> list[int]:
        """The diagonal of S as integers, in units of 2^(-2 fraction_bits)."""
        return wide.to_ints(self.gram[:, blas.packed_diagonal(self.spec.width)])

    # -- bytes -------------------------------------------------------------------------------------

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical bytes, in hexadecimal."""
        return codec.digest_of(self)

    def to_bytes(self) -> bytes:
        """Canonical, versioned bytes that end with their SHA-256; docs/formats.md describes
        them.
        """
        return codec.write(self)

    @classmethod
    def from_bytes(cls, spec: Spec, data: bytes) -> Statistics:
        """The inverse of `to_bytes`; refuses altered bytes and bytes of another spec.

        Bytes made before labels were appended to the spec are embedded.
        """
        return cls._make(codec.read(spec, data), spec=spec)


def _unpickled(
    spec: Spec, count: int, arrays: tuple[Any, ...], by_construction: bool
) -> Statistics:
    parts = object.__new__(Parts)
    parts.gram, parts.moment, parts.label_gram, parts.class_counts = arrays
    parts.count = count
    return Statistics._make(parts, spec=spec, by_construction=by_construction)


def _joined(left: Spec, right: Spec, doing: str) -> Spec:
    """The spec of a sum: the one with more labels, where one grows from the other."""
    if left == right:
        return left
    if not (left.grows_from(right) or right.grows_from(left)):
        raise SpecMismatchError(
            f"cannot {doing} statistics of different specs: {left.difference(right)}. Make both "
            "under one spec"
        )
    if left.head_digest != right.head_digest or left.policy_digest != right.policy_digest:
        raise SpecMismatchError(
            f"cannot {doing} statistics under different head specs: {left.difference(right)}. "
            "Say which one is meant: statistics.under(spec)"
        )
    return left if left.grows_from(right) else right
