"""The case reference of an order in its bundle: shown by template 2, and nowhere else a trace of
it.
"""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from expunge.errors import EvidenceError, FormatError
from expunge.evidence import Bundle, read_bundle, render_bundle, verify
from support.evidence import NEW, SPEC, altered, story

REFERENCE = "DPO-2026/0815 <b>&"
PLAIN, REFERRED = story().bundle(), story().bundle(reference=REFERENCE)
GOLDEN = "bc0fe0e6fff36d9e282e92d86153ece6e02985b6b56d46e84f44db8c92503daa"


def test_a_bundle_with_a_reference_is_template_2_and_one_without_is_as_it_always_was() -> None:
    content = REFERRED.unverified()
    assert (content["template"], content["order"]["reference"]) == (2, REFERENCE)
    assert Bundle.read(REFERRED, NEW.public).order.reference == REFERENCE
    content = PLAIN.unverified()
    assert content["template"] == 1
    assert "reference" not in content["order"]
    assert Bundle.read(PLAIN, NEW.public).order.reference == ""


def test_the_page_shows_it_harmlessly_and_can_be_read_back() -> None:
    page = render_bundle(REFERRED)
    row = (
        b'<tr><th scope="row">Reference</th><td><bdi>DPO-2026/0815 &lt;b&gt;&amp;</bdi></td></tr>\n'
    )
    assert page.count(row) == 1
    assert page.replace(row, b"").replace(REFERRED.to_bytes(), b"") == render_bundle(PLAIN).replace(
        PLAIN.to_bytes(), b""
    )
    assert read_bundle(page) == REFERRED
    assert dict(verify(page, NEW.public).facts)["Reference"] == REFERENCE
    assert "Reference" not in dict(verify(render_bundle(PLAIN), NEW.public).facts)
    with pytest.raises(EvidenceError, match="altered"):
        verify(page.replace(b"DPO-2026", b"DPO-2027"), NEW.public)


def test_template_2_never_changes() -> None:
    """Pages that were handed out must verify for ever.

    If this fails, undo the change to the page or make another template.
    """
    root = REFERRED.unverified()["checkpoint"]["root"].encode()
    page = render_bundle(REFERRED)
    for varying in (REFERRED.to_bytes(), root, SPEC.digest.encode()):
        page = page.replace(varying, b"")
    assert hashlib.sha256(page).hexdigest() == GOLDEN


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.update(template=1),
        lambda c: c.update(template=3),
        lambda c: c.update(template=4),
        lambda c: c.update(template=5),
        lambda c: c.update(template=True),
        lambda c: c["order"].pop("reference"),
        lambda c: c["order"].update(reference=""),
        lambda c: c["order"].update(reference=7),
        lambda c: c["order"].update(reference="x" * 1001),
    ],
)
def test_template_and_reference_belong_together(change: Any) -> None:
    with pytest.raises(FormatError):
        Bundle.read(altered(REFERRED, NEW, change), NEW.public)
