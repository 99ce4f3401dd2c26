"""A client's side of rounds of secure aggregation.

`Masked`: the delivery of requests by rounds, and a client's part in audits and rebuilds. Law: a
client is in one round at a time, and stays in it until it knows how it ended; everything else that
is due waits for that.

`Contributor`: one round, turn by turn. Laws: everything that must survive is in the store before it
is sent, so a client that is killed continues where it was, or learns how the round ended before it
offers anything again. A sequence number identifies one content: what was masked under it once goes
out under it unchanged, however many rounds that takes. A client agrees to one sum with that content
in it, and reveals shares once for each round.

`RoundPolicy`: what a client demands of a round before it deals shares, before it agrees to a sum,
and of receipts. Law: the server is believed about who drops out and about nothing else. Keys come
from the log or from pins; an audit or a rebuild must be of all clients that the log shows; and of
the sums that its part is in, this client agrees to one.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Callable, Iterable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

from expunge.client.delivery import Direct, PendingError, Retry
from expunge.client.outbox import Composition
from expunge.client.samples import Recompute
from expunge.client.settings import checkpoint_text, read_pins
from expunge.client.store import ClientStore
from expunge.client.trust import Peers, SyncAnswer, Trust, trusted
from expunge.crypto import Envelope, PublicKey, canonical
from expunge.errors import EvidenceError, ProtocolError, RefusedError
from expunge.evidence import Checkpoint, Receipt
from expunge.evidence.receipt import member_of
from expunge.evidence.wording import moment
from expunge.exact.wide import Wide
from expunge.kinds import STAGES, AnsweredPhase, Purpose, Stage
from expunge.ridge.spec import Aggregation, Spec
from expunge.ridge.statistics import Statistics
from expunge.secagg import Contribution, Opening, Participant
from expunge.secagg.arbitration import Verdict, parts_of, spec_of_round
from expunge.secagg.keys import Context
from expunge.secagg.parcels import BadParcelError
from expunge.secagg.roster import verify_agreements
from expunge.secagg.schedule import Schedule
from expunge.secagg.unmasking import Decision, Narrowed, Part, may_follow, narrowed, remaining
from expunge.wire import payloads, refusals
from expunge.wire.carrier import Carrier
from expunge.wire.schema import time_text

_AGREED = "agreed"  # the setting that holds when its part was masked first, and each sum agreed to
_FIRST = "first"  # in it, the time of the former
_ROSTERS = "rosters"  # the setting that holds the rosters of rounds in which its part was masked
_EVERYTHING = 0  # in place of the number of a request that sends everything anew


Changes = tuple[Statistics | None, Statistics | None]  # what a request adds, and what it deletes


class UnsafeRoundError(EvidenceError):
    """A round that the server asks for would show too much: this client does not take part, and
    says why.
    """


class RoundPolicy:
    """The demands that one client makes of a round."""

    def __init__(
        self,
        store: ClientStore,
        carrier: Carrier,
        trust: Trust,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._carrier = carrier
        self._trust = trust
        self._now = now

    @property
    def _rules(self) -> Aggregation:
        rules = self._store.spec.aggregation
        if rules is None:
            raise ProtocolError("this federation does not use secure aggregation")
        return rules

    def keys(self, participant: Participant, roster: bytes) -> dict[str, PublicKey]:
        """The keys that the roster is held against, read from the log as far as it goes now."""
        names = participant.names_in(roster)
        peers = self._peers()
        if self._store.name in peers.gone:
            raise UnsafeRoundError(
                f"the log shows that {self._store.name} has left, and the server asks it to take "
                "part: it could show others what this client holds. Ask the operator"
            )
        if not names <= set(peers.keys):
            self._follow_log()
            peers = self._peers()
        if self._store.name in peers.barred:
            raise UnsafeRoundError(
                f"the arbiter found that {self._store.name} sent false statistics: it takes part "
                "in no round. The operator can forget it"
            )
        if names & peers.barred:
            raise UnsafeRoundError(
                f"{', '.join(sorted(names & peers.barred)[:5])} takes part in this round, and was "
                "barred by a verdict of the arbiter: this client keeps out of it"
            )
        if participant.opening.purpose != "change" and peers.barred:
            raise UnsafeRoundError(
                f"{_with_article(participant.opening.purpose)} while "
                f"{', '.join(sorted(peers.barred)[:5])} is barred would show what it held, as what "
                "the ledger has more: this client waits until the operator has forgotten it"
            )
        if participant.opening.purpose == "audit" and peers.going:
            raise UnsafeRoundError(
                f"an audit while {', '.join(sorted(peers.going)[:5])} is being forgotten would "
                "show what it held, as what the ledger has more: this client waits for the rebuild"
            )
        if participant.opening.purpose != "change" and names != peers.active:
            self._follow_log()
            peers = self._peers()
            if names != peers.active:
                others = ", ".join(sorted(names ^ peers.active)[:5])
                raise UnsafeRoundError(
                    f"{_with_article(participant.opening.purpose)} must be of all clients that the "
                    f"log shows, and this round differs by {others}: the sum would show those that "
                    "are missing, so this client keeps out of it"
                )
        return self._trusted(peers)

    def pins(self) -> dict[str, PublicKey]:
        """The keys of the other clients, as far as this client has read the log."""
        return self._trusted(self._peers())

    def _trusted(self, peers: Peers) -> dict[str, PublicKey]:
        return trusted(peers, read_pins(self._store.recall("pins")))

    def _peers(self) -> Peers:
        if self._store.checkpoint[0] == 0:  # a new client has seen nothing of the log
            self._follow_log()
        size, root = self._store.checkpoint
        cached = Peers.from_text(self._store.recall("peers"))
        peers = cached.read_on(self._carrier.entries, size, root)
        if peers != cached:
            for entry in peers.decisions:
                if entry not in cached.decisions:
                    self._verify(entry, peers)
            self._store.remember({"peers": peers.to_text()})
        return peers

    def _follow_log(self) -> None:
        """Advance to the newest checkpoint."""
        content = Envelope.from_bytes(self._trust.checkpoint(), "checkpoint").unverified()
        newest = self._trust.follow(Checkpoint.from_json(content))
        self._store.remember({"checkpoint": checkpoint_text(*newest)})

    def require_all(self, participant: Participant) -> None:
        """The sum of an audit or a rebuild must include every client: otherwise it would show
        who is missing, as what the ledger has more.
        """
        if participant.opening.purpose != "change":
            missing = self._peers().active - {name for name, _ in participant.included or ()}
            if missing:
                raise UnsafeRoundError(
                    f"{', '.join(sorted(missing)[:5])} dropped out of a round that needs all "
                    "clients"
                )

    def require_roster(self, participant: Participant) -> None:
        """Mask in no round whose sum this client could not agree to: it need not be asked."""
        if participant.opening.purpose == "change":
            self._require_same(participant, set(participant.roster_parts))

    def require_one_sum(self, participant: Participant) -> None:
        """Agree to one sum only with this client's part in it, and remember it
        (expunge.secagg.unmasking).
        """
        if participant.opening.purpose != "change":
            return  # what is counted already, of all clients
        proposed = self._require_same(participant, set(participant.included or ()))
        if proposed not in self._agreed(participant.sequence):
            self._require_enough(proposed)
            self._remember("revealed", [sorted(map(list, proposed))])
            self._remember(_AGREED, self._recall(_AGREED) | {_name_of(proposed): int(self._now())})

    def _require_same(self, participant: Participant, parts: set[Part]) -> set[Part]:
        """`parts` by what they hold, if they are what the log has left of every sum that this
        client's part is in. The same sum again, as far as it has agreed to it, shows nothing new.
        """
        proposed, agreed = self._identified(parts), self._agreed(participant.sequence)
        for earlier in [*agreed, *self._decided(participant.sequence)]:
            rest = self._narrowed(earlier).parts
            is_same = proposed == rest or (proposed == earlier and earlier in agreed)
            if not is_same and not may_follow(
                rest, proposed, gone=self._gone(), fewest=self._rules.fewest, shown=self._shown()
            ):
                names = sorted({name for name, _ in rest ^ proposed})
                raise UnsafeRoundError(
                    "a round was aborted after its sum may have been unmasked, and this one would "
                    f"differ from it by {', '.join(names)}, whose changes the two sums "
                    "would show: nothing is revealed. Join again when the same clients do; one "
                    "that stays away for ever must be forgotten by the operator"
                )
        return proposed

    def _agreed(self, sequence: int) -> list[set[Part]]:
        """The sums with this client's part that it has agreed to, and that were not applied."""
        return self._with_part(sequence, map(_parts, self._recall("revealed", [])))

    def _decided(self, sequence: int) -> list[set[Part]]:
        """The false sums with this client's part: others may have agreed without it."""
        decisions = self._decisions() if self._store.recall(_ROSTERS) else ()
        return self._with_part(sequence, (set(one.parts) for one in decisions if one.signers))

    def _with_part(self, sequence: int, sums: Iterable[set[Part]]) -> list[set[Part]]:
        ours = self._identified({(self._store.name, sequence)})
        return [parts for parts in sums if ours <= parts]

    def masked(self, participant: Participant) -> None:
        """Remember the roster of a round in which this client's part may be in the sum: entries
        about another roster are none about that sum.
        """
        rosters = self._recall(_ROSTERS)
        if not rosters:
            self._remember(_AGREED, {_FIRST: int(self._now())})
        roster = [participant.roster_digest, len(participant.roster_parts)]
        self._remember(_ROSTERS, rosters | {participant.opening.round: roster})

    def _recall(self, name: str, usual: Any = None) -> Any:
        """A JSON value of the settings; an empty object, or what is `usual`, if there is none."""
        text = self._store.recall(name)
        return canonical.decode(text.encode("ascii")) if text else {} if usual is None else usual

    def _remember(self, name: str, value: object) -> None:
        self._store.remember({name: canonical.encode(value).decode("ascii") if value else ""})

    def disputed(self, sequence: int) -> str:
        """The round whose sum was false and is in dispute, with this client's part in it; or ""."""
        if not self._store.recall(_ROSTERS):
            return ""
        gone = self._gone()
        bound = [*self._agreed(sequence), *self._decided(sequence)]
        for left in map(self._narrowed, bound):
            if left.disputed and remaining(left.parts, gone) == left.parts:
                return left.disputed
        return ""

    def _narrowed(self, agreed: set[Part]) -> Narrowed:
        """What the log has left of a sum that this client agreed to.

        It is read as far as this client has followed it, and not believed about who was silent
        before the time of the rules has passed by this client's own clock.
        """
        return narrowed(agreed, self._store.name, self._decisions(), self._rules)

    def _decisions(self) -> list[Decision]:
        """What the log decides about sums that this client's part may be in, and is due."""
        return [
            decision
            for entry in self._peers().decisions
            if (decision := self._decision(entry)) is not None
        ]

    def _decision(self, entry: dict[str, Any]) -> Decision | None:
        kind, aggregation = entry["kind"], entry["aggregation"]
        rosters = self._recall(_ROSTERS)
        if kind == "voided":
            if rosters.get(aggregation) != [entry["roster"], entry["size"]]:
                return None
            return Decision(
                kind,
                aggregation,
                self._listed(entry["clients"]),
                signers=frozenset(entry["agreed"]),
                size=entry["size"],
            )
        if kind == "judged":
            verdict = self._verdict(entry)
            if [verdict.roster] != rosters.get(aggregation, [])[:1]:
                return None
            parts = frozenset(self._identified(set(verdict.parts)))
            return Decision(kind, aggregation, parts, frozenset(verdict.false))
        parts, times = self._listed(entry["clients"]), self._recall(_AGREED)
        since = times.get(_name_of(parts), times.get(_FIRST, 0))
        if self._now() < since + self._rules.set_aside_after:
            return None
        return Decision("excluded", aggregation, parts, frozenset(entry["excluded"]))

    def _listed(self, members: list[dict[str, Any]]) -> frozenset[Part]:
        return frozenset(self._identified(set(parts_of(members))))

    def _verify(self, entry: dict[str, Any], peers: Peers) -> None:
        """Raise EvidenceError unless a false sum was agreed to by those that the log says so of,
        and a verdict is the arbiter's.
        """
        if entry["kind"] == "judged":
            self._verdict(entry)
        elif entry["kind"] == "voided":
            verify_agreements(
                Context(self._store.federation, entry["aggregation"], entry["roster"]),
                parts_of(entry["clients"]),
                {name: bytes.fromhex(text) for name, text in entry["agreed"].items()},
                {name: PublicKey.from_text(key) for name, key in peers.keys.items()},
            )

    def _verdict(self, entry: dict[str, Any]) -> Verdict:
        """The verdict in an entry of the log; EvidenceError unless the arbiter signed it."""
        verdict = Verdict.read(Envelope.from_json(entry["verdict"], "verdict"), self._rules.arbiter)
        if (verdict.federation, verdict.aggregation) != (
            self._store.federation,
            entry["aggregation"],
        ):
            raise EvidenceError("the log shows a verdict about another round than it says")
        return verdict

    def _identified(self, parts: set[Part]) -> set[Part]:
        """Parts by what they hold: whoever sends all that it holds, sends the same under every
        number.
        """
        composed = self._store.outbox.composed()
        if composed is None or not composed.reset:
            return parts
        return {(name, _EVERYTHING) for name, _ in parts}

    def release(self, sequence: int) -> None:
        """What has been applied under this number binds no longer."""
        settled = {(self._store.name, sequence), (self._store.name, _EVERYTHING)}
        earlier = map(_parts, self._recall("revealed", []))
        kept = [sorted(map(list, parts)) for parts in earlier if parts.isdisjoint(settled)]
        self._remember("revealed", kept)
        self._store.remember({_ROSTERS: "", _AGREED: ""})

    def require_restored(self) -> None:
        """A server that asks for everything again could subtract it from what it has: it must have
        told everybody by its log that it lost what it had.
        """
        self._follow_log()
        if self._peers().states.get(self._store.name) != "away":
            raise UnsafeRoundError(
                "the server asks for everything that this client holds, as if it had been restored "
                "from a backup, but its log does not show that: nothing is sent. Ask its operator"
            )

    def _gone(self) -> frozenset[str]:
        """Who takes part in no sum any more."""
        self._follow_log()
        peers = self._peers()
        return peers.gone | peers.barred

    def _shown(self) -> frozenset[Part]:
        """The parts that were excluded: the server may have seen them by that."""
        return frozenset(
            part
            for entry in self._peers().decisions
            if entry["kind"] == "excluded"
            for part in self._listed(entry["clients"])
            if part[0] in entry["excluded"]
        )

    def _require_enough(self, proposed: set[Part]) -> None:
        if len(proposed - self._shown()) < self._rules.fewest:
            raise UnsafeRoundError(
                f"fewer than {self._rules.fewest} clients of this round are hidden: others were "
                "left out of an earlier sum. This client waits for a round with more"
            )

    def receipt(self, participant: Participant, data: bytes) -> Receipt:
        """The receipt of a round, if it is the server's, for this client's part in it, and lists
        those whose sum was unmasked.
        """
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
            raise EvidenceError(
                "the receipt is for another round than the one that this client took part in"
            )
        if participant.included is not None:
            listed = [(member["client"], member["sequence"]) for member in entry["clients"]]
            if sorted(listed) != sorted(participant.included):
                raise EvidenceError(
                    "the receipt lists other clients than those whose masks this client helped to "
                    "remove"
                )
        return receipt


def _name_of(parts: Set[Part]) -> str:
    """A short name for a sum, among those of one client's part."""
    return hashlib.sha256(canonical.encode(sorted(map(list, parts)))).hexdigest()[:16]


def _parts(members: list[list[Any]]) -> set[Part]:
    return {(str(name), int(sequence)) for name, sequence in members}


def _with_article(purpose: Purpose) -> str:
    """The purpose of a round with its article."""
    return "an audit" if purpose == "audit" else f"a {purpose}"


LONGEST_WAIT = 20  # seconds that a server is asked to wait before it answers
_PAUSE = 0.05  # seconds, at first, between questions to a server that does not wait
_UNMASKED: tuple[Stage, ...] = ("joined", "shared")
_ASKED: dict[AnsweredPhase, Stage] = {
    "sharing": "shared",
    "masking": "masked",
    "agreeing": "agreed",
    "revealing": "revealed",
}  # by a phase of the round: where an answer leads
_MASKED = "masked"  # the setting that holds the number of the request that was masked last
_OPENED = "opened"  # the setting that holds the round whose part was opened to the arbiter
_LAST = "round"  # the setting that holds the last round that this client was in
_JOINED = "joined-window"  # the setting that holds the window whose round this client joined last
_APPLIED = "window"  # the setting that holds the window whose round took effect last, of those


@dataclass(frozen=True)
class RoundPending:
    """Nothing can be done before something changes at the server: ask again later."""

    reason: str


@dataclass(frozen=True)
class RoundEnd:
    """The round is over for this client.

    Its receipt, if it was included in a change; otherwise why it was not.
    """

    receipt: Receipt | None = None
    reason: str = ""


Outcome = RoundPending | RoundEnd


@dataclass(frozen=True)
class _RoundState:
    phase: AnsweredPhase
    purpose: Purpose | Literal[""]
    content: bytes
    opening: Opening | None
    receipt: bytes | None
    reason: str
    joined: int
    fewest: int


class Contributor:
    """One client in rounds, one round at a time.

    `patience` is how many seconds it waits for others before it says so. On a schedule it joins a
    round of changes only if `now` is in a window, whatever the server says, and only one that takes
    effect in each: it asks for none at other times, whether it has something to change or not.
    """

    def __init__(
        self,
        store: ClientStore,
        carrier: Carrier,
        trust: Trust,
        *,
        retry: Retry,
        patience: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._carrier = carrier
        self._trust = trust
        self._policy = RoundPolicy(store, carrier, trust, now)
        self._outbox = store.outbox
        self._retry = retry
        self._patience = patience
        self._clock = clock
        self._now = now

    # -- rounds ------------------------------------------------------------------------------------

    def change(
        self,
        composition: Composition,
        contribution: Callable[[], Contribution],
        statistics: Callable[[Spec], Changes],
    ) -> Outcome:
        """Bring a composed request by a round; `RoundEnd` without a receipt if it was not included,
        and may be offered again.

        `statistics` is what it adds and deletes, apart, under the spec of an earlier round: for the
        arbiter of a sum that was false.
        """
        current = self.purpose()
        if current is not None and current != "change":
            return RoundPending(
                f"this client takes part in {_with_article(current)}, which comes first: sync"
            )
        if current is None and (aggregation := self._policy.disputed(composition.sequence)):
            return RoundPending(self._opened(aggregation, statistics))
        closed = self._reason_between_windows("change")
        if closed is not None and self._resumed("change", composition.sequence) is None:
            return RoundPending(closed)
        return self._take_part(
            "change",
            composition.sequence,
            lambda: contribution().vector(),
            reset=composition.reset,
        )

    def _opened(self, aggregation: str, statistics: Callable[[Spec], Changes]) -> str:
        """Open this client's part of a false sum to the arbiter, once; what it waits for then."""
        false = "a sum that this client's change was in was false"
        if not self._rules.arbiter:
            return (
                f"{false}, and the federation has no arbiter: its operator must find out which "
                "client sent false statistics, and forget it"
            )
        if self._store.recall(_OPENED) == aggregation:
            self._turn(self._question(aggregation, self._store.sequence))  # time may be up
        else:
            data = self._store.disputable.read()
            part = (
                None if data is None else Participant.from_bytes(data, self._store.key, self._rules)
            )
            if part is None or part.opening.round != aggregation or not part.can_open:
                return (
                    f"{false}, and this client holds the keys of that round no longer: it is "
                    "excluded when its time is up"
                )
            spec = spec_of_round(self._store.spec, part.opening.labels_digest)
            try:
                self._turn(part.open_part(*statistics(spec)))
            except RefusedError as refusal:
                if refusal.code not in refusals.LATE:
                    raise
                return refusal.reason
            self._store.remember({_OPENED: aggregation})
        return f"{false}: this client has opened its part to the arbiter, and waits for the verdict"

    def join(self, purpose: Purpose, contribution: Callable[[], Contribution]) -> Outcome:
        """Take part in an audit or a rebuild, which changes nothing here."""
        current = self.purpose()
        if current is not None and current != purpose:
            return RoundPending(
                f"this client takes part in {_with_article(current)}, which comes first: sync"
            )
        return self._take_part(purpose, self._store.sequence, lambda: contribution().vector())

    def is_joining(self) -> bool:
        """Whether this client takes part with nothing to change: as others have begun a round of
        changes, or on a schedule, as one begins now.
        """
        if self._schedule is not None:
            return self._reason_between_windows("change") is None
        opening = self._turn(self._question("", self._store.sequence)).opening
        return opening is not None and self._reason_to_wait(opening, "change") is None

    def require_restored(self) -> None:
        """Raise EvidenceError unless the log shows to all that the server was restored since this
        client was last in a sum.
        """
        self._policy.require_restored()

    def purpose(self) -> Purpose | None:
        """What the round is for that this client is in, as far as it knows; None if it is in
        none.
        """
        with self._outbox.turn:
            participant = self._participant()
            if participant is None:
                return None
            composed = self._outbox.composed()
            purpose = participant.opening.purpose
            if purpose != "change" or (
                composed is not None and composed.sequence == participant.sequence
            ):
                return purpose
            if participant.sequence <= self._store.sequence or participant.phase not in _UNMASKED:
                self._store.participation.drop()  # the request has been settled, or put back
            # Or it may still be composed again: this round has one join of this client and takes no
            # other
            return None

    def is_bound(self, sequence: int) -> bool:
        """Whether a request of this number was masked before: it must go out as it is, for its sum
        may have been unmasked.
        """
        return self._store.recall(_MASKED) == str(sequence)

    def unbound(self, sequence: int) -> int:
        """A number that is not below this one, under which nothing has been masked yet."""
        return max(sequence, int(self._store.recall(_MASKED) or 0) + 1)

    def _take_part(
        self, purpose: Purpose, sequence: int, vector: Callable[[], Wide], *, reset: bool = False
    ) -> Outcome:
        participant = self._resumed(purpose, sequence)
        message = (
            self._question("", sequence, reset=reset)
            if participant is None
            else self._last_message(participant)
        )
        begun, pause, is_waiting = self._clock(), _PAUSE, False
        while True:
            started = self._clock()
            try:
                state = self._turn(message)
            except RefusedError as refusal:
                if participant is None:
                    raise
                return self._refused(participant, refusal)
            took = self._clock() - started
            if participant is None and state.opening is not None:
                if (reason := self._reason_to_wait(state.opening, purpose)) is not None:
                    return RoundPending(reason)
                participant = self._join(state.opening, sequence)
                if participant is None:
                    return RoundPending(
                        "another agent on this store is in a round, or has just been: sync again"
                    )
                message, is_waiting = participant.message, False
                continue
            if participant is not None and state.phase in ("done", "aborted"):
                return self._finish(participant, state)
            if participant is not None and state.content:
                try:
                    participant, message = self._answer(participant, state, vector)
                except UnsafeRoundError as problem:
                    return RoundPending(str(problem))
                is_waiting = False
                continue
            left = self._patience - (self._clock() - begun)
            closed = self._reason_between_windows(purpose) if participant is None else None
            if left <= 0.0 or closed is not None:
                return RoundPending(closed or _reason_for(state))
            if (
                is_waiting and took < pause
            ):  # this server, or its carrier, was asked to wait and does not
                self._retry.sleep(min(pause, left))
                pause = min(2.0 * pause, 1.0)
            aggregation = "" if participant is None else participant.opening.round
            message, is_waiting = (
                self._question(
                    aggregation, sequence, reset=reset, wait=min(LONGEST_WAIT, int(left))
                ),
                True,
            )

    def _complained(self, participant: Participant, problem: BadParcelError) -> str:
        """The server is told whose shares this client cannot use: it lets the two meet in no round
        again, if that can be helped.
        """
        with suppress(RefusedError):  # the round has gone on
            self._turn(participant.complaint(problem.dealer))
        return (
            f"{problem}. This client drops out of the round, and has told the server, which lets "
            f"it meet {problem.dealer} no more where others are enough"
        )

    def _last_message(self, participant: Participant) -> bytes:
        """What this client said last; if that is missing, a query for the round's state."""
        return participant.message or self._question(
            participant.opening.round, participant.sequence
        )

    def _refused(self, participant: Participant, refusal: RefusedError) -> RoundPending:
        """A message that came late, when the round had gone on without this client, is not an
        error.

        This client stays out of the round until it is over, or joins the next one.
        """
        if participant.phase == "joined" and refusal.code not in refusals.PASSING:
            self._store.participation.drop()
        if refusal.code not in refusals.LATE:
            raise refusal
        return RoundPending(refusal.reason)

    def _participant(self) -> Participant | None:
        data = self._store.participation.read()
        return None if data is None else Participant.from_bytes(data, self._store.key, self._rules)

    def _resumed(self, purpose: Purpose, sequence: int) -> Participant | None:
        """The round that this client is in; a round whose request is gone is finished."""
        with self._outbox.turn:
            participant = self._participant()
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

    def _reason_to_wait(self, opening: Opening, purpose: Purpose) -> str | None:
        """Why this client does not join the round that the server has opened."""
        spec = self._store.spec
        if (opening.federation, opening.data_digest) != (self._store.federation, spec.data_digest):
            raise EvidenceError(
                "the server opened a round of another federation, or of another data spec"
            )
        if opening.labels_digest != spec.labels_digest:
            return "the labels have been amended: sync again"
        if opening.purpose != purpose:
            return f"a round for {_with_article(opening.purpose)} comes first"
        return self._reason_between_windows(purpose)

    @property
    def _schedule(self) -> Schedule | None:
        return Schedule.of(self._rules)

    def _window(self) -> int | None:
        """The beginning of the window in which this client's clock is, or almost is."""
        schedule = self._schedule
        return None if schedule is None else schedule.open_at(self._now(), skew=schedule.skew)

    def _reason_between_windows(self, purpose: Purpose) -> str | None:
        """Why this client joins no round of this purpose now: by its own clock no window is open,
        or it has been in the round of this one.
        """
        schedule = self._schedule
        if schedule is None or purpose != "change":
            return None
        now, window = self._now(), self._window()
        following = schedule.next_round(now, skew=schedule.skew)
        if window is None:
            return f"by this client's clock it is {moment(time_text(now))}: {following}"
        if self._store.recall(_APPLIED) == str(window):
            return f"this client has been in the round of this window: {following}"
        return None

    def _join(self, opening: Opening, sequence: int) -> Participant | None:
        """The part in a round that this client joins now; None if another agent on this store has
        taken its part elsewhere.
        """
        store = self._store
        with self._outbox.turn:
            participant, composed = self._participant(), self._outbox.composed()
            if participant is not None:
                is_same = (participant.opening, participant.sequence) == (opening, sequence)
                return participant if is_same else None
            if opening.purpose == "change" and (composed is None or composed.sequence != sequence):
                return None
            participant = Participant.join(
                opening, self._rules, name=store.name, sequence=sequence, key=store.key
            )
            if self._schedule is not None and opening.purpose == "change":
                store.remember({_JOINED: str(self._window())})
            store.participation.write(participant.to_bytes())
            return participant

    # -- answering ---------------------------------------------------------------------------------

    def _answer(
        self, participant: Participant, state: _RoundState, vector: Callable[[], Wide]
    ) -> tuple[Participant, bytes]:
        """What is to be said in this phase; durable before it is said.

        It continues from what is in the store: another agent on it may have gone further, and what
        it said cannot be unsaid.
        """
        if state.phase not in _ASKED:
            raise EvidenceError(
                f"the server speaks of a phase that there is not: {state.phase!r:.40}"
            )
        with self._outbox.turn:
            newest = self._participant()
            if newest is None or newest.opening != participant.opening:
                return participant, self._question(participant.opening.round, participant.sequence)
            if STAGES.index(newest.phase) > STAGES.index(_ASKED[state.phase]):
                return newest, self._last_message(newest)
            try:
                return newest, self._respond(newest, state, vector)
            except BadParcelError as problem:
                raise UnsafeRoundError(self._complained(newest, problem)) from problem

    def _respond(
        self, participant: Participant, state: _RoundState, vector: Callable[[], Wide]
    ) -> bytes:
        if state.phase == "sharing":
            message = participant.on_roster(
                state.content, self._policy.keys(participant, state.content)
            )
        elif state.phase == "masking":
            self._policy.require_roster(participant)
            message = participant.on_deliveries(state.content, vector())
            if participant.opening.purpose == "change":
                self._store.remember({_MASKED: str(participant.sequence)})
                self._policy.masked(participant)
                self._outbox.doubt(participant.sequence)
        elif state.phase == "agreeing":
            message = participant.on_survivors(state.content)
            self._policy.require_all(participant)
            self._policy.require_one_sum(participant)
        else:
            message = participant.on_agreements(state.content, self._policy.pins())
        self._store.participation.write(participant.to_bytes())
        return message

    def _finish(self, participant: Participant, state: _RoundState) -> Outcome:
        store, is_change = self._store, participant.opening.purpose == "change"
        if not is_change or state.receipt is None:
            with self._outbox.turn:
                if is_change:
                    self._outbox.doubt(
                        participant.sequence, False
                    )  # it has not taken effect, and no longer can
                    if participant.can_open:
                        store.disputable.write(participant.to_bytes())
                self._drop(participant)
            if is_change or state.phase == "aborted":
                return RoundEnd(
                    reason=state.reason
                    or "the round went on without this client, which had dropped out"
                )
            return RoundEnd()
        receipt = self._policy.receipt(participant, state.receipt)
        newest = self._trust.follow(receipt.checkpoint)
        with self._outbox.turn:
            composed = self._outbox.composed()
            if (
                composed is not None and composed.sequence == receipt.sequence
            ):  # or another agent has settled it meanwhile
                self._outbox.settle(
                    receipt.sequence,
                    state.receipt,
                    checkpoint=newest,
                    entry=receipt.logged.index,
                    keep=not composed.is_cover,
                )
            self._policy.release(receipt.sequence)
            window = {} if self._schedule is None else {_APPLIED: store.recall(_JOINED) or ""}
            store.remember({_LAST: participant.opening.round} | window)
            store.disputable.drop()
            self._drop(participant)
        return RoundEnd(receipt)

    def _drop(self, participant: Participant) -> None:
        current = self._participant()
        if current is not None and current.opening == participant.opening:
            self._store.participation.drop()

    # -- turns -------------------------------------------------------------------------------------

    def _question(
        self, aggregation: str, sequence: int, *, reset: bool = False, wait: int = 0
    ) -> bytes:
        store = self._store
        content = {
            "actor": store.name,
            "aggregation": aggregation,
            "federation": store.federation,
            "reset": reset,
            "sequence": sequence,
            "wait": wait,
        }
        return payloads.sign("turn", content, store.key)

    def _turn(self, message: bytes) -> _RoundState:
        data = self._retry(lambda: self._carrier.aggregate(message))
        envelope, content = payloads.open_unverified("standing", data)
        self._trust.meet(envelope)
        self._trust.current(envelope)
        self._trust.require_ours(content["federation"])
        if (
            content["actor"] != self._store.name
            or content["to"] != hashlib.sha256(message).hexdigest()
        ):
            raise EvidenceError("the server answered somebody else's turn, or another one")
        return _RoundState(
            content["phase"],
            content["purpose"],
            base64.b64decode(content["content"]),
            None if content["opening"] is None else Opening.from_json(content["opening"]),
            None if content["receipt"] is None else canonical.encode(content["receipt"]),
            content["reason"],
            content["joined"],
            content["fewest"],
        )


def _reason_for(state: _RoundState) -> str:
    if state.phase == "closed" and state.reason:
        return state.reason
    if state.phase == "closed":
        return "another round is under way: this client joins the next one"
    if state.phase == "joining" and state.reason:
        return state.reason
    if state.phase == "joining":
        missing = state.fewest - state.joined
        if missing > 0:
            clients = "one more client" if missing == 1 else f"{missing} more clients"
            return (
                f"the round has {state.joined} of the {state.fewest} clients that it "
                f"needs: it waits for {clients}"
            )
        return f"the round has {state.joined} clients, and waits a moment for others to join"
    return (
        f"the round of {state.joined} clients is at its phase of {state.phase}, and "
        "waits for the others"
    )


_AUDITING = (
    "auditing"  # the setting that holds the ids of the audits that this client takes part in
)
_ORDERS = "orders"  # the setting that holds, by order, the last round when it was heard of
_OF_ALL: tuple[Purpose, ...] = (
    "audit",
    "rebuild",
)  # rounds that change nothing here, and need every client


class Masked:
    """Delivers requests with samples by rounds, and covers for those of others; what shows nothing
    of any sample, such as the answer to an order, goes directly.
    """

    def __init__(
        self,
        direct: Direct,
        store: ClientStore,
        contributor: Contributor,
        recompute: Recompute | None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._wall_clock = wall_clock
        self._direct = direct
        self._store = store
        self._outbox = store.outbox
        self._contributor = contributor
        self._recompute = recompute

    def compose(self) -> Composition | None:
        """Everything that is pending, unless it waits for more samples: a sum is as large for any
        number of samples.

        An order is answered after a round that this client has been in since it heard of it, and
        where small changes wait, since the order was due, whether it holds anything of the person
        or not. So the answer says nothing.
        """
        return self._composed(cover=False)

    def _composed(self, *, cover: bool) -> Composition | None:
        now = self._wall_clock()
        due = self._outbox.unanswered(now=now if self._store.spec.fewest_samples else None)
        early = [order for order in self._outbox.unanswered() if order not in due]
        before = self._orders_before_a_round(due)
        return self._outbox.compose(
            cover=cover or bool(before),
            withheld=[*early, *before],
            waits=self._waits(now),
            recompute=self._recompute,
        )

    def _waits(self, now: float) -> bool:
        return self._store.backlog(now=now) is not None

    def _orders_before_a_round(self, due: Sequence[str]) -> list[str]:
        """Those of the orders whose answer is due that were not yet due at the last round."""
        store = self._store
        text, newest = store.recall(_ORDERS) or "{}", store.recall(_LAST) or ""
        heard: dict[str, str] = canonical.decode(text.encode("ascii"))
        known = {order: heard.get(order, newest) for order in due}
        if known != heard:
            store.remember({_ORDERS: canonical.encode(known).decode("ascii")})
        return [order for order, last in known.items() if last == newest]

    def compose_reset(self, sequence: int) -> Composition | None:
        """Everything that stays, if the log shows that the server was restored."""
        self._contributor.require_restored()
        return self._outbox.compose(reset=True, sequence=sequence, recompute=self._recompute)

    def outstanding(self, compose: Callable[[], Composition | None]) -> Composition | None:
        """The request to be brought now.

        One that waits for a round is composed again, as long as it was never masked.

        So what is added or forgotten while a client waits for others goes into the same round. If
        what is left waits for more samples, the client stays in the round with zeros.
        """
        with self._outbox.turn:
            composed = self._outbox.composed()
            if composed is not None and (composed.reset or not self._is_stale(composed)):
                return composed
            is_in_round = self._contributor.purpose() == "change"
            if composed is not None:
                self._outbox.abandon(composed.sequence, "")
            composition = compose()
            if composition is None and is_in_round:
                return self._composed(cover=True)
            return composition

    def _is_stale(self, composition: Composition) -> bool:
        """Whether it must be composed again: it is outdated, or a cover whose round went on without
        this client, and which must not begin another.
        """
        if composition.is_cover and not self._contributor.is_bound(composition.sequence):
            return self._contributor.purpose() is None or (
                self._outbox.is_outdated() and not self._waits(self._wall_clock())
            )
        return self.is_outdated(composition)

    def is_outdated(self, composition: Composition) -> bool:
        """Whether a request that waits for a round, and was never masked, would have other samples
        if it were composed now.
        """
        if not _goes_by_round(composition) or self._contributor.is_bound(composition.sequence):
            return False
        return self._outbox.is_outdated()

    def deliver(self, composition: Composition) -> Receipt:
        """Bring a request by a round; PendingError if that takes too long, or if the round was
        aborted.

        What has never been masked is put back then, so that it can still change; what has been
        stays as it is.
        """
        if not _goes_by_round(composition):
            return self._direct.deliver(composition)
        store, sequence = self._store, composition.sequence
        try:
            outcome = self._contributor.change(
                composition,
                lambda: self.contribution(composition),
                lambda spec: self.statistics(composition, spec),
            )
        except RefusedError as refusal:
            if refusal.code in refusals.OUT_OF_STEP and store.sequence >= sequence:
                raise PendingError(
                    "another agent on this store has brought the request meanwhile"
                ) from refusal
            raise
        if isinstance(outcome, RoundPending):
            raise PendingError(outcome.reason)
        if outcome.receipt is not None:
            return outcome.receipt
        with self._outbox.turn:
            composed = self._outbox.composed()
            if (
                composed is not None and composed.sequence == sequence
            ):  # or another agent has put it back meanwhile
                if self._contributor.is_bound(sequence):
                    store.remember({"refusal": outcome.reason})
                else:
                    self._outbox.abandon(sequence, outcome.reason)
        raise PendingError(
            f"{outcome.reason}. Nothing was changed: the next sync joins another round"
        )

    def cover(self) -> None:
        """Take part, with nothing to change, in a round that others have begun: a single change
        need not wait for others, nor does it stand out.
        """
        with self._outbox.turn:
            if self._outbox.composed() is not None or self._contributor.purpose() is not None:
                return
            if not self._contributor.is_joining():
                return
            composition = self._composed(cover=True)
            if composition is not None:
                self.deliver(composition)

    def contribution(self, composition: Composition) -> Contribution:
        """What a composed request adds and deletes; the same each time."""
        spec = self._store.spec  # labels may have been appended since it was composed
        return Contribution.of(*self.statistics(composition, spec), spec)

    def statistics(self, composition: Composition, spec: Spec) -> Changes:
        """What a composed request adds and deletes, apart, under the spec of a round."""
        return self._outbox.statistics(replace(composition, spec=spec), recompute=self._recompute)

    def may_mend(self, composition: Composition, refusal: RefusedError) -> bool:
        """Not what goes by a round, unless the server has lost this client."""
        return not _goes_by_round(composition) or refusal.code == "must-rejoin"

    def divide(self, composition: Composition) -> bool:
        """Never: a sum is as large for any number of samples."""
        del composition
        return False

    def restart(self, sequence: int) -> int:
        """A number under which nothing has been masked; the server knows of no round from
        before.
        """
        if self.audits_first():
            self._store.participation.drop()
        return self._contributor.unbound(sequence)

    def audits_first(self) -> bool:
        """Whether this client takes part in an audit or a rebuild whose end it does not know
        yet.
        """
        return self._contributor.purpose() in _OF_ALL

    def answer_audits(
        self,
        answer: SyncAnswer,
        statistics: Callable[[], Statistics],
        send: Callable[[Composition], Receipt | None],
    ) -> tuple[str, ...]:
        """Take part in the round that rebuilds or audits the ledger, if one is wanted; which audits
        were answered.
        """
        del send  # a round answers them, no request
        current, outstanding = self._contributor.purpose(), self._outbox.composed()
        wanted: Purpose | None = "rebuild" if answer.rebuild else "audit" if answer.audits else None
        purpose = current or wanted
        is_open = (
            outstanding is not None and outstanding.doubtful
        )  # then it is not known what the server counts
        if (
            purpose is None
            or purpose not in _OF_ALL
            or answer.status != "active"
            or (is_open and not current)
        ):
            return ()
        if answer.audits:  # when it is over, the server no longer names them
            self._store.remember({_AUDITING: " ".join(audit for audit, _ in answer.audits)})
        outcome = self._contributor.join(
            purpose, lambda: Contribution.of(statistics(), None, self._store.spec)
        )
        if isinstance(outcome, RoundPending) or outcome.reason:
            raise PendingError(outcome.reason)
        return tuple((self._store.recall(_AUDITING) or "").split()) if purpose == "audit" else ()

    def release(self) -> None:
        """The round is over for this client."""
        self._store.participation.drop()


def _goes_by_round(composition: Composition) -> bool:
    return composition.added + composition.deleted > 0 or composition.is_cover
