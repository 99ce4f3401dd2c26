"""Serving over HTTP: uvicorn around the application, until it is stopped.

`serve` owns the service from the moment it is called: whatever happens, the service is closed when
it is over. SIGTERM and SIGINT stop it: no new connections, what has begun is answered, the journal
is folded (so that nothing remains to be erased), and `serve` returns.
"""

from __future__ import annotations

import errno
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from expunge._lazy import public_dir
from expunge.errors import ExpungeError, StoreError, requires_extra
from expunge.server.http.limits import Limits
from expunge.server.http.logs import log_event, log_problem
from expunge.server.http.tls import ServerTls
from expunge.server.service import Service

with requires_extra("server", "Serving over HTTP"):
    import uvicorn

    from expunge.server.http.app import make_app
    from expunge.server.http.connections import connections
    from expunge.server.http.gateway import Gateway
    from expunge.server.http.middleware import Middleware
    from expunge.server.http.starting import Starting, answering

__all__ = ["Listening", "serve"]
__dir__ = public_dir(__name__)

_BACKLOG = 1024
_NO_SUCH_FAMILY = (
    errno.EAFNOSUPPORT,
    errno.EADDRNOTAVAIL,
)  # such as IPv6 where there is none: the others will do
_TICKS = 600  # of uvicorn's tenths of a second: how often to look for a new certificate


@dataclass(frozen=True)
class Listening:
    """A server that takes connections: where, and how to stop it from any thread.

    Attributes
    ----------
    urls : tuple of str
        The addresses at which it is reached.
    stop : callable
        Makes `serve` end as at SIGTERM, and returns at once.

    Examples
    --------
    >>> from expunge.server.http.run import Listening
    >>> listening = Listening(("https://127.0.0.1:8443",), stop=lambda: None)
    >>> listening.urls
    ('https://127.0.0.1:8443',)
    """

    urls: tuple[str, ...]
    stop: Callable[[], None]


Ready = Callable[[Listening], None]


Progress = Callable[[int, int], None]


def serve(
    service: Service | Callable[[Progress], Service],
    *,
    host: str = "127.0.0.1",
    port: int = 8443,
    certificate: Path | None = None,
    key: Path | None = None,
    insecure: bool = False,
    trusted_proxies: Sequence[str] = (),
    log_peers: bool = False,
    limits: Limits | None = None,
    ready: Ready | None = None,
    beside: Callable[[Service], AbstractContextManager[object]] | None = None,
) -> None:
    """Serve a federation over HTTP until stopped, and close its server whatever happens.

    SIGTERM and SIGINT stop it if this is the main thread; `Listening.stop` does from any. What has
    begun is then answered, and the journal is folded, so that nothing remains to be erased.

    Parameters
    ----------
    service : Service or callable
        The server to be reached, such as a `LocalCarrier`; closed when this returns or raises. Or
        what opens it: then connections are taken at once, and answered that it is starting. It is
        called with what to call as the journal is read: with how many entries were, and of how
        many.
    host : str, default "127.0.0.1"
        The address or name to listen at; empty for all of this machine.
    port : int, default 8443
        The port; 0 takes one that is free.
    certificate : Path or None, default None
        The certificate with its chain (PEM). A renewed file is taken up within a minute.
    key : Path or None, default None
        The certificate's private key (PEM).
    insecure : bool, default False
        Serve plain HTTP, for a reverse proxy that does TLS.
    trusted_proxies : sequence of str, default ()
        Addresses of reverse proxies whose `X-Forwarded-For` is believed.
    log_peers : bool, default False
        Whether the log has the addresses of clients.
    limits : Limits or None, default None
        Limits of connections; by default those of `Limits`.
    ready : callable or None, default None
        Called with a `Listening` as soon as connections are taken.
    beside : callable or None, default None
        Called with the service; gives a context manager that is entered while it serves, and left
        before the service is closed.

    Raises
    ------
    ExpungeError
        Certificate and key are missing or contradict `insecure`, or nothing can listen there.
    StoreError
        Certificate or key cannot be read.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from expunge import Spec
    >>> from expunge.federation import Federation
    >>> from expunge.server.http.run import serve
    >>> from expunge.transport.local import LocalCarrier
    >>> folder = tempfile.TemporaryDirectory()
    >>> Federation.found(f"{folder.name}/federation", Spec(dim=2, labels=("cat", "dog"))).close()
    >>> service = LocalCarrier.open(Path(folder.name) / "federation" / "server")
    >>> def ready(listening):
    ...     print(listening.urls[0].startswith("https://127.0.0.1:"))
    ...     listening.stop()
    >>> tls = Path(folder.name) / "federation" / "tls"
    >>> serve(service, port=0, certificate=tls / "tls.pem", key=tls / "tls.key", ready=ready)
    True
    >>> folder.cleanup()
    """
    opened = service if isinstance(service, Service) else None
    try:
        tls = _tls(certificate, key, insecure=insecure)
        sockets = _listen(host, port)
        try:
            if not isinstance(service, Service):
                for listener in sockets:
                    listener.listen(_BACKLOG)
                starting, open_service = Starting(), service
                with answering(starting, sockets, tls):
                    service = opened = open_service(starting.tell)
            gateway = Gateway(service, limits, expires=None if tls is None else lambda: tls.expires)
            try:
                config = _config(gateway, trusted_proxies, log_peers=log_peers)
                config.load()
                config.ssl = None if tls is None else tls.context
                with nullcontext() if beside is None else beside(service):
                    _Server(
                        config,
                        gateway,
                        tls,
                        _urls(host, sockets, "http" if tls is None else "https"),
                        ready,
                    ).run(sockets)
            finally:
                gateway.close()
        finally:
            for listener in sockets:
                listener.close()
    finally:
        if opened is not None:
            opened.close(fold=True)
        log_event("stopped")


class _Server(uvicorn.Server):
    """Stops at a signal and then returns, where uvicorn's own would let the signal end the
    process.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        gateway: Gateway,
        tls: ServerTls | None,
        urls: tuple[str, ...],
        ready: Ready | None,
    ) -> None:
        super().__init__(config)
        self._gateway = gateway
        self._tls = tls
        self._urls = urls
        self._ready = ready

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals, if this is the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {
            number: signal.signal(number, self.handle_exit)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, and say so."""
        await super().startup(sockets)
        log_event("listening", urls=list(self._urls))
        self._look_at_certificate()
        if self._ready is not None:
            self._ready(Listening(self._urls, self._stop))

    async def on_tick(self, counter: int) -> bool:
        """Now and then, look whether the certificate was renewed."""
        if self._tls is not None and counter % _TICKS == _TICKS - 1:
            try:
                if self._tls.refresh():
                    log_event("certificate renewed")
                    self._look_at_certificate()
            except StoreError as problem:
                log_problem("the new certificate cannot be used: the old one stays in use", problem)
        return await super().on_tick(counter)

    def _look_at_certificate(self) -> None:
        """Clients refuse one that is not valid; or the clock is wrong."""
        problem = "" if self._tls is None else self._tls.out_of_date(time.time())
        if problem:
            log_event(problem, logging.WARNING)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer what has begun, without waiting for rounds to change."""
        self._gateway.hurry()
        await super().shutdown(sockets)

    def _stop(self) -> None:
        self.should_exit = True


def _tls(certificate: Path | None, key: Path | None, *, insecure: bool) -> ServerTls | None:
    if insecure and (certificate or key):
        raise ExpungeError(
            "a certificate and insecure=True contradict each other: choose TLS or plain HTTP"
        )
    if insecure:
        return None
    if certificate is None or key is None:
        raise ExpungeError(
            "plain HTTP would show enrolment tokens, subjects of erasure orders and features to "
            "everyone on the way. Give a certificate and its key (expunge init makes both), or "
            "insecure=True if a reverse proxy before this server does TLS"
        )
    return ServerTls(certificate, key)


def _listen(host: str, port: int) -> list[socket.socket]:
    """Sockets bound to every address of the host; without a host, to all that this machine has."""
    sockets: list[socket.socket] = []
    missing: OSError | None = None
    try:
        addresses = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, kind, protocol, _, address in dict.fromkeys(addresses):
            chosen = port or (
                sockets[0].getsockname()[1] if sockets else 0
            )  # with port 0: all at the one the first is given
            try:
                sockets.append(_bound(family, kind, protocol, (address[0], chosen, *address[2:])))
            except OSError as problem:
                if problem.errno not in _NO_SUCH_FAMILY:
                    raise
                missing = problem
        if not sockets:
            raise missing or OSError(errno.EADDRNOTAVAIL, "it has no address")
    except OSError as problem:
        for listener in sockets:
            listener.close()
        raise ExpungeError(
            f"cannot listen on {host or 'any address'}, port {port}: {problem.strerror}. Choose "
            "another, or stop who has it"
        ) from problem
    return sockets


def _bound(family: int, kind: int, protocol: int, address: tuple[Any, ...]) -> socket.socket:
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


def _urls(host: str, sockets: list[socket.socket], scheme: str) -> tuple[str, ...]:
    port = sockets[0].getsockname()[1]
    names = (
        [host]
        if host and host not in ("0.0.0.0", "::")  # noqa: S104 - compared
        else [listener.getsockname()[0] for listener in sockets]
    )
    return tuple(
        f"{scheme}://[{name}]:{port}" if ":" in name else f"{scheme}://{name}:{port}"
        for name in names
    )


def _config(gateway: Gateway, trusted_proxies: Sequence[str], *, log_peers: bool) -> uvicorn.Config:
    limits = gateway.limits
    return uvicorn.Config(
        Middleware(make_app(gateway), gateway, peers=log_peers),
        http=connections(limits),
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(trusted_proxies),
        forwarded_allow_ips=list(trusted_proxies),
        limit_concurrency=limits.most_connections,
        timeout_keep_alive=limits.idle_seconds,
        timeout_graceful_shutdown=limits.grace_seconds,
        backlog=_BACKLOG,
    )
