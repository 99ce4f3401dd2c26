"""What a client accepts from its server: what the pinned key, or a key that rotations link to it,
has signed, in one log; nothing else.

Law: these checks write nothing to the store but rotations, which prove themselves. A check that
fails raises EvidenceError and leaves the client's state unchanged.

`Peers` are the keys of the other clients, as the audit log shows them to everybody, or as they were
pinned by hand. A server that could give each client other keys could put itself in the middle of a
round of secure aggregation. A client therefore takes keys from the log only: it reads every entry,
and the root that it computes must be that of the checkpoint that it follows, which receipts,
certificates and other clients' checkpoints are compared with. A name has one key for ever. Pins are
stronger: keys compared out of band. Where there are pins, no other client is accepted.

`SyncAnswer` is the server's answer to a client's question, read and checked for form.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from expunge import kinds
from expunge.client.backlog import due_time
from expunge.client.store import ClientStore
from expunge.crypto import Envelope, PublicKey, canonical
from expunge.errors import CarrierError, EvidenceError, RefusedError, TruncatedError
from expunge.evidence import Checkpoint, KeyChain, Receipt, published_head
from expunge.evidence.certificate import Certificate
from expunge.evidence.digests import commitments_root
from expunge.evidence.log import Frontier, check_entry, read_entry
from expunge.evidence.merkle import verify_consistency
from expunge.evidence.rotation import read_federation
from expunge.ridge.head import Head
from expunge.ridge.spec import Spec
from expunge.wire import payloads, schema
from expunge.wire.carrier import Carrier
from expunge.wire.request import Request

UNKNOWN = "unknown"  # of the last restore in the log: what an earlier version has stored
_AT_ONCE = 1000  # entries
LEFT: tuple[kinds.PeerState, ...] = ("going", "gone")
_DECISIONS = ("voided", "judged", "excluded")  # kinds of entries about sums that were not applied
_KEYS_CHECK = schema.mapping(schema.name, schema.key_text)
_PEERS_CHECK = schema.objects(
    {
        "applied": schema.mapping(schema.name, schema.count),
        "decisions": schema.lists(lambda value, _: check_entry(value)),
        "frontier": lambda value, _: value,
        "keys": _KEYS_CHECK,
        "restored": schema.string,
        "spec": schema.string,
        "states": schema.mapping(schema.name, schema.one_of(*kinds.PEER_STATES)),
        "version": schema.count,
    }
)
_PEERS_VERSION = 3  # version 1, which did not say so, left out requests without a round; 2 the spec

Entries = Callable[[int, int], list[bytes]]
Verify = Callable[[dict[str, Any], Mapping[str, str]], None]


@dataclass(frozen=True)
class Peers:
    """Every client that the log has enrolled, up to a place in it."""

    frontier: Frontier = Frontier()  # noqa: RUF009 - a frozen value
    keys: Mapping[str, str] = field(default_factory=dict)  # name to public key
    states: Mapping[str, kinds.PeerState] = field(default_factory=dict)
    decisions: tuple[dict[str, Any], ...] = ()  # entries about sums that were not applied
    applied: Mapping[str, int] = field(default_factory=dict)  # name to the last number used up
    restored: str = ""  # SHA-256 of the last entry that says that the server was
    spec: str = ""  # digest of the federation's, as amended

    @property
    def active(self) -> frozenset[str]:
        """The clients that take part now."""
        return frozenset(name for name, state in self.states.items() if state == "active")

    @property
    def gone(self) -> frozenset[str]:
        """The clients that have left, or were forgotten, or are to be."""
        return frozenset(name for name, state in self.states.items() if state in LEFT)

    @property
    def going(self) -> frozenset[str]:
        """The clients that are to be forgotten, and of which the ledger still has something."""
        return frozenset(name for name, state in self.states.items() if state == "going")

    @property
    def barred(self) -> frozenset[str]:
        """The clients whose statistics were false, by a verdict of the arbiter."""
        return frozenset(name for name, state in self.states.items() if state == "barred")

    def read_on(self, entries: Entries, size: int, root: bytes, verify: Verify) -> Peers:
        """The peers in the log of this size and root, whose entries are asked for; EvidenceError if
        they are not that log.

        Every entry about a sum that was not applied is given to `verify`, with the keys that the
        log shows, before anything is believed of it.
        """
        read = list[dict[str, Any]]()
        peers = Peers()
        if 0 < self.frontier.size <= size:
            with suppress(EvidenceError):  # as below: it may contradict what was lost
                peers = self._extended(entries, size, read)
        if (
            peers.frontier.root != root
        ):  # a log that was lost in part, and whose loss has been accepted: read it again
            read.clear()
            peers = Peers()._extended(entries, size, read)
        if peers.frontier.root != root:
            raise EvidenceError(
                "the entries that the server shows are not those of its log: its root is another"
            )
        for name, key in self.keys.items():
            if peers.keys.get(name, key) != key:
                raise EvidenceError(
                    f"the log no longer shows the key that {name} enrolled: keep away from this "
                    "server"
                )
        for entry in read:
            verify(entry, peers.keys)
        return peers

    def _extended(self, entries: Entries, size: int, read: list[dict[str, Any]]) -> Peers:
        peers = self
        while peers.frontier.size < size:
            start = peers.frontier.size
            page = entries(start, min(size, start + _AT_ONCE))
            if not page or start + len(page) > size:
                raise EvidenceError(
                    f"the server does not show the entries of its log from number {start} on"
                )
            peers = peers._after(page, read)
        return peers

    def _after(self, entries: list[bytes], read: list[dict[str, Any]]) -> Peers:
        """The peers after these entries; those about sums that were not applied are also `read`."""
        keys, states, decisions = dict(self.keys), dict(self.states), list(self.decisions)
        applied, restored, spec = dict(self.applied), self.restored, self.spec
        for data in entries:
            entry = read_entry(data)
            spec = _spec_after(entry, spec)
            _learn(entry, keys, states)
            if entry["kind"] == "judged":
                states |= _barred(entry, decisions, states)
            if entry["kind"] in ("aggregated", "changed"):
                applied |= _next(entry, applied)
            if entry["kind"] == "restored":  # clients send everything anew
                decisions.clear()
                applied.clear()
                restored = hashlib.sha256(data).hexdigest()
            if entry["kind"] in _DECISIONS:
                decisions.append(entry)
                read.append(entry)
        frontier = self.frontier.extended(entries)
        return Peers(frontier, keys, states, tuple(decisions), applied, restored, spec)

    def to_text(self) -> str:
        """For the store."""
        content = {
            "applied": dict(self.applied),
            "decisions": list(self.decisions),
            "frontier": self.frontier.to_json(),
            "keys": dict(self.keys),
            "restored": self.restored,
            "spec": self.spec,
            "states": dict(self.states),
            "version": _PEERS_VERSION,
        }
        return canonical.encode(content).decode("ascii")

    @classmethod
    def from_text(cls, text: str | None) -> Peers:
        """The inverse of `to_text`; empty if nothing was stored."""
        return _peers_of(text) if text else cls()


@lru_cache(maxsize=4)  # a round reads them again and again
def _peers_of(text: str) -> Peers:
    content = canonical.decode(text.encode("ascii"), "the peers of this client")
    if isinstance(content, dict) and content.get("version") != _PEERS_VERSION:
        keys = _KEYS_CHECK(content.get("keys"), "the keys of this client's peers")
        restored = schema.string(content.get("restored", UNKNOWN), "the last restore in the log")
        # What else is looked for in the log has changed since.
        return Peers(keys=keys, restored=restored)
    parts = _PEERS_CHECK(content, "the peers of this client")
    return Peers(
        Frontier.from_json(parts["frontier"]),
        parts["keys"],
        parts["states"],
        tuple(parts["decisions"]),
        parts["applied"],
        parts["restored"],
        parts["spec"],
    )


def _spec_after(entry: dict[str, Any], spec: str) -> str:
    """The digest of the federation's spec after an entry; EvidenceError unless amendments follow
    one another.
    """
    if entry["kind"] == "founded":
        if spec:
            raise EvidenceError(
                "the log shows that the federation was founded twice: keep away from this server"
            )
        return str(entry["spec"])
    if entry["kind"] == "amended":
        if entry["spec_before"] != spec:
            raise EvidenceError(
                "the log shows an amendment of another spec than the one before: keep away from "
                "this server, and ask its operator"
            )
        return str(entry["spec_after"])
    return spec


def _learn(entry: dict[str, Any], keys: dict[str, str], states: dict[str, kinds.PeerState]) -> None:
    kind = entry["kind"]
    back = {name for name in _acting(entry) if states.get(name) in LEFT}
    if back:
        raise EvidenceError(
            f"the log shows {', '.join(sorted(back))} again after it had left: a server that lets "
            "clients go and come back could see what they hold. Keep away from it, and ask its "
            "operator"
        )
    if kind == "enrolled" and entry["role"] == "client":
        name = entry["name"]
        if keys.get(name, entry["key"]) != entry["key"]:
            raise EvidenceError(
                f"the log enrols {name} twice, with two keys: the server may be putting itself in "
                "its place"
            )
        keys[name], states[name] = entry["key"], "active"
    elif kind == "changed":
        states[entry["client"]] = "gone" if entry["leave"] else "active"
    elif kind == "aggregated":
        states |= {name: "active" for name in _acting(entry) if states.get(name) != "barred"}
    elif kind == "forgotten":
        states[entry["client"]] = "gone"
    elif kind == "commanded" and entry["action"] == "forget-client":
        name = str(entry["summary"].get("client"))
        states[name] = "gone" if states.get(name) == "gone" else "going"
    elif kind == "restored":
        states |= {name: "away" for name, state in states.items() if state == "active"}


def _next(entry: dict[str, Any], applied: Mapping[str, int]) -> dict[str, int]:
    """By client, the number of the request that an entry applies; EvidenceError unless it is a
    later one than those before.
    """
    requests = entry["clients"] if entry["kind"] == "aggregated" else [entry]
    numbers = {one["client"]: int(one["sequence"]) for one in requests}
    for client, number in numbers.items():
        if number <= applied.get(client, 0):
            raise EvidenceError(
                f"the log shows request {number} of {client} after a later one, or twice: keep "
                "away from this server"
            )
    return numbers


_VERDICT = schema.objects(
    dict.fromkeys(("aggregation", "clients", "federation", "time"), schema.anything)
    | {"false": schema.mapping(schema.name, schema.string), "roster": schema.digest}
)


def _barred(
    entry: dict[str, Any],
    decisions: Sequence[dict[str, Any]],
    states: Mapping[str, kinds.PeerState],
) -> dict[str, kinds.PeerState]:
    """Whom a verdict bars, of those that have signed a false sum which the log shows, or what they
    sent for it: nobody is barred by a round that it never was in. FormatError if it is no verdict;
    who reads the log asks for the signatures.
    """
    verdict = _VERDICT(Envelope.from_json(entry["verdict"], "verdict").unverified(), "a verdict")
    about = (entry["aggregation"], verdict["roster"])
    signers = {
        member["client"]
        for one in decisions
        if one["kind"] == "voided" and (one["aggregation"], one["roster"]) == about
        for member in one["clients"]
        if member["client"] in {*one["agreed"], *entry.get("masked", ())}
    }
    return {
        name: "barred"
        for name in verdict["false"]
        if name in signers and states.get(name) not in LEFT
    }


def _acting(entry: dict[str, Any]) -> list[str]:
    """The clients that enrol or change something by an entry."""
    if entry["kind"] == "enrolled":
        return [entry["name"]] if entry["role"] == "client" else []
    if entry["kind"] == "changed":
        return [entry["client"]]
    return (
        [member["client"] for member in entry["clients"]] if entry["kind"] == "aggregated" else []
    )


def trusted(peers: Peers, pins: Mapping[str, str]) -> dict[str, PublicKey]:
    """The keys that a roster is held against: the pins, where there are any, which must agree with
    the log.
    """
    for name, key in pins.items():
        if peers.keys.get(name, key) != key:
            raise EvidenceError(
                f"the log shows another key for {name} than the one pinned here: take no part, "
                f"and ask {name}"
            )
    return {name: PublicKey.from_text(key) for name, key in (pins or peers.keys).items()}


@dataclass(frozen=True)
class PendingOrder:
    """An erasure order that waits for this client, with the name it knows the subject by."""

    order: str
    subject: str
    deadline: str
    filed: str | None = None  # said only where small changes wait for more samples

    def due(self, heard: int) -> int:
        """When a quarter of its time has passed; counted from when it was `heard` of, if it does
        not say when it was filed, or says that it is yet to be.
        """
        filed = heard if self.filed is None else min(heard, schema.time_seconds(self.filed))
        return due_time(filed, schema.time_seconds(self.deadline))


@dataclass(frozen=True)
class SyncAnswer:
    """What is new for a client, as the server says it; the caller verifies who signed it."""

    envelope: Envelope
    federation: str
    actor: str
    nonce: str
    sequence: int
    status: kinds.ClientStatus
    spec: Spec
    amendments: tuple[object, ...]
    orders: tuple[PendingOrder, ...]
    audits: tuple[tuple[str, bytes], ...]  # id and salt
    checkpoint: Checkpoint
    consistency: tuple[bytes, ...]
    rotations: tuple[Envelope, ...]
    rebuild: bool  # whether the clients are to rebuild the ledger by secure aggregation

    @classmethod
    def read(cls, data: bytes) -> SyncAnswer:
        """The answer in an envelope."""
        envelope, content = payloads.open_unverified("answer", data)
        return cls(
            envelope,
            content["federation"],
            content["actor"],
            content["nonce"],
            content["sequence"],
            content["status"],
            Spec.from_dict(content["spec"]),
            tuple(content["amendments"]),
            tuple(
                PendingOrder(
                    order["order"], order["subject"], order["deadline"], order.get("filed")
                )
                for order in content["orders"]
            ),
            tuple((audit["audit"], bytes.fromhex(audit["salt"])) for audit in content["audits"]),
            Checkpoint.from_json(content["checkpoint"]),
            tuple(bytes.fromhex(text) for text in content["consistency"]),
            tuple(Envelope.from_json(value, "rotation") for value in content["rotations"]),
            content["rebuild"],
        )


class Trust:
    """The checks of one client against one server."""

    def __init__(self, store: ClientStore, carrier: Carrier) -> None:
        self._store = store
        self._carrier = carrier

    # -- keys --------------------------------------------------------------------------------------

    @property
    def chain(self) -> KeyChain:
        """The pinned key, and the keys that known rotations link to it."""
        return KeyChain(self._store.server, self._known())

    def _known(self) -> list[Envelope]:
        return [
            Envelope.from_bytes(data, "rotation")
            for data in self._store.documents("rotation").values()
        ]

    def learn(self, rotations: Sequence[Envelope]) -> None:
        """Take in the rotations that the server shows, if they are one line through the pinned key,
        and none is kept back.
        """
        stored_rotations = self._known()
        chain = KeyChain(self._store.server, rotations)
        chain.require_federation(self._store.federation, "server")
        if any(envelope not in rotations for envelope in stored_rotations):
            raise EvidenceError(
                "the server no longer shows a rotation of its key that this client has seen: this "
                "is not that server, or its operator restored it with a key that was retired. "
                "Then it must be restored with the newest key and every rotation since the backup "
                "(expunge server restore --key NEWEST --rotation FILE), which this client has, too "
                "(expunge client receipts -o DIR writes them); or, if that key is lost, rebuilt "
                "from its clients (expunge audit --rebuild)"
            )
        fresh = [envelope.to_bytes() for envelope in rotations if envelope not in stored_rotations]
        if fresh:
            self._store.keep("rotation", *fresh)

    def meet(self, envelope: Envelope) -> None:
        """If the server has changed its key since, learn how."""
        signer = envelope.signatures[0][0]
        key_ids = {
            self._store.server.id,
            *(key.id for step in self.chain.rotations for key in (step.old, step.new)),
        }
        if signer not in key_ids:
            self.federation()

    def current(self, envelope: Envelope) -> None:
        """Raise EvidenceError unless the server's newest key, as far as it is known, signed
        this.
        """
        envelope.verify(self.chain.newest)

    def newest_key(self) -> PublicKey:
        """The key that the server signs with now, as it says itself."""
        self.federation()
        return self.chain.newest

    def federation(self) -> dict[str, Any]:
        """What the server says of the federation: spec, limits, rotations."""
        content, rotations = read_federation(self._carrier.federation(), self._store.server)
        self.learn(rotations)
        self.require_ours(content["federation"])
        return content

    def require_ours(self, federation: str) -> None:
        """Refuse what is of another federation."""
        if federation != self._store.federation:
            raise EvidenceError(
                f"this is of federation {federation}, not of {self._store.federation}: it is "
                "another server"
            )

    # -- the log -----------------------------------------------------------------------------------

    def follow(
        self,
        checkpoint: Checkpoint,
        proof: Sequence[bytes] | None = None,
        since: tuple[int, bytes] | None = None,
    ) -> tuple[int, bytes]:
        """The newer of this checkpoint and the last one seen, if one log extends the other. The
        caller keeps the outbox's `turn` until it has stored it, or it could take the place of one
        that another agent on this store has seen meanwhile.

        A proof is for `since`. If that is not the last one any more, for another agent on this
        store has seen more, or if there is none, it is asked for.
        """
        self.require_ours(checkpoint.federation)
        size, root = self._store.checkpoint
        if not size:
            return checkpoint.size, checkpoint.root
        old, new = sorted([(size, root), (checkpoint.size, checkpoint.root)])
        if proof is None or since != (size, root):
            proof = self._consistency(old[0], new[0])
        verify_consistency(*old, *new, proof)
        return new

    def _consistency(self, first: int, second: int) -> list[bytes]:
        if first == second:
            return []
        try:
            return self._carrier.consistency(first, second)
        except RefusedError as refusal:
            raise EvidenceError(
                f"the server cannot show that its log goes on from the one that was seen: {refusal}"
            ) from refusal

    def checkpoint(self) -> bytes:
        """The log as the server says it is now, as an envelope that is evidence by itself."""
        envelope = Envelope.from_bytes(self._carrier.checkpoint(), "checkpoint")
        self.meet(envelope)
        content = self.chain.verify(envelope, claims)
        self.require_ours(Checkpoint.from_json(content).federation)
        return envelope.to_bytes()

    # -- documents ---------------------------------------------------------------------------------

    def receipt(self, data: bytes, request: Request) -> Receipt:
        """The receipt, if it is the server's, for exactly this request, and in the log."""
        envelope = Envelope.from_bytes(data, "receipt")
        self.meet(envelope)
        receipt = Receipt.read(envelope, self.chain)
        self.require_ours(receipt.federation)
        header, entry = request.header, receipt.logged.entry
        expected = {
            "client": header.client,
            "sequence": header.sequence,
            "request": request.digest,
            "message": header.message,
            "added": header.added,
            "deleted": header.deleted,
            "added_commitments": commitments_root(request.added),
            "deleted_commitments": commitments_root(request.deleted),
            "leave": header.leave,
            "reset": header.reset,
            "orders": [{"found": answer.found, "order": answer.order} for answer in header.orders],
            "audits": [answer.audit for answer in header.audits],
        }
        wrong = [name for name, value in expected.items() if entry[name] != value]
        if wrong:
            raise EvidenceError(
                f"the receipt is not for the request that was made: {', '.join(wrong)} differ"
            )
        return receipt

    def head(self, data: bytes, after: int) -> tuple[Head, Certificate]:
        """Head and certificate, if they are the server's, belong together, and know of the log's
        entry number `after`.

        CarrierError if they were cut short on the way.
        """
        try:
            envelope, _ = published_head.split(data)
            self.meet(envelope)
            head, certificate = published_head.read(data, self.chain)
        except TruncatedError as problem:
            raise CarrierError(str(problem)) from problem
        self.require_ours(certificate.federation)
        if certificate.checkpoint.size <= after:
            raise EvidenceError(
                f"the head is of a log of {certificate.checkpoint.size} entries, and older than "
                "this client's last request, "
                f"which is entry {after}: the server holds back the head that follows it"
            )
        return head, certificate

    def amendments(self, values: Sequence[object]) -> list[tuple[bytes, dict[str, Any]]]:
        """The amendments of the spec, each signed by the server: bytes and content, in their
        order.
        """
        amendments = []
        for value in values:
            envelope = Envelope.from_json(value, "amendment")
            content = self.chain.verify(envelope, _amendment_claims)
            self.require_ours(content["federation"])
            amendments.append((envelope.to_bytes(), content))
        return amendments


def claims(content: Any) -> tuple[str, str]:
    """Federation and time that an answer or a checkpoint claims."""
    return content["federation"], content["time"]


def _amendment_claims(content: object) -> tuple[str, str]:
    keys = frozenset({"command", "federation", "index", "spec", "spec_before", "time"})
    parts = canonical.require_keys(content, "an amendment", keys)
    return parts["federation"], parts["time"]
