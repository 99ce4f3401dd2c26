"""Receipts: the server's signed word that a client's request took effect, with its place in the
audit log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from expunge.crypto import Envelope, PublicKey
from expunge.errors import EvidenceError
from expunge.evidence import digests
from expunge.evidence.log import Checkpoint, Logged, check_position
from expunge.evidence.rotation import KeyChain
from expunge.wire import schema

if TYPE_CHECKING:
    from expunge.ridge.spec import Spec

_CHECK = schema.objects(
    {
        "version": schema.version,
        "federation": schema.federation,
        "server": schema.digest,
        "client": schema.name,
        "sequence": schema.count,
        "entry": lambda value, _: value,  # read as Logged
        "log": check_position,
        "checkpoint": lambda value, _: Checkpoint.from_json(value),
        "spec": schema.spec_digests,
    }
)


def receipt_content(
    *,
    server: str,
    entry: bytes,
    index: int,
    proof: Sequence[bytes],
    checkpoint: Checkpoint,
    spec: Spec,
    client: str = "",
) -> dict[str, Any]:
    """What the server signs as an envelope of kind "receipt", for the `changed` or `aggregated`
    entry with these bytes.

    An `aggregated` entry is of many clients, so `client` says for which of them the receipt is.
    """
    logged = Logged.of(entry, index, proof)
    member = logged.entry if logged.entry["kind"] == "changed" else member_of(logged.entry, client)
    return {
        "version": 1,
        "federation": checkpoint.federation,
        "server": server,
        "client": member["client"],
        "sequence": member["sequence"],
        "entry": logged.entry,
        "log": logged.position(),
        "checkpoint": checkpoint.to_json(),
        "spec": digests.spec_digests(spec),
    }


def member_of(entry: Mapping[str, Any], client: str) -> dict[str, Any]:
    """What an `aggregated` entry says of one client: its sequence number and the digest of its
    request.
    """
    found: list[dict[str, Any]] = [
        member for member in entry["clients"] if member["client"] == client
    ]
    if len(found) != 1:
        raise EvidenceError(
            f"the round of secure aggregation has {len(found)} entries of {client}, not one"
        )
    return found[0]


def request_in(entry: Mapping[str, Any], client: str, what: str) -> Mapping[str, Any]:
    """What an entry says of a client's request; `what` is for entries of requests only."""
    if entry["kind"] not in ("changed", "aggregated"):
        raise EvidenceError(
            f"a {what} is for an entry of kind 'changed' or 'aggregated', not {entry['kind']!r}"
        )
    return entry if entry["kind"] == "changed" else member_of(entry, client)


@dataclass(frozen=True)
class Receipt:
    """A receipt whose signature, inclusion proof and parts have been found to hold together.

    `logged.entry` is the `changed` entry: counts, orders answered, salted digests, and by when the
    request is erased at rest. Or it is the `aggregated` entry of a round of secure aggregation,
    whose counts are of all clients in it together.
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
        """The receipt, if it is signed by the server's key and everything in it holds; otherwise
        EvidenceError or FormatError.
        """
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

    @property
    def is_of_round(self) -> bool:
        """Whether this is the receipt of a round of secure aggregation."""
        return bool(self.logged.entry["kind"] == "aggregated")

    def _verify(self, signer: str) -> None:
        if self.server != signer:
            raise EvidenceError("the receipt names another server key than the one that signed it")
        if self.checkpoint.federation != self.federation:
            raise EvidenceError("the receipt and its checkpoint are of different federations")
        entry = self.logged.entry
        member = request_in(entry, self.client, "receipt")
        if (member["client"], member["sequence"]) != (self.client, self.sequence):
            raise EvidenceError(
                f"the receipt is for request {self.sequence} of {self.client}, but its log entry "
                f"is request {member['sequence']} of {member['client']}"
            )
        if entry["spec"] != digests.whole_spec_digest(self.spec):
            raise EvidenceError(
                "the receipt's spec digests are not those that its log entry was made under"
            )
        self.logged.verify(self.checkpoint)


def _claims(parts: dict[str, Any]) -> tuple[str, str]:
    """A receipt is signed when its checkpoint is made."""
    return parts["federation"], parts["checkpoint"]["time"]
