"""A lost server, rebuilt from its clients.

A new federation is founded from the clients' spec; each client at hand enrols its own key there
under its own name. Then all are asked to send everything, which is what a server asks that was
restored from a backup: so it is made one, by backing up the new server, whose ledger is empty, and
restoring it in its own place.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from expunge.cli._agent import backbone_of, store_at
from expunge.cli._connect import ATTEMPTS, Reached, carrier_to, office_at
from expunge.cli._heads import store_head
from expunge.cli._output import Screen
from expunge.cli._samples import recomputing
from expunge.client import Agent, ClientStore, Synced
from expunge.client.enrolment import rejoin
from expunge.client.sync import patience, sync_all
from expunge.crypto import SigningKey
from expunge.errors import InputError, SpecMismatchError
from expunge.evidence import Certificate
from expunge.federation.founding import found_federation
from expunge.federation.layout import Layout
from expunge.ridge.spec import Spec
from expunge.server.backup import restore


@dataclass(frozen=True)
class Rebuilt:
    """What came of it.

    `verdict`: equal, changed, different or unknown; the old values are those of the newest head
    known.
    """

    directory: str
    federation: str
    clients: list[str]
    waiting: list[str]  # enrolled, and yet to send what they hold
    folders: list[str]
    samples: int
    head: str
    old_samples: int
    old_head: str
    verdict: str

    def value(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def rebuild_server(directory: Path, folders: Sequence[Path]) -> Rebuilt:
    """Rebuild a server from the clients in these folders; if it has been rebuilt before, let more
    clients in.
    """
    _recover(directory)
    exists = Layout.is_at(directory)
    if not folders and not exists:
        raise InputError(
            "a server is rebuilt from its clients: give at least one, --client-dir DIR"
        )
    with ExitStack() as stack:
        stores = [stack.enter_context(store_at(folder)) for folder in folders]
        heads = [found[2] for found in map(store_head, stores) if found is not None]
        pending = any(one.adding or one.deleting for one in (store.status() for store in stores))
        place = Layout.at(directory) if exists else found_federation(directory, _spec(stores))
        place.write_settings(urls=place.urls, mirrors=place.mirrors, rebuilt=True)
        _enrol(place, stores)
        _ask_all_again(place)
        _sync(place, stores)
        with office_at(place.operator, None) as reached:
            made = _compared(reached, place, stores, folders, heads)
    return replace(made, verdict="changed") if pending and made.verdict == "different" else made


def _spec(stores: Sequence[ClientStore]) -> Spec:
    """The spec of the client that was last in step with the lost server; the others' must lead to
    it.
    """
    newest = max(stores, key=lambda store: store.checkpoint[0]).spec
    for store in stores:
        if not newest.grows_from(store.spec):
            raise SpecMismatchError(
                f"{store.name} is of another federation: {store.spec.difference(newest)}"
            )
    return newest


def _enrol(place: Layout, stores: Sequence[ClientStore]) -> None:
    with office_at(place.operator, None) as reached:
        known = {one["name"] for one in reached.office.ask("clients", {})}
        for store in stores:
            if store.federation == reached.office.federation and store.name in known:
                continue
            token, _ = reached.office.token(store.name, "client", (str(place.path),))
            rejoin(store, token, reached.carrier, str(place.path))


def _ask_all_again(place: Layout) -> None:
    """Make the server one that was restored from a backup: every client is asked to send what it
    holds.
    """
    name = f"again-{secrets.token_hex(8)}"
    with office_at(place.operator, None) as reached:
        reached.office.do("backup", {"name": name})
    fresh, old = place.path / "server.new", place.path / "server.old"
    key = SigningKey.from_pem((place.server / "server.key").read_bytes())
    restore(
        fresh,
        place.server / "backups" / name,
        key,
        vault=place.server / "server.vault",
        mirrors=place.mirrors,
    )
    place.server.rename(old)
    fresh.rename(place.server)
    _shred(old)


def _recover(directory: Path) -> None:
    """Finish, or undo, a restoration that was interrupted."""
    server, fresh, old = (directory / name for name in ("server", "server.new", "server.old"))
    if old.exists():
        if fresh.exists():
            fresh.rename(server)
        _shred(old)
    elif fresh.exists():
        _shred(fresh)


def _shred(folder: Path) -> None:
    """Remove a server's folder; the keys in its vault are overwritten first, for other copies of
    what they seal may linger.
    """
    vault = folder / "server.vault"
    if vault.exists():
        with vault.open("r+b") as file:
            file.write(bytes(vault.stat().st_size))
            file.flush()
            os.fsync(file.fileno())
    shutil.rmtree(folder)


def _sync(place: Layout, stores: Sequence[ClientStore]) -> None:
    with (
        carrier_to(str(place.path)) as carrier,
        Screen.current().progress("Clients send again", len(stores)) as progress,
    ):
        sent: set[str] = set()

        def send(store: ClientStore) -> Synced:
            again = recomputing(backbone_of(store, None))
            done = Agent(store, carrier, recompute=again, attempts=ATTEMPTS).sync(
                accept_restored=True
            )
            if not done.waiting:
                sent.add(store.name)
            progress(len(sent))
            return done

        sends = {store.name: partial(send, store) for store in stores}
        for name, done in sync_all(sends, patience()).items():
            if done.waiting:
                Screen.current().note(f"{name} has not sent what it holds: {done.waiting}")


def _compared(
    reached: Reached,
    place: Layout,
    stores: Sequence[ClientStore],
    folders: Sequence[Path],
    heads: Sequence[Certificate],
) -> Rebuilt:
    status = reached.office.ask("status", {})
    enrolled = reached.office.ask("clients", {})
    newest = max(heads, key=lambda one: (one.time, one.count)) if heads else None
    return Rebuilt(
        directory=str(place.path),
        federation=reached.office.federation,
        clients=[store.name for store in stores],
        waiting=[one["name"] for one in enrolled if one["status"] == "must-rejoin"],
        folders=[str(folder) for folder in folders],
        samples=status["samples"],
        head=status["head"],
        old_samples=-1 if newest is None else newest.count,
        old_head="" if newest is None else newest.head,
        verdict=_verdict(status, heads),
    )


def _verdict(status: dict[str, Any], heads: Sequence[Certificate]) -> str:
    """A head of as many samples of as many clients must be the same one, unless a store was
    altered.
    """
    if not heads:
        return "unknown"
    if any(one.head == status["head"] for one in heads):
        return "equal"
    now = (status["samples"], status["clients"]["active"], status["spec"])
    return (
        "different"
        if any((one.count, one.clients, one.spec.digest) == now for one in heads)
        else "changed"
    )
