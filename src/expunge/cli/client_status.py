"""`expunge client status` and `receipts`: a client's state. Nothing is computed for it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import RenderableType

from expunge.cli import _command
from expunge.cli._command import command
from expunge.cli._connect import read_store, sync_command
from expunge.cli._format import backlog_facts, backlog_value, receipt_value, show_way_out
from expunge.cli._identifiers import Identifier, resolve
from expunge.cli._options import PATH, client_option
from expunge.cli._output import (
    Screen,
    Style,
    count,
    facts,
    line,
    next_steps,
    table,
    title,
    typed,
    unwrapped,
)
from expunge.client.backlog import Backlog
from expunge.client.overview import ClientOverview, Status
from expunge.client.settings import read_pins
from expunge.crypto import Envelope
from expunge.evidence import Receipt
from expunge.evidence.rotation import chain_for
from expunge.evidence.wording import sum_of
from expunge.ridge.spec import Spec
from expunge.storage.files import make_folder, write_whole


@command()
@client_option
def status(folder: Path) -> None:
    """Show status: samples, pending changes, last receipt, head.

    Read-only snapshot; safe while another process writes. It then shows the last complete change
    and says so. This also holds for expunge client list, export and receipts, expunge head and
    expunge predict. Contacts no server.

    Example:
      expunge client status --dir hospital-a

    Next:
      expunge client sync --dir hospital-a
    """
    (overview, address, spec, round_, backlog), busy = read_store(ClientOverview, folder, _overview)
    pending = [
        *([f"{overview.adding:,} to be added"] if overview.adding else []),
        *([f"{overview.deleting:,} to be deleted"] if overview.deleting else []),
        *([f"{count(overview.orders, 'erasure order')} to be answered"] if overview.orders else []),
        *(
            [f"request {overview.composed} has no receipt yet"]
            if overview.composed is not None
            else []
        ),
    ]
    state = (
        "has left the federation"
        if overview.left
        else "is leaving the federation"
        if overview.leaving
        else "is active"
    )
    state = "was forgotten by the operator" if overview.gone else state
    Screen.current().result(
        asdict(overview)
        | {
            "labels": dict(overview.labels),
            "address": address,
            "spec": spec.digest,
            "aggregation": round_,
            "backlog": backlog_value(backlog),
            "busy": busy,
        },
        title(f"Client {overview.name} {state}"),
        facts(
            [
                ("Samples", f"{overview.live:,}"),
                ("Pending", ", ".join(pending) or "nothing"),
                *backlog_facts(backlog),
                (
                    "Last receipt",
                    f"request {overview.sequence}" if overview.sequence else "none yet",
                ),
                (
                    "Head",
                    unwrapped(
                        f"{overview.head[:16]}…"
                        if overview.head
                        else f"none yet: {sync_command(folder, address)}"
                    ),
                ),
                ("Log read up to", f"entry {overview.checkpoint}"),
                ("Messages", overview.message),
                *([] if round_ is None else [("Secure aggregation", _round_in_words(round_))]),
                (
                    "Keeps features",
                    "yes" if overview.mode == "cached" else "no: recomputes them when needed",
                ),
                ("Server", unwrapped(address or "not remembered: give --at URL")),
                ("Federation", overview.federation),
            ]
        ),
        *([line(), *show_forgotten(overview, folder)] if overview.gone else []),
        *(
            [line(), unwrapped(f"{_REFUSED[spec.is_masked]}: {overview.refusal}", Style.BAD)]
            if overview.refusal
            else []
        ),
        *(
            [line(), table(("Label", "Samples"), overview.labels.items(), right=("Samples",))]
            if overview.labels
            else []
        ),
        *show_way_out(backlog, sync_command(folder, address)),
    )


_REFUSED = ("The server refused the last request", "The last request did not take effect")


def _overview(
    store: ClientOverview,
) -> tuple[Status, str, Spec, dict[str, Any] | None, Backlog | None]:
    """A client's state, its server's address and the spec; with secure aggregation also whether a
    round is in progress, and its pins; and what waits for more samples.
    """
    rounds = None
    if store.spec.is_masked:
        rounds = {
            "in_round": store.participation.read() is not None,
            "pins": len(read_pins(store.recall("pins"))),
        }
    return store.status(), store.address, store.spec, rounds, store.backlog(now=time.time())


def _round_in_words(rounds: dict[str, Any]) -> str:
    pins = (
        f"{count(rounds['pins'], 'key')} pinned"
        if rounds["pins"]
        else "keys from the log (see expunge client peers)"
    )
    under_way = "a round is under way: sync continues it"
    return f"{under_way if rounds['in_round'] else 'no round is under way'}; {pins}"


def show_forgotten(overview: Status, folder: Path) -> list[RenderableType]:
    """What is left of a client that its server knows no longer, and how it is erased."""
    here = overview.live + overview.adding
    parts: list[RenderableType] = [
        line(
            f"{overview.name} was forgotten by the operator: the server no longer knows it.",
            Style.BAD,
        ),
        line(f"{count(here, 'sample')} still in this folder."),
    ]
    if here:
        parts.append(
            next_steps(
                f"expunge client leave --dir {typed(folder)}",
                why="To erase them, without a server:",
            )
        )
    return parts


@command()
@click.argument("number", required=False)
@client_option
@click.option(
    "-o",
    "--output",
    type=PATH,
    help="Write one receipt to this file, or all, with the server's rotations, into this folder.",
)
def receipts(number: str | None, folder: Path, output: Path | None) -> None:
    """List this client's receipts, or write them to files.

    A receipt states what was requested, what changed, its place in the audit log, and by when the
    request is erased at rest. It names no sample and no person. NUMBER is the number of a receipt,
    or last. Each receipt is verified with the server's key. Contacts no server.

    Example:
      expunge client receipts --dir hospital-a
      expunge client receipts last -o receipt.json --dir hospital-a

    Next:
      expunge verify receipt.json --trust hospital-a
    """
    screen = Screen.current()
    (verified, documents, rotations, fewest), _ = read_store(
        ClientOverview,
        folder,
        lambda store: (
            _receipts(store, number),
            store.documents("receipt"),
            store.chains()[0].in_order,
            store.spec.fewest_samples,
        ),
    )
    data = {sequence: documents[sequence] for sequence in verified}
    if not verified:
        screen.result({"receipts": []}, line("No receipts yet."))
        raise click.exceptions.Exit(_command.NOTHING)
    written = [] if output is None else _write(output, data, rotations, alone=number is not None)
    values = [receipt_value(receipt) for receipt in verified.values()]
    screen.result(
        {
            "receipts": values,
            "fewest_samples": fewest,
            "files": [str(path) for path in written],
        },
        *_listed(list(verified.values()), fewest),
        *(
            [next_steps(f"expunge verify {typed(written[-1])} --trust {typed(folder)}")]
            if written
            else []
        ),
    )


def _listed(verified: list[Receipt], fewest: int) -> list[RenderableType]:
    """Receipts in a table; where some are of rounds, with the number of clients in each, and whose
    samples are counted; and which of them went out with few samples.
    """
    rounds = any(receipt.is_of_round for receipt in verified)
    rows = []
    for receipt in verified:
        entry = receipt.logged.entry
        clients = (
            [len(entry["clients"]) if receipt.is_of_round else "only this one"] if rounds else []
        )
        time = entry["time"][:19].replace("T", " ")
        rows.append(
            (
                receipt.sequence,
                time,
                *clients,
                entry["added"],
                "all before" if entry.get("reset") else entry["deleted"],
                receipt.logged.index,
            )
        )
    columns = (
        "Receipt",
        "Time (UTC)",
        *(["Clients"] if rounds else []),
        "Added",
        "Deleted",
        "Log entry",
    )
    parts = [table(columns, rows, right=("Receipt", "Clients", "Added", "Deleted", "Log entry"))]
    note = (
        "Samples are counted for all clients of a round together: a receipt does not show this "
        "client's own."
    )
    few = [
        line(f"Receipt {receipt.sequence} went out in a sum of {sum_of(number, fewest)}.", indent=2)
        for receipt in verified
        if (number := receipt.samples_in_sum) is not None and number < fewest
    ]
    return [*parts, *([line(note, Style.QUIET, indent=2)] if rounds else []), *few]


def _receipts(store: ClientOverview, given: str | None) -> dict[int, Receipt]:
    chains, documents = store.chains(), store.documents("receipt")
    if given is not None:
        identifiers = [Identifier(str(number)) for number in documents]
        number = int(resolve(given, identifiers, "receipt", abbreviated=False))
        documents = {number: documents[number]}
    verified = {}
    for sequence, data in documents.items():
        envelope = Envelope.from_bytes(data, "receipt")
        verified[sequence] = Receipt.read(envelope, chain_for(envelope, chains))
    return verified


def _write(
    output: Path, data: dict[int, bytes], rotations: Sequence[Envelope], *, alone: bool
) -> list[Path]:
    """A single receipt, or all with the rotations of the key that they are signed with."""
    if alone:
        (content,) = data.values()
        write_whole(output, content)
        return [output]
    make_folder(output)
    paths = [output / f"receipt-{sequence}.json" for sequence in data]
    for path, content in zip(paths, data.values(), strict=True):
        write_whole(path, content)
    for number, envelope in enumerate(rotations, start=1):
        write_whole(output / f"rotation-{number}.json", envelope.to_bytes() + b"\n")
    return paths
