"""Masks: streams of AES-256-CTR read as vectors over Z/2^128, and vectors that are hidden under
them.

Laws: `MaskedVector.of(v, plus, minus).opened(plus, minus)` is `v`; what is opened from a sum of
masked vectors is the sum of what each would give. Entry i of a mask is block i of the stream under
its key, 16 bytes, little-endian, as in exact/wide.py.

Vectors are kept as they travel, the two words of an entry next to one another. So a mask is added
by three passes over contiguous words (add, compare, count the carries), which the processor's wide
instructions do in half the time of the stream; carries go to the high words once for many masks.
Blocks stay in the cache, and nothing is allocated for a mask but its cipher. Threads do not help:
the interpreter's lock is held while the stream is made.

Contribution: what one client, or the sum of several, changes, as one vector over Z/2^128.

Laws: `from_vector(spec, c.vector())` is `c`; the vector of a sum is the sum of the vectors. So the
sum of the vectors, masked or not, is the contribution of all clients together.

Layout, entry by entry: the packed upper triangle of S; G by rows; the packed upper triangle of Y'Y;
the net count, the number added, the number deleted; then by class the net counts, those added,
those deleted (classification only). Counts of adds and deletes travel apart, or five added and five
deleted would look like nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from expunge.errors import FormatError, ShapeError
from expunge.exact import blas, wide
from expunge.ridge.spec import Spec
from expunge.ridge.statistics import Statistics
from expunge.ridge.sums import Sums

Counts = NDArray[np.int64]

_MOST_SAMPLES = 1 << 44
_COUNTS = 3  # net, added, deleted


def length(spec: Spec) -> int:
    """Entries of a contribution's vector."""
    return sum(_sizes(spec))


@dataclass(frozen=True, eq=False)
class Contribution:
    """Net statistics of what is added minus what is deleted, with the numbers of both apart, in all
    and by class.
    """

    statistics: Statistics
    added: int
    deleted: int
    added_classes: Counts
    deleted_classes: Counts

    def __post_init__(self) -> None:
        for counts in (self.added_classes, self.deleted_classes):
            if counts.shape != self.statistics.class_counts.shape or counts.dtype != np.int64:
                raise ShapeError(
                    f"counts by class must be {self.statistics.class_counts.shape} int64, got "
                    f"{counts.shape}"
                )
        _require_counts(
            [self.statistics.count, self.added, self.deleted],
            self.statistics.class_counts.tolist(),
            self.added_classes.tolist(),
            self.deleted_classes.tolist(),
        )

    @classmethod
    def of(cls, added: Statistics | None, deleted: Statistics | None, spec: Spec) -> Contribution:
        """The contribution of a client that adds and deletes samples with these statistics; None
        for no samples.
        """
        zero = Statistics.zero(spec)
        more = zero if added is None else added.under(spec)
        less = zero if deleted is None else deleted.under(spec)
        net = (
            zero if deleted is None and added is None else more if deleted is None else more - less
        )
        return cls(net, more.count, less.count, more.class_counts, less.class_counts)

    def vector(self) -> wide.Wide:
        """The vector of shape (2, length(spec))."""
        own = self.statistics
        counts = [own.count, self.added, self.deleted]
        by_class = [
            *own.class_counts.tolist(),
            *self.added_classes.tolist(),
            *self.deleted_classes.tolist(),
        ]
        parts = [
            own.gram,
            own.moment.reshape(2, -1),
            own.label_gram[:, *np.triu_indices(own.spec.columns)],
        ]
        return np.concatenate([*parts, wide.from_ints(counts), wide.from_ints(by_class)], axis=1)

    @classmethod
    def from_vector(cls, spec: Spec, vector: wide.Wide) -> Contribution:
        """The inverse of `vector`; FormatError where its counts contradict one another."""
        sizes = _sizes(spec)
        if vector.shape != (2, sum(sizes)) or vector.dtype != np.uint64:
            raise FormatError(
                f"a vector of shape (2, {sum(sizes)}) is expected under this spec, got "
                f"{vector.shape} {vector.dtype}"
            )
        gram, moment, label_gram, counts, by_class = np.split(vector, np.cumsum(sizes)[:-1], axis=1)
        count, added, deleted = wide.to_ints(counts)
        numbers = wide.to_ints(by_class)
        classes = len(numbers) // 3
        net, plus, minus = numbers[:classes], numbers[classes : 2 * classes], numbers[2 * classes :]
        _require_counts([count, added, deleted], net, plus, minus)
        sums = Sums(spec)
        sums.gram, sums.moment = gram, moment.reshape(sums.moment.shape)
        rows, columns = np.triu_indices(spec.columns)
        sums.label_gram[:, rows, columns] = label_gram
        sums.label_gram[:, columns, rows] = label_gram
        sums.count, sums.class_counts = count, np.array(net, dtype=np.int64)
        by_sign = (np.array(plus, dtype=np.int64), np.array(minus, dtype=np.int64))
        return cls(Statistics.snapshot(sums), added, deleted, *by_sign)


def _sizes(spec: Spec) -> tuple[int, ...]:
    classes = spec.columns if spec.is_classification else 0
    packed = blas.packed_length
    return (
        packed(spec.width),
        spec.width * spec.columns,
        packed(spec.columns),
        _COUNTS,
        _COUNTS * classes,
    )


def _require_counts(
    counts: Sequence[int], net: Sequence[int], plus: Sequence[int], minus: Sequence[int]
) -> None:
    count, added, deleted = counts
    for what, number in (("samples added", added), ("samples deleted", deleted)):
        if not 0 <= number <= _MOST_SAMPLES:
            raise FormatError(f"{number} {what} cannot be: the number must lie between 0 and 2^44")
    if count != added - deleted:
        raise FormatError(
            f"{added} samples added and {deleted} deleted contradict a net count of {count}"
        )
    for index, (change, more, less) in enumerate(zip(net, plus, minus, strict=True)):
        if more < 0 or less < 0 or change != more - less:
            raise FormatError(
                f"class {index} with {more} samples added and {less} deleted contradicts its net "
                f"count of {change}"
            )
    for what, number, by_class in (("added", added, plus), ("deleted", deleted, minus)):
        if sum(by_class) > number:
            raise FormatError(
                f"the classes have {sum(by_class)} samples {what}, but all together {number}"
            )


ENTRY_BYTES = 16
BLOCK = 1 << 13  # entries made at a time
TOGETHER = 254  # masks whose streams are open together: their carries, and one more, fit a byte

Words = NDArray[np.uint64]  # low word, high word, entry after entry


class MaskedVector:
    """A vector under masks: numbers that mean nothing until all masks are taken off.

    It cannot be added to Statistics.
    """

    __slots__ = ("_words",)

    def __init__(self, words: Words) -> None:
        self._words = words

    @classmethod
    def of(cls, vector: wide.Wide, plus: Sequence[bytes], minus: Sequence[bytes]) -> MaskedVector:
        """The vector plus the masks of some keys minus those of others."""
        if vector.ndim != 2 or len(vector) != 2 or vector.dtype != np.uint64 or not vector.shape[1]:
            raise FormatError(
                "a vector to mask must have shape (2, length) and dtype uint64, got "
                f"{vector.shape} {vector.dtype}"
            )
        words = np.empty(vector.size, dtype="<u8")
        words[::2], words[1::2] = vector
        _change(words, plus, minus)
        return cls(words)

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> MaskedVector:
        """The inverse of `to_bytes`. It keeps the bytes, and never writes to them."""
        if not len(data) or len(data) % ENTRY_BYTES:
            raise FormatError(
                f"a masked vector has {ENTRY_BYTES} bytes an entry, and one entry at least; got "
                f"{len(data)} bytes"
            )
        words = np.frombuffer(data, dtype="<u8")
        words.flags.writeable = False
        return cls(words)

    def copy(self) -> MaskedVector:
        """The same, in memory of its own."""
        return MaskedVector(self._words.copy())

    def to_bytes(self) -> bytes:
        """16 bytes an entry, little-endian."""
        return self._words.tobytes()

    @property
    def view(self) -> memoryview:
        """The same bytes, without a copy: to be read before anything is absorbed."""
        return self._words.data.cast("B").toreadonly()

    @property
    def length(self) -> int:
        """The number of entries."""
        return len(self._words) // 2

    def absorb(self, other: MaskedVector) -> None:
        """Become the sum of both; not for what `from_bytes` made, which must be copied first."""
        if other.length != self.length:
            raise FormatError(
                f"a masked vector of {other.length} entries cannot be added to one of {self.length}"
            )
        aligned = np.empty(2 * BLOCK, dtype="<u8")  # the words of a message begin anywhere
        for block in _blocks(self._words):
            running, more = _Sum(self._words[block]), aligned[: block.stop - block.start]
            more[:] = other._words[block]
            running.add(more)
            running.carry()

    def opened(self, plus: Sequence[bytes], minus: Sequence[bytes]) -> wide.Wide:
        """What is left when these masks are taken off."""
        words = self._words.copy()
        _change(words, minus, plus)
        return np.array(words.reshape(-1, 2).T, dtype=np.uint64, order="C")

    def __repr__(self) -> str:
        return f"<Masked vector of {self.length} entries>"


class _Sum:
    """A block of words to which up to 255 others are added in place; `carry` completes the sum."""

    def __init__(self, words: Words) -> None:
        self._words = words
        self._carried = np.empty(len(words), dtype=np.bool_)
        self._counts = np.zeros(len(words), dtype=np.uint8)  # those of high words are not used
        self._ones = self._carried.view(np.uint8)

    def add(self, more: Words) -> None:
        """Add as many words."""
        np.add(self._words, more, out=self._words)
        np.less(self._words, more, out=self._carried)
        np.add(self._counts, self._ones, out=self._counts)

    def carry(self) -> None:
        """Add the carries of the low words to the high ones."""
        high = self._words[1::2]
        np.add(high, self._counts[::2], out=high)


def _blocks(words: Words) -> Iterator[slice]:
    for start in range(0, len(words), 2 * BLOCK):
        yield slice(start, min(start + 2 * BLOCK, len(words)))


def _change(words: Words, plus: Sequence[bytes], minus: Sequence[bytes]) -> None:
    """Add some masks and subtract others, a group at a time, block by block.

    A mask m is subtracted by adding its complement and 1: the stream makes the complement of ones.
    """
    size = ENTRY_BYTES * min(BLOCK, len(words) // 2)
    zeros, ones, made = memoryview(bytes(size)), memoryview(b"\xff" * size), bytearray(size)
    masks, number = np.frombuffer(made, dtype="<u8"), np.zeros(size // 8, dtype="<u8")
    signed = [(key, zeros) for key in plus] + [(key, ones) for key in minus]
    for start in range(0, len(signed), TOGETHER):
        group = signed[start : start + TOGETHER]
        streams = [(_stream(key), source) for key, source in group]
        number[::2] = sum(source is ones for _, source in group)
        for block in _blocks(words):
            count = block.stop - block.start
            running, mask = _Sum(words[block]), masks[:count]
            running.add(number[:count])
            for stream, source in streams:
                stream.update_into(source[: 8 * count], made)
                running.add(mask)
            running.carry()


def _stream(key: bytes) -> Any:
    return Cipher(algorithms.AES(key), modes.CTR(bytes(ENTRY_BYTES))).encryptor()
