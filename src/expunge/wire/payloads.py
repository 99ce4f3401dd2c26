"""What is said in envelopes: enrolments, questions, commands, and the server's answers.

Each function makes or reads one kind of payload with exactly the keys of docs/protocol.md; who
signed it is for the caller to verify.
"""

from __future__ import annotations

from typing import Any

from expunge.crypto import Envelope, PublicKey, SigningKey, canonical
from expunge.errors import FormatError
from expunge.wire.schema import (
    AGGREGATION_DIGITS,
    DIGEST_DIGITS,
    FEDERATION_DIGITS,
    checked_flag,
    checked_hex,
    checked_integer,
    checked_name,
)

_KEYS = {
    "enrolment": frozenset({"federation", "key", "name", "spec", "token"}),
    "enrolled": frozenset(
        {"federation", "key", "log", "name", "role", "sequence", "server", "spec"}
    ),
    "question": frozenset({"actor", "federation", "nonce", "sequence", "size"}),
    "answer": frozenset(
        {
            "actor",
            "amendments",
            "audits",
            "checkpoint",
            "consistency",
            "federation",
            "head",
            "nonce",
            "orders",
            "rebuild",
            "rotations",
            "sequence",
            "spec",
            "status",
            "time",
        }
    ),
    "turn": frozenset({"actor", "aggregation", "federation", "reset", "sequence", "wait"}),
    "standing": frozenset(
        {
            "actor",
            "aggregation",
            "content",
            "federation",
            "fewest",
            "joined",
            "opening",
            "phase",
            "purpose",
            "reason",
            "receipt",
            "time",
            "to",
        }
    ),
    "command": frozenset({"action", "actor", "arguments", "federation", "nonce", "sequence"}),
    "federation": frozenset({"checkpoint", "federation", "limits", "rotations", "server", "spec"}),
}


def sign(kind: str, content: dict[str, Any], key: SigningKey) -> bytes:
    """An envelope of this kind, signed."""
    canonical.require_keys(content, f"the {kind}", _KEYS[kind])
    return Envelope.signed(kind, content, key).to_bytes()


def open_verified(kind: str, data: bytes, key: PublicKey) -> dict[str, Any]:
    """The content of an envelope of this kind that `key` signed."""
    return _checked(kind, Envelope.from_bytes(data, kind).verify(key))


def open_unverified(kind: str, data: bytes) -> tuple[Envelope, dict[str, Any]]:
    """An envelope and what it claims, before it is known whose key must have signed it."""
    envelope = Envelope.from_bytes(data, kind)
    return envelope, _checked(kind, envelope.unverified())


def _checked(kind: str, value: object) -> dict[str, Any]:
    content = canonical.require_keys(value, f"the {kind}", _KEYS[kind])
    checked_hex(content["federation"], FEDERATION_DIGITS, "the federation")
    if "actor" in content:
        checked_name(content["actor"])
    if "nonce" in content:
        checked_hex(content["nonce"], DIGEST_DIGITS, "the nonce")
    if "sequence" in content:
        checked_integer(content["sequence"], "the sequence number")
    if kind == "question":
        checked_integer(content["size"], "the size of the log")
    if kind == "turn":
        checked_flag(content["reset"], "reset")
        checked_integer(content["wait"], "the seconds to wait")
        if content["aggregation"] != "":
            checked_hex(content["aggregation"], AGGREGATION_DIGITS, "the round")
    if kind == "command" and not (
        isinstance(content["action"], str) and isinstance(content["arguments"], dict)
    ):
        raise FormatError("a command needs an action (text) and arguments (an object)")
    if kind == "enrolment":
        checked_name(content["name"])
        PublicKey.from_text(content["key"])
    return content
