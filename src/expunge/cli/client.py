"""`expunge client`: a client's samples, and what it says to the server."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import RenderableType

from expunge.cli import _command, client_changes, client_export, client_peers
from expunge.cli._command import group
from expunge.cli._connect import agent_of, backbone_of, looked, store_at, unserved
from expunge.cli._evidence import chain_for
from expunge.cli._format import receipt_value, show_synced, show_way_on, synced_value
from expunge.cli._identifiers import Identifier, resolve
from expunge.cli._options import (
    PATH,
    as_label,
    at_option,
    client_option,
    subject_option,
    wait_options,
    yes_option,
)
from expunge.cli._output import (
    BAD,
    GOOD,
    QUIET,
    WAITS,
    Screen,
    count,
    facts,
    line,
    next_steps,
    table,
    title,
    typed,
    unwrapped,
)
from expunge.cli._samples import recomputing
from expunge.client import ClientStore, Selection, Status, Synced
from expunge.client.samples import Found
from expunge.client.store import KINDS
from expunge.client.trust import read_pins
from expunge.crypto import Envelope
from expunge.errors import UnknownSampleError
from expunge.evidence import Receipt
from expunge.ridge.spec import Label, Spec
from expunge.storage.files import make_folder, write_whole
from expunge.wire.schema import time_text


@group()
def client() -> None:
    """A client's samples: add, forget, correct; sync with the server; see how things stand.

    A client's folder holds its samples (each sealed under a key of its own), what is pending, its
    receipts and the newest head. What is added or deleted is pending until the server's receipt is
    in hand; then what was deleted is physically gone. Name the folder by --dir or by the variable
    EXPUNGE_CLIENT.

    Example:
      export EXPUNGE_CLIENT=hospital-a
      expunge client add samples.csv
      expunge client forget --subject patient-4711
      expunge client status
    """


client.add_command(client_changes.add)
client.add_command(client_changes.forget)
client.add_command(client_changes.correct)
client.add_command(client_export.export)


@client.command()
@client_option
@click.option(
    "--backbone",
    metavar="DESCRIPTION",
    help="For a store that keeps no features. [default: as enrolled]",
)
@click.option(
    "--accept-restored",
    is_flag=True,
    help="The server was restored from a backup: accept that its log is shorter.",
)
@click.option("--message", type=click.Choice(KINDS), help="From now on send messages of this kind.")
@click.option(
    "--old-copy",
    is_flag=True,
    help="This folder was put back from a backup: drop what has been erased since.",
)
@wait_options
@at_option
def sync(
    *,
    folder: Path,
    backbone: str | None,
    accept_restored: bool,
    message: str | None,
    old_copy: bool,
    wait: float,
    at: str | None,
) -> None:
    """Send what is pending, carry out erasure orders, answer audits, fetch the newest head.

    Run it regularly (a timer, cron): this is how a client learns that somebody is to be forgotten.
    Everything that the server says is checked: signatures, that its log only ever grows, that the
    head belongs to its certificate.

    Under secure aggregation a change takes effect in a round with other clients: this waits for
    them, and exits with 7 if they do not come in time. What is pending stays so, and the next sync
    goes on where this one stopped.

    Example:
      expunge client sync --dir hospital-a
      expunge client sync --wait 600 --dir hospital-a
    """
    with (
        store_at(folder, old_copy=old_copy) as store,
        agent_of(store, at, backbone_of(store, backbone), wait=wait) as agent,
    ):
        if message is not None:
            store.choose(message)
        done = agent.sync(accept_restored=accept_restored)
        found, idle = store.status(), unserved(store, at)
    screen = Screen.current()
    if found.gone:
        screen.result(
            synced_value(done) | {"samples": found.live + found.adding},
            *_show_forgotten(found, folder),
        )
        raise click.exceptions.Exit(_command.FAILED)
    screen.result(synced_value(done), *show_synced(done, found), *show_way_on(done, folder, idle))
    if done.waiting:
        raise click.exceptions.Exit(_command.NOT_YET)


def _show_forgotten(found: Status, folder: Path) -> list[RenderableType]:
    """What is left of a client that its server knows no longer, and how it is erased."""
    here = found.live + found.adding
    told: list[RenderableType] = [
        line(f"{found.name} was forgotten by the operator: the server knows it no longer.", BAD),
        line(f"{count(here, 'sample')} still in this folder."),
    ]
    if here:
        told.append(
            next_steps(
                f"expunge client leave --dir {folder}", why="To erase them, which needs no server:"
            )
        )
    return told


@client.command()
@client_option
def status(folder: Path) -> None:
    """Show how a client stands: its samples, what is pending, its last receipt and head.

    Asks no server.

    While another process works on the folder, it is said so, and shown is how things stood after
    that process's last whole change. The same holds for expunge client list, export and receipts,
    expunge head and expunge predict.

    Example:
      expunge client status --dir hospital-a

    Next:
      expunge client sync --dir hospital-a
    """
    (found, address, spec, round_), busy = looked(folder, _standing)
    pending = [
        *([f"{found.adding:,} to be added"] if found.adding else []),
        *([f"{found.deleting:,} to be deleted"] if found.deleting else []),
        *([f"{count(found.orders, 'erasure order')} to be answered"] if found.orders else []),
        *([f"request {found.composed} has no receipt yet"] if found.composed is not None else []),
    ]
    state = (
        "has left the federation"
        if found.left
        else "is leaving the federation"
        if found.leaving
        else "takes part"
    )
    state = "was forgotten by the operator" if found.gone else state
    Screen.current().result(
        asdict(found)
        | {
            "labels": dict(found.labels),
            "address": address,
            "spec": spec.digest,
            "aggregation": round_,
            "busy": busy,
        },
        title(f"Client {found.name} {state}"),
        facts(
            [
                ("Samples", f"{found.live:,}"),
                ("Pending", ", ".join(pending) or "nothing"),
                ("Receipts up to", f"request {found.sequence}" if found.sequence else "none yet"),
                (
                    "Head",
                    unwrapped(
                        f"{found.head[:16]}…" if found.head else "none yet: expunge client sync"
                    ),
                ),
                ("Log seen up to", f"entry {found.checkpoint}"),
                ("Sends", f"{found.message} messages"),
                *([] if round_ is None else [("Secure aggregation", _round_in_words(round_))]),
                (
                    "Features are",
                    "kept" if found.mode == "cached" else "computed again when needed",
                ),
                ("Server", unwrapped(address)),
                ("Federation", found.federation),
            ]
        ),
        *([line(), *_show_forgotten(found, folder)] if found.gone else []),
        *(
            [line(), unwrapped(f"{_REFUSED[spec.is_masked]}: {found.refusal}", BAD)]
            if found.refusal
            else []
        ),
        *(
            [line(), table(("Label", "Samples"), found.labels.items(), right=("Samples",))]
            if found.labels
            else []
        ),
    )


_REFUSED = ("The server refused the last request", "The last request did not take effect")


def _standing(store: ClientStore) -> tuple[Status, str, Spec, dict[str, Any] | None]:
    """How a client stands, where its server is, the spec; and where it has rounds, whether one is
    under way, and its pins.
    """
    rounds = None
    if store.spec.is_masked:
        rounds = {
            "in_round": store.participation.kept() is not None,
            "pins": len(read_pins(store.recall("pins"))),
        }
    return store.status(), store.address, store.spec, rounds


def _round_in_words(told: dict[str, Any]) -> str:
    pins = (
        f"{count(told['pins'], 'key')} pinned"
        if told["pins"]
        else "keys from the log (expunge client peers)"
    )
    under_way = "a round is under way: sync goes on with it"
    return f"{under_way if told['in_round'] else 'no round is under way'}; {pins}"


@client.command("list")
@client_option
@subject_option("Only samples about this person")
@click.option("--label", help="Only samples with this label.")
def list_samples(folder: Path, subject: str | None, label: str | None) -> None:
    """List the samples in a client's folder: id, subject, label, state and time; not the features.

    Asks no server.

    adding and deleting are pending; live are those that the server counts. Exits with 6 if there
    are none.

    Example:
      expunge client list --dir hospital-a
      expunge client list --subject patient-4711 --json --dir hospital-a
    """

    def ask(store: ClientStore) -> tuple[list[Found], tuple[Label, ...]]:
        named = None if label is None else as_label(store.spec, label)
        conditions = Selection(
            subject=subject, label=named, everything=subject is None and named is None
        )
        try:
            return store.listed(conditions), store.spec.labels or ()
        except UnknownSampleError:
            return [], ()

    (found, labels), busy = looked(folder, ask)
    rows = [
        {
            "id": one.names.id,
            "subject": one.names.subject,
            "label": None if one.label is None else labels[one.label],
            "state": one.shown_state,
            "added": time_text(one.added),
        }
        for one in found
    ]
    shown = [
        (
            unwrapped(one["id"]),
            unwrapped(one["subject"] or ""),
            "" if one["label"] is None else one["label"],
            one["state"],
            one["added"],
        )
        for one in rows
    ]
    told = (
        [table(("Id", "Subject", "Label", "State", "Added (UTC)"), shown)]
        if rows
        else [line("No samples.")]
    )
    Screen.current().result({"samples": rows, "busy": busy}, *told)
    if not rows:
        raise click.exceptions.Exit(_command.NOTHING)


@client.command()
@client_option
@click.option(
    "--backbone",
    metavar="DESCRIPTION",
    help="For a store that keeps no features. [default: as enrolled]",
)
@yes_option
@wait_options
@at_option
def leave(*, folder: Path, backbone: str | None, yes: bool, wait: float, at: str | None) -> None:
    """Leave the federation: everything that this client ever added is deleted, here and at the
    server.

    The receipt, which proves that nothing of this client remains, stays in the folder. A client
    that has left cannot come back under the same name. A client that the operator has forgotten
    erases its samples by this too, and needs no server for it.

    Example:
      expunge client leave --dir hospital-a

    Next:
      expunge client receipts --dir hospital-a -o receipts      keep the proof
    """
    screen = Screen.current()
    with store_at(folder) as store:
        name, samples = store.name, store.status().live + store.status().adding
        screen.confirm(
            f"Delete all {count(samples, 'sample')} of {name} and leave? This cannot be undone",
            yes=yes,
        )
        if store.gone:  # nobody else holds anything of it
            gone, done, idle = store.leave(), Synced("gone"), None
        else:
            opened, idle = backbone_of(store, backbone), unserved(store, at)
            with agent_of(store, at, opened, wait=wait) as agent:
                gone = store.leave(recompute=recomputing(opened))
                done = agent.sync()
        found = store.status()
    told = (
        line(
            f"{name} is leaving, but has not left yet: {count(gone.count, 'sample')} to be "
            "deleted.",
            WAITS,
        )
        if done.waiting
        else line(f"{name} has left: {count(gone.count, 'sample')} deleted.", GOOD)
    )
    screen.result(
        synced_value(done) | {"left": found.left, "count": gone.count},
        told,
        *show_synced(done, found),
        *show_way_on(done, folder, idle),
    )
    if done.waiting:
        raise click.exceptions.Exit(_command.NOT_YET)


@client.command()
@click.argument("number", required=False)
@client_option
@click.option(
    "-o",
    "--output",
    type=PATH,
    help="Write them: to this file (one receipt) or into this folder (all).",
)
def receipts(number: str | None, folder: Path, output: Path | None) -> None:
    """List the receipts that this client holds, or write them to files; each is checked against the
    server's key.

    A receipt says what was asked, what changed, where it stands in the audit log, and by when the
    request is erased at rest. It names no sample and no person. NUMBER is that of a receipt, or
    last.

    Example:
      expunge client receipts --dir hospital-a
      expunge client receipts last -o receipt.json --dir hospital-a

    Next:
      expunge verify receipt.json --trust hospital-a
    """
    screen = Screen.current()
    (found, documents), _ = looked(
        folder, lambda store: (_receipts(store, number), store.documents("receipt"))
    )
    data = {sequence: documents[sequence] for sequence in found}
    if not found:
        screen.result({"receipts": []}, line("No receipts yet."))
        raise click.exceptions.Exit(_command.NOTHING)
    written = [] if output is None else _write(output, data, alone=number is not None)
    values = [receipt_value(receipt) for receipt in found.values()]
    screen.result(
        {"receipts": values, "files": [str(path) for path in written]},
        *_listed(list(found.values())),
        *(
            [next_steps(f"expunge verify {typed(written[-1])} --trust {typed(folder)}")]
            if written
            else []
        ),
    )


def _listed(found: list[Receipt]) -> list[RenderableType]:
    """Receipts in a table; where some are of rounds, with the number of clients in each, and whose
    samples are counted.
    """
    rounds = any(one.is_of_round for one in found)
    rows = []
    for one in found:
        entry = one.logged.entry
        clients = [len(entry["clients"]) if one.is_of_round else "only this one"] if rounds else []
        time = entry["time"][:19].replace("T", " ")
        rows.append(
            (one.sequence, time, *clients, entry["added"], entry["deleted"], one.logged.index)
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
        "Samples are counted for all clients of a round together: nobody else can tell this "
        "client's own."
    )
    return [*parts, *([line(note, QUIET, indent=2)] if rounds else [])]


def _receipts(store: ClientStore, given: str | None) -> dict[int, Receipt]:
    chains, documents = store.chains(), store.documents("receipt")
    if given is not None:
        known = [Identifier(str(number)) for number in documents]
        number = int(resolve(given, known, "receipt", abbreviated=False))
        documents = {number: documents[number]}
    found = {}
    for sequence, data in documents.items():
        envelope = Envelope.from_bytes(data, "receipt")
        found[sequence] = Receipt.read(envelope, chain_for(envelope, chains))
    return found


def _write(output: Path, data: dict[int, bytes], *, alone: bool) -> list[Path]:
    if alone:
        (content,) = data.values()
        write_whole(output, content)
        return [output]
    make_folder(output)
    paths = [output / f"receipt-{sequence}.json" for sequence in data]
    for path, content in zip(paths, data.values(), strict=True):
        write_whole(path, content)
    return paths


for one in (client_peers.own_key, client_peers.peers, client_peers.pin):
    client.add_command(one)
