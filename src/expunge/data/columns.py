"""The role of each column of a file, and what a file yields."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.data.formats import DataFile, missing_column, require_alike
from expunge.errors import InputError, ShapeError, UnknownLabelError
from expunge.ridge.feature_names import (
    FEATURES,
    IDS,
    LABELS,
    SUBJECTS,
    usual_features,
    usual_name,
)
from expunge.ridge.spec import Spec

NAME_LABELS = "Name the one with the labels"
_COUNTED = "All columns count but those of labels, ids and subjects"
_ALL_SHOWN = 12


@dataclass(frozen=True)
class Loaded:
    """Samples read from a file, ready for `ClientStore.add`.

    Attributes
    ----------
    ids : list of str
        One id for each sample.
    features : ndarray of shape (n, dim)
        The features, perhaps memory-mapped.
    labels : ndarray
        Labels, class indices, or rows of real targets.
    subjects : list of (str or None) or None
        Whom each sample is about; None if the file does not say.
    ignored : tuple of str
        Arrays or columns that were not read.
    made_ids : bool
        Whether the ids were made of file name and row number, because the file has none.
    feature_names : tuple of str or None
        The names of the columns of features; None if they are one array or column of lists.

    Examples
    --------
    >>> import numpy as np
    >>> from expunge.client import Loaded
    >>> loaded = Loaded(["a", "b"], np.eye(2), np.array(["cat", "dog"]), subjects=None)
    >>> len(loaded)
    2
    """

    ids: list[str]
    features: NDArray[Any]
    labels: NDArray[Any]
    subjects: list[str | None] | None
    ignored: tuple[str, ...] = ()  # arrays or columns that were not read
    made_ids: bool = False  # whether the ids were made of file name and row number
    feature_names: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Columns:
    """The names of what is to be read."""

    features: list[str]
    labels: list[str]
    id: str | None
    subject: str | None

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """Those of the features, if they are single numbers in several columns."""
        return tuple(self.features) if len(self.features) > 1 else None

    def others(self, names: Sequence[str]) -> tuple[str, ...]:
        """What a file has besides."""
        taken = {*self.features, *self.labels, self.id, self.subject}
        return tuple(name for name in names if name not in taken)


@dataclass(frozen=True)
class Keys:
    """What a person says about the columns of a file; what is not said is found by the usual
    names.
    """

    features: Sequence[str] | None = None
    labels: Sequence[str] | None = None
    id: str | None = None
    subject: str | None = None
    labels_file: Path | None = None  # of an .npy file: where its labels are
    last_columns: int = 0  # of an .npy file: how many of its last columns are the labels
    label_indices: bool = False  # whether integers are class indices where the labels are texts

    @property
    def names_columns(self) -> bool:
        """Whether a column is named at all."""
        return bool(self.features or self.labels or self.id or self.subject)

    def choose(self, file: DataFile, *, labelled: bool = True) -> Columns:
        """The columns that are meant, among those that the file has; if `labelled` is false, it
        may have no labels.
        """
        for single in (self.features, self.labels):
            if isinstance(single, str):
                raise InputError(f"name the {file.what}s in a list: [{single!r}]")
        ids = self._one(file, self.id, IDS)
        subjects = self._one(file, self.subject, SUBJECTS)
        labels = list(self.labels or filter(None, [usual_name(file.names, LABELS)]))
        if not labels and labelled:
            raise missing_column(file.path, file.what, LABELS, file.names, NAME_LABELS)
        taken = {*labels, ids, subjects}
        if file.what == "array" and not (self.features or usual_name(file.names, FEATURES)):
            raise missing_column(file.path, file.what, FEATURES, file.names, file.name_features)
        features = list(self.features or usual_features(file.names, taken))
        file.require(*features, *labels)
        require_distinct(file, features, taken)
        if file.what == "array" and (len(features) > 1 or len(labels) > 1):
            raise one_of_each(file)
        return Columns(features, labels, ids, subjects)

    @staticmethod
    def _one(file: DataFile, given: str | None, usual: Sequence[str]) -> str | None:
        if given is not None:
            file.require(given)
            return given
        return usual_name(file.names, usual)


def require_distinct(
    file: DataFile, features: Sequence[str], taken: Collection[str | None]
) -> None:
    """Refuse a column of features that is named twice, or is taken for something else; and none."""
    doubled = sorted({name for name in features if name in taken or features.count(name) > 1})
    if doubled or not features:
        raise InputError(
            f"{file.path}: {file.what} {doubled[0]!r} is named twice"
            if doubled
            else f"{file.path} has no {file.what} of features besides those of labels, ids and "
            "subjects: add them"
        )


def one_of_each(file: DataFile) -> InputError:
    """The error for several arrays of features or labels."""
    return InputError(
        f"{file.path}: in an .npz file one array holds all features, and one all labels; name one "
        "of each"
    )


def assembled(
    path: Path,
    features: Any,
    labels: Any,
    ids: Sequence[object] | None,
    subjects: Sequence[object] | None,
    *,
    ignored: tuple[str, ...] = (),
) -> Loaded:
    """The samples of a file, if its parts are equally many.

    Ids that are missing are made of file name and row number.
    """
    parts = {"features": features, "labels": labels, "subjects": subjects}
    require_alike(
        path,
        {
            name: part.shape if isinstance(part, np.ndarray) else (len(part),)
            for name, part in parts.items()
            if part is not None
        },
    )
    names = sample_ids(path, ids, len(features))
    about = (
        None
        if subjects is None
        else [subject or None for subject in _texts(path, subjects, "subject")]
    )
    return Loaded(names, features, labels, about, ignored, made_ids=ids is None)


def sample_ids(path: Path, ids: Sequence[object] | None, count: int) -> list[str]:
    """The ids of a file, or those that are made of its name and the row's number."""
    if ids is None:
        return [f"{path.name}#{row}" for row in range(count)]
    require_alike(path, {"features": (count,), "ids": (len(ids),)})
    return _texts(path, ids, "id")


def _texts(path: Path, values: Sequence[object], what: str) -> list[str]:
    for row, value in enumerate(values):
        if isinstance(value, (bool, np.bool_)) or not isinstance(
            value, (str, int, np.integer, type(None))
        ):
            raise InputError(f"row {row} of {path}: the {what} is neither a text nor an integer")
    return ["" if value is None else str(value) for value in values]


def labels_of_texts(texts: Sequence[str], spec: Spec | None) -> NDArray[Any]:
    """Labels written as texts: names where the spec has them, otherwise integers, otherwise
    numbers, otherwise names.
    """
    if spec is not None and set(texts) <= set(spec.labels or ()):
        return np.array(texts, dtype=np.str_)
    for kind in (np.int64, np.float64):
        try:
            return np.array([kind(text) for text in texts], dtype=kind)
        except (ValueError, OverflowError):
            continue
    return np.array(texts, dtype=np.str_)


def require_names(what: object, labels: NDArray[Any], spec: Spec, *, label_indices: bool) -> None:
    """Refuse integers for labels that are texts, unless it was said that they are class indices: 1
    is often not the second.
    """
    names = spec.labels or ()
    if label_indices or not len(labels) or labels.ndim != 1 or labels.dtype.kind not in "iub":
        return
    if any(isinstance(name, str) for name in names):
        shown = ", ".join(str(name) for name in names[:_ALL_SHOWN]) + (
            ", ..." if len(names) > _ALL_SHOWN else ""
        )
        raise UnknownLabelError(
            f"{what}: the labels are integers, and those of the spec are texts: {shown}. Give the "
            "texts; or say that the integers are class indices, counted from 0 in that order "
            "(label_indices=True)"
        )


def require_width(
    file: DataFile,
    features: NDArray[Any],
    dim: int,
    *,
    columns: Sequence[str],
    ignored: Collection[str],
    is_chosen: bool,
) -> None:
    """Refuse features that are not as many as the spec says.

    They came from these `columns` of the file, which somebody has chosen, or which are all that are
    left besides labels, ids and subjects; the file has what was `ignored` as well.
    """
    if not len(features) or features.shape[1] == dim:
        return
    width = features.shape[1]
    is_single = file.what == "column" and len(columns) == width  # one number in each column
    remedy = f"Give features of length {dim}"
    if is_single and is_chosen:
        remedy = f"{file.name_features}: {dim} of them"
    elif is_single and width < dim:
        remedy = f"{_COUNTED}: add the columns that are missing"
    elif is_single:
        remedy = f"{_COUNTED}. {file.name_features}"
    elif ignored:
        remedy += f", or name another {file.what}"
    raise ShapeError(
        f"{file.path} has {width} column{'s' * (width != 1)} of features, and the spec has {dim}. "
        f"{remedy}"
    )
