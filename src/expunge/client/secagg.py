"""The delivery of requests by rounds of secure aggregation, and a client's part in audits and
rebuilds.

Law: a client is in one round at a time, and stays in it until it knows how it ended; everything
else that is due waits for that.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from expunge.client.contributor import Changes, Contributor, RoundPending
from expunge.client.delivery import AbortedRoundError, Direct, PendingError, Send
from expunge.client.outbox import Composition
from expunge.client.samples import Recompute
from expunge.client.store import ClientStore
from expunge.client.trust import SyncAnswer
from expunge.crypto import canonical
from expunge.errors import RefusedError
from expunge.evidence import Receipt
from expunge.kinds import Purpose
from expunge.ridge.spec import Spec
from expunge.ridge.statistics import Statistics
from expunge.secagg import Contribution
from expunge.secagg.schedule import Schedule
from expunge.wire import refusals

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
        where small changes wait, since the order was due (on a schedule, since no window is left
        before it is), whether it holds anything of the person or not. So the answer says nothing.
        """
        return self._composed(cover=False)

    def _composed(self, *, cover: bool) -> Composition | None:
        before = self._orders_before_a_round()
        due = self._due_orders()
        early = [order for order in self._outbox.unanswered() if order not in due]
        return self._outbox.compose(
            cover=cover or bool(before),
            withheld=[*early, *before],
            waits=self._waits(),
            recompute=self._recompute,
        )

    def _due_orders(self) -> list[str]:
        latest = self._next_chance() if self._store.spec.fewest_samples else None
        return self._outbox.unanswered(now=latest)

    def _waits(self) -> bool:
        return self._store.backlog(now=self._next_chance()) is not None

    def _next_chance(self) -> float:
        """Until when what is not sent now waits: on a schedule the next window, since what is due
        before it would come too late, by as much as there is between two of them.
        """
        now, schedule = self._wall_clock(), Schedule.of(self._store.spec.aggregation)
        return now if schedule is None else schedule.following(now + schedule.skew)

    def _orders_before_a_round(self) -> list[str]:
        """Those of the orders whose answer is due that were not yet due at the last round."""
        store, due = self._store, self._due_orders()
        text, newest = store.recall(_ORDERS) or "{}", self._contributor.last_round
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
                if not (composed.reset or self._contributor.is_bound(composed.sequence)):
                    # Those who hold samples of an order compose anew, and hear of it before this
                    # round: so does who holds none.
                    self._orders_before_a_round()
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
                self._outbox.is_outdated() and not self._waits()
            )
        return self.is_outdated(composition)

    def is_outdated(self, composition: Composition) -> bool:
        """Whether a request that waits for a round, and was never masked, would have other samples
        if it were composed now.
        """
        if not _goes_by_round(composition) or self._contributor.is_bound(composition.sequence):
            return False
        # An earlier version left by a request that now goes by a round, which tells nobody.
        return self._outbox.is_outdated() or (composition.reset and composition.leave)

    def is_superseded(self, composition: Composition) -> bool:
        """Whether the server was restored, by its log, since this was masked: then all compose
        anew, and the server does not choose who.
        """
        bound = composition.reset and self._contributor.is_bound(composition.sequence)
        return bound and self._contributor.is_superseded()

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
            # Or another agent has put it back meanwhile, or taken it to another round.
            is_ours = store.participation.read() is None
            if composed is not None and composed.sequence == sequence and is_ours:
                if self._contributor.is_bound(sequence):
                    store.remember({"refusal": outcome.reason})
                else:
                    self._outbox.abandon(sequence, outcome.reason)
        raise PendingError(f"{outcome.reason}. Nothing was changed: the next sync goes on")

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

    def take_back(self, composition: Composition, reason: str) -> None:
        """Put a request back; what may be in a sum only if the log shows that the server lost it:
        under the same number, or in a sum of the same clients, the next one would differ from it.
        """
        if self._contributor.is_bound(composition.sequence):
            self._contributor.require_lost()
        self._outbox.abandon(composition.sequence, reason)

    def divide(self, composition: Composition) -> bool:
        """Never: a sum is as large for any number of samples."""
        del composition
        return False

    def hold_additions(self, *, hold: bool) -> bool:
        """Never: the server takes every sum."""
        del hold
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
        self, answer: SyncAnswer, statistics: Callable[[], Statistics], send: Send
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
        if isinstance(outcome, RoundPending):
            raise PendingError(outcome.reason)
        if outcome.reason:
            raise AbortedRoundError(outcome.reason)
        return tuple((self._store.recall(_AUDITING) or "").split()) if purpose == "audit" else ()

    def release(self) -> None:
        """The round is over for this client, and it holds less than the server counts: a sum of all
        would show by how much, if this client were still in it.
        """
        self._contributor.require_forgotten()
        self._store.participation.drop()

    def readmit(self) -> None:
        """Only if the log shows it to all, who then send everything again."""
        self._contributor.require_restored()


def _goes_by_round(composition: Composition) -> bool:
    is_change = composition.added + composition.deleted > 0
    return is_change or composition.is_cover or composition.reset  # of nothing, perhaps
