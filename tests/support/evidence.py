"""A small federation's log, with everything that can be signed about it.

Keys and salts are fixed: every run is the same.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from expunge import Head, Spec, Statistics
from expunge.crypto import Envelope, PublicKey, SigningKey
from expunge.evidence import Checkpoint, Logged, merkle, render_bundle
from expunge.evidence.audit_result import result_content
from expunge.evidence.bundle import bundle_content
from expunge.evidence.certificate import certificate_content
from expunge.evidence.digests import commitments_root, salted, subject_digest
from expunge.evidence.log import make_entry, read_entry
from expunge.evidence.receipt import receipt_content
from expunge.evidence.rotation import rotate
from expunge.solvers import solve

FEDERATION = "0123456789abcdef0123456789abcdef"
SPEC = Spec(dim=3, labels=("cat", "dog"), gamma=0.5)
OLD, NEW, OTHER = (SigningKey(bytes([number]) * 32) for number in (1, 2, 3))
CLIENT_KEY = SigningKey(bytes([9]) * 32).public
SALT = bytes(range(32))
SUBJECT = "patient 4711"


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def at(minute: int) -> str:
    """The time of this minute of the day that all of this happens on."""
    return f"2026-11-15T{minute // 60:02}:{minute % 60:02}:00Z"


@cache
def a_head(extra: int = 0) -> Head:
    rng = np.random.default_rng(5)
    features = rng.normal(size=(20 + extra, 3))
    return solve(Statistics.of(SPEC, features, rng.integers(0, 2, size=20 + extra)))


@dataclass
class Log:
    """An audit log in memory."""

    entries: list[bytes] = field(default_factory=list)
    nodes: dict[tuple[int, int], bytes] = field(default_factory=dict)

    def node(self, level: int, index: int) -> bytes:
        return self.nodes[level, index]

    def append(self, kind: str, time: str, **content: Any) -> int:
        data = make_entry(kind, time, **content)
        for level, index, value in merkle.new_nodes(
            len(self.entries), merkle.leaf_hash(data), self
        ):
            self.nodes[level, index] = value
        self.entries.append(data)
        return len(self.entries) - 1

    def checkpoint(self, time: str, size: int | None = None) -> Checkpoint:
        size = len(self.entries) if size is None else size
        return Checkpoint(FEDERATION, size, merkle.root(size, self), time)

    def logged(self, index: int, size: int | None = None) -> Logged:
        size = len(self.entries) if size is None else size
        return Logged.of(self.entries[index], index, merkle.inclusion_proof(index, size, self))


def aggregated(**sequences: int) -> dict[str, Any]:
    """The fields of an `aggregated` entry, of requests with these numbers, by client."""
    nothing = "0" * 64
    return {
        "aggregation": "f" * 32,
        "clients": [
            {"client": name, "request": nothing, "sequence": number}
            for name, number in sequences.items()
        ],
        "added": 5,
        "deleted": 1,
        "round": 4,
        "ledger_before": nothing,
        "ledger_after": nothing,
        "head": "",
        "spec": SPEC.digest,
        "erased_by": at(9),
        "generation": 2,
    }


def changed(client: str, sequence: int, **more: Any) -> dict[str, Any]:
    """The fields of a `changed` entry."""
    name = f"{client} {sequence}"
    return {
        "client": client,
        "sequence": sequence,
        "request": digest(f"request {name}"),
        "message": "rows",
        "added": 0,
        "deleted": 0,
        "added_commitments": commitments_root([]),
        "deleted_commitments": commitments_root([]),
        "leave": False,
        "reset": False,
        "orders": [],
        "audits": [],
        "round": sequence,
        "ledger_before": salted("ledger", SALT, digest(f"before {name}")),
        "ledger_after": salted("ledger", SALT, digest(f"after {name}")),
        "head": salted("head", SALT, digest(f"head {name}")),
        "spec": SPEC.digest,
        "erased_by": at(120),
        "generation": sequence,
        **more,
    }


def receipt(log: Log, index: int, key: SigningKey, time: str) -> Envelope:
    """The receipt that the server gave when entry `index` was the last of the log."""
    logged = log.logged(index, index + 1)
    content = receipt_content(
        server=key.public.id,
        entry=log.entries[index],
        index=index,
        proof=logged.proof,
        checkpoint=log.checkpoint(time, index + 1),
        spec=SPEC,
    )
    return Envelope.signed("receipt", content, key)


def signed_result(key: SigningKey, **parts: Any) -> Envelope:
    content = result_content(federation=FEDERATION, server=key.public.id, **parts)
    return Envelope.signed("result", content, key)


def question(result: object) -> Envelope:
    """The signed answer to a question."""
    return signed_result(OLD, actor="op", sequence=0, action="status", result=result, time=at(1))


@dataclass
class Story:
    """An order filed at minute 10 and answered by two of two clients; a key rotated at minute 40;
    an audit; a certificate.
    """

    subject: str = SUBJECT
    subjects: dict[str, str] = field(default_factory=lambda: {"south": "S-0815"})
    answered: int = 2
    erased: bool = True
    log: Log = field(default_factory=Log)
    places: dict[str, int] = field(default_factory=dict)
    receipts: list[Envelope] = field(default_factory=list)

    def __post_init__(self) -> None:
        log, place = self.log, self.places
        server = OLD.public
        log.append(
            "founded",
            at(0),
            federation=FEDERATION,
            spec=SPEC.digest,
            server=server.id,
            key=server.text,
            solver="cholesky",
        )
        for minute, client in enumerate(("north", "south"), 1):
            log.append("enrolled", at(minute), name=client, role="client", key=CLIENT_KEY.text)
        for minute, client in enumerate(("north", "south"), 4):
            log.append("changed", at(minute), **changed(client, 1, added=12))
        place["commanded"] = log.append(
            "commanded",
            at(10),
            actor="officer",
            sequence=1,
            command=digest("c"),
            action="order",
            summary={"order": "order-1", "n": 2},
        )
        place["ordered"] = log.append(
            "ordered",
            at(10),
            order="order-1",
            subject=subject_digest(SALT, self.subject, self.subjects),
            deadline="2026-12-15T00:10:00Z",
            clients=["north", "south"],
        )
        if self.answered >= 1:
            self._answer("north", 3, at(20), OLD)
        place["rotated"] = log.append(
            "rotated", at(40), old=OLD.public.id, new=NEW.public.id, key=NEW.public.text
        )
        if self.answered >= 2:
            self._answer("south", 0, at(50), NEW)
            place["completed"] = log.append("completed", at(50), order="order-1")
        if self.erased:
            place["erased"] = log.append("erased", at(60), first=1, generation=2, round=2)
        ledger = salted("ledger", SALT, digest("audit"))
        place["audited"] = log.append(
            "audited",
            at(70),
            audit="audit-1",
            result="equal",
            clients=["north", "south"],
            ledger=ledger,
            recomputed=ledger,
            count=21,
        )

    def _answer(self, client: str, found: int, time: str, key: SigningKey) -> None:
        orders = [{"order": "order-1", "found": found}]
        message = "rows" if found else "none"
        index = self.log.append(
            "changed", time, **changed(client, 2, deleted=found, orders=orders, message=message)
        )
        self.places[f"changed {client}"] = index
        self.receipts.append(receipt(self.log, index, key, time))
        self.places[f"answered {client}"] = self.log.append(
            "answered", time, order="order-1", client=client, found=found, sequence=2
        )

    def rotation(self) -> Envelope:
        return rotate(FEDERATION, OLD, NEW, at(40), self.places["rotated"])

    def checkpoint(self) -> Checkpoint:
        return self.log.checkpoint(at(80))

    def certificate(self, **more: Any) -> Envelope:
        return Envelope.signed("certificate", self.certificate_content(**more), NEW)

    def certificate_content(self, **more: Any) -> dict[str, Any]:
        head = a_head()
        parts: dict[str, Any] = {
            "server": NEW.public.id,
            "time": at(81),
            "spec": SPEC,
            "head": head.digest,
            "bound": 2.0**-100,  # whatever the machine found
            "solver": "cholesky",
            "count": 21,
            "clients": 2,
            "ledger": salted("ledger", SALT, digest("now")),
            "binds": "sums",
            "checkpoint": self.checkpoint(),
            "audit": {
                "audit": "audit-1",
                "time": at(70),
                "result": "equal",
                "index": self.places["audited"],
            },
            **more,
        }
        return certificate_content(**parts)

    def result(self, key: SigningKey = OLD) -> Envelope:
        index = self.places["commanded"]
        return signed_result(
            key,
            actor="officer",
            sequence=1,
            action="order",
            result={"order": "order-1", "note": "\x1b[31mred"},
            time=at(10),
            logged=self.log.logged(index, index + 2),
            checkpoint=self.log.checkpoint(at(10), index + 2),
        )

    def bundle_entries(self) -> list[Logged]:
        kinds = {"ordered", "answered", "completed", "erased", "audited"}
        indices = [
            index
            for index, data in enumerate(self.log.entries)
            if read_entry(data)["kind"] in kinds
        ]
        indices += [index for name, index in self.places.items() if name.startswith("changed")]
        return [self.log.logged(index) for index in indices]

    def bundle_content(self, **more: Any) -> dict[str, Any]:
        parts: dict[str, Any] = {
            "server": NEW.public.id,
            "time": at(82),
            "order": "order-1",
            "subject": self.subject,
            "subjects": self.subjects,
            "salt": SALT,
            "receipts": self.receipts,
            "entries": self.bundle_entries(),
            "certificate": self.certificate(),
            "rotations": [self.rotation()],
            "checkpoint": self.checkpoint(),
            **more,
        }
        return bundle_content(**parts)

    def bundle(self, **more: Any) -> Envelope:
        return Envelope.signed("bundle", self.bundle_content(**more), NEW)


def altered(envelope: Envelope, key: SigningKey, change: Any) -> Envelope:
    """The same kind of envelope, its content changed in place by `change` and signed again by the
    right key.
    """
    content = envelope.unverified()
    change(content)
    return Envelope.signed(envelope.kind, content, key)


@cache
def story() -> Story:
    return Story()


@cache
def files() -> dict[str, tuple[bytes, PublicKey]]:
    """One file of every kind of evidence, and the key that verifies it."""
    told = story()
    checkpoint = Envelope.signed("checkpoint", told.checkpoint().to_json(), NEW)
    return {
        "receipt": (told.receipts[0].to_bytes(), OLD.public),
        "receipt with a newline": (told.receipts[0].to_bytes() + b"\n", OLD.public),
        "certificate": (told.certificate().to_bytes(), NEW.public),
        "rotation": (told.rotation().to_bytes(), OLD.public),
        "result": (told.result().to_bytes(), OLD.public),
        "checkpoint": (checkpoint.to_bytes(), NEW.public),
        "bundle": (render_bundle(told.bundle()), NEW.public),
        "bundle by the old key": (render_bundle(told.bundle()), OLD.public),
    }
