"""`expunge enroll`: become a client, an officer or an operator by a one-time token."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from cryptography.x509 import load_pem_x509_certificates

from expunge.backbones import Backbone, backbone_from, require_fingerprint
from expunge.cli._agent import store_at
from expunge.cli._command import command
from expunge.cli._connect import absolute, carrier_to
from expunge.cli._options import (
    FOLDER,
    at_option,
    backbone_argument,
    backbone_option,
    mirror_option,
)
from expunge.cli._output import Screen, facts, next_steps, title, typed, unwrapped
from expunge.client import ClientStore, enrol
from expunge.client.enrolment import federation_spec
from expunge.client.enrolment import rejoin as rejoined
from expunge.errors import CarrierError, FormatError, InputError
from expunge.kinds import MESSAGES
from expunge.office import Office
from expunge.wire.token import Token


@command()
@click.argument("token")
@click.option(
    "--dir",
    "folder",
    type=FOLDER,
    required=True,
    help="The new folder for key, samples and receipts.",
)
@click.option(
    "--message",
    type=click.Choice(MESSAGES),
    help="The kind of messages to send. [default: rows, if allowed]",
)
@click.option(
    "--recompute",
    is_flag=True,
    help="Keep no features; recompute them from their files when needed, also to delete.",
)
@backbone_option("Turns images or texts into features, as in hf:FOLDER?pooling=cls.")
@mirror_option()
@click.option(
    "--rejoin",
    is_flag=True,
    help="The folder is an existing client's: move it to the rebuilt server.",
)
@at_option
def enroll(
    *,
    token: str,
    folder: Path,
    message: str | None,
    recompute: bool,
    backbone: str | None,
    mirrors: tuple[Path, ...],
    rejoin: bool,
    at: str | None,
) -> None:
    r"""Enrol in a federation with a one-time TOKEN from its operator.

    TOKEN is the token itself, a file that holds it, or - for standard input. The token sets the
    role: a client gets a store of samples, an officer or operator an office. The private key is
    created here and never leaves this folder; the token pins the server's key. If the server's
    answer is lost, run the same command again to finish.

    --message rows shows the server the features themselves and makes deletions faster. gram shows
    it the sums of a batch, which can reveal the samples of a small batch.

    With --recompute a sample's file must stay, as it was, until the sample is deleted here: its
    feature is computed again for that. Where the file is gone first, --reset (forget, sync) has the
    server drop all of this client and computes and sends all other samples again; under secure
    aggregation only the operator can help, by forgetting the client. Features that are kept need
    no files.

    Example:
      expunge enroll hospital-a.token --dir hospital-a
      expunge enroll hospital-a.token --dir hospital-a \
          --backbone 'onnx:model.onnx?size=224'

    Next:
      expunge client add samples.csv --dir hospital-a
    """
    given = token_from(token)
    client_only = {
        "--message": message,
        "--recompute": recompute,
        "--backbone": backbone,
        "--mirror": mirrors,
        "--rejoin": rejoin,
    }
    if given.role != "client" and any(client_only.values()):
        wrong = ", ".join(name for name, value in client_only.items() if value)
        raise InputError(
            f"the token of {given.name} is for an {given.role}, who has no samples: leave out "
            f"{wrong}"
        )
    if rejoin:
        _at_first_reachable(given, at, lambda address: _rejoin(folder, given, address))
    elif given.role == "client":
        _client(
            folder,
            given,
            at,
            message=message or "",
            recompute=recompute,
            backbone=backbone,
            mirrors=mirrors,
        )
    else:
        _at_first_reachable(given, at, lambda address: _office(folder, given, address))


def token_from(given: str) -> Token:
    """The token itself, that of a file, or (-) that of standard input; whole."""
    return _whole(Token.from_text(_text(given)))


def _text(token: str) -> str:
    if token == "-":  # noqa: S105 - the name of standard input
        return sys.stdin.read()
    if token.startswith("expunge-token-"):
        return token
    path = Path(token)
    if not path.is_file():
        raise InputError(f"{token!r:.80} is neither an enrolment token nor a file that holds one")
    return path.read_text(encoding="ascii", errors="replace")


def _whole(token: Token) -> Token:
    """The token, if its certificate can be read: an altered character may be anywhere."""
    try:
        if token.ca:
            load_pem_x509_certificates(token.ca.encode("utf-8"))
    except ValueError as problem:
        raise FormatError(
            "the enrolment token is damaged: copy it again, whole (its certificate cannot be read)"
        ) from problem
    return token


def addresses(token: Token, at: str | None) -> tuple[str, ...]:
    """Where to try, in this order; a folder by its whole path, since the address is kept."""
    given = (at,) if at else token.urls
    if not given:
        raise InputError(
            "the token does not say where the server is: give --at URL, or --at DIR for one on "
            "this machine"
        )
    return tuple(absolute(address) for address in given)


def _client(
    folder: Path,
    token: Token,
    at: str | None,
    *,
    message: str,
    recompute: bool,
    backbone: str | None,
    mirrors: tuple[Path, ...],
) -> None:
    opened = None if backbone is None else backbone_from(backbone)
    if recompute and opened is None:
        raise InputError(
            "--recompute needs --backbone: without it no feature could be computed again"
        )
    settings = {
        "mode": "recompute" if recompute else "cached",
        "message": message,
        "mirrors": mirrors,
    }
    _at_first_reachable(token, at, lambda address: _enrol(folder, token, address, opened, settings))


def _at_first_reachable(token: Token, at: str | None, act: Callable[[str], None]) -> None:
    """Do it at the first address that gives an answer."""
    *others, last = addresses(token, at)
    for address in others:
        try:
            return act(address)
        except CarrierError as problem:
            Screen.current().note(f"{problem}. Trying another address of the server")
    return act(last)


def _enrol(
    folder: Path, token: Token, address: str, opened: Backbone | None, settings: dict[str, Any]
) -> None:
    with carrier_to(address, token.ca) as carrier:
        if opened is not None:
            require_fingerprint(federation_spec(token.server, carrier), opened)
        with enrol(folder, token, carrier, address=address, **settings) as store:
            if opened is not None:
                store.remember({"backbone": json.dumps(opened.describe())})
            _show_client(store, folder)


def _show_client(store: ClientStore, folder: Path) -> None:
    spec = store.spec
    backbone = "" if store.recall("backbone") is not None else backbone_argument(spec)
    labels = (
        "regression" if spec.labels is None else ", ".join(str(label) for label in spec.labels[:8])
    )
    Screen.current().result(
        {
            "name": store.name,
            "role": "client",
            "federation": store.federation,
            "directory": str(store.path),
            "address": store.address,
            "message": store.message,
            "mode": store.mode,
            "spec": spec.to_dict(),
        },
        title(f"{store.name} is enrolled in federation {store.federation}"),
        facts(
            [
                ("Folder", folder),
                ("Server", unwrapped(store.address)),
                (
                    "Features",
                    f"{spec.dim} numbers each, below {spec.grid.limit:g} in magnitude",
                ),
                (
                    "Labels",
                    labels + (", ..." if spec.labels is not None and len(spec.labels) > 8 else ""),
                ),
                ("Messages", store.message),
                (
                    "Keeps features",
                    "yes" if store.mode == "cached" else "no: recomputes them when needed",
                ),
            ]
        ),
        next_steps(
            f"expunge client add samples.csv --dir {typed(folder)}{backbone}",
            f"expunge client status --dir {typed(folder)}",
        ),
    )


def _office(folder: Path, token: Token, address: str) -> None:
    with (
        carrier_to(address, token.ca) as carrier,
        Office.enrol(folder, token, carrier, address=address) as office,
    ):
        Screen.current().result(
            {
                "name": office.name,
                "role": office.role,
                "federation": office.federation,
                "directory": str(office.path),
                "address": office.address,
            },
            title(f"{office.name} is enrolled in federation {office.federation} as {office.role}"),
            facts([("Folder", folder), ("Server", unwrapped(office.address))]),
            next_steps(
                f"export EXPUNGE_OFFICE={typed(folder)}",
                "expunge order file SUBJECT",
                "expunge order list",
            ),
        )


def _rejoin(folder: Path, token: Token, address: str) -> None:
    with store_at(folder) as store, carrier_to(address, token.ca) as carrier:
        rejoined(store, token, carrier, address)
        Screen.current().result(
            {
                "name": store.name,
                "role": "client",
                "federation": store.federation,
                "directory": str(store.path),
            },
            title(
                f"{store.name} is enrolled at the rebuilt server of federation {store.federation}"
            ),
            facts([("Samples to send again", store.status().live)]),
            next_steps(
                f"expunge client sync --dir {typed(folder)}",
                why="Next, when the operator has asked all clients to send again:",
            ),
        )
