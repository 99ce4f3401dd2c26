"""The contributor: a client's side of rounds of secure aggregation, turn by turn.

Laws: everything that must survive is in the store before it is said, so a client that is killed goes on where it was, or learns
how the round ended before it offers anything again. Shares are revealed once for each round, and never so that two sums which
were asked for differ by some clients, but by fewer than the rules ask for in a round. The server is believed for who drops out
and for nothing else: keys come from the log or from pins, degree and threshold from the rules.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from expunge import canonical
from expunge.aggregation import Aggregation
from expunge.client.outbox import Composition
from expunge.client.peers import Peers, read_pins, trusted
from expunge.client.standing import checkpoint_text
from expunge.client.store import ClientStore
from expunge.client.trust import Trust
from expunge.errors import EvidenceError, ProtocolError, RefusedError, SpecMismatchError
from expunge.evidence import Checkpoint, Receipt
from expunge.evidence.receipt import member_of
from expunge.exact.wide import Wide
from expunge.privacy.aggregation import Contribution, Opening, Participant
from expunge.protocol import speech
from expunge.protocol.carrier import Carrier
from expunge.signing import Envelope

_LONGEST_WAIT = 20  # seconds that a server is asked to wait before it answers
_REVEALED_KEPT = 16
_LATE = ("wrong-phase", "wrong-round", "not-allowed")  # refusals of a message that came when others had gone on
_PAUSE = 0.05  # seconds, at first, between questions to a server that does not wait


@dataclass(frozen=True)
class Waiting:
    """There is nothing to do before something changes at the server: ask again later."""

    why: str


@dataclass(frozen=True)
class Ended:
    """The round is over for this client. Its receipt, if it was included in a change; otherwise why it was not."""

    receipt: Receipt | None = None
    why: str = ""


Outcome = Waiting | Ended


@dataclass(frozen=True)
class _Standing:
    phase: str
    purpose: str
    content: bytes
    opening: Opening | None
    receipt: bytes | None
    reason: str
    joined: int
    fewest: int


class Contributor:
    """One client in rounds, one round at a time. `patience` is how many seconds it waits for others before it says so."""

    def __init__(
        self,
        store: ClientStore,
        carrier: Carrier,
        trust: Trust,
        *,
        patience: float = 0.0,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._carrier = carrier
        self._trust = trust
        self._patience = patience
        self._sleep = sleep
        self._clock = clock

    # -- rounds ---------------------------------------------------------------------------------------------------------

    def change(self, composition: Composition, vector: Callable[[], Wide]) -> Outcome:
        """Bring a composed request by a round; `Ended` without a receipt if it was not included, and may be offered anew."""
        return self._take_part("change", composition.sequence, vector, reset=composition.reset)

    def join_in(self, purpose: str, contribution: Callable[[], Contribution]) -> Outcome:
        """Take part in an audit or a rebuild, which changes nothing here."""
        return self._take_part(purpose, self._store.sequence, lambda: contribution().vector())

    def _take_part(self, purpose: str, sequence: int, vector: Callable[[], Wide], *, reset: bool = False) -> Outcome:
        participant = self._resumed(purpose, sequence)
        said = self._question("", sequence, reset=reset) if participant is None else participant.message
        if participant is not None and not said:
            said = self._question(participant.opening.round, sequence)
        begun, pause = self._clock(), _PAUSE
        while True:
            asked = self._clock()
            try:
                standing = self._turn(said)
            except RefusedError as refusal:
                if participant is None or refusal.code not in _LATE:
                    raise
                return self._late(participant, refusal)
            took = self._clock() - asked
            if participant is None:
                if standing.opening is None or standing.opening.purpose != purpose:
                    return Waiting(_under_way(standing))
                participant = self._joined(standing.opening, sequence)
                said = participant.message
                continue
            if standing.phase in ("done", "aborted"):
                return self._ended(participant, standing)
            if standing.content:
                said = self._answer(participant, standing, vector)
                continue
            left = self._patience - (self._clock() - begun)
            if left <= 0.0:
                return Waiting(_why(standing))
            if took < pause:  # this server, or its carrier, does not wait
                self._sleep(min(pause, left))
                pause = min(2.0 * pause, 1.0)
            said = self._question(participant.opening.round, sequence, wait=min(_LONGEST_WAIT, int(left)))

    def _late(self, participant: Participant, refusal: RefusedError) -> Outcome:
        """The round has gone on without this client, which stays out of it until it is over, or joins the next one."""
        if participant.phase == "joined":
            self._store.participation.drop()
        return Waiting(f"{refusal.reason}")

    def _resumed(self, purpose: str, sequence: int) -> Participant | None:
        """The round that this client is in, unless it is of another purpose or request, which is over for it then."""
        state = self._store.participation.kept()
        if state is None:
            return None
        try:
            participant = Participant.from_bytes(state, self._store.key, self._rules)
        except SpecMismatchError:  # the rules were amended in the middle of a round
            self._store.participation.drop()
            return None
        if (participant.opening.purpose, participant.sequence) == (purpose, sequence):
            return participant
        self._store.participation.drop()
        return None

    @property
    def _rules(self) -> Aggregation:
        rules = self._store.spec.aggregation
        if rules is None:
            raise ProtocolError("this federation does not use secure aggregation")
        return rules

    def _joined(self, opening: Opening, sequence: int) -> Participant:
        store = self._store
        ours = (store.federation, store.spec.data_digest, store.spec.labels_digest)
        if (opening.federation, opening.data_digest, opening.labels_digest) != ours:
            raise EvidenceError("the server opened a round of another federation or spec: sync first")
        participant = Participant.join(opening, self._rules, name=store.name, sequence=sequence, key=store.key)
        store.participation.keep(participant.to_bytes())
        return participant

    # -- answering ------------------------------------------------------------------------------------------------------

    def _answer(self, participant: Participant, standing: _Standing, vector: Callable[[], Wide]) -> bytes:
        """What is to be said in this phase; durable before it is said."""
        if standing.phase == "sharing":
            said = participant.on_roster(standing.content, self._keys(participant, standing.content))
        elif standing.phase == "masking":
            said = participant.on_deliveries(standing.content, vector())
            if participant.opening.purpose == "change":
                self._store.doubt(participant.sequence)
        elif standing.phase == "revealing":
            said = participant.on_survivors(standing.content)
            self._require_all(participant)
            self._require_apart(participant)
        else:
            raise EvidenceError(f"the server speaks of a phase that there is not: {standing.phase!r:.40}")
        self._store.participation.keep(participant.to_bytes())
        return said

    def _keys(self, participant: Participant, roster: bytes) -> dict[str, Any]:
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
                raise EvidenceError(
                    f"a round for an {participant.opening.purpose} must be of all clients that the log shows, and differs by "
                    f"{others}: the sum would show those that are missing"
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

    def _require_all(self, participant: Participant) -> None:
        """The sum of an audit or a rebuild must lack nobody: it would show who is missing, as what the ledger has more."""
        if participant.opening.purpose != "change":
            missing = self._peers().active - {name for name, _ in participant.included or ()}
            if missing:
                raise EvidenceError(f"{', '.join(sorted(missing)[:5])} dropped out of a round that needs all clients")

    def _require_apart(self, participant: Participant) -> None:
        """Two sums that this client has helped to unmask must differ by nobody, or by at least as many as a round needs."""
        included = sorted([name, sequence] for name, sequence in participant.included or ())
        text = self._store.recall("revealed")
        earlier = canonical.decode(text.encode("ascii")) if text else []
        for before in earlier:
            difference = {tuple(one) for one in before} ^ {tuple(one) for one in included}
            if 0 < len(difference) < self._rules.fewest:
                names = ", ".join(sorted({str(one[0]) for one in difference}))
                raise EvidenceError(
                    "a round was aborted after its sum may have been unmasked, and this one would differ from it by "
                    f"{names} only, whose changes the two sums would show: nothing is revealed. Join again when more clients do"
                )
        if participant.opening.purpose == "change" and included not in earlier:
            kept = [*earlier, included][-_REVEALED_KEPT:]
            self._store.remember({"revealed": canonical.encode(kept).decode("ascii")})

    def _ended(self, participant: Participant, standing: _Standing) -> Outcome:
        store = self._store
        if standing.receipt is None:
            store.participation.drop()
            return Ended(why=standing.reason or "the round went on without this client, which had dropped out")
        receipt = self._verified(participant, standing.receipt)
        newest = self._trust.follow(receipt.checkpoint)
        store.settle(receipt.sequence, standing.receipt, checkpoint=newest, entry=receipt.logged.index)
        store.remember({"revealed": ""})
        store.participation.drop()
        return Ended(receipt)

    def _verified(self, participant: Participant, data: bytes) -> Receipt:
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

    # -- turns ----------------------------------------------------------------------------------------------------------

    def _question(self, aggregation: str, sequence: int, *, reset: bool = False, wait: int = 0) -> bytes:
        store = self._store
        content = {
            "actor": store.name,
            "aggregation": aggregation,
            "federation": store.federation,
            "reset": reset,
            "sequence": sequence,
            "wait": wait,
        }
        return speech.said("turn", content, store.key)

    def _turn(self, said: bytes) -> _Standing:
        data = self._carrier.aggregate(said)
        envelope, content = speech.overheard("standing", data)
        self._trust.meet(envelope)
        self._trust.current(envelope)
        self._trust.require_ours(content["federation"])
        if content["actor"] != self._store.name or content["to"] != hashlib.sha256(said).hexdigest():
            raise EvidenceError("the server answered somebody else's turn, or another one")
        return _Standing(
            content["phase"],
            content["purpose"],
            base64.b64decode(content["content"]),
            None if content["opening"] is None else Opening.from_json(content["opening"]),
            None if content["receipt"] is None else canonical.encode(content["receipt"]),
            content["reason"],
            content["joined"],
            content["fewest"],
        )


def _under_way(standing: _Standing) -> str:
    if standing.opening is None:
        return "another round is under way: this client joins the next one"
    return f"a round for {'an audit' if standing.purpose == 'audit' else f'a {standing.purpose}'} comes first"


def _why(standing: _Standing) -> str:
    if standing.phase == "joining":
        missing = standing.fewest - standing.joined
        if missing > 0:
            clients = "one more client" if missing == 1 else f"{missing} more clients"
            return f"the round has {standing.joined} of the {standing.fewest} clients that it needs: it waits for {clients}"
        return f"the round has {standing.joined} clients, and waits a moment for others to join"
    return f"the round of {standing.joined} clients is at its phase of {standing.phase}, and waits for the others"
