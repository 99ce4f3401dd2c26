"""`expunge arbiter`: finds out which client made a masked sum false."""

from __future__ import annotations

import json
import secrets
import time
from pathlib import Path

import click
from rich.console import RenderableType

from expunge.cli import _command
from expunge.cli._aggregation import ARBITER_PUBLIC
from expunge.cli._command import group
from expunge.cli._options import FOLDER, output_option
from expunge.cli._output import Screen, Style, count, facts, line, next_steps, table, title, typed
from expunge.cli.server_disputes import DISPUTE, OPENING
from expunge.errors import FormatError, InputError
from expunge.kinds import VoidReason
from expunge.secagg.arbitration import Arbiter, Dispute, Examined, Verdict, examine
from expunge.secagg.messages import read_client_message
from expunge.secagg.roster import Roster
from expunge.storage.files import make_folder, write_whole
from expunge.wire.schema import time_text

KEY, PUBLIC = "arbiter.key", "arbiter.pub"
_SECRET = "expunge-arbiter-secret-1."  # noqa: S105 - what the former begins with
_WHAT: dict[VoidReason, str] = {
    "impossible": "was false",
    "headless": "would leave no head",
    "irrecoverable": "cannot be unmasked",
}


@group()
def arbiter() -> None:
    r"""Arbiter commands: find out which client made a masked sum false.

    Under secure aggregation nobody sees a single client's part of a sum. If a sum is false, or
    cannot be unmasked, its clients open their parts to the arbiter, and to nobody else. The arbiter
    is named when the federation is founded: a data protection officer or an outside auditor, never
    the operator of the server. It works offline, with files that the operator carries.

    Example:
      expunge arbiter create arbiter
      expunge init new --dim 4 --outputs 1 --secure-aggregation \
        --arbiter arbiter/arbiter.pub
    """


@arbiter.command()
@click.argument("directory", type=FOLDER)
def create(directory: Path) -> None:
    r"""Make the keys of an arbiter in the new folder DIRECTORY.

    Keep arbiter.key secret: with it, and what clients opened, one can read the changes of those
    clients. Give arbiter.pub to whoever founds the federation.

    Example:
      expunge arbiter create arbiter

    Next:
      expunge init new --dim 4 --outputs 1 --secure-aggregation \
        --arbiter arbiter/arbiter.pub
    """
    if directory.exists() and any(directory.iterdir()):
        raise InputError(f"{directory} is not empty: choose another folder for the arbiter")
    made = Arbiter(secrets.token_bytes(64))
    make_folder(directory)
    write_whole(directory / KEY, f"{_SECRET}{made.secret.hex()}\n".encode("ascii"))
    write_whole(directory / PUBLIC, f"{ARBITER_PUBLIC}{made.public}\n".encode("ascii"), mode=0o644)
    Screen.current().result(
        {"directory": str(directory), "public": made.public},
        title("The keys of an arbiter"),
        facts([("Secret", directory / KEY), ("Public", directory / PUBLIC)]),
        next_steps(
            f"expunge init new --dim 4 --outputs 1 --secure-aggregation --arbiter "
            f"{typed(directory / PUBLIC)}",
            why="Next, for whoever founds the federation (with its own --dim and --labels):",
        ),
    )


@arbiter.command()
@click.argument("dispute", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "--dir",
    "directory",
    type=FOLDER,
    default=Path("arbiter"),
    show_default=True,
    help="The arbiter's folder.",
)
@click.option(
    "--false",
    "named",
    multiple=True,
    metavar="NAME",
    help="Name a client whose part passes, by what else you know. Repeatable.",
)
@output_option("Write the signed verdict to this file.")
def judge(dispute: Path, directory: Path, named: tuple[str, ...], output: Path | None) -> None:
    """Examine a DISPUTE, the folder that expunge server dispute wrote, and sign a verdict.

    Every part that a client opened is compared with the shares that it signed to have dealt and
    the vector that it signed to have sent, and must be the sums of some samples. A client that did
    all of this is never found false. Exits with 7 while nobody is found false and some have not
    opened their parts, and with 3 if the server's records contradict themselves.

    If all parts pass, but the ledger does not allow their sum, some client deletes what it never
    added. Compare the clients' records, and name it with --false.

    Example:
      expunge arbiter judge dispute --dir arbiter -o verdict.json

    Next, for the operator:
      expunge server judge verdict.json --office federation/operator
    """
    screen = Screen.current()
    given, keys = read_dispute(dispute), read_arbiter(directory)
    with screen.progress("Examining the parts that clients opened", None):
        examined = examine(given, keys)
    strangers = sorted(set(named) - {client for client, _ in given.parts})
    if strangers:
        raise InputError(f"{strangers[0]} had no part in this sum: name one of its clients")
    false = examined.false | dict.fromkeys(named, "named by the arbiter")
    if unfounded := sorted(set(named) - set(examined.false) - set(examined.missing)):
        _caution(screen, unfounded, examined.missing)
    accepted = given.reason == "headless" and not (false or examined.missing)
    signed = None
    if false or accepted:
        roster = Roster.read(given.records.roster)
        signed = keys.sign(
            Verdict(
                given.federation,
                roster.opening.round,
                roster.digest,
                given.parts,
                false,
                time_text(int(time.time())),
            )
        )
        if output is not None:
            write_whole(output, signed.to_bytes() + b"\n", mode=0o644)
    screen.result(
        {
            "found": {name: reason or None for name, reason in examined.found.items()},
            "missing": list(examined.missing),
            "reason": given.reason,
            "false": false,
            "verdict": None if signed is None else signed.to_json(),
            "file": None if output is None or signed is None else str(output),
        },
        title(f"A sum of {count(len(given.parts), 'client')} that {_WHAT[given.reason]}"),
        table(
            ("Client", "Adds", "Deletes", "Finding"),
            _rows(given, examined, false),
            right=("Adds", "Deletes"),
        ),
        line(),
        _conclusion(given.reason, examined, false, accepted=accepted),
        *(
            [next_steps(f"expunge server judge {typed(output)}", why="Next, for the operator:")]
            if signed is not None and output is not None
            else []
        ),
    )
    if signed is None:
        raise click.exceptions.Exit(_command.NOT_YET if examined.missing else _command.FAILED)


def _caution(screen: Screen, named: list[str], missing: tuple[str, ...]) -> None:
    """Say so before a verdict bars clients whose parts pass, while others have opened nothing."""
    if missing:
        screen.note(
            f"Named although what they opened passes: {', '.join(named)}. Not opened yet: "
            f"{', '.join(missing)}. One of these may be false instead: rather wait until they have "
            "opened their parts, and judge a newer folder"
        )


def _rows(given: Dispute, examined: Examined, false: dict[str, str]) -> list[tuple[object, ...]]:
    return [
        (
            client,
            *examined.counts.get(client, ("", "")),
            false.get(client)
            or ("has not opened its part" if client in examined.missing else "passes"),
        )
        for client, _ in sorted(given.parts)
    ]


def _conclusion(
    reason: VoidReason, examined: Examined, false: dict[str, str], *, accepted: bool
) -> RenderableType:
    if false:
        return line(f"{', '.join(sorted(false))}: false. The others can go on.", Style.GOOD)
    if accepted:
        return line(
            "All parts are true, and their sum leaves no head: the verdict is to apply it.",
            Style.GOOD,
        )
    if examined.missing:
        return line(
            f"Nobody is found false yet. {', '.join(examined.missing)} must open "
            f"{'its part' if len(examined.missing) == 1 else 'their parts'} first: ask the "
            "operator for a newer folder.",
            Style.WAITS,
        )
    if reason == "irrecoverable":
        return line(
            "All parts pass, and all shares were dealt as they must be: the sum can be unmasked, "
            "so the server says what is not true. Ask the operator; if the others shall go on "
            "without a client, name it with --false.",
            Style.WAITS,
        )
    return line(
        "All parts pass, but the ledger does not allow their sum: a client deletes what it never "
        "added. Compare the clients' records, and name it with --false.",
        Style.WAITS,
    )


def read_arbiter(directory: Path) -> Arbiter:
    """The keys in an arbiter's folder."""
    file = directory / KEY
    if not file.exists():
        raise InputError(
            f"{directory} has no {KEY}: give --dir, the folder that expunge arbiter create made"
        )
    text = file.read_text("ascii", errors="replace").strip()
    try:
        if text.startswith(_SECRET):
            return Arbiter(bytes.fromhex(text.removeprefix(_SECRET)))
    except (FormatError, ValueError) as problem:
        raise FormatError(f"{file} is damaged: put it back from a copy") from problem
    raise FormatError(f"{file} has no secret keys of an arbiter: put it back from a copy")


def read_dispute(folder: Path) -> Dispute:
    """The dispute in a folder."""
    file = folder / DISPUTE
    if not file.exists():
        raise InputError(
            f"{folder} has no {DISPUTE}: give the folder that expunge server dispute wrote"
        )
    try:
        content = json.loads(file.read_bytes())
    except ValueError as problem:
        raise FormatError(f"{file} is not JSON: ask the operator for it again") from problem
    openings = {
        path.name.removesuffix(OPENING): _read_opening(path) for path in folder.glob(f"*{OPENING}")
    }
    return Dispute.from_json(content, openings)


def _read_opening(file: Path) -> bytes:
    """What a client has opened: the server has taken nothing that cannot be read."""
    data = file.read_bytes()
    try:
        read_client_message(data)
    except FormatError as problem:
        raise FormatError(f"{file} is damaged: ask the operator for it again") from problem
    return data
