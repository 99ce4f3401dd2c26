"""Statistics as canonical bytes, and back: docs/formats.md in code.

Law: equal statistics have equal bytes, whatever they were made from; any altered byte is refused.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.errors import FormatError, SpecMismatchError
from expunge.exact import blas, wide
from expunge.frame import CHECKSUM_BYTES, Bytes, Format, Reader, with_checksum
from expunge.ridge.spec import Spec
from expunge.ridge.sums import embedded

_FORMAT = Format(
    "statistics", b"expunge\x00statistics\x00", "32s32sIIqI", remedy="ask for them again"
)
_WIDE_BYTES = 16


class StatisticsParts:
    """The arrays of statistics on their way into a Statistics."""

    gram: wide.Wide
    moment: wide.Wide
    label_gram: wide.Wide
    class_counts: NDArray[np.int64]
    count: int


def digest_of(sums: Any) -> str:
    """The digest of statistics, or of settled sums as statistics; nothing large is copied."""
    content = hashlib.sha256()
    for piece in _pieces(sums):
        content.update(piece)
    return content.hexdigest()


def _pieces(sums: Any) -> Iterator[bytes | memoryview]:
    """The canonical bytes, piece by piece; each piece is good until the next."""
    spec = sums.spec
    yield _FORMAT.begin(
        bytes.fromhex(spec.data_digest),
        bytes.fromhex(spec.labels_digest),
        spec.width,
        spec.columns,
        sums.count,
        len(sums.class_counts),
    )
    yield sums.class_counts.astype("<i8").tobytes()
    for array in (sums.gram, sums.moment, sums.label_gram[:, *np.triu_indices(spec.columns)]):
        yield from wide.byte_chunks(array)


def write(sums: Any) -> bytes:
    """The canonical bytes, which end with their SHA-256."""
    return with_checksum(_pieces(sums))


def read(spec: Spec, data: Bytes) -> StatisticsParts:
    """The inverse of `write`; bytes made before labels were appended to the spec are embedded."""
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise FormatError(f"statistics are read from bytes, got {type(data).__name__}")
    (columns, count, classes), reader = _opened(spec, data)
    width = spec.width
    shapes = [(blas.packed_length(width),), (width, columns), (blas.packed_length(columns),)]
    sizes = [_WIDE_BYTES * math.prod(shape) for shape in shapes]
    reader.require(8 * classes + sum(sizes) + CHECKSUM_BYTES)
    reader.require_checksum()
    parts = object.__new__(StatisticsParts)
    parts.class_counts = reader.array("<i8", (classes,), "the class counts").astype(np.int64)
    parts.gram, parts.moment, packed = (
        wide.from_bytes(reader.take(size, "the sums"), shape)
        for size, shape in zip(sizes, shapes, strict=True)
    )
    parts.label_gram = _symmetric(packed, columns)
    parts.count = count
    if columns < spec.columns:
        parts.moment, parts.label_gram, parts.class_counts = embedded(
            spec, parts.moment, parts.label_gram, parts.class_counts
        )
    return parts


def _symmetric(packed: wide.Wide, size: int) -> wide.Wide:
    result = wide.zeros((size, size))
    rows, columns = np.triu_indices(size)
    result[:, rows, columns] = packed
    result[:, columns, rows] = packed
    return result


def _opened(spec: Spec, content: Bytes) -> tuple[tuple[int, int, int], Reader]:
    """Columns, count and number of class counts, if they are of this spec; and the rest."""
    (data, labels, width, columns, count, classes), reader = _FORMAT.open(content)
    if data.hex() != spec.data_digest or width != spec.width:
        raise SpecMismatchError(
            "these statistics were made under another spec: their data digest is "
            f"{data.hex()[:16]}…, this spec's is {spec.data_digest[:16]}…. Read them under the "
            "spec they were made with: dim, intercept, grids and backbone must agree"
        )
    lineage = spec.lineage if spec.is_classification else (spec.labels_digest,)
    position = columns if spec.is_classification else 0
    if (
        position >= len(lineage)
        or lineage[position] != labels.hex()
        or (not spec.is_classification and columns != spec.columns)
    ):
        raise SpecMismatchError(
            f"these statistics were made for other labels: they have {columns} columns whose "
            f"digest is {labels.hex()[:16]}…, "
            "which is not that of the spec's labels nor of its first few"
        )
    if classes != (columns if spec.is_classification else 0):
        raise FormatError(
            "statistics have been altered: the number of class counts does not fit the number of "
            "labels"
        )
    return (columns, count, classes), reader
