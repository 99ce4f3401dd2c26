"""Circles: a server and clients under secure aggregation, any of which may stop, come back, or lose
a message at any step.

Time moves when a test says so. What the server must hold is known at every moment: of each client
what it held when the last request of it that a round has applied was composed.
"""

from __future__ import annotations

import atexit
import copy
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

from expunge import Aggregation, Spec, Statistics, solve
from expunge.client import Agent, ClientStore, Selection, SyncResult, enrol
from expunge.errors import CarrierError
from expunge.secagg import Collector
from expunge.server.service import Service
from expunge.server.state import Settings
from expunge.wire.token import Token
from support import seeds
from support.federation import NOW, Clock, Federation, scratch

RULES = Aggregation(fewest=3)
SPEC = Spec(dim=3, labels=("no", "yes"), gamma=0.5, messages=("masked",), aggregation=RULES)
GATHER, PHASE = 5.0, 60.0

Held = dict[str, tuple[np.ndarray, int]]  # by id: feature and label


class Timed(Federation):
    """A federation whose rounds go by a clock that stands still until it is moved."""

    seconds: Clock

    def __init__(self, path: Path, spec: Spec, **options: Any) -> None:
        settings = Settings(gather_for=GATHER, phase_for=PHASE, erase_within=3600)
        usual = {"seconds": Clock(1000.0), "settings": settings}
        super().__init__(path, spec, **(usual | options))

    def copied(self) -> Timed:
        other = super().copied()
        other.seconds = copy.copy(self.seconds)
        return other


class Way:
    """The way to the server as it is now.

    `lose` is asked before each exchange: "", or what is lost, "there" or "back", or only "cut
    there" or "cut back".
    """

    def __init__(self, circle: Circle) -> None:
        self._circle = circle
        self.lose: Callable[[str], str] = lambda _: ""
        self.change: dict[
            str, Callable[[Any], Any]
        ] = {}  # by what is called: what becomes of its answer
        self.said: list[
            tuple[str, bytes]
        ] = []  # every message and answer of rounds, as the server sees them

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def carry(*arguments: Any) -> Any:
            lost = self.lose(name)
            if lost == "there":
                raise CarrierError("lost on the way: offer it again")
            carrier = self._circle.federation.service
            if lost == "cut there":
                return getattr(carrier, name)(_halved(arguments[0]), *arguments[1:])
            answer = getattr(carrier, name)(*arguments)
            if lost == "cut back":
                return _halved(answer)
            if name == "aggregate":
                self.said += [("said", bytes(arguments[0])), ("told", answer)]
            if lost == "back":
                raise CarrierError("no answer came: offer it again")
            return self.change.get(name, lambda value: value)(answer)

        return carry


def _halved(data: bytes) -> bytes:
    return data[: len(data) // 2]


class Circle:
    """A masked federation, and what each client holds, has offered, and is counted for."""

    def __init__(
        self, path: Path, clients: int = 4, *, spec: Spec = SPEC, seed: int = 0, **options: Any
    ) -> None:
        self.path = path
        self.federation = Timed(path / "server", spec, **options)
        self.way = Way(self)
        self.stores: dict[str, ClientStore] = {}
        self.held: dict[str, Held] = {}
        self.offered: dict[tuple[str, int], Held] = {}  # by client and sequence number
        self.rng = np.random.default_rng(seed)
        self.number = 0
        for place in range(clients):
            self.enrol(f"c{place}")

    # -- clients -----------------------------------------------------------------------------------

    @property
    def spec(self) -> Spec:
        return self.federation.service.state.spec

    @property
    def service(self) -> Service:
        return self.federation.service

    @property
    def names(self) -> list[str]:
        return list(self.stores)

    def token(self, name: str) -> Token:
        federation = self.federation
        return Token(
            federation.id,
            name,
            "client",
            federation.token(name),
            federation.first_key.public,
            ("https://x",),
        )

    def enrol(self, name: str) -> None:
        self.stores[name] = enrol(self.path / name, self.token(name), self.way)
        self.held[name] = {}

    def add(self, name: str, count: int = 2, subject: str | None = None) -> list[str]:
        ids = [f"{name}-{self.number + place}" for place in range(count)]
        self.number += count
        rows = self.rng.standard_normal((count, self.spec.dim))
        labels = [int(one) for one in self.rng.integers(2, size=count)]
        self.stores[name].add(ids, rows, labels, subjects=[subject] * count, now=NOW)
        self.held[name] |= {
            one: (row, label) for one, row, label in zip(ids, rows, labels, strict=True)
        }
        return ids

    def everybody_adds(self, *names: str) -> None:
        for name in names or self.names:
            self.add(name)

    def forget(self, name: str, ids: list[str]) -> None:
        self.stores[name].forget(Selection(ids=ids), now=self.federation.clock())
        for one in ids:
            del self.held[name][one]

    def forget_client(self, name: str) -> None:
        """The operator forgets a client, and what it held leaves the ledger with it."""
        self.federation.operator.command("forget-client", client=name)
        self.stores.pop(name).close()
        del self.held[name]

    def correct(self, name: str, sample: str) -> None:
        row, label = self.rng.standard_normal(self.spec.dim), int(self.rng.integers(2))
        now = self.federation.clock()
        self.stores[name].correct(sample, feature=row, label=label, now=now)
        self.held[name][sample] = (row, label)

    def sync(
        self, name: str, *, accept_restored: bool = False, at_once: bool = False, **options: Any
    ) -> SyncResult:
        """One sync of a client.

        What it masks now, and did not mask before, is of what it holds now.
        """
        store = self.stores[name]
        receipts, composed = set(store.documents("receipt")), store.outbox.composed()
        is_bound = composed is not None and store.recall("masked") == str(composed.sequence)
        try:
            return self.agent(name, **options).sync(
                accept_restored=accept_restored, at_once=at_once
            )
        finally:
            outstanding = store.outbox.composed()
            for sequence in {
                *store.documents("receipt"),
                *([] if outstanding is None else [outstanding.sequence]),
            } - receipts:
                if is_bound and composed is not None and sequence == composed.sequence:
                    continue
                self.offered[name, sequence] = dict(self.held[name])
            if outstanding is not None and outstanding.is_cover:
                self.offered.pop((name, outstanding.sequence), None)  # whatever it was before

    def agent(self, name: str, **options: Any) -> Agent:
        usual = {"sleep": lambda _: None, "attempts": 1, "wall_clock": self.federation.clock}
        return Agent(self.stores[name], self.way, **(usual | options))

    def pass_round(self, *names: str) -> dict[str, SyncResult]:
        """One sync of each, in this order."""
        return {name: self.sync(name) for name in names or self.names}

    def go(self, *names: str, passes: int = 12) -> dict[str, SyncResult]:
        """Sync these, and none else, until none of them waits; those away drop out when time is
        up.
        """
        done = self.pass_round(*names)
        for _ in range(passes):
            if not any(one.waiting for one in done.values()):
                break
            before, due = self.service.rounds.pulse()
            done = {
                name: done[name].followed_by(one) for name, one in self.pass_round(*names).items()
            }
            if self.service.rounds.pulse()[0] == before:
                self.wait(due if due < 1e9 else PHASE)
        return done

    def until(self, phase: str, *names: str) -> None:
        """Bring a round to this phase, of which nobody has heard yet but the one that brought it
        there.
        """
        for _ in range(10):
            for name in names or self.names:
                if self.phase == phase:
                    return
                self.sync(name)
            if self.phase != phase and self.phase == "joining":
                self.wait(GATHER)
        raise AssertionError(f"the round is at {self.phase!r}, not at {phase}")

    @property
    def collector(self) -> Collector | None:
        """The server's side of the round that is under way, if one is."""
        rounds = self.service.rounds
        current = None if rounds is None else rounds._round
        return None if current is None else current.collector

    @property
    def phase(self) -> str:
        return "" if self.collector is None else self.collector.phase

    # -- what may happen ---------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        self.federation.seconds.now += seconds

    def time_is_up(self, *names: str, times: int = 1, **options: Any) -> None:
        """The time passes after which others are excluded; these come again and again."""
        rules = self.spec.aggregation
        assert rules is not None
        for _ in range(4 * times):
            for name in names:
                self.sync(name, **options)
            self.federation.clock.now += rules.set_aside_after // 4

    def restart_client(self, name: str) -> None:
        self.stores[name].close()
        self.stores[name] = ClientStore.open(self.path / name)

    def restart_server(self) -> None:
        self.federation.reopen()

    def seem_restored(self) -> None:
        """The server is as a restore from a backup of now would leave it, but for the ledger."""
        state = self.service.state
        attempts = {one.aggregation for one in state.storage.rounds.attempts()}
        with state.lock, state.changing() as now:
            state.append("restored", now, size=state.log.size, withheld=[])
            state.storage.rounds.drop_attempts(attempts)
            for name in self.names:
                state.storage.actors.put(replace(state.actor(name), status="must-rejoin"))
        self.restart_server()

    @contextmanager
    def losing(self, what: str, which: str) -> Iterator[None]:
        """Meanwhile what is called so is lost: there, or back."""
        self.way.lose = lambda name: which if name == what else ""
        try:
            yield
        finally:
            self.way.lose = lambda _: ""

    def twin(self, path: Path) -> Circle:
        """The same circle in another folder, to be taken elsewhere from here; this one must be
        closed.
        """
        other = copy.copy(self)
        other.path = path
        other.federation = self.federation.twin(path / "server")
        other.way = Way(other)
        other.stores = {}
        for name in self.stores:
            shutil.copytree(self.path / name, path / name)
            other.stores[name] = ClientStore.open(path / name)
        other.held = {name: dict(held) for name, held in self.held.items()}
        other.offered = {key: dict(held) for key, held in self.offered.items()}
        other.rng = copy.deepcopy(self.rng)
        return other

    def close(self) -> None:
        for store in self.stores.values():
            store.close()
        with suppress(Exception):
            self.federation.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- the law -----------------------------------------------------------------------------------

    def entries(self, kind: str) -> list[dict[str, Any]]:
        return self.federation.entries(kind)

    def counted(self) -> dict[str, Held]:
        """What the log says that the server counts of each client. No request is in it twice."""
        found: dict[str, Held] = {}
        last: dict[str, int] = {}
        for entry in self.entries("aggregated"):
            for member in entry["clients"]:
                client, sequence = member["client"], member["sequence"]
                assert sequence > last.get(client, 0), (
                    f"request {sequence} of {client} was applied twice"
                )
                last[client] = sequence
                # A cover changes nothing.
                found[client] = self.offered.get((client, sequence), found.get(client, {}))
        return {client: held for client, held in found.items() if client in self.stores}

    def statistics(self, held: dict[str, Held]) -> Statistics:
        spec = replace(self.spec)
        rows = [one for samples in held.values() for one in samples.values()]
        if not rows:
            return Statistics.zero(spec)
        return Statistics.of(
            spec,
            np.stack([row for row, _ in rows]),
            [label for _, label in rows],
            lost_columns="accept",
        )

    def check(self, held: dict[str, Held] | None = None) -> None:
        """Ledger and head are those of retraining on this, which is what the log says that the
        server counts.
        """
        state = self.service.state
        expected = self.statistics(self.counted() if held is None else held)
        assert state.ledger.exact_statistics().digest == expected.digest
        assert state.head is not None
        assert state.head.digest == solve(expected).digest

    def check_whole(self) -> None:
        """The same, and nothing is pending anywhere: the server counts what the clients hold, all
        of it.
        """
        for name, store in self.stores.items():
            status = store.status()
            assert (status.adding, status.deleting, status.live) == (0, 0, len(self.held[name])), (
                name
            )
            assert store.participation.read() is None, name
        self.check({name: held for name, held in self.held.items() if name in self.stores})

    def ledger(self) -> tuple[str, int, str]:
        """What must stay as it is when a round comes to nothing."""
        state = self.service.state
        head = state.head.digest if state.head is not None else state.headless
        return state.ledger.exact_statistics().digest, state.record.round, head


@cache
def settled(clients: int = 4, spec: Spec = SPEC) -> Circle:
    """A circle whose clients have all added something, in one round; it is closed, so that each
    test takes a twin of it (`twin_of`). It is made once, for all tests of a process.
    """
    path = scratch()
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    with seeds.apart(f"settled {clients} {spec}"), Circle(path, clients, spec=spec) as circle:
        circle.everybody_adds()
        circle.go()
        circle.check_whole()
    return circle


@contextmanager
def twin_of(circle: Circle) -> Iterator[Circle]:
    """A twin in a folder that is gone afterwards."""
    path = scratch()
    try:
        with circle.twin(path) as twin:
            yield twin
    finally:
        shutil.rmtree(path)


_Circle = TypeVar("_Circle", bound=Circle)


@contextmanager
def drawn(
    clients: int = 4,
    *,
    make: type[_Circle] = Circle,
    **options: Any,  # type: ignore[assignment]
) -> Iterator[_Circle]:
    """A circle in a folder that is gone afterwards."""
    path = scratch()
    try:
        with make(path, clients, **options) as circle:
            yield circle
    finally:
        shutil.rmtree(path)
