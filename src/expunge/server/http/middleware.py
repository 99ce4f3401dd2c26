"""Middleware: counts, times and logs every request, limits each address, and ends what was
refused half-read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from expunge.errors import RefusedError
from expunge.server.http.bodies import announced
from expunge.server.http.gateway import Gateway
from expunge.server.http.limits import peer_name
from expunge.server.http.logs import NO_ROUTE, Note, log_problem, log_request
from expunge.wire import protocol
from expunge.wire.refusals import MEDIA_TYPE, body_of, headers_of, status_of, too_many

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_ROUTES = "/v1/"
_UNLIMITED = frozenset({"/healthz", "/readyz"})
_ALWAYS_SAID = (
    (b"x-content-type-options", b"nosniff"),
    (protocol.HEADER.encode("ascii"), str(protocol.BY_SERVERS).encode("ascii")),
)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})


@dataclass
class _Exchange:
    """One request and its answer, as they pass the middleware."""

    note: Note
    receive: Receive
    send: Send
    gateway: Gateway
    unread: bool  # more of a body may come than a connection is worth keeping for
    awaits_go_ahead: bool  # the client sends its body only after 100 Continue

    async def take(self) -> Message:
        """What comes in."""
        message = await self.receive()
        self.note.bytes_in += len(message.get("body", b""))
        if not message.get("more_body", False):
            self.unread = False
        return message

    async def give(self, message: Message) -> None:
        """What goes out."""
        if message["type"] == "http.response.start":
            self.note.status = message["status"]
            headers = [*message.get("headers", []), *_ALWAYS_SAID]
            message = {
                **message,
                "headers": [*headers, (b"connection", b"close")] if self.unread else headers,
            }
        elif message["type"] == "http.response.body":
            self.note.bytes_out += len(message.get("body", b""))
            if self.unread and not message.get("more_body", False):
                await self._give({**message, "more_body": True})
                await self._linger()
                message = {"type": "http.response.body", "body": b"", "more_body": False}
        await self._give(message)

    async def _give(self, message: Message) -> None:
        async with asyncio.timeout(self.gateway.limits.answer_seconds):
            await self.send(message)

    async def _linger(self) -> None:
        """Throw away what still comes for a while: a connection closed on its bytes would take the
        answer with it.
        """
        if self.awaits_go_ahead:
            return
        try:
            async with asyncio.timeout(self.gateway.limits.linger_seconds):
                most = self.note.bytes_in + self.gateway.limits.linger_bytes
                while self.unread and self.note.bytes_in < most:
                    await self.take()
        except TimeoutError:
            pass
        self.unread = False


class Middleware:
    """An ASGI application around another."""

    def __init__(
        self,
        app: App,
        gateway: Gateway,
        *,
        peers: bool = False,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._app = app
        self._gateway = gateway
        self._peers = peers
        self._timer = timer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, and see to its end."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = self._timer()
        peer = (scope.get("client") or ("unknown", 0))[0]
        method = scope["method"] if scope["method"] in _METHODS else "OTHER"
        note = Note(method, peer, date=_date(scope))
        scope.setdefault("state", {})["note"] = note
        metrics = self._gateway.metrics
        metrics.under_way.inc()
        try:
            await self._pass(scope, _exchange(scope, receive, send, note, self._gateway))
        finally:
            note.route = getattr(scope.get("route"), "path", NO_ROUTE)
            seconds = self._timer() - begun
            metrics.under_way.dec()
            metrics.count(note, seconds)
            log_request(note, seconds, peers=self._peers)

    async def _pass(self, scope: Scope, exchange: _Exchange) -> None:
        note, name = exchange.note, peer_name(exchange.note.peer)
        counted = scope["path"] not in _UNLIMITED
        wait = self._gateway.peers.take(name) if counted else 0.0
        try:
            if wait > 0.0:
                await _refuse(
                    exchange,
                    too_many("too much is asked from this address without a good signature", wait),
                )
                return
            if scope["path"].startswith(_ROUTES) and (refusal := _unspoken(scope)):
                await _refuse(exchange, refusal)
                return
            await self._app(scope, exchange.take, exchange.give)
        except TimeoutError:
            note.code = "not-taken"  # the client does not take its answer; the connection is closed
        except Exception as problem:
            note.code = "internal"
            log_problem("a request failed", problem)
            if not note.status:
                await exchange.give(
                    {
                        "type": "http.response.start",
                        "status": 500,
                        "headers": [(b"content-length", b"0")],
                    }
                )
                await exchange.give({"type": "http.response.body", "body": b""})
        finally:
            if counted and wait <= 0.0 and note.is_proven:
                self._gateway.peers.give_back(name)  # who signs is counted by name


def _date(scope: Scope) -> float | None:
    """What the clock of who asks says; None if it does not tell."""
    text = next((value for name, value in scope["headers"] if name == b"date"), b"")
    try:
        return parsedate_to_datetime(text.decode("ascii", "replace")).timestamp()
    except (ValueError, OverflowError):
        return None


def _unspoken(scope: Scope) -> RefusedError | None:
    """The refusal of a sender that speaks no version of the protocol in common with this server."""
    said = {
        name: value.decode("latin-1")
        for name, value in scope["headers"]
        if name in (protocol.HEADER.encode("ascii"), b"user-agent")
    }
    header = said.get(protocol.HEADER.encode("ascii"))
    try:
        protocol.require_client(
            protocol.sender(header, said.get(b"user-agent", ""), scope["method"])
        )
    except RefusedError as refusal:
        return refusal
    return None


def _exchange(
    scope: Scope, receive: Receive, send: Send, note: Note, gateway: Gateway
) -> _Exchange:
    headers = scope["headers"]
    try:
        expected = announced(headers)
    except RefusedError:
        expected = None
    expects = any(name == b"expect" for name, _ in headers)
    return _Exchange(
        note, receive, send, gateway, expected is None or expected > gateway.limits.free, expects
    )


async def _refuse(exchange: _Exchange, refusal: RefusedError) -> None:
    exchange.note.code = refusal.code
    body = body_of(refusal)
    headers = {"content-type": MEDIA_TYPE, "content-length": str(len(body)), **headers_of(refusal)}
    encoded = [(name.encode("ascii"), value.encode("ascii")) for name, value in headers.items()]
    await exchange.give(
        {"type": "http.response.start", "status": status_of(refusal.code), "headers": encoded}
    )
    await exchange.give({"type": "http.response.body", "body": body})
