"""A federation in a folder, spoken to byte by byte: a protocol client made by hand, which shares
nothing with expunge.client.

Every party keeps what it has sent, so that retraining from scratch is always at hand: `check`
compares the service with it.
"""

from __future__ import annotations

import copy
import hashlib
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event, Thread
from typing import Any, Self

import numpy as np

from expunge import Spec, Statistics, solve
from expunge.crypto import Envelope, SigningKey, canonical
from expunge.crypto.envelope import payload_type, preauthentication
from expunge.evidence import KeyChain, Receipt, Result, published_head
from expunge.evidence.digests import MultisetHash, binding, salted
from expunge.evidence.log import read_entry
from expunge.ridge.sums import Sums
from expunge.server.backup import found
from expunge.server.service import Service
from expunge.server.state import Settings
from expunge.server.storage.folder import OpenStorage
from expunge.server.storage.sqlite import open_storage
from expunge.server.writer import Writer
from expunge.storage.sqlite import Hook, no_hook
from expunge.wire import messages, payloads, request
from expunge.wire.messages import Message
from expunge.wire.request import AuditAnswer, Header, OrderAnswer
from expunge.wire.token import secret_digest
from support.samples import SPEC, Sample, commitments_of, draw, part_of, statistics_of

NOW = 1_790_000_000


def scratch() -> Path:
    """A new folder, in memory where the machine has such: for tests of many writes, whose
    durability is not in question.
    """
    memory = Path("/dev/shm")  # noqa: S108 - a folder of our own is made in it
    return Path(tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else None))


def make_key() -> SigningKey:
    return SigningKey(secrets.token_bytes(32))


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self, now: float = NOW) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Ticking:
    """A clock that goes on by a second whenever it is looked at: so that evidence of the wrong
    time, or key, shows.
    """

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        self.now += 1
        return self.now


@dataclass
class Party:
    """Somebody with a key, a name and a sequence number, who asks a service that may be opened anew
    now and then.
    """

    federation: Federation
    name: str
    key: SigningKey
    sequence: int = 0

    def envelope(self, action: str, arguments: dict[str, Any], sequence: int) -> bytes:
        content = {
            "action": action,
            "actor": self.name,
            "arguments": arguments,
            "federation": self.federation.id,
            "nonce": secrets.token_hex(32),
            "sequence": sequence,
        }
        return payloads.sign("command", content, self.key)

    def command(self, action: str, /, **arguments: Any) -> Any:
        """Carry a command out, and read its result as whoever holds the server's first key
        would.
        """
        return self.offer(self.envelope(action, arguments, self.sequence + 1))

    def offer(self, data: bytes) -> Any:
        """Offer the bytes of a command; once it is carried out, the next number is due."""
        answer = self.federation.service.command(data)
        result = Result.read(Envelope.from_bytes(answer, "result"), self.federation.chain())
        assert result.sequence == self.sequence + 1
        self.sequence += 1
        return result.result["value"]

    def ask(self, action: str, /, **arguments: Any) -> Any:
        answer = self.federation.service.command(self.envelope(action, arguments, 0))
        return Result.read(Envelope.from_bytes(answer, "result"), self.federation.chain()).result[
            "value"
        ]

    def sync(self, size: int = 0) -> dict[str, Any]:
        content = {
            "actor": self.name,
            "federation": self.federation.id,
            "nonce": secrets.token_hex(32),
            "sequence": self.sequence,
            "size": size,
        }
        answer = self.federation.service.sync(payloads.sign("question", content, self.key))
        heard = payloads.open_verified("answer", answer, self.federation.server_key.public)
        assert (heard["nonce"], heard["actor"]) == (content["nonce"], self.name)
        return heard


@dataclass
class Client(Party):
    """A client with all its samples; `retained` is what the server has confirmed to hold."""

    retained: list[Sample] = field(default_factory=list)

    @property
    def spec(self) -> Spec:
        return self.federation.spec

    def header(self, **changes: Any) -> Header:
        fixed: dict[str, Any] = {
            "federation": self.federation.id,
            "client": self.name,
            "sequence": self.sequence + 1,
            "nonce": secrets.token_hex(32),
            "data_digest": self.spec.data_digest,
            "labels_digest": self.spec.labels_digest,
            "message": "none",
        }
        return Header(**(fixed | changes))

    def request(
        self,
        added: Sequence[Sample] = (),
        deleted: Sequence[Sample] = (),
        kind: str = "rows",
        *,
        message: bytes | None = None,
        named: tuple[list[bytes], list[bytes]] | None = None,
        key: SigningKey | None = None,
        says: dict[str, Any] | None = None,
        **changes: Any,
    ) -> bytes:
        """The bytes of a request; what is given by name replaces what an honest client would have
        written.
        """
        spec = self.spec
        kind = kind if added or deleted else changes.pop("message_kind", "none")
        add, delete = named or (commitments_of(spec, added), commitments_of(spec, deleted))
        if message is None:
            message = Message(
                kind, part_of(spec, kind, added), part_of(spec, kind, deleted)
            ).to_bytes(spec)
        head = self.header(message=kind, added=len(add), deleted=len(delete), **changes)
        if says is not None:
            return mislabelled(head, says, [*add, *delete], message, key or self.key)
        return request.write(head, add, delete, message, key or self.key)

    def send(
        self,
        added: Sequence[Sample] = (),
        deleted: Sequence[Sample] = (),
        kind: str = "rows",
        **changes: Any,
    ) -> Receipt:
        """Offer a request and keep the books of what it changed."""
        data = self.request(added, deleted, kind, **changes)
        answer = self.federation.service.request(data)
        return self.settled(answer, added, deleted, reset=bool(changes.get("reset")))

    def settled(
        self,
        answer: bytes,
        added: Sequence[Sample] = (),
        deleted: Sequence[Sample] = (),
        *,
        reset: bool = False,
    ) -> Receipt:
        """Take a receipt in, as one that holds and is for the next request."""
        receipt = self.federation.read(answer)
        assert receipt.client == self.name
        assert receipt.sequence == self.sequence + 1 or (reset and receipt.sequence > self.sequence)
        entry = receipt.logged.entry
        assert (entry["added"], entry["deleted"]) == (len(added), len(deleted))
        self.booked(receipt.sequence, added, deleted, reset=reset)
        return receipt

    def booked(
        self,
        sequence: int,
        added: Sequence[Sample],
        deleted: Sequence[Sample],
        *,
        reset: bool = False,
    ) -> None:
        """Keep the books of a request that was applied."""
        gone = set(map(id, deleted))
        kept = [] if reset else [sample for sample in self.retained if id(sample) not in gone]
        self.retained = [*kept, *added]
        self.sequence = sequence

    def audit_answer(
        self, waiting: dict[str, Any], samples: Sequence[Sample] | None = None
    ) -> AuditAnswer:
        """What an honest client answers to an audit; `samples` is what a lying one would recompute
        from.
        """
        statistics = statistics_of(self.spec, self.retained if samples is None else samples)
        digest = salted("audit", bytes.fromhex(waiting["salt"]), statistics.digest)
        return AuditAnswer(waiting["audit"], digest, statistics.count)

    def answer_audits(self, samples: Sequence[Sample] | None = None) -> Receipt:
        """Answer every audit that waits for this client."""
        answers = tuple(self.audit_answer(waiting, samples) for waiting in self.sync()["audits"])
        return self.send(audits=answers)

    def answer_order(
        self, order: str, samples: Sequence[Sample] = (), kind: str = "rows"
    ) -> Receipt:
        """Answer an erasure order by deleting these samples."""
        return self.send((), samples, kind, orders=(OrderAnswer(order, len(samples)),))


def mislabelled(
    header: Header, changes: dict[str, Any], named: list[bytes], message: bytes, key: SigningKey
) -> bytes:
    """A request whose header says something else than its body holds, signed all the same."""
    body = b"".join([*named, message])
    digest = {"body": hashlib.sha256(body).hexdigest()}
    head = canonical.encode(header.content() | digest | changes)
    frame = b"expunge\x00request\x00" + bytes([1]) + len(head).to_bytes(4, "little")
    return frame + head + key.sign(preauthentication(payload_type("request"), head)) + body


class Federation:
    """A server in a folder and the parties that talk to it; `spec` is what the clients believe it
    to be.
    """

    def __init__(
        self,
        path: Path,
        spec: Spec = SPEC,
        *,
        solver: str = "woodbury",
        settings: Settings | None = None,
        clock: Callable[[], float] | None = None,
        seconds: Callable[[], float] = time.monotonic,
        hook: Hook = no_hook,
        seed: int = 0,
        upkeep: bool = False,
        storage: OpenStorage = open_storage,
    ) -> None:
        self.path = path
        self.storage = storage
        self.spec = spec
        self.settings = settings or Settings()
        self.clock = clock or Clock()
        self.seconds = seconds
        self.hook = hook
        self.upkeep = upkeep
        self.rng = np.random.default_rng(seed)
        self.first_key = make_key()
        self.clients: dict[str, Client] = {}
        self.operator = Party(self, "operator", make_key())
        found(
            path,
            spec,
            self.operator.key.public,
            solver=solver,
            key=self.first_key,
            clock=self.clock,
            storage=storage,
        )
        self.service = self.opened()
        self.id = self.service.state.federation

    def copied(self) -> Self:
        """What a twin begins with: clocks and a generator of its own."""
        other = copy.copy(self)
        other.clock, other.rng = copy.copy(self.clock), copy.deepcopy(self.rng)
        return other

    def twin(self, path: Path) -> Self:
        """The same federation in another folder, to be taken elsewhere from here; this one must be
        closed.
        """
        shutil.copytree(self.path, path)
        other = self.copied()
        other.path = path
        other.operator = replace(self.operator, federation=other)
        other.clients = {
            name: replace(client, federation=other, retained=list(client.retained))
            for name, client in self.clients.items()
        }
        other.service = other.opened()
        return other

    # -- the server --------------------------------------------------------------------------------

    def opened(self, **options: Any) -> Service:
        return Service.open(
            self.path,
            settings=self.settings,
            clock=self.clock,
            seconds=self.seconds,
            hook=self.hook,
            upkeep=self.upkeep,
            storage=self.storage,
            **options,
        )

    def reopen(self) -> None:
        self.service.close()
        self.service = self.opened()

    def fold(self) -> None:
        self.service.upkeep.fold()

    def finish_audits(self) -> None:
        """What upkeep does for audits that all have answered."""
        self.service.upkeep.finish_audits()

    def close(self) -> None:
        self.service.close()

    def __enter__(self) -> Federation:
        return self

    def __exit__(self, *_: object) -> None:
        self.service.close()

    @property
    def server_key(self) -> SigningKey:
        return self.service.state.folder.key

    def chain(self) -> KeyChain:
        """The keys of the server, from the first one on."""
        return KeyChain(self.first_key.public, self.service.state.rotations())

    def read(self, answer: bytes) -> Receipt:
        """A receipt, checked with the server's first key."""
        return Receipt.read(Envelope.from_bytes(answer, "receipt"), self.chain())

    # -- parties -----------------------------------------------------------------------------------

    def enrolment(self, name: str, key: SigningKey, secret: str, spec: str = "") -> bytes:
        content = {
            "federation": self.id,
            "key": key.public.text,
            "name": name,
            "spec": spec,
            "token": secret,
        }
        return payloads.sign("enrolment", content, key)

    def token(self, name: str, role: str = "client") -> str:
        secret = secrets.token_hex(32)
        self.operator.command("token", name=name, role=role, secret=secret_digest(secret))
        return secret

    def enrol(self, name: str) -> Client:
        """A new client, enrolled by a token."""
        key = make_key()
        self.service.enrol(self.enrolment(name, key, self.token(name), self.spec.data_digest))
        self.clients[name] = Client(self, name, key)
        return self.clients[name]

    def officer(self, name: str = "officer") -> Party:
        key = make_key()
        self.service.enrol(self.enrolment(name, key, self.token(name, "officer")))
        return Party(self, name, key)

    def draw(self, count: int) -> list[Sample]:
        return draw(self.rng, count, self.spec)

    def retained(self) -> list[Sample]:
        return [sample for client in self.clients.values() for sample in client.retained]

    # -- the law -----------------------------------------------------------------------------------

    def live(self) -> MultisetHash:
        """The hash of all that is retained."""
        return MultisetHash.of(
            {
                name: commitments_of(self.spec, client.retained)
                for name, client in self.clients.items()
            }
        )

    def _check_digest(self, retrained: Statistics) -> None:
        state = self.service.state
        basis, record = state.basis(), state.record
        assert basis.live == self.live()
        if record.binds == "sums":
            assert record.ledger_digest == salted("ledger", state.salt(), retrained.digest)
            assert (basis.position, basis.sums) == (None, retrained.digest)
        else:
            opened = binding(state.salt(), basis.sums, self.live(), retrained.count)
            assert record.ledger_digest == opened

    def statistics(self) -> Statistics:
        """Those of retraining."""
        return statistics_of(self.spec, self.retained())

    def check(self) -> None:
        """The ledger is that of retraining on all that is retained, each share that of one client,
        the head the retrained one, and the current digest opens to all of that.
        """
        state, retrained = self.service.state, self.statistics()
        self._check_digest(retrained)
        assert state.ledger.solver.statistics == retrained
        assert state.head is not None
        assert state.head.digest == solve(retrained).digest
        total = Sums(self.spec)
        for client in self.clients.values():
            share = state.ledger.subledger(client.name)
            assert share == statistics_of(self.spec, client.retained), client.name
            account, expected = state.ledger.account(client.name), share.count
            assert (account.count, account.class_counts.tolist()) == (
                expected,
                share.class_counts.tolist(),
            )
            total.merge(share)
        assert Statistics.snapshot(total) == retrained
        for client in self.clients.values():
            held, retained = state.storage.commitments, commitments_of(self.spec, client.retained)
            assert held.count(client.name) == len(retained)
            assert held.present(client.name, list(retained)) == set(retained)

    def check_settled(self) -> None:
        """What was done holds now, after opening the server anew, and after erasing at rest."""
        self.check()
        self.reopen()
        self.check()
        self.fold()
        self.check()
        published_head.read(self.service.head() or b"", self.chain())

    def entries(self, kind: str | None = None) -> list[dict[str, Any]]:
        """What the audit log says."""
        read = [read_entry(data) for data in self.service.entries(0, self.service.state.log.size)]
        return [entry for entry in read if kind in (None, entry["kind"])]

    def dump(self) -> dict[str, list[tuple[Any, ...]]]:
        """Every row of every table, and what memory makes of them: to see that nothing has changed
        at all.
        """
        state = self.service.state
        tables = [
            row[0]
            for row in state.storage.database.rows(
                "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
            )
        ]
        rows = {
            table: sorted(state.storage.database.rows(f"SELECT * FROM {table}"), key=repr)  # noqa: S608
            for table in tables
        }
        digests = (
            state.ledger.solver.statistics.digest,
            state.head.digest if state.head else state.headless,
        )
        return rows | {"memory": [digests], "spec": [(state.spec.digest,)]}


def writer_of(service: Service) -> Writer:
    """The one thread that changes anything of a service: to hold it up, or to end it early."""
    return service._queue


def together(
    service: Service, requests: Iterable[bytes], lost: Collection[int] = ()
) -> list[Future[bytes]]:
    """Offer requests so that they wait together, and are taken as one batch; nobody waits for the
    answers to those `lost`.
    """
    entered, go_on = Event(), Event()

    def hold() -> None:
        entered.set()
        go_on.wait()

    holding = Thread(target=writer_of(service).do, args=(hold,))
    holding.start()
    entered.wait()
    futures = [service.offer(data) for data in requests]
    for place in lost:
        assert futures[place].cancel()
    go_on.set()
    holding.join()
    return futures


def read_message(spec: Spec, data: bytes) -> Message:
    """The message of a request's bytes."""
    asked = request.read(data)
    return messages.read(
        spec, asked.header.message, asked.header.added, asked.header.deleted, asked.message
    )
