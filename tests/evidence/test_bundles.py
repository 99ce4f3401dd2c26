"""Bundles: one HTML file that follows from its signed content, and content that follows from the
log.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from expunge.crypto import Envelope
from expunge.errors import EvidenceError, FormatError
from expunge.evidence import Bundle, read_bundle, render_bundle, verify
from support.evidence import NEW, OLD, SPEC, Story, a_head, at, changed, digest, receipt, story

Change = Callable[[dict[str, Any]], object]
BUNDLE = story().bundle()
PAGE = render_bundle(BUNDLE)


class Reader(HTMLParser):
    """What a browser would make of the page: tags with attributes, the title and the text."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.tags: list[tuple[str, tuple[tuple[str, str | None], ...]]] = []
        self.text: list[str] = []
        self.feed(data.decode("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def seen(data: bytes) -> str:
    return "".join(Reader(data).text)


def test_reading_and_rendering_are_inverse() -> None:
    assert read_bundle(PAGE) == BUNDLE
    assert render_bundle(read_bundle(PAGE)) == PAGE


PAGES: dict[str, Callable[[], Envelope]] = {
    "complete": lambda: BUNDLE,
    "open": lambda: Story(answered=1, subjects={}).bundle(),
    "overdue": lambda: Story(answered=0, erased=False).bundle(time="2027-01-01T00:00:00Z"),
    "promised": lambda: Story(erased=False).bundle(salt=None),
    "headless": lambda: story().bundle(certificate=None),
    "float64": lambda: story().bundle(
        certificate=story().certificate(bound=None, deviation="a little")
    ),
    "left": lambda: departed("left", True).bundle(),
    "forgotten": lambda: departed("forgotten", True).bundle(),
}
GOLDEN: dict[str, str] = {
    "complete": "28e5162abc99c8f1e9cf1bba9ee4170dcc359db7f91cd8dcf738a4eb1500adfa",
    "open": "04a4fd7245c152f01dbdd15a688d51ad93e120bdd5e970378524fda175218697",
    "overdue": "34b5c64b2b6f16f16b73eddd25e2f0f453c6be60f5878f1da78e9a888b69c7e3",
    "promised": "77ead85e1a0dbb8b9ceabdf3297d7e61c87ca661b33eff74504f6e8d8bdc0492",
    "headless": "0fef2a9963e661b610ba96d92088f8e515e34e841ddc48e43350d27eb7aa07b9",
    "float64": "664a6c7442650b445a8a67fb0e0c58a5d972d7e4f6d2757c662ebeedbae880ac",
    "left": "74a0a08636160ed236bf8211b6afd17b40183f19afd3458ca3148fb177c6fc43",
    "forgotten": "2124c0da0441b6233dc584792c32b24806815907e72e2c07200f8cac40c6da59",
}


@pytest.mark.parametrize("name", PAGES)
def test_template_1_never_changes(name: str) -> None:
    """Pages that were handed out must verify for ever.

    If this fails, undo the change to the page or make it template 2.
    """
    envelope = PAGES[name]()
    root, inside = envelope.unverified()["checkpoint"]["root"].encode(), envelope.to_bytes()
    page = (
        render_bundle(envelope)
        .replace(inside, b"")
        .replace(root, b"")
        .replace(SPEC.digest.encode(), b"")
    )
    assert hashlib.sha256(page).hexdigest() == GOLDEN[name]


def test_the_page_runs_nothing_and_loads_nothing() -> None:
    assert PAGE.isascii()
    tags = Reader(PAGE).tags
    scripts = [attributes for tag, attributes in tags if tag == "script"]
    assert scripts == [(("type", "application/json"), ("id", "evidence"))]
    names = {name for _, attributes in tags for name, _ in attributes}
    assert names == {
        "lang",
        "charset",
        "http-equiv",
        "content",
        "name",
        "class",
        "scope",
        "type",
        "id",
    }
    assert not {"a", "img", "link", "iframe", "form", "object", "base"} & {tag for tag, _ in tags}
    assert b"default-src 'none'" in PAGE
    assert b"url(" not in PAGE
    assert b"@import" not in PAGE
    assert b"//" not in PAGE.replace(BUNDLE.to_bytes(), b"")


def test_the_page_tells_the_story() -> None:
    text = seen(PAGE)
    for part in (
        "Evidence of erasure",
        "Complete",
        "patient 4711",
        "south: S-0815",
        "15 December 2026, 00:10:00 UTC",
        a_head().digest,
        NEW.public.id,
        "The head forgets".lower(),
        "3 samples by north",
        "Nothing of the subject was found by south",
        "expunge verify",
    ):
        assert part in text


@given(st.text(max_size=60), st.text(max_size=20))
@example("</script><b>", "<!--")
@example("<script>alert(1)</script>", "'\" onload=x")
@example("&lt;b&gt;", "&#60;")
@example("\u202egnitratsni", "\ufeff\u200b")
@example("\uffff no character", "\x00\x1b[31m")
@example("患者 — Größe 🦉", "\U0001f1e9\U0001f1ea")
def test_no_subject_can_do_harm(subject: str, other: str) -> None:
    told = Story(subject=subject, subjects={"south": other})
    page = render_bundle(told.bundle())
    assert [tag for tag in Reader(page).tags if tag[0] != "bdi"] == [
        tag for tag in Reader(PAGE).tags if tag[0] != "bdi"
    ]
    assert page.isascii()
    finding = verify(page, NEW.public)
    for _, value in finding.facts:
        assert not any(
            ord(letter) < 32 or 0xD800 <= ord(letter) < 0xE000 or letter == "\u202e"
            for letter in value
        )
        value.encode("utf-8")
    assert Bundle.read(read_bundle(page), NEW.public).order.subject == subject


def test_printable_subjects_are_shown_as_they_are() -> None:
    assert "患者 — Größe 🦉 </script><b>" in seen(
        render_bundle(Story(subject="患者 — Größe 🦉 </script><b>").bundle())
    )


def test_what_has_no_picture_is_written_out() -> None:
    assert "a\\u{202e}b\\u{ffff}\\u{0}" in seen(
        render_bundle(Story(subject="a\u202eb\uffff\0").bundle())
    )


@pytest.mark.parametrize(
    ("answered", "time", "state", "said"),
    [
        (0, at(82), "open", "Not answered yet: north and south."),
        (1, at(82), "open", "Not answered yet: south."),
        (1, "2026-12-15T00:10:00Z", "open", "Not answered yet: south."),
        (1, "2026-12-15T00:10:01Z", "overdue", "its deadline had passed"),
        (2, "2027-12-15T00:10:01Z", "complete", "None is left to answer"),
    ],
)
def test_the_state_of_an_order_follows_from_the_log_and_the_time(
    answered: int, time: str, state: str, said: str
) -> None:
    told = Story(answered=answered)
    page = render_bundle(told.bundle(time=time))
    assert Bundle.read(read_bundle(page), OLD.public).order.state == state
    assert said in seen(page)
    assert ("the order is not complete" in seen(page)) == (state != "complete")


def test_an_erasure_that_is_only_promised_is_said_to_be() -> None:
    told = Story(erased=False)
    page = render_bundle(told.bundle())
    assert "promised by 15 November 2026, 02:00:00 UTC" in seen(page)
    finding = verify(page, NEW.public)
    assert any("request 2 of north is erased yet" in sentence for sentence in finding.not_proved)
    assert not any("shredded" in sentence for sentence in finding.proved)
    assert any("shredded" in sentence for sentence in verify(PAGE, NEW.public).proved)


@pytest.mark.parametrize(("generation", "shredded"), [(1, False), (2, True), (3, True)])
def test_only_a_later_and_sufficient_shredding_counts(generation: int, shredded: bool) -> None:
    told = Story(erased=False)
    told.log.append("erased", at(75), first=min(generation, 1), generation=generation, round=2)
    bundle = Bundle.read(told.bundle(), NEW.public)
    change = bundle.change("north", 2)
    assert change is not None
    assert (bundle.shredding(change) is not None) == shredded
    early = replace(bundle, erased=tuple(replace(logged, index=0) for logged in bundle.erased))
    assert early.shredding(change) is None


def departed(kind: str, logged_answer: bool) -> Story:
    """south does not answer, but is gone with all that it had; the server may log an answer of 0 in
    its place.
    """
    told = Story(answered=1)
    if kind == "left":
        index = told.log.append("changed", at(75), **changed("south", 2, deleted=12, leave=True))
        told.places["changed south"] = index
        told.receipts.append(receipt(told.log, index, NEW, at(75)))
    else:
        told.places["changed south"] = told.log.append(
            "forgotten",
            at(75),
            client="south",
            count=12,
            ledger_before=digest("a"),
            ledger_after=digest("b"),
            head="",
        )
    if logged_answer:
        sequence = 2 if kind == "left" else 0
        told.log.append(
            "answered", at(75), order="order-1", client="south", found=0, sequence=sequence
        )
    told.log.append("completed", at(76), order="order-1")
    return told


@pytest.mark.parametrize("logged_answer", [False, True])
@pytest.mark.parametrize("kind", ["left", "forgotten"])
def test_a_client_that_is_gone_needs_no_answer_and_is_not_said_to_have_given_one(
    kind: str, logged_answer: bool
) -> None:
    page = render_bundle(departed(kind, logged_answer).bundle())
    finding = verify(page, NEW.public)
    assert ("State", "complete") in finding.facts
    assert ("Answers", "1 of 2 clients") in finding.facts
    assert f"{kind} on 15 November 2026, 01:15:00 UTC" in seen(page)
    assert any("12 samples" in sentence for sentence in finding.proved)
    assert "was found by south" not in seen(page)


def test_nobody_can_say_for_a_client_that_is_gone_what_it_found() -> None:
    told = Story(answered=1)
    told.places["changed south"] = told.log.append(
        "changed", at(75), **changed("south", 2, deleted=12, leave=True)
    )
    told.log.append("answered", at(75), order="order-1", client="south", found=1, sequence=2)
    with pytest.raises(EvidenceError, match="its request does not"):
        told.bundle_content()


def test_a_client_that_answers_as_it_leaves_has_answered() -> None:
    told = Story(answered=1)
    content = changed("south", 2, deleted=12, leave=True, orders=[{"order": "order-1", "found": 4}])
    index = told.places["changed south"] = told.log.append("changed", at(75), **content)
    told.receipts.append(receipt(told.log, index, NEW, at(75)))
    told.log.append("answered", at(75), order="order-1", client="south", found=4, sequence=2)
    finding = verify(render_bundle(told.bundle()), NEW.public)
    assert any("4 samples by south" in sentence for sentence in finding.proved)
    assert ("Found and deleted", "7 samples") in finding.facts


def test_without_a_head_there_is_no_certificate() -> None:
    page = render_bundle(story().bundle(certificate=None))
    finding = verify(page, NEW.public)
    assert any("none could be published" in sentence for sentence in finding.not_proved)
    with pytest.raises(EvidenceError, match="does not say which head is current"):
        verify(page, NEW.public, head=a_head())


def test_without_the_salt_the_log_does_not_show_about_whom() -> None:
    finding = verify(render_bundle(story().bundle(salt=None)), NEW.public)
    assert any("the log does not show about whom" in sentence for sentence in finding.proved)
    assert any("the salt of its digest" in sentence for sentence in finding.not_proved)


def test_a_certificate_in_float64_or_with_a_failed_audit_is_said_to_be() -> None:
    certificate = story().certificate(bound=None, deviation="about <1e-9>")
    page = render_bundle(story().bundle(certificate=certificate))
    assert "no: about <1e-9>" in seen(page)
    assert any(
        "not claimed to be exact" in sentence for sentence in verify(page, NEW.public).proved
    )
    audit = {
        "audit": "audit-1",
        "time": at(70),
        "result": "different",
        "index": story().places["audited"],
    }
    entries = [logged for logged in story().bundle_entries() if logged.entry["kind"] != "audited"]
    page = render_bundle(
        story().bundle(certificate=story().certificate(audit=audit), entries=entries)
    )
    assert "DIFFERENT" in seen(page)
    assert any("FOUND A DIFFERENCE" in sentence for sentence in verify(page, NEW.public).not_proved)


def test_a_file_that_is_cut_off_within_its_evidence_is_said_to_be() -> None:
    with pytest.raises(FormatError, match="was cut off"):
        read_bundle(PAGE[: PAGE.index(b"payloadType") + 5])


@pytest.mark.parametrize(
    "data",
    [
        b"<!DOCTYPE html>",
        PAGE[:-1],
        PAGE[: len(PAGE) // 2],
        PAGE + b"\n",
        PAGE.replace(b"Complete", b"complete", 1),
        PAGE.replace(b'id="evidence">', b'id="evidence">[]', 1),
        PAGE.replace(
            b"</body>", b'<script type="application/json" id="evidence">{}</script></body>'
        ),
        PAGE.replace(b"</main>", b"<p>All is well.</p></main>"),
    ],
)
def test_a_page_that_does_not_follow_from_its_envelope_is_refused(data: bytes) -> None:
    with pytest.raises((EvidenceError, FormatError)):
        read_bundle(data)
