"""Bundles: all the evidence of one erasure order in one HTML file, for whoever has to be shown that it was carried out.

The file is a page for people with a signed envelope inside. The page is a pure function of the envelope, so no byte of the file
can be altered unseen. Law: `read(render(envelope)) == envelope`, and `render(read(data)) == data` for `data` that `read` takes.
"""

from __future__ import annotations

from expunge.errors import EvidenceError, FormatError
from expunge.evidence import page
from expunge.evidence.contents import Bundle
from expunge.signing import Envelope


def render(envelope: Envelope) -> bytes:
    """The file: the page of the envelope's content, with the envelope inside."""
    return page.page(Bundle.unverified(envelope), envelope.to_bytes())


def read(data: bytes) -> Envelope:
    """The envelope, if every byte of the page follows from it. Signatures and proofs are for `Bundle.read`."""
    if data.count(page.BEFORE) != 1:
        raise FormatError("this HTML file has no evidence inside: it is not a bundle, or it was altered")
    inside, closed, _ = data[data.index(page.BEFORE) + len(page.BEFORE) :].partition(page.AFTER)
    if not closed:
        raise FormatError("the evidence inside this bundle has no end: the file was cut off")
    envelope = Envelope.from_bytes(inside, "bundle")
    if render(envelope) != data:
        raise EvidenceError("the page is not the one that follows from the evidence inside it: the file was altered")
    return envelope
