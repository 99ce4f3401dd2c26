"""What a bundle holds must hold together: with the log, with its receipts, with its certificate,
whoever signed it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from expunge.crypto import Envelope
from expunge.errors import EvidenceError, FormatError
from expunge.evidence import Bundle, Logged
from expunge.evidence.bundle import bundle_content
from expunge.evidence.digests import subject_digest
from expunge.evidence.receipt import receipt_content
from support.evidence import (
    NEW,
    OLD,
    SALT,
    SPEC,
    Log,
    Story,
    altered,
    at,
    changed,
    digest,
    receipt,
    story,
)

Change = Callable[[dict[str, Any]], object]
BUNDLE = story().bundle()


def set_proof(content: dict[str, Any], group: str, place: int) -> None:
    proof = content[group][place]["proof"]
    proof[0] = proof[0][:-1] + ("0" if proof[0][-1] != "0" else "1")


def drop(content: dict[str, Any], kind: str) -> None:
    content["entries"] = [each for each in content["entries"] if each["entry"]["kind"] != kind]


CONTRADICTIONS: list[tuple[Change, str]] = [
    (lambda c: set_proof(c, "entries", 0), "is not in the log as claimed"),
    (lambda c: set_proof(c, "entries", -1), "is not in the log as claimed"),
    (lambda c: set_proof(c, "erased", 0), "is not in the log as claimed"),
    (lambda c: c["entries"][0].update(index=5), "is not in the log as claimed"),
    (lambda c: c["erased"][0]["entry"].update(generation=99), "is not in the log as claimed"),
    (lambda c: c["checkpoint"].update(root=digest("x")), "is not in the log as claimed"),
    (lambda c: c["checkpoint"].update(federation="f" * 32), "different federations"),
    (lambda c: c.update(server=OLD.public.id), "another server key"),
    (lambda c: c["order"].update(subject="somebody else"), "logged for another subject"),
    (lambda c: c["order"]["subjects"].update(north="N"), "logged for another subject"),
    (lambda c: c["order"].update(salt="00" * 32), "logged for another subject"),
    (lambda c: c["order"].update(filed=at(11)), "not what the log entries in it say"),
    (lambda c: c["order"].update(deadline=at(999)), "not what the log entries in it say"),
    (lambda c: c["order"].update(completed=""), "not what the log entries in it say"),
    (lambda c: c["order"].update(state="open"), "not what the log entries in it say"),
    (lambda c: c["order"]["answers"][0].update(found=4), "not what the log entries in it say"),
    (lambda c: c["order"]["answers"].pop(), "not what the log entries in it say"),
    (lambda c: c["order"]["answers"].reverse(), "not what the log entries in it say"),
    (lambda c: c["order"].update(id="order-2"), "has a log entry of order order-1"),
    (lambda c: drop(c, "ordered"), "must have the one that filed order"),
    (lambda c: drop(c, "completed"), "not what the log entries in it say"),
    (lambda c: drop(c, "answered"), "before all of its clients had answered"),
    (lambda c: drop(c, "changed"), "has no log entry of its request"),
    (lambda c: c["receipts"].pop(), "no receipt for the change"),
    (lambda c: c["receipts"].append(c["receipts"][0]), "does not prove the same entry there"),
    (
        lambda c: c["receipts"].__setitem__(0, c["receipts"][1]),
        "does not prove the same entry there",
    ),
    (lambda c: c.update(rotations=[]), "nor linked"),
    (lambda c: c.update(time=at(39)), "not in use before"),
]


@pytest.mark.parametrize(("change", "reason"), CONTRADICTIONS)
def test_a_bundle_that_contradicts_itself_is_refused_though_the_server_signed_it(
    change: Change, reason: str
) -> None:
    with pytest.raises(EvidenceError, match=reason):
        Bundle.read(altered(BUNDLE, NEW, change), NEW.public)


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.update(version=2),
        lambda c: c.update(template=2),
        lambda c: c.pop("erased"),
        lambda c: c["order"].update(state="done"),
        lambda c: c["order"].update(subject=None),
        lambda c: c["order"].update(salt="00"),
        lambda c: c["entries"].reverse(),
        lambda c: c["entries"].append(c["entries"][-1]),
        lambda c: c["entries"].extend(c.pop("erased")) or c.update(erased=[]),
        lambda c: c["erased"].extend(c["entries"][:1]),
        lambda c: c["receipts"].append({}),
        lambda c: c["receipts"].append(c["certificate"]),
        lambda c: c["rotations"].append(c["certificate"]),
        lambda c: c.update(certificate=c["receipts"][0]),
        lambda c: c.update(certificate="yes"),
    ],
)
def test_a_malformed_bundle_is_refused(change: Change) -> None:
    with pytest.raises(FormatError):
        Bundle.read(altered(BUNDLE, NEW, change), NEW.public)


def inner(name: str, change: Change, key: Any) -> Change:
    """A change inside a nested envelope, signed again by the right key."""

    def apply(content: dict[str, Any]) -> None:
        value = content[name][0] if name == "receipts" else content[name]
        envelope = altered(Envelope.from_json(value, name.removesuffix("s")), key, change)
        content[name] = (
            [envelope.to_json(), *content[name][1:]] if name == "receipts" else envelope.to_json()
        )

    return apply


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            inner("receipts", lambda c: c["log"]["proof"].reverse(), OLD),
            "does not lead to the root",
        ),
        (
            inner("receipts", lambda c: c["entry"].update(deleted=9), OLD),
            "does not lead to the root",
        ),
        (
            inner("certificate", lambda c: c["checkpoint"].update(size=3), NEW),
            "beyond its checkpoint",
        ),
        (
            inner("certificate", lambda c: c.update(audit=None), NEW),
            "not the one that the certificate names",
        ),
        (
            inner("certificate", lambda c: c["audit"].update(time=at(71)), NEW),
            "not the one that the certificate names",
        ),
        (
            inner("certificate", lambda c: c["checkpoint"].update(root=digest("x")), NEW),
            "another state of the log",
        ),
        (inner("certificate", lambda c: c.update(time=at(30)), NEW), "not in use before"),
        (inner("certificate", lambda c: c.update(count=3), OLD), "another server key|retired at"),
    ],
)
def test_nested_evidence_is_verified_in_full(change: Change, reason: str) -> None:
    with pytest.raises(EvidenceError, match=reason):
        Bundle.read(altered(BUNDLE, NEW, change), NEW.public)


def test_a_receipt_of_another_log_is_refused() -> None:
    """The receipt holds by itself, and its key is right; but the bundle's log has another entry at
    its place.
    """
    told = Story()
    elsewhere = Log()
    for data in told.log.entries[: told.places["changed north"]]:
        elsewhere.append(**Logged.of(data, 0, []).entry)
    fields = changed("north", 2, deleted=3, orders=[{"order": "order-1", "found": 3}], round=8)
    index = elsewhere.append("changed", at(20), **fields)
    told.receipts[0] = receipt(elsewhere, index, OLD, at(20))
    with pytest.raises(EvidenceError, match="does not prove the same entry there"):
        Bundle.read(told.bundle(), NEW.public)


def test_a_certificate_of_an_earlier_log_is_refused() -> None:
    told = Story()
    early = told.certificate(
        checkpoint=told.log.checkpoint(at(80), len(told.log.entries) - 1), audit=None
    )
    entries = [logged for logged in told.bundle_entries() if logged.entry["kind"] != "audited"]
    with pytest.raises(EvidenceError, match="another state of the log"):
        Bundle.read(told.bundle(certificate=early, entries=entries), NEW.public)


LOGS: list[tuple[Callable[[Log], object], str]] = [
    (
        lambda log: log.append(
            "answered", at(21), order="order-1", client="west", found=0, sequence=2
        ),
        "was not asked",
    ),
    (
        lambda log: log.append(
            "answered", at(21), order="order-1", client="north", found=0, sequence=2
        ),
        "two answers",
    ),
    (
        lambda log: log.append("completed", at(21), order="order-1"),
        "must have one log entry of kind 'completed'",
    ),
    (
        lambda log: log.append(
            "answered", at(21), order="order-7", client="north", found=0, sequence=2
        ),
        "of order order-7",
    ),
    (
        lambda log: log.append(
            "ordered", at(9), order="order-1", subject=digest("s"), deadline=at(99), clients=[]
        ),
        "must have one log entry of kind 'ordered'",
    ),
]


@pytest.mark.parametrize(("more", "reason"), LOGS)
def test_the_builder_refuses_a_log_that_tells_no_single_story(
    more: Callable[[Log], object], reason: str
) -> None:
    told = Story()
    more(told.log)
    with pytest.raises(EvidenceError, match=reason):
        told.bundle_content()


def small(
    answer: dict[str, Any], request: dict[str, Any], order: tuple[int, ...] = (0, 1, 2, 3)
) -> tuple[Log, dict[str, Any]]:
    """The smallest log (an order for one client, its request, its answer, the end), in this order,
    and its bundle's content.
    """
    log = Log()
    steps: list[tuple[str, dict[str, Any]]] = [
        (
            "ordered",
            {
                "order": "o",
                "subject": subject_digest(SALT, "s", {}),
                "deadline": at(9),
                "clients": ["north"],
            },
        ),
        ("changed", changed("north", 1, **request)),
        ("answered", {"order": "o", "client": "north", "found": 2, "sequence": 1, **answer}),
        ("completed", {"order": "o"}),
    ]
    for step in order:
        log.append(steps[step][0], at(3), **steps[step][1])
    content = bundle_content(
        server=OLD.public.id,
        time=at(4),
        order="o",
        subject="s",
        subjects={},
        salt=SALT,
        receipts=[receipt(log, order.index(1), OLD, at(3))],
        entries=[log.logged(index) for index in range(4)],
        certificate=None,
        rotations=[],
        checkpoint=log.checkpoint(at(4)),
    )
    return log, content


GOOD = {"deleted": 2, "orders": [{"order": "o", "found": 2}]}


def test_an_answer_must_be_what_the_request_says() -> None:
    for request in (GOOD, {**GOOD, "deleted": 0, "reset": True}):
        content = small({}, request)[1]
        assert (
            Bundle.read(Envelope.signed("bundle", content, OLD), OLD.public).order.state
            == "complete"
        )
    for answer, request in (
        ({"found": 1}, GOOD),
        ({}, {**GOOD, "orders": []}),
        ({}, {**GOOD, "deleted": 1}),
    ):
        with pytest.raises(EvidenceError, match="its request does not"):
            small(answer, request)
    with pytest.raises(EvidenceError, match="has no log entry of its request"):
        small({"sequence": 2}, GOOD)


def test_the_log_must_tell_the_story_in_its_order() -> None:
    with pytest.raises(EvidenceError, match="before all of its clients had answered"):
        small({}, GOOD, order=(0, 1, 3, 2))
    with pytest.raises(EvidenceError, match="stands before the order in the log"):
        small({}, GOOD, order=(1, 2, 0, 3))


def test_a_receipt_of_another_federation_is_refused_though_its_log_begins_alike() -> None:
    log, content = small({}, GOOD)
    elsewhere = replace(log.checkpoint(at(3), 2), federation="f" * 32)
    proof = log.logged(1, 2).proof
    stranger = receipt_content(
        server=OLD.public.id,
        entry=log.entries[1],
        index=1,
        proof=proof,
        checkpoint=elsewhere,
        spec=SPEC,
    )
    content["receipts"] = [Envelope.signed("receipt", stranger, OLD).to_json()]
    with pytest.raises(EvidenceError, match="a receipt of another federation"):
        Bundle.read(Envelope.signed("bundle", content, OLD), OLD.public)


def test_only_entries_that_belong_to_a_bundle_have_a_place_in_it() -> None:
    told = story()
    for name in ("rotated", "commanded"):
        with pytest.raises(FormatError, match=f"kind '{name}' has no place there"):
            Bundle.read(
                told.bundle(entries=[*told.bundle_entries(), told.log.logged(told.places[name])]),
                NEW.public,
            )


@pytest.mark.parametrize("salt", [b"", b"\0" * 31])
def test_a_salt_of_another_size_is_refused(salt: bytes) -> None:
    with pytest.raises(EvidenceError, match="must have 32 bytes"):
        story().bundle_content(salt=salt)
