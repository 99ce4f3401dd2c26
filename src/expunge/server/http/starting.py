"""What answers while a server is being opened: a long journal takes its time.

Connections are taken from the first moment on. `/healthz` says that the process is alive, `/readyz`
how far it is, and everything else is refused for now, with nothing changed.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from expunge.errors import RefusedError
from expunge.server.http.tls import ServerTls
from expunge.wire.refusals import MEDIA_TYPE, body_of, headers_of, status_of

_PATIENCE = 0.5  # seconds; what is open by then has kept nobody waiting


class Starting:
    """The application until the server is open, and how far that is."""

    def __init__(self) -> None:
        self.reason = "the server is starting"

    def tell(self, done: int, total: int) -> None:
        """So many entries of the journal have been read."""
        self.reason = f"the server is starting: reading the journal, {done:,} of {total:,}"

    async def __call__(self, scope: Mapping[str, Any], _: object, send: Callable[..., Any]) -> None:
        """As ASGI has it."""
        if scope["path"] == "/healthz":
            status, headers, body = 200, {"cache-control": "no-store"}, b'{"live":true}'
        elif scope["path"] == "/readyz":
            status, headers = 503, {"cache-control": "no-store", "retry-after": "1"}
            body = json.dumps({"ready": False, "reason": self.reason}).encode("ascii")
        else:
            refusal = RefusedError("storage", f"{self.reason}. Offer the same again in a moment")
            status, headers, body = status_of(refusal.code), headers_of(refusal), body_of(refusal)
        headers = {**headers, "content-type": MEDIA_TYPE, "connection": "close"}
        pairs = [(name.encode("ascii"), value.encode("ascii")) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": pairs})
        await send({"type": "http.response.body", "body": body})


@contextmanager
def answering(
    starting: Starting, sockets: Sequence[socket.socket], tls: ServerTls | None
) -> Iterator[None]:
    """Whoever comes to these sockets is answered, if this takes long; they stay open."""
    import uvicorn  # noqa: PLC0415 - with the extra

    config = uvicorn.Config(
        starting,
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=5,
    )
    config.load()
    config.ssl = None if tls is None else tls.context
    server, over = uvicorn.Server(config), threading.Event()

    def answer() -> None:
        if not over.wait(_PATIENCE):
            server.run([listener.dup() for listener in sockets])

    thread = threading.Thread(target=answer, name="starting", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        over.set()
        thread.join()
