"""Key chains: which key may have signed what, and when."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from expunge.crypto import Envelope, SigningKey
from expunge.errors import EvidenceError, FormatError
from expunge.evidence import KeyChain, Rotation
from expunge.evidence.rotation import rotate
from support.evidence import FEDERATION, NEW, OLD, OTHER, altered, at

FIRST = rotate(FEDERATION, OLD, NEW, at(10), 3)
SECOND = rotate(FEDERATION, NEW, OTHER, at(20), 5)
STRANGER = SigningKey(bytes([77]) * 32)
ELSEWHERE = "f" * 32


def signed(key: SigningKey, time: str, federation: str = FEDERATION) -> Envelope:
    return Envelope.signed("note", {"federation": federation, "time": time}, key)


def claims(content: Any) -> tuple[str, str]:
    return content["federation"], content["time"]


@pytest.mark.parametrize("pinned", [OLD, NEW, OTHER])
@pytest.mark.parametrize("rotations", list(permutations([FIRST, SECOND])))
def test_trust_flows_both_ways_from_any_pinned_key(
    pinned: SigningKey, rotations: tuple[Envelope, ...]
) -> None:
    chain = KeyChain(pinned.public, rotations)
    spans = {OLD: (0, 10), NEW: (10, 20), OTHER: (20, 99)}
    for key, (start, end) in spans.items():
        for minute in (0, 9, 10, 11, 19, 20, 21, 99):
            note = signed(key, at(minute))
            if start <= minute <= end:
                assert chain.verify(note, claims) == {"federation": FEDERATION, "time": at(minute)}
                assert chain.key(key.public.id, at(minute)) == key.public
            else:
                with pytest.raises(
                    EvidenceError, match="retired at" if minute > end else "not in use before"
                ):
                    chain.verify(note, claims)
                with pytest.raises(EvidenceError):
                    chain.key(key.public.id, at(minute))


def test_without_rotations_there_is_the_pinned_key_alone() -> None:
    chain = KeyChain(OLD.public)
    assert chain.verify(signed(OLD, at(99), ELSEWHERE), claims)["time"] == at(99)
    with pytest.raises(EvidenceError, match="nor linked to it by a rotation"):
        chain.verify(signed(NEW, at(1)), claims)


def test_a_signature_under_anothers_id_is_refused() -> None:
    note = signed(STRANGER, at(5))
    forged = Envelope(note.kind, note.payload, ((OLD.public.id, note.signatures[0][1]),))
    with pytest.raises(EvidenceError, match="the signature is not by key"):
        KeyChain(OLD.public).verify(forged, claims)


def test_two_signatures_or_none_are_refused() -> None:
    content = {"federation": FEDERATION, "time": at(1)}
    signed_twice = [Envelope.signed("note", content, OLD, other) for other in (OLD, NEW)]
    for note in (*signed_twice, Envelope("note", signed_twice[0].payload, ())):
        with pytest.raises(EvidenceError, match="must have one signature"):
            KeyChain(OLD.public, [FIRST]).verify(note, claims)


def test_evidence_of_another_federation_than_the_rotations_is_refused() -> None:
    with pytest.raises(EvidenceError, match="rotations of its keys are of"):
        KeyChain(OLD.public, [FIRST]).verify(signed(NEW, at(15), ELSEWHERE), claims)


def test_a_rotation_must_be_signed_by_both_in_their_order() -> None:
    content = FIRST.unverified()
    for keys in (
        (OLD,),
        (NEW,),
        (NEW, OLD),
        (OLD, STRANGER),
        (STRANGER, NEW),
        (OLD, NEW, STRANGER),
    ):
        with pytest.raises(EvidenceError, match="is signed by key"):
            KeyChain(OLD.public, [Envelope.signed("rotation", content, *keys)])


def test_a_heir_whom_the_old_key_did_not_name_is_refused() -> None:
    """The stranger signs for itself, and lends the old key's signature from the true rotation."""
    content = {**FIRST.unverified(), "new": STRANGER.public.text}
    own = Envelope.signed("rotation", content, OTHER, STRANGER)
    forged = Envelope("rotation", own.payload, (FIRST.signatures[0], own.signatures[1]))
    with pytest.raises(EvidenceError, match="the signature is not by key"):
        KeyChain(OLD.public, [forged])


@pytest.mark.parametrize(
    ("rotations", "reason"),
    [
        ([FIRST, rotate(FEDERATION, OLD, STRANGER, at(11), 4)], "begin or end with the same key"),
        ([FIRST, rotate(FEDERATION, STRANGER, NEW, at(11), 4)], "begin or end with the same key"),
        ([FIRST, rotate(FEDERATION, NEW, OLD, at(20), 5)], "lead back"),
        ([FIRST, SECOND, rotate(FEDERATION, OTHER, OLD, at(30), 6)], "lead back"),
        ([FIRST, rotate(FEDERATION, STRANGER, OTHER, at(20), 5)], "is not linked"),
        ([rotate(FEDERATION, STRANGER, OTHER, at(20), 5)], "is not linked"),
        ([FIRST, rotate(FEDERATION, NEW, OTHER, at(9), 5)], "one after the other"),
        ([FIRST, rotate(ELSEWHERE, NEW, OTHER, at(20), 5)], "one after the other"),
    ],
)
def test_rotations_that_are_not_one_line_are_refused(
    rotations: list[Envelope], reason: str
) -> None:
    for pinned in (OLD, NEW):
        with pytest.raises(EvidenceError, match=f"{reason}|is not linked"):
            KeyChain(pinned.public, rotations)
    with pytest.raises(EvidenceError, match=reason):
        KeyChain(OLD.public, rotations)


def test_a_rotation_given_twice_is_one() -> None:
    assert KeyChain(OLD.public, [FIRST, FIRST]).rotations == (Rotation.read(FIRST),)


def test_two_changes_within_one_second_are_told_apart_by_the_log() -> None:
    chain = KeyChain(OLD.public, [FIRST, rotate(FEDERATION, NEW, OTHER, at(10), 4)])
    assert [each.index for each in chain.rotations] == [3, 4]
    assert chain.key(NEW.public.id, at(10)) == NEW.public


def test_a_rotation_to_itself_is_refused() -> None:
    with pytest.raises(EvidenceError, match="to itself"):
        Rotation.read(rotate(FEDERATION, OLD, OLD, at(1), 0))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("time", "yesterday"),
        ("index", -1),
        ("index", True),
        ("old", "AAAA"),
        ("new", None),
        ("federation", "x"),
    ],
)
def test_malformed_rotations_are_refused(name: str, value: object) -> None:
    with pytest.raises(FormatError, match=f"'{name}' of a rotation"):
        Rotation.read(altered(FIRST, OLD, lambda content: content.update({name: value})))
