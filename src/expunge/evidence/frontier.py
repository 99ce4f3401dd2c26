"""The frontier of a log: the roots of its complete subtrees, which is all that is needed to append and to know the root.

Law: `Frontier().extended(entries)` has the root of RFC 9162 over those entries, whatever they were appended in between.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Any

from expunge.errors import FormatError
from expunge.evidence import fields
from expunge.evidence.merkle import EMPTY_ROOT, leaf_hash, node_hash

_CHECK = fields.objects({"size": fields.count, "hashes": fields.lists(fields.digest)})


@dataclass(frozen=True)
class Frontier:
    """The complete subtrees of a log of `size` entries, the largest first: one for each bit of the size."""

    size: int = 0
    hashes: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        if len(self.hashes) != self.size.bit_count():
            raise FormatError(f"the frontier of {self.size} entries has {self.size.bit_count()} hashes")

    def extended(self, entries: Iterable[bytes]) -> Frontier:
        """The frontier with these entries appended."""
        size, hashes = self.size, list(self.hashes)
        for entry in entries:
            current, place = leaf_hash(entry), size
            while place % 2:
                current, place = node_hash(hashes.pop(), current), place // 2
            hashes.append(current)
            size += 1
        return Frontier(size, tuple(hashes))

    @property
    def root(self) -> bytes:
        """The root of the log."""
        if not self.hashes:
            return EMPTY_ROOT
        return reduce(lambda right, left: node_hash(left, right), reversed(self.hashes[:-1]), self.hashes[-1])

    def to_json(self) -> dict[str, Any]:
        """A JSON value; `from_json` is its inverse."""
        return {"hashes": [one.hex() for one in self.hashes], "size": self.size}

    @classmethod
    def from_json(cls, value: object) -> Frontier:
        """The inverse of `to_json`."""
        parts = _CHECK(value, "the frontier of a log")
        return cls(parts["size"], tuple(bytes.fromhex(one) for one in parts["hashes"]))
