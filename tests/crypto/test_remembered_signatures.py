"""What tests remember of signatures changes no answer (`tests/support/signatures.py`)."""

from __future__ import annotations

from expunge.crypto import SigningKey
from support.signatures import MADE, Made

KEY, OTHER = SigningKey(bytes(32)), SigningKey(bytes(31) + b"!")


def test_only_the_very_three_are_known() -> None:
    made, signature = Made(), KEY.sign(b"data")
    made.add(signature, KEY.public, b"data")
    assert made.has(signature, KEY.public, b"data")
    assert not made.has(signature, OTHER.public, b"data")
    assert not made.has(signature, KEY.public, b"date")
    assert not made.has(signature[:-1] + bytes([signature[-1] ^ 1]), KEY.public, b"data")
    assert not made.has(OTHER.sign(b"data"), OTHER.public, b"data")


def test_the_oldest_are_forgotten() -> None:
    made = Made(most=2)
    signatures = [KEY.sign(bytes([number])) for number in range(3)]
    for number, signature in enumerate(signatures):
        made.add(signature, KEY.public, bytes([number]))
    known = [made.has(one, KEY.public, bytes([place])) for place, one in enumerate(signatures)]
    assert known == [False, True, True]


def test_tests_of_keys_verify_every_signature() -> None:
    signature = KEY.sign(b"data")
    assert not MADE.has(signature, KEY.public, b"data")
    KEY.public.verify(signature, b"data")
