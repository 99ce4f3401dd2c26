"""Latency per request and per round on each carrier, with real stores, signatures and durable
writes, for d = 768.

A federation of a hundred clients is taken from one carrier to the next; its messages are statistics
of 4.7 MB. Flower's runtimes, against Flower alone, are in `benchmarks.flower`.
"""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.data import Data
from benchmarks.grid import add_one
from benchmarks.local import TimedCarrier
from benchmarks.measure import Row, progress, seconds
from expunge import Aggregation, Spec
from expunge.client import Agent, ClientStore, Selection
from expunge.federation import Federation
from expunge.server.state import Settings
from expunge.transport.http import HttpCarrier
from expunge.wire.carrier import Carrier

_CLIENTS = 100
_MASKED = 10  # clients of a round of secure aggregation
_DIM = 767
_SAMPLES = 60  # of each client
_SINGLE = 20
_ROUNDS = 3
_AT_ONCE = 8
_LATER = 3600  # seconds: nothing is folded in while something is measured
_FLOWER = (
    Path(sys.prefix) / "flower" / "bin" / "python"
)  # an environment of its own, as `make test-extras` makes it


@dataclass
class Latency:
    """One carrier: milliseconds, one for each time that it was measured."""

    carrier: str
    trip: list[float] = field(default_factory=list)  # a signed checkpoint, asked for and sent
    idle: list[float] = field(default_factory=list)  # a sync that has nothing to do
    request: list[float] = field(default_factory=list)  # one deletion, receipted
    server: list[float] = field(default_factory=list)  # of that, at the service
    round: list[float] = field(default_factory=list)  # one sample more of every client
    masked: list[float] = field(default_factory=list)  # a round of secure aggregation
    messages: int = 0

    def line(self) -> str:
        """A row of the table."""
        small = (self.trip, self.idle, self.request, self.server)
        cells = [*(f"{statistics.median(found):.3g}" if found else "" for found in small)]
        cells += [
            f"{statistics.median(found) / 1e3:.3g}" if found else ""
            for found in (self.round, self.masked)
        ]
        return f"| {self.carrier} | {' | '.join(cells)} |"


class Place:
    """A federation in a folder, its clients' stores, and which of their samples have been
    forgotten.
    """

    def __init__(self, folder: Path, data: Data, clients: int, *, masked: bool) -> None:
        self.folder = folder
        rules = {"messages": ("masked",), "aggregation": Aggregation()} if masked else {}
        self.spec = Spec(dim=_DIM, labels=tuple(range(10)), **rules)  # type: ignore[arg-type]  # by name
        self.names = [f"client-{place:03}" for place in range(clients)]
        self.next = 0  # the first sample that nobody has forgotten
        with Federation.found(
            folder, self.spec, settings=Settings(erase_within=_LATER)
        ) as federation:
            self.ca = federation.layout.ca
            for place, name in enumerate(self.names):
                store = federation.client(name, message="" if masked else "gram").store
                own = slice(place * _SAMPLES, (place + 1) * _SAMPLES)
                features = np.ascontiguousarray(data.features[own, :_DIM])
                store.add(
                    [f"image-{number}" for number in range(_SAMPLES)],
                    features,
                    data.labels[own],
                    now=0,
                )
            federation.sync()

    @contextmanager
    def stores(self) -> Iterator[list[ClientStore]]:
        """The clients' stores, open."""
        opened = [ClientStore.open(self.folder / "clients" / name) for name in self.names]
        try:
            yield opened
        finally:
            for store in opened:
                store.close()

    @contextmanager
    def local(self, timing: Callable[[dict[str, float]], None]) -> Iterator[Carrier]:
        """The service in this process."""
        carrier = TimedCarrier.open(self.folder / "server", settings=Settings(erase_within=_LATER))
        carrier.timing = timing
        try:
            yield carrier
        finally:
            carrier.close()

    @contextmanager
    def http(self, timing: Callable[[dict[str, float]], None]) -> Iterator[Carrier]:
        """`expunge serve` in a process of its own."""
        code = "from expunge.cli.main import main; main()"
        command = [sys.executable, "-c", code, "serve", str(self.folder), "--port", "0", "--json"]
        command += ["--erase-within", str(_LATER)]
        with subprocess.Popen(  # noqa: S603
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            try:
                told = process.stdout.readline() if process.stdout else ""
                carrier = HttpCarrier(json.loads(told)["urls"][0], ca=self.ca, timing=timing)
                yield carrier
                carrier.close()
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait()


def _called(name: str, plain: Place, masked: Place) -> Latency:
    """A carrier that clients call: single requests, one after another, then rounds of all
    clients.
    """
    found, timing = Latency(name), dict[str, float]()
    progress(f"carriers: {name}")
    with getattr(plain, name)(timing.update) as carrier, plain.stores() as stores:
        agents = [Agent(store, carrier) for store in stores]
        agents[0].sync()
        found.trip = [1e3 * seconds(carrier.checkpoint) for _ in range(_SINGLE)]
        found.idle = [1e3 * seconds(agent.sync) for agent in agents[:_SINGLE] if agent.sync()]
        for agent in agents[:_SINGLE]:
            agent.store.forget(Selection(ids=(f"image-{plain.next}",)))
            timing.clear()
            found.request.append(1e3 * seconds(agent.push))
            found.server.append(1e3 * sum(timing.values()))
        for turn in range(_ROUNDS):
            for store in stores:
                add_one(store, f"{name}-{turn}")
            found.round.append(1e3 * seconds(partial(_together, [agent.push for agent in agents])))
        plain.next += 1
    found.masked = _masked(name, masked)
    return found


def _masked(name: str, place: Place) -> list[float]:
    """Rounds of secure aggregation, in each of which every client forgets a sample.

    Over HTTP each client waits for the others at the server; clients of one process take their
    turns one after another.
    """
    with ExitStack() as stack:
        if name == "local":
            federation = stack.enter_context(
                Federation.open(place.folder, settings=Settings(erase_within=_LATER))
            )
            stores = [federation.client(client).store for client in place.names]
            return [_masked_round(place, stores, federation.sync) for _ in range(_ROUNDS)]
        carrier = stack.enter_context(place.http(lambda _: None))
        stores = stack.enter_context(place.stores())
        agents = [Agent(store, carrier, patience=60.0) for store in stores]
        act = partial(_together, [agent.sync for agent in agents], len(agents))
        return [_masked_round(place, stores, act) for _ in range(_ROUNDS)]


def _masked_round(place: Place, stores: list[ClientStore], act: Callable[[], object]) -> float:
    for store in stores:
        store.forget(Selection(ids=(f"image-{place.next}",)))
    place.next += 1
    taken = 1e3 * seconds(act)
    if any(store.status().deleting for store in stores):
        raise RuntimeError("a round did not end: what was measured is worth nothing")
    return taken


def _together(works: list[Callable[[], object]], threads: int = _AT_ONCE) -> None:
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(lambda work: work(), works):
            pass


def _flower(place: Place) -> Latency | None:
    """Flower's apps on the in-process grid, if there is an environment that has flwr."""
    if not _FLOWER.exists():
        progress(f"no flower: {_FLOWER} is missing (make test-extras sets it up)")
        return None
    name = "flower, in-process grid"
    progress(f"carriers: {name}")
    numbers = map(str, (place.next, _SINGLE, _ROUNDS))
    folders = (str(place.folder / "server"), str(place.folder / "clients"))
    command = [str(_FLOWER), "-m", "benchmarks.grid", *folders, *numbers]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)  # noqa: S603 - our own program
    found = json.loads(done.stdout)
    return Latency(
        name,
        idle=found["idle"],
        request=found["request"],
        round=found["round"],
        messages=max(found["messages"]),
    )


def report(data: Data) -> tuple[str, list[Row]]:
    """Everything measured, as text, and the claims with what is wanted of them."""
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        progress("carriers: founding two federations")
        plain = Place(Path(folder) / "plain", data, _CLIENTS, masked=False)
        masked = Place(Path(folder) / "masked", data, _MASKED, masked=True)
        found = [_called(name, plain, masked) for name in ("local", "http")]
        flower = _flower(plain)
    progress(f"carriers took {time.perf_counter() - begun:.0f} s")
    return _page([*found, *([flower] if flower else [])]), _rows(found)


def _rows(found: list[Latency]) -> list[Row]:
    """Over a network against within the process."""
    local, http = found
    names = {
        "request": "one deletion, receipted, d = 768",
        "round": f"a round of {_CLIENTS} clients, d = 768",
        "masked": f"a masked round of {_MASKED} clients, d = 768",
    }
    rows = []
    for what, name in names.items():
        ours, theirs = (statistics.median(getattr(one, what)) for one in (http, local))
        rows.append(
            Row(f"{name}, http", "the local carrier", ours, theirs, "(for information)", holds=True)
        )
    return rows


def _page(found: list[Latency]) -> str:
    lines = [one.line() for one in found]
    messages = max(one.messages for one in found)
    flower = f" Flower's round took {messages} messages and replies." if messages else ""
    return f"""## Carriers

d = 768, messages of 4.7 MB (gram), {_CLIENTS} clients with stores of their own, everything signed and durable, a certified head
after every round of the server; medians. Trip: a signed checkpoint, asked for and sent. Idle: a sync with nothing to do. Request:
one deletion until its receipt is verified and the sample erased; of it, at the service. Round: each of the {_CLIENTS} clients
adds a sample, {_AT_ONCE} at a time. Masked round: {_MASKED} clients delete a sample each under secure aggregation, waiting for
one another (local: in turns).{flower}

| | trip, ms | idle, ms | request, ms | at the service, ms | round, s | masked round, s |
|---|---:|---:|---:|---:|---:|---:|
{chr(10).join(lines)}
"""
