"""Evidence: receipts, certificates, erasure bundles, the audit log and their offline verification.

`verify` checks a file of evidence with the server's public key. `Receipt.read`, `Certificate.read`,
`Result.read` and `Bundle.read` give the verified parts to programs. Nothing here reads files, looks
at a clock or draws random numbers.

All of it is signed by the server alone: nobody without the server's key can make a file that
verifies, and what it says is the server's word. docs/privacy.md says what holds against whom.
"""

from typing import TYPE_CHECKING

from expunge._lazy import lazy_names

if TYPE_CHECKING:
    from expunge.evidence.audit_result import Result
    from expunge.evidence.bundle import Bundle
    from expunge.evidence.certificate import Certificate
    from expunge.evidence.log import Checkpoint, Logged
    from expunge.evidence.page import read_bundle, render_bundle
    from expunge.evidence.receipt import Receipt
    from expunge.evidence.rotation import KeyChain, Rotation
    from expunge.evidence.verification import verify
    from expunge.evidence.wording import VerifiedFile

__all__ = [
    "Bundle",
    "Certificate",
    "Checkpoint",
    "KeyChain",
    "Logged",
    "Receipt",
    "Result",
    "Rotation",
    "VerifiedFile",
    "read_bundle",
    "render_bundle",
    "verify",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Bundle": "expunge.evidence.bundle",
        "Certificate": "expunge.evidence.certificate",
        "Checkpoint": "expunge.evidence.log",
        "KeyChain": "expunge.evidence.rotation",
        "Logged": "expunge.evidence.log",
        "Receipt": "expunge.evidence.receipt",
        "Result": "expunge.evidence.audit_result",
        "Rotation": "expunge.evidence.rotation",
        "VerifiedFile": "expunge.evidence.wording",
        "read_bundle": "expunge.evidence.page",
        "render_bundle": "expunge.evidence.page",
        "verify": "expunge.evidence.verification",
    },
)
