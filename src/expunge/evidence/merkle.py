"""The Merkle tree of RFC 9162, section 2.1: roots, inclusion proofs and consistency proofs, with
SHA-256.

A tree is stored as the hashes of its complete subtrees (`Nodes`), which never change once they
exist; so an append writes one or two hashes on average, and a root or a proof of a log of n entries
reads O(log n) of them.

Laws: `root(n, nodes)` is `root_of(leaves[:n])`, for every n; `verify_inclusion` and
`verify_consistency` accept what `inclusion_proof` and `consistency_proof` make, and raise
EvidenceError for any other index, size, hash or proof.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Protocol

from expunge.errors import EvidenceError

HASH_BYTES = 32
EMPTY_ROOT = hashlib.sha256(b"").digest()


class Nodes(Protocol):
    """Storage of complete subtrees."""

    def node(self, level: int, index: int) -> bytes:
        """The hash of the complete subtree of 2^level leaves that begins at leaf index *
        2^level.
        """
        ...


def leaf_hash(entry: bytes) -> bytes:
    """The hash of one entry as a leaf."""
    return hashlib.sha256(b"\x00" + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """The hash of two subtrees side by side.

    Its prefix differs from a leaf's, so that no entry can pass for a subtree.
    """
    return hashlib.sha256(b"\x01" + left + right).digest()


def root_of(leaves: Sequence[bytes]) -> bytes:
    """The root over these leaf hashes, in their order."""
    level = list(leaves)
    if not level:
        return EMPTY_ROOT
    while len(level) > 1:
        # A hash without a partner rises as it is: this is RFC 9162's split at the largest power of
        # two, from below.
        paired = [
            node_hash(left, right) for left, right in zip(level[::2], level[1::2], strict=False)
        ]
        level = paired + level[len(paired) * 2 :]
    return level[0]


def new_nodes(size: int, leaf: bytes, nodes: Nodes) -> list[tuple[int, int, bytes]]:
    """The complete subtrees (level, index, hash) that appear when leaf hash number `size` is
    appended: one or two on average.
    """
    appeared = [(0, size, leaf)]
    level, index, current = 0, size, leaf
    while index % 2:
        current = node_hash(nodes.node(level, index - 1), current)
        level, index = level + 1, index // 2
        appeared.append((level, index, current))
    return appeared


def root(size: int, nodes: Nodes) -> bytes:
    """The root of the first `size` leaves."""
    return _range_hash(0, size, nodes) if size else EMPTY_ROOT


def inclusion_proof(index: int, size: int, nodes: Nodes) -> list[bytes]:
    """The proof that leaf `index` is in the tree of the first `size` leaves."""
    if not 0 <= index < size:
        raise EvidenceError(
            f"there is no entry {index} in a log of {size} entries: ask for one from 0 to "
            f"{size - 1}"
        )
    start, end, path = 0, size, []
    while end - start > 1:
        middle = start + _split(end - start)
        if index < middle:
            path.append(_range_hash(middle, end, nodes))
            end = middle
        else:
            path.append(_range_hash(start, middle, nodes))
            start = middle
    return path[::-1]


def consistency_proof(first: int, second: int, nodes: Nodes) -> list[bytes]:
    """The proof that the tree of `first` leaves is the beginning of the tree of `second` leaves;
    empty if either is trivial.
    """
    if not 0 <= first <= second:
        raise EvidenceError(
            f"a log of {first} entries cannot be the beginning of one of {second} entries"
        )
    if first in (0, second):
        return []
    start, end, is_known, path = 0, second, True, []
    while first != end:
        middle = start + _split(end - start)
        if first <= middle:
            path.append(_range_hash(middle, end, nodes))
            end = middle
        else:
            path.append(_range_hash(start, middle, nodes))
            start, is_known = middle, False
    if not is_known:
        path.append(_range_hash(start, end, nodes))
    return path[::-1]


def verify_inclusion(
    leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes
) -> None:
    """Raise EvidenceError unless leaf hash `leaf` is number `index` of the tree of `size` leaves
    with this root.
    """
    _require_hashes([leaf, root, *proof])
    if not 0 <= index < size:
        raise EvidenceError(f"entry {index} cannot be in a log of {size} entries")
    if len(proof) != _inclusion_length(index, size):
        raise EvidenceError(
            f"the inclusion proof of entry {index} in a log of {size} entries must have "
            f"{_inclusion_length(index, size)} hashes, got {len(proof)}"
        )
    current, position, last = leaf, index, size - 1
    for sibling in proof:
        if position % 2 or position == last:
            current = node_hash(sibling, current)
            while not position % 2 and position:
                position, last = position >> 1, last >> 1
        else:
            current = node_hash(current, sibling)
        position, last = position >> 1, last >> 1
    if last or current != root:
        raise EvidenceError(
            f"the inclusion proof of entry {index} does not lead to the root of the log of {size} "
            "entries"
        )


def verify_consistency(
    first: int, first_root: bytes, second: int, second_root: bytes, proof: Sequence[bytes]
) -> None:
    """Raise EvidenceError unless the first log is the beginning of the second."""
    _require_hashes([first_root, second_root, *proof])
    if not 0 <= first <= second:
        raise EvidenceError(
            f"a log of {first} entries cannot be the beginning of one of {second} entries"
        )
    if first in (0, second):
        _verify_trivial(first, first_root, second, second_root, proof)
        return
    path = [first_root, *proof] if first & (first - 1) == 0 else list(proof)
    position, last = first - 1, second - 1
    while position % 2:
        position, last = position >> 1, last >> 1
    old = new = path[0] if path else b""
    for sibling in path[1:]:
        if not last:
            raise EvidenceError(
                f"the consistency proof from {first} to {second} entries is too long"
            )
        if position % 2 or position == last:
            old, new = node_hash(sibling, old), node_hash(sibling, new)
            while not position % 2 and position:
                position, last = position >> 1, last >> 1
        else:
            new = node_hash(new, sibling)
        position, last = position >> 1, last >> 1
    if last or old != first_root or new != second_root:
        raise EvidenceError(
            f"the log of {second} entries does not continue the log of {first} entries: one of the "
            "two was altered or is of another log"
        )


def _verify_trivial(
    first: int, first_root: bytes, second: int, second_root: bytes, proof: Sequence[bytes]
) -> None:
    """Of no entries, and of the same entries, nothing but the roots is to be compared."""
    if proof:
        raise EvidenceError(
            f"the consistency proof from {first} to {second} entries must be empty, got "
            f"{len(proof)} hashes"
        )
    if first == 0 and first_root != EMPTY_ROOT:
        raise EvidenceError("the root of a log without entries must be the hash of nothing")
    if first == second and first_root != second_root:
        raise EvidenceError(
            f"two logs of {first} entries have different roots: they are different logs"
        )


def _split(count: int) -> int:
    """The largest power of two below `count`, for count > 1."""
    return 1 << ((count - 1).bit_length() - 1)


def _range_hash(start: int, end: int, nodes: Nodes) -> bytes:
    """The hash over leaves start to end - 1, where `start` is a multiple of the largest power of
    two within the range.
    """
    parts = []
    while start < end:
        level = (end - start).bit_length() - 1
        parts.append(nodes.node(level, start >> level))
        start += 1 << level
    current = parts.pop()
    while parts:
        current = node_hash(parts.pop(), current)
    return current


def _inclusion_length(index: int, size: int) -> int:
    """How many hashes an inclusion proof has: the levels below the split, and the left siblings
    along the right edge.
    """
    inner = (index ^ (size - 1)).bit_length()
    return inner + (index >> inner).bit_count()


def _require_hashes(hashes: Sequence[bytes]) -> None:
    for value in hashes:
        if not isinstance(value, bytes) or len(value) != HASH_BYTES:
            raise EvidenceError(
                f"a hash of a proof must have {HASH_BYTES} bytes, got {value!r:.80}"
            )
