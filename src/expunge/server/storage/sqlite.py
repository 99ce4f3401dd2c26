"""The server's tables in one SQLite database; laws and meaning are those of `tables`."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from expunge.errors import StoreError
from expunge.kinds import ORDER_STATES, OrderState
from expunge.server.storage.records import Records
from expunge.server.storage.schema import MIGRATIONS
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
from expunge.storage.sqlite import (
    SQLITE_ERRORS,
    Database,
    Hook,
    Snapshot,
    no_hook,
    require_upgradable,
    store_error,
)

_SETTINGS: dict[str, str | int] = {"wal_autocheckpoint": 4000}
_PARAMETERS = 900  # in one query
_FOREVER = 1 << 62
_FORGETTABLE = (
    "ledger",
    "subledgers",
    "journal",
    "commitments",
    "generations",
    "tokens",
    "disputes",
    "openings",
)
_REFERENCES = (  # a column, and where its values are from
    ("order_clients.order_id", "orders.id"),
    ("order_clients.client", "actors.name"),
    ("order_entries.order_id", "orders.id"),
    ("audit_clients.audit_id", "audits.id"),
    ("audit_clients.client", "actors.name"),
    ("answers.actor", "actors.name"),
    ("commitments.client", "actors.name"),
    ("members.client", "actors.name"),
)
_WITH_SLOTS = ("ledger", "subledgers", "generations", "orders", "audits", "disputes")
_WITH_FILES = ("ledger", "subledgers", "journal")

# Conditions of orders that are lost, or overdue at a time
_OVERDUE = "closed IS NULL AND completed IS NULL AND (slot IS NULL OR deadline < ?)"


class _State:
    def __init__(self, database: Database) -> None:
        self._records = Records(database, "state", ServerRecord, constants="one")

    def get(self) -> ServerRecord | None:
        return self._records.one()

    def put(self, state: ServerRecord) -> None:
        self._records.replace(state, 1)


class _Actors:
    _UPDATE = "ON CONFLICT (name) DO UPDATE SET " + ", ".join(
        f"{field.name} = excluded.{field.name}" for field in fields(Actor)
    )

    def __init__(self, database: Database) -> None:
        self._database = database
        self._records = Records(database, "actors", Actor)

    def get(self, name: str) -> Actor | None:
        return self._records.one("WHERE name = ?", (name,))

    def with_key(self, key: str) -> Actor | None:
        return self._records.one("WHERE key = ?", (key,))

    def all(self) -> list[Actor]:
        return self._records.all("ORDER BY name")

    def after(self, name: str, limit: int) -> list[Actor]:
        return self._records.all("WHERE name > ? ORDER BY name LIMIT ?", (name, limit))

    def count(self) -> int:
        return int(self._database.value("SELECT count(*) FROM actors"))

    def put(self, *actors: Actor) -> None:
        self._records.insert(actors, rule=self._UPDATE)


class _Tokens:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._records = Records(database, "tokens", EnrolmentToken)

    def get(self, digest: str) -> EnrolmentToken | None:
        return self._records.one("WHERE digest = ?", (digest,))

    def add(self, token: EnrolmentToken) -> None:
        self._records.insert([token])

    def remove(self, digest: str) -> None:
        self._database.run("DELETE FROM tokens WHERE digest = ?", (digest,))

    def of(self, name: str) -> list[EnrolmentToken]:
        return self._records.all("WHERE name = ? ORDER BY digest", (name,))

    def withdraw(self, name: str) -> None:
        self._database.run("DELETE FROM tokens WHERE name = ?", (name,))


class _Answers:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._records = Records(database, "answers", AnswerRecord)

    def get(self, actor: str, sequence: int) -> AnswerRecord | None:
        return self._records.one("WHERE actor = ? AND sequence = ?", (actor, sequence))

    def add(self, *answers: AnswerRecord) -> None:
        self._records.insert(answers)

    def prune(self, actor: str, before: int) -> None:
        self._database.run(
            "DELETE FROM answers INDEXED BY answers_of_no_order "
            "WHERE actor = ? AND sequence < ? AND orders = 0",
            (actor, before),
        )

    def release(self, actor: str, sequence: int) -> None:
        self._database.run(
            "UPDATE answers SET orders = max(0, orders - 1) WHERE actor = ? AND sequence = ?",
            (actor, sequence),
        )


class _Commitments:
    def __init__(self, database: Database) -> None:
        self._database = database

    def present(self, client: str, commitments: Sequence[bytes]) -> set[bytes]:
        present: set[bytes] = set()
        for start in range(0, len(commitments), _PARAMETERS):
            block = commitments[start : start + _PARAMETERS]
            marks = ",".join("?" * len(block))
            condition = f"client = ? AND commitment IN ({marks})"
            query = f"SELECT commitment FROM commitments WHERE {condition}"  # noqa: S608 - marks only
            present.update(row[0] for row in self._database.rows(query, (client, *block)))
        return present

    def count(self, client: str) -> int:
        query = "SELECT count(*) FROM commitments WHERE client = ?"
        return int(self._database.value(query, (client,)))

    def of(self, client: str) -> list[bytes]:
        query = "SELECT commitment FROM commitments WHERE client = ? ORDER BY commitment"
        return [row[0] for row in self._database.rows(query, (client,))]

    def clients(self) -> list[str]:
        query = "SELECT DISTINCT client FROM commitments ORDER BY client"
        return [row[0] for row in self._database.rows(query)]

    def add(self, client: str, commitments: Iterable[bytes]) -> None:
        self._database.run_many(
            "INSERT INTO commitments (client, commitment) VALUES (?, ?)",
            [(client, commitment) for commitment in commitments],
        )

    def remove(self, client: str, commitments: Iterable[bytes]) -> None:
        self._database.run_many(
            "DELETE FROM commitments WHERE client = ? AND commitment = ?",
            [(client, commitment) for commitment in commitments],
        )

    def remove_all(self, client: str) -> None:
        self._database.run("DELETE FROM commitments WHERE client = ?", (client,))


class _Journal:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._records = Records(database, "journal", JournalEntry)

    def get(self, position: int) -> JournalEntry | None:
        return self._records.one("WHERE position = ?", (position,))

    def positions(
        self, client: str | None = None, *, after: int = 0, until: int | None = None
    ) -> list[int]:
        query = "SELECT position FROM journal WHERE position > ? AND position <= ?"
        arguments: tuple[Any, ...] = (after, _FOREVER if until is None else until)
        if client is not None:
            query, arguments = query + " AND client = ?", (*arguments, client)
        return [row[0] for row in self._database.rows(query + " ORDER BY position", arguments)]

    def last(self) -> int:
        query = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'journal'"
        return int(self._database.value(query))

    def count(self) -> int:
        return int(self._database.value("SELECT count(*) FROM journal"))

    def oldest(self) -> int | None:
        time: int | None = self._database.value("SELECT min(time) FROM journal")
        return time

    def holds(self, generation: int) -> bool:
        query = "SELECT 1 FROM journal WHERE generation = ?"
        return self._database.row(query, (generation,)) is not None

    def clients(self, until: int) -> list[str]:
        query = "SELECT DISTINCT client FROM journal WHERE position <= ? ORDER BY client"
        return [row[0] for row in self._database.rows(query, (until,))]

    def append(self, entry: JournalEntry) -> None:
        self._records.insert([entry])

    def files(self, client: str, until: int) -> set[str]:
        query = "SELECT file FROM journal WHERE client = ? AND position <= ? AND file IS NOT NULL"
        return {row[0] for row in self._database.rows(query, (client, until))}

    def remove(self, client: str, until: int) -> None:
        self._database.run(
            "DELETE FROM journal WHERE client = ? AND position <= ?", (client, until)
        )


class _Files:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._ledger = Records(database, "ledger", LedgerFile, constants="one")
        self._shares = Records(database, "subledgers", ShareFile)

    def ledger(self) -> LedgerFile | None:
        return self._ledger.one()

    def put_ledger(self, file: LedgerFile) -> None:
        self._ledger.replace(file, 1)

    def share(self, client: str) -> ShareFile | None:
        return self._shares.one("WHERE client = ?", (client,))

    def put_share(self, file: ShareFile) -> None:
        self._shares.replace(file)

    def remove_share(self, client: str) -> None:
        self._database.run("DELETE FROM subledgers WHERE client = ?", (client,))

    def names(self) -> set[str]:
        return self._referred("file", _WITH_FILES)

    def slots(self) -> set[int]:
        return self._referred("slot", _WITH_SLOTS)

    def _referred(self, column: str, tables: Sequence[str]) -> set[Any]:
        selects = (f"SELECT {column} FROM {table}" for table in tables)  # noqa: S608 - our own names
        rows = self._database.rows(" UNION ".join(selects))
        return {row[0] for row in rows} - {None}


class _Generations:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._erasures = Records(database, "erasures", Erasure)

    def slot(self, generation: int) -> int | None:
        query = "SELECT slot FROM generations WHERE generation = ?"
        slot: int | None = self._database.value(query, (generation,))
        return slot

    def begin(self, generation: int, slot: int) -> None:
        query = "INSERT INTO generations (generation, slot) VALUES (?, ?)"
        self._database.run(query, (generation, slot))

    def end(self, until: int) -> None:
        self._database.run("DELETE FROM generations WHERE generation <= ?", (until,))

    def last_erasure(self) -> Erasure | None:
        return self._erasures.one("ORDER BY generation DESC LIMIT 1")

    def erasure_of(self, generation: int) -> Erasure | None:
        return self._erasures.one(
            "WHERE generation >= ? ORDER BY generation LIMIT 1", (generation,)
        )

    def erased(self, erasure: Erasure) -> None:
        self._erasures.insert([erasure], rule="ON CONFLICT (generation) DO NOTHING")


class _Log:
    def __init__(self, database: Database) -> None:
        self._database = database

    def size(self) -> int:
        return int(self._database.value("SELECT coalesce(max(position) + 1, 0) FROM log"))

    def entries(self, start: int, end: int) -> list[bytes]:
        query = "SELECT entry FROM log WHERE position >= ? AND position < ? ORDER BY position"
        return [row[0] for row in self._database.rows(query, (start, end))]

    def node(self, level: int, index: int) -> bytes:
        query = "SELECT hash FROM nodes WHERE level = ? AND position = ?"
        hashed: bytes | None = self._database.value(query, (level, index))
        if hashed is None:
            raise StoreError(f"the log has no node {index} of level {level}: restore a backup")
        return hashed

    def search(self, values: Mapping[str, str | int]) -> list[int]:
        equal = "json_extract(CAST(entry AS TEXT), ?) = ?"
        condition = " AND ".join(equal for _ in values) or "TRUE"
        query = f"SELECT position FROM log WHERE {condition} ORDER BY position"  # noqa: S608 - our own names
        arguments = [part for path, value in values.items() for part in (f"$.{path}", value)]
        return [row[0] for row in self._database.rows(query, arguments)]

    def append(self, entry: bytes, nodes: Iterable[tuple[int, int, bytes]]) -> None:
        self._database.run("INSERT INTO log (position, entry) VALUES (?, ?)", (self.size(), entry))
        self._database.run_many("INSERT INTO nodes (level, position, hash) VALUES (?, ?, ?)", nodes)

    def rewrite(self, entries: Mapping[int, bytes], nodes: Mapping[tuple[int, int], bytes]) -> None:
        self._database.run_many(
            "INSERT OR REPLACE INTO log (position, entry) VALUES (?, ?)", entries.items()
        )
        self._database.run_many(
            "INSERT OR REPLACE INTO nodes (level, position, hash) VALUES (?, ?, ?)",
            [(*place, hashed) for place, hashed in nodes.items()],
        )


class _Documents:
    def __init__(self, database: Database, table: str) -> None:
        self._database = database
        self._table = table

    def all(self) -> list[bytes]:
        query = f"SELECT envelope FROM {self._table} ORDER BY number"  # noqa: S608 - our own names
        return [row[0] for row in self._database.rows(query)]

    def add(self, envelope: bytes) -> None:
        query = f"INSERT INTO {self._table} (envelope) VALUES (?)"  # noqa: S608 - our own names
        self._database.run(query, (envelope,))


class _Orders:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._records = Records(database, "orders", OrderRecord)
        self._replies = Records(database, "order_clients", OrderReply, constants="order_id")

    def get(self, order: str) -> OrderRecord | None:
        return self._records.one("WHERE id = ?", (order,))

    def all(self) -> list[OrderRecord]:
        return self._records.all("ORDER BY position, id")

    def newest(
        self, limit: int, *, before: tuple[int, str] | None = None, overdue: int | None = None
    ) -> list[OrderRecord]:
        conditions, arguments = ["TRUE"], list[Any]()
        if before is not None:
            conditions.append("(position, id) < (?, ?)")
            arguments += before
        if overdue is not None:
            conditions.append(_OVERDUE)
            arguments.append(overdue)
        where = f"WHERE {' AND '.join(conditions)} ORDER BY position DESC, id DESC LIMIT ?"
        return self._records.all(where, (*arguments, limit))

    def count(self, *, overdue: int | None = None) -> int:
        if overdue is None:
            return int(self._database.value("SELECT count(*) FROM orders"))
        query = f"SELECT count(*) FROM orders WHERE {_OVERDUE}"  # noqa: S608 - our own names
        return int(self._database.value(query, (overdue,)))

    def counts(self, now: int) -> dict[OrderState, int]:
        query = (
            "SELECT CASE WHEN closed IS NOT NULL THEN 'closed' "
            "WHEN completed IS NOT NULL THEN 'complete' WHEN slot IS NULL THEN 'lost' "
            "WHEN deadline < ? THEN 'overdue' ELSE 'open' END, count(*) FROM orders GROUP BY 1"
        )
        counted = dict(self._database.rows(query, (now,)))
        return {state: counted.get(state, 0) for state in ORDER_STATES}

    def named(self, name: str) -> list[OrderRecord]:
        found = self._records.all(
            "WHERE id >= ? AND id < ? OR (reference = ? AND reference <> '')",
            (name.lower(), name.lower() + "g", name),  # ids are in hexadecimal digits
        )
        return sorted(found, key=lambda order: (order.position, order.id))

    def unanswered(
        self, client: str, *, after: int | None = None, limit: int | None = None
    ) -> list[OrderRecord]:
        waiting = (
            "JOIN order_clients ON order_id = id WHERE client = ? AND found IS NULL{} "
            "ORDER BY order_clients.position, order_id"
        )
        if after is None and limit is None:
            return self._records.all(waiting.format(""), (client,))
        page = waiting.format(" AND order_clients.position > ? AND slot IS NOT NULL") + " LIMIT ?"
        first = -_FOREVER if after is None else after
        return self._records.all(page, (client, first, _FOREVER if limit is None else limit))

    def is_answered(self, order: str) -> bool:
        query = "SELECT 1 FROM order_clients WHERE order_id = ? AND found IS NULL"
        return self._database.row(f"{query} LIMIT 1", (order,)) is None

    def add(self, order: OrderRecord, clients: Iterable[str]) -> None:
        self._records.insert([order])
        self._database.run_many(
            "INSERT INTO order_clients (order_id, client, position) VALUES (?, ?, ?)",
            [(order.id, client, order.position) for client in clients],
        )

    def put(self, order: OrderRecord) -> None:
        self._records.replace(order)

    def replies(self, order: str) -> list[OrderReply]:
        return self._replies.all("WHERE order_id = ? ORDER BY client", (order,))

    def reply_of(self, order: str, client: str) -> OrderReply | None:
        return self._replies.one("WHERE order_id = ? AND client = ?", (order, client))

    def reply(self, order: str, reply: OrderReply) -> None:
        self._database.run(
            "INSERT INTO order_clients (order_id, client, found, sequence, time, position) "
            "VALUES (?, ?, ?, ?, ?, coalesce((SELECT position FROM orders WHERE id = ?), -1)) "
            "ON CONFLICT (order_id, client) DO UPDATE SET "
            "found = excluded.found, sequence = excluded.sequence, time = excluded.time",
            (order, reply.client, reply.found, reply.sequence, reply.time, order),
        )

    def entries(self, order: str) -> list[int]:
        query = "SELECT position FROM order_entries WHERE order_id = ? ORDER BY position"
        return [row[0] for row in self._database.rows(query, (order,))]

    def mention(self, order: str, position: int) -> None:
        query = "INSERT INTO order_entries (order_id, position) VALUES (?, ?)"
        self._database.run(query, (order, position))


class _Audits:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._records = Records(database, "audits", Audit)

    def get(self, audit: str) -> Audit | None:
        return self._records.one("WHERE id = ?", (audit,))

    def all(self) -> list[Audit]:
        return self._records.all("ORDER BY started, id")

    def running(self) -> list[Audit]:
        return self._records.all("WHERE finished IS NULL ORDER BY started, id")

    def unanswered(self, client: str) -> list[Audit]:
        return self._records.all(
            "JOIN audit_clients ON audit_id = id WHERE client = ? AND equal IS NULL "
            "AND finished IS NULL ORDER BY started, id",
            (client,),
        )

    def last(self) -> Audit | None:
        return self._records.one("WHERE position IS NOT NULL ORDER BY position DESC LIMIT 1")

    def put(self, audit: Audit) -> None:
        self._records.replace(audit)

    def replies(self, audit: str) -> list[AuditReply]:
        query = "SELECT client, equal, count FROM audit_clients WHERE audit_id = ? ORDER BY client"
        rows = self._database.rows(query, (audit,))
        return [
            AuditReply(client, None if equal is None else bool(equal), count)
            for client, equal, count in rows
        ]

    def reply(self, audit: str, *replies: AuditReply) -> None:
        self._database.run_many(
            "INSERT OR REPLACE INTO audit_clients (audit_id, client, equal, count) "
            "VALUES (?, ?, ?, ?)",
            [(audit, reply.client, reply.equal, reply.count) for reply in replies],
        )

    def release(self, audit: str, client: str) -> None:
        query = "DELETE FROM audit_clients WHERE audit_id = ? AND client = ?"
        self._database.run(query, (audit, client))


class _Rounds:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._memberships = Records(database, "aggregations", Membership)
        self._attempts = Records(database, "attempts", Attempt)
        self._disputes = Records(database, "disputes", DisputeRecord)
        self._openings = Records(database, "openings", OpeningRecord)

    def membership(self, client: str, sequence: int) -> Membership | None:
        return self._memberships.one(
            "JOIN members USING (position) WHERE client = ? AND sequence = ?", (client, sequence)
        )

    def last(self) -> Membership | None:
        return self._memberships.one("ORDER BY position DESC LIMIT 1")

    def apply(self, membership: Membership, members: Iterable[tuple[str, int]]) -> None:
        self._memberships.insert([membership])
        self._database.run_many(
            "INSERT INTO members (client, sequence, position) VALUES (?, ?, ?)",
            [(client, sequence, membership.position) for client, sequence in members],
        )

    def rebuilds(self) -> list[str]:
        rows = self._database.rows("SELECT client FROM rebuilds ORDER BY client")
        return [row[0] for row in rows]

    def await_rebuild(self, client: str) -> None:
        self._database.run("INSERT INTO rebuilds (client) VALUES (?)", (client,))

    def rebuilt(self) -> None:
        self._database.run("DELETE FROM rebuilds")

    def attempts(self) -> list[Attempt]:
        return self._attempts.all("ORDER BY rowid")

    def attempt(self, attempts: Iterable[Attempt]) -> None:
        self._attempts.insert(attempts)

    def drop_attempts(self, aggregations: Collection[str]) -> None:
        for table in ("attempts", "disputes", "openings"):
            self._database.run_many(
                f"DELETE FROM {table} WHERE aggregation = ?",  # noqa: S608 - our own names
                [(aggregation,) for aggregation in aggregations],
            )

    def set_back(self, clock: int) -> None:
        self._database.run("UPDATE attempts SET clock = ? WHERE clock > ?", (clock, clock))

    def disputes(self) -> list[DisputeRecord]:
        return self._disputes.all("ORDER BY rowid")

    def dispute(self, record: DisputeRecord) -> None:
        self._disputes.insert([record])

    def opened(self, aggregation: str) -> list[str]:
        query = "SELECT client FROM openings WHERE aggregation = ? ORDER BY client"
        return [row[0] for row in self._database.rows(query, (aggregation,))]

    def opening(self, aggregation: str, client: str) -> OpeningRecord | None:
        return self._openings.one("WHERE aggregation = ? AND client = ?", (aggregation, client))

    def open(self, record: OpeningRecord) -> None:
        self._openings.insert([record])


def _remedy(database: Path) -> str:
    return (
        "See what is damaged, and have it put right as far as possible (expunge server scrub "
        f"--repair {database.parent.parent}), or restore the server from a backup"
    )


def _without_reference(database: Database) -> Iterator[str]:
    for column, source in _REFERENCES:
        (table, name), (other, key) = column.split("."), source.split(".")
        query = f"SELECT count(*) FROM {table} WHERE {name} NOT IN (SELECT {key} FROM {other})"  # noqa: S608 - our own names
        with suppress(StoreError):  # which `damage` has told of
            if number := database.value(query):
                yield f"{number} rows of {table} refer to a row of {other} that is not there"


class SqliteStorage(Storage):
    """The store of a server in a file, used by one process."""

    def __init__(
        self, path: Path, hook: Hook = no_hook, *, database: Database | None = None
    ) -> None:
        """The store in a file, brought up to date; or as it is read by this connection."""
        if database is None:
            database = Database(path, MIGRATIONS, _SETTINGS, hook, _remedy(path))
        self.database = database
        self.remedy = database.remedy
        self.state = _State(database)
        self.actors = _Actors(database)
        self.tokens = _Tokens(database)
        self.answers = _Answers(database)
        self.commitments = _Commitments(database)
        self.journal = _Journal(database)
        self.files = _Files(database)
        self.generations = _Generations(database)
        self.log = _Log(database)
        self.amendments = _Documents(database, "amendments")
        self.rotations = _Documents(database, "rotations")
        self.orders = _Orders(database)
        self.audits = _Audits(database)
        self.rounds = _Rounds(database)

    def explaining(self) -> AbstractContextManager[object]:
        """As `Database.explaining`."""
        return self.database.explaining()

    @contextmanager
    def snapshot(self) -> Iterator[Storage]:
        """By a connection of its own; while it is open, the write-ahead log cannot be cut."""
        path = self.database.path
        snapshot = SqliteStorage(path, database=Snapshot(path, MIGRATIONS, self.remedy))
        try:
            yield snapshot
        finally:
            snapshot.close()

    def damage(self) -> list[str]:
        """As `Database.damage`, and rows that refer to nothing; by a snapshot, for which nobody
        waits.
        """
        path = self.database.path
        with closing(Snapshot(path, MIGRATIONS, self.remedy)) as snapshot:
            return [*snapshot.damage(), *_without_reference(snapshot)]

    def rebuild_indexes(self) -> bool:
        """As `Database.rebuild_indexes`."""
        return self.database.rebuild_indexes()

    def transaction(self) -> AbstractContextManager[object]:
        """As `Database.transaction`."""
        return self.database.transaction()

    @property
    def is_certain(self) -> bool:
        """As `Database.is_certain`."""
        return self.database.is_certain

    def forget_overwritten(self) -> None:
        """Cut the write-ahead log; in the database itself what is deleted is overwritten."""
        self.database.truncate_log()

    def make_room(self) -> None:
        """Cut the write-ahead log, if that can be done now."""
        self.database.make_room()

    def write_backup(self, path: Path) -> None:
        """A copy of the database."""
        emptied = [f"DELETE FROM {table}" for table in _FORGETTABLE]  # noqa: S608 - our own names
        self.database.copy_to(path, [*emptied, "UPDATE state SET salt = x'', basis = x''"])

    def close(self) -> None:
        """Close; what was committed stays."""
        self.database.close()

    def abandon(self) -> None:
        """Close, and leave the write-ahead log as it is."""
        self.database.abandon()


def open_storage(path: Path, hook: Hook = no_hook) -> Storage:
    """The store that servers have."""
    return SqliteStorage(path, hook)


def check_storage(path: Path) -> bool:
    """Whether a server's database must be brought up to date; StoreError if that cannot be done."""
    return require_upgradable(path, MIGRATIONS, _remedy(path))


def signer_of(backup: Path) -> str | None:
    """The id of the key that a backed-up server signed with; None if it was never founded."""
    try:
        row = _peek(backup, "SELECT key FROM state")
    except SQLITE_ERRORS as problem:
        raise StoreError(f"{backup} is no backup of a server: {problem}") from problem
    return str(row[0][0]) if row else None


def rotations_of(path: Path) -> list[bytes]:
    """The rotations in a server's database, the oldest first; also while a server is running."""
    try:
        rows = _peek(path, "SELECT envelope FROM rotations ORDER BY number")
    except SQLITE_ERRORS as problem:
        raise store_error(
            path, problem, _remedy(path), "does not give the rotations of the server's key"
        ) from problem
    return [row[0] for row in rows]


def _peek(path: Path, query: str) -> list[tuple[Any, ...]]:
    address = f"{path.absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(address, uri=True, timeout=5.0)) as connection:
        return connection.execute(query).fetchall()
