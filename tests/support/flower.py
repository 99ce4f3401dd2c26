"""A federation of clinics, each with a store in a folder, as apps find it; and how it must be, by
retraining.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from expunge import Spec, Statistics, solve
from expunge.client import ClientStore, Selection, enrol
from expunge.transport.flower.client import run_client
from expunge.transport.flower.messages import NodeMessage, ServerMessage
from expunge.transport.flower.server import CallHandler
from expunge.transport.local import LocalCarrier
from expunge.wire.token import Token
from support.federation import SPEC, Federation

MOST_TURNS = 30


class Clinics:
    """A server's folder and `count` enrolled clients with samples of their own; nobody has anything
    open in between.
    """

    def __init__(
        self, path: Path, count: int = 3, *, spec: Spec = SPEC, samples: int = 5, **options: Any
    ) -> None:
        self.path = path
        self.spec = spec
        self.federation = Federation(path / "server", spec, clock=time.time)
        self.rng = np.random.default_rng(1)
        self.retained: dict[str, dict[str, tuple[Any, int]]] = {}
        self.officer = self.federation.officer()
        (path / "clients").mkdir()
        for number in range(count):
            self.enrol(f"clinic-{number:02}", **options)
        self.federation.close()
        for name in list(self.retained):
            self.add(name, samples)

    @property
    def server(self) -> Path:
        return self.path / "server"

    def folder(self, name: str) -> Path:
        return self.path / "clients" / name

    def store(self, name: str) -> ClientStore:
        return ClientStore.open(self.folder(name))

    def token(self, name: str) -> Token:
        """A token for a client, while the service is open."""
        secret = self.federation.token(name)
        return Token(
            self.federation.id, name, "client", secret, self.federation.server_key.public, ()
        )

    def enrol(self, name: str, **options: Any) -> None:
        enrol(self.folder(name), self.token(name), self.federation.service, **options).close()
        self.retained[name] = {}

    # -- what clients do at home -------------------------------------------------------------------

    def add(self, name: str, count: int, *, subject: str | None = None) -> list[str]:
        held = self.retained[name]
        ids = [f"{name}-{len(held) + place}-{self.rng.integers(1 << 40)}" for place in range(count)]
        features = self.rng.normal(size=(count, self.spec.dim)).astype(np.float32)
        labels = self.rng.integers(self.spec.columns, size=count)
        with self.store(name) as store:
            subjects = None if subject is None else [subject] * count
            store.add(ids, features, labels, subjects=subjects, now=time.time())
        held.update(
            {
                one: (feature, int(label))
                for one, feature, label in zip(ids, features, labels, strict=True)
            }
        )
        return ids

    def forget(self, name: str, count: int) -> list[str]:
        """Forget the oldest samples of a client."""
        ids = list(self.retained[name])[:count]
        with self.store(name) as store:
            store.forget(Selection(ids=tuple(ids)))
        for one in ids:
            del self.retained[name][one]
        return ids

    # -- the server at rest ------------------------------------------------------------------------

    @contextmanager
    def service(self) -> Iterator[Federation]:
        """The server, while no app has it open."""
        self.federation.service = self.federation.opened()
        try:
            yield self.federation
        finally:
            self.federation.close()

    def order(self, subject: str) -> str:
        """An officer's order to erase a subject everywhere."""
        with self.service():
            return str(self.officer.command("order", subject=subject)["order"])

    def statistics(self, names: Collection[str] | None = None) -> Statistics:
        """Those of retraining on all that is retained (by these clients)."""
        samples = [
            pair
            for name, held in self.retained.items()
            if names is None or name in names
            for pair in held.values()
        ]
        features = np.array([feature for feature, _ in samples], dtype=np.float32).reshape(
            -1, self.spec.dim
        )
        return Statistics.of(
            self.spec, features, np.array([label for _, label in samples], dtype=np.int64)
        )

    def check(self, names: Collection[str] | None = None, *, heads: bool = True) -> None:
        """The ledger is that of retraining, the head the retrained one, and all clients have it,
        with nothing pending.
        """
        retrained = self.statistics(names)
        with self.service() as federation:
            state = federation.service.state
            assert state.ledger.solver.statistics.digest == retrained.digest
            assert state.head is not None
            digest = state.head.digest
            assert digest == solve(retrained).digest
        for name in self.retained if names is None else names:
            with self.store(name) as store:
                status = store.status()
            assert (status.adding, status.deleting, status.composed, status.orders) == (
                0,
                0,
                None,
                0,
            ), name
            assert status.live == len(self.retained[name])
            assert not heads or status.head == digest


class Exchanges:
    """Conversations without Flower: a handler and nodes, and parcels in between."""

    def __init__(self, clinics: Clinics, handler: CallHandler) -> None:
        self.clinics = clinics
        self.handler = handler
        self.said: list[NodeMessage] = []
        self.change: Callable[[ServerMessage], ServerMessage] = lambda says: says
        self.backwards = False  # calls are answered in the opposite order

    def tell(self, name: str, says: ServerMessage, **options: Any) -> NodeMessage:
        arrived = ServerMessage.read(self.change(says).to_parcel())
        said = NodeMessage.read(
            run_client(self.clinics.folder(name), arrived, **options).to_parcel()
        )
        self.said.append(said)
        return said

    def run(self, name: str, **options: Any) -> int:
        """Talk until the node is done; how many exchanges it took."""
        says = self.handler.opening()
        for number in range(1, MOST_TURNS):
            said = self.tell(name, says, **options)
            if said.done:
                return number
            says = self.handler.answer(
                replace(said, calls=said.calls[::-1]) if self.backwards else said
            )
        raise AssertionError("the conversation does not come to an end")


@contextmanager
def exchanges_of(clinics: Clinics) -> Iterator[Exchanges]:
    """A handler on the clinics' server."""
    problems: list[str] = []
    carrier = LocalCarrier.open(clinics.server)
    try:
        yield Exchanges(
            clinics,
            CallHandler(carrier, lambda what, problem: problems.append(f"{what}: {problem!r}")),
        )
    finally:
        carrier.close()
    assert problems == []


def without_replies(says: ServerMessage, name: str) -> ServerMessage:
    """The message with the answers to one kind of call left out."""
    return replace(says, replies=tuple(reply for reply in says.replies if reply.name != name))
