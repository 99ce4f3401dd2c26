"""Caution: what a client demands of a round of secure aggregation before it deals shares, before it reveals any, and of receipts.

Law: the server is believed for who drops out and for nothing else. Keys come from the log or from pins; an audit or a rebuild
must be of all clients that the log shows; and two sums that this client helps to unmask differ by nobody, or by at least as many
clients as the rules ask for in a round.
"""

from __future__ import annotations

from expunge import canonical
from expunge.client.peers import Peers, read_pins, trusted
from expunge.client.standing import checkpoint_text
from expunge.client.store import ClientStore
from expunge.client.trust import Trust
from expunge.errors import EvidenceError, ProtocolError
from expunge.evidence import Checkpoint, Receipt
from expunge.evidence.receipt import member_of
from expunge.privacy.aggregation import Participant
from expunge.protocol.carrier import Carrier
from expunge.signing import Envelope, PublicKey

_REVEALED_KEPT = 16


class Unsafe(EvidenceError):  # noqa: N818 - perhaps nobody's mistake
    """What the server asks for would show too much: this client keeps out of the round, and says why."""


class Caution:
    """The demands of one client."""

    def __init__(self, store: ClientStore, carrier: Carrier, trust: Trust) -> None:
        self._store = store
        self._carrier = carrier
        self._trust = trust

    @property
    def _fewest(self) -> int:
        rules = self._store.spec.aggregation
        if rules is None:
            raise ProtocolError("this federation does not use secure aggregation")
        return rules.fewest

    def keys(self, participant: Participant, roster: bytes) -> dict[str, PublicKey]:
        """The keys that the roster is held against, read from the log as far as it goes now."""
        names = participant.names_in(roster)
        peers = self._peers()
        if not names <= set(peers.keys):
            self._follow_log()
            peers = self._peers()
        if participant.opening.purpose != "change" and names != peers.active:
            self._follow_log()
            peers = self._peers()
            if names != peers.active:
                others = ", ".join(sorted(names ^ peers.active)[:5])
                raise Unsafe(
                    f"{a(participant.opening.purpose)} must be of all clients that the log shows, and this round differs by "
                    f"{others}: the sum would show those that are missing, so this client keeps out of it"
                )
        return trusted(peers, read_pins(self._store.recall("pins")))

    def _peers(self) -> Peers:
        size, root = self._store.checkpoint
        known = Peers.from_text(self._store.recall("peers"))
        peers = known.read_on(self._carrier.entries, size, root)
        if peers != known:
            self._store.remember({"peers": peers.to_text()})
        return peers

    def _follow_log(self) -> None:
        """Go on to the newest checkpoint."""
        content = Envelope.from_bytes(self._trust.checkpoint(), "checkpoint").unverified()
        newest = self._trust.follow(Checkpoint.from_json(content))
        self._store.remember({"checkpoint": checkpoint_text(*newest)})

    def require_all(self, participant: Participant) -> None:
        """The sum of an audit or a rebuild must lack nobody: it would show who is missing, as what the ledger has more."""
        if participant.opening.purpose != "change":
            missing = self._peers().active - {name for name, _ in participant.included or ()}
            if missing:
                raise Unsafe(f"{', '.join(sorted(missing)[:5])} dropped out of a round that needs all clients")

    def require_apart(self, participant: Participant) -> None:
        """Two sums that this client has helped to unmask must differ by nobody, or by at least as many as a round needs.

        Whoever the log shows to be gone is not counted: as with a rebuild, nobody else's part could hide what a client that was
        forgotten had sent, and others could never go on without it.
        """
        included = sorted([name, sequence] for name, sequence in participant.included or ())
        text = self._store.recall("revealed")
        earlier = canonical.decode(text.encode("ascii")) if text else []
        if included in earlier:
            return  # the very same sum once more, of which nothing new can be learnt
        for before in earlier:
            names = {str(one[0]) for one in {tuple(one) for one in before} ^ {tuple(one) for one in included}}
            if names:
                names -= self._gone()
            if 0 < len(names) < self._fewest:
                raise Unsafe(
                    "a round was aborted after its sum may have been unmasked, and this one would differ from it by "
                    f"{', '.join(sorted(names))} only, whose changes the two sums would show: nothing is revealed. Join again "
                    "when the same clients do, or more others; one that stays away for ever must be forgotten by the operator"
                )
        if participant.opening.purpose == "change":
            kept = [*earlier, included][-_REVEALED_KEPT:]
            self._store.remember({"revealed": canonical.encode(kept).decode("ascii")})

    def _gone(self) -> frozenset[str]:
        self._follow_log()
        return self._peers().gone

    def receipt(self, participant: Participant, data: bytes) -> Receipt:
        """The receipt of a round, if it is the server's, for this client's part in it, and lists those whose sum was unmasked."""
        envelope = Envelope.from_bytes(data, "receipt")
        self._trust.meet(envelope)
        receipt = Receipt.read(envelope, self._trust.chain)
        self._trust.require_ours(receipt.federation)
        entry = receipt.logged.entry
        ours = (self._store.name, participant.sequence)
        if not receipt.is_of_round or (receipt.client, receipt.sequence) != ours:
            raise EvidenceError("the receipt is not for the round that this client took part in")
        joined = member_of(entry, receipt.client)["request"]
        if (entry["aggregation"], joined) != (participant.opening.round, participant.join_digest):
            raise EvidenceError("the receipt is for another round than the one that this client took part in")
        if participant.included is not None:
            told = [(member["client"], member["sequence"]) for member in entry["clients"]]
            if sorted(told) != sorted(participant.included):
                raise EvidenceError("the receipt lists other clients than those whose masks this client helped to remove")
        return receipt


def a(purpose: str) -> str:
    """The purpose of a round with its article."""
    return "an audit" if purpose == "audit" else f"a {purpose}"
