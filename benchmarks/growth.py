"""How the server's work grows: 1,000 active clients, thousands of orders, a long soak.

The server is the product, in a process of its own, over TLS and with durable writes. Its clients
are keys that sign requests on time, whatever came of the ones before: a thousand agents on the same
two cores would measure themselves.
"""

from __future__ import annotations

import argparse
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.data import Data
from benchmarks.measure import Row, at_most, progress, seconds, table
from benchmarks.service import until_folded
from expunge import Spec
from expunge.crypto import Envelope, SigningKey
from expunge.evidence.log import read_entry
from expunge.ridge.encoding import integer_rows
from expunge.server.backup import found
from expunge.server.http.tls import make_tls
from expunge.server.storage.folder import ServerFolder
from expunge.server.storage.tables import Actor, OrderRecord, OrderReply
from expunge.transport.http import HttpCarrier
from expunge.wire import payloads, request
from expunge.wire.commitment import SALT_BYTES, commitments
from expunge.wire.messages import Message, RowsPart
from expunge.wire.request import Header, OrderAnswer
from expunge.wire.schema import time_seconds

_DIM = 16
_CLIENTS = 1000
_RATE = 60.0  # requests a second, of all clients together
_FIRST_RATE = 300.0
_CARRIERS = 48  # connections at once
_SYNC_EVERY = 10  # requests
_ORDER_EVERY = 10.0  # seconds
_MINUTES = 20.0
_ORDERS = (10, 1_000, 10_000)
_TURNS = 26  # of which the first is not counted


@dataclass
class Key:
    """A client without a store: what it needs to sign its next request."""

    name: str
    key: SigningKey
    sequence: int = 0
    orders: list[str] = field(default_factory=list)  # to be answered by its next request


@dataclass(frozen=True)
class Answered:
    """A request: when it was due and how long its receipt took, by the clock for durations."""

    due: float
    took: float
    receipt: bytes


class Crowd:
    """A federation with many clients, in a folder."""

    def __init__(self, folder: Path, clients: int) -> None:
        self.folder = folder
        self.spec = Spec(dim=_DIM, labels=tuple(range(10)), gamma=1.0)
        self.operator = SigningKey(secrets.token_bytes(32))
        found(folder / "server", self.spec, self.operator.public)
        self.tls = make_tls(folder / "server" / "tls", ["127.0.0.1"])
        self.keys = [
            Key(f"client-{number:05}", SigningKey(secrets.token_bytes(32)))
            for number in range(clients)
        ]
        self.commanded = 0
        self._random = np.random.default_rng(0)
        with self.opened() as server:
            state = server.storage.state.get()
            if state is None:
                raise RuntimeError("the server was not founded")
            self.federation = state.federation
            # Enrolled by hand: a thousand enrolments are not what is measured here
            with server.storage.transaction():
                server.storage.actors.put(
                    *(
                        Actor(
                            each.name, "client", each.key.public.text, "active", 0, state.time, ""
                        )
                        for each in self.keys
                    )
                )

    @contextmanager
    def opened(self) -> Iterator[ServerFolder]:
        """The server's folder, while no server runs in it."""
        server = ServerFolder.open(self.folder / "server", timeout=30.0)
        try:
            yield server
        finally:
            server.close()

    @contextmanager
    def serving(self, *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
        """The server in a process of its own: its address, and the process."""
        command = [sys.executable, "-m", "benchmarks.host", str(self.folder / "server"), *options]
        with subprocess.Popen(command, text=True, stdout=subprocess.PIPE) as process:  # noqa: S603
            try:
                yield (process.stdout.readline().strip() if process.stdout else ""), process
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait()

    def carrier(self, url: str) -> HttpCarrier:
        """A way to the server."""
        return HttpCarrier(url, ca=self.tls.ca_text)

    def addition(self, client: Key) -> bytes:
        """The client's next request: one more sample."""
        features = self._random.standard_normal((1, _DIM))
        rows = integer_rows(self.spec, features, [int(self._random.integers(10))])
        salts = [secrets.token_bytes(SALT_BYTES)]
        client.sequence += 1
        header = Header(
            federation=self.federation,
            client=client.name,
            sequence=client.sequence,
            nonce=secrets.token_hex(32),
            data_digest=self.spec.data_digest,
            labels_digest=self.spec.labels_digest,
            message="rows",
            added=1,
            orders=tuple(OrderAnswer(order, 0) for order in client.orders),
        )
        client.orders = []
        message = Message("rows", RowsPart(rows, tuple(salts)), None).to_bytes(self.spec)
        return request.write(header, commitments(self.spec, salts, rows), [], message, client.key)

    def load(self, url: str, count: int, rate: float) -> list[Answered]:
        """So many requests, one of each client in turn, each sent when it is due; a client that
        still waits for its receipt is passed over.
        """
        begun, lock, number = time.perf_counter() + 0.5, threading.Lock(), iter(range(count))
        waiting = list(self.keys)
        answered: list[Answered] = []
        problems: list[BaseException] = []

        def bring() -> None:
            carrier = self.carrier(url)
            try:
                while True:
                    with lock:
                        turn = next(number, None)
                        if turn is None or problems:
                            return
                        client = waiting.pop(0)
                        data = self.addition(client)
                    due = begun + turn / rate
                    time.sleep(max(0.0, due - time.perf_counter()))
                    receipt = carrier.request(data)
                    took = time.perf_counter() - due
                    if turn % _SYNC_EVERY == 0:
                        client.orders = self.sync(carrier, client)
                    with lock:
                        answered.append(Answered(due, took, receipt))
                        waiting.append(client)
            except BaseException as problem:
                problems.append(problem)
            finally:
                carrier.close()

        threads = [threading.Thread(target=bring) for _ in range(_CARRIERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if problems:
            raise problems[0]
        return answered

    def sync(self, carrier: HttpCarrier, client: Key) -> list[str]:
        """The orders that wait for a client's answer."""
        question = {
            "actor": client.name,
            "federation": self.federation,
            "nonce": secrets.token_hex(32),
            "sequence": client.sequence,
            "size": 0,
        }
        answer = carrier.sync(payloads.sign("question", question, client.key))
        content = payloads.open_unverified("answer", answer)[1]
        return [order["order"] for order in content["orders"]]

    def fill(self, count: int) -> None:
        """So many orders, complete and closed by halves; no server runs."""
        with self.opened() as server, server.storage.transaction():
            for number in range(count):
                order = secrets.token_hex(16)
                closed = 3 if number % 2 else None
                record = OrderRecord(
                    order, 1, 2, None, None, completed=2, closed=closed, position=number
                )
                server.storage.orders.add(record, [each.name for each in self.keys])
                for each in self.keys:
                    server.storage.orders.reply(order, OrderReply(each.name, 0, 1, 2))

    def entries(self, url: str) -> int:
        """How many entries the log of a server has."""
        carrier = self.carrier(url)
        size: int = Envelope.from_bytes(carrier.checkpoint(), "checkpoint").unverified()["size"]
        carrier.close()
        return size

    def log_bytes(self) -> float:
        """Of an entry of the log, with its place in the tree; no server runs."""
        with self.opened() as server:
            log, size = server.storage.log, server.storage.log.size()
            return sum(map(len, log.entries(0, size))) / size + 2 * 32

    def promised(self, answered: list[Answered]) -> int:
        """The most seconds that a receipt has promised."""
        entries = (
            Envelope.from_bytes(each.receipt, "receipt").unverified()["entry"] for each in answered
        )
        return max(time_seconds(one["erased_by"]) - time_seconds(one["time"]) for one in entries)

    def command(self, carrier: HttpCarrier, action: str, **arguments: object) -> object:
        """What the operator is told when this is carried out."""
        self.commanded += 1
        return self._commanded(carrier, action, arguments, self.commanded)

    def ask(self, carrier: HttpCarrier, action: str, **arguments: object) -> object:
        """What the operator is told when this is asked."""
        return self._commanded(carrier, action, arguments, 0)

    def _commanded(
        self, carrier: HttpCarrier, action: str, arguments: dict[str, object], sequence: int
    ) -> object:
        content = {
            "action": action,
            "actor": "operator",
            "arguments": arguments,
            "federation": self.federation,
            "nonce": secrets.token_hex(32),
            "sequence": sequence,
        }
        answer = carrier.command(payloads.sign("command", content, self.operator))
        return Envelope.from_bytes(answer, "result").unverified()["result"]["value"]

    @contextmanager
    def ordering(self, url: str, every: float) -> Iterator[list[float]]:
        """An order is filed every so many seconds; how many seconds each took."""
        over, took = threading.Event(), list[float]()

        def order() -> None:
            carrier = self.carrier(url)
            while not over.wait(every):
                took.append(seconds(lambda: self.command(carrier, "order", subject="nobody")))
            carrier.close()

        thread = threading.Thread(target=order)
        thread.start()
        try:
            yield took
        finally:
            over.set()
            thread.join()

    def late(self, answered: list[Answered]) -> list[int]:
        """By how many seconds each request was erased later than its receipt promised, as the log
        says; the server is stopped.
        """
        erasures: list[tuple[int, str]] = []
        with self.opened() as server:
            for data in server.storage.log.entries(0, server.storage.log.size()):
                entry = read_entry(data)
                if entry["kind"] == "erased":
                    erasures.append((entry["generation"], entry["time"]))
        return [_late(Envelope.from_bytes(each.receipt, "receipt"), erasures) for each in answered]


def _late(receipt: Envelope, erasures: list[tuple[int, str]]) -> int:
    entry = receipt.unverified()["entry"]
    at = next(at for generation, at in erasures if generation >= entry["generation"])
    return time_seconds(at) - time_seconds(entry["erased_by"])


def percentile(values: list[float], part: float) -> float:
    """The value that so many of the values are not above."""
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def memory(process: subprocess.Popen[str]) -> float:
    """The memory that a process has now, in MiB."""
    lines = Path(f"/proc/{process.pid}/status").read_text("ascii").splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def soak(folder: Path, minutes: float) -> tuple[str, list[Row]]:
    """1,000 clients at 60 requests a second, with syncs and orders, for so many minutes."""
    crowd = Crowd(folder, _CLIENTS)
    database = folder / "server" / "server.db"
    parts: list[list[Answered]] = []
    with crowd.serving() as (url, process):
        progress("growth: the first requests of 1,000 clients")
        crowd.load(url, len(crowd.keys), _FIRST_RATE)
        until_folded(url, crowd.tls.ca)
        crowd.load(url, len(crowd.keys), _FIRST_RATE)  # from here on, pages are used again
        until_folded(url, crowd.tls.ca)
        before, used = database.stat().st_size, [memory(process)]
        entries = crowd.entries(url)
        with crowd.ordering(url, _ORDER_EVERY) as orders:
            for half in ("first", "second"):
                progress(f"growth: {minutes:g} minutes at {_RATE:g} requests a second, {half} half")
                parts.append(crowd.load(url, int(30 * minutes * _RATE), _RATE))
                used.append(memory(process))
        until_folded(url, crowd.tls.ca)
        grown, entries = database.stat().st_size - before, crowd.entries(url) - entries
    answered = [each for part in parts for each in part]
    took = [1e3 * each.took for each in answered]
    late = crowd.late(answered)
    missed = sum(each > 0 for each in late)
    median, p99, worst = statistics.median(took), percentile(took, 0.99), max(took)
    each, log = grown / entries / 1024, crowd.log_bytes() / 1024
    text = (
        f"1,000 clients, {_DIM} features, {_RATE:g} requests a second for {minutes:g} minutes "
        f"({len(took):,} requests), an order every {_ORDER_EVERY:g} seconds, one sync for ten "
        f"requests; clients and server share the cores. Of a request the median is {median:.1f} "
        f"ms, the 99th percentile {p99:.0f} ms and the worst {worst:.0f} ms; of an order "
        f"{1e3 * statistics.median(orders):.0f} ms, the worst {1e3 * max(orders):.0f} ms. The "
        f"receipts promise erasure within {crowd.promised(answered)} seconds; the latest "
        f"came {abs(max(late))} seconds {'after' if max(late) > 0 else 'before'} that. The server has {used[0]:.0f} MiB of memory at the "
        f"start, {used[1]:.0f} in the middle and {used[2]:.0f} at the end.\n"
    )
    claims = [
        at_most("a request among 1,000 clients, 99th percentile", "its median", 20, (p99, median)),
        Row(
            "requests erased later than promised",
            "all",
            missed,
            len(answered),
            "none",
            holds=not missed,
            unit="",
        ),
        Row("memory at the end", "in the middle", used[2], used[1], "at most 1.05x",
            holds=used[2] <= 1.05 * used[1], unit="MiB"),
        Row("the database, per entry of its log", "the entry", each, log, "at most 2.5x",
            holds=each <= 2.5 * log, unit="KiB"),
    ]  # fmt: skip
    return text, claims


def lists(folder: Path) -> list[Row]:
    """A sync, and a page of orders, with few and with many orders that are complete."""
    crowds = {}
    for count in _ORDERS:
        progress(f"growth: {count:,} orders")
        crowds[count] = crowd = Crowd(folder / str(count), 20)
        crowd.fill(count)
    timings: dict[tuple[str, int], list[float]] = {}
    with ExitStack() as running:
        carriers = {
            count: crowd.carrier(running.enter_context(crowd.serving())[0])
            for count, crowd in crowds.items()
        }
        for turn in range(_TURNS):
            for count, crowd in crowds.items():
                carrier = carriers[count]
                for what, ask in (
                    ("a sync", lambda: crowd.sync(carrier, crowd.keys[0])),  # noqa: B023
                    ("a page of orders", lambda: crowd.ask(carrier, "orders", limit=50)),  # noqa: B023
                ):
                    took = 1e3 * seconds(ask)
                    if turn:
                        timings.setdefault((what, count), []).append(took)
        for carrier in carriers.values():
            carrier.close()
    # A page of 10 orders is not full
    first = {"a sync": _ORDERS[0], "a page of orders": _ORDERS[1]}
    return [
        at_most(
            f"{what} with {count:,} orders",
            f"with {first[what]:,}",
            2.0,
            (
                statistics.median(timings[what, count]),
                statistics.median(timings[what, first[what]]),
            ),
        )
        for what in first
        for count in _ORDERS
        if count > first[what]
    ]


def report(_: Data | None, minutes: float = _MINUTES) -> tuple[str, list[Row]]:
    """Everything measured, as text, and the claims with what is wanted of them."""
    with tempfile.TemporaryDirectory() as place:
        text, rows = soak(Path(place) / "crowd", minutes)
        rows += lists(Path(place) / "lists")
    return f"## Growth\n\n{text}", rows


def main() -> int:
    """Measure this part alone, for another number of minutes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=_MINUTES)
    text, rows = report(None, parser.parse_args().minutes)
    sys.stdout.write(f"{text}\n{table(rows)}")
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
