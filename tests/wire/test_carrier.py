"""Delivery: what was damaged on the way is offered again; what is wrong is refused for good."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, cast

import pytest

from expunge.crypto import Envelope, SigningKey
from expunge.errors import CarrierError, RefusedError
from expunge.wire.carrier import UNPROVEN, Carrier, CheckedCarrier, answers_bytes, refusals_to

ANSWER = Envelope.signed("answer", {"nested": [{"a": {}}]}, SigningKey(bytes(32))).to_bytes()
SAYING = ("enrol", "request", "sync", "aggregate", "command")
FETCHING = ("federation", "checkpoint")


def carrier(answer: Callable[..., Any]) -> CheckedCarrier:
    """A carrier all of whose methods answer so."""
    methods = dict.fromkeys((*SAYING, *FETCHING), staticmethod(answer))
    return CheckedCarrier(cast("Carrier", type("Answering", (), methods)()))


def refusing(code: str, **details: object) -> Callable[[bytes], bytes]:
    def refuse(_: bytes) -> bytes:
        raise RefusedError(code, "it does not hold", **details)

    return refuse


@pytest.mark.parametrize("name", SAYING)
def test_a_refusal_of_other_bytes_than_were_sent_is_no_refusal(name: str) -> None:
    for to in (hashlib.sha256(b"questi").hexdigest(), ""):
        with pytest.raises(CarrierError, match="it does not hold"):
            getattr(carrier(refusing("malformed", to=to)), name)(b"question")


@pytest.mark.parametrize("name", SAYING)
def test_a_refusal_of_the_bytes_that_were_sent_is_final(name: str) -> None:
    for details in ({"to": hashlib.sha256(b"question").hexdigest()}, {}):
        with pytest.raises(RefusedError) as refusal:
            getattr(carrier(refusing("malformed", **details)), name)(b"question")
        assert (refusal.value.code, refusal.value.details) == ("malformed", details)


@pytest.mark.parametrize("name", [*SAYING, *FETCHING])
def test_an_answer_that_ends_too_early_is_no_answer(name: str) -> None:
    arguments = (b"question",) if name in SAYING else ()
    assert getattr(carrier(lambda *_: ANSWER), name)(*arguments) == ANSWER
    for size in range(len(ANSWER)):
        with pytest.raises(CarrierError, match="offer the same again"):
            getattr(carrier(lambda *_, size=size: ANSWER[:size]), name)(*arguments)


def test_an_answer_that_is_nested_without_end_is_no_answer() -> None:
    with pytest.raises(CarrierError):
        carrier(lambda: b"[" * 1_000_000).checkpoint()


def test_refusals_name_the_bytes_until_it_is_known_who_sent_them() -> None:
    data = b"what arrived"
    for code in (*sorted(UNPROVEN), "not-live", "storage", "too-large"):
        with pytest.raises(RefusedError) as refusal, refusals_to(memoryview(data)):
            raise RefusedError(code, "no", expected=4)
        named = {"to": hashlib.sha256(data).hexdigest()} if code in UNPROVEN else {}
        assert refusal.value.details == {"expected": 4} | named


def test_what_did_not_arrive_whole_stays_without_a_name() -> None:
    class Service:
        @answers_bytes
        def sync(self, _: bytes) -> bytes:
            raise RefusedError("malformed", "the body ended early", to="")

    with pytest.raises(RefusedError) as refusal:
        Service().sync(b"half")
    assert refusal.value.details == {"to": ""}
