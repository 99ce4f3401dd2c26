"""`expunge server`: what operators do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from expunge.cli import _command, _warnings
from expunge.cli._aggregation import culprits_in_words, held_up, rules_in_words
from expunge.cli._command import group
from expunge.cli._connect import OfficeConnection, layout_at_hand, office_at
from expunge.cli._options import (
    NOT_DISCLOSED,
    backbone_argument,
    disclosed,
    office_options,
    output_option,
    yes_option,
)
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
from expunge.cli._pages import limit_options, note_rest, pages
from expunge.cli.scrub import scrub_folder
from expunge.cli.server_backup import accept_loss, backup, renew_certificate, restore, rotate_key
from expunge.cli.server_clock import clock_problem, correct_clock
from expunge.cli.server_disputes import dispute, disputes, judge
from expunge.errors import InputError
from expunge.evidence.wording import moment
from expunge.federation.layout import Layout
from expunge.kinds import ROLES, Role
from expunge.ridge.spec import Spec
from expunge.secagg.schedule import Schedule
from expunge.storage.files import write_whole

_TOLERANCE = 300  # seconds that a clock may be off


@group()
def server() -> None:
    """Operator commands: enrol clients, show status, amend the spec, back up, restore.

    An operator acts from an office: a folder with a signing key, such as the one that expunge init
    creates (DIR/operator). Name it with --office or the variable EXPUNGE_OFFICE. Every change is
    signed, numbered and written to the audit log.

    Example:
      export EXPUNGE_OFFICE=federation/operator
      expunge server token hospital-a
      expunge server status
    """


@server.command()
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice(ROLES),
    default="client",
    show_default=True,
    help="The role of NAME.",
)
@click.option(
    "--days",
    type=click.IntRange(1, 365),
    default=7,
    show_default=True,
    help="Days until the token expires.",
)
@click.option(
    "--url",
    "urls",
    multiple=True,
    metavar="URL",
    help="A URL at which NAME reaches the server. Repeatable.",
)
@output_option("Write the token to this file (readable only by you) instead of printing it.")
@office_options
def token(
    *,
    name: str,
    role: Role,
    days: int,
    urls: tuple[str, ...],
    output: Path | None,
    office: Path | None,
    at: str | None,
) -> None:
    """Make a one-time token with which NAME can enrol.

    NAME appears in the public log: name an institution or an office, never a person. The token
    carries the server's address and public key, so nothing is trusted on first use, and a secret:
    treat it like a password.

    Example:
      expunge server token hospital-a -o hospital-a.token

    Next, at the client:
      expunge enroll hospital-a.token --dir hospital-a
    """
    if output is not None and output.exists():
        raise InputError(
            f"{output} exists already, and may hold a token that is still valid: name another "
            "file, or remove it"
        )
    with office_at(office, at) as connection:
        layout = layout_at_hand(connection)
        agreed = Spec.from_dict(connection.office.federation_content()["spec"])
        made = connection.office.token(
            name,
            role,
            urls or _addresses(connection, layout),
            days=days,
            ca="" if layout is None else layout.ca,
        )
        rejoin = " --rejoin" if role == "client" and layout is not None and layout.rebuilt else ""
    text = made[0].to_text()
    if output is not None:
        write_whole(output, text.encode("ascii") + b"\n")
    value = {
        "name": name,
        "role": role,
        "expires": made[1],
        "urls": list(made[0].urls),
        "token": text if output is None else None,  # a secret in a file is not shown
    }
    where = "TOKEN" if output is None else typed(output)
    more = rejoin or (backbone_argument(agreed) if role == "client" else "")
    Screen.current().result(
        value | {"file": None if output is None else str(output)},
        title(f"One-time token for {name}, valid until {moment(made[1])}"),
        facts(
            [
                ("Role", role),
                ("Server", unwrapped(", ".join(made[0].urls))),
                *([] if output is None else [("File", output)]),
            ]
        ),
        *([line(), Text(text, no_wrap=True, overflow="ignore")] if output is None else []),
        next_steps(f"expunge enroll {where} --dir {name}{more}", why=f"Send it to {name}, to run:"),
        *(
            [line("(Omit --rejoin for a client that is new to the federation.)", indent=2)]
            if rejoin
            else []
        ),
    )


def _addresses(connection: OfficeConnection, layout: Layout | None) -> tuple[str, ...]:
    """Where a newcomer finds the server: where it is meant to be, or where we reached it."""
    if layout is None:
        return (connection.address,)
    serving = layout.serving()
    return layout.urls or ((serving,) if serving else (str(layout.path),))


@server.command()
@limit_options
@office_options
def clients(limit: int, everything: bool, office: Path | None, at: str | None) -> None:
    """List clients and offices by name, with samples and last sync.

    Under secure aggregation the server does not know how many samples a client has (null with
    --json).

    Example:
      expunge server clients --office federation/operator

    Next:
      expunge server forget-client NAME   # forget a client that is lost
    """
    with office_at(office, at) as connection:
        enrolled, total = pages(
            connection, "clients", None if everything else limit, "after", "name"
        )
        if Spec.from_dict(connection.office.federation_content()["spec"]).is_masked:
            enrolled = [
                client | {"samples": None} if client["role"] == "client" else client
                for client in enrolled
            ]
    rows = [
        (
            client["name"],
            client["role"],
            client["status"],
            NOT_DISCLOSED if client["samples"] is None else client["samples"],
            client["sequence"],
            client["seen"].replace("T", " ")[:16] or "never",
        )
        for client in enrolled
    ]
    columns = ("Name", "Role", "Status", "Samples", "Requests", "Last sync (UTC)")
    Screen.current().result(
        {"clients": enrolled, "total": total}, table(columns, rows, right=("Samples", "Requests"))
    )
    note_rest(total, len(enrolled), "name")


@server.command()
@office_options
def status(office: Path | None, at: str | None) -> None:
    """Show status: samples, clients, head, orders, last audit and, with masks, the next round.

    Example:
      expunge server status --office federation/operator
    """
    with office_at(office, at) as connection:
        overview = connection.office.ask("status", {})
    present, orders, audit = overview["clients"], overview["orders"], overview["audit"]
    gone = "".join(
        f", {present[state]} {state}"
        for state in ("must-rejoin", "barred", "gone")
        if present[state]
    )
    Screen.current().result(
        overview,
        title(f"Federation {overview['federation']}"),
        facts(
            [
                ("Samples", f"{overview['samples']:,}"),
                ("Clients", f"{present['active']} active{gone}"),
                ("Head", overview["head"] or f"none: {overview['headless']}"),
                ("Round", overview["round"]),
                ("Audit log", f"{overview['log']:,} entries"),
                ("To be erased at rest", f"{count(overview['journal'], 'message')} in the journal"),
                (
                    "Orders",
                    ", ".join(f"{number} {state}" for state, number in orders.items() if number)
                    or "none",
                ),
                (
                    "Last audit",
                    "none yet" if audit is None else f"{audit['result']}, {moment(audit['time'])}",
                ),
                *_troubles(overview),
                *_rounds(overview["aggregation"]),
                *_disputed(overview["aggregation"]),
                ("Solver", overview["solver"]),
                ("Spec", overview["spec"]),
                ("Server key", overview["key"]),
            ]
        ),
    )


@server.command()
@office_options
def fold(office: Path | None, at: str | None) -> None:
    """Erase at rest now what was deleted, and log a digest of the sums.

    The server does both by itself within the time that expunge serve --erase-within gives. After
    this command, nothing that was deleted before can be read from the server's disk, and the log
    has a digest of the sums that are left: the server is bound to them.

    Example:
      expunge server fold --office federation/operator
    """
    with office_at(office, at) as connection:
        folded = connection.office.do("fold", {})
    Screen.current().result(
        folded,
        line("What was deleted has been erased at rest.", Style.GOOD),
        facts(
            [
                ("Samples", f"{folded['samples']:,}"),
                ("Round", folded["round"]),
                ("Ledger", f"{folded['ledger']} (salted digest)"),
            ]
        ),
    )


def _troubles(overview: dict[str, Any]) -> list[tuple[str, Text]]:
    """What is wrong with the server's clock and disk; a server of before does not tell."""
    problems = (
        ("Clock", clock_problem(overview["clock"], _TOLERANCE) if "clock" in overview else ""),
        ("Disk", overview.get("disk", "")),
    )
    return [(name, Text(text, style=Style.WAITS)) for name, text in problems if text]


def _disputed(rounds: dict[str, Any] | None) -> list[tuple[str, Text]]:
    """False sums that wait for the arbiter, clients that it found false, and those of which no join
    is taken.
    """
    if rounds is None:
        return []
    rows = []
    for false_sum in rounds["disputes"]:
        missing = sorted(set(false_sum["clients"]) - set(false_sum["opened"]))
        waits = f"; {', '.join(missing)} must open their parts" if missing else ""
        text = f"of {', '.join(false_sum['clients'])}{waits}: expunge server dispute -o DIR"
        rows.append(("False sum", Text(text, style=Style.WAITS)))
    if rounds["barred"]:
        rows.append(
            ("Barred", Text(f"{', '.join(rounds['barred'])}: forget-client", style=Style.WAITS))
        )
    if rounds["culprits"]:
        rows.append(
            ("Wrong shares", Text(culprits_in_words(rounds["culprits"]), style=Style.WAITS))
        )
    return rows


def _rounds(rounds: dict[str, Any] | None) -> list[tuple[str, object]]:
    """The last round of secure aggregation, the next one, and the schedule; empty without masks."""
    if rounds is None:
        return []
    last, schedule = rounds["last"], rounds["schedule"]
    rows: list[tuple[str, object]] = [("Next round", _next_round(rounds))]
    if schedule is not None:
        words = str(Schedule(schedule["every"], schedule["window"]))
        now = "open now; " if schedule["is_open"] else ""
        rows.append(("Schedule", f"{words}; {now}next on {moment(schedule['next'])}"))
    if last is not None:
        changes = f"{last['added']:,} added, {last['deleted']:,} deleted"
        rows.append(
            ("Last round", f"{count(last['clients'], 'client')}, {changes}, {moment(last['time'])}")
        )
    return rows


def _next_round(rounds: dict[str, Any]) -> Text:
    """What the next round of secure aggregation is for, and whom it needs."""
    changes = f"changes of {rounds['fewest']} clients or more"
    if rounds["wanted"] == "change":
        return Text(changes)
    forgotten = ", ".join(rounds["forgetting"])
    wanted = f"a rebuild without {forgotten}" if rounds["wanted"] == "rebuild" else "an audit"
    if why := held_up(rounds):
        return Text(
            f"{changes}. {wanted[0].upper()}{wanted[1:]} must wait: {why}", style=Style.WAITS
        )
    everybody = f"needs all of {', '.join(rounds['needed'])} at the same time"
    return Text(f"{wanted}: {everybody}", style=Style.WAITS)


@server.command()
@output_option("Write the spec to this file.")
@office_options
def spec(output: Path | None, office: Path | None, at: str | None) -> None:
    """Show or write the spec that every client must agree on.

    Example:
      expunge server spec -o spec.json

    Next:
      expunge init OTHER --spec spec.json    # create another federation like it
    """
    with office_at(office, at) as connection:
        agreed = Spec.from_dict(connection.office.federation_content()["spec"])
    value = agreed.to_dict()
    if output is not None:
        write_whole(output, (json.dumps(value, indent=2) + "\n").encode(), mode=0o644)
    labels = "-" if agreed.labels is None else ", ".join(str(label) for label in agreed.labels)
    Screen.current().result(
        {"spec": value, "digest": agreed.digest, "file": None if output is None else str(output)},
        title(f"Spec {agreed.digest}"),
        facts(
            [
                (
                    "Features",
                    f"{agreed.dim}, {'and an intercept' if agreed.intercept else 'no intercept'}",
                ),
                *(
                    [("Labels", labels)]
                    if agreed.labels is not None
                    else [("Outputs", agreed.outputs)]
                ),
                ("gamma", f"{agreed.gamma:g}"),
                ("Grid", f"{agreed.grid.digits} digits, {agreed.grid.fraction_bits} fraction bits"),
                ("Published to", f"2^{-agreed.publication_bits}"),
                ("Messages", ", ".join(agreed.messages)),
                *(
                    []
                    if agreed.aggregation is None
                    else [("Rounds", rules_in_words(agreed.aggregation))]
                ),
                ("Backbone", agreed.backbone or "none pinned: clients supply features"),
            ]
        ),
    )


@server.command()
@click.option("--gamma", type=float, help="The ridge parameter.")
@click.option(
    "--add-label", "labels", multiple=True, metavar="LABEL", help="Append a label. Repeatable."
)
@click.option("--publication-bits", type=int, help="Publish weights as multiples of 2^-BITS.")
@click.option(
    "--messages", metavar="KINDS", help="Messages that clients may send: rows, gram or rows,gram."
)
@yes_option
@office_options
def amend(
    *,
    gamma: float | None,
    labels: tuple[str, ...],
    publication_bits: int | None,
    messages: str | None,
    yes: bool,
    office: Path | None,
    at: str | None,
) -> None:
    """Amend the spec: gamma, labels, precision or messages.

    The amendment is signed and logged. Clients receive it at their next sync; none has to send its
    samples again. Features, grid and backbone cannot be amended: create another federation instead.

    Example:
      expunge server amend --gamma 0.5 --office federation/operator
      expunge server amend --add-label otter
    """
    screen = Screen.current()
    with office_at(office, at) as connection:
        before = Spec.from_dict(connection.office.federation_content()["spec"])
        change: dict[str, Any] = {}
        if gamma is not None:
            change["gamma"] = before.with_gamma(gamma).to_dict()["gamma"]
        if publication_bits is not None:
            change["publication_bits"] = publication_bits
        if labels:
            change["labels"] = before.with_labels(*labels).to_dict()["labels"]
        if messages is not None:
            change["messages"] = sorted(part.strip() for part in messages.split(","))
        if not change:
            raise InputError(
                "nothing to amend: give --gamma, --add-label, --publication-bits or --messages"
            )
        wanted = Spec.from_dict({**before.to_dict(), **change})
        for caution in _warnings.of_amending(before, wanted):
            screen.note(caution)
        screen.confirm(
            f"Amend for the whole federation: {'; '.join(_differences(before, wanted))}?", yes=yes
        )
        result = connection.office.do("amend", change)
        now = connection.office.ask("status", {})
        # the result, which is kept, has a salted digest
        result |= {
            "head": now["head"],
            "headless": now["headless"],
        }
    after = Spec.from_dict(result["spec"])
    screen.result(
        result | {"digest": after.digest},
        title("Spec amended"),
        *(line(text, indent=2) for text in _differences(before, after)),
        facts([("Spec", after.digest), ("Head", result["head"] or f"none: {result['headless']}")]),
        next_steps(
            "expunge client sync --dir CLIENT", why="Clients receive it at their next sync:"
        ),
    )


def _differences(before: Spec, after: Spec) -> list[str]:
    """What an amendment changes, each with the old value and the new one."""
    old, new = before.to_dict(), after.to_dict()
    names = [name for name in old if old[name] != new[name]]
    return [
        f"{name.replace('_', ' ')} from {_plain(before, name)} to {_plain(after, name)}"
        for name in names
    ] or ["nothing"]


def _plain(spec: Spec, name: str) -> str:
    value = getattr(spec, name)
    return (
        ", ".join(str(item) for item in value)
        if isinstance(value, tuple)
        else f"{value:g}"
        if name == "gamma"
        else str(value)
    )


@server.command("forget-client")
@click.argument("client")
@yes_option
@office_options
def forget_client(client: str, yes: bool, office: Path | None, at: str | None) -> None:
    """Forget a client that is lost, with everything it added.

    The server subtracts and destroys the client's share of the ledger. A client that still answers
    should leave by itself (expunge client leave), which also empties its own store. A forgotten
    client cannot return under the same name.

    Under secure aggregation the server does not know that share. All other clients must first add
    up what they hold, in one round at their next sync; their sum replaces the ledger. Exits with 7,
    because the client's samples stay in the ledger until then.

    Example:
      expunge server forget-client hospital-a --office federation/operator
    """
    screen = Screen.current()
    screen.confirm(f"Forget {client} and every sample it added? This cannot be undone", yes=yes)
    with office_at(office, at) as connection:
        result = connection.office.do("forget-client", {"client": client})
        rounds = connection.office.ask("status", {})["aggregation"]
    fewer = disclosed(result["count"])
    value = result | {"count": fewer, "pending": fewer is None}
    if fewer is not None:
        screen.result(
            value,
            line(
                f"{client} forgotten: {count(fewer, 'sample')} subtracted from the ledger.",
                Style.GOOD,
            ),
        )
        return
    screen.result(
        value,
        line(
            f"{client} no longer takes part, but its samples are still in the ledger.", Style.WAITS
        ),
        line(
            f"All other clients ({', '.join(rounds['needed'])}) must now add up what they hold, "
            "in one round of secure aggregation. Their sum then replaces the ledger, and the old "
            "ledger is erased.",
            indent=2,
        ),
        next_steps(
            "expunge client sync --wait 600 --dir CLIENT",
            why="Next, at each of them, at about the same time:",
        ),
        next_steps(
            f"expunge server status --office {typed(connection.office.path)}", why="Then, here:"
        ),
    )
    raise click.exceptions.Exit(_command.NOT_YET)


for command in (
    *(disputes, dispute, judge, rotate_key),
    *(backup, restore, accept_loss, scrub_folder, renew_certificate, correct_clock),
):
    server.add_command(command)
