"""Tables of pandas, polars and PyArrow as named columns of numbers or labels, read by rows.

Nothing here imports these libraries: a table is known by the name of its class, and its own methods
do the rest. What is wrong with a column is refused by its name, and no error shows a value.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.errors import InputError, MissingExtraError, ShapeError
from expunge.ridge.feature_names import shown_column

Array = NDArray[Any]

NUMBERS = "iubf"  # kinds of numpy's types that are numbers here

# How polars and PyArrow call the types that numpy has too, in small letters.
DTYPES = {
    "bool": np.bool_,
    "boolean": np.bool_,
    "halffloat": np.float16,
    "float": np.float32,
    "double": np.float64,
} | {
    name: np.dtype(name).type
    for name in (
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
        *(f"float{bits}" for bits in (16, 32, 64)),
    )
}


def is_from(value: object, package: str, *names: str) -> bool:
    """Whether a value is of one of these classes of a package, or of one derived from them."""
    return any(
        base.__name__ in names and base.__module__.split(".")[0] == package
        for base in type(value).__mro__
    )


@dataclass(frozen=True, eq=False)
class Blocks:
    """A matrix of numbers that another library holds, read as arrays: `blocks[start:stop]`.

    `names` are those of its columns, if they have any.
    """

    shape: tuple[int, int]
    names: tuple[str, ...] | None
    read: Callable[[int, int], Array]

    ndim = 2

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> Array:
        start, stop, _ = rows.indices(len(self))
        return self.read(start, max(start, stop))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self[:], dtype=dtype, copy=copy)


Matrix = Array | Blocks


def names_of(matrix: Matrix) -> tuple[str, ...] | None:
    """The names of the columns; None for an array."""
    return matrix.names if isinstance(matrix, Blocks) else None


def named(array: Array, names: Iterable[str] | None) -> Matrix:
    """An array whose columns errors call by these names; without names, the array."""
    if names is None:
        return array
    return Blocks(array.shape, tuple(names), lambda start, stop: array[start:stop])


def widened(array: Array) -> Matrix:
    """An array of narrow numbers (bfloat16 and its kin) in a type of numpy's own, exactly; any
    other array as it is.
    """
    if array.dtype.type.__module__ != "ml_dtypes":
        return array
    wide = next((kind for kind in (np.int8, np.float32) if np.can_cast(array.dtype, kind)), None)
    if wide is None:
        return array
    if array.ndim != 2:
        return array.astype(wide)
    return Blocks(array.shape, None, lambda start, stop: array[start:stop].astype(wide))


@dataclass(frozen=True)
class ColumnKind:
    """What a column holds: numbers of a type, one for each row or `width` of them; otherwise
    `dtype` is None and `words` say what.
    """

    dtype: np.dtype[Any] | None
    words: str = "numbers"
    width: int | None = None

    @classmethod
    def of(cls, dtype: np.dtype[Any], width: int | None = None) -> ColumnKind:
        """The kind of a column of this type."""
        words = {"c": "complex numbers", "M": "times", "m": "times", "U": "texts", "O": "objects"}
        is_number = dtype.kind in NUMBERS
        return cls(dtype if is_number else None, words.get(dtype.kind, str(dtype)), width)


class ColumnTable(ABC):
    """Named columns of another library; `first_row` is the number of the first row in errors."""

    first_row = 0

    def __init__(self, names: Iterable[Any], count: int) -> None:
        self.names, self.count = tuple(names), count
        self._kinds: dict[int, ColumnKind] = {}

    @abstractmethod
    def select(self, positions: list[int]) -> ColumnTable:
        """Some of the columns; nothing is copied."""

    def kind(self, position: int) -> ColumnKind:
        """What a column holds."""
        if position not in self._kinds:
            self._kinds[position] = self._kind(position)
        return self._kinds[position]

    @abstractmethod
    def _kind(self, position: int) -> ColumnKind:
        """What a column is found to hold."""

    @abstractmethod
    def numbers(self, position: int, start: int, stop: int) -> Array:
        """Rows of a column of numbers; a missing one is refused by its row."""

    @abstractmethod
    def labels(self, position: int) -> Any:
        """A whole column as labels: numbers or texts, none of them missing."""

    def feature_names(self) -> tuple[str, ...]:
        """The names, as texts if none of them is one; refused if one occurs twice."""
        for position, name in enumerate(self.names):
            if name in self.names[:position]:
                raise ShapeError(
                    f"{shown_column(self.names, position)} of the features occurs twice: name each "
                    "column once"
                )
        texts = [isinstance(name, str) for name in self.names]
        if any(texts) and not all(texts):
            raise ShapeError(
                f"column {texts.index(False)} of the features has a name that is no text, and "
                "others have texts: name all by texts (frame.columns.astype(str)), or none"
            )
        return self.names if all(texts) else tuple(map(str, self.names))

    def block(self, start: int, stop: int, dtype: np.dtype[Any]) -> Array:
        """Rows of all columns, which are single numbers."""
        block = np.empty((stop - start, len(self.names)), dtype=dtype)
        for position in range(len(self.names)):
            block[:, position] = self.numbers(position, start, stop)
        return block

    def refuse(self, position: int, problem: str) -> ShapeError:
        """The error for a column."""
        return ShapeError(f"{shown_column(self.names, position)} {problem}")

    def require_none_missing(self, position: int, rows: Array, start: int = 0) -> None:
        """Refuse the first missing value, given which of the rows from `start` on lack one."""
        if rows.any():
            row = self.first_row + start + int(np.flatnonzero(rows)[0])
            raise InputError(
                f"row {row} has no value in {shown_column(self.names, position)}: fill it in, or "
                "drop that sample. Nothing was changed"
            )

    def require_width(self, position: int, lengths: Array, width: int, start: int) -> None:
        """Refuse the first list that is not as long as it should be."""
        other = np.flatnonzero(lengths != width)
        if other.size:
            row = self.first_row + start + int(other[0])
            raise self.refuse(
                position,
                f"holds lists of unequal length: that of row {row} has {lengths[other[0]]} "
                f"entries, where {width} are expected. Make them alike, or drop that sample",
            )


def features_of_table(table: ColumnTable, dim: int) -> Blocks:
    """The columns of a table as features: numbers each, or a single column of lists."""
    names, kinds = table.feature_names(), [table.kind(p) for p in range(len(table.names))]
    for position, kind in enumerate(kinds):
        if kind.dtype is None:
            remedy = "Leave that column out, or turn it into numbers. Nothing was changed"
            raise table.refuse(position, f"holds {kind.words}, where numbers are needed. {remedy}")
        if kind.width is not None and len(kinds) > 1:
            raise table.refuse(
                position, "holds lists, and so must be the only one of features. Select it alone"
            )
    if kinds and kinds[0].width is not None:
        shape = (table.count, kinds[0].width if table.count else dim)
        return Blocks(shape, None, lambda start, stop: table.numbers(0, start, stop))
    types = [kind.dtype for kind in kinds if kind.dtype is not None]
    common = np.result_type(*types) if types else np.dtype(np.float64)
    return Blocks(
        (table.count, len(kinds)), names, lambda start, stop: table.block(start, stop, common)
    )


def stacked(table: ColumnTable, position: int, rows: Sequence[Any], start: int) -> Array:
    """Rows that are lists, tuples, arrays or tensors of numbers, as a matrix."""
    parts = [row_array(row) if is_list(row) else None for row in rows]
    table.require_none_missing(position, np.array([part is None for part in parts]), start)
    arrays = [part for part in parts if part is not None]
    width = table.kind(position).width or 0
    lengths = np.array([len(part) if part.ndim == 1 else 0 for part in arrays], dtype=np.int64)
    table.require_width(position, lengths, width, start)
    matrix = np.stack(arrays) if arrays else np.empty((0, width))
    if matrix.dtype.kind not in NUMBERS:
        raise table.refuse(position, "holds lists of something else than numbers. Mend them")
    return matrix


def require_unmasked(value: Any, what: str) -> None:
    """Refuse masked values, also in a list: what a mask hides must not enter the sums."""
    parts = value if isinstance(value, (list, tuple)) else (value,)
    if any(isinstance(part, np.ma.MaskedArray) and np.ma.is_masked(part) for part in parts):
        raise ShapeError(
            f"the {what} have masked values, which have no place in sums: drop those samples or "
            "fill them in"
        )


def is_list(value: object) -> bool:
    """Whether a cell holds a row of values."""
    return isinstance(value, (list, tuple, np.ndarray))


def row_array(value: Any) -> Array:
    """A list as an array; one that has no shape is of objects, and has no rows."""
    require_unmasked(value, "features")
    try:
        return np.asarray(widened(np.asarray(value)))
    except ValueError:
        return np.empty((0, 0), dtype=object)


class _PandasTable(ColumnTable):
    def __init__(self, frame: Any) -> None:
        super().__init__(frame.columns, len(frame))
        self._frame = frame
        types = frame.dtypes.tolist()
        self._is_plain = (
            bool(types) and isinstance(types[0], np.dtype) and types.count(types[0]) == len(types)
        )
        self._columns: dict[int, Any] = {}  # slices of a frame are slow to make
        self._complete: set[int] = set()  # columns that are known to lack no value

    def select(self, positions: list[int]) -> ColumnTable:
        return _PandasTable(self._frame.iloc[:, positions])

    def _column(self, position: int) -> Any:
        if position not in self._columns:
            self._columns[position] = self._frame.iloc[:, position]
        return self._columns[position]

    def _kind(self, position: int) -> ColumnKind:
        column = self._column(position)
        dtype = column.dtype
        if not isinstance(dtype, np.dtype) and dtype.kind in NUMBERS:
            dtype = getattr(dtype, "subtype", None) or dtype.numpy_dtype
        if isinstance(dtype, np.dtype) and dtype.kind != "O":
            return ColumnKind.of(dtype)
        lists = column.dropna().iloc[:1].tolist()
        if lists and is_list(lists[0]):
            return ColumnKind.of(np.dtype(np.float64), len(lists[0]))
        is_named = isinstance(dtype, np.dtype) or dtype.name in ("str", "string")
        return ColumnKind(None, "texts or other objects" if is_named else f"values of {dtype.name}")

    def numbers(self, position: int, start: int, stop: int) -> Array:
        column, kind = self._column(position).iloc[start:stop], self.kind(position)
        if kind.width is not None:
            return stacked(self, position, column.tolist(), start)
        if not isinstance(column.dtype, np.dtype) and position not in self._complete:
            missing = self._column(position).isna().to_numpy(dtype=bool)
            self.require_none_missing(position, missing)
            self._complete.add(position)
        return np.asarray(column.to_numpy(dtype=kind.dtype))

    def block(self, start: int, stop: int, dtype: np.dtype[Any]) -> Array:
        if self._is_plain:
            return np.asarray(self._frame.iloc[start:stop].to_numpy())
        return super().block(start, stop, dtype)

    def labels(self, position: int) -> Any:
        column = self._column(position)
        if self.kind(position).dtype is not None:
            return self.numbers(position, 0, self.count)
        self.require_none_missing(position, column.isna().to_numpy(dtype=bool))
        return np.asarray(column)


class _PolarsTable(ColumnTable):
    def __init__(self, frame: Any) -> None:
        super().__init__(frame.columns, frame.height)
        self._frame = frame
        self._is_plain = len(set(frame.dtypes)) == 1 and self.kind(0).width is None

    def select(self, positions: list[int]) -> ColumnTable:
        return _PolarsTable(self._frame.select([self.names[position] for position in positions]))

    def _kind(self, position: int) -> ColumnKind:
        column = self._frame.to_series(position)
        name = str(column.dtype)
        if not name.startswith(("List(", "Array(")):
            return _named_kind(name)
        lengths = column.drop_nulls().head(1).to_list()
        return _named_kind(str(column.dtype.inner), len(lengths[0]) if lengths else 0)

    def numbers(self, position: int, start: int, stop: int) -> Array:
        column, width = (
            self._frame.to_series(position).slice(start, stop - start),
            self.kind(position).width,
        )
        self.require_none_missing(position, column.is_null().to_numpy(), start)
        if width is None:
            return np.asarray(column.to_numpy())
        if str(column.dtype).startswith("List("):
            self.require_width(position, column.list.len().to_numpy(), width, start)
        values = column.explode()
        missing = values.is_null().to_numpy().reshape(len(column), width)
        self.require_none_missing(position, np.asarray(missing.any(axis=1)), start)
        return np.asarray(values.to_numpy()).reshape(len(column), width)

    def block(self, start: int, stop: int, dtype: np.dtype[Any]) -> Array:
        part = self._frame.slice(start, stop - start)
        if self._is_plain and not part.null_count().sum_horizontal().item():
            return np.asarray(part.to_numpy())
        return super().block(start, stop, dtype)

    def labels(self, position: int) -> Any:
        column = self._frame.to_series(position)
        if self.kind(position).dtype is not None:
            return self.numbers(position, 0, self.count)
        self.require_none_missing(position, column.is_null().to_numpy())
        return np.array(column.to_list(), dtype=object)


class _ArrowTable(ColumnTable):
    """A Table or a RecordBatch."""

    def __init__(self, table: Any) -> None:
        super().__init__(table.schema.names, table.num_rows)
        self._table = table

    def select(self, positions: list[int]) -> ColumnTable:
        return _ArrowTable(self._table.select(positions))

    def _kind(self, position: int) -> ColumnKind:
        kind = _stored(self._table.schema.types[position])
        if not _is_arrow_list(kind):
            return _named_kind(str(kind))
        present = np.flatnonzero(~_nulls(self._plain(position, 0, self.count)))
        first = int(present[0]) if present.size else 0
        lists = self._plain(position, first, min(first + 1, self.count))
        return _named_kind(str(kind.value_type), len(lists.flatten()) if len(lists) else 0)

    def _plain(self, position: int, start: int, stop: int) -> Any:
        """Some rows as a single array in the form they are stored in."""
        column = self._table.column(position).slice(start, stop - start)
        column = column.combine_chunks() if hasattr(column, "combine_chunks") else column
        return getattr(column, "storage", column)

    def numbers(self, position: int, start: int, stop: int) -> Array:
        column, width = self._plain(position, start, stop), self.kind(position).width
        self.require_none_missing(position, _nulls(column), start)
        if width is None:
            return np.asarray(column.to_numpy(zero_copy_only=False))
        if not str(column.type).startswith("fixed_size_list<"):
            lengths = column.value_lengths().to_numpy(zero_copy_only=False)
            self.require_width(position, lengths, width, start)
        values = column.flatten()
        missing = _nulls(values).reshape(len(column), width)
        self.require_none_missing(position, np.asarray(missing.any(axis=1)), start)
        return np.asarray(values.to_numpy(zero_copy_only=False)).reshape(len(column), width)

    def labels(self, position: int) -> Any:
        if self.kind(position).dtype is not None:
            return self.numbers(position, 0, self.count)
        column = self._table.column(position)
        self.require_none_missing(position, _nulls(column))
        return np.array(column.to_pylist() or [], dtype=object)


def _stored(kind: Any) -> Any:
    return getattr(kind, "storage_type", kind)


def _is_arrow_list(kind: Any) -> bool:
    return str(kind).startswith(("list<", "large_list<", "fixed_size_list<"))


def _nulls(column: Any) -> Array:
    if not column.null_count:
        return np.zeros(len(column), dtype=bool)
    return np.asarray(column.is_null().to_numpy(zero_copy_only=False))


def _named_kind(name: str, width: int | None = None) -> ColumnKind:
    """The kind of a column whose type polars or PyArrow call so."""
    dtype = DTYPES.get(name.lower())
    return ColumnKind(None, name) if dtype is None else ColumnKind(np.dtype(dtype), width=width)


_FRAMES = (
    ("pandas", ("DataFrame",), _PandasTable),
    ("polars", ("DataFrame",), _PolarsTable),
    ("pyarrow", ("Table", "RecordBatch"), _ArrowTable),
)


def frame_of(value: Any) -> ColumnTable | None:
    """A table of another library; None for anything else."""
    for package, names, table in _FRAMES:
        if is_from(value, package, *names):
            return table(value)
    if is_from(value, "polars", "LazyFrame"):
        raise ShapeError("a LazyFrame has no rows yet: give lazy_frame.collect()")
    return _ArrowTable(_exported(value)) if _is_exported(value) else None


def readable_again(value: Any) -> Any:
    """A value that may be read twice: what comes as a stream of Arrow, perhaps only once, is read
    into a table.
    """
    return _exported(value) if _is_exported(value) else value


def _is_exported(value: Any) -> bool:
    """Whether a value is a table only by what it hands over."""
    is_known = any(is_from(value, package, *names) for package, names, _ in _FRAMES)
    is_dataset = is_from(value, "datasets", "Dataset", "IterableDataset", "Column")
    return (
        hasattr(value, "__arrow_c_stream__")
        and not is_known
        and not is_dataset
        and column_of(value) is None
    )


def _exported(value: Any) -> Any:
    """A table of any library that hands it over in Arrow's form, as a Table of PyArrow."""
    try:
        arrow = import_module("pyarrow")
    except ImportError as problem:
        raise MissingExtraError(
            f"reading a {type(value).__name__} needs pyarrow: pip install 'expunge[parquet]'"
        ) from problem
    return arrow.table(value)


def column_of(value: Any) -> ColumnTable | None:
    """A single column of another library as a table; None for anything else."""
    if is_from(value, "pandas", "Categorical", "ExtensionArray", "Index"):
        value = import_module("pandas").Series(value)
    if is_from(value, "pandas", "Series"):
        return _PandasTable(value.to_frame(value.name if isinstance(value.name, str) else 0))
    if is_from(value, "polars", "Series"):
        return _PolarsTable(value.to_frame())
    if is_from(value, "pyarrow", "Array", "ChunkedArray"):
        return _ArrowTable(import_module("pyarrow").table({"": value}))
    return None
