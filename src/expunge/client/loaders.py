"""Features, labels, ids and subjects from files: .npz, .npy, .csv and .parquet.

Nothing that could run code is read: arrays of Python objects, which would have to be unpickled, are refused. Where a file has no
ids, they are made of its name and the row's number, so that loading it again gives the same ones.
"""

from __future__ import annotations

import struct
import tokenize
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from expunge.client.columns import Keys, Loaded, assembled, require_names
from expunge.client.tables import load_csv, load_parquet
from expunge.errors import FormatError, InputError, ShapeError
from expunge.spec import Spec

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

    .npz: the arrays `features`, `labels` and, if they are there, `ids` and `subjects`; the keys name others. .npy: features, with
    labels from a second file (`labels`) or from the last columns (`label_columns`). .csv (with a header) and .parquet: the
    columns `label` and, if they are there, `id` and `subject`; features are the columns `feature_keys`, or `features` (lists, in
    Parquet), or all other columns. Several `label_keys` are the columns of real targets. Usual names are also
    known by other capitals, and with spaces around them.

    With `spec`, features must be as many as it says, and labels written as digits are names where the spec has such names. Other
    integers are class indices; where the spec's labels are texts, that must be said (`label_indices`).
    """
    path = Path(path)
    keys = Keys(feature_keys, label_keys, id_key, subject_key)
    loaded = _read(path, keys, labels, label_columns, spec)
    if spec is not None:
        require_names(path, loaded.labels, spec, label_indices=label_indices)
        if len(loaded) and loaded.features.shape[1] != spec.dim:
            raise ShapeError(
                f"{path} has {loaded.features.shape[1]} columns of features, and the spec has {spec.dim}. Say which columns are "
                "features, labels, ids and subjects, if they have other names than the usual ones"
            )
    return loaded


def _read(path: Path, keys: Keys, labels: Path | None, label_columns: int, spec: Spec | None) -> Loaded:
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(f"{path} is of a kind that cannot be read: give a file that ends in {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    if suffix == ".npy":
        if keys != Keys():
            raise InputError(f"{path} has no names for its columns: give the labels in a second file or as the last columns")
        return _npy(path, labels, label_columns)
    if labels is not None or label_columns:
        raise InputError(f"{path} has labels of its own: name them by label_keys. A second file and last columns are for .npy")
    if suffix == ".npz":
        return _npz(path, keys)
    return load_csv(path, keys, spec) if suffix == ".csv" else load_parquet(path, keys, spec)


def _npz(path: Path, keys: Keys) -> Loaded:
    with path.open("rb") as file:
        if file.read(len(_ZIP_MAGIC)) != _ZIP_MAGIC:
            raise FormatError(f"{path} cannot be read: it is not an .npz file, though its name says so")
        file.seek(0)
        arrays = _opened(path, file)
        columns = replace(keys, features=keys.features or ["features"]).choose(path, arrays.files, "array")
        if len(columns.features) > 1 or len(columns.labels) > 1:
            raise InputError(f"{path}: in an .npz file one array holds all features, and one all labels; name one of each")
        features, labels = (_array(path, arrays, name) for name in (*columns.features, *columns.labels))
        ids, subjects = (None if name is None else _array(path, arrays, name).tolist() for name in (columns.id, columns.subject))
        ignored = columns.others(arrays.files)
    _require_matrix(path, features)
    return assembled(path, features, labels, ids, subjects, ignored=ignored)


def _npy(path: Path, labels: Path | None, label_columns: int) -> Loaded:
    array = _mapped(path)
    _require_matrix(path, array)
    if (labels is None) == (label_columns == 0):
        raise InputError(f"{path} has features only: give the labels either in a second .npy file or as its last columns")
    if labels is not None:
        if not Path(labels).is_file():
            raise InputError(f"there is no file {labels}")
        return assembled(path, array, np.array(_mapped(Path(labels))), None, None)
    if not 0 < label_columns < array.shape[1]:
        raise InputError(f"{path} has {array.shape[1]} columns: its last {label_columns} cannot be the labels")
    last = np.array(array[:, -label_columns:])
    if label_columns == 1:
        last = last[:, 0]
        whole = last.astype(np.int64) if np.isfinite(last).all() and (np.abs(last) < _WHOLE).all() else last
        last = whole if (whole == last).all() else last
    return assembled(path, array[:, :-label_columns], last, None, None)


def _mapped(path: Path) -> NDArray[Any]:
    """The array of an .npy file, read from the disk as it is needed."""
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise FormatError(f"{path} cannot be read: it is not an .npy file, though its name says so")
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
        raise FormatError(f"the array {name!r} of {path} cannot be read: {_reason(problem)}") from problem


def _reason(problem: Exception) -> str:
    if "allow_pickle" in str(problem) or "pickle" in str(problem):
        return "it holds Python objects, which are never read, because reading them runs code. Save it as numbers or texts"
    return str(problem)


def _require_matrix(path: Path, features: NDArray[Any]) -> None:
    if features.ndim != 2:
        raise ShapeError(f"{path}: the features must be a matrix (n, dim), got an array of shape {features.shape}")
