"""What a sync has done, and what forgetting would do, in words and as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import RenderableType

from expunge.cli import _command
from expunge.cli._output import Style, count, facts, line, next_steps, table, typed
from expunge.evidence import Receipt
from expunge.evidence.wording import moment
from expunge.wire.schema import time_text

if TYPE_CHECKING:
    from expunge.client import Backlog, Preview, Rarity, Status, SyncResult

_SHOWN = 12  # ids of samples
_SHOWN_LABELS = 5
_BARRED = (
    "This client is barred: by the arbiter's verdict it sent something false, and it takes part in "
    "no round. What is pending stays here. Ask the operator, who can forget this client; then "
    "enrol a new one."
)


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
        "backlog": backlog_value(done.backlog),
    }


def backlog_value(backlog: Backlog | None) -> dict[str, Any] | None:
    """What waits for more samples, as JSON."""
    if backlog is None:
        return None
    return {
        "samples": backlog.samples,
        "fewest": backlog.fewest,
        "due": None if backlog.due is None else time_text(backlog.due),
        "uncounted": backlog.uncounted,
    }


def backlog_facts(backlog: Backlog | None) -> list[tuple[str, object]]:
    """What waits for more samples, why, and until when, for `facts`; empty if nothing does."""
    if backlog is None:
        return []
    apart = (
        f" ({count(backlog.uncounted, 'sample')} of erasure orders counted only when these are due)"
        if backlog.uncounted
        else ""
    )
    until = (
        f"when {backlog.fewest:,} are pending"
        if backlog.due is None
        else f"when {backlog.fewest:,} are pending, or with the first sync after "
        f"{moment(time_text(backlog.due))}"
    )
    return [
        (
            "Waits for more",
            (
                f"{backlog.samples:,} of {count(backlog.fewest, 'sample')} pending{apart}: the sum "
                "of fewer can reveal them to the server"
            ),
        ),
        ("Goes out", until),
    ]


def rarity_in_words(rarity: Rarity) -> str:
    """What few of the pending samples have, in a sentence."""
    labels = [f"{label} ({number:,})" for label, number in rarity.labels.items()]
    more = len(labels) - _SHOWN_LABELS
    shown = ", ".join(labels[:_SHOWN_LABELS]) + (f" and {more:,} more" if more > 0 else "")
    parts = [
        *([count(rarity.columns, "feature column")] if rarity.columns else []),
        *([f"{'label' if len(labels) == 1 else 'labels'} {shown}"] if labels else []),
    ]
    return (
        f"Few of the {count(rarity.samples, 'pending sample')} have {' and '.join(parts)}: the sum "
        "shows the server those samples, however many are sent together"
    )


def receipt_value(receipt: Receipt) -> dict[str, Any]:
    """A receipt, as JSON.

    That of a round of secure aggregation says nothing of this client's own numbers, which are null;
    `aggregation` has those of all its clients together. `samples_in_sum` is of how many samples the
    sum was that the server saw; null if it saw none.
    """
    entry = receipt.logged.entry
    value: dict[str, Any] = {"sequence": receipt.sequence, "index": receipt.logged.index}
    value |= {name: entry[name] for name in ("round", "time", "erased_by")}
    value["samples_in_sum"] = receipt.samples_in_sum
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
    changes += ["in place of all that the server held of this client"] if entry["reset"] else []
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
    waits = (done.waiting or done.backlog) and status.deleting
    deleted = "to be deleted" + (" in a round" if done.waiting else "") if waits else "deleted"
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
    if done.status == "barred":
        rows.append(("Pending", ", ".join(_changes(status)) or "nothing"))
        return [line(_BARRED, Style.BAD), facts(rows)]
    if not done.waiting and done.backlog is None:
        later = "to be answered after a round, when a quarter of the time has passed, as by all"
        rows += [("Orders", f"{status.orders:,} {later}")] if status.orders else []
        return [line("Up to date with the server.", Style.GOOD), facts(rows)]
    rows.append(("Pending", _pending(status)))
    rows += [("Because", done.waiting)] if done.waiting else []
    rows += backlog_facts(done.backlog)
    cause = "other clients must take part" if done.waiting else "the change is of too few samples"
    return [line(f"Not complete yet: {cause}.", Style.WAITS), facts(rows)]


def _changes(status: Status) -> list[str]:
    return [
        *([f"{status.adding:,} to be added"] if status.adding else []),
        *([f"{status.deleting:,} to be deleted"] if status.deleting else []),
        *([f"{count(status.orders, 'erasure order')} to be answered"] if status.orders else []),
    ]


def _pending(status: Status) -> str:
    # An audit or a rebuild has no request: it changes nothing.
    whose = "all clients" if status.composed is None else "changes"
    return ", ".join(_changes(status)) or f"a round of {whose}, in which this one changes nothing"


def show_way_on(done: SyncResult, sync: str, unserved: Path | None) -> list[RenderableType]:
    """How to continue pending work by this command; empty if there is none, or it cannot."""
    if done.status == "barred":
        return []
    if not done.waiting:
        return show_way_out(done.backlog, sync)
    alone = "The server is not running, so no round can take place. Start it first:"
    return [
        *([] if unserved is None else [next_steps(f"expunge serve {typed(unserved)}", why=alone)]),
        next_steps(sync, why="Nothing is lost. The next sync continues from here:"),
    ]


def require_complete(done: SyncResult) -> None:
    """Exit with the code of what is left to do, or cannot be done; with none if nothing is."""
    if done.status == "barred":
        raise click.exceptions.Exit(_command.FAILED)
    if done.waiting or done.backlog:
        raise click.exceptions.Exit(_command.NOT_YET)


def show_way_out(backlog: Backlog | None, sync: str) -> list[RenderableType]:
    """How to send what waits for more samples by this command; empty if nothing does."""
    if backlog is None:
        return []
    return [next_steps(f"{sync} --now", why="To send them now, although they are so few:")]


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
