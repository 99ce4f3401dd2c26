"""The secrets of one client in one round, and the keys that follow from them.

Every key is HKDF-SHA256 of a shared secret or a seed, under a text that names federation, round,
roster, use and clients: no key is ever used twice, so sealing needs no nonces, and what was made
for one round or roster is noise in another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from expunge.errors import EvidenceError, FormatError
from expunge.frame import Reader

Random = Callable[[int], bytes]

KEY_BYTES = 32
SEALED_MORE = 16  # bytes by which sealing lengthens what it seals
_NO_NONCE = bytes(12)
# The points of small order of Curve25519, as integers without the top bit: an exchange with them
# has a result that all know.
_PRIME = 2**255 - 19
_ORDER_8 = (
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
)
_SMALL_ORDER = frozenset({0, 1, *_ORDER_8, _PRIME - 1, _PRIME, _PRIME + 1})


@dataclass(frozen=True, repr=False)
class Secrets:
    """What a client draws for one round, and erases with it: two X25519 keys and two seeds."""

    cipher: bytes  # private key under which shares travel
    mask: bytes  # private key of the pairwise masks
    seed: bytes  # of the self mask
    dealing: bytes  # of the polynomials by which the two above are shared

    @classmethod
    def draw(cls, random: Random) -> Secrets:
        """Fresh secrets."""
        return cls(*(random(KEY_BYTES) for _ in range(4)))

    @classmethod
    def from_bytes(cls, data: bytes) -> Secrets:
        """The inverse of `to_bytes`."""
        reader = Reader(data, "the secrets of a round", "leave this round and wait for the next")
        secrets = cls(*reader.pieces(4, KEY_BYTES, "the keys"))
        reader.end()
        return secrets

    def to_bytes(self) -> bytes:
        """All of them. Keep secret."""
        return self.cipher + self.mask + self.seed + self.dealing


class Private:
    """A private X25519 key, ready for use."""

    def __init__(self, raw: bytes) -> None:
        self._key = X25519PrivateKey.from_private_bytes(raw)
        self.public = self._key.public_key().public_bytes_raw()

    def agreed(self, public: bytes, whose: str) -> bytes:
        """What it shares with the owner of a public key: the same from either side."""
        try:
            return self._key.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError as problem:
            raise EvidenceError(
                f"no secret can be shared with {whose}: its X25519 key is of small order"
            ) from problem


def checked_public(raw: bytes, what: str) -> bytes:
    """`raw`, if it is a public X25519 key with which an exchange stays secret."""
    if len(raw) != KEY_BYTES:
        raise FormatError(
            f"{what} must be a public X25519 key of {KEY_BYTES} bytes, got {len(raw)}"
        )
    if int.from_bytes(raw, "little") & (2**255 - 1) in _SMALL_ORDER:
        raise FormatError(
            f"{what} is a point of small order: everybody would know what is agreed with it"
        )
    return bytes(raw)


@dataclass(frozen=True)
class Context:
    """What every key and digest of a round is bound to."""

    federation: str
    round: str
    roster: str

    def _text(self, use: str, *names: str) -> bytes:
        # Names, uses and hexadecimal digits need no escapes, so this is their canonical JSON.
        listed = '","'.join((use, self.federation, self.round, self.roster, *names))
        return f'expunge\x00aggregation\x00\x02["{listed}"]'.encode("ascii")

    def key(self, secret: bytes, use: str, *names: str) -> bytes:
        """The key for one use between these clients, in this order."""
        return HKDF(
            algorithm=hashes.SHA256(), length=KEY_BYTES, salt=None, info=self._text(use, *names)
        ).derive(secret)

    def digest(self, content: bytes, use: str, *names: str) -> bytes:
        """SHA-256 that commits one client to a secret or a share."""
        return hashlib.sha256(self._text(use, *names) + content).digest()

    def self_key(self, seed: bytes, name: str) -> bytes:
        """The key of a client's self mask."""
        return self.key(seed, "self mask", name)

    def pair_key(self, private: Private, public: bytes, mine: str, other: str) -> bytes:
        """The key of the mask between two clients: the same from either side."""
        return self.key(private.agreed(public, other), "pair mask", *sorted((mine, other)))


def stream(key: bytes, count: int) -> bytes:
    """`count` bytes of AES-256-CTR from counter 0."""
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(count))


def seal(key: bytes, content: bytes, beside: bytes) -> bytes:
    """ChaCha20-Poly1305 under a key that seals nothing else; `beside` is not hidden, but cannot be
    altered either.
    """
    return ChaCha20Poly1305(key).encrypt(_NO_NONCE, content, beside)


def unseal(key: bytes, sealed: bytes, beside: bytes, whose: str) -> bytes:
    """The inverse of `seal`; EvidenceError names whose parcel does not open."""
    try:
        return ChaCha20Poly1305(key).decrypt(_NO_NONCE, sealed, beside)
    except InvalidTag as problem:
        raise EvidenceError(
            f"the parcel of {whose} does not open: it was altered, or not sealed for this client"
        ) from problem
