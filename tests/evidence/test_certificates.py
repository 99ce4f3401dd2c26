"""Certificates: of one head, one spec, one ledger, and free of contradiction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from expunge.crypto import Envelope
from expunge.errors import EvidenceError, FormatError
from expunge.evidence import Certificate
from expunge.evidence.certificate import ASSUMPTIONS
from support.evidence import NEW, OLD, SPEC, a_head, altered, at, digest, story

Change = Callable[[dict[str, Any]], object]
CERTIFICATE = story().certificate()


def test_a_certificate_says_what_it_was_made_of() -> None:
    read = Certificate.read(CERTIFICATE, NEW.public)
    assert read.spec == SPEC
    assert read.head == a_head().digest
    assert read.bound == 2.0**-100
    assert (read.count, read.clients, read.solver, read.time) == (21, 2, "cholesky", at(81))
    assert read.audit is not None
    assert read.audit["audit"] == "audit-1"
    assert read.exact


def test_the_content_states_posterior_and_assumptions() -> None:
    content = CERTIFICATE.unverified()
    assert content["posterior"]["mean"] == content["head"]
    assert content["posterior"]["precision"] == content["ledger"]
    assert content["posterior"]["kl_to_retraining"] == "0"
    assert content["assumptions"] == list(ASSUMPTIONS)
    for word in ("subtract what they added", "SHA-256", "Ed25519", "audits", "backbone"):
        assert any(word in sentence for sentence in content["assumptions"])


def test_a_certificate_is_of_one_head() -> None:
    read = Certificate.read(CERTIFICATE, NEW.public)
    read.verify_head(a_head())
    with pytest.raises(EvidenceError, match="but this head has digest"):
        read.verify_head(a_head(extra=1))


def test_a_head_in_float64_promises_less() -> None:
    envelope = story().certificate(
        bound=None, deviation="relative deviation 3e-12 at the last audit"
    )
    read = Certificate.read(envelope, NEW.public)
    assert not read.exact
    assert read.bound is None
    assert envelope.unverified()["posterior"]["kl_to_retraining"] == ""
    assert envelope.unverified()["bound"] == ""


def test_a_certificate_without_an_audit_holds() -> None:
    assert Certificate.read(story().certificate(audit=None), NEW.public).audit is None


CONTRADICTIONS: list[tuple[Change, str]] = [
    (lambda c: c.update(server=OLD.public.id), "another server key"),
    (lambda c: c["spec"].update(head=digest("x")), "not those of the spec"),
    (lambda c: c["spec"].update(content=SPEC.with_gamma(2.0).to_dict()), "not those of the spec"),
    (lambda c: c.update(publication_bits=41), "publication bits"),
    (lambda c: c.update(head=digest("x")), "posterior is not that of"),
    (lambda c: c.update(ledger=digest("x")), "posterior is not that of"),
    (lambda c: c["posterior"].update(mean=digest("x")), "posterior is not that of"),
    (lambda c: c["posterior"].update(kl_to_retraining=""), "contradicts itself"),
    (lambda c: c.update(exact=False), "contradicts itself"),
    (lambda c: c.update(bound=""), "contradicts itself"),
    (lambda c: c.update(deviation="a little"), "contradicts itself"),
    (lambda c: c["checkpoint"].update(federation="f" * 32), "different federations"),
    (lambda c: c["audit"].update(index=c["checkpoint"]["size"]), "beyond its checkpoint"),
]


@pytest.mark.parametrize(("change", "reason"), CONTRADICTIONS)
def test_a_certificate_that_contradicts_itself_is_refused_though_the_server_signed_it(
    change: Change, reason: str
) -> None:
    with pytest.raises(EvidenceError, match=reason):
        Certificate.read(altered(CERTIFICATE, NEW, change), NEW.public)


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.update(version=0),
        lambda c: c.pop("exact"),
        lambda c: c.update(exact=1),
        lambda c: c.update(bound="0.5"),
        lambda c: c.update(bound="0x1p-90"),
        lambda c: c.update(bound="inf"),
        lambda c: c.update(bound="nan"),
        lambda c: c.update(bound=(-1.0).hex()),
        lambda c: c.update(bound="0x1p+99999"),
        lambda c: c["spec"].update(content={}),
        lambda c: c["spec"].update(content=None),
        lambda c: c["spec"]["content"].update(dim=0),
        lambda c: c["spec"]["content"].update(gamma="0x1p-1"),
        lambda c: c["spec"]["content"].update(extra=1),
        lambda c: c.update(clients=-1),
        lambda c: c["audit"].update(result="fine"),
        lambda c: c["posterior"].update(kl_to_retraining="1"),
        lambda c: c.update(assumptions="none"),
    ],
)
def test_a_malformed_certificate_is_refused(change: Change) -> None:
    with pytest.raises(FormatError):
        Certificate.read(altered(CERTIFICATE, NEW, change), NEW.public)


def test_publication_bits_are_an_integer_and_not_merely_equal_to_one() -> None:
    spec = SPEC.with_publication_bits(1)
    content = story().certificate_content(spec=spec)
    assert Certificate.read(Envelope.signed("certificate", content, NEW), NEW.public).spec == spec
    with pytest.raises(EvidenceError, match="publication bits"):
        Certificate.read(
            Envelope.signed("certificate", {**content, "publication_bits": True}, NEW), NEW.public
        )


@pytest.mark.parametrize("binds", ["sums", "samples"])
def test_a_certificate_says_what_its_digest_of_the_ledger_is_of(binds: str) -> None:
    envelope = story().certificate(binds=binds)
    assert envelope.unverified()["version"] == 2
    assert Certificate.read(envelope, NEW.public).binds == binds


def test_a_certificate_of_the_first_version_is_of_the_sums() -> None:
    content = dict(CERTIFICATE.unverified(), version=1)
    del content["binds"]
    assert (
        Certificate.read(Envelope.signed("certificate", content, NEW), NEW.public).binds == "sums"
    )


@pytest.mark.parametrize("version", [1, 2])
def test_only_the_second_version_says_it(version: int) -> None:
    content = dict(CERTIFICATE.unverified(), version=version)
    if version == 2:
        del content["binds"]
    with pytest.raises(FormatError, match="in version 2"):
        Certificate.read(Envelope.signed("certificate", content, NEW), NEW.public)
