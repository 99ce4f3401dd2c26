"""What a sync has done, and what forgetting would do, in words and as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType

from expunge.cli._output import GOOD, WAITS, count, facts, line, next_steps, table, typed
from expunge.evidence import Receipt
from expunge.evidence.wording import moment

if TYPE_CHECKING:
    from expunge.client import Preview, Status, SyncResult

_SHOWN = 12  # ids of samples


def synced_value(done: SyncResult) -> dict[str, Any]:
    """What a sync has done, as JSON."""
    return {
        "status": done.status,
        "receipts": [receipt_value(receipt) for receipt in done.receipts],
        "orders": [{"order": order, "found": preview.count} for order, preview in done.orders],
        "audits": list(done.audits),
        "amended": done.amended,
        "rejoined": done.rejoined,
        "head": done.head,
        "new_head": done.new_head,
        "waiting": done.waiting,
    }


def receipt_value(receipt: Receipt) -> dict[str, Any]:
    """A receipt, as JSON.

    That of a round of secure aggregation says nothing of this client's own numbers, which are null;
    `aggregation` has those of all its clients together.
    """
    entry = receipt.logged.entry
    value = {"sequence": receipt.sequence, "index": receipt.logged.index}
    value |= {name: entry[name] for name in ("round", "time", "erased_by")}
    if not receipt.is_of_round:
        names = ("added", "deleted", "orders", "audits", "leave", "reset")
        return value | {name: entry[name] for name in names} | {"aggregation": None}
    own: dict[str, Any] = {
        "added": None,
        "deleted": None,
        "orders": [],
        "audits": [],
        "leave": False,
        "reset": None,
    }
    together = {
        "id": entry["aggregation"],
        "clients": [client["client"] for client in entry["clients"]],
    }
    return (
        value
        | own
        | {"aggregation": together | {name: entry[name] for name in ("added", "deleted")}}
    )


def receipt_in_words(receipt: Receipt) -> str:
    """What a receipt says has changed."""
    entry = receipt.logged.entry
    changes = [
        f"{count(entry[name], 'sample')} {name}" for name in ("added", "deleted") if entry[name]
    ]
    if receipt.is_of_round:
        others = count(len(entry["clients"]) - 1, "other client")
        return f"in a round with {others}; in total {' and '.join(changes) or 'nothing changed'}"
    changes += (
        [f"{count(len(entry['orders']), 'erasure order')} answered"] if entry["orders"] else []
    )
    changes += ["left the federation"] if entry["leave"] else []
    return ", ".join(changes) or "nothing changed"


def show_synced(done: SyncResult, status: Status) -> list[RenderableType]:
    """What a sync has done, for people; and what is pending, if a round of secure aggregation waits
    for others.
    """
    if done.status == "gone":
        return [
            line(
                "This client has left the federation or was forgotten: the server no longer "
                "knows it."
            )
        ]
    rows: list[tuple[str, object]] = []
    for receipt in done.receipts:
        rows.append(
            (
                f"Receipt {receipt.sequence}",
                f"{receipt_in_words(receipt)}; log entry {receipt.logged.index}",
            )
        )
        rows.append(("Erased at rest by", moment(receipt.logged.entry["erased_by"])))
    deleted = "to be deleted in a round" if done.waiting and status.deleting else "deleted"
    rows += [
        (f"Order {order[:8]}", f"carried out: {count(preview.count, 'sample')} found and {deleted}")
        for order, preview in done.orders
    ]
    rows += [
        (f"Audit {audit[:8]}", "answered from this client's own samples") for audit in done.audits
    ]
    rows += (
        [("Rejoined", "this client has sent everything it holds to the restored server")]
        if done.rejoined
        else []
    )
    rows += [("Spec", "amended; this client now uses it")] if done.amended else []
    rows.append(
        (
            "Head",
            (
                f"{done.head[:16]}…{' (new)' if done.new_head else ''}"
                if done.head
                else "none can be published"
            ),
        )
    )
    if not done.waiting:
        return [line("Up to date with the server.", GOOD), facts(rows)]
    rows += [("Pending", _pending(status)), ("Because", done.waiting)]
    return [line("Not complete yet: other clients must take part.", WAITS), facts(rows)]


def _pending(status: Status) -> str:
    parts = [
        *([f"{status.adding:,} to be added"] if status.adding else []),
        *([f"{status.deleting:,} to be deleted"] if status.deleting else []),
        *([f"{count(status.orders, 'erasure order')} to be answered"] if status.orders else []),
    ]
    return ", ".join(parts) or "a round of all clients, in which this one changes nothing"


def show_way_on(done: SyncResult, sync: str, unserved: Path | None) -> list[RenderableType]:
    """How to continue pending work by this command; empty if there is none."""
    if not done.waiting:
        return []
    alone = "The server is not running, so no round can take place. Start it first:"
    return [
        *([] if unserved is None else [next_steps(f"expunge serve {typed(unserved)}", why=alone)]),
        next_steps(sync, why="Nothing is lost. The next sync continues from here:"),
    ]


def preview_value(preview: Preview) -> dict[str, Any]:
    """What forgetting does, as JSON."""
    return {
        "count": preview.count,
        "ids": list(preview.ids),
        "labels": dict(preview.labels),
        "subjects": dict(preview.subjects),
        "unsent": preview.unsent,
        "pending": list(preview.pending),
    }


def show_preview(preview: Preview) -> list[RenderableType]:
    """What forgetting does, for people: what would go, by label and by subject, with the first few
    ids.
    """
    more = preview.count - _SHOWN
    ids = ", ".join(preview.ids[:_SHOWN]) + (f" and {more:,} more" if more > 0 else "")
    rows: list[tuple[str, object]] = [("Samples", f"{preview.count:,}"), ("Ids", ids)]
    if preview.unsent:
        rows.append(("Never sent", f"{preview.unsent:,}, deleted at once"))
    if preview.pending:
        rows.append(("Deletion pending", f"{len(preview.pending):,}"))
    parts: list[RenderableType] = [facts(rows)]
    for name, counts in (("Label", preview.labels), ("Subject", preview.subjects)):
        if counts:
            largest = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:_SHOWN]
            parts += [line(), table((name, "Samples"), largest, right=("Samples",))]
    return parts
