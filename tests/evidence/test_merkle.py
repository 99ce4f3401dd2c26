"""The Merkle tree against RFC 9162's recursive definition, certificate transparency's reference
vectors, and altered proofs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge.errors import EvidenceError
from expunge.evidence import merkle

MOST = 70
LEAVES = [merkle.leaf_hash(b"entry %d" % number) for number in range(MOST)]

# The test tree of the certificate transparency projects: entries, and the roots of its first n of
# them.
ENTRIES = [
    bytes.fromhex(text)
    for text in (
        "",
        "00",
        "10",
        "2021",
        "3031",
        "40414243",
        "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    )
]
ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]


class Stored:
    """Complete subtrees in a dictionary, as a server's table has them; counts reads."""

    def __init__(self, leaves: Sequence[bytes]) -> None:
        self.hashes: dict[tuple[int, int], bytes] = {}
        self.reads = 0
        for size, leaf in enumerate(leaves):
            for level, index, value in merkle.new_nodes(size, leaf, self):
                assert (level, index) not in self.hashes
                self.hashes[level, index] = value

    def node(self, level: int, index: int) -> bytes:
        self.reads += 1
        return self.hashes[level, index]


TREE = Stored(LEAVES)


def split(count: int) -> int:
    power = 1
    while power * 2 < count:
        power *= 2
    return power


def naive_root(leaves: Sequence[bytes]) -> bytes:
    """MTH of section 2.1.1, word for word."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    k = split(len(leaves))
    return hashlib.sha256(b"\x01" + naive_root(leaves[:k]) + naive_root(leaves[k:])).digest()


def naive_path(index: int, leaves: Sequence[bytes]) -> list[bytes]:
    """PATH of section 2.1.3.1."""
    if len(leaves) == 1:
        return []
    k = split(len(leaves))
    if index < k:
        return [*naive_path(index, leaves[:k]), naive_root(leaves[k:])]
    return [*naive_path(index - k, leaves[k:]), naive_root(leaves[:k])]


def naive_subproof(first: int, leaves: Sequence[bytes], known: bool) -> list[bytes]:
    """SUBPROOF of section 2.1.4.1."""
    if first == len(leaves):
        return [] if known else [naive_root(leaves)]
    k = split(len(leaves))
    if first <= k:
        return [*naive_subproof(first, leaves[:k], known), naive_root(leaves[k:])]
    return [*naive_subproof(first - k, leaves[k:], False), naive_root(leaves[:k])]


@pytest.mark.parametrize("size", range(9))
def test_the_reference_roots(size: int) -> None:
    leaves = [merkle.leaf_hash(entry) for entry in ENTRIES]
    assert merkle.root_of(leaves[:size]).hex() == ROOTS[size]
    assert merkle.root(size, Stored(leaves)).hex() == ROOTS[size]


def test_a_reference_inclusion_proof_and_a_reference_consistency_proof() -> None:
    nodes = Stored([merkle.leaf_hash(entry) for entry in ENTRIES])
    assert [sibling.hex() for sibling in merkle.inclusion_proof(5, 8, nodes)] == [
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ]
    assert [sibling.hex() for sibling in merkle.consistency_proof(6, 8, nodes)] == [
        "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ]


def test_roots_and_inclusion_proofs_follow_the_definition_at_every_size() -> None:
    for size in range(MOST + 1):
        root = naive_root(LEAVES[:size])
        assert merkle.root_of(LEAVES[:size]) == merkle.root(size, TREE) == root
        for index in range(size):
            proof = merkle.inclusion_proof(index, size, TREE)
            assert proof == naive_path(index, LEAVES[:size])
            merkle.verify_inclusion(LEAVES[index], index, size, proof, root)


def test_consistency_proofs_follow_the_definition_at_every_pair_of_sizes() -> None:
    roots = [naive_root(LEAVES[:size]) for size in range(MOST + 1)]
    for second in range(MOST + 1):
        for first in range(second + 1):
            proof = merkle.consistency_proof(first, second, TREE)
            assert proof == (
                naive_subproof(first, LEAVES[:second], True) if 0 < first < second else []
            )
            merkle.verify_consistency(first, roots[first], second, roots[second], proof)


sizes = st.integers(1, MOST)


@given(sizes.flatmap(lambda size: st.tuples(st.just(size), st.integers(0, size - 1))), st.data())
def test_any_altered_part_of_an_inclusion_proof_is_refused(
    case: tuple[int, int], data: st.DataObject
) -> None:
    size, index = case
    proof, root, leaf = (
        merkle.inclusion_proof(index, size, TREE),
        merkle.root(size, TREE),
        LEAVES[index],
    )
    other_index = data.draw(st.integers(-2, size + 2).filter(lambda value: value != index))
    with pytest.raises(EvidenceError):
        merkle.verify_inclusion(leaf, other_index, size, proof, root)
    place, bit = data.draw(st.integers(0, len(proof) + 1)), data.draw(st.integers(0, 255))
    parts = [leaf, root, *proof]
    parts[place] = (int.from_bytes(parts[place], "big") ^ (1 << bit)).to_bytes(32, "big")
    with pytest.raises(EvidenceError, match="does not lead to the root"):
        merkle.verify_inclusion(parts[0], index, size, parts[2:], parts[1])
    for wrong in (proof[:-1], proof[1:], [*proof, leaf], [leaf, *proof], proof[::-1]):
        if wrong != proof:
            with pytest.raises(EvidenceError):
                merkle.verify_inclusion(leaf, index, size, wrong, root)


def test_an_inclusion_proof_is_for_one_size_only_where_its_shape_differs() -> None:
    """A proof binds leaf and root; of the size it binds what decides its shape, and the root is
    signed with its size.
    """
    for size in range(1, 40):
        for index in range(size):
            proof, root = merkle.inclusion_proof(index, size, TREE), merkle.root(size, TREE)
            for other in (-1, 0, index, 2 * size + 2):
                if len(naive_path(index, LEAVES[:other]) if index < other else [None] * 99) != len(
                    proof
                ):
                    with pytest.raises(EvidenceError):
                        merkle.verify_inclusion(LEAVES[index], index, other, proof, root)


@given(st.tuples(sizes, sizes).map(sorted), st.data())
def test_any_altered_part_of_a_consistency_proof_is_refused(
    pair: list[int], data: st.DataObject
) -> None:
    first, second = pair
    proof = merkle.consistency_proof(first, second, TREE)
    parts = [merkle.root(first, TREE), merkle.root(second, TREE), *proof]
    merkle.verify_consistency(first, parts[0], second, parts[1], proof)
    place, bit = data.draw(st.integers(0, len(proof) + 1)), data.draw(st.integers(0, 255))
    altered = list(parts)
    altered[place] = (int.from_bytes(altered[place], "big") ^ (1 << bit)).to_bytes(32, "big")
    with pytest.raises(EvidenceError):
        merkle.verify_consistency(first, altered[0], second, altered[1], altered[2:])
    for wrong in (proof[:-1], proof[1:], [*proof, parts[0]], [parts[1], *proof], proof[::-1]):
        if wrong != proof:
            with pytest.raises(EvidenceError):
                merkle.verify_consistency(first, parts[0], second, parts[1], wrong)


@given(st.tuples(sizes, sizes).map(sorted).filter(lambda pair: pair[0] < pair[1]), st.data())
def test_another_history_is_not_consistent(pair: list[int], data: st.DataObject) -> None:
    first, second = pair
    changed = data.draw(st.integers(0, first - 1))
    other = Stored(
        [
            merkle.leaf_hash(b"another") if number == changed else leaf
            for number, leaf in enumerate(LEAVES[:second])
        ]
    )
    with pytest.raises(EvidenceError):
        merkle.verify_consistency(
            first,
            merkle.root(first, TREE),
            second,
            merkle.root(second, other),
            merkle.consistency_proof(first, second, other),
        )


@pytest.mark.parametrize("index", [-1, 5, 6])
def test_there_is_no_proof_of_what_is_not_there(index: int) -> None:
    with pytest.raises(EvidenceError, match="there is no entry"):
        merkle.inclusion_proof(index, 5, TREE)


@pytest.mark.parametrize(("first", "second"), [(-1, 3), (4, 3)])
def test_a_longer_log_is_not_the_beginning_of_a_shorter_one(first: int, second: int) -> None:
    with pytest.raises(EvidenceError, match="cannot be the beginning"):
        merkle.consistency_proof(first, second, TREE)
    with pytest.raises(EvidenceError, match="cannot be the beginning"):
        merkle.verify_consistency(first, LEAVES[0], second, LEAVES[1], [])


def test_a_consistency_proof_that_goes_on_beyond_the_root_is_refused_as_too_long() -> None:
    proof = [*merkle.consistency_proof(5, 11, TREE), LEAVES[0]]
    with pytest.raises(EvidenceError, match="too long"):
        merkle.verify_consistency(5, merkle.root(5, TREE), 11, merkle.root(11, TREE), proof)


def test_trivial_consistency_still_compares_roots() -> None:
    empty = merkle.EMPTY_ROOT
    with pytest.raises(EvidenceError, match="hash of nothing"):
        merkle.verify_consistency(0, LEAVES[0], 3, LEAVES[1], [])
    with pytest.raises(EvidenceError, match="different roots"):
        merkle.verify_consistency(3, LEAVES[0], 3, LEAVES[1], [])
    with pytest.raises(EvidenceError, match="must be empty"):
        merkle.verify_consistency(0, empty, 3, LEAVES[1], [LEAVES[0]])


@pytest.mark.parametrize("bad", [b"", b"\x00" * 31, b"\x00" * 33, "0" * 64, None])
def test_hashes_of_another_size_or_type_are_refused(bad: object) -> None:
    with pytest.raises(EvidenceError, match="must have 32 bytes"):
        merkle.verify_inclusion(bad, 0, 1, [], LEAVES[0])  # type: ignore[arg-type]
    with pytest.raises(EvidenceError, match="must have 32 bytes"):
        merkle.verify_inclusion(LEAVES[0], 0, 2, [bad], LEAVES[0])  # type: ignore[list-item]
    with pytest.raises(EvidenceError, match="must have 32 bytes"):
        merkle.verify_consistency(1, LEAVES[0], 2, LEAVES[1], [bad])  # type: ignore[list-item]


def test_a_subtree_cannot_pass_for_an_entry() -> None:
    left, right = LEAVES[0], LEAVES[1]
    assert merkle.leaf_hash(b"\x01" + left + right) != merkle.node_hash(left, right)
    assert merkle.leaf_hash(left + right) != merkle.node_hash(left, right)


class Imagined:
    """A log of 2^40 + 12345 equal entries: every subtree of a level has the same hash, so none need
    be stored.
    """

    def __init__(self) -> None:
        self.levels = [merkle.leaf_hash(b"same")]
        self.reads = 0
        while len(self.levels) < 42:
            self.levels.append(merkle.node_hash(self.levels[-1], self.levels[-1]))

    def node(self, level: int, index: int) -> bytes:
        assert 0 <= index << level < 2**40 + 12345
        self.reads += 1
        return self.levels[level]


@given(st.integers(0, 2**40 + 12344), st.integers(1, 2**40 + 12345))
def test_a_log_of_a_million_millions_needs_few_reads(index: int, first: int) -> None:
    nodes, size = Imagined(), 2**40 + 12345
    root = merkle.root(size, nodes)
    proof = merkle.inclusion_proof(index, size, nodes)
    merkle.verify_inclusion(nodes.levels[0], index, size, proof, root)
    steps = merkle.consistency_proof(first, size, nodes)
    merkle.verify_consistency(first, merkle.root(first, nodes), size, root, steps)
    assert nodes.reads <= 6 * 42


def test_appending_is_amortised_to_fewer_than_two_hashes() -> None:
    assert len(TREE.hashes) < 2 * MOST
