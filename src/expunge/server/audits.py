"""Audits: every client recomputes its statistics from its own store, and they must be what the
server holds.

A client answers with a salted digest of what it recomputed, which is compared with its sub-ledger
at that very point of its requests; what it changes afterwards is for the next audit. When all have
answered, the sub-ledgers are added up, and the sum must be the ledger. In a masked federation there
are no sub-ledgers: a round of secure aggregation adds up what all clients recompute. If every
comparison says "equal", the ledger is, bit for bit, that of retraining on what the clients held.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from expunge.errors import RefusedError
from expunge.evidence.digests import MultisetHash, salted
from expunge.evidence.log import read_entry
from expunge.ridge.statistics import Statistics
from expunge.ridge.sums import Sums
from expunge.server.state import SALT_BYTES, ServerState
from expunge.server.storage.tables import Audit, AuditReply
from expunge.wire.request import AuditAnswer
from expunge.wire.schema import time_text


class Audits:
    """The audits of one federation."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._table = state.storage.audits

    def start(self, now: int) -> str:
        """Begin an audit of all active clients, within a transaction; returns its id."""
        if not self._state.spec.is_exact:
            raise RefusedError(
                "not-allowed",
                "this federation computes in float64: there is no exact ledger to audit",
            )
        audit = self._state.random(16).hex()
        (slot,) = self._state.vault.new()
        salt = self._state.vault.seal(slot, self._state.random(SALT_BYTES), _context(audit))
        self._table.put(Audit(audit, now, slot, salt))
        self._table.reply(audit, *(AuditReply(client) for client in self._state.clients("active")))
        return audit

    def _salt(self, audit: Audit) -> bytes:
        if audit.slot is None or audit.salt is None:
            raise RefusedError("unknown-audit", f"audit {audit.id} is not under way")
        return self._state.vault.unseal(audit.slot, audit.salt, _context(audit.id))

    def waiting(self, client: str) -> list[dict[str, Any]]:
        """The audits that a client has yet to answer."""
        return [
            {"audit": audit.id, "salt": self._salt(audit).hex()}
            for audit in self._table.unanswered(client)
        ]

    def require_waiting(self, client: str, answers: tuple[AuditAnswer, ...]) -> None:
        """Refuse answers to audits that wait for none from this client."""
        waiting = {audit.id for audit in self._table.unanswered(client)}
        for answer in answers:
            if answer.audit not in waiting:
                raise RefusedError(
                    "unknown-audit", f"audit {answer.audit} does not wait for an answer of {client}"
                )
        if len({answer.audit for answer in answers}) < len(answers):
            raise RefusedError("unknown-audit", "an audit is answered twice in one request")

    def answer(self, client: str, answers: tuple[AuditAnswer, ...]) -> None:
        """Compare what a client recomputed with its sub-ledger as it is now."""
        if not answers:
            return
        share = self._state.ledger.exact_subledger(client)
        for answer in answers:
            salt = self._salt(self._require(answer.audit))
            digest = salted("audit", salt, share.digest)
            equal = (digest, share.count) == (answer.digest, answer.count)
            self._table.reply(answer.audit, AuditReply(client, equal, answer.count))

    def client_joined(self, client: str) -> None:
        """A client that joins or rejoins while an audit is in progress must answer it as well."""
        for audit in self._table.running():
            self._table.reply(audit.id, AuditReply(client))

    def client_is_gone(self, client: str) -> None:
        """A client of which nothing remains has nothing to answer."""
        for audit in self._table.unanswered(client):
            self._table.release(audit.id, client)

    def answered(self) -> list[str]:
        """The audits that all have answered, and that have yet to be finished.

        Those of masked federations end by `conclude`.
        """
        if self._state.spec.is_masked:
            return []
        return [
            audit.id
            for audit in self._table.running()
            if all(reply.equal is not None for reply in self._table.replies(audit.id))
        ]

    def finish(self, audit: str) -> str:
        """Add up the sub-ledgers and compare the sum with the ledger, and the hash of the live
        samples with one of all their commitments; log what was found.

        No fold may run meanwhile.
        """
        state = self._state
        with state.lock:
            position, ledger = state.storage.journal.last(), state.ledger.exact_statistics()
            live, commitments = state.basis().live, state.commitments()
            # Not the audit's own salt, which every client knows.
            salt, current = state.salt(), state.record.ledger_digest
            clients = state.clients("active")
        total = Sums(state.spec)
        for client in clients:
            total.merge(state.ledger.exact_subledger(client, position))
        recomputed = Statistics.snapshot(total)
        replies = self._table.replies(audit)
        followed = MultisetHash.of(commitments) == live
        agreed = all(reply.equal for reply in replies) and recomputed == ledger and followed
        content = _compared("equal" if agreed else "different", ledger, recomputed, salt, current)
        with state.changing() as now:
            self._end(audit, now, clients=[reply.client for reply in replies], **content)
        state.version += 1
        return str(content["result"])

    def conclude(self, recomputed: Statistics, clients: Sequence[str]) -> str:
        """The end of every audit in progress in a masked federation: `recomputed` is the sum of
        what all clients hold.
        """
        state = self._state
        ledger = state.ledger.exact_statistics()
        result = "equal" if recomputed == ledger else "different"
        content = _compared(result, ledger, recomputed, state.salt(), state.record.ledger_digest)
        with state.changing() as now:
            for audit in self._table.running():
                replies = [
                    replace(reply, equal=result == "equal")
                    for reply in self._table.replies(audit.id)
                ]
                self._table.reply(audit.id, *replies)
                self._end(audit.id, now, clients=sorted(clients), **content)
        state.version += 1
        return result

    def _end(self, audit: str, now: int, **content: Any) -> None:
        index = self._state.append("audited", now, audit=audit, **content)
        begun = self._require(audit)
        self._table.put(Audit(audit, begun.started, None, None, now, content["result"], index))
        self._state.ledger.has_remains = True  # the key of the salt

    def _require(self, audit: str) -> Audit:
        record = self._table.get(audit)
        if record is None:
            raise RefusedError("unknown-audit", f"there is no audit {audit!r:.80}")
        return record

    def show(self, audit: str) -> dict[str, Any]:
        """An audit: its result, and which clients agree, differ, or have yet to answer."""
        record, replies = self._require(audit), self._table.replies(audit)
        answered: dict[bool | None, list[str]] = {True: [], False: [], None: []}
        for reply in replies:
            answered[reply.equal].append(reply.client)
        return {
            "audit": audit,
            "started": time_text(record.started),
            "finished": "" if record.finished is None else time_text(record.finished),
            "result": record.result or "under way",
            "index": -1 if record.position is None else record.position,
            "clients": [reply.client for reply in replies],
            "equal": answered[True],
            # If a sum differs, it does not show which client is at fault.
            "different": [] if self._state.spec.is_masked else answered[False],
            "waiting": answered[None],
            "count": sum(reply.count or 0 for reply in replies)
            if record.position is None
            else self._count(record.position),
        }

    def _count(self, position: int) -> int:
        """How many samples an audit was of, as the log says."""
        return int(read_entry(self._state.log.entry(position))["count"])

    def listed(self) -> list[dict[str, Any]]:
        """Every audit, the oldest first."""
        return [self.show(audit.id) for audit in self._table.all()]

    def last(self) -> dict[str, Any] | None:
        """The last finished audit, as certificates name it."""
        last = self._table.last()
        if last is None or last.finished is None:
            return None
        return {
            "audit": last.id,
            "time": time_text(last.finished),
            "result": last.result,
            "index": last.position,
        }


def _compared(
    result: str, ledger: Statistics, recomputed: Statistics, salt: bytes, current: str
) -> dict[str, Any]:
    """What the log says of a comparison. `current` is the digest that receipts name: so it shows of
    which state of the ledger the two others are.
    """
    return {
        "result": result,
        "count": ledger.count,
        "ledger": salted("ledger", salt, ledger.digest),
        "recomputed": salted("ledger", salt, recomputed.digest),
        "version": 2,
        "current": current,
    }


def _context(audit: str) -> bytes:
    return b"audit:" + audit.encode()
