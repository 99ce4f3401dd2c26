"""Passages: the proof that a request which an aggregator receipted is in the ledger of the server
above.

An aggregator's request names its group's log, by size and root, and the server above logs that
("forwarded"). A passage therefore holds the entry of the client's request with its proof in the
group's log, the `forwarded` entry with its proof in the log above, and that log's signed
checkpoint. Checking it needs only the key of the server above.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from expunge.crypto import Envelope, canonical
from expunge.errors import EvidenceError
from expunge.evidence import wording
from expunge.evidence.log import Checkpoint, Logged
from expunge.evidence.merkle import leaf_hash, verify_inclusion
from expunge.evidence.receipt import request_in
from expunge.evidence.rotation import KeyChain
from expunge.evidence.wording import STANDS, VerifiedFile, moment, samples
from expunge.wire import schema

_CHECK = schema.objects(
    {
        "version": schema.version,
        "client": schema.name,
        "sequence": schema.count,
        "within": lambda value, _: Logged.from_json(value),
        "above": lambda value, _: Logged.from_json(value),
        "checkpoint": schema.envelope_json,
    }
)


def passage_bytes(
    client: str, sequence: int, within: Logged, above: Logged, checkpoint: Envelope
) -> bytes:
    """The file of a passage."""
    content = {
        "version": 1,
        "client": client,
        "sequence": sequence,
        "within": within.to_json(),
        "above": above.to_json(),
        "checkpoint": checkpoint.to_json(),
    }
    return canonical.encode({"passage": content}) + b"\n"


def is_passage(value: object) -> bool:
    """Whether this JSON value is a passage."""
    return isinstance(value, dict) and set(value) == {"passage"}


@dataclass(frozen=True)
class Passage:
    """A verified passage: its proofs and its signature hold."""

    client: str
    sequence: int
    within: Logged
    above: Logged
    checkpoint: Checkpoint
    signer: str

    @classmethod
    def read(cls, value: Any, chain: KeyChain) -> Passage:
        """The passage, if all of it holds under the key of the server above."""
        parts = _CHECK(value["passage"], "a passage")
        envelope = Envelope.from_json(parts["checkpoint"], "checkpoint")
        checkpoint = Checkpoint.from_json(
            chain.verify(envelope, lambda content: (content["federation"], content["time"]))
        )
        within, above = Logged.from_json(parts["within"]), Logged.from_json(parts["above"])
        above.verify(checkpoint)
        if above.entry["kind"] != "forwarded":
            raise EvidenceError(
                f"a passage needs an entry of kind 'forwarded' above, not {above.entry['kind']!r}"
            )
        verify_inclusion(
            leaf_hash(canonical.encode(within.entry)),
            within.index,
            above.entry["size"],
            within.proof,
            bytes.fromhex(above.entry["root"]),
        )
        passage = cls(
            parts["client"], parts["sequence"], within, above, checkpoint, envelope.signatures[0][0]
        )
        passage._check_request()
        return passage

    def _check_request(self) -> None:
        member = request_in(self.within.entry, self.client, "passage")
        if (member["client"], member["sequence"]) != (self.client, self.sequence):
            raise EvidenceError(f"the passage is not for request {self.sequence} of {self.client}")

    def finding(self) -> VerifiedFile:
        """What it shows."""
        entry, above = self.within.entry, self.above.entry
        together = " by all clients of its round" if entry["kind"] == "aggregated" else ""
        facts = [
            ("Client", self.client),
            ("Request", str(self.sequence)),
            ("Took effect in the group", moment(entry["time"])),
            ("Added", samples(entry["added"]) + together),
            ("Deleted", samples(entry["deleted"]) + together),
            ("Aggregator", above["client"]),
            ("Forwarded by its request", str(above["sequence"])),
            ("Took effect above", moment(above["time"])),
            ("Log entry above", f"{self.above.index} of {self.checkpoint.size}"),
            ("Federation", self.checkpoint.federation),
            ("Signed by key", self.signer),
        ]
        proved = [
            (
                f"The aggregator {above['client']} logged request {self.sequence} of {self.client} "
                f"on {moment(entry['time'])}, and forwarded the state of its group after that; the "
                f"server above confirmed it on {moment(above['time'])}."
            ),
            f"This is entry {self.above.index} of the federation's audit log. {STANDS}",
        ]
        honest = (
            f"The aggregator {above['client']} forwarded the sums that its own log speaks of: its "
            "group's audit compares them "
            "with what its clients hold, and the audit above with what was forwarded."
        )
        return VerifiedFile(
            "passage",
            f"Passage of request {self.sequence} of {self.client} through {above['client']}",
            facts,
            proved,
            [
                wording.SERVER_KEY,
                wording.CRYPTOGRAPHY,
                wording.HONEST_CLIENTS,
                honest,
                wording.SOFTWARE,
                wording.ONE_LOG,
            ],
            wording.not_proved_by_receipt(),
        )
