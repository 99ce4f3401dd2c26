"""Features, labels, ids and subjects from files: .npz, .npy, .csv and .parquet.

CSV is read by the standard library, Parquet by pyarrow. Nothing that could run code is read: arrays
of Python objects, which would have to be unpickled, are refused. Where a file has no ids, they are
made of its name and the row's number, so that loading it again gives the same ones.
"""

from __future__ import annotations

import csv
import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from expunge.data.columns import Keys, Loaded, assembled, labels_of_texts, require_names
from expunge.errors import FormatError, InputError, MissingExtraError, NotFiniteError, ShapeError
from expunge.ridge.spec import Spec


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
            f"{path}: a column name occurs twice in the first line, in columns {first} and "
            f"{second}. Name "
            "each once; if that line is a sample, write a line of column names before it"
        )
    other = next((mark for mark in ";\t|" if len(header) == 1 and mark in header[0]), None)
    if other is not None:
        raise FormatError(
            f"{path} has {other!r} between its columns: a CSV file has commas. Write it again "
            "with those"
        )
    columns = keys.choose(path, header)
    place = {name: number for number, name in enumerate(header)}
    features: list[list[float]] = []
    texts: dict[str, list[str]] = {
        name: [] for name in (*columns.labels, columns.id, columns.subject) if name is not None
    }
    for row in reader:
        if not row:
            continue
        if len(row) != len(header):
            raise FormatError(
                f"line {reader.line_num} of {path} has {len(row)} fields, but the header has "
                f"{len(header)}"
            )
        features.append(
            [
                parsed_number(path, reader.line_num, name, row[place[name]])
                for name in columns.features
            ]
        )
        for name, column in texts.items():
            column.append(row[place[name]])
        if any(not texts[name][-1] for name in columns.labels):
            raise InputError(
                f"line {reader.line_num} of {path} has no label: mend or drop that sample"
            )
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
    """A cell of a column of features.

    What it holds instead of a number is not shown: it may be personal.
    """
    try:
        value = float(text)
    except ValueError as problem:
        raise InputError(
            f"line {line} of {path}: column {name!r} holds no number. Mend it, or say which "
            "columns are features"
        ) from problem
    if not math.isfinite(value):
        raise NotFiniteError(
            f"line {line} of {path}: column {name!r} is {value}: features must be finite. Mend or "
            "drop that sample"
        )
    return value


def _real(path: Path, name: str, texts: Sequence[str]) -> NDArray[np.float64]:
    values = np.empty(len(texts))
    for row, text in enumerate(texts):
        try:
            values[row] = float(text)
        except ValueError as problem:
            raise InputError(
                f"row {row} of {path}: several label columns are real targets, but {name!r} holds "
                "no number there. Mend or drop "
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
        table = parquet.read_table(
            path, columns=sorted({*columns.features, *columns.labels, *named})
        )
    except (pa.ArrowException, OSError) as problem:
        raise FormatError(f"{path} cannot be read as Parquet: {problem}") from problem
    _require_no_nulls(path, table, columns.labels)
    features = parquet_features(pa, path, table, columns.features)
    if len(columns.labels) == 1 and not _is_list(pa, table.column(columns.labels[0]).type):
        labels = _labels(pa, path, columns.labels[0], table.column(columns.labels[0]), spec)
    elif len(columns.labels) == 1:
        labels = _lists(path, columns.labels[0], table.column(columns.labels[0]))
    else:
        labels = np.stack(
            [_plain(pa, path, name, table.column(name)) for name in columns.labels], axis=1
        )
    ids = None if columns.id is None else table.column(columns.id).to_pylist()
    subjects = None if columns.subject is None else table.column(columns.subject).to_pylist()
    return assembled(path, features, labels, ids, subjects, ignored=columns.others(names))


def parquet_features(pa: Any, path: Path, table: Any, names: Sequence[str]) -> NDArray[Any]:
    """The features in these columns: one column of lists, or several of numbers."""
    _require_no_nulls(path, table, names)
    if len(names) == 1 and _is_list(pa, table.column(names[0]).type):
        return _lists(path, names[0], table.column(names[0]))
    return np.stack(
        [_finite(path, name, _plain(pa, path, name, table.column(name))) for name in names], axis=1
    )


def _require_no_nulls(path: Path, table: Any, names: Sequence[str]) -> None:
    for name in names:
        if table.column(name).null_count:
            raise InputError(
                f"{path}: column {name!r} has {table.column(name).null_count} missing values: "
                "mend or drop those samples"
            )


def _finite(path: Path, name: str, column: NDArray[Any]) -> NDArray[Any]:
    bad = np.flatnonzero(~np.isfinite(column))
    if bad.size:
        raise NotFiniteError(
            f"row {bad[0]} of {path}: column {name!r} is {column[bad[0]]}: features must be "
            "finite. Mend or drop that sample"
        )
    return column


def _is_list(pa: Any, kind: Any) -> bool:
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def _lists(path: Path, name: str, column: Any) -> NDArray[Any]:
    """A column of equally long lists as a matrix."""
    rows = [np.asarray(row) for row in column.combine_chunks().to_numpy(zero_copy_only=False)]
    lengths = sorted({row.size for row in rows})
    if len(lengths) > 1:
        raise ShapeError(
            f"{path}: the lists in column {name!r} have from {lengths[0]} to {lengths[-1]} "
            "entries; they must be alike"
        )
    array = np.stack(rows) if rows else np.zeros((0, 0))
    if array.dtype.kind not in "iuf":
        raise InputError(
            f"{path}: the lists in column {name!r} must hold numbers, and none may be missing"
        )
    return array


def _plain(pa: Any, path: Path, name: str, column: Any) -> NDArray[Any]:
    """A column of numbers."""
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise InputError(
            f"{path}: column {name!r} holds {kind}, not numbers. Say which columns are features"
        )
    return np.asarray(column.to_numpy())


def _labels(pa: Any, path: Path, name: str, column: Any, spec: Spec | None) -> NDArray[Any]:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return labels_of_texts(column.to_pylist(), spec)
    return _plain(pa, path, name, column)


SUFFIXES = (".npz", ".npy", ".csv", ".parquet")
_MAGIC, _ZIP_MAGIC = b"\x93NUMPY", b"PK"
_DAMAGED = (  # what numpy lets through where a file is damaged
    ValueError,
    EOFError,
    OSError,
    OverflowError,
    NotImplementedError,
    SyntaxError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
_WHOLE = 2.0**53  # up to which every float64 integer is itself


def load(
    path: Path,
    *,
    feature_keys: Sequence[str] | None = None,
    label_keys: Sequence[str] | None = None,
    id_key: str | None = None,
    subject_key: str | None = None,
    labels: Path | None = None,
    label_columns: int = 0,
    label_indices: bool = False,
    spec: Spec | None = None,
) -> Loaded:
    """The samples in a file.

    .npz: the arrays `features`, `labels` and, if they are there, `ids` and `subjects`; the keys
    name others. .npy: features, with labels from a second file (`labels`) or from the last columns
    (`label_columns`). .csv (with a header) and .parquet: the columns `label` and, if they are
    there, `id` and `subject`; features are the columns `feature_keys`, or `features` (lists, in
    Parquet), or all other columns. Several `label_keys` are the columns of real targets. Usual
    names are also known by other capitals, and with spaces around them.

    With `spec`, features must be as many as it says, and labels written as digits are names where
    the spec has such names. Other integers are class indices; where the spec's labels are texts,
    that must be said (`label_indices`).
    """
    path = Path(path)
    keys = Keys(feature_keys, label_keys, id_key, subject_key)
    loaded = _read(path, keys, labels, label_columns, spec)
    if spec is not None:
        require_names(path, loaded.labels, spec, label_indices=label_indices)
        if len(loaded) and loaded.features.shape[1] != spec.dim:
            raise ShapeError(
                f"{path} has {loaded.features.shape[1]} columns of features, and the spec has "
                f"{spec.dim}. Say which columns are "
                "features, labels, ids and subjects, if they have other names than the usual ones"
            )
    return loaded


def _read(
    path: Path, keys: Keys, labels: Path | None, label_columns: int, spec: Spec | None
) -> Loaded:
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(
            f"{path} is of a kind that cannot be read: give a file that ends in "
            f"{', '.join(SUFFIXES)}"
        )
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    if suffix == ".npy":
        if keys != Keys():
            raise InputError(
                f"{path} has no names for its columns: give the labels in a second file or as the "
                "last columns"
            )
        return _npy(path, labels, label_columns)
    if labels is not None or label_columns:
        raise InputError(
            f"{path} has labels of its own: name them by label_keys. A second file and last "
            "columns are for .npy"
        )
    if suffix == ".npz":
        return _npz(path, keys)
    return load_csv(path, keys, spec) if suffix == ".csv" else load_parquet(path, keys, spec)


def _npz(path: Path, keys: Keys) -> Loaded:
    with path.open("rb") as file:
        if file.read(len(_ZIP_MAGIC)) != _ZIP_MAGIC:
            raise FormatError(
                f"{path} cannot be read: it is not an .npz file, though its name says so"
            )
        file.seek(0)
        arrays = _opened(path, file)
        columns = replace(keys, features=keys.features or ["features"]).choose(
            path, arrays.files, "array"
        )
        if len(columns.features) > 1 or len(columns.labels) > 1:
            raise InputError(
                f"{path}: in an .npz file one array holds all features, and one all labels; name "
                "one of each"
            )
        features, labels = (
            _array(path, arrays, name) for name in (*columns.features, *columns.labels)
        )
        ids, subjects = (
            None if name is None else _array(path, arrays, name).tolist()
            for name in (columns.id, columns.subject)
        )
        ignored = columns.others(arrays.files)
    _require_matrix(path, features)
    return assembled(path, features, labels, ids, subjects, ignored=ignored)


def _npy(path: Path, labels: Path | None, label_columns: int) -> Loaded:
    array = _mapped(path)
    _require_matrix(path, array)
    if (labels is None) == (label_columns == 0):
        raise InputError(
            f"{path} has features only: give the labels either in a second .npy file or as its "
            "last columns"
        )
    if labels is not None:
        if not Path(labels).is_file():
            raise InputError(f"there is no file {labels}")
        return assembled(path, array, np.array(_mapped(Path(labels))), None, None)
    if not 0 < label_columns < array.shape[1]:
        raise InputError(
            f"{path} has {array.shape[1]} columns: its last {label_columns} cannot be the labels"
        )
    last = np.array(array[:, -label_columns:])
    if label_columns == 1:
        last = last[:, 0]
        whole = (
            last.astype(np.int64)
            if np.isfinite(last).all() and (np.abs(last) < _WHOLE).all()
            else last
        )
        last = whole if (whole == last).all() else last
    return assembled(path, array[:, :-label_columns], last, None, None)


def _mapped(path: Path) -> NDArray[Any]:
    """The array of an .npy file, read from the disk as it is needed."""
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise FormatError(
                f"{path} cannot be read: it is not an .npy file, though its name says so"
            )
    return np.asarray(_opened(path, path, mmap_mode="r"))


def _opened(path: Path, source: Path | BinaryIO, mmap_mode: Literal["r"] | None = None) -> Any:
    try:
        return np.load(source, allow_pickle=False, mmap_mode=mmap_mode)
    except _DAMAGED as problem:
        raise FormatError(f"{path} cannot be read: {_reason(problem)}") from problem


def _array(path: Path, arrays: Any, name: str) -> NDArray[Any]:
    try:
        return np.asarray(arrays[name])
    except _DAMAGED as problem:
        raise FormatError(
            f"the array {name!r} of {path} cannot be read: {_reason(problem)}"
        ) from problem


def _reason(problem: Exception) -> str:
    if "allow_pickle" in str(problem) or "pickle" in str(problem):
        return (
            "it holds Python objects, which are never read, because reading them runs code. "
            "Save it as numbers or texts"
        )
    return str(problem)


def _require_matrix(path: Path, features: NDArray[Any]) -> None:
    if features.ndim != 2:
        raise ShapeError(
            f"{path}: the features must be a matrix (n, dim), got an array of shape "
            f"{features.shape}"
        )
