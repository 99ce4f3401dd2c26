"""What operators do about false sums: `expunge server disputes`, dispute, judge."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import click

from expunge.cli import _command
from expunge.cli._command import command
from expunge.cli._connect import OfficeConnection, office_at
from expunge.cli._options import FILE, FOLDER, office_options, yes_option
from expunge.cli._output import Screen, Style, facts, line, next_steps, table, title, typed
from expunge.crypto import Envelope
from expunge.errors import FormatError, InputError
from expunge.evidence.wording import moment
from expunge.storage.files import make_folder, write_whole

DISPUTE, OPENING = "dispute.json", ".opening"  # in the folder for the arbiter


@command()
@office_options
def disputes(office: Path | None, at: str | None) -> None:
    """List masked sums that were false, and who has opened its part to the arbiter.

    Exits with 6 if there are none.

    Example:
      expunge server disputes --office federation/operator

    Next:
      expunge server dispute -o dispute --office federation/operator
    """
    with office_at(office, at) as connection:
        listed = connection.office.ask("disputes", {})
    rows = [
        (
            dispute["aggregation"][:8],
            moment(dispute["since"]),
            ", ".join(dispute["clients"]),
            ", ".join(sorted(set(dispute["clients"]) - set(dispute["opened"]))) or "nobody",
            moment(dispute["until"]),
        )
        for dispute in listed
    ]
    columns = ("Round", "False since", "Clients", "Not opened by", "Until")
    Screen.current().result(
        {"disputes": listed},
        table(columns, rows) if rows else line("No sum is in dispute.", Style.GOOD),
    )
    if not listed:
        raise click.exceptions.Exit(_command.NOTHING)


@command()
@click.argument("round_id", metavar="[ROUND]", required=False)
@click.option(
    "-o",
    "--output",
    type=FOLDER,
    required=True,
    help="Write to this new folder.",
)
@office_options
def dispute(round_id: str | None, output: Path, office: Path | None, at: str | None) -> None:
    """Write what the arbiter needs about a false sum to a new folder.

    ROUND is the beginning of a round's id, as expunge server disputes lists it; it may be left out
    if there is one dispute. What clients opened is sealed for the arbiter: nobody else can read it.

    Example:
      expunge server dispute -o dispute --office federation/operator

    Next, for the arbiter:
      expunge arbiter judge dispute --dir arbiter -o verdict.json
    """
    if output.exists() and any(output.iterdir()):
        raise InputError(f"{output} is not empty: choose another folder")
    screen = Screen.current()
    with office_at(office, at) as connection:
        chosen = _chosen(connection, round_id)
        question = {"aggregation": chosen["aggregation"]}
        shown = connection.office.ask("show-dispute", question)
        make_folder(output)
        opened: list[str] = shown["opened"]
        with screen.progress("Fetching what clients opened", len(opened)) as advance:
            for client in opened:
                text = connection.office.ask("show-opening", question | {"client": client})
                write_whole(output / f"{client}{OPENING}", base64.b64decode(text))
                advance(1)
        write_whole(output / DISPUTE, (json.dumps(shown["dispute"]) + "\n").encode())
    missing = sorted(set(chosen["clients"]) - set(opened))
    screen.result(
        {"directory": str(output), "opened": opened, "missing": missing} | question,
        title(f"A false sum, for the arbiter, in {output}"),
        facts(
            [
                ("Clients", ", ".join(chosen["clients"])),
                ("Opened by", ", ".join(opened) or "nobody yet"),
                ("Not opened by", ", ".join(missing) or "nobody"),
            ]
        ),
        next_steps(
            f"expunge arbiter judge {typed(output)} --dir arbiter -o verdict.json",
            why="Next, for the arbiter:",
        ),
    )


def _chosen(connection: OfficeConnection, round_id: str | None) -> dict[str, Any]:
    listed = connection.office.ask("disputes", {})
    matching = [one for one in listed if one["aggregation"].startswith(round_id or "")]
    if len(matching) == 1:
        only: dict[str, Any] = matching[0]
        return only
    if not listed:
        raise InputError("no sum is in dispute")
    rounds = ", ".join(one["aggregation"][:8] for one in listed)
    raise InputError(f"name one of these rounds by the beginning of its id: {rounds}")


@command()
@click.argument("verdict", type=FILE)
@yes_option
@office_options
def judge(verdict: Path, yes: bool, office: Path | None, at: str | None) -> None:
    """Act on the arbiter's VERDICT about a false sum.

    The clients that it names are barred: they take part in no round. The others are summed up
    without them, at their next sync. What a barred client had added before stays in the ledger
    until it is forgotten; audits wait for that.

    Example:
      expunge server judge verdict.json --office federation/operator

    Next:
      expunge server clients --office federation/operator
    """
    try:
        envelope = Envelope.from_bytes(verdict.read_bytes().strip(), "verdict")
    except FormatError as problem:
        raise FormatError(
            f"{verdict} is no verdict: give the file that `expunge arbiter judge -o` wrote"
        ) from problem
    screen = Screen.current()
    screen.confirm("Act on the arbiter's verdict, and write it to the log?", yes=yes)
    with office_at(office, at) as connection:
        judged = connection.office.do("judge", {"verdict": envelope.to_json()})
    names = sorted(judged["false"])
    screen.result(
        judged,
        title("The verdict is in the log"),
        facts(
            [(name, judged["false"][name]) for name in names]
            or [("Nobody", "the sum is applied as it is")]
        ),
        *(
            [
                next_steps(
                    *(f"expunge server forget-client {name}" for name in names),
                    why="The others go on at their next sync. To forget what was added before:",
                )
            ]
            if names
            else []
        ),
    )
