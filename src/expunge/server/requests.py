"""Requests of clients: many are applied together in one transaction, and answered one by one.

Law: each request is applied once or refused with the reason, as if they had come one after another;
nothing is answered before it is durable. What all requests of a round share is paid once: the
transaction, the solution for the head, the digest of the ledger. Where all of them open their
commitments (`rows`), that digest is by the samples that are live, at the price of those that
changed; otherwise it is of all sums.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field, replace

from expunge.errors import (
    CarrierError,
    ExpungeError,
    ProtocolError,
    RefusedError,
    StoreError,
)
from expunge.evidence import Checkpoint
from expunge.evidence.digests import commitments_root
from expunge.evidence.receipt import receipt_content
from expunge.exact.threads import one_blas_thread
from expunge.kinds import ClientStatus
from expunge.ridge.encoding import Rows
from expunge.ridge.plausibility import problem_with
from expunge.ridge.spec import Spec
from expunge.ridge.statistics import Statistics
from expunge.ridge.sums import Sums
from expunge.server.audits import Audits
from expunge.server.ledger import Recorded
from expunge.server.orders import Orders
from expunge.server.rules import (
    Account,
    judge,
    require_next,
    require_reset,
    require_spec,
    require_standing,
)
from expunge.server.state import Basis, Digests, ServerState
from expunge.server.storage.tables import AnswerRecord
from expunge.wire import messages, request
from expunge.wire.messages import GramPart, Message, RowsPart
from expunge.wire.refusals import cause_of, malformed
from expunge.wire.request import Request
from expunge.wire.schema import time_text

_REMEDY = (
    "delete only what this client added, as it was added. If that is so, another client's "
    "statistics are false: an audit names it"
)


@dataclass(eq=False)
class Offer:
    """A request that was taken in: signed by who it says, and well formed."""

    request: Request
    size: int
    message: Message | None  # None if its number has been used: then it is a repetition, or refused
    answer: Future[bytes] = field(default_factory=Future)
    seconds: dict[str, float] = field(
        default_factory=dict
    )  # how long each phase took: checks, wait, solve, write
    taken: float = field(default_factory=time.perf_counter)

    @property
    def client(self) -> str:
        """Who asks."""
        return self.request.header.client

    def give(self, answer: bytes | ProtocolError) -> None:
        """Answer it; the caller may have given up waiting."""
        with suppress(InvalidStateError):
            if isinstance(answer, bytes):
                self.answer.set_result(answer)
            else:
                self.answer.set_exception(answer)


@dataclass
class _Sheet:
    """What is known of a client in the course of a round."""

    status: ClientStatus
    sequence: int
    account: Account
    added: set[bytes] = field(default_factory=set)
    deleted: set[bytes] = field(default_factory=set)
    messages: list[Message] = field(default_factory=list)
    orders: set[str] = field(default_factory=set)  # answered in this round


@dataclass(frozen=True)
class _Judged:
    offer: Offer
    message: Message  # what it changes in the ledger

    @property
    def sequence(self) -> int:
        return self.offer.request.header.sequence

    def recorded(self, spec: Spec) -> Recorded:
        """It, as it goes to the journal."""
        is_as_sent = self.message is self.offer.message
        data = bytes(self.offer.request.message) if is_as_sent else self.message.to_bytes(spec)
        return Recorded(self.offer.client, self.sequence, self.message, data)


@dataclass(frozen=True)
class _RoundSummary:
    """What all requests of a round share."""

    number: int
    generation: int
    before: str
    after: Digests
    now: int
    erased_by: int


class Requests:
    """Takes offers in (in any thread), and runs rounds of them (in one)."""

    def __init__(self, state: ServerState, orders: Orders, audits: Audits) -> None:
        self._state = state
        self._orders = orders
        self._audits = audits

    # -- taking in ---------------------------------------------------------------------------------

    def take(self, data: bytes | memoryview) -> Offer:
        """Read a request and check who signed it; RefusedError tells what is wrong with it."""
        state, begun = self._state, time.perf_counter()
        if len(data) > state.settings.largest_request:
            raise RefusedError(
                "too-large",
                f"a request of {len(data)} bytes is beyond the "
                f"{state.settings.largest_request} allowed",
            )
        with malformed():
            client_request = request.read(data)
        header = client_request.header
        state.require_federation(header.federation)
        actor = state.signing_client(header.client, client_request.signed)
        if header.sequence <= actor.sequence:
            return Offer(
                client_request, len(data), None, seconds={"checks": time.perf_counter() - begun}
            )
        require_spec(state.spec, client_request)
        with malformed():
            message = messages.read(
                state.spec, header.message, header.added, header.deleted, client_request.message
            )
        return Offer(
            client_request, len(data), message, seconds={"checks": time.perf_counter() - begun}
        )

    # -- rounds ------------------------------------------------------------------------------------

    def run(self, offers: Sequence[Offer]) -> None:
        """Bring each offer to its end: an answer, or a refusal."""
        together: list[Offer] = []
        for offer in offers:
            if offer.request.header.audits or offer.request.header.reset or _may_empty(offer):
                self._guarded(together)
                self._guarded([offer])
                together = []
            else:
                together.append(offer)
        self._guarded(together)

    def _guarded(self, offers: list[Offer]) -> None:
        if not offers:
            return
        # With two BLAS threads, calls as short as these take longer, on a busy machine tenfold
        with one_blas_thread(), self._state.lock:
            try:
                self._state.require_sound()
                self._run(offers)
            except Exception as problem:
                self._after(problem, offers)

    def _run(self, offers: list[Offer]) -> None:
        sheets: dict[str, _Sheet] = {}
        judged: list[_Judged] = []
        digests: dict[tuple[str, int], str] = {}
        echoes: list[Offer] = []
        begun = time.perf_counter()
        for offer in offers:
            offer.seconds["wait"] = begun - offer.taken
            header = offer.request.header
            try:
                earlier_digest = digests.get((offer.client, header.sequence))
                if earlier_digest == offer.request.digest:
                    echoes.append(offer)
                    continue
                if earlier_digest is None and self._answered(offer):
                    continue
                judged.append(self._judge(offer, sheets))
                digests[offer.client, header.sequence] = offer.request.digest
            except RefusedError as refusal:
                offer.give(refusal)
        checks = time.perf_counter() - begun
        for judgement in judged:
            judgement.offer.seconds["checks"] += checks
        if judged:
            self._apply(judged, sheets)
        for offer in echoes:
            self._run([offer])

    def _answered(self, offer: Offer) -> bool:
        """Answer a request whose number has been used: by its receipt, or by a refusal if it is
        another request.
        """
        header = offer.request.header
        record = self._state.answer_of(offer.client, header.sequence)
        if record is not None and record.request == offer.request.digest:
            offer.give(record.answer)
            return True
        return False

    def _judge(self, offer: Offer, sheets: dict[str, _Sheet]) -> _Judged:
        state, client_request, header = self._state, offer.request, offer.request.header
        sheet = sheets.get(offer.client) or self._sheet(offer.client)
        require_standing(offer.client, sheet.status, reset=header.reset)
        rejoins = header.reset and sheet.status == "must-rejoin"
        require_next(
            header.sequence - 1 if rejoins and header.sequence > sheet.sequence else sheet.sequence,
            header.sequence,
        )
        if header.reset and not rejoins:
            require_reset(state.spec, client_request)
        self._require_free_number(offer)
        require_spec(state.spec, client_request)  # again: it may have been amended since
        if offer.message is None:
            raise RefusedError(
                "sequence-reused",
                f"request number {header.sequence} has been used",
                expected=sheet.sequence + 1,
            )
        replaced = sheet.account.count if header.reset else 0  # which is written as sums
        if header.added > header.deleted + replaced:
            state.room.require()
        if header.audits and (header.added or header.deleted):
            raise RefusedError(
                "not-allowed", "a request that answers an audit must not change samples as well"
            )
        self._orders.require_waiting(offer.client, header.orders, sheet.orders)
        self._audits.require_waiting(offer.client, header.audits)
        account = judge(
            state.spec,
            sheet.account,
            client_request,
            offer.message,
            lambda named: self._live(offer.client, sheet, named),
        )
        if state.spec.is_exact and header.deleted and account.count == 0:
            self._require_nothing_left(offer.client, [*sheet.messages, offer.message])
        sheet.messages.append(offer.message)
        sheet.orders |= {answer.order for answer in header.orders}
        sheet.account, sheet.sequence = account, header.sequence
        sheet.status = "gone" if header.leave else "active"
        sheet.added = (sheet.added | set(client_request.added)) - set(client_request.deleted)
        sheet.deleted = (sheet.deleted | set(client_request.deleted)) - set(client_request.added)
        sheets[offer.client] = sheet
        return _Judged(offer, self._effect(offer.client, offer.message, reset=header.reset))

    def _effect(self, client: str, message: Message, *, reset: bool) -> Message:
        """What a message changes in the ledger: a reset takes the place of the client's share."""
        if not reset or not self._state.spec.is_exact:
            return message
        spec, share = self._state.spec, self._state.ledger.exact_subledger(client)
        if not share.count:
            return message
        part = message.added
        added = GramPart(_statistics(spec, part.rows)) if isinstance(part, RowsPart) else part
        return Message("gram", added, GramPart(share))

    def _require_free_number(self, offer: Offer) -> None:
        """Others may wait to be summed up with a client's part under this number: with another
        request, it would use the number up, and they would wait for ever.
        """
        header = offer.request.header
        if self._state.spec.aggregation is None or header.leave:
            return
        if header.reset:
            raise RefusedError(
                "not-allowed",
                "under secure aggregation everything is sent anew by a round, also by a client "
                "that holds nothing: upgrade the client, and sync again",
            )
        part = (offer.client, header.sequence)
        if part in self._state.under_way:
            raise RefusedError(
                "not-allowed",
                f"{offer.client} has joined a round with request {header.sequence}: that goes by "
                "the round, or another one when it is over",
            )
        attempts = self._state.storage.rounds.attempts()
        if any(part == (attempt.client, attempt.sequence) for attempt in attempts):
            raise RefusedError(
                "not-allowed",
                f"others wait to be summed up with request {header.sequence} of {offer.client}, "
                "which was masked: it takes part in a round with that one, or leaves",
            )

    def _sheet(self, client: str) -> _Sheet:
        actor = self._state.actor(client)
        return _Sheet(actor.status, actor.sequence, self._state.ledger.account(client))

    def _live(self, client: str, sheet: _Sheet, named: Sequence[bytes]) -> set[bytes]:
        present = self._state.storage.commitments.present(client, named)
        return (present - sheet.deleted) | (sheet.added & set(named))

    def _require_nothing_left(self, client: str, changes: Sequence[Message]) -> None:
        """Without samples there must be no statistics: not in one entry.

        What was added as a Gram may not be what rows open.
        """
        share = self._state.ledger.share_after(client, changes)
        problem = problem_with(share)
        if problem is not None:
            raise RefusedError("impossible", f"{problem}. Nothing was changed: {_REMEDY}")

    # -- taking effect -----------------------------------------------------------------------------

    def _apply(self, judged: list[_Judged], sheets: dict[str, _Sheet]) -> None:
        state, begun = self._state, time.perf_counter()
        state.room.use()
        before = state.basis()
        try:
            state.ledger.apply([judgement.message for judgement in judged])
            digests = self._solved(judged, before)
        except StoreError:
            raise
        except ExpungeError as problem:
            state.recover()
            if len(judged) == 1:
                judged[0].offer.give(
                    RefusedError("impossible", f"{problem}. Nothing was changed: {_REMEDY}")
                )
                return
            for judgement in judged:  # find out which of them it is
                self._run([judgement.offer])
            return
        solved = time.perf_counter()
        answers = self._commit(judged, sheets, digests)
        written = time.perf_counter()
        state.settle_head()
        for client, sheet in sheets.items():
            state.ledger.keep_account(client, sheet.account)
        for judgement, answer in zip(judged, answers, strict=True):
            judgement.offer.seconds |= {"solve": solved - begun, "write": written - solved}
            judgement.offer.give(answer)

    def _solved(self, judged: list[_Judged], before: Basis) -> Digests:
        state, live = self._state, before.live
        kinds = {judgement.message.kind for judgement in judged} - {"none"}
        if not kinds:  # nothing has changed but who has answered what
            return state.solved_as(before)
        for judgement in judged:
            given = judgement.offer.request
            held = state.storage.commitments.of(given.header.client) if given.header.reset else ()
            live = live.without(given.header.client, (*given.deleted, *held))
            live = live.having(given.header.client, given.added)
        if state.spec.is_exact and kinds == {"rows"}:
            return state.solved_by_samples(before, live)
        return state.solved(live)

    def _commit(
        self, judged: list[_Judged], sheets: dict[str, _Sheet], digests: Digests
    ) -> list[bytes]:
        state, storage = self._state, self._state.storage
        with state.changing() as now:
            record = state.record
            changing = [judgement for judgement in judged if judgement.message.kind != "none"]
            this = _RoundSummary(
                record.round + 1,
                record.generation,
                record.ledger_digest,
                digests,
                now,
                state.pace.promise(now, [judgement.offer.client for judgement in changing]),
            )
            changes = [judgement.recorded(state.spec) for judgement in changing]
            state.ledger.record(changes, this.generation, now)
            storage.state.put(replace(record, round=this.number))
            state.keep_digests(digests)
            positions = [self._enter(judgement, this) for judgement in judged]
            storage.actors.put(
                *(
                    replace(state.actor(client), sequence=sheet.sequence, status=sheet.status)
                    for client, sheet in sheets.items()
                )
            )
            checkpoint = state.checkpoint(now)
            answers = [
                AnswerRecord(
                    judgement.offer.client,
                    judgement.sequence,
                    judgement.offer.request.digest,
                    receipt,
                    len(judgement.offer.request.header.orders),
                )
                for judgement, receipt in zip(
                    judged, (self._receipt(index, checkpoint) for index in positions), strict=True
                )
            ]
            storage.answers.add(*answers)
            for client in sheets:  # by its next request, a client has the receipt of the last one
                first = min(each.sequence for each in judged if each.offer.client == client)
                storage.answers.prune(client, first)
        return [answer.answer for answer in answers]

    def _receipt(self, index: int, checkpoint: Checkpoint) -> bytes:
        state, entry = self._state, self._state.log.entry(index)
        proof = state.log.inclusion(index, checkpoint.size)
        content = receipt_content(
            server=state.server_id,
            entry=entry,
            index=index,
            proof=proof,
            checkpoint=checkpoint,
            spec=state.spec,
        )
        return state.sign("receipt", content).to_bytes()

    def _enter(self, judgement: _Judged, this: _RoundSummary) -> int:
        """One request's commitments, log entry and answers to orders and audits."""
        state, client_request, header = (
            self._state,
            judgement.offer.request,
            judgement.offer.request.header,
        )
        client = header.client
        if header.reset:
            state.storage.commitments.remove_all(client)
        state.storage.commitments.remove(client, client_request.deleted)
        state.storage.commitments.add(client, client_request.added)
        index = state.append(
            "changed",
            this.now,
            client=client,
            sequence=header.sequence,
            request=client_request.digest,
            message=header.message,
            added=header.added,
            deleted=header.deleted,
            added_commitments=commitments_root(client_request.added),
            deleted_commitments=commitments_root(client_request.deleted),
            leave=header.leave,
            reset=header.reset,
            orders=[{"found": answer.found, "order": answer.order} for answer in header.orders],
            audits=[answer.audit for answer in header.audits],
            round=this.number,
            ledger_before=this.before,
            ledger_after=this.after.ledger,
            head=this.after.head,
            spec=state.spec.digest,
            erased_by=time_text(this.erased_by),
            generation=this.generation,
            version=2,
            binds=this.after.binds,
            base=this.after.basis.position,
        )
        if judgement.message.log is not None:
            size, root = judgement.message.log
            state.append(
                "forwarded",
                this.now,
                client=client,
                sequence=header.sequence,
                size=size,
                root=root.hex(),
            )
        self._orders.answer(client, header.orders, header.sequence, this.now)
        self._audits.answer(client, header.audits)
        if header.reset:
            self._audits.client_joined(client)
        if header.leave:
            self._orders.client_is_gone(client, header.sequence, this.now)
            self._audits.client_is_gone(client)
        return index

    def _after(self, problem: Exception, offers: list[Offer]) -> None:
        """Something failed, before or after the commit: the store decides each offer's answer."""
        waiting = [offer for offer in offers if not offer.answer.done()]
        try:
            self._state.recover()
            answered = [offer for offer in waiting if self._answered(offer)]
        except Exception:
            for offer in waiting:
                if not offer.answer.done():
                    offer.give(CarrierError(f"the server cannot read its store: {problem}"))
            return
        reason = (
            f"the server could not store the request ({cause_of(problem)}): "
            "nothing was changed, offer "
            "it again later"
        )
        for offer in waiting:
            if offer not in answered:
                offer.give(RefusedError("storage", reason))


def _statistics(spec: Spec, rows: Rows) -> Statistics:
    """The exact sums of rows."""
    sums = Sums(spec)
    sums.change(rows, 1)
    return Statistics.snapshot(sums)


def _may_empty(offer: Offer) -> bool:
    """Whether only the client's whole sub-ledger can tell that a deletion by statistics leaves
    nothing behind.
    """
    return offer.request.header.message in ("gram", "group") and offer.request.header.deleted > 0
