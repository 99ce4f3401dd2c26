"""Digests for logs and receipts: salted, so that they say nothing about what was deleted once the
salt is erased.

Anybody with the current ledger could use a plain digest of an earlier one to pick the deleted
sample out of candidates. A salted digest allows that only with its salt, which is 32 random bytes
and erased when the digest is superseded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from expunge.crypto import canonical
from expunge.errors import FormatError
from expunge.evidence import merkle

if TYPE_CHECKING:
    from expunge.ridge.spec import Spec

SALT_BYTES = 32
_TAG = b"expunge\x00salted\x00\x01"
_SPEC_PARTS = ("data", "labels", "head", "policy")


def salted(kind: str, salt: bytes, digest_hex: str) -> str:
    """SHA-256 over kind ("ledger", "head", "subject", ...), salt and digest, in hexadecimal."""
    if not (kind.isascii() and kind.isidentifier()):
        raise FormatError(f"a kind of salted digest must be a plain ASCII word, got {kind!r:.80}")
    if len(salt) != SALT_BYTES:
        raise FormatError(f"a salt has {SALT_BYTES} bytes, got {len(salt)}")
    return hashlib.sha256(
        _TAG + kind.encode("ascii") + b"\x00" + salt + _raw(digest_hex)
    ).hexdigest()


def commitments_root(commitments: Sequence[bytes]) -> str:
    """The Merkle root, in hexadecimal, over commitments as leaves in this order."""
    for commitment in commitments:
        if len(commitment) != merkle.HASH_BYTES:
            raise FormatError(f"a commitment has {merkle.HASH_BYTES} bytes, got {len(commitment)}")
    return merkle.root_of([merkle.leaf_hash(bytes(commitment)) for commitment in commitments]).hex()


def subject_digest(salt: bytes, subject: str, subjects: Mapping[str, str]) -> str:
    """What the log says of the subject of an erasure order: salted, and covering the names that
    clients know it by.
    """
    content = canonical.encode({"subject": subject, "subjects": dict(subjects)})
    return salted("subject", salt, hashlib.sha256(content).hexdigest())


def spec_digests(spec: Spec) -> dict[str, str]:
    """The four digests of a spec, as they stand in receipts and certificates."""
    return {
        "data": spec.data_digest,
        "labels": spec.labels_digest,
        "head": spec.head_digest,
        "policy": spec.policy_digest,
    }


def whole_spec_digest(parts: Mapping[str, str]) -> str:
    """`Spec.digest`, from the four digests that it covers."""
    content = canonical.encode([parts[name] for name in _SPEC_PARTS])
    return hashlib.sha256(b"expunge/spec/1\n" + content).hexdigest()


def _raw(digest_hex: str) -> bytes:
    try:
        raw = bytes.fromhex(digest_hex)
    except (TypeError, ValueError) as problem:
        raise FormatError(f"a digest must be hexadecimal, got {digest_hex!r:.80}") from problem
    if raw.hex() != digest_hex or len(raw) != merkle.HASH_BYTES:
        raise FormatError(
            f"a digest must be {2 * merkle.HASH_BYTES} lower-case hexadecimal digits, got "
            f"{digest_hex!r:.80}"
        )
    return raw
