"""A batch of samples as people give it, checked: what cannot be taken is refused by the number of its row.

Ids, subjects and labels may be personal, so no message shows them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.client.sample import Names
from expunge.errors import InputError, ShapeError
from expunge.rows import Rows, checked_features, integer_rows
from expunge.spec import Spec
from expunge.targets import as_array, checked_labels

_LONGEST = 4096  # characters of an id, subject or source


@dataclass(frozen=True)
class Batch:
    """Samples to be added. Features and labels are arrays, perhaps memory-mapped; they are looked at block by block."""

    ids: list[str]
    features: NDArray[Any]
    labels: NDArray[Any]
    subjects: list[str | None]
    sources: list[str | None]
    first: int = 0  # the number of the first row, where this is a part of a batch

    @classmethod
    def of(cls, spec: Spec, ids: Any, features: Any, labels: Any, *, subjects: Any = None, sources: Any = None) -> Batch:
        """A batch whose parts belong together; the values of features and labels are not yet looked at."""
        names = [_text(one, f"the id of row {row}") for row, one in enumerate(_several(ids, "ids"))]
        array = checked_features(spec, features)
        targets = as_array(labels, "labels")
        if "" in names:
            raise InputError(f"the id of row {names.index('')} is empty: every sample needs an id of its own")
        batch = cls(names, array, targets, _texts(subjects, "subjects", names), _texts(sources, "sources", names))
        for what, number in (("features", len(array)), ("labels", len(targets))):
            if number != len(names):
                raise ShapeError(f"{len(names)} ids need as many {what}, got {number}")
        return batch

    def __len__(self) -> int:
        return len(self.ids)

    def part(self, places: slice) -> Batch:
        """Some of the samples, which follow one another."""
        first = self.first + places.indices(len(self))[0]
        return Batch(
            self.ids[places],
            self.features[places],
            self.labels[places],
            self.subjects[places],
            self.sources[places],
            first,
        )

    def names(self) -> list[Names]:
        """What each is called."""
        return [Names(*one) for one in zip(self.ids, self.subjects, self.sources, strict=True)]

    def rows(self, spec: Spec) -> tuple[Rows, list[int | NDArray[Any]]]:
        """The integers, and each target as it is kept: the class index of a hard label, the row as it came otherwise."""
        try:
            rows = integer_rows(spec, self.features, self.labels)
        except InputError as problem:
            raise self._by_row(spec, problem) from problem
        checked = checked_labels(spec, self.labels, len(self))
        if checked.ndim == 1:
            return rows, [int(label) for label in checked]
        integers = rows.targets.integers
        one = 2.0**spec.label_grid.fraction_bits
        hard = spec.is_classification & (np.count_nonzero(integers, axis=1) == 1) & (integers.max(axis=1, initial=0.0) == one)
        indices = integers.argmax(axis=1)
        return rows, [int(indices[place]) if hard[place] else np.ascontiguousarray(checked[place]) for place in range(len(self))]

    def _by_row(self, spec: Spec, problem: InputError) -> InputError:
        """The same refusal with the number of the row in the whole batch."""
        for place in range(len(self)):
            try:
                integer_rows(spec, self.features[place : place + 1], self.labels[place : place + 1])
            except InputError as one:
                text = str(one).replace("row 0, column", "column").replace(" of row 0", "")
                which = "the sample" if self.first + len(self) == 1 else f"row {self.first + place} (counted from 0)"
                return type(one)(f"{which} cannot be taken, and nothing was added: {text}")
        return problem


def _several(values: Any, what: str) -> Sequence[Any]:
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise InputError(f"{what} must be a sequence with one entry for each sample, got {type(values).__name__}")
    return list(values)


def _texts(values: Any, what: str, ids: Sequence[str]) -> list[str | None]:
    if values is None:
        return [None] * len(ids)
    texts = [
        None if one is None else _text(one, f"the {what[:-1]} of row {row}") for row, one in enumerate(_several(values, what))
    ]
    if len(texts) != len(ids):
        raise ShapeError(f"{len(ids)} ids need as many {what}, got {len(texts)}")
    return texts


def _text(value: object, what: str) -> str:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (str, int, np.integer)):
        raise InputError(f"{what} must be a text or an integer, got {type(value).__name__}")
    text = str(value)
    if len(text) > _LONGEST:
        raise InputError(f"{what} has {len(text)} characters, more than the {_LONGEST} allowed")
    return text
