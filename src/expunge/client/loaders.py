"""Features, labels, ids and subjects from files: .npz, .npy, .csv and .parquet.

Nothing that could run code is read: arrays of Python objects, which would have to be unpickled, are refused. Where a file has no
ids, they are made of its name and the row's number, so that loading it again gives the same ones.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from expunge.client.columns import Keys, Loaded, assembled
from expunge.client.tables import load_csv, load_parquet
from expunge.errors import FormatError, InputError, ShapeError
from expunge.spec import Spec

SUFFIXES = (".npz", ".npy", ".csv", ".parquet")
_MAGIC = b"\x93NUMPY"
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
    spec: Spec | None = None,
) -> Loaded:
    """The samples in a file.

    .npz: the arrays `features`, `labels` and, if they are there, `ids` and `subjects`; the keys name others. .npy: features, with
    labels from a second file (`labels`) or from the last columns (`label_columns`). .csv (with a header) and .parquet: the
    columns `label` and, if they are there, `id` and `subject`; features are the columns `feature_keys`, or `features` (lists, in
    Parquet), or all other columns. Several `label_keys` are the columns of real targets. With `spec`, labels written as digits
    are names where the spec has such names; otherwise they are class indices.
    """
    path, suffix = Path(path), Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(f"{path} is of a kind that cannot be read: give a file that ends in {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    keys = Keys(feature_keys, label_keys, id_key, subject_key)
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
        arrays = _opened(path, file)
        if not isinstance(arrays, np.lib.npyio.NpzFile):
            raise FormatError(f"{path} cannot be read: it is not an .npz file, though its name says so")
        columns = replace(keys, features=keys.features or ["features"]).choose(path, arrays.files, "array")
        if len(columns.features) > 1 or len(columns.labels) > 1:
            raise InputError(f"{path}: in an .npz file one array holds all features, and one all labels; name one of each")
        features, labels = (_array(path, arrays, name) for name in (*columns.features, *columns.labels))
        ids, subjects = (None if name is None else _array(path, arrays, name).tolist() for name in (columns.id, columns.subject))
    _require_matrix(path, features)
    return assembled(path, features, labels, ids, subjects)


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
    except (ValueError, EOFError, zipfile.BadZipFile) as problem:
        raise FormatError(f"{path} cannot be read: {_reason(problem)}") from problem


def _array(path: Path, arrays: Any, name: str) -> NDArray[Any]:
    try:
        return np.asarray(arrays[name])
    except (ValueError, EOFError, zipfile.BadZipFile) as problem:
        raise FormatError(f"the array {name!r} of {path} cannot be read: {_reason(problem)}") from problem


def _reason(problem: Exception) -> str:
    if "allow_pickle" in str(problem) or "pickle" in str(problem):
        return "it holds Python objects, which are never read, because reading them runs code. Save it as numbers or texts"
    return str(problem)


def _require_matrix(path: Path, features: NDArray[Any]) -> None:
    if features.ndim != 2:
        raise ShapeError(f"{path}: the features must be a matrix (n, dim), got an array of shape {features.shape}")
