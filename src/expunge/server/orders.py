"""Erasure orders: filed by a privacy officer, answered by every client, complete when all have.

Who the subject is stays sealed under a key of its own: each client learns the name it knows the
subject by, the log a salted digest; closing an order destroys the key. A case reference, which is
not personal, stays; neither clients nor the log learn it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from expunge.crypto import canonical
from expunge.errors import RefusedError, StoreError
from expunge.evidence.digests import subject_digest
from expunge.evidence.log import EntryKind
from expunge.server.state import SALT_BYTES, ServerState
from expunge.server.storage.folder import ServerFolder
from expunge.server.storage.tables import OrderRecord, OrderReply
from expunge.wire import schema
from expunge.wire.payloads import ORDER_DAYS, ORDERS_AT_ONCE
from expunge.wire.request import OrderAnswer
from expunge.wire.schema import time_text

_DAY = 86400
_LONGEST_SUBJECT = 1000
_LONGEST_REFERENCE = 200
_MOST_DAYS = 3650


class Orders:
    """The orders of one federation."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._table = state.storage.orders

    # -- filing and closing ------------------------------------------------------------------------

    def file(self, now: int, given: Mapping[str, Any]) -> str:
        """File an order by the arguments of the command, within a transaction; returns its id."""
        name, names, within = self._checked(
            given.get("subject"), given.get("subjects", {}), given.get("days", ORDER_DAYS)
        )
        reference = _checked_reference(given.get("reference", ""))
        random = self._state.random
        order, salt = random(16).hex(), random(SALT_BYTES)
        clients = self._holding()
        deadline = now + within * _DAY
        content = canonical.encode({"salt": salt.hex(), "subject": name, "subjects": names})
        (slot,) = self._state.vault.new()
        sealed = self._state.vault.seal(slot, content, _context(order))
        position = self._state.log.size  # which the entry will have
        record = OrderRecord(order, now, deadline, slot, sealed, reference, position=position)
        self._table.add(record, clients)
        self._log(
            order,
            "ordered",
            now,
            subject=subject_digest(salt, name, names),
            deadline=time_text(deadline),
            clients=clients,
        )
        self._complete(order, now)
        return order

    def _holding(self) -> list[str]:
        """The clients of which the ledger may have something: also those that are barred, or whose
        rebuild is yet to come, for whom their departure answers.
        """
        forgotten = self._state.storage.rounds.rebuilds()
        return sorted({*self._state.clients("active", "must-rejoin", "barred"), *forgotten})

    def _checked(
        self, subject: object, subjects: object, days: object
    ) -> tuple[str, dict[str, str], int]:
        if not _is_subject(subject):
            raise RefusedError(
                "malformed",
                f"an order needs a subject, a text of 1 to {_LONGEST_SUBJECT} characters",
            )
        if not isinstance(subjects, dict) or not all(
            _is_subject(value) for value in subjects.values()
        ):
            raise RefusedError(
                "malformed",
                (
                    f"the names of a subject at clients must be texts of 1 to {_LONGEST_SUBJECT} "
                    "characters, by client"
                ),
            )
        clients = {*self._holding(), *self._state.clients("gone")}
        strangers = sorted(set(subjects) - clients)
        if strangers:
            raise RefusedError(
                "unknown-actor",
                f"the order names clients that are not enrolled: {', '.join(strangers)}",
            )
        if isinstance(days, bool) or not isinstance(days, int) or not 0 < days <= _MOST_DAYS:
            raise RefusedError(
                "malformed",
                f"an order's deadline must be 1 to {_MOST_DAYS} days away, got {days!r:.40}",
            )
        return str(subject), dict(subjects), days

    def close(self, order: str, now: int) -> None:
        """Forget who the subject was; the order must be complete. Export its bundle first."""
        record = self._require(order)
        if record.completed is None and record.slot is not None:
            raise RefusedError(
                "not-allowed", f"order {order} is not complete: it cannot be closed yet"
            )
        self._table.put(replace(record, closed=now, slot=None, sealed=None))
        answers = self._state.storage.answers
        for reply in self._table.replies(order):
            if reply.sequence:
                answers.release(reply.client, reply.sequence)
                answers.prune(reply.client, self._state.actor(reply.client).sequence)

    # -- answers -----------------------------------------------------------------------------------

    def waiting(self, client: str, after: str = "") -> list[dict[str, Any]]:
        """What a client has yet to answer, with the name it knows the subject by: `ORDERS_AT_ONCE`
        at the most, the oldest, or the oldest after an order. Where small changes wait, also since
        when, which clients of before that rule do not know of.
        """
        position = self._require(after).position if after else None
        waiting = []
        for order in self._table.unanswered(client, after=position, limit=ORDERS_AT_ONCE):
            content = self._opened(order)
            subject = content["subjects"].get(client, content["subject"])
            deadline = time_text(order.deadline)
            entry = {"deadline": deadline, "order": order.id, "subject": subject}
            if self._state.spec.fewest_samples:
                entry["filed"] = time_text(order.filed)
            waiting.append(entry)
        return waiting

    def require_waiting(
        self, client: str, answers: Sequence[OrderAnswer], answered: Collection[str] = ()
    ) -> None:
        """Refuse answers to orders that wait for none from this client, and two answers to one;
        `answered` are just being.
        """
        for answer in answers:
            reply = self._table.reply_of(answer.order, client)
            if reply is None:
                raise RefusedError(
                    "unknown-order", f"order {answer.order} is not known, or not for this client"
                )
            if reply.found is not None or answer.order in answered:
                raise RefusedError("unknown-order", f"order {answer.order} has been answered")
        if len({answer.order for answer in answers}) < len(answers):
            raise RefusedError("unknown-order", "an order is answered twice in one request")

    def answer(self, client: str, answers: Sequence[OrderAnswer], sequence: int, now: int) -> None:
        """Take answers that `require_waiting` let through; `sequence` is the number of the request
        that they came with.
        """
        for answer in answers:
            self._table.reply(answer.order, OrderReply(client, answer.found, sequence, now))
            content = {"client": client, "found": answer.found, "sequence": sequence}
            self._log(answer.order, "answered", now, **content)
            self._complete(answer.order, now)

    def client_is_gone(self, client: str, sequence: int, now: int) -> None:
        """Nothing of the client remains, which answers all its open orders."""
        answers = [OrderAnswer(order.id, 0) for order in self._table.unanswered(client)]
        self.answer(client, answers, sequence, now)

    def _complete(self, order: str, now: int) -> None:
        if self._table.is_answered(order):
            self._table.put(replace(self._require(order), completed=now))
            self._log(order, "completed", now)

    def _log(self, order: str, kind: EntryKind, now: int, **content: Any) -> None:
        index = self._state.append(kind, now, order=order, **content)
        self._table.mention(order, index)

    # -- looking -----------------------------------------------------------------------------------

    def content(self, order: str) -> dict[str, Any]:
        """Subject, its names at clients, and the salt; refused once the order is closed."""
        return self._opened(self._require(order))

    def _opened(self, record: OrderRecord) -> dict[str, Any]:
        if record.slot is None or record.sealed is None:
            raise RefusedError("gone", f"order {record.id} {_why_no_subject(record)}")
        content: dict[str, Any] = canonical.decode(
            self._state.vault.unseal(record.slot, record.sealed, _context(record.id))
        )
        return content

    def _require(self, order: str) -> OrderRecord:
        record = self._table.get(order)
        if record is None:
            raise RefusedError("unknown-order", f"there is no order {order!r:.80}")
        return record

    def show(self, order: str, now: int) -> dict[str, Any]:
        """An order without its subject: reference, state, deadline, and who has answered what."""
        return self._shown(self._require(order), now)

    def _shown(self, record: OrderRecord, now: int) -> dict[str, Any]:
        replies = self._table.replies(record.id)
        return {
            "order": record.id,
            "reference": record.reference,
            "state": record.state(now),
            "filed": time_text(record.filed),
            "deadline": time_text(record.deadline),
            "completed": "" if record.completed is None else time_text(record.completed),
            "subject_lost": record.is_subject_lost,
            "answers": [
                {
                    "client": reply.client,
                    "found": reply.found,
                    "sequence": reply.sequence or 0,
                    "time": time_text(reply.time),
                }
                for reply in replies
                if reply.found is not None and reply.time is not None
            ],
            "waiting": [reply.client for reply in replies if reply.found is None],
        }

    def counts(self, now: int) -> dict[str, int]:
        """How many orders there are of each state."""
        return {str(state): number for state, number in self._table.counts(now).items()}

    def listed(self, now: int, given: Mapping[str, Any]) -> Any:
        """What the question `orders` asks for: every order, the oldest first; or, with a `limit`, a
        page of them, the newest first, and how many there are.
        """
        if "named" in given:
            named = schema.string(given["named"], "named")
            return [_identified(order) for order in self._table.named(named)]
        if "unknown" in given:
            asked = schema.lists(schema.drawn_id)(given["unknown"], "unknown")
            return [order for order in asked if self._table.get(order) is None]
        if "limit" not in given:
            return [self._shown(order, now) for order in self._table.all()]
        before = schema.or_empty(schema.drawn_id)(given.get("before", ""), "before")
        record = self._require(before) if before else None
        overdue = schema.boolean(given.get("overdue", False), "overdue")
        page = self._table.newest(
            schema.page(given["limit"], "limit"),
            before=None if record is None else (record.position, record.id),
            overdue=now if overdue else None,
        )
        return {
            "orders": [self._shown(order, now) for order in page],
            "total": self._table.count(overdue=now if overdue else None),
        }

    def entries(self, order: str) -> list[int]:
        """Where the log speaks of an order."""
        return self._table.entries(order)


def _why_no_subject(record: OrderRecord) -> str:
    """Why nobody can be told who an order is about, and what there is instead."""
    if not record.is_subject_lost:
        return "is closed: who it was about has been forgotten"
    if record.completed is None:
        return "is lost: the server was restored without its subject. File it again"
    return (
        "is complete, but the server was restored without its subject (its vault was not saved): "
        "no bundle of it can be written. Each client that answered has the receipt of its answer, "
        "which says what it found (expunge order show has the numbers, expunge client receipts "
        "NUMBER -o FILE writes one). Or file the order again: the bundle of that one says what "
        "every client holds now"
    )


def _identified(record: OrderRecord) -> dict[str, str]:
    return {"order": record.id, "reference": record.reference}


def _checked_reference(value: object) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST_REFERENCE:
        raise RefusedError(
            "malformed",
            f"the reference of an order must be a text of at most {_LONGEST_REFERENCE} characters",
        )
    return value


def _is_subject(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _LONGEST_SUBJECT


def drop_unreadable(folder: ServerFolder) -> None:
    """On a restored server: drop subjects whose keys were destroyed after the backup was made."""
    for order in unreadable_orders(folder):
        folder.storage.orders.put(replace(order, slot=None, sealed=None))


def unreadable_orders(folder: ServerFolder) -> list[OrderRecord]:
    """The orders whose subjects are not closed, and cannot be read."""
    unreadable = []
    for order in folder.storage.orders.all():
        if order.slot is not None and order.sealed is not None:
            try:
                folder.vault.unseal(order.slot, order.sealed, _context(order.id))
            except StoreError:
                unreadable.append(order)
    return unreadable


def _context(order: str) -> bytes:
    return b"order:" + order.encode()
