"""Salted digests: their bytes, what they depend on, and what is refused."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge import Spec
from expunge.errors import FormatError
from expunge.evidence import merkle
from expunge.evidence.digests import (
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
