"""`expunge client backup` and `restore`: copies of a store that bring back nothing erased."""

from __future__ import annotations

from pathlib import Path

import click

from expunge.cli._command import command
from expunge.cli._connect import require_client
from expunge.cli._options import FILE, FOLDER, client_option, yes_option
from expunge.cli._output import Screen, Style, count, facts, line, next_steps, typed, unwrapped


@command()
@click.argument("target", type=FOLDER, metavar="TARGET")
@client_option
def backup(target: Path, folder: Path) -> None:
    """Back up this client's store into the new folder TARGET.

    A backup has the samples as they are sealed, the receipts, and the signing key: keep it secret.
    It does not have client.vault, and opens with the living vault, or its mirror (enroll --mirror),
    alone. So a sample that is deleted afterwards cannot be read from any backup. Never copy the
    vault itself into a backup: an old vault would open what was erased. Other commands may run
    meanwhile.

    Example:
      expunge client backup monday --dir hospital-a

    Next, when the folder is lost, with a mirror of the vault:
      expunge client restore NEW --backup monday --vault hospital-a/client.vault
    """
    from expunge.client.backup import back_up  # noqa: PLC0415 - the whole store

    require_client(folder)
    back_up(folder, target)
    Screen.current().result(
        {"backup": str(target)},
        unwrapped(f"Backed up to {target}. Copy it to another disk.", Style.GOOD),
        line(
            "It opens with this client's vault alone. Keep a mirror of the vault on another disk "
            "(enroll --mirror), never an old copy of it."
        ),
    )


@command()
@click.argument("directory", type=FOLDER)
@click.option(
    "--backup", "source", type=FOLDER, required=True, help="What expunge client backup made."
)
@click.option(
    "--vault",
    type=FILE,
    help="The living vault; it moves. [default: a mirror, as the backup has it on record]",
)
@yes_option
def restore(*, directory: Path, source: Path, vault: Path | None, yes: bool) -> None:
    """Restore a client's store from a backup into the new folder DIRECTORY.

    What was deleted after the backup, and receipted, is dropped: its key is gone. What was added
    after it is not there: add it again. A deletion that was asked for here after the backup and not
    delivered must be asked for again; erasure orders come again from the server.

    If the server has receipted requests since, sync refuses the store as an old copy: with --reset
    the server then holds what is here, and nothing else of this client. Under secure aggregation an
    old copy cannot go on, and is not restored: have the operator forget the client, and enrol a new
    one.

    Example:
      expunge client restore new --backup monday --vault hospital-a/client.vault

    Next:
      expunge client sync --dir new            # if nothing was receipted since
      expunge client sync --reset --dir new    # otherwise
    """
    from expunge.client.backup import restore_client  # noqa: PLC0415 - the whole store

    screen = Screen.current()

    def ask(newer: int) -> None:
        screen.confirm(
            f"The vault has {count(newer, 'key')} that this backup does not know of. What was "
            "added since is lost with them for good, also in newer backups. Destroy them?",
            yes=yes,
        )

    restored = restore_client(directory, source, vault, ask)
    screen.result(
        {
            "directory": str(directory),
            "client": restored.name,
            "samples": restored.samples,
            "dropped": restored.dropped,
        },
        unwrapped(f"{restored.name} restored in {directory}", "bold"),
        facts(
            [
                ("Samples", f"{restored.samples:,}"),
                ("Dropped", f"{count(restored.dropped, 'sample')} deleted since the backup"),
            ]
        ),
        next_steps(
            f"expunge client sync --dir {typed(directory)}",
            f"expunge client sync --reset --dir {typed(directory)}    # if that says: an old copy",
        ),
    )
