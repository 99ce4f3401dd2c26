"""Rounds of secure aggregation, as the server leads them: who takes part, which phase it is, when
it is over.

Laws: at most one round is in progress. It is in memory only: a server that is killed has applied
nothing of it, and its clients start over. A client's message is answered with the state of the
round for that client; asking again, or sending the same again, changes nothing. A round that can no
longer take effect (the labels were amended, a client of an audit came or went) ends before anything
is revealed. After any failure, a round ends and the next one can begin. Nothing here sleeps:
deadlines are checked on every call, and every wait has a known limit.

Rebuilds and audits come before changes, but need every client. So that one which is away, or spoils
their rounds, does not hold up everybody's changes, they and changes take turns: a rebuild or an
audit that not all have joined in the time of a phase, or that comes to nothing later, gives way for
as long, and to a round of changes that somebody joins meanwhile until that is over: clients that
sync by a timer come back to it much later.

On a schedule (expunge.secagg.schedule), a round of changes is opened in its window by whoever asks
first, and joined until the window ends or all have joined. There it comes before rebuilds and
audits, and one that took effect is the only one of its window.

A `Turn` is what a client says in a round, read and checked for who signed it.
"""

from __future__ import annotations

import base64
import hashlib
import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import RLock
from typing import Any, Literal

from expunge.crypto import canonical
from expunge.errors import ExpungeError, RefusedError, StoreError
from expunge.kinds import AnsweredPhase, Phase, Purpose, VoidReason
from expunge.ridge.spec import Aggregation
from expunge.secagg import (
    Aborted,
    Collector,
    Contribution,
    Opening,
    length,
    read_preamble,
)
from expunge.secagg.schedule import Schedule
from expunge.secagg.unmasking import (
    Part,
    choose,
    follows,
    hides_enough,
    remaining,
    without_silent,
)
from expunge.server.secagg_outcomes import Member, Outcomes
from expunge.server.state import ServerState
from expunge.server.writer import Writer
from expunge.wire import payloads
from expunge.wire.refusals import cause_of, malformed
from expunge.wire.schema import time_text


@dataclass(frozen=True)
class Turn:
    """What a client says: a message of a phase, or only that it asks."""

    client: str
    aggregation: str  # the round, or empty before it has joined one
    sequence: int
    reset: bool
    message: bytes | memoryview | None
    digest: str
    wait: int = 0  # seconds that it would like to wait for a change
    kind: str = ""  # of the message


def read_turn(state: ServerState, data: bytes | memoryview) -> Turn:
    """Who says what; signed by the key that this client enrolled. RefusedError otherwise."""
    digest = hashlib.sha256(data).hexdigest()
    if bytes(data[:1]) != b"{":
        with malformed():
            claims = read_preamble(data)
        state.require_federation(claims.federation)
        state.signing_client(claims.client, claims.signed)
        return Turn(
            claims.client,
            claims.round,
            claims.sequence,
            False,
            data,
            digest,
            kind=claims.kind,
        )
    with malformed():
        envelope, content = payloads.open_unverified("turn", bytes(data))
    state.require_federation(content["federation"])
    state.signing_client(content["actor"], envelope)
    return Turn(
        content["actor"],
        content["aggregation"],
        content["sequence"],
        content["reset"],
        None,
        digest,
        content["wait"],
    )


_ENDED_KEPT = 256
_FEW = 5  # names in a sentence
_UNREVEALED: tuple[Phase, ...] = (
    "joining",
    "sharing",
    "masking",
)  # phases in which no client has agreed to a sum
_UNKNOWN = "the server does not know this round, because it was started anew"
_NOT_OF_THIS_SUM = (
    "this round went on without this client: a sum that may have been unmasked before is repeated "
    "by its own clients alone, and takes turns with the changes of others"
)
_OUT_OF_STEP = (
    "this round went on without this client: it has sent another request since it joined, or left"
)
_SILENT = (
    "this round went on without this client, or others that it must be summed up with: it dropped "
    "out of the last one, or a client could not use the shares that it had dealt, and got no answer"
)
_UNMARKED = (
    "this round goes on without this client: it was excluded from a sum, or said in an earlier "
    "join that its part hides nobody, and this join did not say so. One that was excluded says so "
    "once the time of the rules has passed by its own clock"
)
_MISMARKED = (
    "this round goes on without this client: its join says that its part hides nobody, and nothing "
    "in the log has made that so since it was last summed up"
)


@dataclass(frozen=True)
class RoundStatus:
    """The state of a round for one client; `waiting` if it has nothing to do before something
    changes.
    """

    data: bytes
    waiting: bool
    version: int  # changes when there may be something to do for those who wait
    due: float  # seconds until the round may change by itself
    wait: int = 0  # seconds that the client would like to wait for a change


@dataclass
class _MaskedRound:
    opening: Opening
    collector: Collector
    everyone: (
        frozenset[str] | None
    )  # an audit or a rebuild needs all of these; a change needs no particular client
    joined: float  # when the last client joined
    deadline: float
    window: int | None = None  # the beginning of the window in which it is joined, on a schedule
    members: dict[str, Member] = field(default_factory=dict)  # by client; those that have joined
    answer_by: float = math.inf  # until then complaints are answered, once there is one
    left_out: dict[str, str] = field(default_factory=dict)  # by client that had joined; why
    silent: frozenset[str] = frozenset()  # in any of its phases, until its time was up
    offered: set[str] = field(default_factory=set)  # clients that could have joined it


@dataclass(frozen=True)
class _EndedRound:
    reason: str  # why it was aborted; empty if it was not
    left_out: dict[str, str]


class SecureAggregation:
    """The rounds of one federation."""

    def __init__(
        self,
        state: ServerState,
        queue: Writer,
        conclusions: Outcomes,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] | None = None,
    ) -> None:
        """`clock` measures how long phases take; `now` says when windows begin, and is the state's
        clock if it is not given, not its stamps, which may stand still.
        """
        self._state = state
        self._queue = queue
        self._conclusions = conclusions
        self._clock = clock
        self._now = now or state.by_clock
        self._lock = RLock()
        self._round: _MaskedRound | None = None
        self._ended: OrderedDict[str, _EndedRound] = OrderedDict()  # a cache
        self._rejoining: set[str] = (
            set()
        )  # clients that said that they start over, as a restored server asks
        # By client that has complained since it was in a sum: who did not answer it.
        self._unanswered: dict[str, frozenset[str]] = {}
        self._dropped: frozenset[str] = frozenset()  # by whom the last round of changes was aborted
        self._culprits: frozenset[str] = (
            frozenset()
        )  # clients that made a sum irrecoverable, and are in no row that is summed up next
        self.aborted = 0  # rounds that were aborted since the server was started
        self._changes = 0  # of all kinds, such as a join
        self._version = 0  # of changes that those who wait must hear of
        self._changes_until = (
            -math.inf
        )  # until then changes come first, because an audit or a rebuild came to nothing
        self._owes_changes = False  # whether there was no round of changes since
        self._watching: list[Future[None]] = []
        self._tries: Counter[frozenset[Part]] = Counter()  # rounds begun, by what is repeated
        self._has_repeated = False  # whether the last round repeated one that was aborted
        self._applied: int | None = None  # the window whose round took effect last

    # -- taking turns ------------------------------------------------------------------------------

    def turn(self, data: bytes | memoryview) -> RoundStatus:
        """Take a client's message, and answer with the state of the round for it."""
        turn = read_turn(self._state, data)
        with self._lock:
            self._note_turn(turn)
            self._conclusions.disputes.exclude_unopened()
            self._move()
            if turn.message is not None:
                self._take(turn)
                self._move()
            return self._standing(turn)

    def _note_turn(self, turn: Turn) -> None:
        """Who is in a round of changes has joined it, as long as it comes."""
        current, joined = self._round, None
        if current is not None and current.everyone is None and turn.client in current.members:
            joined = current.members[turn.client].sequence
        self._conclusions.disputes.note_turn(turn.client, joined)

    def change_after(self, version: int) -> Future[None]:
        """Done as soon as anything has changed since that version."""
        change: Future[None] = Future()
        with self._lock:
            if version != self._version:
                change.set_result(None)
            else:
                self._watching = [
                    future for future in self._watching if not future.done()
                ]  # some have stopped waiting
                self._watching.append(change)
        return change

    def wake(self) -> None:
        """Have everybody who waits for a change look again."""
        with self._lock:
            self._changed()

    def pulse(self) -> tuple[int, float]:
        """A number that grows with every change, and the seconds until rounds may change by
        themselves (0.0 if nothing but a client changes them).
        """
        with self._lock:
            return self._changes, self._due(self._round)

    @property
    def culprits(self) -> frozenset[str]:
        """Clients that dealt wrong shares, and of which no join is taken."""
        return self._culprits

    @property
    def is_between_rounds(self) -> bool:
        """Whether no round is in progress."""
        with self._lock:
            return self._round is None

    def _take(self, turn: Turn) -> None:
        """A message of a phase.

        One that is late is not an error: its sender learns how the round ended.
        """
        current = self._round
        if turn.kind == "opening" and turn.message is not None:
            self._conclusions.disputes.open(turn.message)
            return
        if current is None or turn.aggregation != current.opening.round or turn.message is None:
            return
        before = self._heard(current)
        if current.collector.phase == "joining":
            member = Member(turn.client, turn.sequence, turn.digest, turn.client in self._rejoining)
            self._conclusions.require_member(member, current.opening.purpose)
            self._require_honest(turn.client)
            current.collector.take(turn.message)
            if turn.client not in current.members:
                current.members[turn.client], current.joined = member, self._clock()
                self._note_turn(turn)
        elif turn.kind == "complaint":
            self._take_complaint(current, turn.message)
        else:
            current.collector.take(turn.message)
        is_about_shares = turn.kind in ("complaint", "justification")  # for another one
        if self._heard(current) != before or is_about_shares:
            is_enough = (
                current.collector.phase == "joining" and len(current.members) == self._rules.fewest
            )  # from now on the round may advance by itself
            self._changed(wake=is_enough or is_about_shares)

    def _take_complaint(self, current: _MaskedRound, message: bytes | memoryview) -> None:
        """A complaint must come in the time of a phase, can be answered in that of another, and who
        has complained can go on in that of a third: so all have the time for their part.
        """
        phase_for = self._state.settings.phase_for
        if self._clock() >= current.answer_by - phase_for:
            raise RefusedError(
                "wrong-phase", "the complaint comes too late to be answered in this round"
            )
        current.collector.take(message)
        if current.answer_by == math.inf:
            current.answer_by = current.deadline + phase_for
            current.deadline += 2 * phase_for

    def _require_honest(self, client: str) -> None:
        if client in self._culprits:
            raise RefusedError(
                "not-allowed",
                f"{client} dealt wrong shares in an earlier round, which nobody could unmask: "
                "it takes part in none until the server is started anew. Ask the operator",
            )

    @staticmethod
    def _heard(current: _MaskedRound) -> tuple[int, int]:
        return len(current.members), len(current.collector.awaited)

    # -- moving on ---------------------------------------------------------------------------------

    def _move(self) -> None:
        """Bring the round as far as it gets: on to the next phase, to its end, or to an
        abortion.
        """
        while (current := self._round) is not None:
            is_late = self._clock() >= current.deadline
            if current.collector.phase == "masking" and self._clock() >= current.answer_by:
                current.collector.end_complaints()
                is_late = True  # for answers
            if is_late:
                current.silent |= current.collector.silent
            try:
                self._exclude_absent(current)
                if current.collector.phase in _UNREVEALED:
                    self._require_current(current)
                if not self._is_complete(current):
                    return
                if current.collector.phase == "joining" and current.everyone is None:
                    if not self._close_joining(current):
                        continue
                    self._leave_out(current)
                if current.collector.phase == "masking":
                    self._note_unanswered(current)
                self._advance(current)
                if current.collector.phase == "agreeing":
                    self._require_members(current)
                if current.collector.phase == "done":
                    self._conclude(current)
            except (Aborted, RefusedError) as problem:
                silent = current.silent | self._out_of_step(current)
                self._fail(current, problem.reason)
                culprit = {problem.culprit} - {""} if isinstance(problem, Aborted) else set[str]()
                self._culprits |= culprit
                self._dropped |= silent if current.everyone is None else frozenset()
                self._exclude_silent(current, silent | culprit)
            except BaseException as problem:
                self._fail(
                    current,
                    f"the server failed in the middle of the round ({cause_of(problem)}): "
                    "join the next one",
                )
                self._changed()
                raise
            current.deadline = self._clock() + self._state.settings.phase_for
            self._changed()

    def _advance(self, current: _MaskedRound) -> None:
        """On to the next phase.

        A sum that a client of it has made irrecoverable is a false one, where an arbiter can name
        the client. One that was made so by a client that dropped out is repeated without it.
        """
        try:
            current.collector.advance()
        except Aborted as problem:
            parts = frozenset(current.collector.included)
            is_change = current.opening.purpose == "change"
            if not (self._rules.arbiter and is_change and problem.culprit in dict(parts)):
                raise
            self._void(current, "irrecoverable")
            if parts in self._conclusions.disputes.disputed():
                raise
            raise Aborted(problem.reason) from problem  # the culprit is wanted in its row

    def _is_complete(self, current: _MaskedRound) -> bool:
        """Whether the phase is over: all have answered, or its time is up."""
        collector, now = current.collector, self._clock()
        if collector.phase != "joining":
            return not collector.awaited or now >= current.deadline
        joined = set(current.members)
        if current.everyone is not None:
            return joined >= current.everyone
        if len(self.chosen(current)) < self._rules.fewest:
            return False  # changes wait for a round with enough clients
        if joined >= set(self._state.clients("active", "must-rejoin")):
            return True
        return self._has_gathered(current)

    def _has_gathered(self, current: _MaskedRound) -> bool:
        """Whether those that have joined need not wait for others any longer."""
        if (left := self._left_to_join(current)) is not None:
            return left <= 0.0
        return self._clock() >= self._gathered_at(current)

    def _gathered_at(self, current: _MaskedRound) -> float:
        """When those that have joined go on, unless more do.

        A sum that waits, whose turn it is and of which some have joined, has the time of a phase:
        rounds of others, one after another, would otherwise let its clients never meet.
        """
        gathered = current.joined + self._state.settings.gather_for
        if current.everyone is not None or self._has_repeated:
            return gathered
        joined = {(member.client, member.sequence) for member in current.members.values()}
        disputed = self._conclusions.disputes.disputed()
        rests = [remaining(one.parts, self._gone) for one in self._conclusions.attempted()]
        is_met = any(rest & joined and not rest <= joined for rest in rests if rest not in disputed)
        return max(gathered, current.deadline) if is_met else gathered

    def _left_to_join(self, current: _MaskedRound) -> float | None:
        """Seconds until the window ends in which a round is joined; None without a schedule."""
        schedule = self._schedule
        if schedule is None or current.window is None:
            return None
        return schedule.end(current.window) - self._now()

    def _exclude_absent(self, current: _MaskedRound) -> None:
        """Those that others wait for, to repeat a sum, may not be away for ever."""
        is_joining = current.collector.phase == "joining" and current.everyone is None
        if is_joining and self._has_gathered(current):
            refused = self._culprits.union(self.odd(current))
            present = remaining(self._joined(current), refused)
            self._conclusions.disputes.exclude_absent(present, refused)

    def _exclude_silent(self, current: _MaskedRound, silent: frozenset[str]) -> None:
        """Nor may those that join it, and then leave it each time, or make it impossible."""
        if silent and current.everyone is None:
            parts = {part for part in self._joined(current) if part[0] in silent}
            self._conclusions.disputes.exclude_silent(parts)

    def _close_joining(self, current: _MaskedRound) -> bool:
        """From now on nobody uses up its number by another request; False if somebody did since it
        has joined: those have no part in the round, which may have too few then.
        """
        with self._state.lock:
            late = self._out_of_step(current)
            if not late:
                self._state.under_way = self._joined(current)
        self._drop_members(current, dict.fromkeys(late, _OUT_OF_STEP))
        return not late

    @staticmethod
    def _joined(current: _MaskedRound) -> frozenset[Part]:
        return frozenset((one.client, one.sequence) for one in current.members.values())

    @staticmethod
    def _drop_members(current: _MaskedRound, reasons: dict[str, str]) -> None:
        current.collector.leave_out(reasons)
        for client, reason in reasons.items():
            del current.members[client]
            current.left_out[client] = reason

    def _out_of_step(self, current: _MaskedRound) -> frozenset[str]:
        """The members of a round of changes whose requests can be applied no more, since they have
        used their numbers up meanwhile, or have left: as if they had dropped out.
        """
        if current.everyone is not None:
            return frozenset()
        return frozenset(
            client
            for client, member in current.members.items()
            if not self._conclusions.can_be_applied(member)
        )

    def _note_unanswered(self, current: _MaskedRound) -> None:
        """Who drops out of a round, since others do not answer its complaint, is in the next ones
        without them. Whoever is in the sum, or drops out by itself, has had its turn.
        """
        for client in current.members:
            owing = current.collector.unanswered.get(client, frozenset())
            if owing:
                self._unanswered[client] = self._unanswered.get(client, frozenset()) | owing
            else:
                self._unanswered.pop(client, None)

    def agreeable(self, current: _MaskedRound) -> frozenset[Part]:
        """Those that joined and may be summed up together, after the sums that were asked for.

        Who says other things in its join than is known of its part is not among them: clients of
        its sum would refuse the round.
        """
        attempts = self._conclusions.attempted()
        attempts.sort(key=lambda attempt: self._tries[attempt.parts])
        joined = {(member.client, member.sequence) for member in current.members.values()}
        return choose(
            {part for part in joined if part[0] not in self.odd(current)},
            attempts,
            gone=self._gone,
            rules=self._rules,
            repeat=not self._has_repeated,
            disputed=self._conclusions.disputes.disputed(),
            exposed=self._exposed(current),
        )

    def chosen(self, current: _MaskedRound) -> frozenset[Part]:
        """The same, without those that left complaints of others unanswered, or dropped out of the
        last round, which was aborted. A sum that is repeated stays as it is.
        """
        agreeable, gone = self.agreeable(current), self._gone
        rests = [remaining(attempt.parts, gone) for attempt in self._conclusions.attempted()]
        if agreeable in rests:
            return agreeable
        exposed = self._exposed(current)
        # If most have dropped out, it was not they that spoilt the round.
        is_enough = len(remaining(agreeable - exposed, self._dropped)) >= self._rules.fewest
        dropped = self._dropped if is_enough else frozenset[str]()
        return without_silent(
            agreeable,
            {client: self._unanswered.get(client, dropped) | dropped for client, _ in agreeable},
            current.opening.round,
            fewest=self._rules.fewest,
            together=rests,
            exposed=exposed,
        )

    def odd(self, current: _MaskedRound) -> dict[str, str]:
        """The clients that say something else of their part, in their joins, than is known of it;
        with the reason why the round goes on without them.

        Law: an honest client is never among them for longer than until its clock has passed the
        time of the rules. What hides nobody never hides anybody again; and what others were hidden
        by does so until its client is excluded, or few are left of a sum with it.
        """
        return dict.fromkeys(dict(self._unmarked(current)), _UNMARKED) | dict.fromkeys(
            dict(self._mismarked(current)), _MISMARKED
        )

    def _unmarked(self, current: _MaskedRound) -> frozenset[Part]:
        """The parts that hide nobody, by the log or by what their clients said in sums that wait,
        and of which they do not say so any more, or yet.
        """
        said = (attempt.exposed for attempt in self._conclusions.attempted())
        known = self._conclusions.disputes.shown().union(*said)
        return (known & self._joined(current)) - current.collector.exposed

    def _mismarked(self, current: _MaskedRound) -> frozenset[Part]:
        """The parts that hide nobody, by the word of their clients, and did when they were asked
        for last; and of no sum with them few are left.
        """
        said, gone = current.collector.exposed - self._conclusions.disputes.shown(), self._gone
        attempts, fewest = self._conclusions.attempted(), self._rules.fewest
        hid = frozenset[Part]().union(*(one.parts - one.exposed for one in attempts))
        few = (one.parts for one in attempts if one.is_few(remaining(one.parts, gone), fewest))
        return (said & hid).difference(*few)

    def _exposed(self, current: _MaskedRound) -> frozenset[Part]:
        """The parts of a round that hide nobody: by the word of their clients, or by the log."""
        return current.collector.exposed | self._conclusions.disputes.shown()

    @property
    def _gone(self) -> frozenset[str]:
        """Who takes part in no sum any more."""
        return frozenset(self._state.clients("gone", "barred"))

    def _reason_left_out(self, current: _MaskedRound, client: str) -> str:
        """Why a round goes on without a client, or would."""
        if current.collector.phase == "joining" and current.everyone is None:
            return self.odd(current).get(client, "")
        return current.left_out.get(client, "")

    def _lacking(self, current: _MaskedRound) -> str:
        """Why those that joined wait, though they are enough: the clients of an aborted round."""
        if current.collector.phase != "joining" or current.everyone is not None:
            return ""
        few, joined = self._rules.fewest, set(current.members).difference(self.odd(current))
        if len(joined) < few or len(self.chosen(current)) >= few:
            return ""
        gone = self._gone
        disputed = {
            client
            for parts in self._conclusions.disputes.disputed()
            if remaining(parts, gone) == parts
            for client, _ in parts
        }
        if joined & disputed:
            return "a sum was false: its clients wait until the arbiter has said whose part was"
        attempts = self._conclusions.attempted()
        attempted = {client for attempt in attempts for client, _ in attempt.parts}
        missing = attempted - joined - gone
        if not missing:
            return (
                f"the round waits for {few} clients that are not among the few that are left of a "
                "sum, nor were excluded from one: let more of them sync, or enrol some"
            )
        return (
            "a round was aborted after its sum may have been unmasked, and a sum without "
            f"{_named(missing)} would show what they changed: the same clients must join "
            "again. One that stays away for ever must be forgotten by the operator"
        )

    def _leave_out(self, current: _MaskedRound) -> None:
        """Leave out those that would not agree to a sum with the others, or spoil theirs."""
        agreeable, parts = self.agreeable(current), self.chosen(current)
        attempts = [attempt.parts for attempt in self._conclusions.attempted()]
        chosen = {client for client, _ in parts}
        repeated = [attempt for attempt in attempts if parts & attempt]
        self._has_repeated = bool(repeated)
        self._tries = Counter({attempt: self._tries[attempt] for attempt in attempts})
        self._tries.update(repeated)
        silent = {client for client, _ in agreeable - parts}
        self._dropped = frozenset()  # it has missed one, if others were enough
        others = set(current.members) - chosen
        reasons = dict.fromkeys(others, _NOT_OF_THIS_SUM) | self.odd(current)
        reasons |= dict.fromkeys(silent, _SILENT)
        self._drop_members(current, {client: reasons[client] for client in others})

    def _require_current(self, current: _MaskedRound) -> None:
        """Before anything is revealed: the round is still about what it was opened for."""
        opening, spec = current.opening, self._state.spec
        if (opening.data_digest, opening.labels_digest) != (spec.data_digest, spec.labels_digest):
            raise Aborted("the labels were amended while the round was under way: it begins anew")
        if current.everyone is None:
            self._require_enough(current)
            return
        others = current.everyone ^ set(self._state.clients("active"))
        if others:
            raise Aborted(
                f"{_named(others)} came or went while a round of all clients was under way: it "
                "begins anew"
            )
        missing = current.everyone - set(current.members)
        if current.collector.phase == "joining" and missing and self._clock() >= current.deadline:
            needed = f"{_a(opening.purpose)} needs every client: it is tried again later"
            if refused := missing & self._culprits:
                raise Aborted(
                    f"{_named(refused)} dealt wrong shares in an earlier round, and takes part in "
                    f"none until the server is started anew, but {needed}. The operator must start "
                    f"the server anew, or forget {_named(refused)}"
                )
            raise Aborted(f"{_named(missing)} did not join, and {needed}")

    def _require_enough(self, current: _MaskedRound) -> None:
        """On a schedule: enough clients have joined when the window ends."""
        left, schedule = self._left_to_join(current), self._schedule
        if current.collector.phase != "joining" or schedule is None or left is None or left > 0.0:
            return
        few, joined = self._rules.fewest, len(current.members)
        if len(self.chosen(current)) < few:
            reason = self._lacking(current) or (
                f"{joined} of the {few} clients that a round needs joined while its window was open"
            )
            raise Aborted(f"{reason}: {schedule.next_round(self._now())}")

    def _require_members(self, current: _MaskedRound) -> None:
        """Before anything is revealed: the sum has every client that it needs, and the requests in
        it can still be applied.

        A sum of an audit or a rebuild that lacks a client would show that client, as what the
        ledger has more.
        """
        if current.everyone is None:
            members = self._included(current)
            for member in members:
                self._conclusions.require_member(member, current.opening.purpose)
            self.require_agreeable(current)
            try:
                self._conclusions.attempt(current.opening, members, self._exposed(current))
            except (StoreError, OSError) as problem:
                raise Aborted(
                    f"the server could not store whose sum it asks for ({cause_of(problem)})"
                ) from problem
        elif missing := current.everyone.difference(dict(current.collector.included)):
            raise Aborted(
                f"{_named(missing)} dropped out, and {_a(current.opening.purpose)} needs every "
                "client"
            )

    def require_agreeable(self, current: _MaskedRound) -> None:
        """Some may have agreed to a sum before. If not all of its clients are left in this round,
        they cannot agree to another, and those that never did must not be led to do so.
        """
        included, roster = frozenset(current.collector.included), current.collector.roster
        gone, rules, exposed = self._gone, self._rules, self._exposed(current)
        attempts = self._conclusions.attempted()
        if any(included == attempt.parts for attempt in attempts):
            return
        if not hides_enough(included, roster.parts, rules, marked=roster.exposed, shown=exposed):
            raise Aborted(
                "too many dropped out of a round with clients that others are not hidden among: it "
                "begins anew"
            )
        for attempt in attempts:
            if attempt.parts & included and not follows(
                attempt, included, gone=gone, rules=rules, exposed=exposed
            ):
                missing = {client for client, _ in attempt.parts - included} - gone
                raise Aborted(
                    f"{_named(missing)} dropped out of a round that repeats an aborted one: its "
                    "clients can agree to the same sum only. It begins anew"
                )

    def _conclude(self, current: _MaskedRound) -> None:
        members = self._included(current)
        try:
            sum_of = Contribution.from_vector(self._state.spec, current.collector.sum())
        except ExpungeError as problem:
            self._void(current, "impossible")
            raise Aborted(
                f"the sum of the round is that of no samples ({problem}): a client's statistics "
                "are false"
            ) from problem
        end = getattr(self._conclusions, current.opening.purpose)
        try:
            self._queue.do(lambda: end(current.opening, sum_of, members))
        except RefusedError as refusal:
            if refusal.code in ("impossible", "unsolvable"):
                self._void(current, "impossible" if refusal.code == "impossible" else "headless")
            raise
        except Exception as problem:
            first = members[0]
            receipt = self._conclusions.applied(first.client, first.sequence, current.opening.round)
            if current.opening.purpose != "change" or receipt is None:
                raise Aborted(
                    f"the server could not store the round ({cause_of(problem)})"
                ) from problem
        self._end(current, "")

    @staticmethod
    def _included(current: _MaskedRound) -> list[Member]:
        return [current.members[client] for client, _ in current.collector.included]

    def _void(self, current: _MaskedRound, reason: VoidReason) -> None:
        """A false sum of changes is not repeated as it was.

        One that was made before labels were amended cannot be told from a false one.
        """
        opening, spec = current.opening, self._state.spec
        digests = (spec.data_digest, spec.labels_digest)
        if opening.purpose != "change" or (opening.data_digest, opening.labels_digest) != digests:
            return
        listed = [
            (member.client, member.sequence, member.request) for member in self._included(current)
        ]
        disputes, collector = self._conclusions.disputes, current.collector
        records, agreed = collector.records(), collector.agreed
        try:
            self._queue.do(lambda: disputes.void(opening, listed, reason, records, agreed))
        except (StoreError, OSError) as problem:
            raise Aborted(
                f"the server could not store that a sum was false ({cause_of(problem)}): the same "
                "clients join again"
            ) from problem

    def _fail(self, current: _MaskedRound, reason: str) -> None:
        """A round of all clients that comes to nothing gives way to changes, whoever spoils it."""
        if current.everyone is not None:
            self._changes_until = self._clock() + self._state.settings.phase_for
            self._owes_changes = True
        self._end(current, reason)

    def _end(self, current: _MaskedRound, reason: str) -> None:
        self._round, self._state.under_way = None, frozenset()
        self._owes_changes &= current.everyone is not None
        if not reason and current.window is not None:
            self._applied = current.window
            # A window has one such round: the next sum that waits does not wait for another one.
            self._has_repeated = False
        self.aborted += bool(reason)
        self._rejoining -= set(current.members) if not reason else set()
        self._ended[current.opening.round] = _EndedRound(reason, current.left_out)
        while len(self._ended) > _ENDED_KEPT:
            self._ended.popitem(last=False)

    def _changed(self, *, wake: bool = True) -> None:
        self._changes += 1
        if not wake:
            return
        self._version += 1
        watching, self._watching = self._watching, []
        for change in watching:
            if change.set_running_or_notify_cancel():
                change.set_result(None)

    # -- opening -----------------------------------------------------------------------------------

    @property
    def _rules(self) -> Aggregation:
        return self._conclusions.disputes.rules

    @property
    def _schedule(self) -> Schedule | None:
        return Schedule.of(self._state.spec.aggregation)

    def _window(self) -> int | None:
        """The beginning of the window that is open now and whose round has yet to take effect."""
        schedule = self._schedule
        begin = None if schedule is None else schedule.open_at(self._now())
        return None if begin == self._applied else begin

    def _give_way(self) -> None:
        """End a round that nobody has to finish, if one for another purpose is wanted."""
        current, purpose = self._round, self._purpose()
        if (
            current is not None
            and current.collector.phase == "joining"
            and current.opening.purpose != purpose
            and not self._is_turn_of(current)
        ):
            self._end(current, f"a round for {_a(purpose)} comes first")

    def _is_turn_of(self, current: _MaskedRound) -> bool:
        """Whether an audit or a rebuild that came to nothing waits until this round of changes is
        over: some have joined it, it waits for nobody in particular, and not all know of it.
        """
        if current.everyone is not None or not self._owes_changes or not current.members:
            return False
        known = current.offered.union(current.members)
        return not self._lacking(current) and not known >= set(self._state.clients("active"))

    def _opened(self) -> _MaskedRound:
        """The round in progress, or a new one: a rebuild or an audit if one is wanted, otherwise a
        change.
        """
        if self._round is None:
            state, purpose = self._state, self._purpose()
            spec, now = state.spec, self._clock()
            opening = Opening(
                state.federation,
                state.random(16).hex(),
                purpose,
                spec.data_digest,
                spec.labels_digest,
            )
            everyone = None if purpose == "change" else frozenset(state.clients("active"))
            schedule = self._schedule if purpose == "change" else None
            collector = Collector(
                opening,
                self._rules,
                lambda name: state.actor(name, "client").public_key,
                length=length(spec),
            )
            self._round = _MaskedRound(
                opening,
                collector,
                everyone,
                now,
                now + state.settings.phase_for,
                # which may have ended since the client was found to be in time
                None if schedule is None else schedule.latest(self._now()),
            )
            self._changed()
        return self._round

    def _reason_to_wait(self, turn: Turn) -> str | None:
        """Why no round is opened for a client that asks for one; None if one is opened.

        Without a schedule, a client that has no new request begins none. On one, everybody begins
        the round of a window, and nobody another.
        """
        actor = self._state.actor(turn.client, "client")
        if actor.status not in ("active", "must-rejoin"):
            return f"{turn.client} takes part in no round: the server's log says why"
        if self._purpose() != "change":
            return None
        has_nothing = turn.sequence == actor.sequence
        if (schedule := self._schedule) is not None:
            if self._window() is not None:
                return None
            return (has_nothing and self._hindrance()) or schedule.next_round(self._now())
        if has_nothing:
            return self._hindrance()
        is_reset = turn.client in self._rejoining
        member = Member(turn.client, turn.sequence, turn.digest, is_reset)
        self._conclusions.require_member(member, "change")  # as its join would have to be
        return None

    def _hindrance(self) -> str:
        """Why no round of all clients begins although one is wanted; empty if none is."""
        wanted, state = self._wanted_of_all(), self._state
        if wanted is None:
            return ""
        few, active = self._rules.fewest, len(state.clients("active"))
        if barred := state.clients("barred"):
            return (
                f"{_a(wanted)} waits until the operator has forgotten {_named(barred)}: what a "
                "barred client holds is in the ledger, and it is in no sum"
            )
        if active < few:
            return f"{_a(wanted)} waits for {few} active clients, and there are {active}"
        return f"{_a(wanted)} came to nothing, and changes come first for a while: sync again later"

    def _wanted_of_all(self) -> Literal["rebuild", "audit"] | None:
        """Which round of all clients is wanted, whether it can take place now or not."""
        if self._state.storage.rounds.rebuilds():
            return "rebuild"
        return "audit" if self._state.storage.audits.running() else None

    def _purpose(self) -> Purpose:
        """What the next round is for: in a window, changes come first."""
        return "change" if self._window() is not None else self.wanted()

    def wanted(self) -> Purpose:
        """The purpose of the next round that no window is for.

        With too few clients for a rebuild or an audit, changes may bring others back.
        """
        state, rules = self._state, self._state.spec.aggregation
        if (
            rules is None
            or self._clock() < self._changes_until
            or len(state.clients("active")) < rules.fewest
            or state.clients("barred")  # whose samples are in the ledger, and who adds up nothing
        ):
            return "change"
        return self._wanted_of_all() or "change"

    # -- answering ---------------------------------------------------------------------------------

    def _standing(self, turn: Turn) -> RoundStatus:
        aggregation = turn.aggregation
        if not aggregation:
            (self._rejoining.add if turn.reset else self._rejoining.discard)(turn.client)
            self._give_way()
            if self._round is None and (reason := self._reason_to_wait(turn)) is not None:
                return self._answer(turn, None, "closed", reason=reason)
            current = self._opened()
            if current.collector.phase == "joining":
                current.offered.add(turn.client)
                return self._answer(turn, current, "joining", opening=current.opening.to_json())
            return self._answer(turn, current, "closed")
        current_or_none = self._round
        if current_or_none is not None and current_or_none.opening.round == aggregation:
            collector = current_or_none.collector
            content = collector.say(turn.client) if turn.client in collector.awaited else None
            return self._answer(
                turn,
                current_or_none,
                collector.phase,
                content=content,
                reason=self._reason_left_out(current_or_none, turn.client)
                or self._lacking(current_or_none),
            )
        receipt = self._conclusions.applied(turn.client, turn.sequence, aggregation)
        if receipt is not None:
            return self._answer(turn, None, "done", receipt=canonical.decode(receipt))
        ended = self._ended.get(aggregation, _EndedRound(_UNKNOWN, {}))
        return self._answer(
            turn,
            None,
            "aborted" if ended.reason else "done",
            reason=ended.left_out.get(turn.client, ended.reason),
        )

    def _answer(
        self,
        turn: Turn,
        current: _MaskedRound | None,
        phase: AnsweredPhase,
        *,
        content: bytes | None = None,
        opening: dict[str, Any] | None = None,
        receipt: object = None,
        reason: str = "",
    ) -> RoundStatus:
        state = self._state
        answer = {
            "actor": turn.client,
            "aggregation": turn.aggregation,
            "content": base64.b64encode(content or b"").decode("ascii"),
            "federation": state.federation,
            "fewest": self._rules.fewest,
            "joined": 0 if current is None else len(current.members),
            "opening": opening,
            "phase": phase,
            "purpose": "" if current is None else current.opening.purpose,
            "reason": reason,
            "receipt": receipt,
            "time": time_text(state.now()),
            "to": turn.digest,
        }
        waiting = current is not None and not content and opening is None
        waiting |= phase == "closed" and reason != ""  # a window opens by itself
        data = payloads.sign("standing", answer, state.folder.key)
        return RoundStatus(data, waiting, self._version, self._due(current), turn.wait)

    def _due(self, current: _MaskedRound | None) -> float:
        if current is None:
            # An audit or a rebuild may have given way to changes; a window opens by itself.
            given_way, schedule = max(0.0, self._changes_until - self._clock()), self._schedule
            if given_way or schedule is None:
                return given_way
            return schedule.following(self._now()) - self._now()
        end = current.deadline
        if current.collector.phase == "masking" and self._clock() < current.answer_by:
            end = min(end, current.answer_by)
        if current.collector.phase == "joining":
            if (left := self._left_to_join(current)) is not None:
                return max(0.0, left)
            if current.everyone is not None or len(current.members) < self._rules.fewest:
                return math.inf  # only a join changes it
            end = self._gathered_at(current)
        return max(0.0, end - self._clock())


def _named(names: Collection[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:_FEW]) + (
        f" and {len(ordered) - _FEW} more" if len(ordered) > _FEW else ""
    )


def _a(purpose: str) -> str:
    return "an audit" if purpose == "audit" else f"a {purpose}"
