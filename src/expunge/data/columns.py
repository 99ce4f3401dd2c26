"""Which column of a file is what, and what a file gives in the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.errors import InputError, ShapeError, UnknownLabelError
from expunge.ridge.spec import Spec

_ALL_SHOWN = 12
_LONGEST_NAME = 40  # characters of a column name that is shown


@dataclass(frozen=True)
class Loaded:
    """Samples as they are in a file, ready for `ClientStore.add`."""

    ids: list[str]
    features: NDArray[Any]
    labels: NDArray[Any]
    subjects: list[str | None] | None
    ignored: tuple[str, ...] = ()  # arrays or columns that were not read
    made_ids: bool = False  # whether the ids were made of file name and row number

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Columns:
    """The names of what is to be read."""

    features: list[str]
    labels: list[str]
    id: str | None
    subject: str | None

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

    def choose(self, path: Path, names: Sequence[str], what: str = "column") -> Columns:
        """The columns that are meant, among those that the file has."""
        for single in (self.features, self.labels):
            if isinstance(single, str):
                raise InputError(f"name the {what}s in a list: [{single!r}]")
        ids = self._one(path, names, what, self.id, ("id", "ids"))
        subjects = self._one(path, names, what, self.subject, ("subject", "subjects"))
        labels = list(
            self.labels or filter(None, [self._one(path, names, what, None, ("label", "labels"))])
        )
        if not labels:
            raise InputError(
                f"{path} has no {what} 'label' or 'labels'; it has {shown_names(names)}. Name the "
                "one with the labels"
            )
        taken = {*labels, ids, subjects}
        lists = usual_name(names, ("features",))
        features = list(
            self.features
            or ([lists] if lists is not None else [name for name in names if name not in taken])
        )
        for name in (*features, *labels):
            _require(path, names, what, name)
        doubled = sorted({name for name in features if name in taken or features.count(name) > 1})
        if doubled or not features:
            raise InputError(
                f"{path}: {what} {doubled[0]!r} is named twice"
                if doubled
                else f"{path} has no {what} of features"
            )
        return Columns(features, labels, ids, subjects)

    @staticmethod
    def _one(
        path: Path, names: Sequence[str], what: str, said: str | None, usual: Sequence[str]
    ) -> str | None:
        if said is not None:
            _require(path, names, what, said)
            return said
        return usual_name(names, usual)


def usual_name(names: Sequence[str], usual: Sequence[str]) -> str | None:
    """The first of these that has a usual name, as it is written; else one that is so named but for
    capitals and spaces.
    """
    exact = next((name for name in usual if name in names), None)
    return exact or next(
        (name for word in usual for name in names if name.strip().lower() == word), None
    )


def _require(path: Path, names: Sequence[str], what: str, name: str) -> None:
    if name not in names:
        raise InputError(f"{path} has no {what} {name!r}; it has {shown_names(names)}")


def shown_names(names: Sequence[str]) -> str:
    """The names of columns as messages list them; not if they look like cells."""
    if any(_is_cell(name) for name in names):
        return (
            f"{len(names)} columns, whose names look like a sample. A table begins with a line "
            "of column names"
        )
    more = len(names) - _ALL_SHOWN
    return (", ".join(repr(name) for name in names[:_ALL_SHOWN]) or "none") + (
        f" and {more} more" if more > 0 else ""
    )


def _is_cell(name: str) -> bool:
    """Whether what should be the name of a column is rather a cell: a number or a long text.

    Then it may be personal.
    """
    try:
        float(name)
    except ValueError:
        return len(name) > _LONGEST_NAME
    return True


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
    count = len(features)
    for what, part in (("labels", labels), ("ids", ids), ("subjects", subjects)):
        if part is not None and len(part) != count:
            raise ShapeError(f"{path} has {count} rows of features, but {len(part)} {what}")
    names = (
        [f"{path.name}#{row}" for row in range(count)] if ids is None else _texts(path, ids, "id")
    )
    about = None if subjects is None else [one or None for one in _texts(path, subjects, "subject")]
    return Loaded(names, features, labels, about, ignored, made_ids=ids is None)


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
            "texts; or "
            "say that the integers are class indices, counted from 0 in that order "
            "(label_indices=True)"
        )
