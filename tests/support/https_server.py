"""A server that really listens, on a free port with real TLS, and a client made by hand."""

from __future__ import annotations

import http.client
import secrets
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from expunge import Spec
from expunge.crypto import Envelope, SigningKey
from expunge.ridge.encoding import integer_rows
from expunge.server import backup
from expunge.server.http.limits import Limits
from expunge.server.http.run import Listening, serve
from expunge.server.http.tls import TlsFiles, make_tls
from expunge.server.service import Service
from expunge.server.state import Settings
from expunge.wire import payloads, request
from expunge.wire.commitment import commitments
from expunge.wire.messages import Message, RowsPart
from expunge.wire.request import Header, OrderAnswer
from expunge.wire.token import secret_digest

SPEC = Spec(dim=6, labels=("a", "b", "c"))
HOST = "127.0.0.1"


@dataclass
class Site:
    """A service with its operator; what is asked here goes to the service itself, not over HTTP."""

    service: Service
    operator: SigningKey
    folder: Path
    number: int = 0

    @property
    def federation(self) -> str:
        return self.service.state.federation

    def ask(self, action: str, sequence: int = 0, **arguments: Any) -> bytes:
        """The envelope of a command or question of the operator."""
        content = {
            "action": action,
            "actor": "operator",
            "arguments": arguments,
            "federation": self.federation,
            "nonce": secrets.token_hex(32),
            "sequence": sequence,
        }
        return payloads.sign("command", content, self.operator)

    def command(self, action: str, **arguments: Any) -> Any:
        self.number += 1
        answer = self.service.command(self.ask(action, self.number, **arguments))
        return Envelope.from_bytes(answer, "result").unverified()["result"]["value"]

    def token(self, name: str, role: str = "client") -> str:
        secret = secrets.token_hex(32)
        self.command("token", name=name, role=role, secret=secret_digest(secret))
        return secret

    def client(self, name: str, samples: int = 8) -> HandClient:
        """An enrolled client."""
        key = SigningKey(secrets.token_bytes(32))
        client = HandClient(name, key, self.federation, samples)
        self.service.enrol(client.enrolment(self.token(name)))
        return client

    def standing(self) -> tuple[Any, ...]:
        """What must stay as it is when something is refused."""
        status = self.service.status()
        kept = ("samples", "clients", "round", "log", "head", "journal", "orders", "key")
        return tuple(status[name] for name in kept)


@dataclass
class HandClient:
    """A client without a store: it makes requests, and nothing else."""

    name: str
    key: SigningKey
    federation: str
    samples: int
    sequence: int = 0
    salts: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(len(self.name) + self.samples)
        self.features = rng.normal(size=(self.samples, SPEC.dim))
        self.labels = rng.integers(0, SPEC.columns, self.samples)
        self.salts = [secrets.token_bytes(32) for _ in range(self.samples)]
        self.commitments = commitments(
            SPEC, self.salts, integer_rows(SPEC, self.features, self.labels)
        )

    def enrolment(self, secret: str, **changes: Any) -> bytes:
        content = {
            "federation": self.federation,
            "key": self.key.public.text,
            "name": self.name,
            "spec": SPEC.data_digest,
            "token": secret,
        }
        return payloads.sign("enrolment", content | changes, self.key)

    def question(self) -> bytes:
        content = {
            "actor": self.name,
            "federation": self.federation,
            "nonce": secrets.token_hex(32),
            "sequence": self.sequence,
            "size": 0,
        }
        return payloads.sign("question", content, self.key)

    def _part(self, which: Sequence[int]) -> RowsPart | None:
        if not which:
            return None
        chosen = list(which)
        rows = integer_rows(SPEC, self.features[chosen], self.labels[chosen])
        return RowsPart(rows, tuple(self.salts[index] for index in chosen))

    def request(
        self,
        add: Sequence[int] = (),
        delete: Sequence[int] = (),
        *,
        sequence: int = 0,
        orders: tuple[OrderAnswer, ...] = (),
    ) -> bytes:
        """The next request, or one of another number."""
        if not sequence:
            self.sequence += 1
        header = Header(
            federation=self.federation,
            client=self.name,
            sequence=sequence or self.sequence,
            nonce=secrets.token_hex(32),
            data_digest=SPEC.data_digest,
            labels_digest=SPEC.labels_digest,
            message="rows" if add or delete else "none",
            added=len(add),
            deleted=len(delete),
            orders=orders,
        )
        message = Message(header.message, self._part(add), self._part(delete))
        named = (
            [self.commitments[index] for index in add],
            [self.commitments[index] for index in delete],
        )
        return request.write(header, *named, message.to_bytes(SPEC), self.key)


def found(folder: Path) -> SigningKey:
    operator = SigningKey(secrets.token_bytes(32))
    backup.found(folder, SPEC, operator.public)
    return operator


def opened(folder: Path, **settings: Any) -> Service:
    return Service.open(
        folder, settings=Settings(**{"erase_within": 3600, **settings}), upkeep=False
    )


@contextmanager
def site(folder: Path, **settings: Any) -> Iterator[Site]:
    """A service that is not served."""
    operator = found(folder)
    service = opened(folder, **settings)
    try:
        yield Site(service, operator, folder)
    finally:
        service.close()


@dataclass
class Served:
    """A server that listens."""

    site: Site
    url: str
    tls: TlsFiles
    listening: Listening

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def ca(self) -> str:
        return self.tls.ca_text

    def connect(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(HOST, self.port, timeout=20, context=trusting(self.ca))

    def raw(self) -> ssl.SSLSocket:
        """A connection on which anything can be said."""
        plain = socket.create_connection((HOST, self.port), timeout=20)
        return trusting(self.ca).wrap_socket(plain, server_hostname=HOST)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        connection = self.connect()
        try:
            return asked(connection, method, path, body, **headers)
        finally:
            connection.close()


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    data: bytes


def asked(
    connection: http.client.HTTPConnection, method: str, path: str, body: Any = None, **headers: str
) -> Answer:
    connection.request(
        method, path, body, {name.replace("_", "-"): value for name, value in headers.items()}
    )
    response = connection.getresponse()
    return Answer(
        response.status,
        {name.lower(): value for name, value in response.getheaders()},
        response.read(),
    )


def trusting(ca: str) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=ca)


@contextmanager
def served(
    folder: Path,
    *,
    limits: Limits | None = None,
    log_peers: bool = False,
    names: Sequence[str] = (HOST, "localhost"),
    **settings: Any,
) -> Iterator[Served]:
    """A service behind HTTPS on a free port, in a thread of this process."""
    operator = found(folder / "server")
    service = opened(folder / "server", **settings)
    tls = make_tls(folder / "tls", names)
    ready, said = threading.Event(), []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            serve(
                service,
                host=HOST,
                port=0,
                certificate=tls.certificate,
                key=tls.key,
                limits=limits,
                log_peers=log_peers,
                ready=lambda listening: (said.append(listening), ready.set()),
            )
        except BaseException as problem:  # told to the test, which would wait for ever
            failures.append(problem)
            ready.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(30)
    if failures:
        raise failures[0]
    (listening,) = said
    try:
        yield Served(Site(service, operator, folder / "server"), listening.urls[0], tls, listening)
    finally:
        listening.stop()
        thread.join(30)
        assert not thread.is_alive()
        if failures:
            raise failures[0]
