"""Checkpoints: what the audit log is, at one moment, in 32 bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from expunge.evidence import fields

_CHECK = fields.objects({"federation": fields.federation, "root": fields.digest, "size": fields.count, "time": fields.time})


@dataclass(frozen=True)
class Checkpoint:
    """The Merkle root of the first `size` entries of a federation's log. Law: `from_json(c.to_json()) == c`."""

    federation: str
    size: int
    root: bytes
    time: str

    def to_json(self) -> dict[str, Any]:
        """The checkpoint as a JSON value: alone the payload of an envelope of kind "checkpoint", or a part of another."""
        return {"federation": self.federation, "root": self.root.hex(), "size": self.size, "time": self.time}

    @classmethod
    def from_json(cls, value: object) -> Checkpoint:
        """The inverse of `to_json`."""
        parts = _CHECK(value, "a checkpoint")
        return cls(parts["federation"], parts["size"], bytes.fromhex(parts["root"]), parts["time"])
