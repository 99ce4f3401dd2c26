"""Lanes: a federation whose clients reach their server by the carrier under test, and whatever may
happen on the way.

The contract speaks to a lane by its verbs alone, so that it holds whoever begins to talk. A lane of
another carrier is a `Lane` with these of its own:

- `enrolled(path, token, message)`: a new client's store, enrolled by the token;
- `sync(name)`: one sync of that client, whoever has to begin; what the server refuses comes out as
  RefusedError, what is lost as CarrierError, and a client that dies on the way as Died, with its
  store opened anew;
- `offer(data)`: these bytes as a client's request, and the server's answer;
- `officer_command` and `officer_ask`: what the privacy officer says, by whatever way officers have
  there;
- `restart_server()`, where the service is not simply opened anew, and `close()`.

One thing that is said and its answer are an *exchange*. Before each, `next_fault()` says what is to
happen to it, and the lane sees to it that it does. What is said `late` is kept by `hold`, and
arrives when the contract says so. `faults` are those that can happen on this lane.
"""

from __future__ import annotations

import shutil
import socket
import socketserver
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from expunge import Head, Spec, Statistics
from expunge.client import Agent, ClientStore, SyncResult, enrol
from expunge.errors import CarrierError, RefusedError
from expunge.office import Office
from expunge.server.http.run import Listening, serve
from expunge.server.http.tls import make_tls
from expunge.server.state import Settings
from expunge.transport.http import HttpCarrier
from expunge.wire.carrier import Carrier
from expunge.wire.token import Token
from support.federation import Federation
from support.https_server import HOST
from support.samples import SPEC

ATTEMPTS = 4  # of an agent, with no pause between them


class Died(Exception):  # noqa: N818 - no error of ours: the process of a client is gone
    """A client died in the middle of a sync."""


@dataclass(frozen=True)
class Fault:
    """What happens to one exchange: to what is said, or (`back`) to the answer, when the server has
    done its work.
    """

    what: str
    back: bool = False

    def __str__(self) -> str:
        return f"{self.what} {'back' if self.back else 'there'}"


FAULTS = (
    *(
        Fault(what, back)
        for what in ("lost", "truncated", "server restarts", "client dies")
        for back in (False, True)
    ),
    Fault("repeated"),
    Fault("late"),
)


class Lane(ABC):
    """A federation in a folder, with its server and clients; see above for what a carrier's own
    lane must say.
    """

    faults: tuple[Fault, ...] = FAULTS

    def __init__(
        self,
        path: Path,
        spec: Spec = SPEC,
        *,
        solver: str = "woodbury",
        settings: Settings | None = None,
        origin: Lane | None = None,
    ) -> None:
        """The federation and the clients are twins of those of `origin`, which must be closed."""
        self.path = path
        self.stores: dict[str, ClientStore] = {}
        if origin is None:
            self.federation = Federation(path / "server", spec, solver=solver, settings=settings)
        else:
            self.federation = origin.federation.twin(path / "server")
            for name in origin.stores:
                shutil.copytree(origin.path / name, path / name)
                self.stores[name] = ClientStore.open(path / name)
        self.met: list[Fault] = []  # what has happened since the last plan
        self._planned: list[Fault | None] = []
        self._held: list[Callable[[], object]] = []

    # -- what may happen ---------------------------------------------------------------------------

    def plan(self, *faults: Fault | None) -> None:
        """What is to happen to the exchanges from now on, one after another; None lets one pass."""
        self._planned, self.met = list(faults), []

    def next_fault(self) -> Fault | None:
        """What is to happen to the exchange that begins now."""
        fault = self._planned.pop(0) if self._planned else None
        if fault is not None:
            self.met.append(fault)
        return fault

    def hold(self, arrive: Callable[[], object]) -> None:
        """Keep something that is late."""
        self._held.append(arrive)

    def deliver_held(self) -> int:
        """Everything that is late arrives, the newest first, and nobody hears the answers; how much
        that was.
        """
        held, self._held = self._held[::-1], []
        for arrive in held:
            with suppress(RefusedError):
                arrive()
        return len(held)

    # -- clients -----------------------------------------------------------------------------------

    def token(self, name: str, role: str = "client") -> Token:
        federation = self.federation
        return Token(
            federation.id, name, role, federation.token(name, role), federation.first_key.public, ()
        )

    def enrol(self, name: str, message: str = "") -> ClientStore:
        self.stores[name] = self.enrolled(self.path / name, self.token(name), message)
        return self.stores[name]

    @abstractmethod
    def enrolled(self, path: Path, token: Token, message: str) -> ClientStore: ...

    @abstractmethod
    def sync(self, name: str) -> SyncResult: ...

    @abstractmethod
    def offer(self, data: bytes) -> bytes: ...

    def restart_client(self, name: str) -> None:
        self.stores[name].close()
        self.stores[name] = ClientStore.open(self.path / name)

    # -- the server --------------------------------------------------------------------------------

    @abstractmethod
    def officer_command(self, action: str, **arguments: Any) -> Any: ...

    @abstractmethod
    def officer_ask(self, action: str, **arguments: Any) -> Any: ...

    def restart_server(self) -> None:
        self.federation.reopen()

    @property
    def ledger(self) -> Statistics:
        return self.federation.service.state.ledger.solver.statistics

    @property
    def head(self) -> Head | None:
        return self.federation.service.state.head

    def close(self) -> None:
        for store in self.stores.values():
            store.close()
        self.federation.close()


# -- carriers that clients call --------------------------------------------------------------------


class CallingLane(Lane):
    """A lane whose clients, and the officer, call their carrier."""

    def __init__(self, path: Path, spec: Spec = SPEC, **options: Any) -> None:
        super().__init__(path, spec, **options)
        self.way = Way(self)
        self._office: Office | None = None

    @property
    @abstractmethod
    def carrier(self) -> Carrier:
        """As it is now; every exchange goes through it."""

    def enrolled(self, path: Path, token: Token, message: str) -> ClientStore:
        return enrol(path, token, self.way, message=message)

    def sync(self, name: str) -> SyncResult:
        try:
            return Agent(
                self.stores[name], self.way, sleep=lambda _: None, attempts=ATTEMPTS
            ).sync()
        except Died:
            self.restart_client(name)
            raise

    def offer(self, data: bytes) -> bytes:
        return bytes(self.way.request(data))

    @property
    def office(self) -> Office:
        if self._office is None:
            self._office = Office.enrol(
                self.path / "officer", self.token("officer", "officer"), self.way
            )
        return self._office

    def officer_command(self, action: str, **arguments: Any) -> Any:
        return self.office.do(action, arguments)

    def officer_ask(self, action: str, **arguments: Any) -> Any:
        return self.office.ask(action, arguments)

    def cut(self, fault: Fault, name: str, arguments: tuple[Any, ...]) -> Any:
        """An exchange of which something is lost or truncated."""
        if not fault.back and (fault.what == "lost" or not _carries_bytes(arguments)):
            raise CarrierError("lost on the way: offer it again")
        if not fault.back:
            return getattr(self.carrier, name)(_halved(arguments[0]), *arguments[1:])
        answer = getattr(self.carrier, name)(*arguments)
        if fault.what == "lost" or isinstance(answer, list):  # which carriers see to themselves
            raise CarrierError("no answer came: offer it again")
        return None if answer is None else _halved(answer)

    def close(self) -> None:
        if self._office is not None:
            self._office.close()
        super().close()


class Way:
    """The carrier of a lane as its clients have it: with whatever is to happen on the way."""

    def __init__(self, lane: CallingLane) -> None:
        self._lane = lane

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *arguments: self._carry(name, arguments)

    def _carry(self, name: str, arguments: tuple[Any, ...]) -> Any:
        lane, fault = self._lane, self._lane.next_fault()

        def go() -> Any:
            return getattr(lane.carrier, name)(*arguments)

        if fault is None:
            return go()
        if fault.what in ("lost", "truncated"):
            return lane.cut(fault, name, arguments)
        if fault.what == "repeated":
            go()
            return go()
        if fault.what == "late":
            lane.hold(go)
            raise CarrierError("no answer came: offer it again")
        happens = lane.restart_server if fault.what == "server restarts" else _die
        if not fault.back:
            happens()
            return go()
        go()
        happens()
        raise CarrierError("the connection is gone: offer it again")


def _die() -> None:
    raise Died


def _carries_bytes(arguments: tuple[Any, ...]) -> bool:
    return bool(arguments) and isinstance(arguments[0], bytes)


def _halved(data: bytes) -> bytes:
    return data[: len(data) // 2]


class LocalLane(CallingLane):
    """The service in this process."""

    @property
    def carrier(self) -> Carrier:
        return self.federation.service


class HttpLane(CallingLane):
    """The service behind HTTPS on a free port, in a thread of this process, and a wire to it that
    can be cut.
    """

    def __init__(self, path: Path, spec: Spec = SPEC, **options: Any) -> None:
        super().__init__(path, spec, **options)
        self._tls = make_tls(path / "tls", [HOST])
        self._wire = Wire()
        self._carrier = HttpCarrier(
            f"https://{HOST}:{self._wire.port}", ca=self._tls.ca_text, timeout=20.0
        )
        self._serve()

    @property
    def carrier(self) -> Carrier:
        return self._carrier

    def cut(self, fault: Fault, name: str, arguments: tuple[Any, ...]) -> Any:
        with suppress(CarrierError):  # of a connection from before a restart
            self._carrier.checkpoint()
        self._carrier.checkpoint()  # so that there is a connection, and no handshake is what is cut
        self._wire.cut = fault
        try:
            return getattr(self._carrier, name)(*arguments)
        finally:
            assert self._wire.cut is None, "nothing came through the wire"

    def _serve(self) -> None:
        said: list[Listening] = []
        ready = threading.Event()
        options = {
            "host": HOST,
            "port": 0,
            "certificate": self._tls.certificate,
            "key": self._tls.key,
        }
        self._thread = threading.Thread(
            target=serve,
            args=(self.federation.service,),
            kwargs={**options, "ready": lambda listening: (said.append(listening), ready.set())},
            daemon=True,
        )
        self._thread.start()
        assert ready.wait(30), "the server does not begin to listen"
        (self._listening,) = said
        self._wire.target = int(self._listening.urls[0].rpartition(":")[2])

    def _stop(self) -> None:
        self._listening.stop()
        self._thread.join(30)
        assert not self._thread.is_alive(), "the server does not stop"

    def restart_server(self) -> None:
        self._stop()
        self.federation.service = self.federation.opened()
        self._serve()

    def close(self) -> None:
        self._carrier.close()
        self._stop()
        self._wire.close()
        super().close()


class Wire:
    """A relay of TCP connections on a port of its own.

    A `cut` ends the connection in the middle of what next goes through it.
    """

    def __init__(self) -> None:
        self.target = 0
        self.cut: Fault | None = None
        wire = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with suppress(OSError), socket.create_connection((HOST, wire.target)) as server:
                    back = threading.Thread(target=wire.relay, args=(server, self.request, True))
                    back.start()
                    wire.relay(self.request, server, False)
                    back.join()

        self._server = socketserver.ThreadingTCPServer((HOST, 0), Handler)
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def relay(self, source: socket.socket, sink: socket.socket, back: bool) -> None:
        with suppress(OSError):
            sink.setsockopt(
                socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
            )  # or each exchange would wait for 40 ms
            while data := source.recv(1 << 16):
                if self.cut is not None and self.cut.back is back:
                    fault, self.cut = self.cut, None
                    sink.sendall(data[: len(data) // 2] if fault.what == "truncated" else b"")
                    break
                sink.sendall(data)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
