"""Connections: uvicorn's, and no patience with those that only pretend to ask something.

uvicorn gives up on connections that are idle after an answer; here also on those that never ask, or
that never finish their headers.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from expunge.server.http.limits import Limits


class HttpConnection(HttpToolsProtocol):
    """One connection of a client."""

    limits: Limits

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._impatience: asyncio.TimerHandle | None = None
        self._head = 0  # bytes of request line and headers so far
        self._in_head = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Begin; drop at once what is far beyond the number allowed."""
        super().connection_made(transport)
        if len(self.connections) > self.limits.most_connections * 5 // 4:
            transport.abort()
            return
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes; beyond the limit of headers, refuse them."""
        if self._in_head:
            self._head += len(data)
            if self._impatience is None:
                self._wait_for_head()
        super().data_received(data)
        if (
            self._in_head
            and self._head > self.limits.head_bytes
            and not self.transport.is_closing()
        ):
            self.send_400_response("The headers are too long.")

    def on_message_begin(self) -> None:
        """A request line begins."""
        super().on_message_begin()
        self._in_head = True

    def on_headers_complete(self) -> None:
        """Headers received; hand over to the body reader."""
        self._in_head = False
        self._stop_waiting()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The body is here, too: what comes next is another request."""
        super().on_message_complete()
        self._in_head, self._head = True, 0

    def on_response_complete(self) -> None:
        """Answered.

        If that was the last answer, the other side gets a little time to take it.
        """
        super().on_response_complete()
        self._end_soon()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP."""
        super().send_400_response(msg)
        self._end_soon()

    def _end_soon(self) -> None:
        if (
            self.transport.is_closing()
        ):  # TLS would wait, and go on reading, until the other side has said good-bye
            self._stop_waiting()
            self._impatience = self.loop.call_later(
                self.limits.linger_seconds, self.transport.abort
            )

    def shutdown(self) -> None:
        """The server stops: end this once what has begun is answered.

        Who is silent need not say good-bye.
        """
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False
        elif self.transport.get_write_buffer_size() == 0:
            self.transport.abort()
        else:
            self.transport.close()
            self._end_soon()

    def _wait_for_head(self) -> None:
        self._impatience = self.loop.call_later(self.limits.head_seconds, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._impatience is not None:
            self._impatience.cancel()
            self._impatience = None


def connections(limits: Limits) -> type[asyncio.Protocol]:
    """The class of connections with these limits; uvicorn makes one for each."""
    return type("LimitedConnection", (HttpConnection,), {"limits": limits})
