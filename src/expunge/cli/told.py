"""What a sync has done, and what forgetting would do, in words and as JSON."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType

from expunge.cli.screen import GOOD, count, facts, line, table
from expunge.client import Preview, Synced
from expunge.evidence import Receipt
from expunge.evidence.wording import moment

_SHOWN = 12  # ids of samples


def synced_value(done: Synced) -> dict[str, Any]:
    """What a sync has done, as JSON."""
    return {
        "status": done.status,
        "receipts": [receipt_value(one) for one in done.receipts],
        "orders": [{"order": order, "found": found.count} for order, found in done.orders],
        "audits": list(done.audits),
        "amended": done.amended,
        "rejoined": done.rejoined,
        "head": done.head,
        "new_head": done.new_head,
    }


def receipt_value(receipt: Receipt) -> dict[str, Any]:
    """A receipt, as JSON."""
    entry = receipt.logged.entry
    names = ("added", "deleted", "round", "time", "erased_by", "orders", "audits", "leave", "reset")
    return {"sequence": receipt.sequence, "index": receipt.logged.index, **{name: entry[name] for name in names}}


def show_synced(done: Synced) -> list[RenderableType]:
    """What a sync has done, for people."""
    if done.status == "gone":
        return [line("This client has left the federation, or was forgotten: the server knows it no longer.")]
    rows: list[tuple[str, object]] = []
    for receipt in done.receipts:
        entry = receipt.logged.entry
        changes = [f"{count(entry[name], 'sample')} {name}" for name in ("added", "deleted") if entry[name]]
        changes += [f"{count(len(entry['orders']), 'erasure order')} answered"] if entry["orders"] else []
        rows.append(
            (f"Receipt {receipt.sequence}", f"{', '.join(changes) or 'nothing changed'}; log entry {receipt.logged.index}")
        )
        rows.append(("Erased at rest by", moment(entry["erased_by"])))
    rows += [
        (f"Order {order[:8]}", f"carried out: {count(found.count, 'sample')} found and deleted") for order, found in done.orders
    ]
    rows += [(f"Audit {audit[:8]}", "answered from this client's own samples") for audit in done.audits]
    rows += [("Rejoined", "everything that this client holds was sent to the restored server")] if done.rejoined else []
    rows += [("Spec", "amended; this client has taken it on")] if done.amended else []
    rows.append(("Head", (f"{done.head[:16]}…{' (new)' if done.new_head else ''}" if done.head else "none can be published")))
    return [line("In step with the server.", GOOD), facts(rows)]


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
    """What forgetting does, for people: what would go, by label and by subject, with the first few ids."""
    more = preview.count - _SHOWN
    ids = ", ".join(preview.ids[:_SHOWN]) + (f" and {more:,} more" if more > 0 else "")
    rows: list[tuple[str, object]] = [("Samples", f"{preview.count:,}"), ("Ids", ids)]
    if preview.unsent:
        rows.append(("Never sent", f"{preview.unsent:,}, gone at once"))
    if preview.pending:
        rows.append(("Being deleted already", f"{len(preview.pending):,}"))
    parts: list[RenderableType] = [facts(rows)]
    for name, counts in (("Label", preview.labels), ("Subject", preview.subjects)):
        if counts:
            largest = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:_SHOWN]
            parts += [line(), table((name, "Samples"), largest, right=("Samples",))]
    return parts
