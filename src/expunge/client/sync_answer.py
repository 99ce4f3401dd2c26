"""The server's answer to a client's question, read and checked for form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from expunge.crypto import Envelope
from expunge.evidence import Checkpoint
from expunge.ridge.spec import Spec
from expunge.wire import payloads, schema

_CHECKS: dict[str, schema.Check] = {
    "status": schema.one_of("active", "must-rejoin", "gone"),
    "orders": schema.lists(
        schema.objects(
            {"deadline": schema.time, "order": schema.identifier, "subject": schema.text}
        )
    ),
    "audits": schema.lists(schema.objects({"audit": schema.identifier, "salt": schema.digest})),
    "consistency": schema.lists(schema.digest),
    "rebuild": schema.boolean,
    "rotations": schema.lists(schema.envelope_json),
    "amendments": schema.lists(schema.envelope_json),
    "time": schema.time,
}


@dataclass(frozen=True)
class Order:
    """An erasure order that waits for this client, with the name it knows the subject by."""

    order: str
    subject: str
    deadline: str


@dataclass(frozen=True)
class Answer:
    """What is new for a client, as the server says it; who signed it is for the caller to
    verify.
    """

    envelope: Envelope
    federation: str
    actor: str
    nonce: str
    sequence: int
    status: str
    spec: Spec
    amendments: tuple[object, ...]
    orders: tuple[Order, ...]
    audits: tuple[tuple[str, bytes], ...]  # id and salt
    checkpoint: Checkpoint
    consistency: tuple[bytes, ...]
    rotations: tuple[Envelope, ...]
    rebuild: bool  # whether the clients are to rebuild the ledger by secure aggregation

    @classmethod
    def read(cls, data: bytes) -> Answer:
        """The answer in an envelope."""
        envelope, content = payloads.open_unverified("answer", data)
        for name, check in _CHECKS.items():
            check(content[name], f"{name!r} of the answer")
        return cls(
            envelope,
            content["federation"],
            content["actor"],
            content["nonce"],
            content["sequence"],
            content["status"],
            Spec.from_dict(content["spec"]),
            tuple(content["amendments"]),
            tuple(
                Order(one["order"], one["subject"], one["deadline"]) for one in content["orders"]
            ),
            tuple((one["audit"], bytes.fromhex(one["salt"])) for one in content["audits"]),
            Checkpoint.from_json(content["checkpoint"]),
            tuple(bytes.fromhex(text) for text in content["consistency"]),
            tuple(Envelope.from_json(value, "rotation") for value in content["rotations"]),
            content["rebuild"],
        )


def claims(content: Any) -> tuple[str, str]:
    """Federation and time that an answer claims."""
    return content["federation"], content["time"]
