"""Statistics: gram, moment and counts of a set of samples; a commutative group with canonical bytes.

Laws, bit for bit: addition is associative and commutative, `Statistics.zero(spec)` is neutral, `a + b - b == a`, and
`of(spec, rows)` is the sum of `of(spec, row)` over the rows, whatever their order and however they are split.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import cached_property
from itertools import zip_longest
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from expunge.errors import FormatError, InputError, ShapeError, SpecMismatchError
from expunge.exact import blas, parallel, wide
from expunge.rows import ColumnWatch, Rows, check_lost_columns, checked_features, put_features
from expunge.spec import Spec
from expunge.sums import Sums, embedded, require_room
from expunge.targets import checked_labels, targets_of

Float = NDArray[np.float64]
Progress = Callable[[int], None]

_END = object()
_MAGIC = b"expunge\x00statistics\x00"
_VERSION = 1
_HEADER = struct.Struct(f"<{len(_MAGIC)}sB32s32sIIqI")
_CHECKSUM = hashlib.sha256().digest_size
_BLOCK_ROWS = 512
_WORTH_SHARING = 1 << 21  # entries of a batch below which one thread is faster
_NARROW = 256  # up to this width more BLAS threads would cost more than they save
_SHARED_WIDTH = 2048  # beyond this BLAS dominates, and a set of products for each thread would cost more than it saves


class Statistics:
    """Exact sufficient statistics of samples: the group of 128-bit integer sums behind the ridge head.

    Make one with `Statistics.of`; add and subtract freely. Any element of the group is allowed, negative ones included: what
    may be deleted is for solvers and ledgers to judge.
    """

    __slots__ = ("__dict__", "_gram_by_construction", "class_counts", "count", "gram", "label_gram", "moment", "spec")

    spec: Spec
    gram: wide.Wide  # packed upper triangle of S, in units of 2^(-2 fraction_bits)
    moment: wide.Wide  # G, in units of 2^-(fraction_bits + label fraction_bits)
    label_gram: wide.Wide  # Y'Y, in units of 2^(-2 label fraction_bits)
    count: int
    class_counts: NDArray[np.int64]
    _gram_by_construction: bool

    def __init__(self) -> None:
        raise TypeError("make statistics with Statistics.of(spec, features, labels), .zero(spec) or .from_bytes(spec, data)")

    @classmethod
    def _make(cls, source: Any, *, spec: Spec | None = None, by_construction: bool = False) -> Statistics:
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

    # -- making ---------------------------------------------------------------------------------------------------------

    @classmethod
    def zero(cls, spec: Spec) -> Statistics:
        """The statistics of no samples: the neutral element."""
        return cls._make(Sums(spec), by_construction=True)

    @classmethod
    def snapshot(cls, sums: Sums, *, by_construction: bool = False) -> Statistics:
        """The value of sums that go on changing; `by_construction` says that they were only ever added to."""
        sums.settle()
        parts = object.__new__(_Parts)
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

        `features` (n, dim) and `labels`: integers are class indices, strings are label names, an (n, columns) array holds soft
        or real targets, one-dimensional floats mean outputs=1. Memory-mapped arrays are read block by block. Without `labels`,
        `features` is an iterable of (features, labels) batches, read one at a time. `progress` is called with the number of
        samples done so far.

        Refuses by row and column what the grid cannot hold; with lost_columns="refuse" also a column that is not zero but
        whose every value rounds to zero, unless `living` says that it is known to live elsewhere.
        """
        if not isinstance(spec, Spec):
            raise InputError(f"Statistics.of takes a Spec first, then features and labels; got {type(spec).__name__}")
        check_lost_columns(lost_columns)
        sums, watch = Sums(spec), ColumnWatch(spec)
        for batch_features, batch_labels in _batches(features, labels):
            _add_batch(sums, watch, batch_features, batch_labels, progress)
        if lost_columns == "refuse":
            watch.require_none_lost(living)
        sums.settle()
        return cls._make(sums, by_construction=True)

    # -- the group ------------------------------------------------------------------------------------------------------

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
        result = object.__new__(_Parts)
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
        kind = f"{self.spec.columns} labels" if self.spec.is_classification else f"{self.spec.columns} outputs"
        return f"<Statistics of {self.count} samples, {self.spec.width} features, {kind}>"

    def under(self, spec: Spec) -> Statistics:
        """The same statistics under another head spec (gamma, publication, policy) or with labels appended."""
        if spec == self.spec:
            return self
        if not spec.grows_from(self.spec):
            raise SpecMismatchError(f"these statistics cannot be put under that spec: {self.spec.difference(spec)}")
        if spec.columns == self.spec.columns:
            return Statistics._make(self, spec=spec, by_construction=self._gram_by_construction)
        parts = object.__new__(_Parts)
        parts.gram, parts.count = self.gram, self.count
        parts.moment, parts.label_gram, parts.class_counts = embedded(spec, self.moment, self.label_gram, self.class_counts)
        return Statistics._make(parts, spec=spec, by_construction=self._gram_by_construction)

    @property
    def gram_by_construction(self) -> bool:
        """Whether S is known to be a Gram because it was only ever added up from samples. Never part of the digest."""
        return self._gram_by_construction

    # -- views ----------------------------------------------------------------------------------------------------------

    def gram_float(self) -> Float:
        """S as a symmetric float64 matrix, each entry within one part in 2^51."""
        packed = wide.to_float(self.gram, -2 * self.spec.grid.fraction_bits)
        upper = np.triu(blas.upper_from_packed(self.spec.width, packed))
        return upper + np.triu(upper, 1).T

    def moment_float(self) -> Float:
        """G as float64, each entry within one part in 2^51."""
        return wide.to_float(self.moment, -self.spec.grid.fraction_bits - self.spec.label_grid.fraction_bits)

    def label_gram_float(self) -> Float:
        """Y'Y as float64, each entry within one part in 2^51."""
        return wide.to_float(self.label_gram, -2 * self.spec.label_grid.fraction_bits)

    def diagonal(self) -> list[int]:
        """The diagonal of S as integers, in units of 2^(-2 fraction_bits)."""
        return wide.to_ints(self.gram[:, blas.packed_diagonal(self.spec.width)])

    # -- bytes ----------------------------------------------------------------------------------------------------------

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical bytes, in hexadecimal."""
        return hashlib.sha256(self._body()).hexdigest()

    def to_bytes(self) -> bytes:
        """Canonical, versioned bytes that end with their SHA-256; docs/formats.md describes them."""
        return self._body() + bytes.fromhex(self.digest)

    def _body(self) -> bytes:
        header = _HEADER.pack(
            _MAGIC,
            _VERSION,
            bytes.fromhex(self.spec.data_digest),
            bytes.fromhex(self.spec.labels_digest),
            self.spec.width,
            self.spec.columns,
            self.count,
            len(self.class_counts),
        )
        label_gram = self.label_gram[:, *np.triu_indices(self.spec.columns)]
        arrays = (wide.to_bytes(array) for array in (self.gram, self.moment, label_gram))
        return b"".join([header, self.class_counts.astype("<i8").tobytes(), *arrays])

    @classmethod
    def from_bytes(cls, spec: Spec, data: bytes) -> Statistics:
        """The inverse of `to_bytes`; refuses altered bytes and bytes of another spec.

        Bytes made before labels were appended to the spec are embedded.
        """
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise FormatError(f"statistics are read from bytes, got {type(data).__name__}")
        view = memoryview(bytes(data))
        columns, count, classes = _checked_header(spec, view)
        width = spec.width
        shapes = [(blas.packed_length(width),), (width, columns), (blas.packed_length(columns),)]
        sizes = [8 * classes, *(16 * int(np.prod(shape)) for shape in shapes)]
        expected = _HEADER.size + sum(sizes) + _CHECKSUM
        if len(view) != expected:
            state = "truncated" if len(view) < expected else "too long"
            raise FormatError(f"statistics are {state}: {len(view)} bytes where {expected} are expected; ask for them again")
        if hashlib.sha256(view[:-_CHECKSUM]).digest() != view[-_CHECKSUM:]:
            raise FormatError("statistics have been altered: their checksum does not match; ask for them again")
        position = _HEADER.size
        fields = []
        for size in sizes:
            fields.append(view[position : position + size])
            position += size
        parts = object.__new__(_Parts)
        parts.class_counts = np.frombuffer(fields[0], dtype="<i8").astype(np.int64)
        parts.gram, parts.moment = wide.from_bytes(fields[1], shapes[0]), wide.from_bytes(fields[2], shapes[1])
        parts.label_gram = _symmetric(wide.from_bytes(fields[3], shapes[2]), columns)
        parts.count = count
        if columns < spec.columns:
            parts.moment, parts.label_gram, parts.class_counts = embedded(
                spec, parts.moment, parts.label_gram, parts.class_counts
            )
        return cls._make(parts, spec=spec)


class _Parts:
    """The arrays of statistics on their way into a Statistics."""

    gram: wide.Wide
    moment: wide.Wide
    label_gram: wide.Wide
    class_counts: NDArray[np.int64]
    count: int


def _unpickled(spec: Spec, count: int, arrays: tuple[Any, ...], by_construction: bool) -> Statistics:
    parts = object.__new__(_Parts)
    parts.gram, parts.moment, parts.label_gram, parts.class_counts = arrays
    parts.count = count
    return Statistics._make(parts, spec=spec, by_construction=by_construction)


def _joined(left: Spec, right: Spec, doing: str) -> Spec:
    """The spec of a sum: the one with more labels, where one grows from the other."""
    if left == right:
        return left
    if not (left.grows_from(right) or right.grows_from(left)):
        raise SpecMismatchError(
            f"cannot {doing} statistics of different specs: {left.difference(right)}. Make both under one spec"
        )
    if left.head_digest != right.head_digest or left.policy_digest != right.policy_digest:
        raise SpecMismatchError(
            f"cannot {doing} statistics under different head specs: {left.difference(right)}. "
            "Say which one is meant: statistics.under(spec)"
        )
    return left if left.grows_from(right) else right


def _symmetric(packed: wide.Wide, size: int) -> wide.Wide:
    result = wide.zeros((size, size))
    rows, columns = np.triu_indices(size)
    result[:, rows, columns] = packed
    result[:, columns, rows] = packed
    return result


def _checked_header(spec: Spec, view: memoryview) -> tuple[int, int, int]:
    if len(view) < _HEADER.size:
        raise FormatError(f"statistics are truncated: {len(view)} bytes are less than a header; ask for them again")
    magic, version, data, labels, width, columns, count, classes = _HEADER.unpack_from(view)
    if magic != _MAGIC:
        raise FormatError("these bytes are not statistics: they do not begin as statistics do")
    if version != _VERSION:
        raise FormatError(f"statistics of version {version} cannot be read; this release reads version {_VERSION}")
    if data.hex() != spec.data_digest or width != spec.width:
        raise SpecMismatchError(
            f"these statistics were made under another spec: their data digest is {data.hex()[:16]}…, this spec's is "
            f"{spec.data_digest[:16]}…. Read them under the spec they were made with: dim, intercept, grids and backbone must "
            "agree"
        )
    lineage = spec.lineage if spec.is_classification else (spec.labels_digest,)
    place = columns if spec.is_classification else 0
    if place >= len(lineage) or lineage[place] != labels.hex() or (not spec.is_classification and columns != spec.columns):
        raise SpecMismatchError(
            f"these statistics were made for other labels: they have {columns} columns whose digest is {labels.hex()[:16]}…, "
            "which is not that of the spec's labels nor of its first few"
        )
    if classes != (columns if spec.is_classification else 0):
        raise FormatError("statistics have been altered: the number of class counts does not fit the number of labels")
    return columns, count, classes


def _batches(features: Any, labels: Any) -> Iterator[tuple[Any, Any]]:
    if labels is not None and not (isinstance(features, Iterator) and isinstance(labels, Iterator)):
        yield features, labels
        return
    if labels is not None:
        for index, (one, other) in enumerate(zip_longest(features, labels, fillvalue=_END)):
            if one is _END or other is _END:
                missing = "features" if one is _END else "labels"
                raise ShapeError(f"batch {index} has no {missing}: features and labels must come in equally many batches")
            yield one, other
        return
    if isinstance(features, np.ndarray) or not isinstance(features, Iterable):
        raise ShapeError("labels are missing: give features and labels, or an iterable of (features, labels) batches")
    for index, batch in enumerate(features):
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise ShapeError(f"batch {index} is not a pair (features, labels)")
        yield batch[0], batch[1]


def _add_batch(sums: Sums, watch: ColumnWatch, features: Any, labels: Any, progress: Progress | None) -> None:
    """Add one batch, block by block; large ones by one thread a core, each with sums of its own."""
    spec = sums.spec
    array = checked_features(spec, features)
    checked = checked_labels(spec, labels, len(array), sums.count)
    require_room(sums.count + len(array))
    shared = array.size >= _WORTH_SHARING and spec.width <= _SHARED_WIDTH
    workers = parallel.cores() if shared else 1
    parts = [(sums, watch)] + [(Sums(spec), ColumnWatch(spec)) for _ in range(workers - 1)]
    before = sums.count

    def work(worker: int, share: slice) -> None:
        own, seen = parts[worker]
        buffer = np.empty((min(_BLOCK_ROWS, share.stop - share.start), spec.width))
        for start in range(share.start, share.stop, _BLOCK_ROWS):
            block = slice(start, min(start + _BLOCK_ROWS, share.stop))
            integers = buffer[: block.stop - block.start]
            largest = put_features(spec, array[block], integers, before + start)
            seen.see(array[block], integers[:, : spec.dim], largest)
            own.change(Rows(integers, largest, targets_of(spec, checked[block], before + start)), 1)
            if progress is not None and worker == 0:
                progress(before + (start - share.start + len(integers)) * workers)

    if workers == 1:
        with parallel.one_blas_thread() if spec.width <= _NARROW else nullcontext():
            work(0, slice(0, len(array)))
    else:
        parallel.share_out(len(array), workers, work)
    for own, seen in parts[1:]:
        sums.merge(own)
        watch.merge(seen)
    if progress is not None:
        progress(before + len(array))
