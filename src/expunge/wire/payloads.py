"""The payloads of envelopes: enrolments, questions, commands, and the server's answers.

Each function makes or reads one kind of payload with exactly the keys of docs/protocol.md; the
caller verifies who signed it.
"""

from __future__ import annotations

from typing import Any, Literal

from expunge import kinds
from expunge.crypto import Envelope, PublicKey, SigningKey, canonical
from expunge.wire import schema

Kind = Literal[
    "enrolment",
    "enrolled",
    "question",
    "answer",
    "turn",
    "standing",
    "command",
    "federation",
]

ORDERS_AT_ONCE = 100  # in an answer; if it has so many, there may be more after the last of them
ORDER_DAYS = 30  # from the filing of an order to its deadline, unless it says otherwise

_SCHEMAS: dict[Kind, dict[str, schema.Check]] = {
    "enrolment": {
        "federation": schema.federation,
        "key": schema.key_text,
        "name": schema.name,
        "spec": schema.anything,
        "token": schema.anything,
    },
    "enrolled": {
        "federation": schema.federation,
        "key": schema.anything,
        "log": schema.anything,
        "name": schema.anything,
        "role": schema.anything,
        "sequence": schema.count,
        "server": schema.anything,
        "spec": schema.anything,
    },
    "question": {
        "actor": schema.name,
        "federation": schema.federation,
        "nonce": schema.nonce,
        "sequence": schema.count,
        "size": schema.count,
    },
    "answer": {
        "actor": schema.name,
        "amendments": schema.lists(schema.envelope_json),
        "audits": schema.lists(schema.objects({"audit": schema.identifier, "salt": schema.digest})),
        "checkpoint": schema.anything,
        "consistency": schema.lists(schema.digest),
        "federation": schema.federation,
        "head": schema.anything,
        "nonce": schema.nonce,
        "orders": schema.lists(
            schema.objects(
                {"deadline": schema.time, "order": schema.identifier, "subject": schema.text},
                optional={"filed": schema.time},  # where the spec has `fewest_samples`
            )
        ),
        "rebuild": schema.boolean,
        "rotations": schema.lists(schema.envelope_json),
        "sequence": schema.count,
        "spec": schema.anything,
        "status": schema.one_of(*kinds.CLIENT_STATUSES),
        "time": schema.time,
    },
    "turn": {
        "actor": schema.name,
        "aggregation": schema.or_empty(schema.drawn_id),
        "federation": schema.federation,
        "reset": schema.boolean,
        "sequence": schema.count,
        "wait": schema.count,
    },
    "standing": {
        "actor": schema.name,
        "aggregation": schema.or_empty(schema.drawn_id),
        "content": schema.string,
        "federation": schema.federation,
        "fewest": schema.count,
        "joined": schema.count,
        "opening": schema.anything,
        "phase": schema.one_of(*kinds.ANSWERED_PHASES),
        "purpose": schema.or_empty(schema.one_of(*kinds.PURPOSES)),
        "reason": schema.string,
        "receipt": schema.anything,
        "time": schema.time,
        "to": schema.digest,
    },
    "command": {
        "action": schema.text,
        "actor": schema.name,
        "arguments": schema.mapping(schema.anything, schema.anything),
        "federation": schema.federation,
        "nonce": schema.nonce,
        "sequence": schema.count,
    },
    "federation": {
        "checkpoint": schema.anything,
        "federation": schema.federation,
        "limits": schema.anything,
        "rotations": schema.anything,
        "server": schema.anything,
        "spec": schema.anything,
    },
}
_OPTIONAL: dict[Kind, dict[str, schema.Check]] = {
    "question": {"after": schema.identifier},  # the order that the ones asked for come after
}
_CHECKS = {
    kind: schema.objects(fields, optional=_OPTIONAL.get(kind)) for kind, fields in _SCHEMAS.items()
}
_KEYS = {kind: frozenset(fields) for kind, fields in _SCHEMAS.items()}


def sign(kind: Kind, content: dict[str, Any], key: SigningKey) -> bytes:
    """An envelope of this kind, signed."""
    optional = _OPTIONAL.get(kind, {}).keys() & content
    canonical.require_keys(content, f"the {kind}", _KEYS[kind] | optional)
    return Envelope.signed(kind, content, key).to_bytes()


def open_verified(kind: Kind, data: bytes, key: PublicKey) -> dict[str, Any]:
    """The content of an envelope of this kind that `key` signed."""
    return _checked(kind, Envelope.from_bytes(data, kind).verify(key))


def open_unverified(kind: Kind, data: bytes) -> tuple[Envelope, dict[str, Any]]:
    """An envelope and what it claims, before it is known whose key must have signed it."""
    envelope = Envelope.from_bytes(data, kind)
    return envelope, _checked(kind, envelope.unverified())


def _checked(kind: Kind, value: object) -> dict[str, Any]:
    return _CHECKS[kind](value, f"the {kind}")
