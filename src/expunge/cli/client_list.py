"""`expunge client list`: which samples a client holds."""

from __future__ import annotations

from pathlib import Path

import click

from expunge.cli import _command
from expunge.cli._command import command
from expunge.cli._connect import read_store
from expunge.cli._options import client_option, subject_option
from expunge.cli._output import Screen, line, table, unwrapped
from expunge.cli._selection import as_label
from expunge.client import ClientStore, Selection
from expunge.client.samples import StoredSample
from expunge.errors import UnknownSampleError
from expunge.ridge.spec import Label
from expunge.wire.schema import time_text


@command("list")
@client_option
@subject_option("Only samples of this subject")
@click.option("--label", help="Only samples with this label.")
def list_samples(folder: Path, subject: str | None, label: str | None) -> None:
    """List samples: id, subject, label, state and time, not features.

    A sample is live when the server counts it; additions and deletions in progress are shown as
    adding and deleting. Read-only; contacts no server. Exits with 6 if there are no samples.

    Example:
      expunge client list --dir hospital-a
      expunge client list --subject patient-4711 --json --dir hospital-a
    """

    def ask(store: ClientStore) -> list[tuple[StoredSample, Label | None]]:
        named = None if label is None else as_label(store.spec, label)
        conditions = Selection(
            subject=subject, label=named, everything=subject is None and named is None
        )
        try:
            samples = store.listed(conditions)
        except UnknownSampleError:
            return []
        return [
            (sample, None if sample.label is None else store.label(sample.label))
            for sample in samples
        ]

    samples, busy = read_store(ClientStore, folder, ask)
    rows = [
        {
            "id": sample.names.id,
            "subject": sample.names.subject,
            "label": name,
            "state": sample.shown_state,
            "added": time_text(sample.added),
        }
        for sample, name in samples
    ]
    shown = [
        (
            unwrapped(row["id"]),
            unwrapped(row["subject"] or ""),
            "" if row["label"] is None else row["label"],
            row["state"],
            row["added"],
        )
        for row in rows
    ]
    parts = (
        [table(("Id", "Subject", "Label", "State", "Added (UTC)"), shown)]
        if rows
        else [line("No samples.")]
    )
    Screen.current().result({"samples": rows, "busy": busy}, *parts)
    if not rows:
        raise click.exceptions.Exit(_command.NOTHING)
