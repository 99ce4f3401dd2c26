"""The contributor: a client's side of rounds of secure aggregation, turn by turn.

Laws: everything that must survive is in the store before it is said, so a client that is killed goes on where it was, or learns
how the round ended before it offers anything again. A sequence number stands for one content: what was masked under it once goes
out under it unchanged, however many rounds that takes. Shares are revealed once for each round, and never so that two sums which
were asked for differ by some clients, but by fewer than the rules ask for in a round (`Caution`).
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from expunge import canonical
from expunge.aggregation import Aggregation
from expunge.client import refusals
from expunge.client.caution import Caution, Unsafe, a
from expunge.client.outbox import Composition
from expunge.client.store import ClientStore
from expunge.client.trust import Trust
from expunge.errors import EvidenceError, ProtocolError, RefusedError
from expunge.evidence import Receipt
from expunge.exact.wide import Wide
from expunge.privacy.aggregation import Contribution, Opening, Participant
from expunge.protocol import speech
from expunge.protocol.carrier import Carrier

_LONGEST_WAIT = 20  # seconds that a server is asked to wait before it answers
_LATE = ("wrong-phase", "wrong-round", "not-allowed")  # refusals of a message that came when others had gone on
_PAUSE = 0.05  # seconds, at first, between questions to a server that does not wait
_PHASES = ("joined", "shared", "masked", "revealed")  # of a participant
_UNMASKED = ("joined", "shared")
_ASKED = {"sharing": "shared", "masking": "masked", "revealing": "revealed"}  # by a phase of the round: where an answer leads
_MASKED = "masked"  # the setting that holds the number of the request that was masked last


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
        patiently: Callable[[Callable[[], bytes]], bytes] = lambda act: act(),
        patience: float = 0.0,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._carrier = carrier
        self._trust = trust
        self._caution = Caution(store, carrier, trust)
        self._patiently = patiently
        self._patience = patience
        self._sleep = sleep
        self._clock = clock

    # -- rounds ---------------------------------------------------------------------------------------------------------

    def change(self, composition: Composition, vector: Callable[[], Wide]) -> Outcome:
        """Bring a composed request by a round; `Ended` without a receipt if it was not included, and may be offered anew."""
        if (doing := self.purpose()) not in ("", "change"):
            return Waiting(f"this client takes part in {a(doing)}, which comes first: sync")
        return self._take_part("change", composition.sequence, vector, reset=composition.reset)

    def join_in(self, purpose: str, contribution: Callable[[], Contribution]) -> Outcome:
        """Take part in an audit or a rebuild, which changes nothing here."""
        if (doing := self.purpose()) not in ("", purpose):
            return Waiting(f"this client takes part in {a(doing)}, which comes first: sync")
        return self._take_part(purpose, self._store.sequence, lambda: contribution().vector())

    def purpose(self) -> str:
        """What the round is for that this client is in, as far as it knows; empty if it is in none."""
        with self._store.participation.turn:
            participant = self._kept()
            if participant is None:
                return ""
            composed = self._store.composed()
            purpose = participant.opening.purpose
            if purpose != "change" or (composed is not None and composed.sequence == participant.sequence):
                return purpose
            if participant.sequence <= self._store.sequence or participant.phase not in _UNMASKED:
                self._store.participation.drop()  # the request has been settled, or put back
            return ""  # or it may yet be composed anew: this round has one join of this client, and takes no other

    def is_bound(self, sequence: int) -> bool:
        """Whether a request of this number was masked before: it must go out as it is, for its sum may have been unmasked."""
        return self._store.recall(_MASKED) == str(sequence)

    def unbound(self, sequence: int) -> int:
        """A number that is not below this one, under which nothing has been masked yet."""
        return max(sequence, int(self._store.recall(_MASKED) or 0) + 1)

    def _take_part(self, purpose: str, sequence: int, vector: Callable[[], Wide], *, reset: bool = False) -> Outcome:
        participant = self._resumed(purpose, sequence)
        said = self._question("", sequence, reset=reset) if participant is None else self._again(participant)
        begun, pause, is_waiting = self._clock(), _PAUSE, False
        while True:
            asked = self._clock()
            try:
                standing = self._turn(said)
            except RefusedError as refusal:
                if participant is None:
                    raise
                return self._refused(participant, refusal)
            took = self._clock() - asked
            if participant is None and standing.opening is not None:
                if (why := self._other(standing.opening, purpose)) is not None:
                    return Waiting(why)
                participant = self._joined(standing.opening, sequence)
                if participant is None:
                    return Waiting("another agent on this store is in a round, or has just been: sync again")
                said, is_waiting = participant.message, False
                continue
            if participant is not None and standing.phase in ("done", "aborted"):
                return self._ended(participant, standing)
            if participant is not None and standing.content:
                try:
                    participant, said = self._answer(participant, standing, vector)
                except Unsafe as problem:
                    return Waiting(str(problem))
                is_waiting = False
                continue
            left = self._patience - (self._clock() - begun)
            if left <= 0.0:
                return Waiting(_why(standing))
            if is_waiting and took < pause:  # this server, or its carrier, was asked to wait and does not
                self._sleep(min(pause, left))
                pause = min(2.0 * pause, 1.0)
            where = "" if participant is None else participant.opening.round
            said, is_waiting = self._question(where, sequence, reset=reset, wait=min(_LONGEST_WAIT, int(left))), True

    def _again(self, participant: Participant) -> bytes:
        """What this client said last; if that is not at hand, the question how the round stands."""
        return participant.message or self._question(participant.opening.round, participant.sequence)

    def _refused(self, participant: Participant, refusal: RefusedError) -> Waiting:
        """A message that came late, when the round had gone on without this client, is no mistake; whoever is not let in is out.

        This client stays out of the round until it is over, or joins the next one.
        """
        if participant.phase == "joined" and refusal.code not in refusals.PASSING:
            self._store.participation.drop()
        if refusal.code not in _LATE:
            raise refusal
        return Waiting(refusal.reason)

    def _kept(self) -> Participant | None:
        state = self._store.participation.kept()
        return None if state is None else Participant.from_bytes(state, self._store.key, self._rules)

    def _resumed(self, purpose: str, sequence: int) -> Participant | None:
        """The round that this client is in; one for a request that is there no longer is over for it."""
        with self._store.participation.turn:
            participant = self._kept()
            if participant is None or participant.opening.purpose == purpose != "change":
                return participant
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

    def _other(self, opening: Opening, purpose: str) -> str | None:
        """Why this client does not join the round that the server has opened."""
        spec = self._store.spec
        if (opening.federation, opening.data_digest) != (self._store.federation, spec.data_digest):
            raise EvidenceError("the server opened a round of another federation, or of another data spec")
        if opening.labels_digest != spec.labels_digest:
            return "the labels have been amended: sync again"
        return None if opening.purpose == purpose else f"a round for {a(opening.purpose)} comes first"

    def _joined(self, opening: Opening, sequence: int) -> Participant | None:
        """The part in a round that this client joins now; None if another agent on this store has taken its part elsewhere."""
        store = self._store
        with store.participation.turn:
            kept, composed = self._kept(), store.composed()
            if kept is not None:
                return kept if kept.opening == opening and kept.sequence == sequence else None
            if opening.purpose == "change" and (composed is None or composed.sequence != sequence):
                return None
            participant = Participant.join(opening, self._rules, name=store.name, sequence=sequence, key=store.key)
            store.participation.keep(participant.to_bytes())
            return participant

    # -- answering ------------------------------------------------------------------------------------------------------

    def _answer(self, participant: Participant, standing: _Standing, vector: Callable[[], Wide]) -> tuple[Participant, bytes]:
        """What is to be said in this phase; durable before it is said.

        It goes on from what is in the store: another agent on it may have gone further, and what it said cannot be unsaid.
        """
        if standing.phase not in _ASKED:
            raise EvidenceError(f"the server speaks of a phase that there is not: {standing.phase!r:.40}")
        with self._store.participation.turn:
            newest = self._kept()
            if newest is None or newest.opening != participant.opening:
                return participant, self._question(participant.opening.round, participant.sequence)
            if _PHASES.index(newest.phase) > _PHASES.index(_ASKED[standing.phase]):
                return newest, self._again(newest)
            return newest, self._said(newest, standing, vector)

    def _said(self, participant: Participant, standing: _Standing, vector: Callable[[], Wide]) -> bytes:
        if standing.phase == "sharing":
            said = participant.on_roster(standing.content, self._caution.keys(participant, standing.content))
        elif standing.phase == "masking":
            said = participant.on_deliveries(standing.content, vector())
            if participant.opening.purpose == "change":
                self._store.remember({_MASKED: str(participant.sequence)})
                self._store.doubt(participant.sequence)
        else:
            said = participant.on_survivors(standing.content)
            self._caution.require_all(participant)
            self._caution.require_apart(participant)
        self._store.participation.keep(participant.to_bytes())
        return said

    def _ended(self, participant: Participant, standing: _Standing) -> Outcome:
        store, is_change = self._store, participant.opening.purpose == "change"
        if not is_change or standing.receipt is None:
            with store.participation.turn:
                if is_change:
                    store.doubt(participant.sequence, False)  # it has not taken effect, and cannot any more
                self._drop(participant)
            if is_change or standing.phase == "aborted":
                return Ended(why=standing.reason or "the round went on without this client, which had dropped out")
            return Ended()
        receipt = self._caution.receipt(participant, standing.receipt)
        newest = self._trust.follow(receipt.checkpoint)
        with store.participation.turn:
            composed = store.composed()
            if composed is not None and composed.sequence == receipt.sequence:  # or another agent has settled it meanwhile
                store.settle(receipt.sequence, standing.receipt, checkpoint=newest, entry=receipt.logged.index)
            store.remember({"revealed": ""})
            self._drop(participant)
        return Ended(receipt)

    def _drop(self, participant: Participant) -> None:
        kept = self._kept()
        if kept is not None and kept.opening == participant.opening:
            self._store.participation.drop()

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
        data = self._patiently(lambda: self._carrier.aggregate(said))
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


def _why(standing: _Standing) -> str:
    if standing.phase == "closed":
        return "another round is under way: this client joins the next one"
    if standing.phase == "joining":
        missing = standing.fewest - standing.joined
        if missing > 0:
            clients = "one more client" if missing == 1 else f"{missing} more clients"
            return f"the round has {standing.joined} of the {standing.fewest} clients that it needs: it waits for {clients}"
        return f"the round has {standing.joined} clients, and waits a moment for others to join"
    return f"the round of {standing.joined} clients is at its phase of {standing.phase}, and waits for the others"
