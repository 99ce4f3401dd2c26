"""The audit log in the store: entries, and the hashes of complete subtrees, so that proofs read a
few nodes only.
"""

from __future__ import annotations

from expunge.errors import RefusedError
from expunge.evidence import Checkpoint, Logged
from expunge.evidence.merkle import consistency_proof, inclusion_proof, leaf_hash, new_nodes, root
from expunge.server.storage.tables import Storage

_MOST_ENTRIES = 1000


class AuditLog:
    """Append-only. Law: the tree of size n never changes once it has been seen."""

    def __init__(self, storage: Storage) -> None:
        self._table = storage.log

    def node(self, level: int, index: int) -> bytes:
        """The hash of a complete subtree."""
        return self._table.node(level, index)

    @property
    def size(self) -> int:
        """How many entries there are."""
        return self._table.size()

    def append(self, entry: bytes) -> int:
        """Add an entry within a transaction; returns its index."""
        index = self.size
        self._table.append(entry, new_nodes(index, leaf_hash(entry), self))
        return index

    def checkpoint(self, federation: str, time: str) -> Checkpoint:
        """What the log is now."""
        size = self.size
        return Checkpoint(federation, size, self.root(size), time)

    def root(self, size: int) -> bytes:
        """The root of the tree of a size that there is, or was on the way here."""
        return root(size, self)

    def logged(self, index: int, size: int) -> Logged:
        """An entry with its proof in the tree of that size."""
        return Logged.of(self.entry(index), index, inclusion_proof(index, size, self))

    def entry(self, index: int) -> bytes:
        """The bytes of one entry."""
        entries = self._table.entries(index, index + 1)
        if not entries:
            raise RefusedError("not-found", f"the log has no entry {index}: it has {self.size}")
        return entries[0]

    def entries(self, start: int, end: int) -> list[bytes]:
        """Entries from `start` up to, not including, `end`; a thousand at a time."""
        if not 0 <= start <= end:
            raise RefusedError(
                "malformed", f"entries are asked for from start to end, got {start} to {end}"
            )
        start = min(start, self.size)  # a number of any size may be asked for
        return self._table.entries(start, min(end, start + _MOST_ENTRIES))

    def inclusion(self, index: int, size: int) -> list[bytes]:
        """The proof that entry `index` is in the tree of that size."""
        if not 0 <= index < size <= self.size:
            raise RefusedError(
                "not-found",
                f"there is no entry {index} in a log of size {size}; the log's size is {self.size}",
            )
        return inclusion_proof(index, size, self)

    def consistency(self, first: int, second: int) -> list[bytes]:
        """The proof that the tree of size `second` continues the one of size `first`."""
        if not 0 <= first <= second <= self.size:
            raise RefusedError(
                "not-found",
                f"the log has never gone from size {first} to {second}; its size is {self.size}",
            )
        return consistency_proof(first, second, self) if first else []
