"""One client in rounds of secure aggregation, turn by turn.

Laws: everything that must survive is in the store before it is sent, so a client that is killed
continues where it was, or learns how the round ended before it offers anything again. A sequence
number identifies one content: what was masked under it once goes out under it unchanged, however
many rounds that takes. A client agrees to one sum with that content in it (`RoundPolicy`), and
reveals shares once for each round.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from expunge.client.delivery import Retry
from expunge.client.outbox import Composition
from expunge.client.round_policy import UNMASKED, RoundPolicy, UnsafeRoundError, with_article
from expunge.client.store import ClientStore
from expunge.client.trust import Trust
from expunge.crypto import canonical
from expunge.errors import EvidenceError, RefusedError
from expunge.evidence import Receipt
from expunge.evidence.wording import moment
from expunge.exact.wide import Wide
from expunge.kinds import STAGES, AnsweredPhase, Purpose, Stage
from expunge.ridge.spec import Spec
from expunge.ridge.statistics import Statistics
from expunge.secagg import Contribution, Opening, Participant
from expunge.secagg.arbitration import spec_of_round
from expunge.secagg.messages import is_said
from expunge.secagg.parcels import BadParcelError
from expunge.secagg.schedule import Schedule
from expunge.secagg.unmasking import Part
from expunge.wire import payloads, refusals
from expunge.wire.carrier import Carrier
from expunge.wire.schema import time_text

Changes = tuple[Statistics | None, Statistics | None]  # what a request adds, and what it deletes
LONGEST_WAIT = 20  # seconds that a server is asked to wait before it answers
_PAUSE = 0.05  # seconds, at first, between questions to a server that does not wait
_ASKED: dict[AnsweredPhase, Stage] = {
    "sharing": "shared",
    "masking": "masked",
    "agreeing": "agreed",
    "revealing": "revealed",
}  # by a phase of the round: where an answer leads
_MASKED = "masked"  # the setting that holds the number of the request that was masked last
_VECTOR = "vector"  # the setting that holds labels and SHA-256 of the vector that was masked last
_OPENED = "opened"  # the setting that holds the round whose part was opened to the arbiter
_LAST = "round"  # the setting that holds the last round that this client was in
_FALSE = "a sum that this client's change was in was false"
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
        self._complained_of = ""  # SHA-256 of deliveries

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
                f"this client takes part in {with_article(current)}, which comes first: sync"
            )
        if current is None and (aggregation := self._policy.disputed(composition.sequence)):
            reason = self._opened(aggregation, statistics)
            self._store.remember({"refusal": reason})  # in the place of why it did not take effect
            return RoundPending(reason)
        if (self._store.recall("refusal") or "").startswith(_FALSE):  # the dispute is over
            self._store.remember({"refusal": ""})
        closed = self._reason_between_windows("change")
        if closed is not None and self._resumed("change", composition.sequence) is None:
            return RoundPending(closed)
        return self._take_part(
            "change",
            composition.sequence,
            lambda: self._vector(composition.sequence, contribution(), statistics),
            reset=composition.reset,
        )

    def _vector(
        self,
        sequence: int,
        contribution: Contribution,
        statistics: Callable[[Spec], Changes],
    ) -> Wide:
        """What is to be masked; the same as before, if anything was masked under this number.

        Law: numbers under which something is masked never decrease.
        """
        if sequence < (last := self._store.number(_MASKED, 0)):
            raise UnsafeRoundError(
                f"this client has masked something under number {last}, and the server asks for "
                f"number {sequence} again, under which it may have masked something else: nothing "
                "is sent. Ask the operator"
            )
        vector = contribution.vector()
        now = f"{self._store.spec.labels_digest} {_digest(vector)}"
        if not self.is_bound(sequence):
            self._store.remember({_VECTOR: now})
        elif self._store.recall(_VECTOR) != now and not self._is_what_was_masked(statistics):
            raise UnsafeRoundError(
                f"this client has masked something else under number {sequence} before, and the "
                "two sums would show what it has changed since: nothing is sent. Ask the operator"
            )
        return vector

    def _is_what_was_masked(self, statistics: Callable[[Spec], Changes]) -> bool:
        """Whether the request is the one that was masked last, under the labels of then."""
        text = self._store.recall(_VECTOR)
        if not text:
            return True  # masked by a version that did not remember it
        labels, digest = text.split()
        spec = spec_of_round(self._store.spec, labels)
        vector = Contribution.of(*statistics(spec), spec).vector()
        return _digest(vector) == digest

    def _opened(self, aggregation: str, statistics: Callable[[Spec], Changes]) -> str:
        """Open this client's part of a false sum to the arbiter, once; what it waits for then."""
        if not self._policy.rules.arbiter:
            return (
                f"{_FALSE}, and the federation has no arbiter: its operator must find out which "
                "client sent false statistics, and forget it"
            )
        if self._store.recall(_OPENED) == aggregation:
            self._turn(self._question(aggregation, self._store.sequence))  # time may be up
        else:
            data = self._store.disputable.read()
            part = None if data is None else self._read(data)
            if part is None or part.opening.round != aggregation or not part.can_open:
                return (
                    f"{_FALSE}, and this client holds the keys of that round no longer: it is "
                    "excluded when its time is up"
                )
            if not self._is_what_was_masked(statistics):
                return (
                    f"{_FALSE}, and what this client holds is not what it masked: it opens "
                    "nothing, and is excluded when its time is up. Ask the operator"
                )
            spec = spec_of_round(self._store.spec, part.opening.labels_digest)
            try:
                self._turn(part.open_part(*statistics(spec)))
            except RefusedError as refusal:
                if refusal.code not in refusals.LATE:
                    raise
                return refusal.reason
            self._store.remember({_OPENED: aggregation})
        return (
            f"{_FALSE}: this client has opened its part to the arbiter, and waits for the verdict"
        )

    def join(self, purpose: Purpose, contribution: Callable[[], Contribution]) -> Outcome:
        """Take part in an audit or a rebuild, which changes nothing here."""
        current = self.purpose()
        if current is not None and current != purpose:
            return RoundPending(
                f"this client takes part in {with_article(current)}, which comes first: sync"
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

    def require_forgotten(self) -> None:
        """Raise EvidenceError unless the log shows to all that this client has left, or is to be
        forgotten.
        """
        self._policy.require_forgotten()

    def is_superseded(self) -> bool:
        """Whether by the log the server was restored since this client's part was masked."""
        return self._policy.is_superseded()

    def require_lost(self) -> None:
        """Raise EvidenceError unless the log shows that the server was restored since this client's
        part was masked.
        """
        self._policy.require_lost()

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
            if participant.sequence <= self._store.sequence or participant.phase not in UNMASKED:
                self._store.participation.drop()  # the request has been settled, or put back
            # Or it may still be composed again: this round has one join of this client and takes no
            # other
            return None

    @property
    def last_round(self) -> str:
        """The last round whose receipt this client has; "" if there is none."""
        return self._store.recall(_LAST) or ""

    def is_bound(self, sequence: int) -> bool:
        """Whether a request of this number was masked before: it must go out as it is, for its sum
        may have been unmasked.
        """
        return self._store.recall(_MASKED) == str(sequence)

    def unbound(self, sequence: int) -> int:
        """A number that is not below this one, under which nothing has been masked yet."""
        return max(sequence, self._store.number(_MASKED, 0) + 1)

    def _take_part(
        self, purpose: Purpose, sequence: int, vector: Callable[[], Wide], *, reset: bool = False
    ) -> Outcome:
        participant = self._resumed(purpose, sequence)
        self._complained_of = ""
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
                # Which another agent on this store may have made, and have gone further with.
                message, is_waiting = self._last_message(participant), False
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

    def _complained(
        self, participant: Participant, deliveries: bytes, problem: BadParcelError
    ) -> bytes:
        """Whose shares this client cannot use: they are asked for them in clear. UnsafeRoundError
        if the server has heard that before.
        """
        digest = hashlib.sha256(deliveries).hexdigest()
        if self._complained_of == digest:
            raise UnsafeRoundError(
                f"{problem}. This client has complained, and waits for an answer to that"
            )
        self._complained_of = digest
        return participant.complaint(problem.parcels)

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
        if refusal.code not in refusals.PASSING:
            with self._outbox.turn:  # another agent on this store may have gone further
                newest = self._participant()
                if newest is not None and newest.phase == "joined":
                    self._drop(participant)
        # The round has a join of this client from before it started over, and takes no other.
        is_second_join = refusal.details.get("kind") == "join"
        if refusal.code not in refusals.LATE and not is_second_join:
            raise refusal
        return RoundPending(refusal.reason)

    def _participant(self) -> Participant | None:
        data = self._store.participation.read()
        return None if data is None else self._read(data)

    def _read(self, data: bytes) -> Participant:
        return Participant.from_bytes(data, self._store.key, self._policy.rules)

    def _resumed(self, purpose: Purpose, sequence: int) -> Participant | None:
        """The round that this client is in; a round whose request is gone is finished.

        Not one that another agent on this store has joined with a later request meanwhile: this one
        is then settled, or put back.
        """
        with self._outbox.turn:
            participant = self._participant()
            if participant is None or participant.opening.purpose == purpose != "change":
                return participant
            if (participant.opening.purpose, participant.sequence) == (purpose, sequence):
                return participant
            composed = self._outbox.composed()
            if composed is None or composed.sequence != participant.sequence:
                self._store.participation.drop()
            return None

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
            return f"a round for {with_article(opening.purpose)} comes first"
        return self._reason_between_windows(purpose)

    @property
    def _schedule(self) -> Schedule | None:
        return Schedule.of(self._policy.rules)

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
                opening,
                self._policy.rules,
                name=store.name,
                sequence=sequence,
                key=store.key,
                exposed=opening.purpose == "change" and self._policy.is_exposed(sequence),
                random=store.machine.random,
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
            if state.phase == "masking" and is_said(state.content):
                return newest, newest.on_complaint(state.content, self._policy.pins())
            try:
                return newest, self._respond(newest, state, vector)
            except BadParcelError as problem:
                return newest, self._complained(newest, state.content, problem)

    def _respond(
        self, participant: Participant, state: _RoundState, vector: Callable[[], Wide]
    ) -> bytes:
        if state.phase == "sharing":
            keys = self._policy.keys(participant, state.content)
            is_bound = self.is_bound(participant.sequence)
            self._policy.require_sent_anew(participant, is_bound=is_bound)
            message = participant.on_roster(state.content, keys)
        elif state.phase == "masking":
            self._policy.require_roster(participant)
            self._require_composed(participant)
            masked = vector()
            self._policy.require_unchanged(participant)  # as it was when the vector was made
            message = participant.on_deliveries(state.content, masked)
            if participant.opening.purpose == "change":
                self._policy.masked(participant, first=not self.is_bound(participant.sequence))
                self._store.remember({_MASKED: str(participant.sequence)})
                self._outbox.doubt(participant.sequence)
        elif state.phase == "agreeing":
            message = participant.on_survivors(state.content)
            self._policy.require_unchanged(participant)
            self._policy.require_all(participant)
            self._policy.require_one_sum(participant)
        else:
            is_change = participant.opening.purpose == "change"  # else all are counted already
            shown = self._policy.shown() if is_change else frozenset[Part]()
            message = participant.on_agreements(state.content, self._policy.pins(), shown)
        self._store.participation.write(participant.to_bytes())
        return message

    def _require_composed(self, participant: Participant) -> None:
        """What a number stands for is masked only as long as it stands for something."""
        composed = self._outbox.composed()
        is_change = participant.opening.purpose == "change"
        if is_change and (composed is None or composed.sequence != participant.sequence):
            raise UnsafeRoundError(
                "another agent on this store has put back what this client has joined the round "
                "with: it masks nothing in it, and joins the next one"
            )

    def _finish(self, participant: Participant, state: _RoundState) -> Outcome:
        store, is_change = self._store, participant.opening.purpose == "change"
        if not is_change or state.receipt is None:
            with self._outbox.turn:
                newest_state = self._participant()
                # Or another agent has heard of the end before, or has taken it to another round.
                if newest_state is not None and newest_state.opening == participant.opening:
                    if is_change:  # it has not taken effect, and no longer can
                        self._outbox.doubt(participant.sequence, False)
                        if newest_state.can_open:  # another agent may have taken it further
                            store.disputable.write(newest_state.to_bytes())
                    store.participation.drop()
            if is_change or state.phase == "aborted":
                return RoundEnd(
                    reason=state.reason
                    or "the round went on without this client, which had dropped out"
                )
            return RoundEnd()
        receipt = self._policy.receipt(participant, state.receipt)
        with self._outbox.turn:
            newest = self._trust.follow(receipt.checkpoint)
            composed, newest_state = self._outbox.composed(), self._participant()
            if newest_state is not None and newest_state.opening != participant.opening:
                return RoundPending(
                    "another agent on this store is in another round, as this one was said to be "
                    "over: sync again when that is"
                )
            if (
                composed is not None and composed.sequence == receipt.sequence
            ):  # or another agent has settled it meanwhile
                if newest_state is not None and newest_state.opening == participant.opening:
                    participant = newest_state  # which another agent may have taken further
                self._policy.require_listed(participant, receipt)
                if composed.reset:
                    self._policy.note_sent_anew()  # before it is settled, and known no longer
                self._outbox.settle(
                    receipt.sequence,
                    state.receipt,
                    checkpoint=newest,
                    entry=receipt.logged.index,
                    keep=not composed.is_cover,
                )
            if self.is_bound(receipt.sequence):  # or another agent has masked the next one since
                self._policy.release()
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
            canonical.binary(content["content"], "what the server tells"),
            None if content["opening"] is None else Opening.from_json(content["opening"]),
            None if content["receipt"] is None else canonical.encode(content["receipt"]),
            content["reason"],
            content["joined"],
            content["fewest"],
        )


def _digest(vector: Wide) -> str:
    return hashlib.sha256(np.ascontiguousarray(vector).data).hexdigest()


def _reason_for(state: _RoundState) -> str:
    if state.reason:
        return state.reason
    if state.phase == "closed":
        return "another round is under way: this client joins the next one"
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
