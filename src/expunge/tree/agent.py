"""The agent of an aggregator: what it forwards is its group's ledger, and whom it asks is its group."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime
from typing import Any

from expunge import canonical
from expunge.client import Agent, ClientStore, Preview
from expunge.client.answer import Answer
from expunge.client.outbox import Composition
from expunge.errors import ExpungeError
from expunge.evidence import read_entry
from expunge.evidence.fields import UNDISCLOSED
from expunge.office import Office
from expunge.protocol.carrier import Carrier
from expunge.protocol.messages import GramPart, Message
from expunge.protocol.request import OrderAnswer
from expunge.server.service import Service
from expunge.statistics import Statistics
from expunge.tree.forwarding import Forwarded, Forwarding

_DAY = 86400


class GroupAgent(Agent):
    """An agent whose store has no samples: it stands for all the clients of a service, whose operator it is."""

    def __init__(self, store: ClientStore, carrier: Carrier, service: Service, office: Office, **options: Any) -> None:
        super().__init__(store, carrier, **options)
        self._service = service
        self._office = office
        self._forwarding = Forwarding(store)

    # -- what is forwarded ----------------------------------------------------------------------------------------------

    def _compose(self) -> Composition | None:
        """What the group has changed since the last request, with the orders that all of the group have answered."""
        before, (ledger, size, root) = self._forwarding.settled(), self._now()
        answers = self._answers()
        if ledger == before.statistics and not answers:
            return None
        return self._forward(before, Forwarded(self.store.sequence + 1, size, ledger), root, answers)

    def _compose_reset(self, number: int) -> Composition | None:
        """Everything anew, for a server that was restored without it."""
        self.store.forwarded.drop()
        ledger, size, root = self._now()
        nothing = Forwarded(0, 0, Statistics.zero(self.store.spec))
        return self._forward(nothing, Forwarded(number, size, ledger), root, [], reset=True)

    def _forward(
        self, before: Forwarded, after: Forwarded, root: bytes, answers: list[OrderAnswer], *, reset: bool = False
    ) -> Composition:
        added, deleted = self._counts(before, after)
        filed = self._filed()
        self._keep_filed(filed | {one.order: (filed[one.order][0], after.sequence) for one in answers})
        message = Message("group", GramPart(after.statistics - before.statistics), log=(after.size, root))
        self._forwarding.begin(after)
        return self.store.compose_group(
            message.to_bytes(self.store.spec),
            added=added,
            deleted=deleted,
            orders=answers,
            sequence=after.sequence,
            reset=reset,
        )

    def _now(self) -> tuple[Statistics, int, bytes]:
        """The group's ledger under the spec of the server above, with size and root of the group's log: of one moment."""
        self._follow_spec()
        core = self._service.core
        with core.lock:
            checkpoint = core.checkpoint(core.now())
            return core.books.exact_statistics().under(self.store.spec), checkpoint.size, checkpoint.root

    def _counts(self, before: Forwarded, after: Forwarded) -> tuple[int, int]:
        """How many samples the group added and deleted in between, as its log says.

        A group's server that was restored has begun anew: then all that was forwarded is deleted, and all there is added.
        """
        added = deleted = 0
        place = before.size
        while place < after.size:
            entries = self._service.entries(place, after.size)
            place += len(entries)
            for entry in map(read_entry, entries):
                if entry["kind"] in ("changed", "aggregated"):
                    added, deleted = added + entry["added"], deleted + entry["deleted"]
                elif entry["kind"] == "forgotten" and entry["count"] > 0:
                    deleted += entry["count"]
        if added - deleted != after.statistics.count - before.statistics.count:
            return after.statistics.count, before.statistics.count
        return added, deleted

    def _statistics(self) -> Statistics:
        """What the server above has receipted; whether the group's clients hold it is for the group's own audit."""
        return self._forwarding.settled().statistics

    def _follow_spec(self) -> None:
        """Amend the group's spec as the server above has amended its own; messages are the group's own affair."""
        ours = self._service.core.spec
        due = replace(self.store.spec, messages=ours.messages, aggregation=ours.aggregation)
        if due == ours:
            return
        theirs, mine = due.to_dict(), ours.to_dict()
        self._office.do("amend", {name: value for name, value in theirs.items() if mine[name] != value})

    # -- orders ---------------------------------------------------------------------------------------------------------

    def _carry_out(self, answer: Answer) -> tuple[tuple[tuple[str, Preview], ...], ExpungeError | None]:
        """File every order that is new in the group, whose clients learn of it at their next sync."""
        known = self._filed()
        now = datetime.fromisoformat(answer.checkpoint.time)
        filed = {one.order: known[one.order] for one in answer.orders if one.order in known}
        self._keep_filed(filed)
        new = [one for one in answer.orders if one.order not in known]
        for one in new:
            left = (datetime.fromisoformat(one.deadline) - now).total_seconds()
            days = min(max(1, math.ceil(left / _DAY)), 365)
            told = self._office.do("order", {"subject": one.subject, "subjects": {}, "days": days})
            filed[one.order] = (told["order"], 0)
            self._keep_filed(filed)
        return tuple((one.order, Preview()) for one in new), None

    def _filed(self) -> dict[str, tuple[str, int]]:
        """The orders of the server above: which order of the group each has become, and the request that answers it, or 0."""
        text = self.store.recall("orders")
        content: dict[str, list[Any]] = canonical.decode(text.encode("ascii")) if text else {}
        return {order: (str(own), int(sequence)) for order, (own, sequence) in content.items()}

    def _keep_filed(self, filed: dict[str, tuple[str, int]]) -> None:
        if filed != self._filed():
            content = {order: list(pair) for order, pair in filed.items()}
            self.store.remember({"orders": canonical.encode(content).decode("ascii")})

    def _answers(self) -> list[OrderAnswer]:
        """The orders that all clients of the group have answered, with what they found together."""
        answers = []
        for order, (own, sequence) in sorted(self._filed().items()):
            if sequence and self._forwarding.is_receipted(sequence):
                continue
            told = self._office.ask("show-order", {"order": own})
            if told["state"] == "complete":
                found = [int(one["found"]) for one in told["answers"]]
                answers.append(OrderAnswer(order, UNDISCLOSED if UNDISCLOSED in found else sum(found)))
        return answers
