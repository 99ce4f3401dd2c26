"""Features and labels as other libraries hold them: the one place that knows these libraries.

Laws: the same numbers give the same integers in whatever form they come. Features are read block by
block, and nothing is copied that is an array already. No error shows a value: it names columns and
numbers of rows. Nothing optional is imported: an object is known by the name of its class, and its
own methods do the rest.

| from | features | labels |
|---|---|---|
| pandas, polars, PyArrow | tables of numbers; a column of lists | columns of numbers or texts |
| PyTorch | tensors of any device and float type | tensors |
| Hugging Face `datasets` | a dataset, batch by batch | its column, by class names |
| SciPy | sparse matrices and arrays | refused |
| ml_dtypes | bfloat16 and other narrow types, widened exactly | the same |

A table, a dictionary of columns or a dataset without labels beside it has them in a column of the
usual name (`LABELS`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np

from expunge.errors import InputError, ShapeError
from expunge.ridge.feature_names import IDS, LABELS, SUBJECTS, usual_features, usual_name
from expunge.ridge.tables import (
    DTYPES,
    NUMBERS,
    Array,
    Blocks,
    ColumnKind,
    ColumnTable,
    Matrix,
    column_of,
    features_of_table,
    frame_of,
    is_from,
    is_list,
    readable_again,
    require_unmasked,
    row_array,
    stacked,
    widened,
)

_DATASET_ROWS = 4096  # of a dataset that are in memory at a time
_END = object()

# -- dictionaries of columns -----------------------------------------------------------------------


class _MappingTable(ColumnTable):
    """A dictionary of columns, such as a batch of a data loader; small, so it is read whole."""

    def __init__(self, columns: Mapping[Any, Any]) -> None:
        first = next(iter(columns.values()), ())
        super().__init__(columns, len(first) if hasattr(first, "__len__") else 0)
        self._columns = [_rows(column) for column in columns.values()]

    def select(self, positions: list[int]) -> ColumnTable:
        table = table_of(self._columns[positions[0]]) if len(positions) == 1 else None
        if table is not None:  # whose columns have names of their own
            return table
        return _MappingTable({self.names[p]: self._columns[p] for p in positions})

    def _kind(self, position: int) -> ColumnKind:
        if self._is_nested(position):
            first = next(row for row in self._columns[position] if row is not None)
            return ColumnKind.of(np.dtype(np.float64), len(first))
        array = self._array(position)
        return ColumnKind.of(array.dtype, array.shape[1] if array.ndim == 2 else None)

    def _is_nested(self, position: int) -> bool:
        column = self._columns[position]
        rows = column if isinstance(column, (list, tuple)) else ()
        return is_list(next((row for row in rows if row is not None), None))

    def numbers(self, position: int, start: int, stop: int) -> Array:
        if self._is_nested(position):
            return stacked(self, position, self._columns[position][start:stop], start)
        return self._array(position)[start:stop]

    def labels(self, position: int) -> Any:
        return self._columns[position]

    def _array(self, position: int) -> Array:
        value = self._columns[position]
        matrix = features_of(value, 0)
        array = row_array(value) if matrix is None else np.asarray(matrix)
        if array.ndim not in (1, 2) or len(array) != self.count:
            raise self.refuse(
                position,
                f"has the shape {array.shape}, where {self.count} rows are needed: one number "
                "each, or one row each",
            )
        return array


def _rows(column: Any) -> Any:
    """A column; tensors in a list become arrays."""
    require_unmasked(column, "samples")
    if isinstance(column, (list, tuple)) and column and is_tensor(column[0]):
        return [_tensor_array(row, "features") if is_tensor(row) else row for row in column]
    return column


def table_of(value: Any) -> ColumnTable | None:
    """A table of another library, or a dictionary of columns; None for anything else."""
    if isinstance(value, np.ndarray) or _is_dataset(value):
        return None
    return _MappingTable(value) if isinstance(value, Mapping) else frame_of(value)


# -- tensors, narrow numbers, sparse matrices ------------------------------------------------------


def is_tensor(value: object) -> bool:
    """Whether a value is a tensor of PyTorch."""
    return is_from(value, "torch", "Tensor")


def _tensor_array(tensor: Any, what: str) -> Array:
    """A tensor, detached, on the host and widened to a type that numpy has."""
    _require_values(tensor, what)
    tensor = tensor.detach().cpu().resolve_neg()
    if str(tensor.dtype).removeprefix("torch.") not in DTYPES:
        tensor = tensor.float()  # bfloat16 and narrower: exactly
    return np.asarray(tensor.numpy())


def _require_values(tensor: Any, what: str) -> None:
    """Refuse a tensor that does not hold each of its values as a real number."""
    if tensor.dtype.is_complex or tensor.is_quantized or tensor.is_meta:
        raise ShapeError(
            f"{what} must be real numbers, got a tensor of {tensor.dtype} on {tensor.device}"
        )
    if tensor.is_nested:
        raise ShapeError(f"the {what} are a nested tensor; give rows of equal length")
    if str(tensor.layout) != "torch.strided":
        raise ShapeError(f"the {what} are a sparse tensor; give a dense one: .to_dense()")


def _is_sparse(value: object) -> bool:
    return hasattr(value, "toarray") and hasattr(value, "tocsr")


def _features_of_sparse(matrix: Any) -> Blocks:
    """The rows of a sparse matrix, made dense when they are read."""
    if len(matrix.shape) != 2:
        raise ShapeError(f"features must have two dimensions, got {matrix.shape}")
    if matrix.dtype.kind not in NUMBERS:
        raise ShapeError(f"features must be real numbers, got a sparse array of {matrix.dtype}")
    is_narrow = matrix.dtype.kind in "iu" and matrix.dtype.itemsize < 8
    rows = (matrix.astype(np.int64) if is_narrow else matrix).tocsr()  # adds up what is repeated
    return Blocks(matrix.shape, None, lambda start, stop: np.asarray(rows[start:stop].toarray()))


# -- datasets --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ClassCodes:
    """Labels as codes into names of classes, as a Hugging Face dataset has them.

    Law: they mean the names, whatever the order of the spec's labels. Without names, because the
    dataset has lost its metadata, they mean nothing where the labels are texts.
    """

    codes: Array
    names: tuple[str, ...]

    def under(self, labels: Sequence[object] | None, first_row: int = 0) -> Array:
        """The names; the codes where the known labels are integers."""
        codes = np.asarray(self.codes)
        if not self.names:
            return self._unnamed(labels)
        missing = np.flatnonzero((codes < 0) | (codes >= len(self.names)))
        if missing.size:
            raise InputError(
                f"the label of row {first_row + int(missing[0])} is missing: drop that sample. "
                "Nothing was changed"
            )
        if labels is not None and all(isinstance(label, int) for label in labels):
            return codes
        return np.asarray(np.array(self.names, dtype=object)[codes])

    def _unnamed(self, labels: Sequence[object] | None) -> Array:
        if any(isinstance(label, str) for label in labels or ()):
            raise InputError(
                "the dataset no longer says which class each code of its labels means: cast the "
                "column (dataset.cast_column('label', ClassLabel(names=...))), or give the labels "
                "as texts. Nothing was changed"
            )
        return np.asarray(self.codes)


def _is_dataset(value: object) -> bool:
    return is_from(value, "datasets", "Dataset", "IterableDataset")


def _readable(dataset: Any) -> Any:
    """A dataset that gives tables of Arrow, unless its owner chose another format or transform."""
    form = getattr(dataset, "format", None)
    if form is None or form["type"] is not None:
        return dataset
    columns = form["columns"]
    return dataset.with_format("arrow", columns=columns)


def _features_of_dataset(dataset: Any, dim: int) -> Blocks:
    """The features of a dataset, read when they are asked for."""
    if not hasattr(dataset, "num_rows"):
        raise ShapeError(
            f"a {type(dataset).__name__} can be read only once and in its order: give it alone, "
            "with its labels in it"
        )
    source = _readable(dataset)

    def rows(start: int, stop: int) -> Blocks:
        return features_of_table(_without_labels(_batch_table(source[start:stop])), dim)

    first = rows(0, min(1, dataset.num_rows))
    return Blocks(
        (dataset.num_rows, first.shape[1]), first.names, lambda start, stop: rows(start, stop)[:]
    )


def _batch_table(batch: Any) -> ColumnTable:
    table = table_of(batch)
    if table is None:
        raise ShapeError("the dataset's format has no columns: choose another by .with_format()")
    return table


def _dataset_batches(dataset: Any) -> Iterator[tuple[Any, Any]]:
    """Features and labels, batch by batch."""
    schema = getattr(dataset, "features", None)
    classes: dict[str, tuple[str, ...]] = {
        name: tuple(kind.names) for name, kind in (schema or {}).items() if _is_class_label(kind)
    }
    for batch in _readable(dataset).iter(batch_size=_DATASET_ROWS):
        features, labels = _split(_batch_table(batch))
        names = () if schema is None else classes.get(labels.names[0])
        yield features, labels if names is None else _coded(labels, names)


def _is_class_label(kind: object) -> bool:
    return type(kind).__name__ == "ClassLabel"


def _coded(labels: Any, names: tuple[str, ...]) -> Any:
    """Labels of a dataset as codes, unless its transform made something else of them."""
    array = labels_of(labels)
    codes = np.asarray(labels if array is None else array)
    return ClassCodes(codes, names) if codes.ndim == 1 and codes.dtype.kind in "iu" else labels


# -- batches ---------------------------------------------------------------------------------------


def _position(table: ColumnTable, usual: Sequence[str]) -> int | None:
    """Where the column of a usual name is; two of them are refused."""
    exact = [name for name in usual if name in table.names]
    if len(exact) > 1:
        raise ShapeError(
            f"columns {exact[0]!r} and {exact[1]!r} could both be meant: give features and labels "
            "by themselves"
        )
    name = usual_name(table.names, usual)
    return None if name is None else table.names.index(name)


def _without_labels(table: ColumnTable) -> ColumnTable:
    """The features of a table that has labels, ids and subjects in it as well."""
    positions = [_position(table, usual) for usual in (LABELS, IDS, SUBJECTS)]
    taken = [table.names[position] for position in positions if position is not None]
    chosen = usual_features(table.names, taken)
    return table.select([table.names.index(name) for name in chosen])


def _split(table: ColumnTable) -> tuple[ColumnTable, ColumnTable]:
    """The features of a table, and its labels."""
    position = _position(table, LABELS)
    if position is None:
        raise ShapeError(
            "labels are missing: the table has no column 'label' or 'labels'. Give features and "
            "labels by themselves"
        )
    return _without_labels(table), table.select([position])


def single_batch(features: Any, labels: Any) -> tuple[Any, Any] | None:
    """Features and labels if they are one batch, in two parts or in one table; None if they come
    in several.
    """
    if labels is not None:
        both = isinstance(features, Iterator) and isinstance(labels, Iterator)
        return None if both else (features, labels)
    table = table_of(features)
    return None if table is None else _split(table)


def batches(features: Any, labels: Any) -> Iterator[tuple[Any, Any]]:
    """Pairs of features and labels, from two arrays, one table, two iterators, a dataset, or one
    iterable of pairs, tables or dictionaries of columns.
    """
    batch = single_batch(features, labels)
    if batch is not None:
        yield batch
    elif labels is not None:
        yield from _paired(features, labels)
    elif _is_dataset(features):
        yield from _dataset_batches(features)
    elif _is_array(features) or not isinstance(features, Iterable):
        raise ShapeError(
            "labels are missing: give features and labels, or an iterable of (features, labels) "
            "batches"
        )
    else:
        for index, part in enumerate(features):
            yield _pair(part, index)


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray) or is_tensor(value) or _is_sparse(value)


def _pair(batch: Any, index: int) -> tuple[Any, Any]:
    if isinstance(batch, (tuple, list)) and len(batch) == 2:
        return batch[0], batch[1]
    table = table_of(batch)
    if table is None:
        raise ShapeError(f"batch {index} is not a pair (features, labels)")
    return _split(table)


def _paired(features: Iterator[Any], labels: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
    for index, (feature_batch, label_batch) in enumerate(
        zip_longest(features, labels, fillvalue=_END)
    ):
        if feature_batch is _END or label_batch is _END:
            missing = "features" if feature_batch is _END else "labels"
            raise ShapeError(
                f"batch {index} has no {missing}: features and labels must come in equally many "
                "batches"
            )
        yield feature_batch, label_batch


def is_stream(features: object) -> bool:
    """Whether features come in batches that can be read only one after the other."""
    return (
        isinstance(features, Iterator)
        or is_from(features, "torch", "DataLoader")
        or is_from(features, "datasets", "IterableDataset")
    )


def is_in_batches(features: object) -> bool:
    """Whether features come in batches with their labels, and not as an array or a table."""
    return is_stream(features) or _is_dataset(features) or isinstance(features, Mapping)


def feature_batches(features: Any) -> Iterator[Any]:
    """Features alone, batch by batch if they come so; labels beside them are passed over."""
    if not is_stream(features):
        yield features
        return
    stream = features.iter(batch_size=_DATASET_ROWS) if _is_dataset(features) else features
    for batch in stream:
        yield batch[0] if isinstance(batch, (tuple, list)) and len(batch) in (1, 2) else batch


# -- the two questions -----------------------------------------------------------------------------


def features_of(value: Any, dim: int, first_row: int = 0) -> Matrix | None:
    """Features that another library holds, as a matrix of numbers; None if numpy must see to them.

    `dim` is what a table of lists without rows is taken to have; `first_row` is the number of the
    first row in errors.
    """
    require_unmasked(value, "features")
    if isinstance(value, (Blocks, np.ndarray)):
        return widened(value) if isinstance(value, np.ndarray) else value
    if is_tensor(value):
        return _features_of_tensor(value)
    if _is_sparse(value):
        return _features_of_sparse(value)
    if _is_dataset(value):
        return _features_of_dataset(value, dim)
    table = _feature_table(value)
    if table is None:
        return None
    table.first_row = first_row
    return features_of_table(table, dim)


def _feature_table(value: Any) -> ColumnTable | None:
    """Features as a table; None for a column of single numbers, as for anything else."""
    if isinstance(value, ColumnTable):
        return value
    if is_from(value, "datasets", "Column"):
        value = {"features": value[:]}
    table = table_of(value)
    if table is not None:
        return _without_labels(table) if isinstance(value, Mapping) else table
    column = column_of(value)
    return None if column is None or column.kind(0).width is None else column


def _features_of_tensor(tensor: Any) -> Matrix:
    """A matrix, brought to the host block by block."""
    _require_values(tensor, "features")
    if tensor.ndim != 2:
        return _tensor_array(tensor, "features")
    shape = (int(tensor.shape[0]), int(tensor.shape[1]))
    return Blocks(shape, None, lambda start, stop: _tensor_array(tensor[start:stop], "features"))


def labels_of(value: Any, first_row: int = 0) -> Any:
    """Labels that another library holds, as an array or as codes of classes; None if numpy must
    see to them.
    """
    require_unmasked(value, "labels")
    if isinstance(value, (ClassCodes, np.ndarray)):
        return value if isinstance(value, ClassCodes) else np.asarray(widened(value))
    if is_tensor(value):
        return _tensor_array(value, "labels")
    if _is_sparse(value):
        raise ShapeError(
            f"the labels are sparse ({type(value).__name__}); give a dense array: .toarray()"
        )
    if is_from(value, "datasets", "Column"):
        kind, labels = value.features, value[:]
        return _coded(labels, tuple(kind.names)) if _is_class_label(kind) else labels
    table = value if isinstance(value, ColumnTable) else column_of(value) or table_of(value)
    if table is None:
        return None
    table.first_row = first_row
    if table.names in ((0,), ("",)):  # a column that has no name
        table.names = ("labels",)
    return _labels_of_table(table)


def target_names(labels: Any) -> tuple[str, ...] | None:
    """The names of the columns of targets that are a table of several; None for anything else."""
    table = labels if isinstance(labels, ColumnTable) else table_of(readable_again(labels))
    return None if table is None or len(table.names) < 2 else tuple(map(str, table.names))


def _labels_of_table(table: ColumnTable) -> Any:
    """The labels of one column; the real targets of several, or of one column of lists."""
    if len(table.names) != 1 or table.kind(0).width is not None:
        return np.asarray(features_of_table(table, 0))
    labels = table.labels(0)
    nested = labels_of(labels, table.first_row)
    return labels if nested is None else nested
