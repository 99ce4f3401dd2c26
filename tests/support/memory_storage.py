"""A store of the server in memory, beside the one in SQLite: what is true of both is true of any
that keeps to `expunge.server.storage.tables`.

A transaction works on the tables and puts a copy back if it fails. `MemoryDisk` is what outlives
the process: a service that is opened again finds there what was committed.
"""

from __future__ import annotations

import copy
import json
import pickle
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from threading import RLock, get_ident
from typing import Any

from expunge.errors import StoreError
from expunge.kinds import ORDER_STATES, OrderState
from expunge.server.storage.tables import (
    Actor,
    AnswerRecord,
    Attempt,
    Audit,
    AuditReply,
    DisputeRecord,
    EnrolmentToken,
    Erasure,
    JournalEntry,
    LedgerFile,
    Membership,
    OpeningRecord,
    OrderRecord,
    OrderReply,
    ServerRecord,
    ShareFile,
    Storage,
)
from expunge.storage.files import make_file, sync_folder
from expunge.storage.sqlite import Hook, no_hook


@dataclass
class Content:
    """All that is kept."""

    state: ServerRecord | None = None
    actors: dict[str, Actor] = field(default_factory=dict)
    tokens: dict[str, EnrolmentToken] = field(default_factory=dict)
    answers: dict[tuple[str, int], AnswerRecord] = field(default_factory=dict)
    commitments: dict[str, set[bytes]] = field(default_factory=dict)
    journal: dict[int, JournalEntry] = field(default_factory=dict)
    written: int = 0  # entries of the journal that there ever were
    ledger: LedgerFile | None = None
    shares: dict[str, ShareFile] = field(default_factory=dict)
    generations: dict[int, int] = field(default_factory=dict)
    erasures: dict[int, Erasure] = field(default_factory=dict)
    log: list[bytes] = field(default_factory=list)
    nodes: dict[tuple[int, int], bytes] = field(default_factory=dict)
    amendments: list[bytes] = field(default_factory=list)
    rotations: list[bytes] = field(default_factory=list)
    orders: dict[str, OrderRecord] = field(default_factory=dict)
    order_replies: dict[str, dict[str, OrderReply]] = field(default_factory=dict)
    order_entries: dict[str, list[int]] = field(default_factory=dict)
    audits: dict[str, Audit] = field(default_factory=dict)
    audit_replies: dict[str, dict[str, AuditReply]] = field(default_factory=dict)
    rounds: dict[int, Membership] = field(default_factory=dict)
    members: dict[tuple[str, int], int] = field(default_factory=dict)
    rebuilds: set[str] = field(default_factory=set)
    attempts: list[Attempt] = field(default_factory=list)
    disputes: dict[str, DisputeRecord] = field(default_factory=dict)
    openings: dict[tuple[str, str], OpeningRecord] = field(default_factory=dict)


class MemoryDisk:
    """Opens stores; what one of them has committed, the next one of the same path finds."""

    def __init__(self) -> None:
        self._contents: dict[Path, Content] = {}

    def __call__(self, path: Path, hook: Hook = no_hook) -> MemoryStorage:
        content = self._contents.get(path)
        if content is None:
            saved = path.read_bytes() if path.exists() else b""
            content = pickle.loads(saved) if saved else Content()  # noqa: S301 - our own
            make_file(path)  # by which a server's folder is known
            sync_folder(path.parent)
        self._contents[path] = content
        return MemoryStorage(content, hook)


class MemoryStorage(Storage):
    """The tables as dictionaries."""

    def __init__(self, content: Content, hook: Hook) -> None:
        self.content = content
        self._hook = hook
        self._lock = RLock()
        self._owner: int | None = None
        self._closed = False
        self.state = _State(self)
        self.actors = _Actors(self)
        self.tokens = _Tokens(self)
        self.answers = _Answers(self)
        self.commitments = _Commitments(self)
        self.journal = _Journal(self)
        self.files = _Files(self)
        self.generations = _Generations(self)
        self.log = _Log(self)
        self.amendments = _Documents(self, "amendments")
        self.rotations = _Documents(self, "rotations")
        self.orders = _Orders(self)
        self.audits = _Audits(self)
        self.rounds = _Rounds(self)

    @property
    def is_certain(self) -> bool:
        return True

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._lock:
            if self._owner is not None:
                raise StoreError("the store is in a transaction: it must end first")
            before = copy.deepcopy(self.read)
            self._owner = get_ident()
            try:
                yield
                self._hook("before commit")
            except BaseException:
                for name in (one.name for one in fields(before)):
                    setattr(self.content, name, getattr(before, name))
                raise
            finally:
                self._owner = None
            self._hook("after commit")

    @property
    def read(self) -> Content:
        with self._lock:
            if self._closed:
                raise StoreError("the store was closed: open it again")
            return self.content

    @property
    def write(self) -> Content:
        content = self.read
        if self._owner != get_ident():
            raise StoreError("the store is changed in transactions only")
        return content

    def forget_overwritten(self) -> None:
        """Nothing lingers in dictionaries."""

    def make_room(self) -> None:
        """There is room."""

    def write_backup(self, path: Path) -> None:
        kept = copy.deepcopy(self.read)
        empty = Content()
        for name in (
            "ledger",
            "shares",
            "journal",
            "commitments",
            "generations",
            "tokens",
            "disputes",
            "openings",
        ):
            setattr(kept, name, getattr(empty, name))
        if kept.state is not None:
            kept.state = replace(kept.state, salt=b"", basis=b"")
        path.write_bytes(pickle.dumps(kept))

    def close(self) -> None:
        with self._lock:
            self._closed = True


def _insert(table: dict[Any, Any], key: Any, value: Any) -> None:
    if key in table:
        raise StoreError("that is there already")
    table[key] = value


class _Table:
    def __init__(self, storage: MemoryStorage) -> None:
        self._storage = storage

    @property
    def _read(self) -> Content:
        return self._storage.read

    @property
    def _write(self) -> Content:
        return self._storage.write


class _State(_Table):
    def get(self) -> ServerRecord | None:
        return self._read.state

    def put(self, state: ServerRecord) -> None:
        self._write.state = state


class _Actors(_Table):
    def get(self, name: str) -> Actor | None:
        return self._read.actors.get(name)

    def with_key(self, key: str) -> Actor | None:
        return next((actor for actor in self.all() if actor.key == key), None)

    def all(self) -> list[Actor]:
        return sorted(self._read.actors.values(), key=lambda actor: actor.name)

    def after(self, name: str, limit: int) -> list[Actor]:
        return [actor for actor in self.all() if actor.name > name][:limit]

    def count(self) -> int:
        return len(self._read.actors)

    def put(self, *actors: Actor) -> None:
        for actor in actors:
            holder = self.with_key(actor.key)
            if holder is not None and holder.name != actor.name:
                raise StoreError("the key is somebody else's")
            self._write.actors[actor.name] = actor


class _Tokens(_Table):
    def get(self, digest: str) -> EnrolmentToken | None:
        return self._read.tokens.get(digest)

    def add(self, token: EnrolmentToken) -> None:
        _insert(self._write.tokens, token.digest, token)

    def remove(self, digest: str) -> None:
        self._write.tokens.pop(digest, None)

    def of(self, name: str) -> list[EnrolmentToken]:
        tokens = (token for token in self._read.tokens.values() if token.name == name)
        return sorted(tokens, key=lambda token: token.digest)

    def withdraw(self, name: str) -> None:
        for token in list(self._write.tokens.values()):
            if token.name == name:
                self.remove(token.digest)


class _Answers(_Table):
    def get(self, actor: str, sequence: int) -> AnswerRecord | None:
        return self._read.answers.get((actor, sequence))

    def add(self, *answers: AnswerRecord) -> None:
        for answer in answers:
            _insert(self._write.answers, (answer.actor, answer.sequence), answer)

    def prune(self, actor: str, before: int) -> None:
        for key, answer in list(self._write.answers.items()):
            if key[0] == actor and key[1] < before and answer.orders == 0:
                del self._write.answers[key]

    def release(self, actor: str, sequence: int) -> None:
        answers = self._write.answers
        if (actor, sequence) in answers:
            answer = answers[actor, sequence]
            answers[actor, sequence] = replace(answer, orders=max(0, answer.orders - 1))


class _Commitments(_Table):
    def present(self, client: str, commitments: Sequence[bytes]) -> set[bytes]:
        return set(commitments) & self._read.commitments.get(client, set())

    def count(self, client: str) -> int:
        return len(self._read.commitments.get(client, ()))

    def of(self, client: str) -> list[bytes]:
        return sorted(self._read.commitments.get(client, ()))

    def clients(self) -> list[str]:
        return sorted(client for client, held in self._read.commitments.items() if held)

    def add(self, client: str, commitments: Iterable[bytes]) -> None:
        held = self._write.commitments.setdefault(client, set())
        for commitment in commitments:
            if commitment in held:
                raise StoreError("that is there already")
            held.add(commitment)

    def remove(self, client: str, commitments: Iterable[bytes]) -> None:
        self._write.commitments.setdefault(client, set()).difference_update(commitments)

    def remove_all(self, client: str) -> None:
        self._write.commitments.pop(client, None)


class _Journal(_Table):
    def get(self, position: int) -> JournalEntry | None:
        return self._read.journal.get(position)

    def positions(
        self, client: str | None = None, *, after: int = 0, until: int | None = None
    ) -> list[int]:
        return [
            position
            for position, entry in sorted(self._read.journal.items())
            if position > after
            and (until is None or position <= until)
            and client in (None, entry.client)
        ]

    def last(self) -> int:
        return self._read.written

    def count(self) -> int:
        return len(self._read.journal)

    def oldest(self) -> int | None:
        return min((entry.time for entry in self._read.journal.values()), default=None)

    def holds(self, generation: int) -> bool:
        return any(entry.generation == generation for entry in self._read.journal.values())

    def clients(self, until: int) -> list[str]:
        return sorted({self._read.journal[one].client for one in self.positions(until=until)})

    def append(self, entry: JournalEntry) -> None:
        self._write.written += 1
        self._write.journal[self._write.written] = entry

    def files(self, client: str, until: int) -> set[str]:
        entries = [self._read.journal[one] for one in self.positions(client, until=until)]
        return {entry.file for entry in entries if entry.file is not None}

    def remove(self, client: str, until: int) -> None:
        journal = self._write.journal
        for position in self.positions(client, until=until):
            del journal[position]


class _Files(_Table):
    def ledger(self) -> LedgerFile | None:
        return self._read.ledger

    def put_ledger(self, file: LedgerFile) -> None:
        self._write.ledger = file

    def share(self, client: str) -> ShareFile | None:
        return self._read.shares.get(client)

    def put_share(self, file: ShareFile) -> None:
        self._write.shares[file.client] = file

    def remove_share(self, client: str) -> None:
        self._write.shares.pop(client, None)

    def _all(self) -> list[LedgerFile | ShareFile]:
        ledger = [] if self._read.ledger is None else [self._read.ledger]
        return [*ledger, *self._read.shares.values()]

    def names(self) -> set[str]:
        large = {entry.file for entry in self._read.journal.values() if entry.file is not None}
        return {file.file for file in self._all()} | large

    def slots(self) -> set[int]:
        sealed = [
            *self._read.orders.values(),
            *self._read.audits.values(),
            *self._read.disputes.values(),
        ]
        slots = {one.slot for one in sealed if one.slot is not None}
        return {file.slot for file in self._all()} | slots | {*self._read.generations.values()}


class _Generations(_Table):
    def slot(self, generation: int) -> int | None:
        return self._read.generations.get(generation)

    def begin(self, generation: int, slot: int) -> None:
        _insert(self._write.generations, generation, slot)

    def end(self, until: int) -> None:
        for generation in list(self._write.generations):
            if generation <= until:
                del self._write.generations[generation]

    def last_erasure(self) -> Erasure | None:
        erasures = self._read.erasures
        return erasures[max(erasures)] if erasures else None

    def erasure_of(self, generation: int) -> Erasure | None:
        erasures = self._read.erasures
        later = [number for number in erasures if number >= generation]
        return erasures[min(later)] if later else None

    def erased(self, erasure: Erasure) -> None:
        self._write.erasures.setdefault(erasure.generation, erasure)


class _Log(_Table):
    def size(self) -> int:
        return len(self._read.log)

    def entries(self, start: int, end: int) -> list[bytes]:
        return self._read.log[start:end]

    def node(self, level: int, index: int) -> bytes:
        if (level, index) not in self._read.nodes:
            raise StoreError(f"the log has no node {index} of level {level}")
        return self._read.nodes[level, index]

    def search(self, values: Mapping[str, str | int]) -> list[int]:
        def value(entry: Any, path: str) -> Any:
            for name in path.split("."):
                entry = entry.get(name) if isinstance(entry, dict) else None
            return entry

        parsed = [json.loads(entry) for entry in self._read.log]
        return [
            position
            for position, entry in enumerate(parsed)
            if all(value(entry, path) == wanted for path, wanted in values.items())
        ]

    def append(self, entry: bytes, nodes: Iterable[tuple[int, int, bytes]]) -> None:
        self._write.log.append(entry)
        for level, index, hashed in nodes:
            _insert(self._write.nodes, (level, index), hashed)

    def rewrite(self, entries: Mapping[int, bytes], nodes: Mapping[tuple[int, int], bytes]) -> None:
        for position, entry in entries.items():
            self._write.log[position] = entry
        self._write.nodes.update(nodes)


class _Documents(_Table):
    def __init__(self, storage: MemoryStorage, name: str) -> None:
        super().__init__(storage)
        self._name = name

    def all(self) -> list[bytes]:
        return list(getattr(self._read, self._name))

    def add(self, envelope: bytes) -> None:
        getattr(self._write, self._name).append(envelope)


class _Orders(_Table):
    def get(self, order: str) -> OrderRecord | None:
        return self._read.orders.get(order)

    def all(self) -> list[OrderRecord]:
        return sorted(self._read.orders.values(), key=_place)

    def newest(
        self, limit: int, *, before: tuple[int, str] | None = None, overdue: int | None = None
    ) -> list[OrderRecord]:
        found = [
            order
            for order in reversed(self.all())
            if (before is None or _place(order) < before)
            and (overdue is None or order.state(overdue) in ("lost", "overdue"))
        ]
        return found[:limit]

    def count(self, *, overdue: int | None = None) -> int:
        return len(self.newest(len(self._read.orders), overdue=overdue))

    def counts(self, now: int) -> dict[OrderState, int]:
        counted = Counter(order.state(now) for order in self.all())
        return {state: counted[state] for state in ORDER_STATES}

    def named(self, name: str) -> list[OrderRecord]:
        return [
            order
            for order in self.all()
            if order.id.startswith(name.lower()) or order.reference == name != ""
        ]

    def unanswered(
        self, client: str, *, after: int | None = None, limit: int | None = None
    ) -> list[OrderRecord]:
        waiting = [
            self._read.orders[order]
            for order, replies in self._read.order_replies.items()
            if client in replies and replies[client].found is None and order in self._read.orders
        ]
        if after is not None or limit is not None:
            waiting = [
                order
                for order in waiting
                if order.slot is not None and (after is None or order.position > after)
            ]
        return sorted(waiting, key=_place)[:limit]

    def is_answered(self, order: str) -> bool:
        return all(reply.found is not None for reply in self.replies(order))

    def add(self, order: OrderRecord, clients: Iterable[str]) -> None:
        _insert(self._write.orders, order.id, order)
        self._write.order_replies[order.id] = {client: OrderReply(client) for client in clients}

    def put(self, order: OrderRecord) -> None:
        self._write.orders[order.id] = order

    def replies(self, order: str) -> list[OrderReply]:
        return _by_client(self._read.order_replies.get(order, {}))

    def reply_of(self, order: str, client: str) -> OrderReply | None:
        return self._read.order_replies.get(order, {}).get(client)

    def reply(self, order: str, reply: OrderReply) -> None:
        self._write.order_replies.setdefault(order, {})[reply.client] = reply

    def entries(self, order: str) -> list[int]:
        return sorted(self._read.order_entries.get(order, ()))

    def mention(self, order: str, position: int) -> None:
        positions = self._write.order_entries.setdefault(order, [])
        if position in positions:
            raise StoreError("that is there already")
        positions.append(position)


def _place(order: OrderRecord) -> tuple[int, str]:
    return order.position, order.id


class _Audits(_Table):
    def get(self, audit: str) -> Audit | None:
        return self._read.audits.get(audit)

    def all(self) -> list[Audit]:
        return sorted(self._read.audits.values(), key=lambda audit: (audit.started, audit.id))

    def running(self) -> list[Audit]:
        return [audit for audit in self.all() if audit.finished is None]

    def unanswered(self, client: str) -> list[Audit]:
        return [
            audit
            for audit in self.running()
            if any(one.client == client and one.equal is None for one in self.replies(audit.id))
        ]

    def last(self) -> Audit | None:
        logged = [audit for audit in self.all() if audit.position is not None]
        return max(logged, key=lambda audit: audit.position or 0, default=None)

    def put(self, audit: Audit) -> None:
        self._write.audits[audit.id] = audit

    def replies(self, audit: str) -> list[AuditReply]:
        return _by_client(self._read.audit_replies.get(audit, {}))

    def reply(self, audit: str, *replies: AuditReply) -> None:
        known = self._write.audit_replies.setdefault(audit, {})
        known.update({reply.client: reply for reply in replies})

    def release(self, audit: str, client: str) -> None:
        self._write.audit_replies.setdefault(audit, {}).pop(client, None)


class _Rounds(_Table):
    def membership(self, client: str, sequence: int) -> Membership | None:
        position = self._read.members.get((client, sequence))
        return None if position is None else self._read.rounds[position]

    def last(self) -> Membership | None:
        rounds = self._read.rounds
        return rounds[max(rounds)] if rounds else None

    def apply(self, membership: Membership, members: Iterable[tuple[str, int]]) -> None:
        _insert(self._write.rounds, membership.position, membership)
        for member in members:
            _insert(self._write.members, member, membership.position)

    def rebuilds(self) -> list[str]:
        return sorted(self._read.rebuilds)

    def await_rebuild(self, client: str) -> None:
        if client in self._write.rebuilds:
            raise StoreError("that is there already")
        self._write.rebuilds.add(client)

    def rebuilt(self) -> None:
        self._write.rebuilds.clear()

    def attempts(self) -> list[Attempt]:
        return list(self._read.attempts)

    def attempt(self, attempts: Iterable[Attempt]) -> None:
        for attempt in attempts:
            known = {(one.aggregation, one.client) for one in self._write.attempts}
            if (attempt.aggregation, attempt.client) in known:
                raise StoreError("that is there already")
            self._write.attempts.append(attempt)

    def drop_attempts(self, aggregations: Collection[str]) -> None:
        self._write.attempts[:] = [
            one for one in self._write.attempts if one.aggregation not in aggregations
        ]
        for aggregation in aggregations:
            self._write.disputes.pop(aggregation, None)
        for key in [key for key in self._write.openings if key[0] in aggregations]:
            del self._write.openings[key]

    def set_back(self, clock: int) -> None:
        self._write.attempts[:] = [
            replace(one, clock=min(one.clock, clock)) for one in self._write.attempts
        ]

    def disputes(self) -> list[DisputeRecord]:
        return list(self._read.disputes.values())

    def dispute(self, record: DisputeRecord) -> None:
        _insert(self._write.disputes, record.aggregation, record)

    def opened(self, aggregation: str) -> list[str]:
        return sorted(client for about, client in self._read.openings if about == aggregation)

    def opening(self, aggregation: str, client: str) -> OpeningRecord | None:
        return self._read.openings.get((aggregation, client))

    def open(self, record: OpeningRecord) -> None:
        _insert(self._write.openings, (record.aggregation, record.client), record)


def _by_client(replies: Mapping[str, Any]) -> list[Any]:
    return [replies[client] for client in sorted(replies)]
