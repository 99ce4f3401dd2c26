"""Pending changes that wait for more samples, so that no sum is of few (`Spec.fewest_samples`).

The exact sum of few samples shows them: lattice reduction solves it. So a client's change goes out
when it is of enough samples, added and deleted ones counted, or when a deletion in it is due. Laws:
the backlog is a function of the store, the spec and the time given; what is due waits no longer,
and everything pending goes out with it; nothing waits in a client that leaves, nor where the spec
has no such rule.

A deletion is due when a quarter of its order's time has passed, so that three quarters are left to
carry it out; one that a person asks for without an order has as long as the usual order. Additions
are never due, unless the client decides so (`expedite`).

Under secure aggregation, nobody may see by the time of a change whether a client holds anything of
an order's subject. So samples that wait for an order count only when the order is due. On a
schedule, what is due before the next window goes out in this one: `now` is when that begins.
"""

from __future__ import annotations

from dataclasses import dataclass

from expunge.storage.sqlite import Database
from expunge.wire.payloads import ORDER_DAYS

_SHARE = 4  # a deletion may wait for others as long as this part of its order's time, one in four
_DAY = 86400
_CHANGING = "state IN ('adding', 'deleting')"
_PENDING = f"sequence IS NULL AND {_CHANGING}"
_EXPEDITE = f"UPDATE samples SET due = min(?1, coalesce(due, ?1)) WHERE {_CHANGING}"  # noqa: S608 - our own words
_CAP = (
    f"UPDATE samples SET due = ?1 WHERE due > ?1 AND {_CHANGING} AND slot NOT IN "  # noqa: S608 - the same
    "(SELECT slot FROM order_samples JOIN orders ON order_id = id WHERE answered = 0)"
)
_BEFORE_ORDER = (
    "slot IN (SELECT slot FROM order_samples JOIN orders ON order_id = id "
    "WHERE answered = 0 AND orders.due > ?)"
)


@dataclass(frozen=True)
class Backlog:
    """What is pending in a client and waits for more samples.

    Attributes
    ----------
    samples : int
        How many samples are counted, added and deleted ones.
    fewest : int
        From how many on a change goes out: the spec's `fewest_samples`.
    due : int or None
        When everything pending goes out at the latest, with the first sync from then on, in seconds
        since 1970; None if it waits until there are enough.
    uncounted : int
        How many samples are not counted before an erasure order is due; only under secure
        aggregation.

    Examples
    --------
    >>> import tempfile
    >>> from expunge import Spec
    >>> from expunge.federation import Federation
    >>> folder = tempfile.TemporaryDirectory()
    >>> spec = Spec(dim=2, labels=("cat", "dog"), messages=("gram",), fewest_samples=3)
    >>> federation = Federation.found(f"{folder.name}/federation", spec)
    >>> client = federation.client("north")
    >>> client.add(["a", "b"], [[1.0, 0.5], [0.0, 1.0]], ["cat", "dog"])
    []
    >>> client.store.backlog(now=0.0)
    Backlog(samples=2, fewest=3, due=None, uncounted=0)
    >>> receipts = client.add(["c"], [[0.5, 0.5]], ["dog"])
    >>> receipts[0].logged.entry["added"]
    3
    >>> federation.close()
    >>> folder.cleanup()
    """

    samples: int
    fewest: int
    due: int | None
    uncounted: int = 0


def due_time(filed: int, deadline: int) -> int:
    """When a deletion of an order that was filed then, and has this deadline, waits no longer."""
    return filed + max(0, deadline - filed) // _SHARE


def usual_due_time(now: float) -> int:
    """The same for a deletion that is asked for now, without an order."""
    return due_time(int(now), int(now) + ORDER_DAYS * _DAY)


def read_backlog(database: Database, *, fewest: int, now: float, masked: bool) -> Backlog | None:
    """What is pending, if it waits; None if it goes out now, or nothing is pending."""
    ((pending, due),) = database.rows(f"SELECT count(*), min(due) FROM samples WHERE {_PENDING}")  # noqa: S608 - our own words
    if not pending or (due is not None and due <= now):
        return None
    query = f"SELECT count(*) FROM samples WHERE {_PENDING} AND {_BEFORE_ORDER}"  # noqa: S608 - the same
    uncounted = database.value(query, (now,)) if masked else 0
    if pending - uncounted >= fewest:
        return None
    return Backlog(pending - uncounted, fewest, due, uncounted)


def cap(changes: Database, now: float) -> None:
    """Let no deletion without an order wait for longer than one that is asked for now: its time may
    have been noted by a clock that was ahead; within a transaction of the caller.
    """
    changes.run(_CAP, (usual_due_time(now),))


def expedite(changes: Database, now: float) -> None:
    """Let everything pending wait no longer, also if a request that it is in is put back; within a
    transaction of the caller.
    """
    changes.run(
        _EXPEDITE,
        (int(now),),
    )
