"""Erasure orders from filing to closing, and the bundle that shows what became of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from expunge.crypto import Envelope
from expunge.errors import EvidenceError, FormatError, RefusedError
from expunge.evidence import Bundle, read_bundle, render_bundle, verify
from expunge.wire.request import OrderAnswer
from expunge.wire.schema import time_text
from support import seeds
from support.federation import NOW, SPEC, Clock, Federation, Party

DAY = 86400
SUBJECT = "Ada Byron, 1815-12-10"


@pytest.fixture
def federation(tmp_path: Path):
    with Federation(tmp_path / "server", clock=Clock()) as federation:
        for name in ("clinic", "hospital", "lab"):
            federation.enrol(name).send(federation.draw(4))
        yield federation


@pytest.fixture
def officer(federation: Federation) -> Party:
    return federation.officer()


def shown(officer: Party, order: str) -> dict[str, Any]:
    return officer.ask("show-order", order=order)


def evidence(federation: Federation, officer: Party, order: str) -> tuple[bytes, Bundle]:
    """The bundle as a file, checked with nothing but the file and the server's first key; and what
    is in it.
    """
    data = render_bundle(Envelope.from_json(officer.ask("bundle", order=order), "bundle"))
    assert verify(data, federation.first_key.public).kind == "bundle"
    return data, Bundle.read(read_bundle(data), federation.first_key.public)


def refused(code: str, ask: Any, *arguments: Any, **named: Any) -> RefusedError:
    with pytest.raises(RefusedError) as refusal:
        ask(*arguments, **named)
    assert refusal.value.code == code, refusal.value
    return refusal.value


def test_from_filing_to_closing(federation: Federation, officer: Party) -> None:
    clinic, hospital, lab = federation.clients.values()
    filed = officer.command("order", subject=SUBJECT, subjects={"lab": "patient 7"}, days=10)
    order = filed["order"]
    assert (filed["state"], filed["waiting"], filed["answers"]) == (
        "open",
        ["clinic", "hospital", "lab"],
        [],
    )
    assert (filed["filed"], filed["deadline"]) == (time_text(NOW), time_text(NOW + 10 * DAY))
    names = {client.name: client.sync()["orders"] for client in federation.clients.values()}
    assert {name: [one["subject"] for one in waiting] for name, waiting in names.items()} == {
        "clinic": [SUBJECT],
        "hospital": [SUBJECT],
        "lab": ["patient 7"],
    }
    clinic.answer_order(order, clinic.retained[:2])
    assert clinic.sync()["orders"] == []
    assert shown(officer, order)["waiting"] == ["hospital", "lab"]
    hospital.answer_order(order)
    assert shown(officer, order)["state"] == "open"
    refused("not-allowed", officer.command, "close-order", order=order)
    lab.answer_order(order, lab.retained[:1], "gram")
    told = shown(officer, order)
    assert (told["state"], told["waiting"], told["completed"]) == ("complete", [], time_text(NOW))
    assert [
        (answer["client"], answer["found"], answer["sequence"]) for answer in told["answers"]
    ] == [
        ("clinic", 2, 2),
        ("hospital", 0, 2),
        ("lab", 1, 2),
    ]
    federation.check()
    federation.fold()
    _, bundle = evidence(federation, officer, order)
    assert (bundle.order.state, bundle.order.subject, bundle.order.subjects) == (
        "complete",
        SUBJECT,
        {"lab": "patient 7"},
    )
    assert [(answer["client"], answer["found"]) for answer in bundle.answers()] == [
        ("clinic", 2),
        ("hospital", 0),
        ("lab", 1),
    ]
    assert all(bundle.shredding(change) is not None for change in bundle.found("changed"))
    officer.command("close-order", order=order)
    assert shown(officer, order)["state"] == "closed"
    refused("gone", officer.ask, "bundle", order=order)
    assert federation.service.status()["orders"] == {
        "open": 0,
        "overdue": 0,
        "complete": 0,
        "closed": 1,
        "lost": 0,
    }


def test_a_bundle_has_no_byte_that_can_be_altered(federation: Federation, officer: Party) -> None:
    order = officer.command("order", subject=SUBJECT)["order"]
    for client in federation.clients.values():
        client.answer_order(order, client.retained[:1])
    federation.fold()
    data, _ = evidence(federation, officer, order)
    rng, public = seeds.chance(), federation.first_key.public
    for place in rng.sample(range(len(data)), 150):
        altered = bytearray(data)
        altered[place] ^= 1 << rng.randrange(7)
        with pytest.raises((EvidenceError, FormatError)):
            verify(bytes(altered), public)
    with pytest.raises((EvidenceError, FormatError)):
        verify(data[:-1], public)
    with pytest.raises((EvidenceError, FormatError)):
        verify(data, officer.key.public)


def test_a_bundle_of_an_order_that_is_not_complete_says_so(
    federation: Federation, officer: Party
) -> None:
    order = officer.command("order", subject=SUBJECT)["order"]
    federation.clients["clinic"].answer_order(order)
    _, bundle = evidence(federation, officer, order)
    assert bundle.order.state == "open"


@pytest.mark.parametrize("way", ["leaves", "is forgotten"])
def test_a_client_that_is_gone_has_answered_by_that(
    federation: Federation, officer: Party, way: str
) -> None:
    clinic, hospital, lab = federation.clients.values()
    order = officer.command("order", subject=SUBJECT)["order"]
    clinic.answer_order(order, clinic.retained[:1])
    hospital.answer_order(order)
    if way == "leaves":
        lab.send((), list(lab.retained), leave=True)
    else:
        federation.operator.command("forget-client", client="lab")
        lab.retained = []
    told = shown(officer, order)
    assert (told["state"], told["waiting"]) == ("complete", [])
    assert told["answers"][-1]["client"] == "lab"
    federation.fold()
    _, bundle = evidence(federation, officer, order)
    assert bundle.order.state == "complete"
    assert [one.entry["client"] for one in bundle.departures()] == ["lab"]
    assert bundle.departures()[0].entry["kind"] == ("changed" if way == "leaves" else "forgotten")
    later = officer.command("order", subject="somebody else")
    assert later["waiting"] == ["clinic", "hospital"]


def test_a_leave_may_answer_an_order_itself(federation: Federation, officer: Party) -> None:
    order = officer.command("order", subject=SUBJECT)["order"]
    lab = federation.clients["lab"]
    lab.send((), list(lab.retained), leave=True, orders=(OrderAnswer(order, 2),))
    assert [(one["client"], one["found"]) for one in shown(officer, order)["answers"]] == [
        ("lab", 2)
    ]
    assert len(federation.entries("answered")) == 1


def by_hand(federation: Federation) -> Clock:
    """The federation's clock, which tests move."""
    assert isinstance(federation.clock, Clock)
    return federation.clock


def test_an_order_is_overdue_after_its_deadline_and_can_still_be_answered(
    federation: Federation, officer: Party
) -> None:
    clock = by_hand(federation)
    order = officer.command("order", subject=SUBJECT)["order"]
    clock.now += 30 * DAY
    assert shown(officer, order)["state"] == "open"
    clock.now += 1
    assert shown(officer, order)["state"] == "overdue"
    assert [one["order"] for one in officer.ask("orders") if one["state"] == "overdue"] == [order]
    assert federation.service.status()["orders"]["overdue"] == 1
    _, bundle = evidence(federation, officer, order)
    assert bundle.order.state == "overdue"
    for client in federation.clients.values():
        client.answer_order(order)
    assert shown(officer, order)["state"] == "complete"
    _, bundle = evidence(federation, officer, order)
    assert bundle.order.state == "complete"


def test_several_orders_in_one_request(federation: Federation, officer: Party) -> None:
    one, two = (officer.command("order", subject=name)["order"] for name in ("a", "b"))
    clinic = federation.clients["clinic"]
    before = federation.dump()
    answers = (OrderAnswer(one, 2), OrderAnswer(two, 1))
    refused(
        "wrong-counts",
        federation.service.request,
        clinic.request((), clinic.retained[:2], orders=answers),
    )
    refused(
        "unknown-order",
        federation.service.request,
        clinic.request(orders=(OrderAnswer(one, 0), OrderAnswer(one, 0))),
    )
    assert federation.dump() == before
    clinic.send((), clinic.retained[:3], orders=answers)
    refused(
        "unknown-order", federation.service.request, clinic.request(orders=(OrderAnswer(one, 0),))
    )
    assert [
        [answer["found"] for answer in shown(officer, order)["answers"]] for order in (one, two)
    ] == [[2], [1]]


def test_an_order_of_a_federation_without_clients_is_complete(tmp_path: Path) -> None:
    with Federation(tmp_path / "server") as federation:
        order = federation.operator.command("order", subject=SUBJECT)["order"]
        assert federation.operator.ask("show-order", order=order)["state"] == "complete"
        evidence(federation, federation.operator, order)
        newcomer = federation.enrol("late")
        assert newcomer.sync()["orders"] == []
        refused(
            "unknown-order",
            federation.service.request,
            newcomer.request(orders=(OrderAnswer(order, 0),)),
        )


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({}, "malformed"),
        ({"subject": ""}, "malformed"),
        ({"subject": "x" * 1001}, "malformed"),
        ({"subject": 7}, "malformed"),
        ({"subject": "x", "subjects": ["lab"]}, "malformed"),
        ({"subject": "x", "subjects": {"lab": 7}}, "malformed"),
        ({"subject": "x", "subjects": {"lab": "y" * 1001}}, "malformed"),
        ({"subject": "x", "subjects": {"lab": ""}}, "malformed"),
        ({"subject": "x", "subjects": {"nobody": "y"}}, "unknown-actor"),
        ({"subject": "x", "days": 0}, "malformed"),
        ({"subject": "x", "days": True}, "malformed"),
        ({"subject": "x", "days": 100000}, "malformed"),
    ],
)
def test_an_order_that_cannot_be_filed_is_refused(
    federation: Federation, arguments: dict[str, Any], code: str
) -> None:
    before = federation.dump()
    refused(code, federation.operator.command, "order", **arguments)
    assert federation.dump() == before
    federation.operator.command("order", subject=SUBJECT)


@pytest.mark.parametrize("subject", ["x" * 1000, "\u202eevil\x00\n<script>", "\U0001f600", "Ünï"])
def test_any_subject_can_be_ordered_and_bundled(federation: Federation, subject: str) -> None:
    order = federation.operator.command("order", subject=subject)["order"]
    client = federation.clients["clinic"]
    assert client.sync()["orders"][0]["subject"] == subject
    client.answer_order(order)
    evidence(federation, federation.operator, order)


@pytest.mark.parametrize("action", ["show-order", "bundle"])
def test_there_is_no_such_order(federation: Federation, action: str) -> None:
    refused("unknown-order", federation.operator.ask, action, order="0" * 32)
    refused("malformed", federation.operator.ask, action, order=7)
    refused("unknown-order", federation.operator.command, "close-order", order="0" * 32)


def test_a_bundle_after_a_rotation_verifies_with_the_old_key_and_the_new_one(
    federation: Federation, officer: Party
) -> None:
    clock = by_hand(federation)
    order = officer.command("order", subject=SUBJECT)["order"]
    clinic, hospital, lab = federation.clients.values()
    clinic.answer_order(order, clinic.retained[:1])
    clock.now += 5
    federation.operator.command("rotate-key")
    clock.now += 5
    hospital.answer_order(order, hospital.retained[:1])
    clock.now += 5
    federation.operator.command("rotate-key")
    lab.answer_order(order)
    data, bundle = evidence(federation, officer, order)
    assert Bundle.read(read_bundle(data), federation.server_key.public) == bundle


def test_a_bundle_names_the_last_audit(federation: Federation, officer: Party) -> None:
    order = officer.command("order", subject=SUBJECT)["order"]
    for client in federation.clients.values():
        client.answer_order(order, client.retained[:1])
    officer.command("audit")
    for client in federation.clients.values():
        client.answer_audits()
    federation.finish_audits()
    _, bundle = evidence(federation, officer, order)
    assert [one.entry["result"] for one in bundle.found("audited")] == ["equal"]


def test_a_closed_orders_subject_cannot_be_picked_out_of_candidates(
    federation: Federation, officer: Party
) -> None:
    """Not even with the officer's key: the digest of the command covers a nonce that the server
    does not keep.
    """
    order = officer.command("order", subject="alice")["order"]
    answers = federation.service.state.storage.answers
    kept = [answers.get(officer.name, officer.sequence)]
    for client in federation.clients.values():
        client.answer_order(order)
    officer.command("close-order", order=order)
    kept.append(answers.get(officer.name, officer.sequence))
    for record in kept:
        assert record is not None
        result = Envelope.from_bytes(record.answer, "result").unverified()
        assert result["result"]["nonce"] == ""


@pytest.mark.parametrize(("fewest", "more"), [(0, set()), (8, {"filed"})])
def test_clients_learn_when_an_order_was_filed_where_small_changes_wait(
    tmp_path: Path, fewest: int, more: set[str]
) -> None:
    """Elsewhere they may be of a version that takes no other keys than it knows."""
    spec = replace(SPEC, messages=("gram",), fewest_samples=fewest)
    with Federation(tmp_path / "server", spec, clock=Clock()) as federation:
        clinic = federation.enrol("clinic")
        federation.operator.command("order", subject=SUBJECT, days=2)
        federation.clock.now += DAY
        (waiting,) = clinic.sync()["orders"]
    assert set(waiting) == {"deadline", "order", "subject"} | more
    assert waiting.get("filed") in (None, time_text(NOW))
