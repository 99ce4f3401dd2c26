"""Evidence: the audit log, receipts, certificates, bundles and their offline verification.

No I/O, no clock, no randomness.
"""

from expunge.evidence.audit_result import Result, result_content
from expunge.evidence.bundle import Bundle, bundle_content
from expunge.evidence.certificate import Certificate, certificate_content
from expunge.evidence.digests import commitments_root, salted, spec_digests, subject_digest
from expunge.evidence.log import Checkpoint, Logged
from expunge.evidence.log import make_entry as make_entry
from expunge.evidence.log import read_entry as read_entry
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
from expunge.evidence.page import read_bundle as read_bundle
from expunge.evidence.page import render_bundle as render_bundle
from expunge.evidence.receipt import Receipt, receipt_content
from expunge.evidence.rotation import KeyChain, Rotation, rotate
from expunge.evidence.verify import verify
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
