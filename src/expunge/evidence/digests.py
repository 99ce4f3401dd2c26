"""Digests for logs and receipts: salted, so that they say nothing about what was deleted once the
salt is erased.

Anybody with the current ledger could use a plain digest of an earlier one to pick the deleted
sample out of candidates. A salted digest allows that only with its salt, which is 32 random bytes
and erased when the digest is superseded.

The digest of the ledger is of one of two kinds (`kinds.Bound`). That of the sums covers every
integer, and costs a pass over all of them. That of the samples (`binding`) covers an earlier digest
of the sums, and which samples are live now: by a `MultisetHash` of their commitments, which follows
a change at the price of the changed samples.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from expunge.crypto import canonical
from expunge.errors import FormatError
from expunge.evidence import merkle

if TYPE_CHECKING:
    from expunge.ridge.spec import Spec

SALT_BYTES = 32
_TAG = b"expunge\x00salted\x00\x01"
_SPEC_PARTS = ("data", "labels", "head", "policy")

_LANES = 1024
_LANE_BITS = 16
_SET_BYTES = _LANES * _LANE_BITS // 8
_SET_TAG = b"expunge\x00live\x00\x01"
_HIGH = sum(1 << (_LANE_BITS * (lane + 1) - 1) for lane in range(_LANES))  # of every lane
_LOW = (1 << (8 * _SET_BYTES)) - 1 - _HIGH


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


@dataclass(frozen=True)
class MultisetHash:
    """A hash of which samples are live: LtHash with 1,024 lanes of 16 bits.

    Each sample is expanded to 1,024 numbers by SHAKE-128 of its client and commitment; the hash is
    their sum, lane by lane, modulo 2^16. Laws: the order does not count, `without` undoes `having`,
    and the hash of all live samples is the same whatever path led there. Two sets with one hash
    would be a short vector of a lattice that nobody can find, as long as no sample counts twice;
    the commitments of a client are a set.
    """

    value: int = 0

    @classmethod
    def of(cls, held: Mapping[str, Iterable[bytes]]) -> Self:
        """The hash of all live samples, from the commitments of each client."""
        live = cls()
        for client, commitments in held.items():
            live = live.having(client, commitments)
        return live

    def having(self, client: str, commitments: Iterable[bytes]) -> Self:
        """The hash with these samples of a client added."""
        value = self.value
        for commitment in commitments:
            value = _lanes_sum(value, _expanded(client, commitment))
        return type(self)(value)

    def without(self, client: str, commitments: Iterable[bytes]) -> Self:
        """The hash with these samples of a client taken out."""
        value = self.value
        for commitment in commitments:
            value = _lanes_difference(value, _expanded(client, commitment))
        return type(self)(value)

    def to_bytes(self) -> bytes:
        """The lanes in order, each as a little-endian number of 16 bits."""
        return self.value.to_bytes(_SET_BYTES, "little")

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The inverse of `to_bytes`."""
        if len(data) != _SET_BYTES:
            raise FormatError(f"a hash of live samples has {_SET_BYTES} bytes, got {len(data)}")
        return cls(int.from_bytes(data, "little"))

    @property
    def digest(self) -> str:
        """SHA-256 of the bytes, in hexadecimal."""
        return hashlib.sha256(self.to_bytes()).hexdigest()


def _expanded(client: str, commitment: bytes) -> int:
    if len(commitment) != merkle.HASH_BYTES:
        raise FormatError(f"a commitment has {merkle.HASH_BYTES} bytes, got {len(commitment)}")
    content = _SET_TAG + client.encode() + b"\x00" + commitment
    return int.from_bytes(hashlib.shake_128(content).digest(_SET_BYTES), "little")


def _lanes_sum(one: int, other: int) -> int:
    """Lane by lane; the highest bits are added apart, so that nothing is carried over."""
    return ((one & _LOW) + (other & _LOW)) ^ ((one ^ other) & _HIGH)


def _lanes_difference(one: int, other: int) -> int:
    """The same for differences; the bit lent to each lane is taken back."""
    return ((one | _HIGH) - (other & _LOW)) ^ (~(one ^ other) & _HIGH)


def binding(salt: bytes, base: str, live: MultisetHash, count: int) -> str:
    """The salted digest of the ledger by its samples: how many are live and which, and `base`, the
    digest of the sums at an earlier place of the log.
    """
    content = {"base": _raw(base).hex(), "count": count, "live": live.digest, "version": 2}
    return salted("binding", salt, hashlib.sha256(canonical.encode(content)).hexdigest())


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
