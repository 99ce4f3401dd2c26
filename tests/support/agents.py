"""A client with its agent, and a way to the real service that can be told to lose, refuse or change
what it carries.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from expunge import Spec, Statistics
from expunge.client import Agent, ClientStore, enrol
from expunge.crypto import PublicKey
from expunge.errors import (
    CarrierError,
    RefusedError,
)
from expunge.server.state import Settings
from expunge.wire.token import Token
from support.clients import features, ids
from support.federation import NOW, SPEC, Federation


class Way:
    """The way to the service, which can be told to lose, refuse or change what it carries.

    Follows the federation when it reopens.
    """

    def __init__(self, federation: Federation) -> None:
        self.federation_ = federation
        self.lost: list[str] = []  # "before" or "after", one for each time
        self.refuse: list[RefusedError | None] = []  # one for each request; None lets it pass
        self.change: dict[str, Callable[[Any], Any]] = {}
        self.offered: list[bytes] = []
        self.pauses: list[float] = []

    def __getattr__(self, name: str) -> Any:
        def carry(*arguments: Any) -> Any:
            if name == "request":
                self.offered.append(arguments[0])
                refusal = self.refuse.pop(0) if self.refuse else None
                if refusal is not None:
                    raise refusal
            lose = self.lost.pop(0) if self.lost else ""
            if lose == "before":
                raise CarrierError("lost on the way: offer it again")
            answer = getattr(self.federation_.service, name)(*arguments)
            if lose == "after":
                raise CarrierError("no answer came: offer it again")
            return self.change.get(name, lambda value: value)(answer)

        return carry


class Home:
    """A federation with one client and its agent."""

    def __init__(
        self, path: Path, spec: Spec = SPEC, settings: Settings | None = None, **options: Any
    ) -> None:
        self.path = path
        self.federation = Federation(path / "server", spec, settings=settings)
        self.way = Way(self.federation)
        self.store = self.enrol("ward-3", **options)
        self.agent = self.agent_of(self.store)

    def token(self, name: str, role: str = "client", server: PublicKey | None = None) -> Token:
        secret = self.federation.token(name, role)
        return Token(
            self.federation.id,
            name,
            role,
            secret,
            server or self.federation.server_key.public,
            ("https://x",),
        )

    def enrol(self, name: str, **options: Any) -> ClientStore:
        return enrol(self.path / name, self.token(name), self.way, **options)

    def agent_of(self, store: ClientStore, **options: Any) -> Agent:
        return Agent(store, self.way, sleep=self.way.pauses.append, attempts=4, **options)

    @property
    def ledger(self) -> Statistics:
        return self.federation.service.state.ledger.solver.statistics

    def close(self) -> None:
        self.store.close()
        self.federation.close()


def add(
    store: ClientStore, count: int = 4, prefix: str = "sample", seed: int = 0, **options: Any
) -> None:
    store.add(ids(count, prefix), features(count, seed), np.arange(count) % 3, now=NOW, **options)


def of(count: int = 4, seed: int = 0, spec: Spec = SPEC) -> Statistics:
    return Statistics.of(spec, features(count, seed), np.arange(count) % 3)
