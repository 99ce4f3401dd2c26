"""Rounds of secure aggregation, as the server leads them: who takes part, which phase it is, when it is over.

Laws: at most one round is under way. It is in memory only: a server that is killed has applied nothing of it, and its clients
begin anew. A client's message is answered by how the round stands for that client; asking again, or sending the same again,
changes nothing. Nothing here sleeps: deadlines are looked at whenever somebody asks, and whoever waits knows how long at most.
"""

from __future__ import annotations

import base64
import hashlib
import math
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import RLock
from typing import Any

from expunge import canonical
from expunge.aggregation import Aggregation
from expunge.errors import EvidenceError, ExpungeError, RefusedError
from expunge.privacy.aggregation import Aborted, Collector, Contribution, Opening, introduced, length
from expunge.protocol import speech
from expunge.protocol.names import time_text
from expunge.server.conclusions import Conclusions, Member
from expunge.server.core import Core
from expunge.server.queue import Queue

_ENDED_KEPT = 256
_UNKNOWN = "the server does not know this round, because it was started anew: nothing was changed, join the next round"


@dataclass(frozen=True)
class Standing:
    """How a round stands for one client; `waiting` if there is nothing for it to do before something changes."""

    data: bytes
    waiting: bool
    version: int
    due: float  # seconds until the round may change by itself
    wait: int = 0  # seconds that the client would like to wait for a change


@dataclass
class _Round:
    opening: Opening
    collector: Collector
    everyone: frozenset[str] | None  # an audit or a rebuild needs all of these; a change needs nobody in particular
    joined: float  # when the last client joined
    deadline: float
    members: dict[str, Member] = field(default_factory=dict)  # by client; those that have joined


@dataclass(frozen=True)
class _Turn:
    """What a client says: a message of a phase, or only that it asks."""

    client: str
    aggregation: str
    sequence: int
    reset: bool
    message: bytes | memoryview | None
    digest: str
    wait: int = 0


class Aggregations:
    """The rounds of one federation."""

    def __init__(self, core: Core, queue: Queue, conclusions: Conclusions, clock: Callable[[], float] = time.monotonic) -> None:
        self._core = core
        self._queue = queue
        self._conclusions = conclusions
        self._clock = clock
        self._lock = RLock()
        self._round: _Round | None = None
        self._ended: OrderedDict[str, str] = OrderedDict()  # a cache: rounds that have ended, and why if they were aborted
        self._rejoining: set[str] = set()  # clients that said that they begin anew, as a restored server asks them to
        self._version = 0
        self._watching: list[Future[None]] = []

    # -- taking turns ---------------------------------------------------------------------------------------------------

    def turn(self, data: bytes | memoryview) -> Standing:
        """Take what a client says, and answer with how the round stands for it."""
        if not self._core.spec.is_masked:
            raise RefusedError("not-allowed", "this federation does not use secure aggregation: send requests")
        said = self._read(data)
        with self._lock:
            self._move()
            if said.message is not None:
                self._take(said)
                self._move()
            return self._standing(said)

    def change_after(self, version: int) -> Future[None]:
        """Done as soon as anything has changed since that version."""
        change: Future[None] = Future()
        with self._lock:
            if version != self._version:
                change.set_result(None)
            else:
                self._watching.append(change)
        return change

    def pulse(self) -> tuple[int, float]:
        """A number that grows with every change, and the seconds until the round may change by itself (0.0 without a round)."""
        with self._lock:
            return self._version, self._due(self._round)

    def _read(self, data: bytes | memoryview) -> _Turn:
        """Who says what; signed by the key that this client enrolled."""
        digest = hashlib.sha256(data).hexdigest()
        try:
            if bytes(data[:1]) != b"{":
                header = introduced(data)
                self._require_federation(header.federation)
                return _Turn(header.client, header.round, header.sequence, False, data, digest)  # the collector verifies it
            envelope, content = speech.overheard("turn", bytes(data))
        except RefusedError:
            raise
        except ExpungeError as problem:
            raise RefusedError("malformed", str(problem)) from problem
        self._require_federation(content["federation"])
        name = content["actor"]
        try:
            envelope.verify(self._core.actor(name, "client").key)
        except EvidenceError as problem:
            raise RefusedError("bad-signature", f"this is not signed by the key that {name} enrolled") from problem
        return _Turn(name, content["aggregation"], content["sequence"], content["reset"], None, digest, content["wait"])

    def _require_federation(self, federation: str) -> None:
        if federation != self._core.federation:
            raise RefusedError("wrong-federation", f"this is federation {self._core.federation}, not {federation}")

    def _take(self, said: _Turn) -> None:
        """A message of a phase. One that is late is no mistake: its sender learns how the round ended."""
        current = self._round
        if current is None or said.aggregation != current.opening.round or said.message is None:
            return
        before = self._heard(current)
        if current.collector.phase == "joining":
            member = Member(said.client, said.sequence, said.digest, said.client in self._rejoining)
            self._conclusions.require_member(member, current.opening.purpose)
            current.collector.take(said.message)
            if said.client not in current.members:
                current.members[said.client], current.joined = member, self._clock()
        else:
            current.collector.take(said.message)
        if self._heard(current) != before:
            self._changed()

    @staticmethod
    def _heard(current: _Round) -> tuple[int, int]:
        return len(current.members), len(current.collector.awaited)

    # -- moving on ------------------------------------------------------------------------------------------------------

    def _move(self) -> None:
        """Bring the round as far as it gets: on to the next phase, to its end, or to an abortion."""
        while (current := self._round) is not None and self._is_complete(current):
            try:
                current.collector.advance()
                if current.collector.phase == "revealing":
                    self._require_everyone(current)
                if current.collector.phase == "done":
                    self._conclude(current)
            except (Aborted, RefusedError) as problem:
                self._end(current, problem.reason)
            current.deadline = self._clock() + self._core.settings.phase_for
            self._changed()

    def _is_complete(self, current: _Round) -> bool:
        """Whether the phase is over: all have answered, or its time is up."""
        collector, now = current.collector, self._clock()
        if collector.phase != "joining":
            return not collector.awaited or now >= current.deadline
        joined = set(current.members)
        if current.everyone is not None:
            return joined >= current.everyone
        if len(joined) < self._rules.fewest:
            return False  # changes wait for a round with enough contributors
        return now >= current.joined + self._core.settings.gather_for or joined >= set(
            self._core.clients("active", "must-rejoin")
        )

    def _require_everyone(self, current: _Round) -> None:
        """Before anything is revealed: a sum that lacks a client would show that client, as what the ledger has more."""
        included = {client for client, _ in current.collector.included}
        missing = (current.everyone or frozenset()) - included
        if missing:
            raise Aborted(f"{', '.join(sorted(missing))} dropped out, and this round needs every client")

    def _conclude(self, current: _Round) -> None:
        members = [current.members[client] for client, _ in current.collector.included]
        try:
            sum_of = Contribution.from_vector(self._core.spec, current.collector.sum())
        except ExpungeError as problem:
            raise Aborted(f"the sum of the round is that of no samples ({problem}): a client's statistics are false") from problem
        end = getattr(self._conclusions, current.opening.purpose)
        try:
            self._queue.do(lambda: end(current.opening, sum_of, members))
        except RefusedError:
            raise
        except Exception as problem:
            first = members[0]
            if current.opening.purpose != "change" or self._conclusions.applied(first.client, first.sequence) is None:
                raise Aborted(f"the server could not store the round ({problem}): nothing was changed") from problem
        self._end(current, "")

    def _end(self, current: _Round, reason: str) -> None:
        self._round = None
        self._rejoining -= set(current.members) if not reason else set()
        self._ended[current.opening.round] = reason
        while len(self._ended) > _ENDED_KEPT:
            self._ended.popitem(last=False)

    def _changed(self) -> None:
        self._version += 1
        watching, self._watching = self._watching, []
        for change in watching:
            if change.set_running_or_notify_cancel():
                change.set_result(None)

    # -- opening --------------------------------------------------------------------------------------------------------

    @property
    def _rules(self) -> Aggregation:
        rules = self._core.spec.aggregation
        if rules is None:
            raise RefusedError("not-allowed", "this federation does not use secure aggregation")
        return rules

    def _opened(self) -> _Round:
        """The round that is under way, or a new one: a rebuild or an audit if one is wanted, otherwise a change."""
        purpose = self.wanted()
        if self._round is not None and self._round.collector.phase == "joining" and self._round.opening.purpose != purpose:
            self._end(self._round, f"a round for {'an audit' if purpose == 'audit' else f'a {purpose}'} comes first")
        if self._round is None:
            core = self._core
            spec, now = core.spec, self._clock()
            opening = Opening(core.federation, secrets.token_hex(16), purpose, spec.data_digest, spec.labels_digest)
            everyone = None if purpose == "change" else frozenset(core.clients("active"))
            collector = Collector(opening, self._rules, lambda name: core.actor(name, "client").key, length=length(spec))
            self._round = _Round(opening, collector, everyone, now, now)
            self._changed()
        return self._round

    def wanted(self) -> str:
        """The purpose of the next round."""
        database = self._core.database
        if database.row("SELECT 1 FROM rebuilds"):
            return "rebuild"
        return "audit" if database.row("SELECT 1 FROM audits WHERE finished IS NULL") else "change"

    # -- answering ------------------------------------------------------------------------------------------------------

    def _standing(self, said: _Turn) -> Standing:
        aggregation = said.aggregation
        if said.reset:
            self._rejoining.add(said.client)
        if not aggregation:
            current = self._opened()
            if current.collector.phase == "joining":
                return self._answer(said, current, "joining", opening=current.opening.to_json())
            return self._answer(said, current, "closed")
        current_or_none = self._round
        if current_or_none is not None and current_or_none.opening.round == aggregation:
            collector = current_or_none.collector
            content = collector.say(said.client) if said.client in collector.awaited else None
            return self._answer(said, current_or_none, collector.phase, content=content)
        receipt = self._conclusions.applied(said.client, said.sequence)
        if receipt is not None:
            return self._answer(said, None, "done", receipt=canonical.decode(receipt))
        reason = self._ended.get(aggregation, _UNKNOWN)
        return self._answer(said, None, "aborted" if reason else "done", reason=reason)

    def _answer(
        self,
        said: _Turn,
        current: _Round | None,
        phase: str,
        *,
        content: bytes | None = None,
        opening: dict[str, Any] | None = None,
        receipt: object = None,
        reason: str = "",
    ) -> Standing:
        core = self._core
        answer = {
            "actor": said.client,
            "aggregation": said.aggregation,
            "content": base64.b64encode(content or b"").decode("ascii"),
            "federation": core.federation,
            "fewest": self._rules.fewest,
            "joined": 0 if current is None else len(current.members),
            "opening": opening,
            "phase": phase,
            "purpose": "" if current is None else current.opening.purpose,
            "reason": reason,
            "receipt": receipt,
            "time": time_text(core.now()),
            "to": said.digest,
        }
        waiting = current is not None and not content and opening is None
        data = speech.said("standing", answer, core.folder.key)
        return Standing(data, waiting, self._version, self._due(current), said.wait)

    def _due(self, current: _Round | None) -> float:
        if current is None:
            return 0.0
        end = current.deadline
        if current.collector.phase == "joining":
            if current.everyone is not None or len(current.members) < self._rules.fewest:
                return math.inf  # whoever joins changes it, and nothing else does
            end = current.joined + self._core.settings.gather_for
        return max(0.0, end - self._clock())
