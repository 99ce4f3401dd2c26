"""Bodies as they come in: piece by piece, never more than allowed, never more at once than there is
room for.

A request of a client that is longer than `Limits.free` is read as far as its header and signature
first; room for the rest is given only to those who are enrolled. So a stranger can make the server
hold little, whatever length it announces.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

from expunge.crypto.envelope import SignedFormat
from expunge.errors import RefusedError
from expunge.server.http.limits import Budget, Limits
from expunge.wire.refusals import malformed

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Prove = Callable[[bytes], Awaitable[None]]  # refuses a beginning that no enrolled client signed

LATE = "late"  # the detail of a refusal for a body that took too long: HTTP has a status for it


def announced(headers: Iterable[tuple[bytes, bytes]]) -> int | None:
    """The length of the body that the headers announce; None if they do not say, as with chunks."""
    fields = dict(headers)
    if b"transfer-encoding" in fields:
        return None
    text = fields.get(b"content-length", b"0")
    if not text.isdigit():  # the parser refuses it as well
        raise RefusedError("malformed", "the length of the body is not a number")
    return int(text)


class Body:
    """One body on its way in.

    `expected` is its announced length, or None; more than `largest` is refused at once.
    """

    def __init__(
        self, receive: Receive, expected: int | None, largest: int, limits: Limits
    ) -> None:
        self._receive = receive
        self._expected = expected
        self._largest = largest
        self._limits = limits
        self._start = bytearray()
        self.is_whole = expected == 0
        if expected is not None and expected > largest:
            raise _too_large(expected, largest)

    async def fill(self, size: int) -> bytes:
        """The beginning: at least `size` bytes of it, or all there are."""
        async with self._in_time():
            while len(self._start) < size and not self.is_whole:
                self._start += await self._piece(len(self._start))
        return bytes(self._start)

    async def whole(self) -> memoryview:
        """All of it."""
        if self._expected is None or len(self._start) == self._expected:
            return memoryview(await self.fill(self._largest + 1))
        whole = bytearray(
            self._expected
        )  # once, so that a long body is not copied again and again as it grows
        offset = len(self._start)
        whole[:offset] = self._start
        self._start.clear()
        async with self._in_time():
            while not self.is_whole:
                piece = await self._piece(offset)
                whole[offset : offset + len(piece)] = piece
                offset += len(piece)
        return memoryview(whole)[:offset].toreadonly()

    async def _piece(self, before: int) -> bytes:
        message = await self._receive()
        if message["type"] != "http.request":
            raise RefusedError("malformed", "the body ended early: offer it again", to="")
        piece: bytes = message.get("body", b"")
        if before + len(piece) > self._largest:
            raise _too_large(before + len(piece), self._largest)
        self.is_whole = not message.get("more_body", False)
        return piece

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        size = self._largest if self._expected is None else self._expected
        try:
            async with asyncio.timeout(self._limits.body_seconds + size / self._limits.slowest):
                yield
        except TimeoutError as problem:
            raise RefusedError(
                "malformed",
                "the body did not arrive in time: offer it again over a faster connection",
                to="",
                **{LATE: True},
            ) from problem


class Bodies:
    """Reads bodies, and accounts for the memory they take."""

    def __init__(self, limits: Limits, largest: int, most_in_flight: int) -> None:
        self._limits = limits
        self._largest = largest
        self.unproven = Budget(limits.unproven)
        self.proven = Budget(most_in_flight)

    @asynccontextmanager
    async def envelope(
        self, headers: Iterable[tuple[bytes, bytes]], receive: Receive
    ) -> AsyncIterator[bytes]:
        """A short body from any sender."""
        limits = self._limits
        largest = min(limits.envelope, self._largest)
        body = Body(receive, announced(headers), largest, limits)
        start = await body.fill(limits.free)
        if body.is_whole:
            yield start
            return
        async with self.unproven.reserved(largest, 0.0):
            yield bytes(await body.whole())

    @asynccontextmanager
    async def message(
        self,
        form: SignedFormat,
        headers: Iterable[tuple[bytes, bytes]],
        receive: Receive,
        prove: Prove,
    ) -> AsyncIterator[memoryview]:
        """A request of a client, or what it says in a round, held until the block is left."""
        limits, expected = self._limits, announced(headers)
        body = Body(receive, expected, self._largest, limits)
        start = await body.fill(limits.free)
        if body.is_whole:
            yield memoryview(start)
            return
        with malformed():
            size = form.signature_end(start)
        if size <= len(start):
            await prove(start)
        else:
            async with self.unproven.reserved(size, 0.0):
                await prove(await body.fill(size))
        async with self.proven.reserved(
            self._largest if expected is None else expected, limits.room_seconds
        ):
            yield await body.whole()


def _too_large(size: int, largest: int) -> RefusedError:
    return RefusedError(
        "too-large",
        f"a body of {size} bytes or more is beyond the {largest} allowed",
        largest=largest,
    )
