"""Receipts and results: what they say must hold together, whoever signed them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from expunge.crypto import Envelope
from expunge.errors import EvidenceError, FormatError
from expunge.evidence import KeyChain, Receipt, Result
from expunge.evidence.digests import spec_digests
from expunge.evidence.receipt import receipt_content
from support.evidence import (
    FEDERATION,
    NEW,
    OLD,
    OTHER,
    SPEC,
    Log,
    Story,
    altered,
    at,
    changed,
    digest,
    question,
    receipt,
    story,
)

Change = Callable[[dict[str, Any]], object]
BEFORE, AFTER = story().receipts  # signed by the old key, and by the new one
RESULT = story().result()


def test_a_receipt_says_what_the_entry_says() -> None:
    read = Receipt.read(BEFORE, OLD.public)
    assert (read.federation, read.client, read.sequence) == (FEDERATION, "north", 2)
    assert read.logged.entry["deleted"] == 3
    assert read.checkpoint.size == read.logged.index + 1
    assert read.spec == spec_digests(SPEC)
    assert read.server == OLD.public.id


@pytest.mark.parametrize("pinned", [OLD.public, NEW.public])
def test_receipts_from_before_and_after_a_rotation_hold_under_either_key(pinned: Any) -> None:
    chain = KeyChain(pinned, [story().rotation()])
    assert Receipt.read(BEFORE, chain).client == "north"
    assert Receipt.read(AFTER, chain).client == "south"


def test_without_the_rotation_only_its_own_key_holds() -> None:
    for envelope, wrong in ((BEFORE, NEW), (AFTER, OLD), (BEFORE, OTHER)):
        with pytest.raises(EvidenceError, match="nor linked"):
            Receipt.read(envelope, wrong.public)


def test_a_receipt_that_a_retired_key_signed_later_is_refused() -> None:
    told = story()
    index = told.places["changed south"]
    for key, time, reason in ((OLD, at(50), "retired at"), (NEW, at(39), "not in use before")):
        with pytest.raises(EvidenceError, match=reason):
            Receipt.read(
                receipt(told.log, index, key, time), KeyChain(OLD.public, [told.rotation()])
            )


def flip(text: str) -> str:
    return text[:-1] + ("0" if text[-1] != "0" else "1")


CONTRADICTIONS: list[tuple[Change, str]] = [
    (lambda c: c.update(client="south"), "but its log entry is request 2 of north"),
    (lambda c: c.update(sequence=3), "but its log entry is request 2 of north"),
    (lambda c: c.update(server=NEW.public.id), "another server key"),
    (lambda c: c.update(federation="f" * 32), "different federations"),
    (lambda c: c["checkpoint"].update(federation="f" * 32), "different federations"),
    (
        lambda c: c["checkpoint"].update(root=flip(c["checkpoint"]["root"])),
        "does not lead to the root",
    ),
    (
        lambda c: c["checkpoint"].update(size=c["checkpoint"]["size"] + 1),
        "is not in the log as claimed",
    ),
    (lambda c: c["checkpoint"].update(size=c["log"]["index"]), "cannot be in a log of"),
    (lambda c: c["log"].update(index=c["log"]["index"] - 1), "is not in the log as claimed"),
    (lambda c: c["log"].update(index=c["log"]["index"] + 1), "cannot be in a log of"),
    (lambda c: c["log"]["proof"].pop(), "must have 3 hashes"),
    (lambda c: c["log"]["proof"].append(c["log"]["proof"][0]), "must have 3 hashes"),
    (
        lambda c: c["log"]["proof"].__setitem__(1, flip(c["log"]["proof"][1])),
        "does not lead to the root",
    ),
    (lambda c: c["entry"].update(deleted=4), "does not lead to the root"),
    (lambda c: c["entry"].update(time=at(21)), "does not lead to the root"),
    (lambda c: c["entry"].update(erased_by=at(900)), "does not lead to the root"),
    (lambda c: c["spec"].update(policy=digest("another")), "spec digests are not those"),
]


@pytest.mark.parametrize(("change", "reason"), CONTRADICTIONS)
def test_a_receipt_that_contradicts_itself_is_refused_though_the_server_signed_it(
    change: Change, reason: str
) -> None:
    with pytest.raises(EvidenceError, match=reason):
        Receipt.read(altered(BEFORE, OLD, change), OLD.public)


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.update(version=2),
        lambda c: c.update(version=True),
        lambda c: c.update(more=1),
        lambda c: c.pop("spec"),
        lambda c: c.update(client="No Name"),
        lambda c: c.update(sequence="2"),
        lambda c: c["entry"].update(kind="erased"),
        lambda c: c["entry"].pop("head"),
        lambda c: c["log"].update(proof="none"),
        lambda c: c["log"].update(proof=["zz" * 32]),
        lambda c: c["checkpoint"].update(time="now"),
        lambda c: c["checkpoint"].pop("root"),
        lambda c: c["spec"].update(data="x"),
        lambda c: c.update(entry=None),
    ],
)
def test_a_malformed_receipt_is_refused(change: Change) -> None:
    with pytest.raises(FormatError):
        Receipt.read(altered(BEFORE, OLD, change), OLD.public)


def test_a_receipt_is_for_a_change_only() -> None:
    def swap(content: dict[str, Any]) -> None:
        told = story()
        logged = told.log.logged(told.places["ordered"], 8)
        content.update(entry=logged.entry, log=logged.position())

    with pytest.raises(EvidenceError, match="kind 'changed' or 'aggregated', not 'ordered'"):
        Receipt.read(altered(BEFORE, OLD, swap), OLD.public)


def test_the_builder_takes_bytes_of_an_entry_only() -> None:
    log = Log()
    log.append("changed", at(1), **changed("north", 1, added=1))
    given = {
        "server": OLD.public.id,
        "index": 0,
        "proof": [],
        "checkpoint": log.checkpoint(at(1)),
        "spec": SPEC,
    }
    content = receipt_content(entry=log.entries[0], **given)
    assert (
        Receipt.read(Envelope.signed("receipt", content, OLD), OLD.public).logged.entry["added"]
        == 1
    )
    with pytest.raises(FormatError):
        receipt_content(entry=log.entries[0][:-1], **given)


def test_a_result_of_a_command_stands_in_the_log() -> None:
    read = Result.read(RESULT, OLD.public)
    assert (read.actor, read.sequence, read.action) == ("officer", 1, "order")
    assert read.logged is not None
    assert read.logged.index == story().places["commanded"]


def test_the_result_of_a_question_has_no_place_in_the_log() -> None:
    read = Result.read(question([1, None]), OLD.public)
    assert read.logged is None
    assert read.result == [1, None]


RESULT_CONTRADICTIONS: list[tuple[Change, str]] = [
    (lambda c: c.update(actor="another"), "but its log entry is for"),
    (lambda c: c.update(sequence=2), "but its log entry is for"),
    (lambda c: c.update(action="amend"), "but its log entry is for"),
    (lambda c: c.update(server=NEW.public.id), "another server key"),
    (lambda c: c["checkpoint"].update(federation="f" * 32), "different federations"),
    (lambda c: c["log"].update(index=4), "is not in the log as claimed"),
    (lambda c: c["log"]["proof"].reverse(), "does not lead to the root"),
    (lambda c: c["entry"]["summary"].update(n=3), "does not lead to the root"),
    (lambda c: c.update(log=None), "that of a question, none"),
    (lambda c: c.update(log=None, entry=None, checkpoint=None), "that of a question, none"),
    (lambda c: c.update(sequence=0), "that of a question, none"),
]


@pytest.mark.parametrize(("change", "reason"), RESULT_CONTRADICTIONS)
def test_a_result_that_contradicts_itself_is_refused(change: Change, reason: str) -> None:
    with pytest.raises(EvidenceError, match=reason):
        Result.read(altered(RESULT, OLD, change), OLD.public)


def test_a_result_is_for_a_command_only() -> None:
    def swap(content: dict[str, Any]) -> None:
        told = Story()
        logged = told.log.logged(told.places["ordered"], content["checkpoint"]["size"])
        content.update(entry=logged.entry, log=logged.position())

    with pytest.raises(EvidenceError, match="kind 'commanded', not 'ordered'"):
        Result.read(altered(RESULT, OLD, swap), OLD.public)
