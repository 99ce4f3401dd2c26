"""The states of a sample, and the transitions between them.

`sequence` is the number of the composed request that the sample takes part in; it is empty while
none does.

    state      sequence  what it means
    adding     -         pending: never sent
    adding     N         added by request N, whose receipt is not here yet
    live       -         the server counts it
    live       N         it is sent to the server again by request N, which is a reset
    withdrawn  N         as `adding N` or `live N`, and then forgotten: request N goes out
                         unchanged, a later one will delete it
    deleting   -         pending: the server still counts it
    deleting   N         deleted by request N (or left out of it, if that is a reset), whose receipt
                         is not here yet

    forget                      settle N                    abandon N
    adding -     gone           adding N     live -         adding N     adding -
    adding N     withdrawn N    live N       live -         live N       live -
    live -       deleting -     withdrawn N  deleting -     withdrawn N  deleting - if the server
                                                                         holds it, else gone
    live N       withdrawn N    deleting N   gone           deleting N   deleting -

`freeze N` puts N where `-` is: on samples that are adding or deleting; for a reset on live ones
too. A corrected sample is two rows: the old one, deleting, and the new one, adding, which
`replaces` it; they are frozen together, to travel in one request.

A reset replaces all that the server holds. If it is too small for everything, the rest is not held
once it is settled:

    settle N, a reset           live -       adding -       deleting -   gone

When the server no longer knows the client (`release`), no number is left, all that was withdrawn or
deleting is gone, and what is forgotten from then on is gone at once (`remove`).

An order waits for every sample of its subject (`order_samples`), and each sample is counted by one
order (`order_id`): the first that is still to be answered.

`due` is the time from which a pending sample waits for others no longer (`expunge.client.backlog`).
A deletion has the earliest time at which it was ever due; a live sample has none. What is deleted
only because the client leaves is due since `BY_LEAVING`, and is live again if it stays after all.

Every function here works within a transaction of its caller and returns the vault slots of the
samples that are gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from expunge.storage.sqlite import Database

# By the server, as far as receipts say
COUNTED = "(state IN ('live', 'deleting') OR (state = 'withdrawn' AND held = 1))"
BY_LEAVING = -1
ADDED = "state IN ('adding', 'live', 'withdrawn')"  # by the request that the sample takes part in


def forget(changes: Database, slots: Iterable[int], order: str | None, due: int) -> list[int]:
    """What a person asks for, or an erasure order, due at this time; samples that are being deleted
    already only learn of the order.
    """
    wanted = [(slot,) for slot in slots]
    gone: list[int] = []
    for (slot,) in wanted:
        gone += [row[0] for row in changes.rows(_UNSENT, (slot,))]
    changes.run_many("DELETE FROM samples WHERE slot = ?", [(slot,) for slot in gone])
    changes.run_many(
        "UPDATE samples SET due = min(?, coalesce(due, ?)) WHERE slot = ? "
        "AND state IN ('deleting', 'withdrawn')",
        [(due, due, slot) for (slot,) in wanted],
    )
    changes.run_many(
        "UPDATE samples SET due = ?, "
        "state = CASE WHEN sequence IS NULL THEN 'deleting' ELSE 'withdrawn' END"
        " WHERE slot = ? AND state IN ('adding', 'live')",
        [(due, slot) for (slot,) in wanted],
    )
    if order is not None:
        changes.run_many(_COUNT_FOR, [(order, slot) for (slot,) in wanted])
        changes.run_many(_WAIT_FOR, [(order, slot) for (slot,) in wanted])
    return gone


_UNSENT = "SELECT slot FROM samples WHERE slot = ? AND state = 'adding' AND sequence IS NULL"
_COUNT_FOR = (
    "UPDATE samples SET order_id = ? WHERE slot = ?"
    " AND (order_id IS NULL OR order_id NOT IN (SELECT id FROM orders WHERE answered = 0))"
)
_WAIT_FOR = (
    "INSERT OR IGNORE INTO order_samples (order_id, slot) SELECT ?, slot FROM samples "
    "WHERE slot = ?"
)


def remove(changes: Database, slots: Iterable[int]) -> list[int]:
    """What a person asks for when the server knows the client no longer: nobody else holds these
    samples.
    """
    gone = list(slots)
    changes.run_many("DELETE FROM samples WHERE slot = ?", [(slot,) for slot in gone])
    return gone


def stay(changes: Database) -> list[int]:
    """The client does not leave after all, and nothing is on its way: what nobody else asked to
    delete is live again. Returns the slots of those samples, which are not gone.
    """
    which = (
        "state = 'deleting' AND sequence IS NULL AND due = ? AND order_id IS NULL "
        "AND slot NOT IN (SELECT slot FROM order_samples)"
    )
    rows = changes.rows(f"SELECT slot FROM samples WHERE {which}", (BY_LEAVING,))  # noqa: S608 - our own words
    changes.run(f"UPDATE samples SET state = 'live', due = NULL WHERE {which}", (BY_LEAVING,))  # noqa: S608
    return [row[0] for row in rows]


def release(changes: Database) -> list[int]:
    """The server knows the client no longer: no request is on its way, and every deletion that was
    asked for is done.
    """
    changes.run("UPDATE samples SET sequence = NULL, state = 'deleting' WHERE state = 'withdrawn'")
    changes.run("UPDATE samples SET sequence = NULL")
    return remove(
        changes,
        [row[0] for row in changes.rows("SELECT slot FROM samples WHERE state = 'deleting'")],
    )


def freeze(changes: Database, sequence: int, slots: Sequence[int]) -> None:
    """Let samples take part in a request."""
    changes.run_many(
        "UPDATE samples SET sequence = ? WHERE slot = ?", [(sequence, slot) for slot in slots]
    )


def settle(changes: Database, sequence: int, *, reset: bool = False) -> list[int]:
    """The receipt is here."""
    which = "state = 'deleting' AND (sequence = ? OR (? AND sequence IS NULL))"
    gone = [
        row[0]
        for row in changes.rows(f"SELECT slot FROM samples WHERE {which}", (sequence, reset))  # noqa: S608 - our own
    ]
    changes.run(f"DELETE FROM samples WHERE {which}", (sequence, reset))  # noqa: S608 - our own words
    if reset:
        changes.run(
            "UPDATE samples SET state = 'adding', held = 0 WHERE state = 'live' "
            "AND sequence IS NULL"
        )
    changes.run(
        "UPDATE samples SET state = 'live', sequence = NULL, held = 1, replaces = NULL, due = NULL"
        " WHERE state IN ('adding', 'live') AND sequence = ?",
        (sequence,),
    )
    changes.run(
        "UPDATE samples SET state = 'deleting', sequence = NULL, held = 1 "
        "WHERE state = 'withdrawn' AND sequence = ?",
        (sequence,),
    )
    return gone


def abandon(changes: Database, sequence: int) -> list[int]:
    """The server refused the request, and has changed nothing."""
    query = "SELECT slot FROM samples WHERE state = 'withdrawn' AND held = 0 AND sequence = ?"
    gone = [row[0] for row in changes.rows(query, (sequence,))]
    changes.run(
        "DELETE FROM samples WHERE state = 'withdrawn' AND held = 0 AND sequence = ?", (sequence,)
    )
    changes.run(
        "UPDATE samples SET state = 'deleting' WHERE state = 'withdrawn' AND sequence = ?",
        (sequence,),
    )
    changes.run("UPDATE samples SET sequence = NULL WHERE sequence = ?", (sequence,))
    return gone
