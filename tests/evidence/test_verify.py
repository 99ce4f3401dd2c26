"""Offline verification: what holds is told in plain words, and no altered byte, wrong key or wrong
head passes.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge.crypto import Envelope, canonical
from expunge.errors import EvidenceError, FormatError
from expunge.evidence import VerifiedFile, published_head, render_bundle, verify
from expunge.evidence.rotation import rotate
from support.evidence import (
    FEDERATION,
    NEW,
    OLD,
    OTHER,
    Log,
    a_head,
    altered,
    at,
    changed,
    files,
    question,
    receipt,
    story,
)

KINDS = [*files(), "head"]


def file(kind: str) -> tuple[bytes, object]:
    return (
        (published_head.write(story().certificate(), a_head()), NEW.public)
        if kind == "head"
        else files()[kind]
    )


@pytest.mark.parametrize("kind", KINDS)
def test_evidence_that_holds_is_told_in_plain_words(kind: str) -> None:
    data, key = file(kind)
    finding = verify(data, key)
    assert finding.kind == kind.split(" ", maxsplit=1)[0]
    assert finding.title
    assert finding.proved
    assert finding.assumptions
    assert finding.not_proved
    assert ("Federation", FEDERATION) in finding.facts
    for sentence in (*finding.proved, *finding.assumptions, *finding.not_proved):
        assert sentence.endswith(".")
        assert sentence.isprintable()
    for label, value in finding.facts:
        assert label
        assert value.isprintable()


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_any_single_bit_altered_anywhere_is_refused(kind: str, data: st.DataObject) -> None:
    content, key = file(kind)
    place, bit = data.draw(st.integers(0, len(content) - 1)), data.draw(st.integers(0, 7))
    spoilt = bytearray(content)
    spoilt[place] ^= 1 << bit
    with pytest.raises((EvidenceError, FormatError)):
        verify(bytes(spoilt), key)


@pytest.mark.parametrize("kind", KINDS)
def test_every_byte_of_small_files_matters(kind: str) -> None:
    content, key = file(kind)
    for place in range(0, len(content), max(1, len(content) // 300)):
        spoilt = bytearray(content)
        spoilt[place] ^= 1
        with pytest.raises((EvidenceError, FormatError)):
            verify(bytes(spoilt), key)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_anything_cut_off_inserted_or_appended_is_refused(kind: str, data: st.DataObject) -> None:
    content, key = file(kind)
    place = data.draw(st.integers(0, len(content) - 1))
    more = data.draw(st.binary(min_size=1, max_size=3))
    cases = [
        content[:place],
        content + more,
        content[:place] + more + content[place:],
        content[:place] + content[place + 1 :],
    ]
    holds = {content}
    if content.removesuffix(b"\n").endswith(b"}"):
        holds = {content.removesuffix(b"\n"), content.removesuffix(b"\n") + b"\n"}
    for spoilt in set(cases) - holds:
        with pytest.raises((EvidenceError, FormatError)):
            verify(spoilt, key)


@pytest.mark.parametrize("kind", KINDS)
def test_another_key_is_refused(kind: str) -> None:
    with pytest.raises(EvidenceError):
        verify(file(kind)[0], OTHER.public)


@pytest.mark.parametrize("tail", [b"\n\n", b"\r\n", b" ", b" \n", b"\0"])
def test_a_json_file_ends_with_one_newline_and_nothing_else(tail: bytes) -> None:
    data, key = files()["receipt"]
    verify(data + b"\n", key)
    with pytest.raises(FormatError):
        verify(data + tail, key)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"{}",
        b"[]",
        b"null",
        b"hello",
        b"<html>",
        b"\xff\xfe{}",
        b"expunge\0published\0",
        canonical.encode(
            {
                "payload": "",
                "payloadType": "application/vnd.expunge.receipt.v1+json",
                "signatures": [],
            }
        ),
        Envelope.signed("gossip", {}, OLD).to_bytes(),
        Envelope.signed("receipt", {}, OLD).to_bytes(),
        Envelope.signed("receipt", [], OLD).to_bytes(),
        Envelope.signed("bundle", {}, OLD).to_bytes(),
    ],
)
def test_what_is_no_evidence_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        verify(data, OLD.public)


def test_evidence_under_another_kind_is_refused() -> None:
    for kind in ("certificate", "result", "checkpoint", "rotation"):
        with pytest.raises(FormatError):
            verify(
                Envelope.signed(kind, story().receipts[0].unverified(), OLD).to_bytes(), OLD.public
            )


def sentences(finding: VerifiedFile) -> str:
    return " ".join([*finding.proved, *finding.not_proved])


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (
            None,
            "promised that the request itself is erased at rest by 15 November 2026, 02:00:00 UTC",
        ),
        (at(119), "will be erased at rest by 15 November 2026, 02:00:00 UTC"),
        (at(120), "was due to be erased at rest by 15 November 2026, 02:00:00 UTC"),
        (at(121), "was due to be erased at rest by 15 November 2026, 02:00:00 UTC"),
    ],
)
def test_a_promise_is_told_from_what_is_due(now: str | None, said: str) -> None:
    assert said in sentences(verify(*files()["receipt"], now=now))


def test_a_receipt_tells_counts_and_orders() -> None:
    told = sentences(verify(*files()["receipt"]))
    assert "request 2 of north took effect" in told
    assert "no samples added, 3 samples deleted" in told
    assert "answers erasure order order-1" in told
    assert "a backbone trained on the data does not" in told


def test_a_head_is_compared_with_what_is_certified() -> None:
    for kind in ("certificate", "bundle", "head"):
        data, key = file(kind)
        assert "weight for weight" in sentences(verify(data, key, head=a_head()))
        with pytest.raises(EvidenceError, match="but this head has digest"):
            verify(data, key, head=a_head(extra=1))


@pytest.mark.parametrize("kind", ["receipt", "result", "checkpoint", "rotation"])
def test_what_is_not_about_a_head_cannot_vouch_for_one(kind: str) -> None:
    with pytest.raises(EvidenceError, match="does not say which head is current"):
        verify(*files()[kind], head=a_head())


@pytest.mark.parametrize("kind", ["receipt", "certificate", "result", "checkpoint", "head"])
def test_a_rotation_links_the_key_at_hand_to_the_one_that_signed(kind: str) -> None:
    data, key = file(kind)
    other = OLD.public if key == NEW.public else NEW.public
    with pytest.raises(EvidenceError, match="nor linked"):
        verify(data, other)
    assert verify(data, other, rotations=[story().rotation()]) == verify(data, key)


def test_a_bundle_brings_its_rotations_with_it() -> None:
    data = files()["bundle"][0]
    assert verify(data, OLD.public) == verify(data, NEW.public, rotations=[story().rotation()])


def test_a_rotation_holds_under_either_of_its_keys_and_further_along_the_chain() -> None:
    data = files()["rotation"][0]
    further = rotate(FEDERATION, NEW, OTHER, at(90), 99)
    assert (
        verify(data, OLD.public)
        == verify(data, NEW.public)
        == verify(data, OTHER.public, rotations=[further])
    )


def test_a_question_is_told_as_a_question() -> None:
    finding = verify(question("\x1b[2J\u202e").to_bytes(), OLD.public)
    assert ("Command", "none: a question") in finding.facts
    assert ("Result", '"\\u001b[2J\\u202e"') in finding.facts


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"leave": True}, "nothing that it contributed remains"),
        ({"reset": True}, "was replaced by what this request added"),
        ({"head": ""}, ""),
    ],
)
def test_a_receipt_tells_of_leaving_and_replacing(more: dict[str, object], said: str) -> None:
    log = Log()
    index = log.append("changed", at(1), **changed("north", 1, **more))
    finding = verify(receipt(log, index, OLD, at(1)).to_bytes(), OLD.public)
    assert said in sentences(finding)
    assert (("Head (salted)", "none could be published") in finding.facts) == ("head" in more)


def test_a_certificate_tells_of_audits_that_are_missing_or_failed() -> None:
    told = story()
    audit = {"audit": "audit-1", "time": at(70), "result": "different", "index": 3}
    missing = verify(told.certificate(audit=None).to_bytes(), NEW.public)
    failed = verify(told.certificate(audit=audit).to_bytes(), NEW.public)
    good = verify(told.certificate().to_bytes(), NEW.public)
    assert "no audit yet" in " ".join(missing.not_proved)
    assert "THE LAST AUDIT FOUND A DIFFERENCE" in " ".join(failed.not_proved)
    assert "add up to the ledger" in " ".join(good.proved)
    assert "add up to the ledger" not in " ".join([*failed.proved, *missing.proved])
    assert "what each held when it answered" in " ".join(good.not_proved)


def test_a_certificate_in_float64_does_not_claim_exactness() -> None:
    finding = verify(
        story().certificate(bound=None, deviation="\x1babout 1e-9").to_bytes(), NEW.public
    )
    assert ("Exact", "no: \\u{1b}about 1e-9") in finding.facts
    assert "bit for bit" not in sentences(finding)


def test_a_nested_proof_is_checked_though_the_page_and_signature_are_right() -> None:
    def change(content: dict[str, list[dict[str, list[str]]]]) -> None:
        content["entries"][2]["proof"].reverse()

    page = render_bundle(altered(story().bundle(), NEW, change))
    with pytest.raises(EvidenceError, match="is not in the log as claimed"):
        verify(page, NEW.public)
