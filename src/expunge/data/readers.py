"""Features, labels, ids and subjects from files: .npz, .npy, .csv and .parquet.

Where a file has no ids, they are made of its name and the row's number, so that loading it again
gives the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.data.columns import (
    LABELS,
    Columns,
    Keys,
    Loaded,
    assembled,
    labels_of_texts,
    require_names,
    require_width,
    sample_ids,
    usual_name,
)
from expunge.data.formats import ArrayColumn, Column, DataFile, matrix, open_file, require_suffix
from expunge.errors import InputError
from expunge.ridge.spec import Spec

_WHOLE = 2.0**53  # up to which every float64 integer is itself


@dataclass(frozen=True)
class Inputs:
    """What is to be predicted; `labels` where the file says what the answer should be."""

    ids: list[str]
    features: NDArray[Any]
    labels: NDArray[Any] | None = None


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

    Raises
    ------
    InputError, ShapeError, NotFiniteError, FormatError
        As `expunge.data.formats` lists them: the same for every way to read a file.
    """
    keys = Keys(feature_keys, label_keys, id_key, subject_key, labels, label_columns, label_indices)
    return load_samples(Path(path), keys, spec)


def load_samples(path: Path, keys: Keys, spec: Spec | None = None) -> Loaded:
    """The samples in a file, as `load` reads them."""
    _require_sense(path, keys)
    if path.suffix.lower() == ".npy" and (keys.labels_file is None) == (keys.last_columns == 0):
        with open_file(path):  # what is wrong with the file itself is said first
            raise InputError(
                f"{path} has features only: give the labels either in a second .npy file or as its "
                "last columns"
            )
    with open_file(path, keys.labels_file) as file:
        return _samples(file, keys, spec)


def load_inputs(path: Path, keys: Keys, spec: Spec) -> Inputs:
    """The inputs in a file, with labels if it has any."""
    _require_sense(path, keys)
    with open_file(path, keys.labels_file) as file:
        if keys.labels or keys.last_columns or usual_name(file.names, LABELS) is not None:
            samples = _samples(file, keys, spec)
            return Inputs(samples.ids, samples.features, samples.labels)
        columns = keys.choose(file, labelled=False)
        parts = _Parts(columns)
        for block in file.blocks(parts.names):
            parts.add(block)
    features = parts.features()
    require_width(path, features, spec)
    return Inputs(sample_ids(path, parts.ids, len(features)), features)


def _require_sense(path: Path, keys: Keys) -> None:
    """Refuse keys that are for files of another kind."""
    if require_suffix(path) == ".npy":
        if keys.names_columns:
            raise InputError(
                f"{path} has no names for its columns: give the labels in a second file or as the "
                "last columns"
            )
    elif keys.labels_file is not None or keys.last_columns:
        raise InputError(
            f"{path} has labels of its own: name them by label_keys. A second file and last "
            "columns are for .npy"
        )


def _samples(file: DataFile, keys: Keys, spec: Spec | None) -> Loaded:
    if keys.last_columns:
        features, labels = _cut(file, keys.last_columns)
        loaded = assembled(file.path, features, labels, None, None)
    else:
        columns = keys.choose(file)
        parts = _Parts(columns)
        for block in file.blocks(parts.names):
            parts.add(block)
        labels = parts.labels()
        if labels.dtype.kind == "U" and (spec is not None or file.what == "column"):
            labels = labels_of_texts(labels.tolist(), spec)
        ignored = columns.others(file.names)
        loaded = assembled(
            file.path, parts.features(), labels, parts.ids, parts.subjects, ignored=ignored
        )
    if spec is not None:
        require_names(file.path, loaded.labels, spec, label_indices=keys.label_indices)
        require_width(file.path, loaded.features, spec)
    return loaded


class _Parts:
    """The parts of samples, put together from the blocks of a file."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._features: list[NDArray[Any]] = []
        self._labels: list[NDArray[Any]] = []
        self.ids: list[Any] | None = None if columns.id is None else []
        self.subjects: list[Any] | None = None if columns.subject is None else []
        named = (*columns.features, *columns.labels, columns.id, columns.subject)
        self.names = list(dict.fromkeys(name for name in named if name is not None))

    def add(self, block: dict[str, Column]) -> None:
        """The next rows."""
        columns = self._columns
        self._features.append(matrix([block[name] for name in columns.features]))
        if columns.labels:
            self._labels.append(label_array([block[name] for name in columns.labels]))
        for name, values in ((columns.id, self.ids), (columns.subject, self.subjects)):
            if name is not None and values is not None:
                values.extend(block[name].values())

    def features(self) -> NDArray[Any]:
        """One row for each sample."""
        return _joined(self._features)

    def labels(self) -> NDArray[Any]:
        """One label, or one row of real targets, for each sample."""
        return _joined(self._labels)


def _joined(blocks: list[NDArray[Any]]) -> NDArray[Any]:
    """The rows of all blocks; a single block as it is, so that a mapped array stays mapped."""
    if len(blocks) > 1:
        return np.concatenate(blocks)
    return blocks[0]


def label_array(columns: Sequence[Column]) -> NDArray[Any]:
    """Labels of a single column; the real targets of several."""
    if len(columns) == 1:
        return columns[0].labels()
    return np.stack([column.numbers() for column in columns], axis=1)


def _cut(file: DataFile, last: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Features and labels of an .npy file whose last columns are the labels."""
    array = file.column("features").numbers()
    width = array.shape[-1] if array.ndim == 2 else 0
    features = matrix([ArrayColumn(file.path, "features", array[:, :-last] if width else array)])
    if not 0 < last < width:
        raise InputError(f"{file.path} has {width} columns: its last {last} cannot be the labels")
    labels = np.array(array[:, -last:])
    if last == 1:
        labels = labels[:, 0]
        if np.isfinite(labels).all() and (np.abs(labels) < _WHOLE).all():
            whole = labels.astype(np.int64)
            labels = whole if (whole == labels).all() else labels
    return features, labels
