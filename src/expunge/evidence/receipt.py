"""Receipts: the server's signed word that a client's request took effect, with its place in the audit log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from expunge.errors import EvidenceError
from expunge.evidence import digests, fields
from expunge.evidence.checkpoint import Checkpoint
from expunge.evidence.logged import Logged, check_position
from expunge.evidence.rotation import KeyChain
from expunge.signing import Envelope, PublicKey
from expunge.spec import Spec

_CHECK = fields.objects(
    {
        "version": fields.version,
        "federation": fields.federation,
        "server": fields.digest,
        "client": fields.name,
        "sequence": fields.count,
        "entry": lambda value, _: value,  # read as Logged
        "log": check_position,
        "checkpoint": lambda value, _: Checkpoint.from_json(value),
        "spec": fields.spec_digests,
    }
)


def receipt_content(
    *, server: str, entry: bytes, index: int, proof: Sequence[bytes], checkpoint: Checkpoint, spec: Spec
) -> dict[str, Any]:
    """What the server signs as an envelope of kind "receipt", for the `changed` entry with these bytes."""
    logged = Logged.of(entry, index, proof)
    return {
        "version": 1,
        "federation": checkpoint.federation,
        "server": server,
        "client": logged.entry["client"],
        "sequence": logged.entry["sequence"],
        "entry": logged.entry,
        "log": logged.position(),
        "checkpoint": checkpoint.to_json(),
        "spec": digests.spec_digests(spec),
    }


@dataclass(frozen=True)
class Receipt:
    """A receipt whose signature, inclusion proof and parts have been found to hold together.

    `logged.entry` is the `changed` entry: counts, orders answered, salted digests, and by when the request is erased at rest.
    """

    federation: str
    server: str
    client: str
    sequence: int
    logged: Logged
    checkpoint: Checkpoint
    spec: dict[str, str]

    @classmethod
    def read(cls, envelope: Envelope, keys: KeyChain | PublicKey) -> Receipt:
        """The receipt, if it is signed by the server's key and everything in it holds; otherwise EvidenceError or FormatError."""
        chain = keys if isinstance(keys, KeyChain) else KeyChain(keys)
        parts = chain.verify(envelope, lambda content: _claims(_CHECK(content, "a receipt")))
        receipt = cls(
            parts["federation"],
            parts["server"],
            parts["client"],
            parts["sequence"],
            Logged.at(parts["entry"], parts["log"]),
            Checkpoint.from_json(parts["checkpoint"]),
            parts["spec"],
        )
        receipt._verify(envelope.signatures[0][0])
        return receipt

    def _verify(self, signer: str) -> None:
        if self.server != signer:
            raise EvidenceError("the receipt names another server key than the one that signed it")
        if self.checkpoint.federation != self.federation:
            raise EvidenceError("the receipt and its checkpoint are of different federations")
        entry = self.logged.entry
        if entry["kind"] != "changed":
            raise EvidenceError(f"a receipt is for an entry of kind 'changed', not {entry['kind']!r}")
        if (entry["client"], entry["sequence"]) != (self.client, self.sequence):
            raise EvidenceError(
                f"the receipt is for request {self.sequence} of {self.client}, but its log entry is request "
                f"{entry['sequence']} of {entry['client']}"
            )
        if entry["spec"] != digests.whole_spec_digest(self.spec):
            raise EvidenceError("the receipt's spec digests are not those that its log entry was made under")
        self.logged.verify(self.checkpoint)


def _claims(parts: dict[str, Any]) -> tuple[str, str]:
    """A receipt is signed when its checkpoint is made."""
    return parts["federation"], parts["checkpoint"]["time"]
