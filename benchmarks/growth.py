"""How the server's work grows: 1,000 active clients, thousands of orders, a long soak.

The server is the product, in a process of its own, over TLS and with durable writes. Its clients
are keys that sign requests on time, whatever came of the ones before: a thousand agents on the same
two cores would measure themselves.
"""

from __future__ import annotations

import secrets
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.measure import seconds
from expunge import Spec
from expunge.crypto import Envelope, SigningKey
from expunge.evidence.log import read_entry
from expunge.ridge.encoding import integer_rows
from expunge.server.backup import found
from expunge.server.http.tls import make_tls
from expunge.server.storage.folder import ServerFolder
from expunge.server.storage.tables import Actor
from expunge.transport.http import HttpCarrier
from expunge.wire import payloads, request
from expunge.wire.commitment import SALT_BYTES, commitments
from expunge.wire.messages import Message, RowsPart
from expunge.wire.request import Header

_DIM = 16
_CLIENTS = 1000
_RATE = 60.0  # requests a second, of all clients together
_CARRIERS = 48  # connections at once


@dataclass
class Key:
    """A client without a store: what it needs to sign its next request."""

    name: str
    key: SigningKey
    sequence: int = 0


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
        )
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
                    with lock:
                        answered.append(Answered(due, time.perf_counter() - due, receipt))
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
    from expunge.wire.schema import time_seconds  # noqa: PLC0415

    entry = receipt.unverified()["entry"]
    at = next(at for generation, at in erasures if generation >= entry["generation"])
    return time_seconds(at) - time_seconds(entry["erased_by"])


def percentile(values: list[float], part: float) -> float:
    """The value that so many of the values are not above."""
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        crowd = Crowd(Path(place), int(sys.argv[1]))
        with crowd.serving(*sys.argv[3:]) as (url, process):
            crowd.load(url, len(crowd.keys), 400)
            with crowd.ordering(url, 2.0) as ordered:
                answered = crowd.load(url, int(_RATE * float(sys.argv[2])), _RATE)
        ordered = [1e3 * x for x in ordered]
        print(f"orders: median {statistics.median(ordered):.1f}, worst {max(ordered):.0f}")
        took = [1e3 * each.took for each in answered]
        late = crowd.late(answered)
        print(
            f"{len(took)} requests: median {statistics.median(took):.1f} ms, p90 {percentile(took, 0.9):.0f}, p99 "
            f"{percentile(took, 0.99):.1f}, worst {max(took):.0f}; late {sum(x > 0 for x in late)}, worst {max(late)} s"
        )
