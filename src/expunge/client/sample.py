"""Samples as they are sealed: what they are called, and what they are.

Laws: `Names.from_bytes(n.to_bytes()) == n`, and the same for `Content`, whose feature keeps the very bytes and type that it came
with. `rows_of` gives the integers that `expunge.rows.integer_rows` gives for the same features and labels.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge import canonical
from expunge.errors import StoreError
from expunge.rows import Rows, put_features
from expunge.spec import Spec
from expunge.targets import Targets, targets_of

_LENGTH = struct.Struct("<I")


FILE_SOURCE, TEXT_SOURCE = "file:", "text:"  # how sources begin that are a file, or the text of the sample itself


@dataclass(frozen=True)
class Names:
    """What a sample is called, whom it is about, and where it can be computed from again."""

    id: str
    subject: str | None
    source: str | None

    @property
    def file(self) -> str | None:
        """The file that is the source; None where the source is something else, such as a text, which is never shown."""
        source = self.source or ""
        return source.removeprefix(FILE_SOURCE) if source.startswith(FILE_SOURCE) else None

    def to_bytes(self) -> bytes:
        """Canonical bytes, to be sealed."""
        return canonical.encode([self.id, self.subject, self.source])

    @classmethod
    def from_bytes(cls, data: bytes) -> Names:
        """The inverse of `to_bytes`."""
        return cls(*canonical.decode(data, "the names of a sample"))


@dataclass(frozen=True, eq=False)
class Content:
    """What a sample is: feature (None where it is computed again when needed), target (class index or real row) and salt."""

    salt: bytes
    feature: NDArray[Any] | None
    target: int | NDArray[Any]

    def to_bytes(self) -> bytes:
        """Bytes to be sealed."""
        head: dict[str, Any] = {"feature": None, "salt": self.salt.hex(), "target": self.target}
        tail = b""
        if self.feature is not None:
            head["feature"] = [self.feature.dtype.str, self.feature.size]
            tail += self.feature.tobytes()
        if not isinstance(self.target, int):
            head["target"] = [self.target.dtype.str, self.target.size]
            tail += self.target.tobytes()
        text = canonical.encode(head)
        return _LENGTH.pack(len(text)) + text + tail

    @classmethod
    def from_bytes(cls, data: bytes) -> Content:
        """The inverse of `to_bytes`."""
        (size,) = _LENGTH.unpack_from(data)
        start = _LENGTH.size + size
        head = canonical.decode(data[_LENGTH.size : start], "the content of a sample")
        feature, target = head["feature"], head["target"]
        arrays = []
        for form in (feature, target):
            if isinstance(form, list):
                dtype = np.dtype(form[0])
                arrays.append(np.frombuffer(data, dtype=dtype, count=form[1], offset=start))
                start += dtype.itemsize * form[1]
        if start != len(data):
            raise StoreError("the content of a sample has another length than it says: the store is damaged")
        return cls(
            bytes.fromhex(head["salt"]),
            arrays[0] if feature is not None else None,
            arrays[-1] if isinstance(target, list) else int(target),
        )


def rows_of(spec: Spec, features: Sequence[NDArray[Any]], targets: Sequence[int | NDArray[Any]]) -> Rows:
    """The integers of samples, whose features and targets may be of different types. Targets made for fewer labels are padded."""
    integers = np.empty((len(features), spec.width))
    largest = 0.0
    for places in _alike([feature.dtype.str for feature in features]):
        block = np.empty((len(places), spec.width))
        largest = max(largest, put_features(spec, np.stack([features[place] for place in places]), block))
        integers[places] = block
    return Rows(integers, largest, _targets_of(spec, targets))


def _targets_of(spec: Spec, targets: Sequence[int | NDArray[Any]]) -> Targets:
    integers = np.zeros((len(targets), spec.columns))
    counts = np.zeros(spec.columns if spec.is_classification else 0, dtype=np.int64)
    kinds = ["" if isinstance(target, int) else f"{target.dtype.str} {target.size}" for target in targets]
    for places in _alike(kinds):
        labels = np.array([targets[place] for place in places])
        if labels.ndim == 2:
            labels = np.pad(labels, ((0, 0), (0, spec.columns - labels.shape[1])))
        part = targets_of(spec, labels)
        integers[places] = part.integers
        counts += part.class_counts
    return Targets(integers, counts)


def _alike(kinds: Sequence[str]) -> list[list[int]]:
    """The places of each kind: arrays of different types are never brought to a common one, which could round."""
    places: dict[str, list[int]] = {}
    for place, kind in enumerate(kinds):
        places.setdefault(kind, []).append(place)
    return list(places.values())
