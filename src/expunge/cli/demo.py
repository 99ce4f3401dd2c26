"""`expunge demo`: the whole story on real handwritten digits, by the local carrier.

Nothing is staged: the same server, stores, signatures and files as `expunge serve` and `expunge
client` have, in one process. Under secure aggregation it shows what a server sees of one client
beside what that client really sent (`Recording`).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import RenderableType
from rich.text import Text

from expunge import __version__
from expunge.cli._command import command
from expunge.cli._connect import OfficeConnection
from expunge.cli._format import receipt_in_words, receipt_value
from expunge.cli._options import FOLDER
from expunge.cli._output import (
    Screen,
    Style,
    at_edges,
    count,
    facts,
    line,
    next_steps,
    table,
    typed,
)
from expunge.client import Agent, ClientStore, SyncResult, enrol
from expunge.client.sync import patience, sync_all
from expunge.crypto import Envelope, PublicKey
from expunge.errors import EvidenceError, FormatError, StoreError
from expunge.evidence import Receipt, VerifiedFile, published_head, render_bundle, verify
from expunge.evidence.wording import found_in, moment
from expunge.exact import blas, wide
from expunge.federation.founding import found_federation
from expunge.federation.layout import Layout
from expunge.kinds import MessageKind
from expunge.office import Office
from expunge.ridge.head import Head
from expunge.ridge.spec import Spec
from expunge.ridge.statistics import Statistics
from expunge.secagg import Contribution, MaskedVector
from expunge.secagg.messages import read_client_message, read_preamble
from expunge.server.state import Settings
from expunge.solvers import solve
from expunge.storage.files import make_folder, write_whole
from expunge.transport.local import LocalCarrier
from expunge.wire.carrier import Carrier

_SHOWN = 24  # hexadecimal digits of 32


class Recording:
    """Listens to one client's messages: `carrier` is its way to the server."""

    def __init__(self, carrier: Carrier, store: ClientStore) -> None:
        self.carrier = cast("Carrier", _RecordingCarrier(carrier))
        self.store = store

    def shown(self) -> list[RenderableType]:
        """Some numbers of the client's first sum, as they are, and as they reached the server."""
        name, spec = self.store.name, self.store.spec
        masked = MaskedVector.from_bytes(cast("_RecordingCarrier", self.carrier).masked)
        truth = Contribution.of(self.store.statistics(), None, spec).vector()
        seen = wide.from_bytes(masked.to_bytes(), (masked.length,))
        rows: list[tuple[str, object]] = [
            (
                what,
                Text.assemble(
                    f"{_integer(truth, index):>4}",
                    (f"   received as {_digits(seen, index)}…", Style.QUIET),
                ),
            )
            for what, index in _indices(spec).items()
        ]
        text = (
            f"What {name} contributed, and what the server received (128-bit numbers under masks "
            "that cancel in the sum):"
        )
        return [line(), line(text, Style.QUIET), facts(rows)]


class _RecordingCarrier:
    """Everything is delegated to the carrier."""

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier
        self.masked = b""  # the first masked vector that went over it

    def __getattr__(self, name: str) -> Any:
        return getattr(self._carrier, name)

    def aggregate(self, data: bytes) -> bytes:
        """A turn in a round."""
        if not self.masked and data[:1] != b"{" and read_preamble(data).kind == "masked":
            self.masked = bytes(read_client_message(data).body)
        return self._carrier.aggregate(data)


def _indices(spec: Spec) -> dict[str, int]:
    """The positions in the vector of some numbers that people understand."""
    before = (
        blas.packed_length(spec.width)
        + spec.width * spec.columns
        + blas.packed_length(spec.columns)
    )
    return {
        "Samples added": before + 1,
        f"Of label {(spec.labels or ('',))[0]}": before + 3 + spec.columns,
    }


def _integer(vector: wide.Wide, index: int) -> int:
    return wide.to_ints(vector[:, index : index + 1])[0]


def _digits(vector: wide.Wide, index: int) -> str:
    low, high = (int(word) for word in vector[:, index])
    return f"{high:016x}{low:016x}"[:_SHOWN]


_CLIENTS = 10
_PEOPLE = 40
_TEST_EVERY = 5
_SEED = 7
_PERSON = "person-17"
_AUDIT_SECONDS = 30.0
_GATHER_FOR = (
    1.0  # seconds that a round waits for yet another client: here they come one right after another
)
_RECORDED = 3  # the client whose masked message is looked at

Array = NDArray[Any]


@dataclass(frozen=True)
class DemoDigits:
    """Samples with their owners, and others to test with."""

    features: Array
    labels: Array
    client: Array
    person: Array
    test_features: Array
    test_labels: Array

    @classmethod
    def load(cls) -> DemoDigits:
        """scikit-learn's 1,797 digits; clients and people are assigned by a fixed draw, every fifth
        digit is for testing.
        """
        from sklearn.datasets import load_digits  # noqa: PLC0415 - takes a second, and nothing else here needs it

        digits = load_digits()
        features, labels = digits.data / 16.0, digits.target.astype(np.int64)
        test = np.arange(len(labels)) % _TEST_EVERY == 0
        draw = np.random.default_rng(_SEED)
        number = int((~test).sum())
        people = np.array([f"person-{index}" for index in draw.integers(0, _PEOPLE, number)])
        clients = draw.integers(0, _CLIENTS, number)
        return cls(features[~test], labels[~test], clients, people, features[test], labels[test])

    def accuracy(self, head: Head) -> float:
        """On held-out digits."""
        return float((head.predict(self.test_features) == self.test_labels).mean())


@dataclass
class DemoRun:
    """What has happened so far."""

    folder: Path
    screen: Screen
    digits: DemoDigits
    spec: Spec
    took: dict[str, float] = field(default_factory=dict)
    recording: Recording | None = None  # under secure aggregation

    @contextmanager
    def step(self, name: str, words: str) -> Iterator[None]:
        """One step: its words, then how long it took."""
        began = time.perf_counter()
        yield
        self.took[name] = time.perf_counter() - began
        self.screen.show(line())
        self.screen.show(at_edges(f"{len(self.took)}. {words}", _duration(self.took[name])))

    def show(self, *parts: RenderableType) -> None:
        """Show something to people."""
        for part in parts:
            self.screen.show(part)


@command()
@click.option(
    "--keep", type=FOLDER, help="Keep everything in this new folder, to try other commands."
)
@click.option(
    "--secure-aggregation",
    is_flag=True,
    help="Mask clients' messages: the server sees only sums over rounds.",
)
def demo(keep: Path | None, secure_aggregation: bool) -> None:
    """Run a complete demo: train, forget, verify, audit, compare with retraining.

    Ten clients share scikit-learn's handwritten digits. One person with samples at several clients
    asks to be forgotten. An erasure order reaches every client, each answers, and the evidence is
    verified offline. Exits with 3 unless the head equals, bit for bit, the head retrained without
    that person.

    With --secure-aggregation clients send masked sums only. The demo then shows one client's true
    numbers beside what the server received.

    Example:
      expunge demo
      expunge demo --secure-aggregation
      expunge demo --keep demo    # keep the files, and see what to try next
    """
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise StoreError(f"{keep} is not empty: name a new folder for the demo")
    with ExitStack() as stack:
        folder = (
            keep
            if keep is not None
            else Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="expunge-demo-")))
        )
        make_folder(folder)
        messages: tuple[MessageKind, ...] = ("masked",) if secure_aggregation else ("gram", "rows")
        spec = Spec(dim=64, labels=tuple(range(10)), gamma=1.0, messages=messages)
        run = DemoRun(folder, Screen.current(), DemoDigits.load(), spec)
        value = _run(run)
    run.screen.result(
        value | {"kept": None if keep is None else str(keep), "seconds": run.took},
        _closing(keep, masked=secure_aggregation),
    )


def _run(run: DemoRun) -> dict[str, Any]:
    digits = run.digits
    run.show(
        line(f"Expunge {__version__}: exact, checkable unlearning", "bold"),
        line(
            f"Real handwritten digits: {count(len(digits.labels), 'sample')} of {_PEOPLE} people "
            f"at {_CLIENTS} clients, and {len(digits.test_labels)} more for testing."
        ),
    )
    with ExitStack() as stack:
        with run.step("found", "Create a federation and enrol ten clients"):
            layout = found_federation(run.folder / "federation", run.spec)
            carrier = LocalCarrier.open(layout.server, settings=Settings(gather_for=_GATHER_FOR))
            stack.callback(carrier.close)
            office = stack.enter_context(Office.open(layout.operator)).connect(carrier)
            connection = OfficeConnection(office, carrier, office.address)
            stores = [
                stack.enter_context(_enrolled(run, connection, layout, number))
                for number in range(_CLIENTS)
            ]
        if run.spec.is_masked:
            run.recording = Recording(carrier, stores[_RECORDED])
        agents = [Agent(store, _carrier_of(run, carrier, store)) for store in stores]
        before = _train(run, agents)
        receipts = _forget(run, office, agents)
        _show_receipt(run, receipts)
        finding = _verify(run, office, carrier, layout)
        audit = _audit(run, office, agents)
        after = _head(agents[0])
        equal = _compare(run, before, after)
    return {
        "accuracy_before": digits.accuracy(before),
        "accuracy_after": digits.accuracy(after),
        "person": _PERSON,
        "deleted": sum(
            {receipt.logged.index: receipt.logged.entry["deleted"] for receipt in receipts}.values()
        ),
        "receipt": receipt_value(receipts[0]),
        "proved": finding.proved,
        "audit": audit,
        "head": after.digest,
        "equal_to_retraining": equal,
    }


def _enrolled(
    run: DemoRun, connection: OfficeConnection, layout: Layout, number: int
) -> ClientStore:
    name = f"clinic-{number}"
    token, _ = connection.office.token(name, "client", (str(layout.path),))
    return enrol(run.folder / name, token, connection.carrier, address=str(layout.path))


def _carrier_of(run: DemoRun, carrier: Carrier, store: ClientStore) -> Carrier:
    """The carrier; for one client under secure aggregation, one that shows what goes over it."""
    recording = run.recording
    return recording.carrier if recording is not None and recording.store is store else carrier


def _sync(agents: Sequence[Agent]) -> list[SyncResult]:
    """Sync all, in as many turns as it takes them."""
    return list(sync_all({agent.store.name: agent.sync for agent in agents}, patience()).values())


def _train(run: DemoRun, agents: Sequence[Agent]) -> Head:
    digits = run.digits
    rounds = " under masks" if run.spec.is_masked else ""
    with run.step("train", f"Every client adds its samples{rounds} and gets a receipt"):
        for number, agent in enumerate(agents):
            own = np.flatnonzero(digits.client == number)
            agent.store.add(
                [f"digit-{index}" for index in own],
                digits.features[own],
                digits.labels[own],
                subjects=digits.person[own].tolist(),
                now=time.time(),
            )
        _sync(agents)
        head = _head(agents[-1])
    run.show(
        facts(
            [
                ("Head", f"{head.digest[:32]}…"),
                ("Accuracy", f"{digits.accuracy(head):.4f} on the test digits"),
            ]
        ),
        *([] if run.recording is None else run.recording.shown()),
    )
    return head


def _head(agent: Agent) -> Head:
    agent.sync()
    data = agent.store.head()
    if data is None:
        raise EvidenceError("the server published no head")
    return published_head.read(data, agent.store.server)[0]


def _forget(run: DemoRun, office: Office, agents: Sequence[Agent]) -> list[Receipt]:
    with run.step(
        "forget", f"{_PERSON} asks to be forgotten: an erasure order reaches all clients"
    ):
        order = office.do("order", {"subject": _PERSON})["order"]
        done = _sync(agents)
        answer = office.ask("show-order", {"order": order})
    receipts = [
        receipt for synced in done for receipt in synced.receipts if receipt.logged.entry["deleted"]
    ]
    run.show(
        facts(
            [
                (
                    "Order",
                    (
                        f"{order[:8]}, {answer['state']}: {len(answer['answers'])} of {_CLIENTS} "
                        "clients have answered"
                    ),
                ),
                ("Deleted", _deleted(answer["answers"], receipts)),
            ]
        )
    )
    return receipts


def _deleted(answers: Sequence[dict[str, Any]], receipts: Sequence[Receipt]) -> str:
    """What the order has deleted, as far as the server knows."""
    total, undisclosed = found_in(answers)
    if not undisclosed:
        holding = [f"{answer['client']} {answer['found']}" for answer in answers if answer["found"]]
        return f"{total} samples at {len(holding)} clients: {', '.join(holding)}"
    entry = receipts[0].logged.entry
    names = ", ".join(client["client"] for client in entry["clients"])
    return (
        f"{entry['deleted']} samples at {len(entry['clients'])} clients in one round ({names}); "
        "the number at each client is not disclosed"
    )


def _show_receipt(run: DemoRun, receipts: Sequence[Receipt]) -> None:
    receipt = receipts[0]
    entry = receipt.logged.entry
    run.show(
        line(),
        line(f"The receipt that {receipt.client} received, signed by the server:", Style.QUIET),
        facts(
            [
                ("Request", f"{receipt.sequence} of {receipt.client}: {receipt_in_words(receipt)}"),
                ("Took effect", moment(entry["time"])),
                (
                    "Audit log",
                    (
                        f"entry {receipt.logged.index}, with an inclusion proof in a log of "
                        f"{receipt.checkpoint.size} entries"
                    ),
                ),
                ("Ledger before", f"{entry['ledger_before'][:32]}…  (salted digest)"),
                ("Ledger after", f"{entry['ledger_after'][:32]}…  (salted digest)"),
                ("Erased at rest by", moment(entry["erased_by"])),
            ]
        ),
    )


def _verify(run: DemoRun, office: Office, carrier: Carrier, layout: Layout) -> VerifiedFile:
    with run.step("verify", "The evidence is written to one file and verified offline"):
        order = office.ask("orders", {})[0]["order"]
        envelope = Envelope.from_json(office.ask("bundle", {"order": order}), "bundle")
        write_whole(run.folder / "order.html", render_bundle(envelope))
        write_whole(run.folder / "head.expunge", carrier.head() or b"", mode=0o644)
        key = PublicKey.from_pem(layout.public_key.read_bytes())
        finding = verify((run.folder / "order.html").read_bytes(), key)
        verify((run.folder / "head.expunge").read_bytes(), key)
        _require_refusal(run.folder / "order.html", key)
    run.show(
        facts(
            [
                ("As written", Text("verified", style=Style.GOOD)),
                ("One byte altered", "refused, as it should be"),
                ("It documents", finding.proved[-1]),
                ("It does not prove", finding.not_proved[0]),
            ]
        )
    )
    return finding


def _require_refusal(file: Path, key: PublicKey) -> None:
    """Raise EvidenceError if a file with one altered byte were taken for a good one."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    try:
        verify(bytes(data), key)
    except (EvidenceError, FormatError):
        return
    raise EvidenceError("an altered bundle was taken for a good one")


def _duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1.0 else f"{1000 * seconds:.0f} ms"


def _audit(run: DemoRun, office: Office, agents: Sequence[Agent]) -> str:
    with run.step("audit", "Audit: every client recomputes its sums from its own samples"):
        audit = office.do("audit", {})["audit"]
        _sync(agents)
        ends = time.monotonic() + _AUDIT_SECONDS
        while (outcome := office.ask("show-audit", {"audit": audit}))[
            "result"
        ] == "under way" and time.monotonic() < ends:
            time.sleep(0.05)
    result = str(outcome["result"])
    words = (
        "the sum of all clients is the ledger, bit for bit"
        if result == "equal"
        else "the sum of all clients is not the ledger"
    )
    style = Style.GOOD if result == "equal" else Style.BAD
    run.show(facts([("Result", Text(f"{result}: {words}", style=style))]))
    if result != "equal":
        raise EvidenceError(f"the audit found a difference: {outcome}")
    return result


def _compare(run: DemoRun, before: Head, after: Head) -> bool:
    digits = run.digits
    keep = digits.person != _PERSON
    with run.step("retrain", f"Check: retrain from scratch without {_PERSON} and compare"):
        retrained = solve(Statistics.of(run.spec, digits.features[keep], digits.labels[keep]))
    equal = retrained.digest == after.digest
    run.show(
        table(
            ("Head", "Digest", "Accuracy"),
            [
                ("before", f"{before.digest[:40]}…", f"{digits.accuracy(before):.4f}"),
                ("forgotten", f"{after.digest[:40]}…", f"{digits.accuracy(after):.4f}"),
                ("retrained", f"{retrained.digest[:40]}…", f"{digits.accuracy(retrained):.4f}"),
            ],
        ),
        line(
            "The heads after forgetting and after retraining are equal, bit for bit."
            if equal
            else "The heads after forgetting and after retraining DIFFER.",
            Style.GOOD if equal else Style.BAD,
            indent=2,
        ),
    )
    if not equal:
        raise EvidenceError(
            f"the head {after.digest} is not that of retraining, {retrained.digest}"
        )
    return equal


def _closing(keep: Path | None, *, masked: bool) -> RenderableType:
    if keep is None:
        return next_steps(
            "expunge demo --keep demo",
            "expunge --help",
            why="The demo's temporary folder is deleted. To keep one, and to list all commands:",
        )
    federation, clinic = typed(keep / "federation"), typed(keep / "clinic-3")
    operator = typed(keep / "federation" / "operator")
    verify = (
        f"expunge verify {typed(keep / 'order.html')} --key "
        f"{typed(keep / 'federation' / 'server.pub')}"
    )
    if masked:
        return next_steps(
            verify,
            f"expunge client receipts --dir {clinic}",
            f"expunge client peers --dir {clinic}",
            f"expunge order show last --office {operator}",
            f"expunge serve {federation}",
            why=(
                "Next (changes take effect in rounds of three clients or more, while the server "
                "runs):"
            ),
        )
    return next_steps(
        verify,
        f"expunge client status --dir {clinic}",
        f"expunge client forget --subject person-12 --dry-run --dir {clinic}",
        f"expunge client forget --subject person-12 --dir {clinic}",
        f"expunge order list --office {operator}",
        f"expunge serve {federation}",
        why="Next:",
    )
