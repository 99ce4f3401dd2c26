"""What an operator may change about the spec, and what stays as it is."""

from __future__ import annotations

from typing import Any

import pytest

from expunge import Spec, solve
from expunge.crypto import Envelope
from expunge.errors import RefusedError
from support.commands import refused
from support.federation import Federation, writer_of
from support.samples import SPEC

DAY = 86400


def amended(federation: Federation, **arguments: Any) -> None:
    """Have the spec amended, and take it on as clients do at their next sync."""
    told = federation.operator.command("amend", **arguments)
    federation.spec = Spec.from_dict(told["spec"])
    heard = next(iter(federation.clients.values())).sync()
    assert Spec.from_dict(heard["spec"]) == federation.spec
    last = Envelope.from_json(heard["amendments"][-1], "amendment").verify(
        federation.server_key.public
    )
    assert Spec.from_dict(last["spec"]) == federation.spec
    command = Envelope.from_json(last["command"], "command").verify(federation.operator.key.public)
    assert command["arguments"] == arguments


def test_gamma_and_publication_bits_are_amended_and_the_ledger_stays(
    federation: Federation,
) -> None:
    client = federation.clients["clinic"]
    before = federation.service.state.ledger.solver.statistics.digest
    amended(federation, gamma=(4.0).hex())
    federation.check()
    amended(federation, publication_bits=30)
    federation.check()
    assert federation.service.state.ledger.solver.statistics.digest == before
    head = federation.service.state.head
    assert head is not None
    assert head == solve(federation.statistics())
    client.send(federation.draw(1), client.retained[:1], "gram")
    federation.reopen()
    federation.check()
    (first, second) = federation.entries("amended")
    assert (first["spec_before"], first["spec_after"]) == (SPEC.digest, second["spec_before"])


def test_labels_are_appended_with_data_in_flight(federation: Federation) -> None:
    client, lab = federation.clients["clinic"], federation.enrol("lab")
    lab.send(federation.draw(3), kind="gram")
    client.send(federation.draw(1), client.retained[:1])  # still in the journal
    stale = client.request(federation.draw(1))
    amended(federation, labels=[*(SPEC.labels or ()), "fox"])
    federation.check()
    refused(federation, "wrong-spec", federation.service.request, stale)
    added = [one for one in federation.draw(40) if one.target == 3]
    client.send(added, client.retained[:1])  # a sample that was committed to under the old labels
    lab.send(added[:0], lab.retained[:2], "gram")
    assert len(added) > 1
    federation.check()
    federation.reopen()
    federation.fold()
    federation.check()
    client.send((), [one for one in client.retained if one.target == 3])
    federation.check()


def test_a_request_read_before_an_amendment_is_judged_after_it(federation: Federation) -> None:
    """Offered before, taken up after: under a new gamma it still holds, under new labels it does
    not.
    """
    client, operator, service = (
        federation.clients["clinic"],
        federation.operator,
        federation.service,
    )
    gone = list(client.retained)
    for arguments, code in (
        ({"gamma": (2.0).hex()}, None),
        ({"labels": ["cat", "dog", "eel", "fox"]}, "wrong-spec"),
    ):
        data = (
            client.request((), gone, "gram") if code is None else client.request(federation.draw(1))
        )
        offer = service._requests.take(data)
        operator.command("amend", **arguments)
        (answer,) = [writer_of(service).offer(offer)]
        if code is None:
            client.settled(answer.result(), (), gone)
            federation.spec = federation.spec.with_gamma(2.0)
        else:
            refusal = answer.exception()
            assert isinstance(refusal, RefusedError)
            assert refusal.code == code
    federation.spec = federation.spec.with_labels("fox")
    client.send(federation.draw(3))
    federation.check()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({}, "malformed"),
        ({"gamma": SPEC.gamma.hex()}, "malformed"),
        ({"gamma": 1}, "malformed"),
        ({"gamma": (-1.0).hex()}, "malformed"),
        ({"gamma": "much"}, "malformed"),
        ({"dim": 5}, "malformed"),
        ({"backbone": "other"}, "malformed"),
        ({"labels": ["cat", "dog"]}, "malformed"),
        ({"labels": ["dog", "cat", "eel"]}, "malformed"),
        ({"labels": ["cat", "dog", "eel", "cat"]}, "malformed"),
        ({"labels": "fox"}, "malformed"),
        ({"messages": []}, "malformed"),
        ({"messages": ["factor", "rows"]}, "malformed"),
        ({"messages": ["letters"]}, "malformed"),
        ({"publication_bits": 10**9}, "malformed"),
    ],
)
def test_amendments_that_are_refused(
    federation: Federation, arguments: dict[str, Any], code: str
) -> None:
    federation.fold()
    refused(federation, code, federation.operator.command, "amend", **arguments)
    federation.clients["clinic"].send(federation.draw(1))
    federation.check()


def test_kinds_of_messages_can_be_forbidden_and_allowed_again(federation: Federation) -> None:
    client = federation.clients["clinic"]
    client.send(federation.draw(1), kind="gram")
    amended(federation, messages=["rows"])
    refused(
        federation,
        "not-allowed",
        federation.service.request,
        client.request(federation.draw(1), kind="gram"),
    )
    federation.reopen()
    client.send(federation.draw(1))
    amended(federation, messages=["gram", "rows"])
    client.send(federation.draw(1), kind="gram")
    federation.check()
