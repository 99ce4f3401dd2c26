"""`expunge client sync` and `leave`: what a client says to the server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from expunge.cli import _command
from expunge.cli._agent import (
    agent_of,
    backbone_of,
    next_round,
    recomputing,
    store_at,
    unserved,
)
from expunge.cli._command import command
from expunge.cli._connect import sync_command
from expunge.cli._format import require_complete, show_synced, show_way_on, synced_value
from expunge.cli._options import (
    RESET_HELP,
    at_option,
    backbone_option,
    client_option,
    wait_options,
    yes_option,
)
from expunge.cli._output import Screen, Style, count, line, next_steps, typed
from expunge.cli.client_status import show_forgotten
from expunge.client import ClientStore, Preview, SyncResult
from expunge.errors import BackboneError, ExpungeError
from expunge.kinds import MESSAGES

if TYPE_CHECKING:
    from expunge.backbones import Backbone


@command()
@client_option
@backbone_option("For a store that keeps no features. [default: as enrolled]")
@click.option(
    "--accept-restored",
    is_flag=True,
    help="The server was restored from a backup: accept its shorter log.",
)
@click.option(
    "--message", type=click.Choice(MESSAGES), help="Send messages of this kind from now on."
)
@click.option(
    "--old-copy",
    is_flag=True,
    help="This folder was restored from a backup: drop what has been erased since.",
)
@click.option(
    "--now",
    "at_once",
    is_flag=True,
    help="Send what waits for more samples: the sum of so few can reveal them.",
)
@click.option("--reset", is_flag=True, help=RESET_HELP)
@wait_options
@at_option
def sync(
    *,
    folder: Path,
    backbone: str | None,
    accept_restored: bool,
    message: str | None,
    old_copy: bool,
    at_once: bool,
    reset: bool,
    wait: float | None,
    at: str | None,
) -> None:
    """Send pending changes, carry out erasure orders, answer audits, fetch the newest head.

    Run it regularly (systemd timer, cron): a client learns of erasure orders only when it syncs. It
    verifies every answer of the server: signatures, that the log only grows, that the head matches
    its certificate.

    Under secure aggregation a change takes effect in a round with other clients. Sync waits for
    them and exits with 7 if they do not join in time; changes stay pending, and the next sync
    continues. If rounds are on a schedule, sync at the beginning of each window: every client takes
    part, also one that has nothing to change.

    In a federation with --fewest-samples a change of fewer samples waits for more, and sync exits
    with 7: additions until there are enough, deletions for at most a quarter of their order's time
    (7.5 days without an order). With --now everything pending is sent.

    --reset is for a sample that is to be deleted while its source is gone, and for a store that was
    put back from a backup: the server drops all that it holds of this client, and gets what is here
    and stays. Its receipt says so. Features that are not kept are all computed again. It is not for
    federations with secure aggregation or in float64: there the operator forgets the client.

    Exits with 1 if the operator has forgotten this client, or the arbiter's verdict bars it.

    Example:
      expunge client sync --dir hospital-a
      expunge client sync --wait 600 --dir hospital-a
    """
    with (
        store_at(folder, old_copy=old_copy) as store,
        agent_of(store, at, backbone_of(store, backbone), wait=wait) as agent,
    ):
        if message is not None:
            store.choose(message)
        done = agent.sync(accept_restored=accept_restored, at_once=at_once, reset=reset)
        status, idle = store.status(), unserved(store, at)
        way_on = show_way_on(done, sync_command(folder, store.address, at), idle)
    screen = Screen.current()
    if status.gone:
        screen.result(
            synced_value(done) | {"samples": status.live + status.adding},
            *show_forgotten(status, folder),
        )
        raise click.exceptions.Exit(_command.FAILED)
    screen.result(synced_value(done), *show_synced(done, status), *way_on)
    require_complete(done)


@command()
@client_option
@backbone_option("For a store that keeps no features. [default: as enrolled]")
@click.option(
    "--withdraw",
    is_flag=True,
    help="Stay after all: take back a departure that has not been delivered.",
)
@yes_option
@wait_options
@at_option
def leave(
    *,
    folder: Path,
    backbone: str | None,
    withdraw: bool,
    yes: bool,
    wait: float | None,
    at: str | None,
) -> None:
    """Leave the federation: delete everything this client added, here and at the server.

    The signed receipt of the deletion stays in the folder. A client that has left cannot return
    under the same name. A client that the operator has forgotten uses this command to erase its
    samples, without a server.

    The server is asked first: if it gives no answer that can be trusted, nothing is changed. A
    departure that could not be delivered then is noted, and the next sync continues it; until then
    --withdraw takes it back. What had never been sent is erased in any case.

    Example:
      expunge client leave --dir hospital-a

    Next:
      expunge client receipts --dir hospital-a -o receipts    # keep the receipts
    """
    screen = Screen.current()
    with store_at(folder) as store:
        if withdraw:
            _withdraw(store, at)
            return
        name, samples = store.name, store.status().live + store.status().adding
        screen.confirm(
            f"Delete all {count(samples, 'sample')} of {name} and leave? This cannot be undone",
            yes=yes,
        )
        gone, done, idle = _leave(store, backbone, wait=wait, at=at)
        status = store.status()
        way_on = show_way_on(done, sync_command(folder, store.address, at), idle)
    text = (
        line(
            f"{name} is leaving, but has not left yet: {count(gone.count, 'sample')} to be "
            "deleted.",
            Style.WAITS,
        )
        if done.waiting
        else line(f"{name} has left: {count(gone.count, 'sample')} deleted.", Style.GOOD)
    )
    screen.result(
        synced_value(done) | {"left": status.left, "count": gone.count},
        text,
        *show_synced(done, status),
        *way_on,
    )
    require_complete(done)


def _leave(
    store: ClientStore, backbone: str | None, *, wait: float | None, at: str | None
) -> tuple[Preview, SyncResult, Path | None]:
    """What is deleted, what the server answered, and where it is if it is not running."""
    if store.gone:  # nobody else holds anything of it
        return store.leave(), SyncResult("gone"), None
    opened = _backbone_if_any(store, backbone)
    if waiting := next_round(store):
        return (
            store.leave(recompute=recomputing(opened)),
            SyncResult("active", waiting=waiting),
            None,
        )
    idle = unserved(store, at)
    with agent_of(store, at, opened, wait=wait) as agent:
        if not store.status().leaving:
            agent.check()
        gone = store.leave(recompute=recomputing(opened))
        try:
            return gone, agent.sync(), idle
        except ExpungeError as problem:
            problem.add_note(
                f"That {store.name} leaves is noted in its folder: "
                f"{sync_command(store.path, store.address, at)} continues; expunge client leave "
                f"--withdraw --dir {typed(store.path)} takes it back"
            )
            raise


def _backbone_if_any(store: ClientStore, description: str | None) -> Backbone | None:
    """The client's backbone; none if it cannot be opened, which is told: what is deleted as a whole
    can do without.
    """
    try:
        return backbone_of(store, description)
    except BackboneError as problem:
        Screen.current().note(str(problem))
        return None


def _withdraw(store: ClientStore, at: str | None) -> None:
    samples = store.stay()
    sync = sync_command(store.path, store.address, at)
    Screen.current().result(
        {"left": False, "count": samples},
        line(f"{store.name} stays: {count(samples, 'sample')} kept.", Style.GOOD),
        next_steps(sync),
    )
