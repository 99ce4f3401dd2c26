"""What becomes of the sum of a round of secure aggregation: a change of the ledger, an audit of it,
or a new ledger.

Law: each takes effect whole, once for each client's sequence number, with its log entry, or not at
all. Nothing here knows of a single client's share: the sum is all there is.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from expunge.crypto import canonical
from expunge.errors import ExpungeError, RefusedError
from expunge.evidence import read_entry, receipt_content
from expunge.ridge.plausibility import problem_with
from expunge.ridge.spec import Spec
from expunge.secagg import Contribution, Opening
from expunge.server.audits import Audits
from expunge.server.ledger import EVERYONE, Recorded
from expunge.server.maintenance import Maintenance
from expunge.server.orders import Orders
from expunge.server.rules import require_next, require_standing
from expunge.server.state import ServerState
from expunge.wire.messages import GramPart, Message
from expunge.wire.schema import UNDISCLOSED, time_text

_BLAME = (
    "nothing was changed. Under secure aggregation the server cannot tell which client's "
    "statistics are false: an audit shows whether the ledger is what the clients hold"
)


@dataclass(frozen=True)
class Member:
    """A client in a round: the number of its request, the digest of the message it joined by, and
    whether it begins anew.
    """

    client: str
    sequence: int
    request: str
    reset: bool = False


class Outcomes:
    """Brings sums to their end; in the thread that changes things."""

    def __init__(
        self, core: ServerState, orders: Orders, audits: Audits, upkeep: Maintenance
    ) -> None:
        self._core = core
        self._orders = orders
        self._audits = audits
        self._upkeep = upkeep

    def require_member(self, member: Member, purpose: str) -> None:
        """Refuse a client that cannot take part in a round of this purpose with this sequence
        number.
        """
        actor = self._core.actor(member.client, "client")
        require_standing(member.client, actor.status, reset=member.reset)
        if purpose != "change":
            require_next(
                actor.sequence, member.sequence + 1
            )  # it changes nothing, so it has no number of its own
        elif not (member.reset and member.sequence > actor.sequence):
            require_next(actor.sequence, member.sequence)

    def applied(self, client: str, sequence: int, aggregation: str) -> bytes | None:
        """The receipt of a client's request, if this round has applied it."""
        core = self._core
        with core.lock:
            row = core.database.row(
                "SELECT position, spec FROM members JOIN aggregations USING (position) "
                "WHERE client = ? AND sequence = ?",
                (client, sequence),
            )
            if row is None:
                return None
            position, spec = row
            entry = core.log.entry(position)
            if read_entry(entry)["aggregation"] != aggregation:
                return None
            checkpoint = core.checkpoint(core.now())
            content = receipt_content(
                server=core.server_id,
                entry=entry,
                index=position,
                proof=core.log.inclusion(position, checkpoint.size),
                checkpoint=checkpoint,
                spec=Spec.from_dict(canonical.decode(spec.encode())),
                client=client,
            )
            return core.sign("receipt", content).to_bytes()

    # -- attempts ----------------------------------------------------------------------------------

    def attempt(self, opening: Opening, members: Sequence[Member]) -> None:
        """Note, durably, whose sum is about to be unmasked: until that is applied, only the same
        sum may be asked for again.
        """
        rows = [(opening.round, one.client, one.sequence) for one in members]
        with self._core.changing() as (connection, _):
            connection.executemany(
                "INSERT INTO attempts (aggregation, client, sequence) VALUES (?, ?, ?)", rows
            )

    def attempted(self) -> list[frozenset[tuple[str, int]]]:
        """By client and sequence number, those whose sums were to be unmasked, and still could be:
        the least often tried first.

        So where clients know of different ones, and refuse the others, each has its turn.
        """
        found: dict[str, set[tuple[str, int]]] = {}
        query = (
            "SELECT aggregation, client, attempts.sequence, status, actors.sequence FROM attempts "
            "JOIN actors ON name = client"
            " ORDER BY attempts.rowid"
        )
        rows = self._core.database.rows(query)
        late = {row[0] for row in rows if row[3] == "gone" or row[2] <= row[4]}
        for aggregation, client, sequence, _, _ in rows:
            if aggregation not in late:
                found.setdefault(aggregation, set()).add((client, sequence))
        tried = Counter(frozenset(members) for members in found.values())
        return sorted(tried, key=tried.__getitem__)

    @staticmethod
    def _forget_attempts(connection: sqlite3.Connection) -> None:
        connection.execute(
            "DELETE FROM attempts WHERE aggregation IN (SELECT aggregation FROM attempts "
            "JOIN actors ON name = client "
            "WHERE status = 'gone' OR attempts.sequence <= actors.sequence)"
        )

    # -- the three ends ----------------------------------------------------------------------------

    def change(self, opening: Opening, sum_of: Contribution, members: Sequence[Member]) -> None:
        """Apply the sum of what clients add and delete, and log who they were."""
        core = self._core
        message = Message("net", GramPart(sum_of.statistics))
        with self._ending(opening):
            for member in members:
                self.require_member(member, opening.purpose)
            try:
                core.books.apply([message])
                digests = core.solved()
            except ExpungeError as problem:
                raise RefusedError("impossible", f"{problem}; {_BLAME}") from problem
            with core.changing() as (connection, now):
                number, generation, before = core.database.rows(
                    "SELECT round + 1, generation, ledger_digest FROM state"
                )[0]
                recorded = Recorded(EVERYONE, number, message, message.to_bytes(core.spec))
                core.books.record(connection, [recorded], generation, now)
                connection.execute("UPDATE state SET round = ?", (number,))
                core.keep_digests(connection, digests)
                index = core.append(
                    connection,
                    "aggregated",
                    now,
                    aggregation=opening.round,
                    clients=[
                        {"client": one.client, "sequence": one.sequence, "request": one.request}
                        for one in members
                    ],
                    added=sum_of.added,
                    deleted=sum_of.deleted,
                    round=number,
                    ledger_before=before,
                    ledger_after=digests.ledger,
                    head=digests.head,
                    spec=core.spec.digest,
                    erased_by=time_text(now + core.settings.erase_within),
                    generation=generation,
                )
                self._enter(connection, members, index)
            core.settle_head()

    def _enter(self, connection: sqlite3.Connection, members: Sequence[Member], index: int) -> None:
        text = canonical.encode(self._core.spec.to_dict()).decode("ascii")
        connection.execute("INSERT INTO aggregations (position, spec) VALUES (?, ?)", (index, text))
        connection.executemany(
            "INSERT INTO members (client, sequence, position) VALUES (?, ?, ?)",
            [(one.client, one.sequence, index) for one in members],
        )
        connection.executemany(
            "UPDATE actors SET sequence = ?, status = 'active' WHERE name = ?",
            [(one.sequence, one.client) for one in members],
        )
        self._forget_attempts(connection)
        for one in members:
            if one.reset:
                self._audits.client_joined(connection, one.client)

    def audit(self, opening: Opening, sum_of: Contribution, members: Sequence[Member]) -> str:
        """Compare the sum of what all clients recomputed with the ledger, for every audit that
        waits for them; log the result.
        """
        with self._upkeep.working, self._ending(opening):
            return self._audits.conclude(sum_of.statistics, [one.client for one in members])

    def rebuild(self, opening: Opening, sum_of: Contribution, _: Sequence[Member]) -> None:
        """Put the sum of what the remaining clients hold in the ledger's place; the old ledger is
        erased at once.

        The old ledger minus the new one is what the clients to be forgotten had: no copy of either
        may stay.
        """
        core, new = self._core, sum_of.statistics
        problem = problem_with(new)
        if problem is not None:
            raise RefusedError("impossible", f"{problem}; {_BLAME}")
        with self._upkeep.working:
            self._upkeep.fold()
            with self._ending(opening):
                gone = [
                    row[0]
                    for row in core.database.rows("SELECT client FROM rebuilds ORDER BY client")
                ]
                before, fewer = core.state("ledger_digest"), core.books.solver.count - new.count
                core.books.replace(new)
                digests = core.solved()
                with core.changing() as (connection, now):
                    position = core.books.position()
                    core.books.write_ledger(new, position)(connection)
                    core.books.fold_client(EVERYONE, position, new)(connection)
                    (slot,) = core.vault.new()
                    core.begin_generation(connection, slot, digests)
                    for client in gone:
                        core.append(
                            connection,
                            "forgotten",
                            now,
                            client=client,
                            count=fewer if len(gone) == 1 and fewer >= 0 else UNDISCLOSED,
                            ledger_before=before,
                            ledger_after=digests.ledger,
                            head=digests.head,
                        )
                        self._orders.client_is_gone(connection, client, 0, now)
                    connection.execute("DELETE FROM rebuilds")
                core.settle_head()
            self._upkeep.fold()

    @contextmanager
    def _ending(self, opening: Opening) -> Iterator[None]:
        """The end of a round: under the lock, on sound memory, under the spec that it was opened
        with; or nothing happens.
        """
        core = self._core
        with core.lock:
            core.require_sound()
            if (opening.data_digest, opening.labels_digest) != (
                core.spec.data_digest,
                core.spec.labels_digest,
            ):
                raise RefusedError(
                    "wrong-spec",
                    "the labels were amended while the round was under way: it begins anew",
                )
            with core.mending():
                yield
