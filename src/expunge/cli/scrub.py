"""`expunge client scrub` and `expunge server scrub`: read everything, and say what is damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from expunge.cli import _command, _connect
from expunge.cli._command import command
from expunge.cli._connect import require_client
from expunge.cli._options import FOLDER, client_option
from expunge.cli._output import Screen, Style, facts, line, title, unwrapped
from expunge.errors import StoreDamagedError
from expunge.federation.layout import Layout
from expunge.storage.scrub import Damage, Progress, ScrubResult

if TYPE_CHECKING:
    from rich.console import RenderableType

_repair_option = click.option(
    "--repair", is_flag=True, help="Put right what can be put right, and say what was."
)


@command("scrub")
@client_option
@_repair_option
def scrub_store(folder: Path, repair: bool) -> None:
    """Read everything in this client's store, and say what is damaged.

    Opens every sample and compares it with its tags, label and commitment, verifies every receipt,
    and checks the database and its indexes. Contacts no server. Without --repair nothing is
    changed, and other commands may run meanwhile. A damaged bit of a sample, a tag or an index is
    put right; what cannot be is named, with what to do. Exits with 3 if damage is left.

    Example:
      expunge client scrub --dir hospital-a
      expunge client scrub --repair --dir hospital-a
    """
    from expunge.client.scrub import scrub_client  # noqa: PLC0415 - the whole store

    require_client(folder)
    _show(
        str(folder),
        lambda progress: scrub_client(
            folder, repair=repair, timeout=_connect.PATIENCE, progress=progress
        ),
    )


@command("scrub")
@click.argument("directory", type=FOLDER)
@_repair_option
def scrub_folder(directory: Path, repair: bool) -> None:
    """Read everything in the store of the server in DIRECTORY, and say what is damaged.

    Hashes every entry of the audit log again, verifies every receipt, opens every client's share of
    the ledger and adds them all up, and compares commitments and the database's indexes. The server
    must be stopped; one at work scrubs itself (expunge serve --scrub-every). With --repair, hashes,
    indexes, one lost file of the ledger, and one flipped bit of an entry are put right; what cannot
    be is named, with what to do. Exits with 3 if damage is left.

    Example:
      expunge server scrub federation
      expunge server scrub federation --repair
    """
    from expunge.server.scrub import scrub_server  # noqa: PLC0415 - the whole server

    layout = Layout.at(directory)
    _show(
        str(layout.path),
        lambda progress: scrub_server(
            layout.server,
            mirrors=layout.mirrors,
            repair=repair,
            timeout=_connect.PATIENCE,
            progress=progress,
        ),
    )


def _show(where: str, scrub: Callable[[Progress], ScrubResult]) -> None:
    screen = Screen.current()
    try:
        with screen.bars() as show:
            result = scrub(lambda what, done, total: show(f"Reading {what}", done, total))
    except StoreDamagedError as problem:
        result = ScrubResult({}, [Damage("store", str(problem))])
    damage = [
        {
            "what": each.what,
            "text": each.text,
            "repaired": each.repaired,
            "remedy": each.remedy,
        }
        for each in result.findings
    ]
    left = sum(not each.repaired for each in result.findings)
    repaired = len(damage) - left
    heading = (
        f"Damaged: {left} of what was found in {where} is left"
        if left
        else f"Put right: {repaired} of what was found in {where}"
        if repaired
        else f"Nothing is damaged in {where}"
    )
    screen.result(
        {"whole": result.is_whole, "read": result.read, "damage": damage},
        title(heading),
        facts([(what.capitalize(), f"{number:,}") for what, number in result.read.items()]),
        *(part for each in result.findings for part in _parts(each)),
    )
    if left:
        raise click.exceptions.Exit(_command.EVIDENCE)


def _parts(damage: Damage) -> list[RenderableType]:
    mark = "put right" if damage.repaired else "DAMAGED"
    parts: list[RenderableType] = [
        unwrapped(
            f"{damage.what}, {mark}: {damage.text}",
            Style.GOOD if damage.repaired else Style.BAD,
            indent=2,
        )
    ]
    if damage.remedy:
        parts.append(line(damage.remedy, indent=4))
    return parts
