"""Evidence: the audit log, receipts, certificates, bundles and their offline verification.

No I/O, no clock, no randomness.
"""

from typing import TYPE_CHECKING

from expunge._lazy import lazy_names

if TYPE_CHECKING:
    from expunge.evidence.audit_result import Result, result_content
    from expunge.evidence.bundle import Bundle, bundle_content
    from expunge.evidence.certificate import Certificate, certificate_content
    from expunge.evidence.digests import commitments_root, salted, spec_digests, subject_digest
    from expunge.evidence.log import Checkpoint, Logged, make_entry, read_entry
    from expunge.evidence.merkle import (
        Nodes,
        consistency_proof,
        inclusion_proof,
        leaf_hash,
        new_nodes,
        root,
        root_of,
        verify_consistency,
        verify_inclusion,
    )
    from expunge.evidence.page import read_bundle, render_bundle
    from expunge.evidence.receipt import Receipt, receipt_content
    from expunge.evidence.rotation import KeyChain, Rotation, rotate
    from expunge.evidence.verification import verify
    from expunge.evidence.wording import Finding

__all__ = [
    "Bundle",
    "Certificate",
    "Checkpoint",
    "Finding",
    "KeyChain",
    "Logged",
    "Nodes",
    "Receipt",
    "Result",
    "Rotation",
    "bundle_content",
    "certificate_content",
    "commitments_root",
    "consistency_proof",
    "inclusion_proof",
    "leaf_hash",
    "make_entry",
    "new_nodes",
    "read_bundle",
    "read_entry",
    "receipt_content",
    "render_bundle",
    "result_content",
    "root",
    "root_of",
    "rotate",
    "salted",
    "spec_digests",
    "subject_digest",
    "verify",
    "verify_consistency",
    "verify_inclusion",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Bundle": "expunge.evidence.bundle",
        "Certificate": "expunge.evidence.certificate",
        "Checkpoint": "expunge.evidence.log",
        "Finding": "expunge.evidence.wording",
        "KeyChain": "expunge.evidence.rotation",
        "Logged": "expunge.evidence.log",
        "Nodes": "expunge.evidence.merkle",
        "Receipt": "expunge.evidence.receipt",
        "Result": "expunge.evidence.audit_result",
        "Rotation": "expunge.evidence.rotation",
        "bundle_content": "expunge.evidence.bundle",
        "certificate_content": "expunge.evidence.certificate",
        "commitments_root": "expunge.evidence.digests",
        "consistency_proof": "expunge.evidence.merkle",
        "inclusion_proof": "expunge.evidence.merkle",
        "leaf_hash": "expunge.evidence.merkle",
        "make_entry": "expunge.evidence.log",
        "new_nodes": "expunge.evidence.merkle",
        "read_bundle": "expunge.evidence.page",
        "read_entry": "expunge.evidence.log",
        "receipt_content": "expunge.evidence.receipt",
        "render_bundle": "expunge.evidence.page",
        "result_content": "expunge.evidence.audit_result",
        "root": "expunge.evidence.merkle",
        "root_of": "expunge.evidence.merkle",
        "rotate": "expunge.evidence.rotation",
        "salted": "expunge.evidence.digests",
        "spec_digests": "expunge.evidence.digests",
        "subject_digest": "expunge.evidence.digests",
        "verify": "expunge.evidence.verification",
        "verify_consistency": "expunge.evidence.merkle",
        "verify_inclusion": "expunge.evidence.merkle",
    },
)
