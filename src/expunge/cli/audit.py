"""`expunge audit`: every client recomputes, and the sums must be the ledger; or a lost server is
rebuilt from its clients.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from expunge.cli import _command, _connect
from expunge.cli._command import command
from expunge.cli._connect import OfficeConnection, office_at, office_folder
from expunge.cli._identifiers import Identifier, resolve
from expunge.cli._options import FOLDER, office_options
from expunge.cli._output import Screen, Style, count, facts, line, next_steps, typed, unwrapped
from expunge.errors import EvidenceError, ExpungeError
from expunge.evidence.wording import moment
from expunge.ridge.spec import Spec

if TYPE_CHECKING:
    from expunge.client import SyncResult
    from expunge.federation.recovery import Rebuilt

_PAUSE = 0.3  # seconds between polls of an audit in progress
_SETTLING = 30.0  # seconds that the server may take to add up, once all have answered


@command()
@click.option("--wait", is_flag=True, help="Wait until all clients have answered.")
@click.option(
    "--timeout", type=float, default=3600.0, show_default=True, help="With --wait: seconds to wait."
)
@click.option(
    "--client-dir",
    "folders",
    type=FOLDER,
    multiple=True,
    help="A client's folder on this machine, to answer now. Repeatable.",
)
@click.option(
    "--show",
    "earlier",
    metavar="AUDIT",
    help="Show an earlier audit: its id, a prefix of it, or last.",
)
@click.option(
    "--rebuild",
    type=FOLDER,
    metavar="DIR",
    help="Instead, rebuild a lost server in DIR from its clients.",
)
@office_options
def audit(
    *,
    wait: bool,
    timeout: float,
    folders: tuple[Path, ...],
    earlier: str | None,
    rebuild: Path | None,
    office: Path | None,
    at: str | None,
) -> None:
    """Audit the federation: compare the ledger with what clients recompute.

    Every client recomputes its statistics from its own samples and answers at its next sync. When
    all have answered, the server adds up the answers and compares the sum with the ledger. If they
    are equal, the ledger is, bit for bit, the sum of what the clients say they hold. An audit does
    not look at the head, and a client that lies is not found. The result goes into the audit log
    and into every later certificate. Exits with 3 if anything differs, with 7 while clients have
    yet to answer.

    Under secure aggregation all clients recompute in one round, so at about the same time, and only
    their sum is compared: if it differs, nobody can tell which client is at fault.

    --rebuild replaces a lost server: it creates a new one in DIR from the clients' spec, enrols the
    clients named by --client-dir, has them send everything, and compares the head with the last one
    that they hold. Without --client-dir, a server rebuilt before asks all its clients to send
    again.

    Example:
      expunge audit --wait --office federation/operator
      expunge audit --client-dir clinic-a --client-dir clinic-b
      expunge audit --rebuild new --client-dir clinic-a --client-dir clinic-b
    """
    if rebuild is not None:
        _rebuild(rebuild, folders)
        return
    with office_at(office, at) as connection:
        audit_id = (
            str(connection.office.do("audit", {})["audit"])
            if earlier is None
            else _earlier(connection, earlier)
        )
        silent = _let_answer(connection, folders)
    for folder_name, problem in silent.items():
        Screen.current().note(f"{folder_name} has not answered: {problem}")
    _tell(_result(office, at, audit_id, timeout if wait else 0.0), office_folder(office))


def _let_answer(connection: OfficeConnection, folders: tuple[Path, ...]) -> dict[str, str]:
    """Let the available clients answer; returns why some could not, by folder.

    The others are asked all the same.
    """
    if not folders:
        return {}
    from expunge.cli._agent import agent_on, backbone_of, store_at  # noqa: PLC0415 - bring a client
    from expunge.client.sync import SyncResult, patience, sync_all  # noqa: PLC0415 - the same

    problems: dict[str, str] = {}

    def answer(folder: Path) -> SyncResult:
        try:
            with (
                store_at(folder) as store,
                agent_on(store, connection.carrier, backbone_of(store, None)) as agent,
            ):
                return agent.sync()
        except (ExpungeError, OSError) as problem:
            problems[str(folder)] = str(problem)
            return SyncResult("active")

    done = sync_all({str(folder): partial(answer, folder) for folder in folders}, patience())
    return problems | {folder: synced.waiting for folder, synced in done.items() if synced.waiting}


def _earlier(connection: OfficeConnection, given: str) -> str:
    identifiers = [Identifier(entry["audit"]) for entry in connection.office.ask("audits", {})]
    return resolve(given, identifiers, "audit")


def _result(office: Path | None, at: str | None, audit_id: str, seconds: float) -> dict[str, Any]:
    """The audit's current state, after waiting for clients for up to `seconds`.

    Between two polls the server is released: clients on this machine may need its folder to answer.
    """
    ends = time.monotonic() + seconds
    with Screen.current().progress("Waiting for clients", None) as progress:
        while True:
            with office_at(office, at) as connection:
                outcome = _settled(connection, audit_id)
                outcome["masked"] = Spec.from_dict(
                    connection.office.federation_content()["spec"]
                ).is_masked
                outcome["held_up"] = _held_up(connection, outcome)
            if outcome["result"] != "under way" or time.monotonic() >= ends:
                return outcome
            progress(len(outcome["equal"]) + len(outcome["different"]))
            time.sleep(_PAUSE)


def _held_up(connection: OfficeConnection, outcome: dict[str, Any]) -> str:
    """Why the round of all clients that a masked audit waits for cannot take place; or empty."""
    if outcome["result"] != "under way" or not outcome["masked"]:
        return ""
    from expunge.cli._aggregation import held_up  # noqa: PLC0415 - for masked federations only

    return held_up(connection.office.ask("status", {})["aggregation"])


def _settled(connection: OfficeConnection, audit_id: str) -> dict[str, Any]:
    """The audit; if all clients have answered, the server is given the time to add up."""
    ends = time.monotonic() + _SETTLING
    while True:
        outcome: dict[str, Any] = connection.office.ask("show-audit", {"audit": audit_id})
        if outcome["result"] != "under way" or outcome["waiting"] or time.monotonic() >= ends:
            return outcome
        time.sleep(_PAUSE)


def _tell(outcome: dict[str, Any], office: Path) -> None:
    screen, result, masked = Screen.current(), outcome["result"], outcome.pop("masked")
    style = {"equal": Style.GOOD, "different": Style.BAD}.get(result, Style.WAITS)
    whose = (
        "Under secure aggregation nobody can tell which client is at fault."
        if masked
        else "Check the clients listed below."
    )
    words = {
        "equal": (
            "The ledger equals, bit for bit, the sum of what all clients recomputed from their "
            "samples. The audit does not look at the head."
        ),
        "different": f"The ledger is NOT the sum of what the clients recomputed. {whose}",
    }
    meanwhile = (
        "Clients answer in one round, which needs all of them at the same time: sync each."
        if masked
        else ""
    )
    screen.result(
        outcome,
        Text.assemble(
            (f"Audit {outcome['audit'][:8]}: ", "bold"),
            (result, f"bold {style}" if result == "equal" else style),
        ),
        line(words.get(result, meanwhile or "Clients answer at their next sync."), indent=2),
        facts(
            [
                ("Started", moment(outcome["started"])),
                *([("Finished", moment(outcome["finished"]))] if outcome["finished"] else []),
                *_answers(outcome, masked=masked),
                *([("Waiting for", ", ".join(outcome["waiting"]))] if outcome["waiting"] else []),
                *([("Must wait", outcome["held_up"])] if outcome["held_up"] else []),
                *([("Log entry", outcome["index"])] if outcome["index"] >= 0 else []),
            ]
        ),
        *(
            [
                next_steps(
                    f"expunge audit --show {outcome['audit'][:8]} --wait --office {typed(office)}"
                )
            ]
            if result == "under way"
            else []
        ),
    )
    if result == "different":
        raise click.exceptions.Exit(_command.EVIDENCE)
    if result == "under way":
        raise click.exceptions.Exit(_command.NOT_YET)


def _answers(outcome: dict[str, Any], *, masked: bool) -> list[tuple[str, object]]:
    """Who agrees and who differs; under secure aggregation, whose sum was compared."""
    if masked:
        whose: list[tuple[str, object]] = [
            ("Sum of", ", ".join(outcome["clients"])),
            ("Samples in the ledger", f"{outcome['count']:,}"),
        ]
        return whose if outcome["finished"] else []
    different = (
        [("Different", Text(", ".join(outcome["different"]), style=Style.BAD))]
        if outcome["different"]
        else []
    )
    equal = ", ".join(outcome["equal"]) or "none yet"
    return [("Samples recomputed", f"{outcome['count']:,}"), ("Equal", equal), *different]


def _rebuild(directory: Path, folders: tuple[Path, ...]) -> None:
    from expunge.cli._agent import backbone_of, recomputing, store_at  # noqa: PLC0415 - bring a client
    from expunge.federation.recovery import rebuild_server  # noqa: PLC0415 - brings the whole server

    screen = Screen.current()
    with ExitStack() as stack:
        stores = [stack.enter_context(store_at(folder)) for folder in folders]
        progress = stack.enter_context(screen.progress("Clients sending again", len(stores)))
        made = rebuild_server(
            directory,
            stores,
            recompute=lambda store: recomputing(backbone_of(store, None)),
            timeout=_connect.PATIENCE,
            progress=progress,
        )
    value = asdict(made) | {"folders": [str(folder) for folder in folders]}
    for name, why in value.pop("unsent").items():
        screen.note(f"{name} has not sent what it holds: {why}")
    screen.result(value, *_shown(made, directory, folders))
    if made.verdict == "different":
        raise EvidenceError(
            "the rebuilt server has as many samples and clients as the lost one, but another head "
            f"({made.head[:16]}…, it was {made.old_head[:16]}…): a client's store was altered, or "
            "has changed since the last head that is known"
        )


def _shown(made: Rebuilt, directory: Path, folders: tuple[Path, ...]) -> list[Any]:
    operator = typed(directory / "operator")
    words = {
        "equal": ("The head equals, bit for bit, the last one that the clients held.", Style.GOOD),
        "changed": (
            (
                "Samples have changed since the last head that the clients held, or not all "
                "clients are back."
            ),
            Style.WAITS,
        ),
        "different": ("The head differs from the last one that the clients held.", Style.BAD),
        "unknown": ("No client held a head to compare with.", Style.WAITS),
    }
    if not folders:
        return [
            unwrapped(f"The server in {directory} now asks all its clients to send again", "bold"),
            facts(
                [
                    (
                        "Waiting for",
                        ", ".join(made.waiting) or "none: no client is enrolled there yet",
                    )
                ]
            ),
            line("Its ledger is empty until they do so, at their next sync.", indent=2),
            next_steps(
                "expunge client sync --dir NAME --accept-restored", why="Next, at each client:"
            ),
            next_steps(f"expunge server status --office {operator}", why="Then, here:"),
        ]
    earlier = (
        f" ({made.old_samples:,} at the newest head that these clients held)"
        if made.old_samples >= 0
        else ""
    )
    return [
        unwrapped(f"Server rebuilt in {directory}, as federation {made.federation}", "bold"),
        facts(
            [
                ("Clients", ", ".join(made.clients)),
                *([("Waiting for", ", ".join(made.waiting))] if made.waiting else []),
                ("Samples", f"{made.samples:,}{earlier}"),
                ("Head", made.head or "none can be published"),
            ]
        ),
        line(*words[made.verdict], indent=2),
        next_steps(
            f"expunge audit --office {operator} "
            + " ".join(f"--client-dir {typed(folder)}" for folder in folders),
            f"expunge server token NAME -o NAME.token --office {operator}",
            "expunge enroll NAME.token --dir NAME --rejoin",
            f"expunge audit --rebuild {typed(directory)}",
            why=(
                f"Next: audit {count(len(made.clients), 'client')}. For clients elsewhere: "
                "make tokens, enrol, then ask all to send again:"
            ),
        ),
    ]
