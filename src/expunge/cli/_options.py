"""Options that several commands share, and what is read from them."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from expunge.errors import InputError
from expunge.wire.schema import UNDISCLOSED

if TYPE_CHECKING:
    from expunge.ridge.spec import Spec

Function = TypeVar("Function", bound=Callable[..., Any])

RESET_HELP = (
    "Have the server drop all that it holds of this client, and send all that stays again: deletes "
    "what has lost its source."
)
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

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 24 * 3600}  # of a duration

BACKBONE = "The backbone that turns images or texts into features. [default: as enrolled]"

at_option = click.option(
    "--at",
    metavar="URL|DIR",
    help="The server's URL or the federation's folder. [default: as enrolled]",
)
yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
office_option = click.option(
    "--office",
    type=FOLDER,
    envvar="EXPUNGE_OFFICE",
    show_envvar=True,
    help="The operator's or officer's folder. [default: this folder, or ./operator]",
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
fetched_head_option = click.option(
    "--dir",
    "folder",
    type=FOLDER,
    envvar="EXPUNGE_CLIENT",
    help="Use the head that this client last fetched.",
)
trust_option = click.option(
    "--trust",
    type=FOLDER,
    help="Take the key and its rotations from this office, client or federation folder.",
)
feature_columns_option = click.option(
    "--feature-column",
    "feature_columns",
    multiple=True,
    metavar="NAME",
    help="A feature column. Repeatable.",
)
id_column_option = click.option("--id-column", metavar="NAME", help="The id column. [default: id]")


def office_options(function: Function) -> Function:
    """--office and --at."""
    return office_option(at_option(function))


def output_option(text: str, *, required: bool = False) -> Callable[[Function], Function]:
    """-o FILE, in a folder that exists."""
    return click.option(
        "-o",
        "--output",
        type=click.Path(path_type=Path, dir_okay=False),
        required=required,
        callback=_in_a_folder,
        help=text,
    )


def _in_a_folder(_: click.Context, __: click.Parameter, path: Path | None) -> Path | None:
    folder = None if path is None else path.absolute().parent
    if folder is not None and not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise InputError(
            f"there is no folder {folder} that can be written to: make it, or choose another"
        )
    return path


def host_option(text: str) -> Callable[[Function], Function]:
    """--host, repeatable."""
    return click.option("--host", "hosts", multiple=True, metavar="NAME", help=text)


def port_option(
    text: str = "The server's port.",
) -> Callable[[Function], Function]:
    """--port, of a server that others reach by --host."""
    ports = click.IntRange(1, 65535)
    return click.option("--port", type=ports, default=8443, show_default=True, help=text)


def mirror_option(when: str = ", on another disk") -> Callable[[Function], Function]:
    """--mirror, repeatable."""
    text = f"Mirror the vault to this file{when}. Repeatable."
    return click.option("--mirror", "mirrors", type=PATH, multiple=True, help=text)


def backbone_option(text: str = BACKBONE) -> Callable[[Function], Function]:
    """--backbone."""
    return click.option("--backbone", metavar="DESCRIPTION", help=text)


def backbone_argument(spec: Spec, description: str | None = None) -> str:
    """`--backbone` for a command to type next, where the spec pins a backbone; else nothing."""
    return f" --backbone {shlex.quote(description or 'DESCRIPTION')}" if spec.backbone else ""


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
            parsed = datetime.strptime(text, form)
        except ValueError:
            continue
        return (parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)).timestamp()
    raise InputError(
        f"{option} {text!r:.40} must be a time in UTC such as 2026-11-15 or 2026-11-15T09:30:00Z, "
        "or one with its offset such as 2026-11-15T11:30:00+02:00"
    )


def _read_duration(_: click.Context, __: click.Parameter, given: str | None) -> int | None:
    match = None if given is None else re.fullmatch(r"([0-9]{1,9})([smhd]?)", given)
    if given is not None and match is None:
        raise click.BadParameter(f"{given!r:.40} must be a duration such as 90s, 5m, 1h or 1d")
    return None if match is None else int(match[1]) * _UNITS[match[2]]


def duration_option(name: str, text: str) -> Callable[[Function], Function]:
    """An option that takes 90s, 5m, 1h or 1d, of which the command gets whole seconds."""
    return click.option(name, metavar="DURATION", callback=_read_duration, help=text)


def _read_subject(_: click.Context, __: click.Parameter, given: str | None) -> str | None:
    return None if given is None else subject_text(given)


def subject_option(text: str) -> Callable[[Function], Function]:
    """--subject, read from standard input where it is - : exactly once."""
    return click.option(
        "--subject", callback=_read_subject, help=f"{text}; - reads it from standard input."
    )


WAIT = 30.0  # seconds that a command waits for the other clients of a round
WAIT_AFTER = 240.0  # seconds that it waits from the end of a window, if rounds are on a schedule
NOT_DISCLOSED = "not disclosed"


def wait_options(function: Function) -> Function:
    """--wait and --no-wait, of which the command gets `wait`: seconds, or None for the usual."""
    function = click.option(
        "--no-wait",
        "wait",
        flag_value=0.0,
        type=float,
        help="Do not wait; the next sync continues.",
    )(function)
    return click.option(
        "--wait",
        type=click.FloatRange(0.0),
        metavar="SECONDS",
        help=(
            "Secure aggregation: how long to wait for other clients. [default: "
            f"{WAIT:g}; on a schedule, to the end of the window and {WAIT_AFTER:g} more]"
        ),
    )(function)


def disclosed(number: int) -> int | None:
    """A number of samples as JSON shows it: None if it is not disclosed, which the protocol writes
    as -1.
    """
    return None if number == UNDISCLOSED else number
