"""Keys that are none: points of small order, other algorithms, no keys at all."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import x25519

from expunge.crypto import Envelope, PublicKey, SigningKey
from expunge.errors import EvidenceError, FormatError

PRIME = 2**255 - 19
ORDER_8 = "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"
OTHER_8 = "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"
SMALL = [
    (0).to_bytes(32, "little"),
    (1).to_bytes(32, "little"),
    bytes.fromhex(ORDER_8),
    bytes.fromhex(OTHER_8),
]
SMALL += [(PRIME + offset).to_bytes(32, "little") for offset in (-1, 0, 1)]


@pytest.mark.parametrize("raw", SMALL, ids=lambda raw: raw.hex()[:8])
@pytest.mark.parametrize("sign", [0, 0x80])
def test_points_of_small_order_are_no_keys(raw: bytes, sign: int) -> None:
    with pytest.raises(FormatError, match="small order"):
        PublicKey(raw[:31] + bytes([raw[31] | sign]))


def test_keys_of_other_algorithms_are_refused() -> None:
    key = x25519.X25519PrivateKey.generate()
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    with pytest.raises(FormatError, match="not an Ed25519 key"):
        PublicKey.from_pem(public)
    unknown = public.replace(b"MCowBQYDK2Vu", b"MCowBQYDK2UB")  # an algorithm that nobody knows
    assert unknown != public
    with pytest.raises(FormatError, match="no PEM file"):
        PublicKey.from_pem(unknown)


def test_nothing_is_signed_by_nobody() -> None:
    with pytest.raises(FormatError, match="must be signed"):
        Envelope.signed("receipt", {})
    with pytest.raises(EvidenceError, match=r"signed by key \(none\)"):
        Envelope("receipt", b"{}", ()).verify()
    signed = Envelope.signed("receipt", {}, SigningKey(bytes(range(32))))
    with pytest.raises(EvidenceError):
        signed.verify()
