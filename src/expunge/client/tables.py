"""Tables of samples: CSV by the standard library, Parquet by pyarrow."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.client.columns import Keys, Loaded, assembled, labels_of_texts
from expunge.errors import FormatError, InputError, MissingExtraError, NotFiniteError, ShapeError
from expunge.spec import Spec


def load_csv(path: Path, keys: Keys, spec: Spec | None) -> Loaded:
    """The samples of a CSV file in UTF-8 with a header."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return _load_csv(path, csv.reader(file, strict=True), keys, spec)
    except (UnicodeDecodeError, csv.Error) as problem:
        raise FormatError(f"{path} cannot be read as CSV in UTF-8: {problem}") from problem


def _load_csv(path: Path, reader: Any, keys: Keys, spec: Spec | None) -> Loaded:
    header = next(reader, None)
    if not header:
        raise FormatError(f"{path} is empty: a CSV file begins with a line of column names")
    if len(set(header)) < len(header):
        first, second = _same(header)
        raise FormatError(
            f"{path}: a column name occurs twice in the first line, in columns {first} and {second}. Name "
            "each once; if that line is a sample, write a line of column names before it"
        )
    other = next((mark for mark in ";\t|" if len(header) == 1 and mark in header[0]), None)
    if other is not None:
        raise FormatError(f"{path} has {other!r} between its columns: a CSV file has commas. Write it again with those")
    columns = keys.choose(path, header)
    place = {name: number for number, name in enumerate(header)}
    features: list[list[float]] = []
    texts: dict[str, list[str]] = {name: [] for name in (*columns.labels, columns.id, columns.subject) if name is not None}
    for row in reader:
        if not row:
            continue
        if len(row) != len(header):
            raise FormatError(f"line {reader.line_num} of {path} has {len(row)} fields, but the header has {len(header)}")
        features.append([parsed_number(path, reader.line_num, name, row[place[name]]) for name in columns.features])
        for name, column in texts.items():
            column.append(row[place[name]])
        if any(not texts[name][-1] for name in columns.labels):
            raise InputError(f"line {reader.line_num} of {path} has no label: mend or drop that sample")
    array = np.array(features, dtype=np.float64).reshape(len(features), len(columns.features))
    if len(columns.labels) == 1:
        labels = labels_of_texts(texts[columns.labels[0]], spec)
    else:
        labels = np.stack([_real(path, name, texts[name]) for name in columns.labels], axis=1)
    ids, subjects = texts.get(columns.id or ""), texts.get(columns.subject or "")
    return assembled(path, array, labels, ids, subjects, ignored=columns.others(header))


def _same(names: Sequence[str]) -> tuple[int, int]:
    """The first two columns of the same name, counted from 1."""
    second = next(number for number, name in enumerate(names) if name in names[:number])
    return names.index(names[second]) + 1, second + 1


def parsed_number(path: Path, line: int, name: str, text: str) -> float:
    """A cell of a column of features. What it holds instead of a number is not shown: it may be personal."""
    try:
        value = float(text)
    except ValueError as problem:
        raise InputError(
            f"line {line} of {path}: column {name!r} holds no number. Mend it, or say which columns are features"
        ) from problem
    if not math.isfinite(value):
        raise NotFiniteError(
            f"line {line} of {path}: column {name!r} is {value}: features must be finite. Mend or drop that sample"
        )
    return value


def _real(path: Path, name: str, texts: Sequence[str]) -> NDArray[np.float64]:
    values = np.empty(len(texts))
    for row, text in enumerate(texts):
        try:
            values[row] = float(text)
        except ValueError as problem:
            raise InputError(
                f"row {row} of {path}: several label columns are real targets, but {name!r} holds no number there. Mend or drop "
                "that sample"
            ) from problem
    return values


def pyarrow() -> tuple[Any, Any]:
    """The modules pyarrow and pyarrow.parquet, which are an extra."""
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as problem:
        raise MissingExtraError(
            "Parquet files are read by pyarrow, which is missing: pip install 'expunge[parquet]'"
        ) from problem


def load_parquet(path: Path, keys: Keys, spec: Spec | None) -> Loaded:
    """The samples of a Parquet file; only the columns that are needed are read."""
    pa, parquet = pyarrow()
    try:
        names = parquet.read_schema(path).names
        columns = keys.choose(path, names)
        named = [name for name in (columns.id, columns.subject) if name is not None]
        table = parquet.read_table(path, columns=sorted({*columns.features, *columns.labels, *named}))
    except (pa.ArrowException, OSError) as problem:
        raise FormatError(f"{path} cannot be read as Parquet: {problem}") from problem
    _require_no_nulls(path, table, columns.labels)
    features = parquet_features(pa, path, table, columns.features)
    if len(columns.labels) == 1 and not _is_list(pa, table.column(columns.labels[0]).type):
        labels = _labels(pa, path, columns.labels[0], table.column(columns.labels[0]), spec)
    elif len(columns.labels) == 1:
        labels = _lists(path, columns.labels[0], table.column(columns.labels[0]))
    else:
        labels = np.stack([_plain(pa, path, name, table.column(name)) for name in columns.labels], axis=1)
    ids = None if columns.id is None else table.column(columns.id).to_pylist()
    subjects = None if columns.subject is None else table.column(columns.subject).to_pylist()
    return assembled(path, features, labels, ids, subjects, ignored=columns.others(names))


def parquet_features(pa: Any, path: Path, table: Any, names: Sequence[str]) -> NDArray[Any]:
    """The features in these columns: one column of lists, or several of numbers."""
    _require_no_nulls(path, table, names)
    if len(names) == 1 and _is_list(pa, table.column(names[0]).type):
        return _lists(path, names[0], table.column(names[0]))
    return np.stack([_finite(path, name, _plain(pa, path, name, table.column(name))) for name in names], axis=1)


def _require_no_nulls(path: Path, table: Any, names: Sequence[str]) -> None:
    for name in names:
        if table.column(name).null_count:
            raise InputError(
                f"{path}: column {name!r} has {table.column(name).null_count} missing values: mend or drop those samples"
            )


def _finite(path: Path, name: str, column: NDArray[Any]) -> NDArray[Any]:
    bad = np.flatnonzero(~np.isfinite(column))
    if bad.size:
        raise NotFiniteError(
            f"row {bad[0]} of {path}: column {name!r} is {column[bad[0]]}: features must be finite. Mend or drop that sample"
        )
    return column


def _is_list(pa: Any, kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _lists(path: Path, name: str, column: Any) -> NDArray[Any]:
    """A column of equally long lists as a matrix."""
    rows = [np.asarray(row) for row in column.combine_chunks().to_numpy(zero_copy_only=False)]
    lengths = sorted({row.size for row in rows})
    if len(lengths) > 1:
        raise ShapeError(
            f"{path}: the lists in column {name!r} have from {lengths[0]} to {lengths[-1]} entries; they must be alike"
        )
    array = np.stack(rows) if rows else np.zeros((0, 0))
    if array.dtype.kind not in "iuf":
        raise InputError(f"{path}: the lists in column {name!r} must hold numbers, and none may be missing")
    return array


def _plain(pa: Any, path: Path, name: str, column: Any) -> NDArray[Any]:
    """A column of numbers."""
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise InputError(f"{path}: column {name!r} holds {kind}, not numbers. Say which columns are features")
    return np.asarray(column.to_numpy())


def _labels(pa: Any, path: Path, name: str, column: Any, spec: Spec | None) -> NDArray[Any]:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return labels_of_texts(column.to_pylist(), spec)
    return _plain(pa, path, name, column)
