"""Limits: how much may come in, how fast, and how much of it is held at once."""

from __future__ import annotations

import asyncio
import ipaddress
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from threading import Lock

from expunge._lazy import public_dir
from expunge.wire.refusals import too_many

__all__ = ["Limits"]
__dir__ = public_dir(__name__)

_MOST_NAMES = 10000  # buckets kept; the least recently used is dropped first and starts full again
_IPV6_NETWORK = 64  # bits: what one subscriber is given


@dataclass(frozen=True)
class Limits:
    """How many connections an HTTP server holds, how slow they may be, and what memory they get.

    Memory held for bodies is at most `free` for each connection, `unproven` in all for longer ones
    whose sender is not known yet, and `Settings.most_in_flight` in all for those of enrolled
    clients. Sizes of requests and rates of actors are in `Settings`.

    Attributes
    ----------
    most_connections : int, default 800
        Connections at a time. Further ones get status 503; a quarter more are dropped at once.
    head_seconds : float, default 20.0
        Seconds for the request line and the headers, from the first byte or the connection on.
    head_bytes : int, default 64 KiB
        Bytes of the request line and the headers.
    idle_seconds : int, default 75
        Seconds that a connection is kept between two requests.
    body_seconds : float, default 30.0
        Seconds for a body to arrive, and one more for every `slowest` bytes of it.
    slowest : int, default 64 KiB
        Bytes a second.
    answer_seconds : float, default 60.0
        Seconds for a client to take a piece of its answer.
    linger_seconds : float, default 5.0
        Seconds that the rest of a refused body is read and thrown away, so that the refusal is
        read.
    linger_bytes : int, default 64 MiB
        Bytes of it at most.
    room_seconds : float, default 20.0
        Seconds that a body waits for memory that others hold.
    wait_seconds : float, default 30.0
        Seconds that a question waits for a change, whatever it asks for.
    free : int, default 64 KiB
        Bytes of a body that every connection may send before its sender is known.
    unproven : int, default 32 MiB
        Bytes of all longer bodies whose senders are not known yet.
    envelope : int, default 1 MiB
        Bytes of an enrolment, question or command.
    grace_seconds : int, default 30
        Seconds that a stopping server waits for what has begun.

    Examples
    --------
    >>> from expunge.server.http.limits import Limits
    >>> limits = Limits(most_connections=100, idle_seconds=15)
    >>> limits.grace_seconds
    30
    """

    most_connections: int = 800
    head_seconds: float = 20.0
    head_bytes: int = 64 << 10
    idle_seconds: int = 75
    body_seconds: float = 30.0
    slowest: int = 64 << 10
    answer_seconds: float = 60.0
    linger_seconds: float = 5.0
    linger_bytes: int = 64 << 20
    room_seconds: float = 20.0
    wait_seconds: float = 30.0
    free: int = 64 << 10
    unproven: int = 32 << 20
    envelope: int = 1 << 20
    grace_seconds: int = 30


class Buckets:
    """Token buckets by name: `per_minute` tokens a minute, and at most a minute's worth at once.

    Safe in threads; 0 means no limit.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        self._most = float(per_minute)
        self._rate = per_minute / 60.0
        self._clock = clock
        self._lock = Lock()
        self._buckets: OrderedDict[str, tuple[float, float]] = (
            OrderedDict()
        )  # tokens, and the time of that count

    def take(self, name: str, amount: float = 1.0) -> float:
        """Take a token; returns 0, or else the seconds until there is one (and takes none).

        With amount 0, only look.
        """
        if self._most <= 0.0:
            return 0.0
        with self._lock:
            tokens = self._level(name)
            if tokens < 1.0:
                return (1.0 - tokens) / self._rate
            self._keep(name, tokens - amount)
            return 0.0

    def give_back(self, name: str) -> None:
        """Undo a `take`."""
        if self._most > 0.0:
            with self._lock:
                self._keep(name, min(self._most, self._level(name) + 1.0))

    def _level(self, name: str) -> float:
        tokens, since = self._buckets.get(name, (self._most, self._clock()))
        return min(self._most, tokens + max(0.0, self._clock() - since) * self._rate)

    def _keep(self, name: str, tokens: float) -> None:
        self._buckets[name] = tokens, self._clock()
        self._buckets.move_to_end(name)
        while len(self._buckets) > _MOST_NAMES:
            self._buckets.popitem(last=False)


def peer_name(host: str) -> str:
    """The name an address counts under: itself, or its network where one subscriber has a whole
    network.
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 4:
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, _IPV6_NETWORK), strict=False))


class Budget:
    """`most` bytes in all. Callers that find no room wait in turn, then are refused.

    For one event loop.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.held = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def reserved(self, amount: int, seconds: float) -> AsyncIterator[None]:
        """Room for `amount` bytes (all there is, if that is less), for the time of the block."""
        share = min(amount, self._most)
        await self._reserve(share, seconds)
        try:
            yield
        finally:
            self._release(share)

    async def _reserve(self, share: int, seconds: float) -> None:
        if not self._waiting and self.held + share <= self._most:
            self.held += share
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((share, turn))
        try:
            await asyncio.wait({turn}, timeout=seconds)
        except asyncio.CancelledError:
            self._give_up(share, turn)
            raise
        if not turn.done():
            self._give_up(share, turn)
            raise too_many("the server holds as many requests as it has room for", 1.0)

    def _give_up(self, share: int, turn: asyncio.Future[None]) -> None:
        if turn.done():  # it was given its share just now
            self._release(share)
        else:
            self._waiting.remove((share, turn))
            self._admit()

    def _release(self, share: int) -> None:
        self.held -= share
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self.held + self._waiting[0][0] <= self._most:
            share, turn = self._waiting.popleft()
            self.held += share
            turn.set_result(None)
