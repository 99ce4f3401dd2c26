"""Delivery: how a client's requests reach the ledger. The spec of the federation decides it.

`Direct`: each request goes to the server by itself, and its receipt is the answer. `Masked`, in
`expunge.client.secagg`: the clients meet in rounds, and the server learns only their sum. An agent
is given one of the two when it begins, and then need not know which.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from expunge.client.outbox import Composition
from expunge.client.samples import Recompute
from expunge.client.store import ClientStore
from expunge.client.trust import SyncAnswer, Trust
from expunge.errors import (
    CarrierError,
    CommitmentError,
    InputError,
    ProtocolError,
    RefusedError,
)
from expunge.evidence import Receipt
from expunge.evidence.digests import salted
from expunge.ridge.statistics import Statistics
from expunge.wire import refusals, request
from expunge.wire.carrier import Carrier
from expunge.wire.request import AuditAnswer

# Delivers a request: None if it was refused and the cause has been fixed.
Send = Callable[[Composition], Receipt | None]

_T = TypeVar("_T")
_LARGEST = 64 << 20  # bytes of a request, whatever the server accepts: memory is bounded
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 60.0  # seconds


class PendingError(ProtocolError):
    """A request waits for other clients. This is not a failure; it can be tried again later."""


class AbortedRoundError(PendingError):
    """A round of all clients came to nothing: changes have their turn."""


@dataclass(frozen=True)
class Retry:
    """Retries an action while no answer comes, or while the server asks for a later attempt.

    Attempts come after 0.5, 1, 2, ... seconds; the error of the last one is raised.
    """

    attempts: int = 1
    sleep: Callable[[float], None] = time.sleep

    def __call__(self, act: Callable[[], _T]) -> _T:
        """What `act` gives."""
        pause = _FIRST_PAUSE
        for _ in range(self.attempts - 1):
            try:
                return act()
            except CarrierError:
                pass
            except RefusedError as refusal:
                if refusal.code not in refusals.PASSING:
                    raise
            self.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        return act()


class Delivery(Protocol):
    """The interface by which an agent delivers requests."""

    def compose(self) -> Composition | None:
        """The next request, if anything is pending."""

    def compose_reset(self, sequence: int) -> Composition | None:
        """A request under this number that replaces all that the server holds."""

    def outstanding(self, compose: Callable[[], Composition | None]) -> Composition | None:
        """The request to be delivered now: the one that is composed, or a new one."""

    def deliver(self, composition: Composition) -> Receipt:
        """Offer a request until its receipt is here, and settle it.

        A refusal is passed on, with everything as it was; PendingError if others have to come
        first.
        """

    def may_mend(self, composition: Composition, refusal: RefusedError) -> bool:
        """Whether a request that was refused may be put back, to be composed again."""

    def take_back(self, composition: Composition, reason: str) -> None:
        """Put a request back, to be composed again; EvidenceError if it must go out as it is."""

    def divide(self, composition: Composition) -> bool:
        """Make the next requests smaller than this one, which was too large; whether they can
        be.
        """

    def hold_additions(self, *, hold: bool) -> bool:
        """Whether the next requests are to be without additions, which the server has no room for;
        returns whether that changes them.
        """

    def restart(self, sequence: int) -> int:
        """The server was restored: the number that a reset may have, from this one on."""

    def is_outdated(self, composition: Composition) -> bool:
        """Whether a composed request may still be composed again, and would have other samples."""

    def is_superseded(self, composition: Composition) -> bool:
        """Whether what is being sent anew must be composed anew, whatever the server says that it
        has.
        """

    def cover(self) -> None:
        """Nothing is pending: help others to deliver what they have; PendingError while it goes
        on.
        """

    def audits_first(self) -> bool:
        """Whether an audit is in progress that must end before anything else is delivered."""

    def answer_audits(
        self, answer: SyncAnswer, statistics: Callable[[], Statistics], send: Send
    ) -> tuple[str, ...]:
        """Answer the audits that the server asks for, with recomputed statistics; returns the
        audits answered. AbortedRoundError if that came to nothing.
        """

    def release(self) -> None:
        """The server says that it no longer knows this client: nothing is in progress.

        EvidenceError if its log should show that, and does not.
        """

    def readmit(self) -> None:
        """The server says that it was restored, and knows this client again; EvidenceError if its
        log should show that, and does not.
        """


class Direct:
    """Each request goes to the server by itself."""

    def __init__(
        self,
        store: ClientStore,
        carrier: Carrier,
        trust: Trust,
        retry: Retry,
        recompute: Recompute | None,
        *,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._outbox = store.outbox
        self._carrier = carrier
        self._wall_clock = wall_clock
        self._trust = trust
        self._retry = retry
        self._recompute = recompute
        self._most: int | None = None  # samples of a request, once one was too large
        self._too_large: int | None = None  # bytes of the smallest request that was
        self._holds_additions = False

    # -- composing ---------------------------------------------------------------------------------

    def compose(self) -> Composition | None:
        """The next request, if anything is pending that does not wait for more samples; what is too
        large is measured by what the server takes now.
        """
        try:
            return self._compose()
        except ProtocolError:
            before = self._largest()
            limits = self._retry(self._trust.federation)["limits"]
            self._store.remember({"largest_request": str(int(limits["largest_request"]))})
            if self._largest() <= before:
                raise
            return self._compose()

    def _compose(self) -> Composition | None:
        waits = self._store.backlog(now=self._wall_clock()) is not None
        resets = self._store.is_resetting and not waits
        return self._outbox.compose(
            waits=waits,
            reset=resets,
            answering=resets,
            additions=not self._holds_additions,
            most=self._samples_at_most(),
            largest=self._largest(),
            recompute=self._recompute,
        )

    def compose_reset(self, sequence: int) -> Composition | None:
        """A request under this number that replaces all that the server holds."""
        return self._outbox.compose(
            reset=True,
            sequence=sequence,
            most=self._samples_at_most(),
            largest=self._largest(),
            recompute=self._recompute,
        )

    def _samples_at_most(self) -> int:
        """How many samples a request may have so that its bytes stay within what the server takes;
        enough that none of several requests need be of too few.
        """
        spec = self._store.spec
        room = min(self._server_limit(), _LARGEST) // 2
        each = 64 + (8 * spec.dim + 8 * spec.columns if self._store.message == "rows" else 0)
        most = max(self._least(), room // each)
        return most if self._most is None else min(most, self._most)

    def _least(self) -> int:
        """What a request may always have."""
        return max(1, 2 * self._store.spec.fewest_samples)

    def _largest(self) -> int:
        """How many bytes a request may have that cannot be divided."""
        limit = self._server_limit()
        return limit if self._too_large is None else min(limit, self._too_large - 1)

    def _server_limit(self) -> int:
        return self._store.number("largest_request", _LARGEST)

    def outstanding(self, compose: Callable[[], Composition | None]) -> Composition | None:
        """The request that is composed, or a new one."""
        with self._outbox.turn:
            return self._outbox.composed() or compose()

    # -- delivering --------------------------------------------------------------------------------

    def deliver(self, composition: Composition) -> Receipt:
        """Offer a request until its receipt is here, and settle it."""
        data = self._encoded(composition)
        answer = self._retry(lambda: self._offer(composition.sequence, data))
        receipt = self._trust.receipt(answer, request.read_own(data))
        with self._outbox.turn:
            newest = self._retry(lambda: self._trust.follow(receipt.checkpoint))
            self._outbox.settle(
                composition.sequence, answer, checkpoint=newest, entry=receipt.logged.index
            )
        return receipt

    def _encoded(self, composition: Composition) -> bytes:
        """The bytes of a request. If a feature cannot be computed again, it is put back, unless it
        may have arrived: it must not hold up what can be sent.
        """
        try:
            return self._outbox.encode(composition, recompute=self._recompute)
        except (CommitmentError, InputError) as problem:
            outstanding = self._outbox.composed()
            if outstanding is not None and not outstanding.doubtful:
                self._outbox.abandon(composition.sequence, "")
            problem.add_note(
                "All that stays must be sent again. Put the source back; or, if it is gone for "
                "good, forget the samples that have lost theirs: expunge client forget --lost "
                "--reset"
            )
            raise

    def _offer(self, sequence: int, data: bytes) -> bytes:
        """Offer a request once.

        It is in doubt from before the first attempt, until that one, and no other, was refused.
        """
        doubtful = self._outbox.doubt(sequence)
        try:
            return self._carrier.request(data)
        except RefusedError as refusal:
            if self._store.is_resetting and refusal.code == "not-allowed":
                refusal.add_note(
                    "A server before 0.2.0 lets no client that takes part replace everything: have "
                    "it upgraded, then sync"
                )
            if not doubtful and refusal.code != "storage":
                self._outbox.doubt(sequence, False)
            if refusal.code == "too-large":
                self._too_large = min(len(data), self._too_large or len(data))
            raise

    def may_mend(self, composition: Composition, refusal: RefusedError) -> bool:
        """Always: the request has no other members."""
        del composition, refusal
        return True

    def take_back(self, composition: Composition, reason: str) -> None:
        """Put a request back, to be composed again."""
        self._outbox.abandon(composition.sequence, reason)

    def divide(self, composition: Composition) -> bool:
        """Halve the number of samples, as long as the rest is of enough."""
        samples, least = composition.added + composition.deleted, self._least()
        if samples > least:
            self._most = max(samples // 2, least)
        return samples > least

    def hold_additions(self, *, hold: bool) -> bool:
        """As asked; but where small changes wait, deletions go out with additions only."""
        before = self._holds_additions
        self._holds_additions = hold and not self._store.spec.fewest_samples
        return self._holds_additions != before

    def restart(self, sequence: int) -> int:
        """The same number: no other request has it."""
        return sequence

    def is_outdated(self, composition: Composition) -> bool:
        """Never: what has been composed goes out as it is."""
        del composition
        return False

    def is_superseded(self, composition: Composition) -> bool:
        """Never: the server knows by its number whether it has it."""
        del composition
        return False

    def cover(self) -> None:
        """Nobody's request needs another's."""

    # -- audits ------------------------------------------------------------------------------------

    def audits_first(self) -> bool:
        """Never: an answer to an audit is a request as any other."""
        return False

    def answer_audits(
        self, answer: SyncAnswer, statistics: Callable[[], Statistics], send: Send
    ) -> tuple[str, ...]:
        """Say the salted digest of the statistics for each audit."""
        if not answer.audits:
            return ()
        recomputed = statistics()
        answered: list[str] = []
        for audit, salt in answer.audits:
            digest = salted("audit", salt, recomputed.digest)
            composition = self._outbox.compose(
                audits=[AuditAnswer(audit, digest, recomputed.count)]
            )
            if composition is None:
                raise ProtocolError("an answer to an audit is a request, even of nothing")
            if send(composition) is not None:
                answered.append(audit)
            elif self._outbox.composed() is not None:
                break  # it has taken effect: its receipt comes first, next time
        return tuple(answered)

    def release(self) -> None:
        """Only the request was in progress, which the outbox releases. The server is believed: it
        has seen all that it could see by a lie.
        """

    def readmit(self) -> None:
        """Everything is sent again, to a server that has seen it."""
