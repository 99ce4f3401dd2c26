"""What a client believes of its server: what the pinned key, or a key that rotations link to it, has signed; one log; no more.

Law: nothing is written to the store by these checks but rotations, which prove themselves. A check that fails raises
EvidenceError and leaves the client where it stood.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from expunge import canonical
from expunge.client.store import ClientStore
from expunge.errors import CarrierError, EvidenceError, RefusedError, TruncatedError
from expunge.evidence import Checkpoint, KeyChain, Receipt, commitments_root, published, verify_consistency
from expunge.evidence.certificate import Certificate
from expunge.head import Head
from expunge.protocol import speech
from expunge.protocol.carrier import Carrier
from expunge.protocol.request import Request
from expunge.signing import Envelope


class Trust:
    """The checks of one client against one server."""

    def __init__(self, store: ClientStore, carrier: Carrier) -> None:
        self._store = store
        self._carrier = carrier

    # -- keys -----------------------------------------------------------------------------------------------------------

    @property
    def chain(self) -> KeyChain:
        """The pinned key, and the keys that known rotations link to it."""
        return KeyChain(self._store.server, self._known())

    def _known(self) -> list[Envelope]:
        return [Envelope.from_bytes(data, "rotation") for data in self._store.documents("rotation").values()]

    def learn(self, rotations: Sequence[Envelope]) -> None:
        """Take in the rotations that the server shows, if they are one line through the pinned key, and none is kept back."""
        known = self._known()
        chain = KeyChain(self._store.server, rotations)
        chain.require_federation(self._store.federation, "server")
        if any(envelope not in rotations for envelope in known):
            raise EvidenceError(
                "the server no longer shows a rotation of its key that this client has seen: this is not that server"
            )
        fresh = [envelope.to_bytes() for envelope in rotations if envelope not in known]
        if fresh:
            self._store.keep("rotation", *fresh)

    def meet(self, envelope: Envelope) -> None:
        """If the server has changed its key since, learn how."""
        signer = envelope.signatures[0][0]
        known = {self._store.server.id, *(key.id for step in self.chain.rotations for key in (step.old, step.new))}
        if signer not in known:
            self.federation()

    def current(self, envelope: Envelope) -> None:
        """Raise EvidenceError unless the server's newest key, as far as it is known, signed this."""
        chain = self.chain
        envelope.verify(chain.rotations[-1].new if chain.rotations else chain.pinned)

    def federation(self) -> dict[str, Any]:
        """What the server says of the federation: spec, limits, rotations."""
        envelope, content = speech.overheard("federation", self._carrier.federation())
        self.learn([Envelope.from_json(value, "rotation") for value in content["rotations"]])
        self.chain.verify(envelope, lambda said: (said["federation"], said["checkpoint"]["time"]))
        self.require_ours(content["federation"])
        return content

    def require_ours(self, federation: str) -> None:
        """Refuse what is of another federation."""
        if federation != self._store.federation:
            raise EvidenceError(f"this is of federation {federation}, not of {self._store.federation}: it is another server")

    # -- the log --------------------------------------------------------------------------------------------------------

    def follow(self, checkpoint: Checkpoint, proof: Sequence[bytes] | None = None) -> tuple[int, bytes]:
        """The newer of this checkpoint and the last one seen, if one log goes on from the other; a missing proof is asked for."""
        self.require_ours(checkpoint.federation)
        size, root = self._store.checkpoint
        if not size:
            return checkpoint.size, checkpoint.root
        old, new = sorted([(size, root), (checkpoint.size, checkpoint.root)])
        if proof is None:
            proof = self._consistency(old[0], new[0])
        verify_consistency(*old, *new, proof)
        return new

    def _consistency(self, first: int, second: int) -> list[bytes]:
        if first == second:
            return []
        try:
            return self._carrier.consistency(first, second)
        except RefusedError as refusal:
            raise EvidenceError(f"the server cannot show that its log goes on from the one that was seen: {refusal}") from refusal

    def checkpoint(self) -> bytes:
        """The log as the server says it is now: an envelope that says nothing else, and is evidence by itself."""
        envelope = Envelope.from_bytes(self._carrier.checkpoint(), "checkpoint")
        self.meet(envelope)
        content = self.chain.verify(envelope, lambda said: (said["federation"], said["time"]))
        self.require_ours(Checkpoint.from_json(content).federation)
        return envelope.to_bytes()

    # -- documents ------------------------------------------------------------------------------------------------------

    def receipt(self, data: bytes, asked: Request) -> Receipt:
        """The receipt, if it is the server's, for exactly this request, and in the log."""
        envelope = Envelope.from_bytes(data, "receipt")
        self.meet(envelope)
        receipt = Receipt.read(envelope, self.chain)
        self.require_ours(receipt.federation)
        header, entry = asked.header, receipt.logged.entry
        expected = {
            "client": header.client,
            "sequence": header.sequence,
            "request": asked.digest,
            "message": header.message,
            "added": header.added,
            "deleted": header.deleted,
            "added_commitments": commitments_root(asked.added),
            "deleted_commitments": commitments_root(asked.deleted),
            "leave": header.leave,
            "reset": header.reset,
            "orders": [{"found": answer.found, "order": answer.order} for answer in header.orders],
            "audits": [answer.audit for answer in header.audits],
        }
        wrong = [name for name, value in expected.items() if entry[name] != value]
        if wrong:
            raise EvidenceError(f"the receipt is not for the request that was made: {', '.join(wrong)} differ")
        return receipt

    def head(self, data: bytes, after: int) -> tuple[Head, Certificate]:
        """Head and certificate, if they are the server's, belong together, and know of the log's entry number `after`.

        CarrierError if they were cut short on the way.
        """
        try:
            envelope, _ = published.split(data)
            self.meet(envelope)
            head, certificate = published.read(data, self.chain)
        except TruncatedError as problem:
            raise CarrierError(str(problem)) from problem
        self.require_ours(certificate.federation)
        if certificate.checkpoint.size <= after:
            raise EvidenceError(
                f"the head is of a log of {certificate.checkpoint.size} entries, and older than this client's last request, "
                f"which is entry {after}: the server holds back the head that follows it"
            )
        return head, certificate

    def amendments(self, values: Sequence[object]) -> list[tuple[bytes, dict[str, Any]]]:
        """The amendments of the spec, each signed by the server: bytes and content, in their order."""
        found = []
        for value in values:
            envelope = Envelope.from_json(value, "amendment")
            content = self.chain.verify(envelope, _claims)
            self.require_ours(content["federation"])
            found.append((envelope.to_bytes(), content))
        return found


def _claims(content: object) -> tuple[str, str]:
    keys = frozenset({"command", "federation", "index", "spec", "spec_before", "time"})
    parts = canonical.require_keys(content, "an amendment", keys)
    return parts["federation"], parts["time"]
