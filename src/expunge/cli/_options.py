"""Options that several commands share, and what is read from them.

Where the output goes and whose office it is; which samples are meant (forget and export share it);
the rules of secure aggregation as options and in words, how long to wait for others, and what is
not disclosed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from expunge.cli._output import Screen, count
from expunge.client import ClientStore, Selection
from expunge.errors import InputError
from expunge.ridge.spec import Aggregation, Label, Spec
from expunge.secagg import plan
from expunge.wire.schema import UNDISCLOSED

Function = TypeVar("Function", bound=Callable[..., Any])

PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)

TIMES = (
    "2026-11-15, or 2026-11-15T09:30 in UTC, or 2026-11-15T09:30+02:00"  # as the help shows them
)
_TIMES = (
    "%Y-%m-%d",
    "%Y-%m-%dT%H:%M",
    "%Y-%m-%dT%H:%M:%S",
    "%Y-%m-%dT%H:%M%z",
    "%Y-%m-%dT%H:%M:%S%z",
)

at_option = click.option(
    "--at",
    metavar="URL|DIR",
    help=(
        "Where the server is: its URL, or the federation's folder on this machine. [default: as "
        "enrolled]"
    ),
)
yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
office_option = click.option(
    "--office",
    type=FOLDER,
    envvar="EXPUNGE_OFFICE",
    show_envvar=True,
    help="The folder of the operator or officer who speaks. [default: this folder, or ./operator]",
)
client_option = click.option(
    "--dir",
    "folder",
    type=FOLDER,
    envvar="EXPUNGE_CLIENT",
    show_envvar=True,
    required=True,
    help="The client's folder.",
)


def office_options(function: Function) -> Function:
    """--office and --at."""
    return office_option(at_option(function))


def output_option(text: str, *, required: bool = False) -> Callable[[Function], Function]:
    """-o FILE."""
    return click.option(
        "-o",
        "--output",
        type=click.Path(path_type=Path, dir_okay=False),
        required=required,
        help=text,
    )


def subject_text(given: str) -> str:
    """A subject as it was given; - reads it from standard input."""
    text = sys.stdin.readline().rstrip("\n") if given == "-" else given
    if not text:
        raise InputError("the subject is empty: give the id under which clients keep the person")
    return text


def seconds(text: str | None, option: str) -> float | None:
    """A time as seconds since 1970.

    One without an offset (Z, +02:00) is in UTC; so is a day, which begins at midnight.
    """
    if text is None:
        return None
    for form in _TIMES:
        try:
            found = datetime.strptime(text, form)
        except ValueError:
            continue
        return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()
    raise InputError(
        f"{option} {text!r:.40} must be a time in UTC such as 2026-11-15 or 2026-11-15T09:30:00Z, "
        "or one with its offset such as "
        "2026-11-15T11:30:00+02:00"
    )


def _read_subject(_: click.Context, __: click.Parameter, given: str | None) -> str | None:
    return None if given is None else subject_text(given)


def subject_option(text: str) -> Callable[[Function], Function]:
    """--subject, read from standard input where it is - : once, whatever happens afterwards."""
    return click.option(
        "--subject", callback=_read_subject, help=f"{text}; - reads it from standard input."
    )


_OPTIONS = (
    click.option("--id", "ids", multiple=True, help="A sample by its id. Repeatable."),
    click.option(
        "--ids-from", type=FILE, help="Samples by their ids, one on each line of this file."
    ),
    subject_option("All samples about this person"),
    click.option("--label", help="All samples with this label."),
    click.option("--since", metavar="TIME", help=f"Added at this time or later: {TIMES}."),
    click.option("--until", metavar="TIME", help="Added before this time."),
    click.option("--all", "everything", is_flag=True, help="All samples."),
    click.option(
        "--ignore-missing",
        is_flag=True,
        help="Pass over ids that are not in the store, such as those gone already.",
    ),
)


def selection_options(function: Function) -> Function:
    """The conditions; a sample must meet all that are given."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def selection_of(store: ClientStore, given: dict[str, Any]) -> Selection | None:
    """What is meant; None if only samples are named that are not there, which may be so."""
    ids, spec = list(given["ids"]), store.spec
    if given["ids_from"] is not None:
        ids += [row for row in given["ids_from"].read_text(encoding="utf-8").splitlines() if row]
    missing = set(store.missing(ids)) if given["ignore_missing"] else set()
    if missing:
        Screen.current().note(f"{count(len(missing), 'id')} not in the store, passed over")
        ids = [one for one in ids if one not in missing]
        if not ids:
            return None
    label = given["label"]
    return Selection(
        ids=ids or None,
        subject=given["subject"],
        label=None if label is None else as_label(spec, label),
        since=seconds(given["since"], "--since"),
        until=seconds(given["until"], "--until"),
        everything=given["everything"],
    )


def as_label(spec: Spec, text: str) -> Label:
    """A label as the spec has it: a name, or a class index where the labels are integers."""
    labels = spec.labels or ()
    return int(text) if text not in labels and text.isdigit() and int(text) in labels else text


WAIT = 30.0  # seconds that a command waits for the other clients of a round
NOT_DISCLOSED = "not disclosed"
_SET_BY_OPTIONS = ("fewest", "dropouts", "colluding")


def rules_options(function: Function) -> Function:
    """The options of `expunge init` by which secure aggregation is chosen."""
    usual = Aggregation()
    options = (
        click.option(
            "--secure-aggregation",
            is_flag=True,
            help=(
                "Clients send masked messages only: the server learns sums over rounds of "
                "clients, exactly, and nothing else."
            ),
        ),
        click.option(
            "--fewest",
            type=click.IntRange(2),
            help=f"With it: no sum of fewer clients is ever unmasked. [default: {usual.fewest}]",
        ),
        click.option(
            "--dropouts",
            type=click.IntRange(0, 99),
            metavar="PERCENT",
            help=f"With it: so many of a round's clients may drop out. [default: {usual.dropouts}]",
        ),
        click.option(
            "--colluding",
            type=click.IntRange(0, 99),
            metavar="PERCENT",
            help=(
                "With it: so many of a round's clients may side with the server. [default: "
                f"{usual.colluding}]"
            ),
        ),
        click.option(
            "--clients",
            "expected",
            type=click.IntRange(2),
            metavar="N",
            help=(
                "With it: show what the rules mean for a round of N clients. Nothing depends on N."
            ),
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def rules_of(given: dict[str, Any]) -> Aggregation | None:
    """The rules that the options give; None without secure aggregation, of which no option may
    speak then.
    """
    chosen = {name: given[name] for name in _SET_BY_OPTIONS if given[name] is not None}
    if given["secure_aggregation"]:
        return Aggregation(**chosen)
    if chosen:
        raise click.UsageError(
            f"--{next(iter(chosen))} is a rule of secure aggregation: give --secure-aggregation, "
            "too"
        )
    return None


def rules_in_words(rules: Aggregation) -> str:
    """What the rules ask for and allow."""
    return (
        f"of {rules.fewest} clients at least; {rules.dropouts} % of them may drop out, "
        f"{rules.colluding} % may side with the "
        "server"
    )


def plan_in_words(rules: Aggregation, clients: int) -> str:
    """What the rules mean for a round of so many clients."""
    found = plan(rules, clients)
    masks = "every other client" if found.degree == clients - 1 else f"{found.degree} others"
    shares = "1 share opens" if found.threshold == 1 else f"{found.threshold} shares open"
    return (
        f"each shares masks with {masks}; {shares} a mask; the sum of {found.survivors} or more "
        "is opened; "
        f"{found.colluders or 'none'} may side with the server"
    )


def plan_value(rules: Aggregation | None, clients: int | None) -> dict[str, int] | None:
    """The same as JSON."""
    return (
        None
        if rules is None or clients is None
        else {"clients": clients, **asdict(plan(rules, clients))}
    )


def wait_options(function: Function) -> Function:
    """--wait and --no-wait, of which the command gets `wait`: seconds."""
    function = click.option(
        "--no-wait",
        "wait",
        flag_value=0.0,
        type=float,
        help="Do not wait for other clients: the next sync goes on.",
    )(function)
    return click.option(
        "--wait",
        type=click.FloatRange(0.0),
        default=WAIT,
        show_default=True,
        metavar="SECONDS",
        help="Under secure aggregation: how long to wait for the other clients of a round.",
    )(function)


def disclosed(number: int) -> int | None:
    """A number of samples as JSON shows it: None if it is not disclosed, which the protocol writes
    as -1.
    """
    return None if number == UNDISCLOSED else number
