"""Features, labels, ids and subjects from files: .npz, .npy, .csv and .parquet.

Where a file has no ids, they are made of its name and the row's number, so that loading it again
gives the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.data.columns import (
    Columns,
    Keys,
    Loaded,
    assembled,
    labels_of_texts,
    require_names,
    require_width,
    sample_ids,
)
from expunge.data.formats import ArrayColumn, Column, DataFile, matrix, open_file, require_suffix
from expunge.errors import InputError
from expunge.ridge.feature_names import LABELS, usual_name
from expunge.ridge.spec import Spec

_WHOLE = 2.0**53  # up to which every float64 integer is itself


@dataclass(frozen=True)
class Inputs:
    """What is to be predicted; `labels` where the file says what the answer should be."""

    ids: list[str]
    features: NDArray[Any]
    labels: NDArray[Any] | None = None
    feature_names: tuple[str, ...] | None = None


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
    r"""Read the samples in a file.

    - .npz: the arrays `features`, `labels` and, if they are there, `ids` and `subjects`.
    - .npy: features, with labels from a second file (`labels`) or from the last columns
      (`label_columns`).
    - .csv (with a header) and .parquet: the columns `label` and, if they are there, `id` and
      `subject`; features are the column `features` (lists, in Parquet), or all other columns.

    Usual names are also recognised in other capitals, and with spaces around them. Where a file has
    no ids, they are made of its name and the row's number, so that reading it again gives the same
    ones.

    Parameters
    ----------
    path : Path
        The file.
    feature_keys : sequence of str or None, default None
        The array or columns of features, if they have other names.
    label_keys : sequence of str or None, default None
        The array or column of labels, if it has another name; several columns are real targets.
    id_key : str or None, default None
        The array or column of ids, if it has another name.
    subject_key : str or None, default None
        The array or column of subjects, if it has another name.
    labels : Path or None, default None
        For .npy: the file with the labels.
    label_columns : int, default 0
        For .npy: how many of the last columns are labels.
    label_indices : bool, default False
        Whether integers are class indices although the spec's labels are texts.
    spec : Spec or None, default None
        If given, features must have its `dim`, and labels written as digits are names if the spec
        has such names.

    Returns
    -------
    Loaded
        Ids, features, labels and subjects.

    Raises
    ------
    InputError, ShapeError, NotFiniteError, FormatError
        As `expunge.data.formats` lists them: the same for every way to read a file.
    UnknownLabelError
        The labels are integers, the spec's are texts, and `label_indices` is not given.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from expunge.client import load
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = Path(folder.name) / "samples.csv"
    >>> _ = path.write_text("id,subject,label,x,y\na,ann,cat,1.0,0.5\nb,bob,dog,0.0,1.0\n")
    >>> loaded = load(path)
    >>> loaded.ids, loaded.subjects, loaded.labels.tolist()
    (['a', 'b'], ['ann', 'bob'], ['cat', 'dog'])
    >>> loaded.features.shape
    (2, 2)
    >>> folder.cleanup()
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
            return Inputs(samples.ids, samples.features, samples.labels, samples.feature_names)
        columns = keys.choose(file, labelled=False)
        parts = _Parts(columns)
        for block in file.blocks(parts.names):
            parts.add(block)
        features = parts.features()
        require_width(
            file,
            features,
            spec.dim,
            columns=columns.features,
            ignored=columns.others(file.names),
            is_chosen=bool(keys.features),
        )
    ids = sample_ids(path, parts.ids, len(features))
    return Inputs(ids, features, feature_names=columns.feature_names)


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
    chosen: list[str] = []
    if keys.last_columns:
        features, labels = _cut(file, keys.last_columns)
        loaded = assembled(file.path, features, labels, None, None)
    else:
        columns = keys.choose(file)
        chosen = columns.features
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
        loaded = replace(loaded, feature_names=columns.feature_names)
    if spec is not None:
        require_names(file.path, loaded.labels, spec, label_indices=keys.label_indices)
        require_width(
            file,
            loaded.features,
            spec.dim,
            columns=chosen,
            ignored=loaded.ignored,
            is_chosen=bool(keys.features),
        )
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
