"""Pins: the keys of other clients that were compared out of band, as a setting of the store."""

from __future__ import annotations

from collections.abc import Mapping

from expunge.crypto import PublicKey, canonical
from expunge.errors import InputError
from expunge.wire import schema


def read_pins(text: str | None) -> dict[str, str]:
    """Pins as a JSON object of names and public keys; none, if there is nothing."""
    if not text:
        return {}
    pins: dict[str, str] = schema.mapping(schema.name, schema.key_text)(
        canonical.decode(text.encode("ascii"), "the pins"), "the pins"
    )
    return pins


def pins_text(pins: Mapping[str, str]) -> str:
    """The inverse of `read_pins`."""
    for name, key in pins.items():
        schema.name(name, "the name of a pin")
        try:
            PublicKey.from_text(key)
        except Exception as problem:
            raise InputError(f"the key pinned for {name} is no public key: {problem}") from problem
    return canonical.encode(dict(pins)).decode("ascii") if pins else ""
