"""Ed25519 keys: a reference vector, their forms, and refusals."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from expunge.crypto import PublicKey, SigningKey
from expunge.errors import EvidenceError, FormatError

raws = st.binary(min_size=32, max_size=32)
KEY = SigningKey(b"k" * 32)


def test_the_first_vectors_of_rfc_8032() -> None:
    key = SigningKey(
        bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    )
    assert (
        key.public.raw.hex() == "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    )
    assert key.sign(b"").hex() == (
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"
    )
    key.public.verify(key.sign(b""), b"")


@given(raws, st.binary(max_size=40))
def test_what_a_key_signs_its_public_key_verifies(raw: bytes, data: bytes) -> None:
    key = SigningKey(raw)
    assert key.sign(data) == key.sign(data)
    key.public.verify(key.sign(data), data)
    for signature, content in (
        (key.sign(data + b"x"), data),
        (key.sign(data), data + b"x"),
        (b"\0" * 64, data),
        (b"", data),
    ):
        with pytest.raises(EvidenceError, match="the signature is not by key"):
            key.public.verify(signature, content)


@given(raws)
def test_every_form_gives_the_key_back(raw: bytes) -> None:
    key = SigningKey(raw)
    assert SigningKey.from_pem(key.pem).public == key.public
    assert SigningKey.from_pem(key.pem).sign(b"a") == key.sign(b"a")
    for again in (
        PublicKey(key.public.raw),
        PublicKey.from_text(key.public.text),
        PublicKey.from_pem(key.public.pem),
    ):
        assert again == key.public
        assert hash(again) == hash(key.public)
        assert again.id == hashlib.sha256(key.public.raw).hexdigest()


@given(raws)
def test_pem_files_are_those_of_other_programs(raw: bytes) -> None:
    key, other = SigningKey(raw), Ed25519PrivateKey.from_private_bytes(raw)
    pem, info = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    pkcs8, open_ = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    assert key.pem == other.private_bytes(pem, pkcs8, open_)
    assert key.public.pem == other.public_key().public_bytes(pem, info)
    noted = b"kept by whoever signs\n"
    for ending in (b"\n", b"\r\n", b" \n"):
        private, public = (each.replace(b"\n", ending) for each in (key.pem, key.public.pem))
        assert SigningKey.from_pem(private).public == key.public
        assert SigningKey.from_pem(noted + private).public == key.public
        assert PublicKey.from_pem(public) == PublicKey.from_pem(noted + public) == key.public


def test_different_keys_differ() -> None:
    other = SigningKey(b"o" * 32)
    assert other.public != KEY.public
    assert other.public.id != KEY.public.id
    assert KEY.public != KEY.public.raw


@pytest.mark.parametrize("size", [0, 31, 33, 64])
def test_a_key_has_32_bytes(size: int) -> None:
    with pytest.raises(FormatError, match="32 bytes"):
        PublicKey(b"\0" * size)
    with pytest.raises(FormatError, match="32 bytes"):
        SigningKey(b"\0" * size)


@pytest.mark.parametrize(
    "text",
    [
        None,
        5,
        b"AAAA",
        "",
        "AAAA",
        "?" * 44,
        KEY.public.text + "\n",
        " " + KEY.public.text,
        KEY.public.text.rstrip("="),
        KEY.public.text[:-2]
        + chr(ord(KEY.public.text[-2]) + 1)
        + "=",  # the same 32 bytes, with spare bits set
        KEY.public.raw.hex(),
    ],
)
def test_another_text_is_refused(text: object) -> None:
    with pytest.raises(FormatError):
        PublicKey.from_text(text)


@pytest.mark.parametrize("data", [b"", b"hello", KEY.public.pem[:-30], KEY.pem])
def test_what_is_no_public_pem_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError, match="no PEM file of a public key"):
        PublicKey.from_pem(data)


def test_other_kinds_of_keys_are_refused_by_name() -> None:
    other = generate_private_key(SECP256R1())
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    with pytest.raises(FormatError, match="not an Ed25519 key"):
        PublicKey.from_pem(
            other.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
        )
    with pytest.raises(FormatError, match="not an Ed25519 key"):
        SigningKey.from_pem(other.private_bytes(pem, pkcs8, serialization.NoEncryption()))


def test_what_is_no_unencrypted_private_pem_is_refused() -> None:
    secret = serialization.load_pem_private_key(KEY.pem, password=None)
    locked = secret.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    for data in (b"", b"hello", KEY.public.pem, KEY.pem[:60], locked):
        with pytest.raises(FormatError, match="no unencrypted PEM file"):
            SigningKey.from_pem(data)


def test_a_private_key_does_not_show() -> None:
    raw = bytes(range(32))
    shown = f"{SigningKey(raw)!r} {SigningKey(raw)}"
    assert raw.hex() not in shown
    assert SigningKey(raw).public.id[:16] in shown
    assert repr(raw) not in shown


@pytest.mark.parametrize(
    ("pem", "read"),
    [(KEY.pem, SigningKey.from_pem), (KEY.public.pem, PublicKey.from_pem)],
    ids=["private", "public"],
)
def test_a_flipped_bit_gives_another_key_or_an_error_of_ours(
    pem: bytes, read: Callable[[bytes], object]
) -> None:
    """OpenSSL has errors of its own for some of them."""
    refused = 0
    for bit in range(8 * len(pem)):
        damaged = bytearray(pem)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            read(bytes(damaged))
        except (FormatError, EvidenceError):
            refused += 1
    assert refused > 4 * len(pem)
