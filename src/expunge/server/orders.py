"""Erasure orders: filed by a privacy officer, answered by every client, complete when all have.

Who the subject is stays sealed under a key of its own: each client learns the name it knows the
subject by, the log a salted digest; closing an order destroys the key. A case reference, which is
not personal, stays; neither clients nor the log learn it.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from expunge.crypto import canonical
from expunge.errors import RefusedError, StoreError
from expunge.evidence import subject_digest
from expunge.server.state import SALT_BYTES, ServerState
from expunge.server.storage import ServerFolder
from expunge.wire.request import OrderAnswer
from expunge.wire.schema import time_text

DAYS = 30
_DAY = 86400
_LONGEST_SUBJECT = 1000
_LONGEST_REFERENCE = 200
_MOST_DAYS = 3650
_STATES = ("open", "overdue", "complete", "closed", "lost")


class Orders:
    """The orders of one federation."""

    def __init__(self, core: ServerState) -> None:
        self._core = core
        self._database = core.database

    # -- filing and closing ------------------------------------------------------------------------

    def file(self, connection: sqlite3.Connection, now: int, given: Mapping[str, Any]) -> str:
        """File an order by the arguments of the command, within a transaction; returns its id."""
        name, names, within = self._checked(
            given.get("subject"), given.get("subjects", {}), given.get("days", DAYS)
        )
        reference = _checked_reference(given.get("reference", ""))
        order, salt = secrets.token_hex(16), secrets.token_bytes(SALT_BYTES)
        clients = self._core.clients("active", "must-rejoin")
        deadline = now + within * _DAY
        content = canonical.encode({"salt": salt.hex(), "subject": name, "subjects": names})
        (slot,) = self._core.vault.new()
        connection.execute(
            "INSERT INTO orders (id, filed, deadline, slot, sealed, reference) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            (
                order,
                now,
                deadline,
                slot,
                self._core.vault.seal(slot, content, _context(order)),
                reference,
            ),
        )
        connection.executemany(
            "INSERT INTO order_clients (order_id, client) VALUES (?, ?)",
            [(order, client) for client in clients],
        )
        self._log(
            connection,
            order,
            "ordered",
            now,
            subject=subject_digest(salt, name, names),
            deadline=time_text(deadline),
            clients=clients,
        )
        self._complete(connection, order, now)
        return order

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
        known = set(self._core.clients("active", "must-rejoin", "gone"))
        strangers = sorted(set(subjects) - known)
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

    def close(self, connection: sqlite3.Connection, order: str, now: int) -> None:
        """Forget who the subject was; the order must be complete. Export its bundle first."""
        row = self._row(order)
        if row[2] is None and row[4] is not None:
            raise RefusedError(
                "not-allowed", f"order {order} is not complete: it cannot be closed yet"
            )
        connection.execute(
            "UPDATE orders SET closed = ?, slot = NULL, sealed = NULL WHERE id = ?", (now, order)
        )

    # -- answers -----------------------------------------------------------------------------------

    def waiting(self, client: str) -> list[dict[str, Any]]:
        """What a client has yet to answer, with the name it knows the subject by."""
        rows = self._database.rows(
            "SELECT id, deadline FROM orders JOIN order_clients ON order_id = id"
            " WHERE client = ? AND found IS NULL AND slot IS NOT NULL ORDER BY filed, id",
            (client,),
        )
        found = []
        for order, deadline in rows:
            content = self.content(order)
            subject = content["subjects"].get(client, content["subject"])
            found.append({"deadline": time_text(deadline), "order": order, "subject": subject})
        return found

    def require_waiting(
        self, client: str, answers: Sequence[OrderAnswer], answered: Collection[str] = ()
    ) -> None:
        """Refuse answers to orders that wait for none from this client, and two answers to one;
        `answered` are just being.
        """
        for answer in answers:
            row = self._database.row(
                "SELECT found FROM order_clients WHERE order_id = ? AND client = ?",
                (answer.order, client),
            )
            if row is None or row[0] is not None or answer.order in answered:
                state = (
                    "has been answered"
                    if row is not None
                    else "is not known, or not for this client"
                )
                raise RefusedError("unknown-order", f"order {answer.order} {state}")
        if len({answer.order for answer in answers}) < len(answers):
            raise RefusedError("unknown-order", "an order is answered twice in one request")

    def answer(
        self,
        connection: sqlite3.Connection,
        client: str,
        answers: Sequence[OrderAnswer],
        sequence: int,
        now: int,
    ) -> None:
        """Take answers that `require_waiting` let through; `sequence` is the number of the request
        that they came with.
        """
        for one in answers:
            connection.execute(
                "UPDATE order_clients SET found = ?, sequence = ?, time = ? WHERE order_id = ? "
                "AND client = ?",
                (one.found, sequence, now, one.order, client),
            )
            self._log(
                connection,
                one.order,
                "answered",
                now,
                client=client,
                found=one.found,
                sequence=sequence,
            )
            self._complete(connection, one.order, now)

    def client_is_gone(
        self, connection: sqlite3.Connection, client: str, sequence: int, now: int
    ) -> None:
        """Nothing of the client remains: whatever it had yet to answer is answered by that."""
        rows = self._database.rows(
            "SELECT order_id FROM order_clients WHERE client = ? AND found IS NULL", (client,)
        )
        self.answer(connection, client, [OrderAnswer(order, 0) for (order,) in rows], sequence, now)

    def _complete(self, connection: sqlite3.Connection, order: str, now: int) -> None:
        query = "SELECT count(*) FROM order_clients WHERE order_id = ? AND found IS NULL"
        if not self._database.value(query, (order,)):
            connection.execute("UPDATE orders SET completed = ? WHERE id = ?", (now, order))
            self._log(connection, order, "completed", now)

    def _log(
        self, connection: sqlite3.Connection, order: str, kind: str, now: int, **content: Any
    ) -> None:
        index = self._core.append(connection, kind, now, order=order, **content)
        connection.execute(
            "INSERT INTO order_entries (order_id, position) VALUES (?, ?)", (order, index)
        )

    # -- looking -----------------------------------------------------------------------------------

    def content(self, order: str) -> dict[str, Any]:
        """Subject, its names at clients, and the salt; refused once the order is closed."""
        row = self._database.row("SELECT slot, sealed FROM orders WHERE id = ?", (order,))
        if row is None:
            raise RefusedError("unknown-order", f"there is no order {order!r:.80}")
        if row[0] is None:
            raise RefusedError(
                "gone", f"order {order} is closed: who it was about has been forgotten"
            )
        content: dict[str, Any] = canonical.decode(
            self._core.vault.unseal(row[0], row[1], _context(order))
        )
        return content

    def _row(self, order: str) -> tuple[Any, ...]:
        query = (
            "SELECT filed, deadline, completed, closed, slot, reference FROM orders WHERE id = ?"
        )
        row = self._database.row(query, (order,))
        if row is None:
            raise RefusedError("unknown-order", f"there is no order {order!r:.80}")
        return row

    def show(self, order: str, now: int) -> dict[str, Any]:
        """An order without its subject: reference, state, deadline, and who has answered what."""
        filed, deadline, completed, closed, slot, reference = self._row(order)
        rows = self._database.rows(
            "SELECT client, found, sequence, time FROM order_clients WHERE order_id = ? "
            "ORDER BY client",
            (order,),
        )
        state = (
            "closed"
            if closed
            else "complete"
            if completed
            else "overdue"
            if now > deadline
            else "open"
        )
        if slot is None and state in ("open", "overdue"):
            state = (
                "lost"  # a restored server no longer knows who the subject is: file the order again
            )
        return {
            "order": order,
            "reference": reference,
            "state": state,
            "filed": time_text(filed),
            "deadline": time_text(deadline),
            "completed": "" if completed is None else time_text(completed),
            "answers": [
                {
                    "client": client,
                    "found": found,
                    "sequence": sequence or 0,
                    "time": time_text(time),
                }
                for client, found, sequence, time in rows
                if found is not None
            ],
            "waiting": [client for client, found, _, _ in rows if found is None],
        }

    def counts(self, now: int) -> dict[str, int]:
        """How many orders there are of each state."""
        row = self._database.rows(
            "SELECT sum(completed IS NULL AND slot IS NOT NULL "
            "AND deadline >= ?), sum(completed IS NULL AND slot IS NOT NULL "
            "AND deadline < ?), sum(completed IS NOT NULL "
            "AND closed IS NULL), sum(closed IS NOT NULL), sum(completed IS NULL AND slot IS NULL "
            "AND closed IS NULL) FROM orders",
            (now, now),
        )[0]
        return {state: int(number or 0) for state, number in zip(_STATES, row, strict=True)}

    def listed(self, now: int) -> list[dict[str, Any]]:
        """Every order, the oldest first; the log tells apart those of one second."""
        rows = self._database.rows(
            "SELECT id FROM orders ORDER BY filed, (SELECT min(position) FROM order_entries "
            "WHERE order_id = id), id"
        )
        return [self.show(order, now) for (order,) in rows]

    def entries(self, order: str) -> list[int]:
        """Where the log speaks of an order."""
        query = "SELECT position FROM order_entries WHERE order_id = ? ORDER BY position"
        return [row[0] for row in self._database.rows(query, (order,))]


def _checked_reference(value: object) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST_REFERENCE:
        raise RefusedError(
            "malformed",
            f"the reference of an order must be a text of at most {_LONGEST_REFERENCE} characters",
        )
    return value


def _is_subject(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _LONGEST_SUBJECT


def drop_unreadable(folder: ServerFolder, connection: sqlite3.Connection) -> None:
    """Of a restored server: let go of subjects whose keys have been destroyed since the backup was
    made.
    """
    for order, slot, sealed in folder.database.rows(
        "SELECT id, slot, sealed FROM orders WHERE slot IS NOT NULL"
    ):
        try:
            folder.vault.unseal(slot, sealed, _context(order))
        except StoreError:
            connection.execute(
                "UPDATE orders SET slot = NULL, sealed = NULL WHERE id = ?", (order,)
            )


def _context(order: str) -> bytes:
    return b"order:" + order.encode()
