"""What becomes of the sum of a round of secure aggregation: a change of the ledger, an audit of it,
or a new ledger.

Law: each takes effect whole, once for each client's sequence number, with its log entry, or not at
all. Nothing here knows of a single client's share: the sum is all there is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace

from expunge.crypto import canonical
from expunge.errors import ExpungeError, RefusedError
from expunge.evidence.log import read_entry
from expunge.evidence.receipt import receipt_content
from expunge.kinds import Purpose
from expunge.ridge.plausibility import problem_with
from expunge.ridge.spec import Spec
from expunge.ridge.statistics import Statistics
from expunge.secagg import Contribution, Opening
from expunge.secagg.unmasking import AgreedSum, Part
from expunge.server.audits import Audits
from expunge.server.disputes import Disputes
from expunge.server.ledger import EVERYONE, Recorded
from expunge.server.maintenance import Maintenance
from expunge.server.orders import Orders
from expunge.server.rules import require_next, require_standing
from expunge.server.state import ServerState
from expunge.server.storage.tables import Membership
from expunge.wire.messages import GramPart, Message
from expunge.wire.schema import UNDISCLOSED, time_text

_BLAME = "Under secure aggregation the server cannot tell which client's statistics are false"
_REBUILD_LATER = (
    "the rebuild is tried again later. If that goes on, the operator must find out whose they are, "
    "and forget that client"
)


@dataclass(frozen=True)
class Member:
    """A client in a round: the number of its request, the digest of the message it joined by, and
    whether it starts over.
    """

    client: str
    sequence: int
    request: str
    reset: bool = False


class Outcomes:
    """Brings sums to their end; in the thread that changes things."""

    def __init__(
        self, state: ServerState, orders: Orders, audits: Audits, upkeep: Maintenance
    ) -> None:
        self._state = state
        self._orders = orders
        self._audits = audits
        self._upkeep = upkeep
        self.disputes = Disputes(state)

    def require_member(self, member: Member, purpose: Purpose) -> None:
        """Refuse a client that cannot take part in a round of this purpose with this sequence
        number.
        """
        actor = self._state.actor(member.client, "client")
        require_standing(member.client, actor.status, reset=member.reset)
        if purpose != "change":
            require_next(
                actor.sequence, member.sequence + 1
            )  # it changes nothing, so it has no number of its own
        elif not (member.reset and member.sequence > actor.sequence):
            require_next(actor.sequence, member.sequence)
        else:
            self._require_waited_for(member)

    def _require_waited_for(self, member: Member) -> None:
        """Who sends everything anew does so under one number: others may be bound to a sum with
        that, and it can be no more once the client is further on.
        """
        attempts = self._state.storage.rounds.attempts()
        waiting = {one.sequence for one in attempts if one.client == member.client}
        if waiting and member.sequence not in waiting:
            raise RefusedError(
                "not-allowed",
                f"others wait to be summed up with request {max(waiting)} of {member.client}, "
                "which was masked: it takes part in a round with that one",
            )

    def can_be_applied(self, member: Member) -> bool:
        """Whether a client's part in a round of changes can still take effect."""
        try:
            self.require_member(member, "change")
        except RefusedError:
            return False
        return True

    def applied(self, client: str, sequence: int, aggregation: str) -> bytes | None:
        """The receipt of a client's request, if this round has applied it."""
        state = self._state
        with state.lock:
            membership = state.storage.rounds.membership(client, sequence)
            if membership is None:
                return None
            entry = state.log.entry(membership.position)
            if read_entry(entry)["aggregation"] != aggregation:
                return None
            checkpoint = state.checkpoint(state.now())
            content = receipt_content(
                server=state.server_id,
                entry=entry,
                index=membership.position,
                proof=state.log.inclusion(membership.position, checkpoint.size),
                checkpoint=checkpoint,
                spec=Spec.from_dict(canonical.decode(membership.spec.encode())),
                client=client,
            )
            return state.sign("receipt", content).to_bytes()

    # -- attempts ----------------------------------------------------------------------------------

    def attempt(
        self, opening: Opening, members: Sequence[Member], exposed: Set[Part] = frozenset()
    ) -> None:
        """Note, durably, to whose sum clients are about to agree, and which parts hide nobody in
        it: until that is applied, they agree to no other.
        """
        parts = {(member.client, member.sequence) for member in members}
        self._state.room.use()
        with self._state.changing() as now:
            self.disputes.supersede(parts)
            self.disputes.ask_for(opening.round, parts, now, exposed)

    def attempted(self) -> list[AgreedSum]:
        """The sums that were to be agreed on, and still could be: the least often tried first.

        Of one that was asked for again, the first time counts, as it does for its clients.
        """
        late = self._late()
        tried = [one for one in self.disputes.tried() if one.aggregation not in late]
        often = Counter(one.parts for one in tried)
        first = {one.parts: AgreedSum(one.parts, one.exposed) for one in reversed(tried)}
        return sorted(first.values(), key=lambda agreed: often[agreed.parts])

    def _late(self) -> set[str]:
        """The rounds attempted whose sums can no longer be: a member is further on. Without one
        that has left, whatever its last number, the others can still be summed up.
        """
        storage = self._state.storage
        actors = {actor.name: actor for actor in storage.actors.all()}
        return {
            attempt.aggregation
            for attempt in storage.rounds.attempts()
            if attempt.sequence <= actors[attempt.client].sequence
            and actors[attempt.client].status != "gone"
        }

    # -- the three ends ----------------------------------------------------------------------------

    def change(self, opening: Opening, sum_of: Contribution, members: Sequence[Member]) -> None:
        """Apply the sum of what clients add and delete, and log who they were."""
        state = self._state
        message = Message("net", GramPart(sum_of.statistics))
        with self._ending(opening):
            for member in members:
                self.require_member(member, opening.purpose)
            changes = sum_of.statistics.digest != Statistics.zero(state.spec).digest
            had_head = state.head is not None
            try:
                state.ledger.apply([message] if changes else [])
                digests = state.solved()
            except ExpungeError as problem:
                # Not what the problem says: its remedy is for who deletes, not for all of a round.
                false = "the sum of this round, added to the ledger, is that of no samples"
                raise RefusedError("impossible", f"{false}. {self._way_on()}") from problem
            if had_head and not digests.head and not self._is_accepted(members):
                raise RefusedError("unsolvable", f"{state.headless}. {self._way_on()}")
            with state.changing() as now:
                record = state.record
                number = record.round + 1
                if changes:
                    recorded = Recorded(EVERYONE, number, message, message.to_bytes(state.spec))
                    state.ledger.record([recorded], record.generation, now)
                state.storage.state.put(replace(record, round=number))
                state.keep_digests(digests)
                index = state.append(
                    "aggregated",
                    now,
                    aggregation=opening.round,
                    clients=[
                        {
                            "client": member.client,
                            "sequence": member.sequence,
                            "request": member.request,
                        }
                        for member in members
                    ],
                    added=sum_of.added,
                    deleted=sum_of.deleted,
                    round=number,
                    ledger_before=record.ledger_digest,
                    ledger_after=digests.ledger,
                    head=digests.head,
                    spec=state.spec.digest,
                    erased_by=time_text(
                        state.pace.promise(
                            now, [member.client for member in members] if changes else []
                        )
                    ),
                    generation=record.generation,
                )
                self._enter(members, index)
            state.settle_head()

    def _way_on(self) -> str:
        """What follows a false sum of changes, for all clients of it, of whom most are honest."""
        last = (
            "open their parts to the arbiter"
            if self.disputes.rules.arbiter
            else "wait until the operator has forgotten one of them"
        )
        return f"{_BLAME}: the clients of the round are summed up in smaller groups, or {last}"

    def _is_accepted(self, members: Sequence[Member]) -> bool:
        parts = {(member.client, member.sequence) for member in members}
        return self.disputes.is_accepted(parts)

    def _enter(self, members: Sequence[Member], index: int) -> None:
        state, storage = self._state, self._state.storage
        text = canonical.encode(state.spec.to_dict()).decode("ascii")
        requests = [(member.client, member.sequence) for member in members]
        storage.rounds.apply(Membership(index, text), requests)
        storage.actors.put(
            *(
                replace(state.actor(client), sequence=sequence, status="active")
                for client, sequence in requests
            )
        )
        storage.rounds.drop_attempts(self._late())
        for member in members:
            if member.reset:
                self._audits.client_joined(member.client)

    def audit(self, opening: Opening, sum_of: Contribution, members: Sequence[Member]) -> str:
        """Compare the sum of what all clients recomputed with the ledger, for every audit that
        waits for them; log the result.
        """
        with self._upkeep.working, self._ending(opening):
            return self._audits.conclude(sum_of.statistics, [member.client for member in members])

    def rebuild(self, opening: Opening, sum_of: Contribution, _: Sequence[Member]) -> None:
        """Put the sum of what the remaining clients hold in the ledger's place; the old ledger is
        erased at once. Refused if that is false, or would take the head away.

        The old ledger minus the new one is what the clients to be forgotten had: no copy of either
        may stay.
        """
        state, new = self._state, sum_of.statistics
        problem = problem_with(new)
        if problem is not None:
            raise RefusedError(
                "impossible",
                f"what all clients say they hold is that of no samples ({problem}). {_BLAME}: "
                f"{_REBUILD_LATER}",
            )
        with self._upkeep.working:
            self._upkeep.fold()
            with self._ending(opening):
                gone, had_head = state.storage.rounds.rebuilds(), state.head is not None
                before, fewer = state.record.ledger_digest, state.ledger.solver.count - new.count
                state.ledger.replace(new)
                digests = state.solved()
                if had_head and not digests.head:
                    raise RefusedError(
                        "unsolvable",
                        f"what all clients say they hold leaves no head: {state.headless}. "
                        f"{_BLAME}: {_REBUILD_LATER}. If they are true, amend gamma or the "
                        "publication bits first, so that there is one",
                    )
                with state.changing() as now:
                    position = state.storage.journal.last()
                    state.ledger.has_remains = True  # the files of before
                    state.ledger.write_ledger(new, position)()
                    state.ledger.fold_client(EVERYONE, position, new)()
                    (slot,) = state.vault.new()
                    state.begin_generation(slot, digests)
                    for client in gone:
                        state.append(
                            "forgotten",
                            now,
                            client=client,
                            count=fewer if len(gone) == 1 and fewer >= 0 else UNDISCLOSED,
                            ledger_before=before,
                            ledger_after=digests.ledger,
                            head=digests.head,
                        )
                        self._orders.client_is_gone(client, 0, now)
                    state.storage.rounds.rebuilt()
                state.settle_head()
            self._upkeep.fold()

    @contextmanager
    def _ending(self, opening: Opening) -> Iterator[None]:
        """The end of a round: under the lock, on sound memory, under the spec that it was opened
        with; or nothing happens.
        """
        state = self._state
        state.room.use()
        with state.lock:
            state.require_sound()
            if (opening.data_digest, opening.labels_digest) != (
                state.spec.data_digest,
                state.spec.labels_digest,
            ):
                raise RefusedError(
                    "wrong-spec",
                    "the labels were amended while the round was under way: it begins anew",
                )
            with state.mending():
                yield
