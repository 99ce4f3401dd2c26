"""Masks: streams of AES-256-CTR read as vectors over Z/2^128, and vectors that are hidden under
them.

Laws: `Masked.of(v, plus, minus).opened(plus, minus)` is `v`; what is opened from a sum of masked
vectors is the sum of what each would give. Entry i of a mask is block i of the stream under its
key, 16 bytes, little-endian, as in exact/wide.py.

The stream takes 2.5 ms for 834,000 entries, and adding it as much again; blocks stay in the cache,
and nothing is allocated for a mask. Threads do not help: the interpreter's lock is held while the
stream is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from expunge.errors import FormatError
from expunge.exact import wide

ENTRY_BYTES = 16
_BLOCK = 1 << 14  # entries made at a time


class Masked:
    """A vector under masks: numbers that mean nothing until all masks are taken off.

    It is no Statistics and adds to none.
    """

    __slots__ = ("_limbs",)

    def __init__(self, limbs: wide.Wide) -> None:
        self._limbs = limbs

    @classmethod
    def of(cls, vector: wide.Wide, plus: Sequence[bytes], minus: Sequence[bytes]) -> Masked:
        """The vector plus the masks of some keys minus those of others."""
        if vector.ndim != 2 or len(vector) != 2 or vector.dtype != np.uint64 or not vector.shape[1]:
            raise FormatError(
                "a vector to mask must have shape (2, length) and dtype uint64, got "
                f"{vector.shape} {vector.dtype}"
            )
        limbs = vector.copy()
        _change(limbs, plus, minus)
        return cls(limbs)

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> Masked:
        """The inverse of `to_bytes`."""
        if not len(data) or len(data) % ENTRY_BYTES:
            raise FormatError(
                f"a masked vector has {ENTRY_BYTES} bytes an entry, and one entry at least; got "
                f"{len(data)} bytes"
            )
        limbs = wide.from_bytes(data, (len(data) // ENTRY_BYTES,))
        return cls(
            limbs if limbs.flags.writeable else limbs.copy()
        )  # a single entry is not copied by reading it

    def to_bytes(self) -> bytes:
        """16 bytes an entry, little-endian."""
        return wide.to_bytes(self._limbs)

    @property
    def length(self) -> int:
        """The number of entries."""
        return int(self._limbs.shape[1])

    def absorb(self, other: Masked) -> None:
        """Become the sum of both."""
        if other.length != self.length:
            raise FormatError(
                f"a masked vector of {other.length} entries cannot be added to one of {self.length}"
            )
        wide.add_into(self._limbs, other._limbs)

    def opened(self, plus: Sequence[bytes], minus: Sequence[bytes]) -> wide.Wide:
        """What is left when these masks are taken off."""
        limbs = self._limbs.copy()
        _change(limbs, minus, plus)
        return limbs

    def __repr__(self) -> str:
        return f"<Masked vector of {self.length} entries>"


def _change(limbs: wide.Wide, plus: Sequence[bytes], minus: Sequence[bytes]) -> None:
    """Add some masks and subtract others, block by block."""
    adding, taking = [_stream(key) for key in plus], [_stream(key) for key in minus]
    zeros, made = bytes(ENTRY_BYTES * _BLOCK), bytearray(ENTRY_BYTES * _BLOCK)
    words, carried = np.frombuffer(made, dtype="<u8"), np.empty(_BLOCK, dtype=np.bool_)
    for start in range(0, limbs.shape[1], _BLOCK):
        low, high = limbs[:, start : start + _BLOCK]
        count = len(low)
        source, carry = memoryview(zeros)[: ENTRY_BYTES * count], carried[:count]
        low_mask, high_mask = words[: 2 * count : 2], words[1 : 2 * count : 2]
        for stream in adding:
            stream.update_into(source, made)
            np.add(low, low_mask, out=low)
            np.less(low, low_mask, out=carry)
            np.add(high, high_mask, out=high)
            np.add(high, carry, out=high)
        for stream in taking:
            stream.update_into(source, made)
            np.less(low, low_mask, out=carry)
            np.subtract(low, low_mask, out=low)
            np.subtract(high, high_mask, out=high)
            np.subtract(high, carry, out=high)


def _stream(key: bytes) -> Any:
    return Cipher(algorithms.AES(key), modes.CTR(bytes(ENTRY_BYTES))).encryptor()
