"""Who is let in: enrolment by one-time tokens."""

from __future__ import annotations

import secrets
from typing import Any

import pytest

from expunge import Spec
from expunge.errors import RefusedError
from expunge.wire import payloads
from expunge.wire.token import secret_digest
from support.commands import refused
from support.federation import Clock, Federation, make_key
from support.samples import SPEC

DAY = 86400


def test_an_enrolment_may_be_repeated_and_is_logged_once(federation: Federation) -> None:
    key, secret = make_key(), federation.token("lab")
    data = federation.enrolment("lab", key, secret, SPEC.data_digest)
    first = payloads.open_verified(
        "enrolled", federation.service.enrol(data), federation.server_key.public
    )
    assert (first["name"], first["role"], first["key"], first["sequence"]) == (
        "lab",
        "client",
        key.public.text,
        0,
    )
    assert Spec.from_dict(first["spec"]) == SPEC
    again = payloads.open_verified(
        "enrolled", federation.service.enrol(data), federation.server_key.public
    )
    assert again == first
    assert [entry["name"] for entry in federation.entries("enrolled")] == [
        "operator",
        "clinic",
        "lab",
    ]


def test_enrolments_that_are_refused(federation: Federation) -> None:
    key, secret, enrol = make_key(), federation.token("lab"), federation.service.enrol
    other, data = federation.token("ward"), SPEC.data_digest
    cases: list[tuple[str, bytes]] = [
        ("bad-token", federation.enrolment("lab", key, secrets.token_hex(32), data)),
        ("bad-token", federation.enrolment("lab", key, "short", data)),
        ("bad-token", federation.enrolment("lab", key, other, data)),
        ("bad-token", federation.enrolment("ward", key, secret, data)),
        ("wrong-spec", federation.enrolment("lab", key, secret, "")),
        (
            "wrong-spec",
            federation.enrolment("lab", key, secret, Spec(dim=9, labels=("a",)).data_digest),
        ),
        ("name-taken", federation.enrolment("clinic", key, secret, data)),
        ("name-taken", federation.enrolment("lab", federation.clients["clinic"].key, secret, data)),
        ("malformed", federation.enrolment("The Lab", key, secret, data)),
    ]
    for code, enrolment in cases:
        refused(federation, code, enrol, enrolment)
    content = {
        "federation": federation.id,
        "key": key.public.text,
        "name": "lab",
        "spec": data,
        "token": secret,
    }
    refused(federation, "bad-signature", enrol, payloads.sign("enrolment", content, make_key()))
    refused(
        federation,
        "wrong-federation",
        enrol,
        payloads.sign("enrolment", content | {"federation": "0" * 32}, key),
    )
    refused(
        federation, "malformed", enrol, payloads.sign("enrolment", content | {"key": "AAAA"}, key)
    )
    enrol(federation.enrolment("lab", key, secret, data))
    refused(federation, "name-taken", enrol, federation.enrolment("lab", make_key(), secret, data))


def test_the_name_and_key_of_a_client_that_is_gone_are_not_called_enrolled(
    federation: Federation,
) -> None:
    key, secret, enrol = make_key(), federation.token("lab"), federation.service.enrol
    enrol(federation.enrolment("lab", key, secret, SPEC.data_digest))
    federation.operator.command("forget-client", client="lab")
    other = federation.token("ward")
    with pytest.raises(RefusedError) as no_token:
        federation.token("lab")
    with pytest.raises(RefusedError) as used_token:
        enrol(federation.enrolment("lab", make_key(), secret, SPEC.data_digest))
    with pytest.raises(RefusedError) as old_key:
        enrol(federation.enrolment("ward", key, other, SPEC.data_digest))
    for refusal in (no_token.value, used_token.value, old_key.value):
        assert refusal.code == "name-taken"
        assert "lab was a client that has left or was forgotten" in str(refusal)
        assert "by another name, in a new folder" in str(refusal)


def test_a_token_expires_and_a_new_one_takes_its_place(federation: Federation) -> None:
    clock = federation.clock
    assert isinstance(clock, Clock)
    first = federation.token("lab")
    second = federation.token("lab")
    enrol, key = federation.service.enrol, make_key()
    refused(
        federation, "bad-token", enrol, federation.enrolment("lab", key, first, SPEC.data_digest)
    )
    clock.now += 7 * DAY + 1
    refused(
        federation, "bad-token", enrol, federation.enrolment("lab", key, second, SPEC.data_digest)
    )
    enrol(federation.enrolment("lab", key, federation.token("lab"), SPEC.data_digest))


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"name": "lab", "role": "king"}, "malformed"),
        ({"name": "Lab", "role": "client"}, "malformed"),
        ({"role": "client"}, "malformed"),
        ({"name": "lab", "role": "client", "secret": "secret"}, "malformed"),
        ({"name": "lab", "role": "client", "days": 0}, "malformed"),
        ({"name": "lab", "role": "client", "days": True}, "malformed"),
        ({"name": "clinic", "role": "client"}, "name-taken"),
    ],
)
def test_tokens_that_are_refused(
    federation: Federation, arguments: dict[str, Any], code: str
) -> None:
    given = {"secret": secret_digest(secrets.token_hex(32))} | arguments
    refused(federation, code, federation.operator.command, "token", **given)


def test_a_secret_is_for_one_token_only(federation: Federation) -> None:
    federation.operator.command("token", name="first", role="client", secret="0" * 64)
    with pytest.raises(RefusedError, match="draw a fresh one") as refusal:
        federation.operator.command("token", name="second", role="client", secret="0" * 64)
    assert refusal.value.code == "name-taken"
