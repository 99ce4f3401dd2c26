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
from expunge.frame import Bytes
from expunge.ridge import codec
from expunge.ridge.codec import StatisticsParts
from expunge.ridge.encoding import ColumnWatch, Rows, check_lost_columns
from expunge.ridge.feature_names import FeatureNames
from expunge.ridge.inputs import batches
from expunge.ridge.spec import Spec
from expunge.ridge.sums import Progress, Sums, add_batch, add_rows, embedded, require_room

Float = NDArray[np.float64]


class Statistics:
    """Exact sums behind a ridge head; equal sets of samples have equal statistics, bit for bit.

    Statistics form a commutative group of 128-bit integer sums: add and subtract them freely. Any
    element of the group is allowed, negative ones included; solvers and ledgers judge what may be
    deleted. Make one with `Statistics.of`. A value never changes. Two are
    equal if their sums are, under specs that agree on data and labels.

    Attributes
    ----------
    spec : Spec
        What the samples were summed under.
    gram : ndarray of uint64, shape (2, width * (width + 1) / 2)
        The packed upper triangle of S = F'F, in units of 2^(-2 fraction_bits).
    moment : ndarray of uint64, shape (2, width, columns)
        G = F'Y, in units of 2^-(fraction_bits + label fraction_bits).
    label_gram : ndarray of uint64, shape (2, columns, columns)
        Y'Y, in units of 2^(-2 label fraction_bits).
    count : int
        The number of samples.
    class_counts : ndarray of int64, shape (classes,)
        The number of samples with each hard label; empty for regression.

    Examples
    --------
    >>> from expunge import Spec, Statistics
    >>> spec = Spec(dim=2, labels=("cat", "dog"))
    >>> ledger = Statistics.of(spec, [[0.5, 1.0], [2.0, 0.0]], ["cat", "dog"])
    >>> gone = Statistics.of(spec, [[2.0, 0.0]], ["dog"])
    >>> ledger - gone == Statistics.of(spec, [[0.5, 1.0]], ["cat"])
    True
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
        """The statistics of no samples: the neutral element of addition.

        Parameters
        ----------
        spec : Spec
            What samples would be summed under.

        Returns
        -------
        Statistics
            Sums that are all zero.

        Examples
        --------
        >>> from expunge import Spec, Statistics
        >>> Statistics.zero(Spec(dim=2, outputs=1)).count
        0
        """
        return cls._make(Sums(spec), by_construction=True)

    @classmethod
    def snapshot(cls, sums: Sums, *, by_construction: bool = False) -> Statistics:
        """The value of sums at this moment; changing the sums later does not change it.

        Parameters
        ----------
        sums : Sums
            Sums that may go on changing. They are settled and copied.
        by_construction : bool, default=False
            Whether samples were only ever added to the sums, which makes S a Gram without proof.

        Returns
        -------
        Statistics
            A copy of the sums.
        """
        sums.settle()
        parts = object.__new__(StatisticsParts)
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
        """The statistics of samples: the same, bit for bit, whatever their order, batches and form.

        Parameters
        ----------
        spec : Spec
            What the samples are summed under.
        features : array, table, tensor, sparse matrix, dataset or iterable
            Shape (n, dim), as numpy, pandas, polars, PyArrow, PyTorch, SciPy or Hugging Face's
            `datasets` hold them; memory maps, tensors, tables and sparse matrices are read block by
            block. Without `labels`: a table, a dictionary of columns or a dataset with a column
            `label` or `labels`, or an iterable of batches, each a pair (features, labels) or such
            a table or dictionary. Tables of one call must have the same columns.
        labels : array, column or tensor, optional
            Integers are class indices, strings are label names, shape (n, columns) holds soft or
            real targets, and one-dimensional floats mean outputs=1.
        lost_columns : {"refuse", "accept"}, default="refuse"
            What to do with a column that is not zero but whose every value rounds to zero.
        living : ndarray of bool, shape (dim,), optional
            Columns that are known not to be zero elsewhere, and so are never lost.
        progress : callable, optional
            Called with the number of samples done so far.

        Returns
        -------
        Statistics
            Their exact sums.

        Raises
        ------
        InputError
            If features or labels cannot be taken: a wrong shape or kind, a missing value, NaN, a
            value beyond the grid, an unknown label, a lost column, tables that disagree. The
            message gives the row and the column by its name or number, and never a label.

        Examples
        --------
        >>> import numpy as np
        >>> from expunge import Spec, Statistics
        >>> spec = Spec(dim=2, labels=("cat", "dog"))
        >>> features, labels = np.array([[0.5, 1.0], [2.0, 0.0]]), ["cat", "dog"]
        >>> whole = Statistics.of(spec, features, labels)
        >>> batches = [(features[1:], labels[1:]), {"features": features[:1], "label": ["cat"]}]
        >>> Statistics.of(spec, batches) == whole
        True
        """
        if not isinstance(spec, Spec):
            raise InputError(
                "Statistics.of takes a Spec first, then features and labels; got "
                f"{type(spec).__name__}"
            )
        names = FeatureNames()
        return cls.of_named(
            spec,
            features,
            labels,
            names,
            lost_columns=lost_columns,
            living=living,
            progress=progress,
        )

    @classmethod
    def of_named(
        cls,
        spec: Spec,
        features: Any,
        labels: Any,
        names: FeatureNames,
        *,
        lost_columns: str,
        living: NDArray[np.bool_] | None = None,
        progress: Progress | None = None,
    ) -> Statistics:
        """`of`, for a caller that keeps the names of features across calls.

        Parameters
        ----------
        spec : Spec
            As for `of`.
        features : array-like, table or iterable of batches
            As for `of`.
        labels : array-like or None
            As for `of`.
        names : FeatureNames
            Tables must have these; if there are none yet, the first table gives them.
        lost_columns : {"refuse", "accept"}
            As for `of`.
        living : bool ndarray or None, default None
            As for `of`.
        progress : callable or None, default None
            As for `of`.

        Returns
        -------
        Statistics
            Their exact sums.
        """
        check_lost_columns(lost_columns)
        sums, watch = Sums(spec), ColumnWatch(spec)
        for batch_features, batch_labels in batches(features, labels):
            add_batch(sums, watch, batch_features, batch_labels, progress, names=names)
        if lost_columns == "refuse":
            watch.require_none_lost(living)
        return cls.of_sums(sums)

    @classmethod
    def of_rows(cls, spec: Spec, rows: Rows) -> Statistics:
        """The statistics of samples that are integers already: those of the samples behind them.

        Parameters
        ----------
        spec : Spec
            What the rows were put on the grid under.
        rows : Rows
            Integer features and targets, as `integer_rows` or a message gives them.

        Returns
        -------
        Statistics
            Their exact sums.
        """
        sums = Sums(spec)
        add_rows(sums, rows)
        return cls.of_sums(sums)

    @classmethod
    def of_sums(cls, sums: Sums) -> Statistics:
        """The statistics of samples that were added to sums, which must not change any more.

        Parameters
        ----------
        sums : Sums
            To which samples were only ever added. They are settled; nothing is copied.

        Returns
        -------
        Statistics
            With the arrays of the sums.
        """
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
        result = object.__new__(StatisticsParts)
        result.gram = change(left.gram, right.gram)
        result.moment = change(left.moment, right.moment)
        result.label_gram = change(left.label_gram, right.label_gram)
        result.class_counts = left.class_counts + sign * right.class_counts
        result.count = left.count + sign * right.count
        require_room(result.count)
        by_construction = sign > 0 and left._gram_by_construction and right._gram_by_construction
        return Statistics._make(result, spec=spec, by_construction=by_construction)

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
        """The same sums under another spec; those of classes that are new are zero.

        Parameters
        ----------
        spec : Spec
            One that differs in gamma, publication or policy, or has labels appended.

        Returns
        -------
        Statistics
            The same samples under `spec`.

        Raises
        ------
        SpecMismatchError
            If the samples would be other integers under `spec`.

        Examples
        --------
        >>> from expunge import Spec, Statistics
        >>> spec = Spec(dim=1, labels=("cat", "dog"))
        >>> statistics = Statistics.of(spec, [[1.0]], ["cat"])
        >>> statistics.under(spec.with_labels("eel")).class_counts.tolist()
        [1, 0, 0]
        """
        if spec == self.spec:
            return self
        if not spec.grows_from(self.spec):
            raise SpecMismatchError(
                f"these statistics cannot be put under that spec: {self.spec.difference(spec)}"
            )
        if spec.columns == self.spec.columns:
            return Statistics._make(self, spec=spec, by_construction=self._gram_by_construction)
        parts = object.__new__(StatisticsParts)
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
        """S as a symmetric matrix, each entry within one part in 2^51.

        Returns
        -------
        ndarray of float64, shape (width, width)
            F'F, with the constant feature last if the spec has one.
        """
        packed = wide.to_float(self.gram, -2 * self.spec.grid.fraction_bits)
        upper = np.triu(blas.upper_from_packed(self.spec.width, packed))
        return upper + np.triu(upper, 1).T

    def moment_float(self) -> Float:
        """G, each entry within one part in 2^51.

        Returns
        -------
        ndarray of float64, shape (width, columns)
            F'Y.
        """
        return wide.to_float(
            self.moment, -self.spec.grid.fraction_bits - self.spec.label_grid.fraction_bits
        )

    def label_gram_float(self) -> Float:
        """Y'Y, each entry within one part in 2^51.

        Returns
        -------
        ndarray of float64, shape (columns, columns)
            The Gram of the targets.
        """
        return wide.to_float(self.label_gram, -2 * self.spec.label_grid.fraction_bits)

    def diagonal(self) -> list[int]:
        """The diagonal of S, exactly.

        Returns
        -------
        list of int
            In units of 2^(-2 fraction_bits), one for each feature.
        """
        return wide.to_ints(self.gram[:, blas.packed_diagonal(self.spec.width)])

    # -- bytes -------------------------------------------------------------------------------------

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical bytes, in hexadecimal; equal statistics have equal digests."""
        return codec.digest_of(self)

    def to_bytes(self) -> bytes:
        """Canonical bytes: equal statistics have equal bytes, on every machine.

        Returns
        -------
        bytes
            Versioned, and ending with their SHA-256; docs/formats.md describes them.
        """
        return codec.write(self)

    @classmethod
    def from_bytes(cls, spec: Spec, data: Bytes) -> Statistics:
        """The inverse of `to_bytes`.

        Parameters
        ----------
        spec : Spec
            What the statistics were made under, or that with labels appended.
        data : bytes-like
            What `to_bytes` returned.

        Returns
        -------
        Statistics
            The statistics; sums of classes that are new are zero.

        Raises
        ------
        FormatError
            If the bytes are truncated, altered or of another version.
        SpecMismatchError
            If they belong to another spec.

        Examples
        --------
        >>> from expunge import Spec, Statistics
        >>> spec = Spec(dim=1, outputs=1)
        >>> statistics = Statistics.of(spec, [[0.5], [1.5]], [2.0, 3.0])
        >>> Statistics.from_bytes(spec, statistics.to_bytes()) == statistics
        True
        """
        return cls._make(codec.read(spec, data), spec=spec)


def _unpickled(
    spec: Spec, count: int, arrays: tuple[Any, ...], by_construction: bool
) -> Statistics:
    parts = object.__new__(StatisticsParts)
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
