"""The office believes nothing but the server's own word, for the question that was asked."""

from __future__ import annotations

import secrets
from typing import Any

import pytest

from expunge.crypto import Envelope, SigningKey
from expunge.errors import EvidenceError
from support.offices import Place


def test_an_answer_of_another_key_is_refused_and_the_command_stays_under_way(place: Place) -> None:
    stranger = SigningKey(secrets.token_bytes(32))
    place.carrier.change = lambda data: Envelope.signed(
        "result", Envelope.from_bytes(data, "result").unverified(), stranger
    ).to_bytes()
    with pytest.raises(EvidenceError, match="not the server that was enrolled at"):
        place.office.do("order", {"subject": "p-1"})
    assert place.office.under_way == "order"


def test_the_answer_to_another_question_is_refused(place: Place) -> None:
    answers: list[bytes] = []
    place.carrier.change = lambda data: answers.append(data) or answers[0]  # type: ignore[func-returns-value]
    place.office.ask("status", {})
    with pytest.raises(EvidenceError, match="nonce differs"):
        place.office.ask("status", {})
    with pytest.raises(EvidenceError, match="answered another command: its action is 'status'"):
        place.office.ask("clients", {})


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("nonce", "0" * 64, "its nonce differs"),
        ("command", "0" * 64, "not in the log as claimed"),
        ("proof", [], "not in the log as claimed"),
    ],
)
def test_a_result_that_lies_is_refused_even_if_the_server_signed_it(
    place: Place, field: str, value: Any, message: str
) -> None:
    def lie(data: bytes) -> bytes:
        content = Envelope.from_bytes(data, "result").unverified()
        part = {"nonce": content["result"], "command": content["entry"], "proof": content["log"]}[
            field
        ]
        part[field] = value
        return Envelope.signed("result", content, place.server_key).to_bytes()

    place.carrier.change = lie
    with pytest.raises(EvidenceError, match=message):
        place.office.do("order", {"subject": "p-1"})


def test_rotations_of_the_servers_key_are_followed(place: Place) -> None:
    place.office.do("rotate-key", {})
    place.office.do("rotate-key", {})
    assert place.office.ask("status", {})["key"] != place.server_key.public.id
    assert len(place.office.chain.rotations) == 2
    assert place.reopened().ask("status", {})["federation"] == place.office.federation
