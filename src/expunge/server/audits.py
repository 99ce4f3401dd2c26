"""Audits: every client recomputes its statistics from its own store, and they must be what the
server holds.

A client answers with a salted digest of what it recomputed, which is compared with its sub-ledger
at that very point of its requests; what it changes afterwards is for the next audit. When all have
answered, the sub-ledgers are added up, and the sum must be the ledger. In a masked federation there
are no sub-ledgers: a round of secure aggregation adds up what all clients recompute. If every
comparison says "equal", the ledger is, bit for bit, that of retraining on what the clients held.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Sequence
from typing import Any

from expunge.errors import RefusedError
from expunge.evidence import read_entry, salted
from expunge.ridge.statistics import Statistics
from expunge.ridge.sums import Sums
from expunge.server.state import SALT_BYTES, ServerState
from expunge.wire.request import AuditAnswer
from expunge.wire.schema import time_text


class Audits:
    """The audits of one federation."""

    def __init__(self, core: ServerState) -> None:
        self._core = core
        self._database = core.database

    def start(self, connection: sqlite3.Connection, now: int) -> str:
        """Begin an audit of all active clients, within a transaction; returns its id."""
        if not self._core.spec.is_exact:
            raise RefusedError(
                "not-allowed",
                "this federation computes in float64: there is no exact ledger to audit",
            )
        audit = secrets.token_hex(16)
        (slot,) = self._core.vault.new()
        salt = self._core.vault.seal(slot, secrets.token_bytes(SALT_BYTES), _context(audit))
        connection.execute(
            "INSERT INTO audits (id, started, slot, salt) VALUES (?, ?, ?, ?)",
            (audit, now, slot, salt),
        )
        clients = self._core.clients("active")
        connection.executemany(
            "INSERT INTO audit_clients (audit_id, client) VALUES (?, ?)",
            [(audit, one) for one in clients],
        )
        return audit

    def _salt(self, audit: str) -> bytes:
        row = self._database.row(
            "SELECT slot, salt FROM audits WHERE id = ? AND finished IS NULL", (audit,)
        )
        if row is None:
            raise RefusedError("unknown-audit", f"there is no audit {audit!r:.80} under way")
        return self._core.vault.unseal(row[0], row[1], _context(audit))

    def waiting(self, client: str) -> list[dict[str, Any]]:
        """The audits that a client has yet to answer."""
        rows = self._database.rows(
            "SELECT id FROM audits JOIN audit_clients ON audit_id = id"
            " WHERE client = ? AND equal IS NULL AND finished IS NULL ORDER BY started, id",
            (client,),
        )
        return [{"audit": audit, "salt": self._salt(audit).hex()} for (audit,) in rows]

    def require_waiting(self, client: str, answers: tuple[AuditAnswer, ...]) -> None:
        """Refuse answers to audits that wait for none from this client."""
        for answer in answers:
            row = self._database.row(
                "SELECT equal FROM audit_clients JOIN audits ON id = audit_id"
                " WHERE audit_id = ? AND client = ? AND finished IS NULL",
                (answer.audit, client),
            )
            if row is None or row[0] is not None:
                raise RefusedError(
                    "unknown-audit", f"audit {answer.audit} does not wait for an answer of {client}"
                )
        if len({answer.audit for answer in answers}) < len(answers):
            raise RefusedError("unknown-audit", "an audit is answered twice in one request")

    def answer(
        self, connection: sqlite3.Connection, client: str, answers: tuple[AuditAnswer, ...]
    ) -> None:
        """Compare what a client recomputed with its sub-ledger as it is now."""
        share = self._core.books.exact_subledger(client) if answers else None
        for answer in answers:
            if share is None:
                continue
            equal = (
                salted("audit", self._salt(answer.audit), share.digest) == answer.digest
                and share.count == answer.count
            )
            connection.execute(
                "UPDATE audit_clients SET equal = ?, count = ? WHERE audit_id = ? AND client = ?",
                (int(equal), answer.count, answer.audit, client),
            )

    def client_joined(self, connection: sqlite3.Connection, client: str) -> None:
        """A client that comes, or comes back, while an audit is under way must answer it as
        well.
        """
        connection.execute(
            "INSERT OR REPLACE INTO audit_clients (audit_id, client) SELECT id, ? FROM audits "
            "WHERE finished IS NULL",
            (client,),
        )

    def client_is_gone(self, connection: sqlite3.Connection, client: str) -> None:
        """A client of which nothing remains has nothing to answer."""
        connection.execute(
            "DELETE FROM audit_clients WHERE client = ? AND equal IS NULL"
            " AND audit_id IN (SELECT id FROM audits WHERE finished IS NULL)",
            (client,),
        )

    def answered(self) -> list[str]:
        """The audits that all have answered, and that have yet to be finished.

        Those of masked federations end by `conclude`.
        """
        if self._core.spec.is_masked:
            return []
        rows = self._database.rows(
            "SELECT id FROM audits WHERE finished IS NULL AND NOT EXISTS (SELECT 1 "
            "FROM audit_clients WHERE audit_id = id AND equal IS NULL) ORDER BY started"
        )
        return [row[0] for row in rows]

    def finish(self, audit: str) -> str:
        """Add up the sub-ledgers and compare the sum with the ledger; log what was found.

        No fold may run meanwhile.
        """
        core = self._core
        with core.lock:
            position, ledger = core.books.position(), core.books.exact_statistics()
            # Not the audit's own, which every client knows; so these digests can be compared with
            # receipts
            current = core.salt()
            clients = core.clients("active")
        total = Sums(core.spec)
        for client in clients:
            total.merge(core.books.exact_subledger(client, position))
        recomputed = Statistics.snapshot(total)
        rows = self._database.rows(
            "SELECT client, equal FROM audit_clients WHERE audit_id = ? ORDER BY client", (audit,)
        )
        result = "equal" if all(row[1] for row in rows) and recomputed == ledger else "different"
        digests = {
            "ledger": salted("ledger", current, ledger.digest),
            "recomputed": salted("ledger", current, recomputed.digest),
        }
        with core.changing() as (connection, now):
            clients = [row[0] for row in rows]
            index = core.append(
                connection,
                "audited",
                now,
                audit=audit,
                result=result,
                clients=clients,
                count=ledger.count,
                **digests,
            )
            self._end(connection, now, audit, result, index)
        core.version += 1
        return result

    def conclude(self, recomputed: Statistics, clients: Sequence[str]) -> str:
        """The end of every audit under way in a masked federation: `recomputed` is the sum of what
        all clients hold.
        """
        core = self._core
        ledger, current = core.books.exact_statistics(), core.salt()
        result = "equal" if recomputed == ledger else "different"
        digests = {
            "ledger": salted("ledger", current, ledger.digest),
            "recomputed": salted("ledger", current, recomputed.digest),
        }
        with core.changing() as (connection, now):
            for (audit,) in self._database.rows(
                "SELECT id FROM audits WHERE finished IS NULL ORDER BY started, id"
            ):
                index = core.append(
                    connection,
                    "audited",
                    now,
                    audit=audit,
                    result=result,
                    clients=sorted(clients),
                    count=ledger.count,
                    **digests,
                )
                connection.execute(
                    "UPDATE audit_clients SET equal = ? WHERE audit_id = ?",
                    (int(result == "equal"), audit),
                )
                self._end(connection, now, audit, result, index)
        core.version += 1
        return result

    @staticmethod
    def _end(connection: sqlite3.Connection, now: int, audit: str, result: str, index: int) -> None:
        connection.execute(
            "UPDATE audits SET finished = ?, result = ?, position = ?, slot = NULL, salt = NULL "
            "WHERE id = ?",
            (now, result, index, audit),
        )

    def show(self, audit: str) -> dict[str, Any]:
        """An audit: its result, and which clients agree, differ, or have yet to answer."""
        row = self._database.row(
            "SELECT started, finished, result, position FROM audits WHERE id = ?", (audit,)
        )
        if row is None:
            raise RefusedError("unknown-audit", f"there is no audit {audit!r:.80}")
        started, finished, result, position = row
        rows = self._database.rows(
            "SELECT client, equal, count FROM audit_clients WHERE audit_id = ? ORDER BY client",
            (audit,),
        )
        return {
            "audit": audit,
            "started": time_text(started),
            "finished": "" if finished is None else time_text(finished),
            "result": result or "under way",
            "index": -1 if position is None else position,
            "clients": [client for client, _, _ in rows],
            "equal": [client for client, equal, _ in rows if equal],
            # Of a sum that differs nobody can tell whose fault it is.
            "different": []
            if self._core.spec.is_masked
            else [client for client, equal, _ in rows if equal == 0],
            "waiting": [client for client, equal, _ in rows if equal is None],
            "count": sum(count or 0 for _, _, count in rows)
            if position is None
            else self._count(position),
        }

    def _count(self, position: int) -> int:
        """How many samples an audit was of, as the log says."""
        return int(read_entry(self._core.log.entry(position))["count"])

    def listed(self) -> list[dict[str, Any]]:
        """Every audit, the oldest first."""
        return [
            self.show(row[0])
            for row in self._database.rows("SELECT id FROM audits ORDER BY started, id")
        ]

    def last(self) -> dict[str, Any] | None:
        """The last finished audit, as certificates name it."""
        row = self._database.row(
            "SELECT id, finished, result, position FROM audits WHERE position IS NOT NULL "
            "ORDER BY position DESC LIMIT 1"
        )
        return (
            None
            if row is None
            else {"audit": row[0], "time": time_text(row[1]), "result": row[2], "index": row[3]}
        )


def _context(audit: str) -> bytes:
    return b"audit:" + audit.encode()
