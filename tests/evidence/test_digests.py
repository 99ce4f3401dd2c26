"""Salted digests: their bytes, what they depend on, and what is refused."""

from __future__ import annotations

import hashlib
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge import Spec
from expunge.errors import FormatError
from expunge.evidence import merkle
from expunge.evidence.digests import (
    MultisetHash,
    binding,
    commitments_root,
    salted,
    spec_digests,
    subject_digest,
    whole_spec_digest,
)

hashes = st.binary(min_size=32, max_size=32)
kinds = st.sampled_from(["ledger", "head", "subject"])


@given(kinds, hashes, hashes)
def test_the_bytes_of_a_salted_digest(kind: str, salt: bytes, value: bytes) -> None:
    content = b"expunge\0salted\0\x01" + kind.encode() + b"\0" + salt + value
    assert salted(kind, salt, value.hex()) == hashlib.sha256(content).hexdigest()


@given(st.tuples(kinds, hashes, hashes), st.tuples(kinds, hashes, hashes))
def test_salted_digests_are_equal_only_for_equal_parts(
    one: tuple[str, bytes, bytes], two: tuple[str, bytes, bytes]
) -> None:
    same = salted(one[0], one[1], one[2].hex()) == salted(two[0], two[1], two[2].hex())
    assert same == (one == two)


@pytest.mark.parametrize(
    ("kind", "salt", "value"),
    [
        ("ledger", b"\0" * 31, "00" * 32),
        ("ledger", b"\0" * 33, "00" * 32),
        ("ledger", b"\0" * 32, "00" * 31),
        ("ledger", b"\0" * 32, "AB" * 32),
        ("ledger", b"\0" * 32, "00 " * 32),
        ("ledger", b"\0" * 32, "no digest"),
        ("ledger", b"\0" * 32, None),
        ("led\0ger", b"\0" * 32, "00" * 32),
        ("", b"\0" * 32, "00" * 32),
        ("üledger", b"\0" * 32, "00" * 32),
    ],
)
def test_malformed_parts_are_refused(kind: str, salt: bytes, value: str) -> None:
    with pytest.raises(FormatError):
        salted(kind, salt, value)


@given(st.lists(hashes, max_size=9))
def test_a_commitments_root_is_the_merkle_root_of_its_leaves(commitments: list[bytes]) -> None:
    assert (
        commitments_root(commitments)
        == merkle.root_of([merkle.leaf_hash(each) for each in commitments]).hex()
    )
    if len(set(commitments)) > 1:
        turned = [*commitments[1:], commitments[0]]
        assert (commitments_root(turned) == commitments_root(commitments)) == (
            turned == commitments
        )


def test_the_root_of_no_commitments_is_the_hash_of_nothing() -> None:
    assert commitments_root([]) == hashlib.sha256().hexdigest()


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_commitment_of_another_size_is_refused(size: int) -> None:
    with pytest.raises(FormatError, match="a commitment has 32 bytes"):
        commitments_root([b"\0" * 32, b"\0" * size])


@pytest.mark.parametrize(
    "spec",
    [
        Spec(dim=3, labels=("a", "b")),
        Spec(dim=1, outputs=2, gamma=2.0),
        Spec(dim=3, labels=("a",), backbone="x"),
    ],
)
def test_a_specs_digest_follows_from_its_four_parts(spec: Spec) -> None:
    assert whole_spec_digest(spec_digests(spec)) == spec.digest


def test_a_subjects_digest_covers_salt_name_and_the_names_at_clients() -> None:
    base = subject_digest(b"\0" * 32, "x", {"north": "y"})
    others = [
        subject_digest(b"\1" * 32, "x", {"north": "y"}),
        subject_digest(b"\0" * 32, "y", {"north": "y"}),
        subject_digest(b"\0" * 32, "x", {"south": "y"}),
        subject_digest(b"\0" * 32, "x", {"north": "z"}),
        subject_digest(b"\0" * 32, "x", {}),
    ]
    assert len({base, *others}) == 6


# -- which samples are live ------------------------------------------------------------------------

names = st.sampled_from(["north", "south", "south-2"])
samples = st.tuples(names, st.binary(min_size=32, max_size=32))
lists = st.lists(samples, max_size=12, unique=True)


def hashed(held: list[tuple[str, bytes]], live: MultisetHash | None = None) -> MultisetHash:
    found = live or MultisetHash()
    for client, commitment in held:
        found = found.having(client, [commitment])
    return found


@given(lists)
def test_the_bytes_of_a_multiset_hash_are_sums_of_lanes(held: list[tuple[str, bytes]]) -> None:
    lanes = np.zeros(1024, dtype="<u2")
    for client, commitment in held:
        content = b"expunge\0live\0\x01" + client.encode() + b"\0" + commitment
        lanes += np.frombuffer(hashlib.shake_128(content).digest(2048), dtype="<u2")
    found = hashed(held)
    assert found.to_bytes() == lanes.tobytes()
    assert found.digest == hashlib.sha256(lanes.tobytes()).hexdigest()
    assert MultisetHash.from_bytes(found.to_bytes()) == found


@given(lists, st.data())
def test_neither_order_nor_path_counts(held: list[tuple[str, bytes]], data: st.DataObject) -> None:
    turned = data.draw(st.permutations(held))
    gone = data.draw(st.lists(st.sampled_from(held), unique=True)) if held else []
    live = hashed(turned)
    assert live == hashed(held)
    for client, commitment in gone:
        live = live.without(client, [commitment])
    left = [sample for sample in held if sample not in gone]
    assert live == hashed(left)
    by_client = {name: [one for client, one in left if client == name] for name, _ in left}
    assert live == MultisetHash.of(by_client)


@given(lists, lists)
def test_other_samples_or_those_of_another_client_have_another_hash(
    one: list[tuple[str, bytes]], other: list[tuple[str, bytes]]
) -> None:
    assert (hashed(one) == hashed(other)) == (Counter(one) == Counter(other))


def test_what_is_lent_to_a_lane_is_taken_back() -> None:
    """Every lane wraps around by itself, at its least and at its largest number."""
    commitment = bytes(32)
    for value in (0, (1 << 16384) - 1, 1, 1 << 16383, 0x8000, 0x7FFF):
        live = MultisetHash(value)
        assert live.having("north", [commitment]).without("north", [commitment]) == live
        assert live.without("north", [commitment]).having("north", [commitment]) == live


def test_a_hash_or_a_commitment_of_another_size_is_refused() -> None:
    with pytest.raises(FormatError, match="2048 bytes"):
        MultisetHash.from_bytes(bytes(2047))
    with pytest.raises(FormatError, match="32 bytes"):
        MultisetHash().having("north", [bytes(31)])


def test_a_binding_covers_salt_sums_samples_and_count() -> None:
    live = hashed([("north", bytes(32))])
    base = binding(b"\0" * 32, "00" * 32, live, 1)
    content = b'{"base":"%s","count":1,"live":"%s","version":2}' % (
        b"00" * 32,
        live.digest.encode(),
    )
    assert base == salted("binding", b"\0" * 32, hashlib.sha256(content).hexdigest())
    others = [
        binding(b"\1" * 32, "00" * 32, live, 1),
        binding(b"\0" * 32, "01" * 32, live, 1),
        binding(b"\0" * 32, "00" * 32, MultisetHash(), 1),
        binding(b"\0" * 32, "00" * 32, live, 2),
        salted("ledger", b"\0" * 32, "00" * 32),
    ]
    assert len({base, *others}) == 6
    with pytest.raises(FormatError):
        binding(b"\0" * 32, "00" * 31, live, 1)
