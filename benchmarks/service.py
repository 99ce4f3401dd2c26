"""The service on real features: 100 clients over HTTPS on this machine, single deletions, bursts,
the initial load.

Everything is the product itself: client stores with their agents, a TLS server in a process of its
own, durable writes. Only in the burst are requests made beforehand, since a hundred agents on the
same two cores would measure themselves.
"""

from __future__ import annotations

import secrets
import signal
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import Ridge

from benchmarks.data import Data
from benchmarks.grams import one_core
from benchmarks.local import TimedCarrier
from benchmarks.measure import PAUSE, Row, at_least, at_most, progress, seconds
from expunge import Spec, Statistics
from expunge.client.enrolment import enrol
from expunge.client.samples import Selection
from expunge.client.store import ClientStore
from expunge.client.sync import Agent
from expunge.crypto import SigningKey
from expunge.exact.threads import one_blas_thread
from expunge.office import Office
from expunge.server.backup import found
from expunge.server.http.tls import make_tls
from expunge.transport.http import HttpCarrier
from expunge.transport.local import LocalCarrier
from expunge.wire import request
from expunge.wire.carrier import Carrier
from expunge.wire.messages import Message, RowsPart
from expunge.wire.request import Header
from expunge.wire.token import Token

_CLIENTS = 100
_SINGLE = 40  # deletions of each kind, one at a time
_TURNS = 4  # of single deletions over HTTPS as rows, with refits in between
# Requests of each client at once, with group commit; without it a fifth of them, for it takes so
# long
_BURST = 20
_REFITS = 2  # at a time
_PHASES = ("client", "wire", "checks", "wait", "solve", "write")


@dataclass(frozen=True)
class Latency:
    """Single deletions by one carrier and kind of message: milliseconds from asking to the receipt,
    and where they went.
    """

    what: str
    totals: list[float]
    phases: dict[str, float]

    @property
    def median(self) -> float:
        """Half of them took less."""
        return statistics.median(self.totals)

    @classmethod
    def joined(cls, parts: list[Latency]) -> Latency:
        """What was measured in several turns."""
        totals = [total for part in parts for total in part.totals]
        phases = {
            name: statistics.median(part.phases[name] for part in parts) for name in parts[0].phases
        }
        return cls(parts[0].what, totals, phases)

    def line(self) -> str:
        """A row of the table."""
        p99 = sorted(self.totals)[min(len(self.totals) - 1, int(0.99 * len(self.totals)))]
        parts = " | ".join(
            f"{self.phases[phase]:.1f}" if phase in self.phases else "" for phase in _PHASES
        )
        return f"| {self.what} | {self.median:.1f} | {p99:.1f} | {parts} |"


class Federation:
    """A federation in a folder, whose clients have equal shares of the data."""

    def __init__(self, folder: Path, data: Data, clients: int = _CLIENTS) -> None:
        self.folder = folder
        self.data = data
        self.clients = clients
        self.sequences: dict[str, int] = {}  # of requests made beforehand
        self.spec = Spec(dim=data.features.shape[1], labels=tuple(range(10)), gamma=1.0)
        self.key, operator = (
            SigningKey(secrets.token_bytes(32)),
            SigningKey(secrets.token_bytes(32)),
        )
        found(folder / "server", self.spec, operator.public, key=self.key)
        self.tls = make_tls(folder / "server" / "tls", ["127.0.0.1"])
        self.stores: list[ClientStore] = []
        self._enrol(operator)

    def _enrol(self, operator: SigningKey) -> None:
        carrier = LocalCarrier.open(self.folder / "server")
        federation = carrier.state.federation
        office = Office.create(
            self.folder / "office",
            name="operator",
            role="operator",
            federation=federation,
            server=self.key.public,
            address="",
            key=operator,
            carrier=carrier,
        )
        for number in range(self.clients):
            token = Token(
                federation,
                f"client-{number:03}",
                "client",
                secrets.token_hex(32),
                self.key.public,
                (),
            )
            office.do(
                "token", {"name": token.name, "role": "client", "secret": token.secret_digest}
            )
            self.stores.append(enrol(self.folder / token.name, token, carrier))
        office.close()
        carrier.close()

    @contextmanager
    def serving(self, *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
        """The server in a process of its own: its address, and the process."""
        command = [sys.executable, "-m", "benchmarks.host", str(self.folder / "server"), *options]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        with subprocess.Popen(command, text=True, **pipes) as process:  # type: ignore[call-overload] # noqa: S603
            try:
                yield (process.stdout.readline().strip() if process.stdout else ""), process
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait()

    def carrier(self, url: str, timing: dict[str, float] | None = None) -> HttpCarrier:
        """A way to the server."""
        return HttpCarrier(
            url, ca=self.tls.ca_text, timing=None if timing is None else timing.update
        )

    def load(self, url: str) -> tuple[float, float]:
        """Every client adds its samples to its store, then brings them: seconds for each."""
        shares = np.array_split(np.arange(len(self.data.labels)), self.clients)

        def fill() -> None:
            for store, share in zip(self.stores, shares, strict=True):
                ids = [f"image-{index}" for index in share]
                store.add(ids, self.data.features[share], self.data.labels[share], now=time.time())

        def bring(store: ClientStore) -> None:
            carrier = self.carrier(url)
            Agent(store, carrier).push()
            carrier.close()

        filled = seconds(fill)
        return filled, seconds(
            lambda: _together([partial(bring, store) for store in self.stores], 8)
        )

    def delete_one_by_one(
        self, what: str, carrier: Carrier, message: str, first: int, timing: dict[str, float]
    ) -> Latency:
        """Single deletions by clients in turn, each until its receipt is in hand and the sample is
        gone from the store.
        """
        totals, phases = [], {phase: [] for phase in _PHASES}  # type: tuple[list[float], dict[str, list[float]]]
        for turn in range(_SINGLE):
            store = self.stores[(first + turn) % self.clients]
            store.choose(message)
            gone = Selection(ids=(self._ids(store)[(first + turn) // self.clients],))
            carried = _Timed(carrier)
            timing.clear()
            total = 1e3 * seconds(partial(_forget, store, gone, carried))
            totals.append(total)
            at_server = {name: 1e3 * value for name, value in timing.items()}
            phases["client"].append(total - 1e3 * carried.spent)
            phases["wire"].append(1e3 * carried.spent - sum(at_server.values()))
            for name, value in at_server.items():
                phases[name].append(value)
        return Latency(
            what,
            totals,
            {name: statistics.median(values) for name, values in phases.items() if values},
        )

    def _ids(self, store: ClientStore) -> list[str]:
        share = np.array_split(np.arange(len(self.data.labels)), self.clients)[
            self.stores.index(store)
        ]
        return [f"image-{index}" for index in share]

    def burst(self, url: str, first: int, each: int) -> float:
        """Requests per second when all clients at once bring `each` separate deletions."""
        prepared = [self._prepared(store, range(first, first + each)) for store in self.stores]

        def bring(requests: list[bytes]) -> None:
            carrier = self.carrier(url)
            for data in requests:
                carrier.request(data)
            carrier.close()

        taken = seconds(
            lambda: _together([partial(bring, requests) for requests in prepared], self.clients)
        )
        return each * self.clients / taken

    def _prepared(self, store: ClientStore, places: range) -> list[bytes]:
        """Signed requests, each to delete one sample; the store is not updated, so its agent has no
        further work.
        """
        found_slots = [
            row[0] for row in store._folder.database.rows("SELECT slot FROM samples ORDER BY slot")
        ]
        (block,) = store._samples.blocks(self.spec, [found_slots[place] for place in places])
        made = []
        for place, named in enumerate(block.commitments):
            rows = type(block.rows)(
                block.rows.integers[place : place + 1],
                block.rows.largest,
                type(block.rows.targets)(
                    block.rows.targets.integers[place : place + 1],
                    (block.rows.targets.integers[place] > 0).astype(np.int64),
                ),
            )
            header = Header(
                federation=store.federation,
                client=store.name,
                sequence=self.sequences.setdefault(store.name, store.sequence) + 1,
                nonce=secrets.token_hex(32),
                data_digest=self.spec.data_digest,
                labels_digest=self.spec.labels_digest,
                message="rows",
                deleted=1,
            )
            self.sequences[store.name] += 1
            message = Message("rows", None, RowsPart(rows, (block.salts[place],))).to_bytes(
                self.spec
            )
            made.append(request.write(header, [], [named], message, store.key))
        return made


class _Timed:
    """A carrier that adds up how long requests take."""

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier
        self.spent = 0.0

    def __getattr__(self, name: str) -> object:
        return getattr(self._carrier, name)

    def request(self, data: bytes) -> bytes:
        """Carry, and look at the clock."""
        begun = time.perf_counter()
        answer = self._carrier.request(data)
        self.spent += time.perf_counter() - begun
        return answer


def _forget(store: ClientStore, gone: Selection, carrier: object) -> None:
    store.forget(gone)
    Agent(store, carrier).push()  # type: ignore[arg-type]  # any carrier


def _together(works: list[partial[None]], threads: int) -> None:
    """Do all of these, `threads` at a time."""
    waiting = iter(works)
    lock = threading.Lock()
    problems: list[BaseException] = []

    def work() -> None:
        while True:
            with lock:
                one = next(waiting, None)
            if one is None:
                return
            try:
                one()
            except BaseException as problem:
                problems.append(problem)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if problems:
        raise problems[0]


def peak_memory(process: subprocess.Popen[str]) -> float:
    """The most memory that a process has used, in MiB."""
    lines = Path(f"/proc/{process.pid}/status").read_text("ascii").splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def until_folded(url: str, ca: Path) -> None:
    """Wait until the server's journal is empty: single deletions are measured by themselves."""
    context = ssl.create_default_context(cafile=str(ca))
    while True:
        with urllib.request.urlopen(f"{url}/metrics", context=context) as answer:  # noqa: S310 - our own server
            if b"\nexpunge_journal_entries 0.0\n" in answer.read():
                return
        time.sleep(0.5)


class Refits:
    """Ridge refitted in float64 on all samples but one, by one BLAS thread, now and then."""

    def __init__(self, data: Data) -> None:
        rows: NDArray[np.float64] = np.concatenate(
            [data.features.astype(np.float64), np.ones((len(data.labels), 1))], axis=1
        )
        self._given = rows[1:], np.eye(10)[data.labels[1:]]
        self.timings: list[float] = []  # milliseconds
        self._fit()

    def _fit(self) -> None:
        with one_blas_thread():
            Ridge(alpha=1.0, solver="cholesky", fit_intercept=False).fit(*self._given)

    def measure(self) -> None:
        """Some more of them."""
        progress("the service: Ridge refitted")
        for _ in range(_REFITS):
            time.sleep(PAUSE)
            self.timings.append(1e3 * seconds(self._fit))


def report(data: Data) -> tuple[str, list[Row]]:
    """Everything measured, as text, and the claims with what is wanted of them."""
    with tempfile.TemporaryDirectory() as place:
        progress("the service: founding, 100 enrolments")
        federation = Federation(Path(place), data)
        timing: dict[str, float] = {}
        latencies = []
        with federation.serving() as (url, process):
            progress("the service: initial load of 50,000 samples from 100 clients")
            filled, brought = federation.load(url)
            peak = peak_memory(process)
            progress("the service: waiting until the load is folded in")
            until_folded(url, federation.tls.ca)
            gathered = list(load_rows(federation, brought))
            refits = Refits(data)
            latencies.append(_https_rows(federation, url, timing, refits))
            progress("the service: single deletions over HTTPS as gram")
            carrier = federation.carrier(url, timing)
            latencies.append(
                federation.delete_one_by_one("HTTPS, gram", carrier, "gram", 200, timing)
            )
        refits.measure()
        for message, first in (("rows", 300), ("gram", 400)):
            progress(f"the service: single deletions by the local carrier as {message}")
            with _local(federation, timing) as local:
                latencies.append(
                    federation.delete_one_by_one(f"local, {message}", local, message, first, timing)
                )
        with federation.serving() as (url, process):
            refits.measure()
            progress("the service: 2,000 deletions from 100 clients at once")
            rate = federation.burst(url, 10, _BURST)
            peak_after = peak_memory(process)
        refits.measure()
        with federation.serving("--no-group-commit") as (url, _):
            progress("the service: the same without group commit")
            alone = federation.burst(url, 10 + _BURST, _BURST // 5)
    return _page(filled, brought, (peak, peak_after), latencies, refits.timings), [
        *_rows(latencies, refits.timings, rate, alone),
        *gathered,
    ]


def load_rows(federation: Federation, brought: float) -> Iterator[Row]:
    """The load against the exact Gram of all rows in one process, on one core and on all."""
    data, what = federation.data, "50,000 samples brought by 100 clients with filled stores"
    gram = partial(Statistics.of, federation.spec, data.features, data.labels)
    with one_core():
        alone = seconds(gram)
    against = "the exact Gram of all rows, one core"
    yield at_most(what, against, 3.0, (1e3 * brought, 1e3 * alone))
    together = 1e3 * seconds(gram)
    yield Row(
        what,
        "the same, all cores",
        1e3 * brought,
        together,
        "(for information)",
        holds=True,
    )


def _https_rows(
    federation: Federation, url: str, timing: dict[str, float], refits: Refits
) -> Latency:
    """Single deletions over HTTPS as rows, and refits, in turns."""
    carrier, parts = federation.carrier(url, timing), []
    for turn in range(_TURNS):
        # Otherwise the refits would share the cores with a server that folds
        until_folded(url, federation.tls.ca)
        refits.measure()
        progress("the service: single deletions over HTTPS as rows")
        parts.append(
            federation.delete_one_by_one("HTTPS, rows", carrier, "rows", turn * _SINGLE, timing)
        )
    return Latency.joined(parts)


@contextmanager
def _local(federation: Federation, timing: dict[str, float]) -> Iterator[LocalCarrier]:
    carrier = TimedCarrier.open(federation.folder / "server")
    carrier.timing = timing.update
    try:
        yield carrier
    finally:
        carrier.close()


def _rows(latencies: list[Latency], refits: list[float], rate: float, alone: float) -> list[Row]:
    refit = statistics.median(refits)
    first, theirs = latencies[0], 'Ridge(solver="cholesky") refit, float64'
    rows = [
        at_least("one deletion over HTTPS (rows), receipted", theirs, 50.0, (first.median, refit)),
        at_least(
            "2,000 deletions from 100 clients at once, ms each", theirs, 300.0, (1e3 / rate, refit)
        ),
    ]
    gram = latencies[1]
    what = "one deletion over HTTPS (gram), receipted"
    rows.append(at_least(what, "Ridge refit, float64", 6.0, (gram.median, refit)))
    for one in latencies[2:]:
        what = f"one deletion, {one.what}, receipted"
        rows.append(
            Row(
                what,
                theirs,
                one.median,
                refit,
                "(for information)",
                holds=True,
                faster=True,
            )
        )
    rows.append(
        Row(
            "2,000 deletions from 100 clients at once, ms each",
            "without group commit",
            1e3 / rate,
            1e3 / alone,
            "at least 2x faster",
            rate >= 2 * alone,
            faster=True,
        )
    )
    return rows


def _page(
    filled: float,
    brought: float,
    peaks: tuple[float, float],
    latencies: list[Latency],
    refits: list[float],
) -> str:
    return f"""## The service

50,000 x 1,280 features at {_CLIENTS} clients; a TLS server in a process of its own on the same machine; client stores,
journal and receipts durable; a certified head after every deletion; the load folded in before. One BLAS thread on both sides,
refits and deletions in turns. Milliseconds; phases are medians.

| | median | p99 | {" | ".join(_PHASES)} |
|---|---:|---:|{"---:|" * len(_PHASES)}
{chr(10).join(one.line() for one in latencies)}
| Ridge refitted, float64 | {statistics.median(refits):.1f} | {max(refits):.1f} |{" |" * len(_PHASES)}

- client: the client's own store, signing, checking the receipt, erasing; wire: TLS, HTTP and the kernel; checks: parsing,
  signature, commitments; wait: for the round before; solve: ledger, its digest (as rows, of the live samples) and certified
  head; write: the durable transaction.
- Initial load: {filled:.1f} s to seal 50,000 samples into {_CLIENTS} client stores, {brought:.1f} s to bring them to the server,
  whose memory peaked at {peaks[0]:.0f} MiB (at {peaks[1]:.0f} MiB in the burst), with
  {_CLIENTS} sub-ledgers of 13 MB each on its disk.
"""
