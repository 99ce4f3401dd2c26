"""`expunge client export`: what a client holds about a person, for requests for access rather than
erasure.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from expunge.cli import _command
from expunge.cli._command import command
from expunge.cli._connect import read_store
from expunge.cli._options import client_option, output_option
from expunge.cli._output import Screen, Style, count, facts, line, next_steps, typed, unwrapped
from expunge.cli._selection import refuse_missing, selection_of, selection_options
from expunge.client import ClientStore
from expunge.client.export import Held, file_of, require_form
from expunge.client.samples import counted
from expunge.errors import InputError, UnknownSampleError
from expunge.storage.files import write_whole


@command()
@client_option
@selection_options
@output_option("The file to write: .npz, .csv or .parquet.")
@click.option("--dry-run", is_flag=True, help="Show how many samples there are; write nothing.")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def export(*, folder: Path, output: Path | None, dry_run: bool, force: bool, **given: Any) -> None:
    """Export samples with everything this client holds about them.

    Writes id, subject, label, time added, state, source and feature. Read-only; contacts no server.

    Use it when a person asks what is held about them. It takes the same conditions as forget. The
    file is unencrypted personal data that only you can read (mode 0600): hand it over safely, then
    delete it. A store that keeps no features exports the sources they are computed from. Samples
    whose deletion is pending are still held, and are exported too. Exits with 6 if nothing is
    selected.

    Example:
      expunge client export --subject patient-4711 --dry-run --dir hospital-a
      expunge client export --subject patient-4711 -o held.csv --dir hospital-a

    Next:
      expunge client forget --subject patient-4711 --dir hospital-a
    """
    if output is None and not dry_run:
        raise click.UsageError(
            "give the file to write: -o FILE (or --dry-run, to count samples only)"
        )
    if output is not None:
        _require_free(output, force=force)
    (held, spec), busy = read_store(
        ClientStore, folder, lambda store: (_held(store, given), store.spec)
    )
    subjects, states = (
        counted(sample.names.subject for sample, _ in held),
        counted(sample.shown_state for sample, _ in held),
    )
    features = sum(opened.content.feature is not None for _, opened in held)
    value = {
        "count": len(held),
        "subjects": subjects,
        "states": states,
        "features": features,
        "dry_run": dry_run,
        "busy": busy,
        "file": None,
    }
    screen = Screen.current()
    if not held:
        screen.result(value, line("Nothing is selected; nothing was written."))
        raise click.exceptions.Exit(_command.NOTHING)
    shown = ", ".join(f"{number:,} {state}" for state, number in states.items())
    summary = facts(
        [("Subjects", f"{len(subjects):,}"), ("States", shown), ("Features", f"{features:,}")]
    )
    if dry_run or output is None:
        screen.result(
            value,
            line(f"{count(len(held), 'sample')} would be exported; nothing was written:"),
            summary,
        )
        return
    write_whole(output, file_of(output, held, spec))
    screen.result(
        value | {"file": str(output)},
        unwrapped(f"{count(len(held), 'sample')} exported to {output}.", Style.GOOD),
        summary,
        line("The file is unencrypted personal data. After handing it over:", indent=2),
        next_steps(f"shred -u {typed(output)}"),
    )


def _require_free(output: Path, *, force: bool) -> None:
    require_form(output)
    if output.exists() and not force:
        raise InputError(
            f"{output} exists already, and was left as it is: name another file, or give --force"
        )


def _held(store: ClientStore, given: dict[str, Any]) -> Held:
    selection = selection_of(store, given)
    if selection is None:
        return []
    try:
        return store.opened(selection)
    except UnknownSampleError as problem:
        refuse_missing(store, selection, problem, "Nothing was written")
        return []
