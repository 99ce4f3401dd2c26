"""Envelopes: DSSE's bytes, exactly the signatures that are asked for, and no altered byte."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge.crypto import Envelope, SigningKey, canonical
from expunge.crypto.envelope import payload_type, preauthentication
from expunge.errors import EvidenceError, FormatError

A, B, C = (SigningKey(letter * 32) for letter in (b"a", b"b", b"c"))
NOTE = Envelope.signed("note", {"text": "hello"}, A)
BOTH = Envelope.signed("note", {"text": "hello"}, A, B)


def test_the_example_of_dsse() -> None:
    assert preauthentication("http://example.com/HelloWorld", b"hello world") == (
        b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )


def test_the_length_of_a_type_is_counted_in_bytes() -> None:
    assert preauthentication("ä", b"") == "DSSEv1 2 ä 0 ".encode()


@given(
    st.tuples(st.text(max_size=9), st.binary(max_size=9)),
    st.tuples(st.text(max_size=9), st.binary(max_size=9)),
)
def test_no_two_pairs_of_type_and_payload_are_signed_alike(
    one: tuple[str, bytes], other: tuple[str, bytes]
) -> None:
    assert (preauthentication(*one) == preauthentication(*other)) == (one == other)


def test_the_signature_is_over_type_and_payload() -> None:
    A.public.verify(
        NOTE.signatures[0][1],
        preauthentication("application/vnd.expunge.note.v1+json", b'{"text":"hello"}'),
    )


@given(st.dictionaries(st.text(max_size=5), st.integers(-9, 9) | st.text(max_size=5), max_size=3))
def test_every_form_gives_the_envelope_back(content: dict[str, Any]) -> None:
    envelope = Envelope.signed("note", content, A, B)
    assert envelope.verify(A.public, B.public) == envelope.unverified() == content
    assert Envelope.from_json(envelope.to_json(), "note") == envelope
    assert Envelope.from_bytes(envelope.to_bytes(), "note") == envelope
    assert Envelope.from_bytes(envelope.to_bytes(), "note").to_bytes() == envelope.to_bytes()


def test_the_signatures_must_be_those_asked_for_in_their_order() -> None:
    for keys in ((), (B,), (A,), (B, A), (A, B, C), (A, A), (A, C)):
        with pytest.raises(EvidenceError, match="is signed by key"):
            BOTH.verify(*(key.public for key in keys))
    with pytest.raises(EvidenceError, match="is signed by key"):
        NOTE.verify(A.public, B.public)


def test_a_signature_under_anothers_id_is_refused() -> None:
    forged = Envelope("note", NOTE.payload, ((B.public.id, NOTE.signatures[0][1]),))
    with pytest.raises(EvidenceError, match="the signature is not by key"):
        forged.verify(B.public)


def test_a_payload_cannot_pass_for_one_of_another_kind() -> None:
    with pytest.raises(EvidenceError, match="the signature is not by key"):
        Envelope("receipt", NOTE.payload, NOTE.signatures).verify(A.public)
    with pytest.raises(FormatError, match="the envelope of a receipt was expected"):
        Envelope.from_bytes(NOTE.to_bytes(), "receipt")


@given(st.data())
def test_any_altered_bit_is_refused(data: st.DataObject) -> None:
    content = BOTH.to_bytes()
    place, bit = data.draw(st.integers(0, len(content) - 1)), data.draw(st.integers(0, 7))
    spoilt = bytearray(content)
    spoilt[place] ^= 1 << bit
    with pytest.raises((EvidenceError, FormatError)):
        Envelope.from_bytes(bytes(spoilt), "note").verify(A.public, B.public)


def test_a_payload_that_is_not_canonical_is_refused_though_it_is_signed() -> None:
    payload = b'{"text": "hello"}'
    signature = A.sign(preauthentication(payload_type("note"), payload))
    with pytest.raises(FormatError, match="the payload of the note"):
        Envelope("note", payload, ((A.public.id, signature),)).verify(A.public)


def spoilt(**changes: Any) -> dict[str, Any]:
    return {**NOTE.to_json(), **changes}


SIGNATURE = NOTE.to_json()["signatures"][0]


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        spoilt(more=1),
        spoilt(payload=None),
        spoilt(payload="é"),
        spoilt(payload="AAA"),
        spoilt(payload="AAB="),
        spoilt(payload=NOTE.to_json()["payload"] + "\n"),
        spoilt(payloadType="application/vnd.expunge.note.v2+json"),
        spoilt(payloadType=None),
        spoilt(signatures=None),
        spoilt(signatures=[]),
        spoilt(signatures={}),
        spoilt(signatures=[None]),
        spoilt(signatures=[{"sig": SIGNATURE["sig"]}]),
        spoilt(signatures=[{**SIGNATURE, "keyid": None}]),
        spoilt(signatures=[{**SIGNATURE, "sig": ""}]),
        spoilt(signatures=[{**SIGNATURE, "sig": base64.b64encode(b"\0" * 63).decode()}]),
        spoilt(signatures=[{**SIGNATURE, "more": 1}]),
    ],
)
def test_a_malformed_envelope_is_refused(value: Any) -> None:
    with pytest.raises(FormatError):
        Envelope.from_json(value, "note")
    with pytest.raises(FormatError):
        Envelope.from_bytes(canonical.encode(value), "note")
