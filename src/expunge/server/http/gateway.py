"""Gateway: the service, as an event loop reaches it.

What a client offers is checked in a few threads and then waited for without one, so that hundreds
of clients can wait for one round. Everything else runs in threads of its own, since it may have to
wait for the round to end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from expunge.errors import RefusedError, StoreError
from expunge.evidence import published_head
from expunge.frame import Bytes
from expunge.server.http.bodies import Bodies, Receive
from expunge.server.http.limits import Buckets, Limits
from expunge.server.http.logs import Note, log_problem
from expunge.server.http.metrics import Metrics
from expunge.server.requests import Offer
from expunge.server.service import Service
from expunge.wire import payloads, request
from expunge.wire.carrier import refusals_to
from expunge.wire.refusals import ANYBODY, malformed, too_many
from expunge.wire.request import Preamble

if TYPE_CHECKING:
    from expunge.server.secagg import RoundStatus

Value = TypeVar("Value")
Headers = Iterable[tuple[bytes, bytes]]
ReadPreamble = Callable[[Bytes], Preamble]

_CHECKING = 4  # threads: more would only take turns
_ANSWERING = 16
_READY_SECONDS = 5.0


class Gateway:
    """One service, its limits and its metrics."""

    def __init__(
        self,
        service: Service,
        limits: Limits | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        expires: Callable[[], float] | None = None,
    ) -> None:
        self.service = service
        self.limits = limits or Limits()
        settings = service.state.settings
        self.bodies = bodies = Bodies(
            self.limits, settings.largest_request, settings.most_in_flight
        )
        self.metrics = Metrics(
            service, lambda: float(bodies.proven.held + bodies.unproven.held), expires
        )
        self.peers = Buckets(settings.requests_per_minute, clock)
        self.actors = Buckets(settings.requests_per_minute, clock)
        self._checks = ThreadPoolExecutor(_CHECKING, "checks")
        self._answers = ThreadPoolExecutor(_ANSWERING, "answers")
        self._turns = ThreadPoolExecutor(
            1, "turns"
        )  # they take turns anyhow, and one may take seconds
        self._stopping = False
        self._published: tuple[bytes, str] = b"", ""  # a cache: a published head, and its digest

    # -- what is offered ---------------------------------------------------------------------------

    async def request(
        self, note: Note, headers: Headers, receive: Receive
    ) -> tuple[bytes, dict[str, float]]:
        """A client's request, answered by its receipt; and how many seconds each phase of it
        took.
        """
        async with self.bodies.message(
            request.FORMAT,
            headers,
            receive,
            lambda start: self._prove(request.read_preamble, start),
        ) as data:
            offer = await self._in(self._checks, lambda: self._offer(note, data))
            # A shield, since a wait that is given up must not cancel what the round is going to
            # answer.
            answer = await asyncio.shield(asyncio.wrap_future(offer.answer))
        self.metrics.count_phases(offer.seconds)
        return answer, offer.seconds

    async def aggregate(self, note: Note, headers: Headers, receive: Receive) -> bytes:
        """A client's turn in a round of secure aggregation.

        One that only asks may wait until something has changed.
        """
        from expunge.secagg import messages, read_preamble  # noqa: PLC0415 - seldom needed

        clock = asyncio.get_running_loop().time
        async with self.bodies.message(
            messages.SAID, headers, receive, lambda start: self._prove(read_preamble, start)
        ) as data:
            answer = await self._in(self._turns, lambda: self._turn(note, data, read_preamble))
            end = clock() + min(answer.wait, self.limits.wait_seconds)
            while answer.waiting and not self._stopping and (left := end - clock()) > 0.0:
                change = asyncio.wrap_future(self.service.change_after(answer.version))
                try:
                    await asyncio.wait([change], timeout=min(left, answer.due))
                finally:
                    change.cancel()
                answer = await self._in(self._turns, lambda: self.service.turn(data))
        return answer.data

    def _turn(self, note: Note, data: memoryview, read_preamble: ReadPreamble) -> RoundStatus:
        with refusals_to(data):
            if bytes(data[:1]) == b"{":
                actor, sequence = _claimed("turn", bytes(data))
            else:
                claims = self._proven(read_preamble, data)
                actor, sequence = claims.client, claims.sequence
        return self._as(note, actor, sequence, lambda: self.service.turn(data))

    async def enrol(self, note: Note, headers: Headers, receive: Receive) -> bytes:
        """An enrolment."""
        return await self._speak("enrolment", self.service.enrol, note, headers, receive)

    async def sync(self, note: Note, headers: Headers, receive: Receive) -> bytes:
        """What is new for an actor."""
        return await self._speak("question", self.service.sync, note, headers, receive)

    async def command(self, note: Note, headers: Headers, receive: Receive) -> bytes:
        """A command or a question."""
        return await self._speak("command", self.service.command, note, headers, receive)

    async def _prove(self, read: ReadPreamble, start: bytes) -> None:
        await self._in(self._checks, lambda: self._take(self._proven(read, start).client, 0.0))

    def _proven(self, read: ReadPreamble, start: Bytes) -> Preamble:
        """Who speaks; refused, as the service would, unless an enrolled client signed it."""
        with malformed():
            claims = read(start)
        self.service.state.require_federation(claims.federation)
        self.service.state.signing_client(claims.client, claims.signed)
        return claims

    def _offer(self, note: Note, data: memoryview) -> Offer:
        with refusals_to(data), malformed():
            claims = request.read_preamble(data)
        return self._as(note, claims.client, claims.sequence, lambda: self.service.take(data))

    async def _speak(
        self,
        kind: payloads.Kind,
        call: Callable[[bytes], bytes],
        note: Note,
        headers: Headers,
        receive: Receive,
    ) -> bytes:
        async with self.bodies.envelope(headers, receive) as data:

            def speak() -> bytes:
                with refusals_to(data):
                    actor, sequence = _claimed(kind, data)
                return self._as(note, actor, sequence, lambda: call(data))

            return await self._in(self._answers, speak)

    def _as(self, note: Note, actor: str, sequence: int, call: Callable[[], Value]) -> Value:
        """Do what an actor asks, at that actor's expense if it turns out that it was really asked
        by it.
        """
        self._take(actor, 1.0)
        try:
            value = call()
        except Exception as problem:
            if isinstance(problem, RefusedError) and problem.code not in ANYBODY:
                note.prove(actor, sequence)
            else:
                self.actors.give_back(actor)
            raise
        note.prove(actor, sequence)
        if note.date is not None:
            self.service.clocks.hear(actor, note.date)
        return value

    def _take(self, actor: str, amount: float) -> None:
        wait = self.actors.take(actor, amount)
        if wait > 0.0:
            raise too_many(
                f"{actor} has asked more often than "
                f"{self.service.state.settings.requests_per_minute} times a minute",
                wait,
            )

    # -- what is fetched ---------------------------------------------------------------------------

    async def fetch(self, call: Callable[[], Value]) -> Value:
        """What anyone may have."""
        return await self._in(self._answers, call)

    async def head(self, digests: frozenset[str]) -> tuple[bytes | None, str]:
        """The published head and its digest; no bytes if the digest is among those known ("*" knows
        them all).
        """

        def find() -> tuple[bytes | None, str]:
            first = next(iter(digests)) if len(digests) == 1 and "*" not in digests else None
            data = self.service.head(first)
            if data is None:
                return None, first or ""
            if self._published[0] is not data:
                self._published = data, str(published_head.split(data)[0].unverified()["head"])
            digest = self._published[1]
            return (None if digest in digests or "*" in digests else data), digest

        return await self.fetch(find)

    async def readiness(self) -> tuple[bool, str]:
        """Whether the store answers and takes everything; and if not, or if there is no head to
        publish, why.
        """
        state = self.service.state
        try:
            async with asyncio.timeout(_READY_SECONDS):
                await self.fetch(lambda: state.record)
        except (RefusedError, TimeoutError):
            return False, "the store does not answer"
        problem = state.room.problem()
        return not problem, problem or state.headless

    # -- threads -----------------------------------------------------------------------------------

    async def _in(self, pool: ThreadPoolExecutor, call: Callable[[], Value]) -> Value:
        try:
            return await asyncio.get_running_loop().run_in_executor(pool, call)
        except (StoreError, OSError) as problem:
            log_problem("the store does not answer", problem)
            reason = (
                "the server's store does not answer: offer the same again later, and tell "
                "the operator"
            )
            raise RefusedError("storage", reason) from problem

    def hurry(self) -> None:
        """The server is stopping: answer callers waiting for a round to change with its current
        state.
        """
        self._stopping = True
        if self.service.rounds is not None:
            self.service.rounds.wake()

    def close(self) -> None:
        """Wait for what the threads are at. The service is not closed."""
        self._checks.shutdown()
        self._answers.shutdown()
        self._turns.shutdown()


def _claimed(kind: payloads.Kind, data: bytes) -> tuple[str, int]:
    """Actor and sequence number that a question or command claims; those of an enrolment are its
    name and 0.
    """
    with malformed():
        _, content = payloads.open_unverified(kind, data)
    return (content["name"], 0) if kind == "enrolment" else (content["actor"], content["sequence"])
