"""Requests, speech, names, times and tokens: read back as written, and refused in any other
form.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge import kinds
from expunge.crypto import Envelope, canonical
from expunge.errors import EvidenceError, FormatError
from expunge.wire import payloads, request, schema
from expunge.wire.request import AuditAnswer, Header, OrderAnswer
from expunge.wire.token import Token, secret_digest
from support.federation import make_key, mislabelled

KEY = make_key()
SERVER = make_key().public
hexadecimal = st.integers(0, 2**256 - 1).map(lambda number: f"{number:064x}")
identifiers = hexadecimal.map(lambda text: text[:32])
good_names = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,63}", fullmatch=True)
counts = st.integers(0, 4)


@st.composite
def headers(draw: st.DrawFn) -> Header:
    return Header(
        federation=draw(identifiers),
        client=draw(good_names),
        sequence=draw(st.integers(1, 2**53)),
        nonce=draw(hexadecimal),
        data_digest=draw(hexadecimal),
        labels_digest=draw(hexadecimal),
        message=draw(st.sampled_from(kinds.REQUEST_KINDS)),
        added=draw(counts),
        deleted=draw(counts),
        orders=tuple(draw(st.lists(st.builds(OrderAnswer, identifiers, counts), max_size=3))),
        audits=tuple(
            draw(st.lists(st.builds(AuditAnswer, identifiers, hexadecimal, counts), max_size=3))
        ),
        leave=draw(st.booleans()),
        reset=draw(st.booleans()),
    )


def written(header: Header, message: bytes = b"message") -> bytes:
    def named(kind: bytes, number: int) -> list[bytes]:
        return [hashlib.sha256(kind + bytes([place])).digest() for place in range(number)]

    return request.write(
        header, named(b"a", header.commitments[0]), named(b"d", header.commitments[1]), message, KEY
    )


@given(headers(), st.binary(max_size=100))
def test_a_request_is_read_back(header: Header, message: bytes) -> None:
    data = written(header, message)
    found = request.read(data)
    assert found.header == header
    assert (len(found.added), len(found.deleted)) == header.commitments
    assert bytes(found.message) == message
    assert written(header, message) == data  # the same again: signatures are deterministic
    found.signed.verify(KEY.public)
    with pytest.raises(EvidenceError):
        found.signed.verify(SERVER)
    assert found.digest == hashlib.sha256(found.signed.data).hexdigest()
    other = replace(header, nonce="0" * 64 if header.nonce != "0" * 64 else "1" * 64)
    assert request.read(written(other, message)).digest != found.digest


@given(headers())
def test_the_beginning_of_a_request_says_what_the_whole_says(header: Header) -> None:
    data = written(header)
    whole, size = request.read(data), request.FORMAT.signature_end(data)
    found = request.read_preamble(data[:size])
    assert (found.federation, found.client, found.sequence, found.signed) == (
        header.federation,
        header.client,
        header.sequence,
        whole.signed,
    )
    assert request.read_preamble(memoryview(data)) == found
    assert request.FORMAT.signature_end(data[:20]) == 21 + 64
    for end in (0, 20, 21, size - 1):
        with pytest.raises(FormatError):
            request.read_preamble(data[:end])


@pytest.mark.parametrize("header", [b"", b"{}", b"[]", b"\xff", b'{"client":1}'])
def test_beginnings_that_do_not_say_who_speaks_are_refused(header: bytes) -> None:
    data = b"expunge\x00request\x00\x01" + len(header).to_bytes(4, "little") + header + bytes(64)
    with pytest.raises(FormatError):
        request.read_preamble(data)


@given(headers(), st.data())
def test_a_request_cut_off_or_altered_is_not_taken(header: Header, data: st.DataObject) -> None:
    whole = written(header)
    with pytest.raises(FormatError):
        request.read(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(FormatError):
        request.read(whole + b"\0")
    altered = bytearray(whole)
    altered[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises((FormatError, EvidenceError)):
        request.read(bytes(altered)).signed.verify(KEY.public)


@given(st.binary(max_size=200))
def test_garbage_is_no_request(data: bytes) -> None:
    for start in (b"", b"expunge\0request\0\1", b"expunge\0request\0\1\x02\0\0\0{}"):
        with pytest.raises(FormatError):
            request.read(start + data)


HEADER = Header(
    federation="0" * 32,
    client="clinic",
    sequence=1,
    nonce="0" * 64,
    data_digest="0" * 64,
    labels_digest="0" * 64,
    message="none",
)


@pytest.mark.parametrize(
    "changes",
    [
        {"federation": "0" * 31},
        {"federation": "G" * 32},
        {"client": "Clinic"},
        {"client": ""},
        {"client": "clinic\n"},
        {"sequence": 0},
        {"sequence": -1},
        {"sequence": True},
        {"sequence": "1"},
        {"nonce": "0" * 63},
        {"nonce": None},
        {"spec": {"data": "0" * 64}},
        {"spec": {"data": "0" * 64, "labels": "x"}},
        {"spec": []},
        {"message": "letter"},
        {"message": None},
        {"message": ["rows"]},
        {"added": -1},
        {"added": 1},
        {"added": True},
        {"deleted": 2**52},
        {"orders": {}},
        {"orders": [{"order": "0" * 32}]},
        {"orders": [{"order": "0" * 31, "found": 1}]},
        {"orders": [{"order": "0" * 32, "found": -2}]},
        {"audits": None},
        {"audits": [{"audit": "0" * 32, "count": 1, "digest": "0"}]},
        {"audits": [7]},
        {"leave": 1},
        {"reset": None},
        {"body": "0" * 64},
        {"body": 7},
        {"more": 1},
    ],
)
def test_headers_of_another_form_are_refused(changes: dict[str, Any]) -> None:
    assert request.read(mislabelled(HEADER, {}, [], b"", KEY)).header == HEADER
    with pytest.raises(FormatError):
        request.read(mislabelled(HEADER, changes, [], b"", KEY))


def test_a_request_needs_as_many_commitments_as_it_says() -> None:
    with pytest.raises(FormatError, match="commitments"):
        request.write(replace(HEADER, added=1), [], [], b"", KEY)


# -- names, numbers and times ----------------------------------------------------------------------


@given(good_names)
def test_good_names_are_taken_as_they_are(name: str) -> None:
    assert schema.name(name, "the name") == name


@pytest.mark.parametrize(
    "name", ["", "-a", ".a", "_a", "A", "é", "a b", "a/b", "a" * 65, "a\n", None, 7, b"a"]
)
def test_other_names_are_refused(name: object) -> None:
    with pytest.raises(FormatError, match="name"):
        schema.name(name, "the name")


@pytest.mark.parametrize("role", ["", "king", None, ["client"], "Client"])
def test_other_roles_are_refused(role: object) -> None:
    with pytest.raises(FormatError, match="role"):
        schema.role(role, "the role")
    assert [schema.role(one, "the role") for one in kinds.ROLES] == list(kinds.ROLES)


@given(st.integers(0, 250_000_000_000), st.floats(0, 0.999))
def test_times_are_read_back_to_the_second(seconds: int, part: float) -> None:
    text = schema.time_text(seconds + part if seconds < 2**40 else seconds)
    assert schema.time_seconds(text) == seconds
    assert len(text) == 20


@given(st.integers(0, 250_000_000_000), st.integers(0, 250_000_000_000))
def test_times_are_ordered_as_their_texts_are(one: int, other: int) -> None:
    assert (one < other) == (schema.time_text(one) < schema.time_text(other))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-11-15",
        "2026-11-15T09:30:00",
        "2026-11-15T09:30:00+00:00",
        "2026-1-5T9:3:0Z",
        "2026-02-30T00:00:00Z",
        "2026-11-15T09:30:60Z",
        " 2026-11-15T09:30:00Z",
        "2026-11-15T09:30:00Z\n",
        None,
        7,
    ],
)
def test_other_times_are_refused(text: object) -> None:
    with pytest.raises(FormatError, match="time"):
        schema.time_seconds(text)


def test_numbers_and_flags() -> None:
    assert schema.count(3, "it") == 3
    assert schema.boolean(False, "it") is False
    for value in (True, 1.0, "1", None, -1):
        with pytest.raises(FormatError, match="it must be"):
            schema.count(value, "it")
    for value in (0, 1, "true", None):
        with pytest.raises(FormatError, match="it must be"):
            schema.boolean(value, "it")
    for value in ("0" * 63, "0" * 65, "G" * 64, "A" * 64, 7, None):
        with pytest.raises(FormatError, match="it must be"):
            schema.digest(value, "it")


# -- tokens ----------------------------------------------------------------------------------------

tokens = st.builds(
    Token,
    identifiers,
    good_names,
    st.sampled_from(kinds.ROLES),
    hexadecimal,
    st.just(SERVER),
    st.lists(st.text(max_size=20), max_size=3).map(tuple),
    st.text(max_size=50),
)


@given(tokens)
def test_a_token_is_one_line_and_read_back(token: Token) -> None:
    text = token.to_text()
    assert text.startswith("expunge-token-1.")
    assert text.isascii()
    assert len(text.split()) == 1
    assert Token.from_text(f"  {text}\n") == token
    assert token.secret_digest == secret_digest(token.secret)
    assert token.secret not in token.secret_digest
    assert token.secret not in repr(token)


@given(tokens, st.data())
def test_a_token_that_was_not_copied_whole_is_refused(token: Token, data: st.DataObject) -> None:
    text = token.to_text()
    with pytest.raises(FormatError):
        Token.from_text(text[: data.draw(st.integers(0, len(text) - 1))])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "expunge-token-1.",
        "expunge-token-2.e30",
        "expunge-token-1.e30",
        "expunge-token-1.é",
        "x",
    ],
)
def test_other_texts_are_no_tokens(text: str) -> None:
    with pytest.raises(FormatError):
        Token.from_text(text)


@pytest.mark.parametrize(
    "changes",
    [
        {"urls": "x"},
        {"urls": [1]},
        {"ca": None},
        {"role": "king"},
        {"secret": "00"},
        {"server": "x"},
    ],
)
def test_tokens_of_another_form_are_refused(changes: dict[str, Any]) -> None:
    good = Token("0" * 32, "lab", "client", "0" * 64, SERVER, ())
    content = canonical.decode(base64.urlsafe_b64decode(good.to_text().split(".")[1] + "=="))
    text = base64.urlsafe_b64encode(canonical.encode(content | changes)).decode().rstrip("=")
    with pytest.raises(FormatError):
        Token.from_text(f"expunge-token-1.{text}")


# -- speech ----------------------------------------------------------------------------------------

QUESTION = {"actor": "lab", "federation": "0" * 32, "nonce": "0" * 64, "sequence": 0, "size": 3}
COMMAND = {
    "action": "audit",
    "actor": "lab",
    "arguments": {},
    "federation": "0" * 32,
    "nonce": "0" * 64,
    "sequence": 1,
}
ENROLMENT = {
    "federation": "0" * 32,
    "key": KEY.public.text,
    "name": "lab",
    "spec": "",
    "token": "0" * 64,
}


@pytest.mark.parametrize(
    ("kind", "content"), [("question", QUESTION), ("command", COMMAND), ("enrolment", ENROLMENT)]
)
def test_what_is_said_is_heard(kind: str, content: dict[str, Any]) -> None:
    data = payloads.sign(kind, content, KEY)
    assert payloads.open_verified(kind, data, KEY.public) == content
    envelope, claimed = payloads.open_unverified(kind, data)
    assert claimed == content
    assert envelope == Envelope.from_bytes(data, kind)
    with pytest.raises(EvidenceError):
        payloads.open_verified(kind, data, SERVER)
    for other in ("question", "command", "enrolment"):
        if other != kind:
            with pytest.raises(FormatError):
                payloads.open_unverified(other, data)
    with pytest.raises(FormatError):
        payloads.sign(kind, {**content, "more": 1}, KEY)


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("question", QUESTION | {"size": -1}),
        ("question", QUESTION | {"actor": "Lab"}),
        ("question", QUESTION | {"nonce": "x"}),
        ("question", QUESTION | {"federation": ""}),
        ("command", COMMAND | {"sequence": -1}),
        ("command", COMMAND | {"action": None}),
        ("command", COMMAND | {"arguments": []}),
        ("enrolment", ENROLMENT | {"name": "-"}),
        ("enrolment", ENROLMENT | {"key": "AAAA"}),
        ("enrolment", {**ENROLMENT, "more": 1}),
        ("enrolment", []),
    ],
)
def test_what_is_said_otherwise_is_refused(kind: str, content: Any) -> None:
    data = Envelope.signed(kind, content, KEY).to_bytes()
    with pytest.raises(FormatError):
        payloads.open_unverified(kind, data)
    with pytest.raises(FormatError):
        payloads.open_verified(kind, data, KEY.public)
