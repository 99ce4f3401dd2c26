"""A lost server, restored from a backup or rebuilt from its clients; or one that has lost the end
of its audit log, and goes on with what is left.

In every case its ledger is empty at first, and every client is asked to send what it holds now:
what was deleted since stays deleted. Without a backup a new federation is founded from the clients'
spec, and each available client enrols its own key there under its own name. Then the new server is
made one that was restored, by backing it up and restoring it in its own place; and so is a server
whose loss is accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from expunge.client import Agent, ClientStore, SyncResult
from expunge.client.enrolment import rejoin
from expunge.client.sync import patience, sync_all
from expunge.crypto import Envelope, SigningKey
from expunge.errors import InputError, SpecMismatchError, StoreDamagedError, StoreError
from expunge.evidence import Certificate, published_head
from expunge.federation.founding import found_federation
from expunge.federation.layout import LOCAL_NAMES, Layout
from expunge.office import Office
from expunge.ridge.spec import Spec
from expunge.server import KEY, VAULT
from expunge.server.backup import BACKUPS, restore, write_backup
from expunge.server.http.tls import make_tls
from expunge.server.log import AuditLog
from expunge.server.storage.folder import ServerFolder
from expunge.storage.files import (
    FolderLock,
    erase,
    make_folder,
    remove,
    remove_tree,
    rename,
    sync_folder,
    write_whole,
)
from expunge.storage.machine import machine_of
from expunge.transport.local import LocalCarrier

Verdict = Literal["equal", "changed", "different", "unknown"]

_FRESH, _OLD = "server.new", "server.old"  # beside a server that is being restored in its place


# -- from a backup ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Restored:
    """A restored server: the clients that must send what they hold, and whether its certificate
    authority is new.
    """

    layout: Layout
    waiting: list[str]
    new_authority: bool


def restore_federation(
    directory: Path,
    backup: Path,
    key: SigningKey,
    *,
    vault: Path | None = None,
    mirrors: Sequence[Path] = (),
    rotations: Sequence[Envelope] = (),
    urls: Sequence[str] = (),
    hosts: Sequence[str] = (),
    authority: Path | None = None,
) -> Restored:
    """Restore a server in a folder, which is left as it was if that fails.

    `rotations` lead from the key that the backup was made under to `key`, if that is another.
    `authority` is the folder whose certificates are used again; without one, new ones are made for
    `hosts`.
    """
    layout = Layout(directory.absolute())
    is_new = not layout.path.exists()
    make_folder(layout.path)
    try:
        waiting = restore(
            layout.server, backup, key, vault=vault, mirrors=mirrors, rotations=rotations
        )
    except BaseException:
        for folder in (layout.server, layout.path) if is_new else ():
            if folder.exists() and not any(folder.iterdir()):
                remove_tree(folder)
        raise
    layout.write_settings(urls=urls, mirrors=mirrors)
    layout.write_keys(layout.signing_key(), layout.rotations())
    return Restored(layout, waiting, _bring_tls(layout, authority, hosts))


def _bring_tls(layout: Layout, authority: Path | None, hosts: Sequence[str]) -> bool:
    """Certificates for the restored server: those that are there, the old ones, or new ones;
    whether the authority is new.
    """
    if layout.ca:
        return False
    if authority is None:
        make_tls(layout.tls, tuple(dict.fromkeys((*hosts, *LOCAL_NAMES))))
        return True
    make_folder(layout.tls)
    for file in sorted(authority.iterdir()):
        if file.is_file():
            write_whole(layout.tls / file.name, file.read_bytes())
    return False


# -- from what is left -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Accepted:
    """A server that goes on with what was left of it: how many entries of its log are lost, None if
    that is not known, and the clients that must send what they hold.
    """

    layout: Layout
    lost: int | None
    waiting: list[str]


def accept_loss(directory: Path, *, timeout: float = 0.0) -> Accepted:
    """Make a server that has lost the end of its audit log one that was restored from what is left:
    no deletion that was receipted is undone, since every client sends what it holds now.

    One that has lost nothing is refused. If this is interrupted, call it again. Waits for another
    process at work on the folder up to `timeout` seconds.
    """
    is_interrupted = _interrupted(directory)
    path = directory.absolute() if is_interrupted else Layout.at(directory).path
    with _alone(path, timeout):
        _recover(path)
        layout = Layout.at(path)
        with closing(
            ServerFolder.open(layout.server, layout.mirrors, timeout=timeout, lossy=True)
        ) as folder:
            is_lost, lost = _loss(folder)
            if not is_lost and not is_interrupted:
                raise StoreError(
                    f"nothing is lost in {layout.server}: the log has every entry that anybody "
                    "was told of. Serve it as it is"
                )
            backup = f"left-{folder.machine.random(8).hex()}"
            if is_lost:
                write_backup(folder, backup)
            waiting = [
                actor.name for actor in folder.storage.actors.all() if actor.status == "must-rejoin"
            ]
        layout.write_keys(layout.signing_key(), layout.rotations())
        if is_lost:
            waiting = _restore_in_place(layout, backup)
    return Accepted(layout, lost, waiting)


def _loss(folder: ServerFolder) -> tuple[bool, int | None]:
    """Whether a server has lost some of its log, and how many entries, if that is known."""
    try:
        folder.require_log()
    except StoreDamagedError:
        missing = folder.mark.number - AuditLog(folder.storage).size
        return True, missing if missing > 0 else None
    return False, None


# -- from its clients ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rebuilt:
    """A rebuilt server. The old values are those of the newest head that a client held."""

    directory: str
    federation: str
    clients: list[str]
    waiting: list[str]  # enrolled, and yet to send what they hold
    unsent: Mapping[str, str]  # clients at hand that have not sent what they hold, with why
    samples: int
    head: str
    old_samples: int
    old_head: str
    verdict: Verdict


def rebuild_server(
    directory: Path,
    stores: Sequence[ClientStore],
    *,
    recompute: Callable[[ClientStore], Any] = lambda _: None,
    timeout: float = 0.0,
    progress: Callable[[int], None] = lambda _: None,
) -> Rebuilt:
    """Rebuild a server from these clients; if it has been rebuilt before, let more clients in.

    `recompute` gives what computes the features again that a store does not keep; `progress` hears
    how many clients have sent what they hold. Waits for another process at work on the folder up to
    `timeout` seconds.
    """
    certificates = [each for each in map(_certificate, stores) if each is not None]
    pending = any(status.adding or status.deleting for status in (each.status() for each in stores))
    if not Layout.is_at(directory) and not _interrupted(directory):
        if not stores:
            raise InputError("a server is rebuilt from its clients: give at least one store")
        found_federation(directory, _spec(stores))
    path = Layout.at(directory).path if Layout.is_at(directory) else directory
    with _alone(path, timeout):
        _recover(path)
        layout = Layout.at(path)
        with _opened(layout, timeout) as (office, carrier):
            layout.write_settings(urls=layout.urls, mirrors=layout.mirrors, rebuilt=True)
            _enrol(layout, office, carrier, stores)
            backup = f"again-{machine_of(layout.path).random(8).hex()}"
            office.do("backup", {"name": backup})
        _restore_in_place(layout, backup)
        with _opened(layout, timeout) as (office, carrier):
            unsent = _send_all(carrier, stores, recompute, progress)
            rebuilt = _compared(layout, office, stores, unsent, certificates)
    if pending and rebuilt.verdict == "different":
        return replace(rebuilt, verdict="changed")
    return rebuilt


@contextmanager
def _alone(directory: Path, timeout: float) -> Iterator[None]:
    """Nobody else rebuilds the server in this folder meanwhile."""
    lock = FolderLock(directory, timeout)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _opened(layout: Layout, timeout: float) -> Iterator[tuple[Office, LocalCarrier]]:
    """The server, which must not be running, and its operator's office."""
    wait = 0.0 if layout.serving() else timeout
    with (
        closing(LocalCarrier.open(layout.server, mirrors=layout.mirrors, timeout=wait)) as carrier,
        Office.open(layout.operator, carrier, timeout=timeout) as office,
    ):
        yield office, carrier


def _certificate(store: ClientStore) -> Certificate | None:
    """The certificate of the newest head that a client has fetched, checked."""
    data = store.head()
    return None if data is None else published_head.read_by_any(data, store.chains())[1]


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


def _enrol(
    layout: Layout, office: Office, carrier: LocalCarrier, stores: Sequence[ClientStore]
) -> None:
    client_names = {client["name"] for client in office.ask("clients", {})}
    for store in stores:
        if store.federation == office.federation and store.name in client_names:
            continue
        token, _ = office.token(store.name, "client", (str(layout.path),))
        rejoin(store, token, carrier, str(layout.path))


def _restore_in_place(layout: Layout, backup: str) -> list[str]:
    """Make the server one that was restored from this backup, which is removed: every client is
    asked to send what it holds. Returns their names. Other backups stay.
    """
    fresh, old = layout.path / _FRESH, layout.path / _OLD
    waiting = restore(
        fresh,
        layout.server / "backups" / backup,
        SigningKey.from_pem((layout.server / KEY).read_bytes()),
        vault=layout.server / VAULT,
        mirrors=layout.mirrors,
    )
    rename(layout.server, old)
    rename(fresh, layout.server)
    _keep_backups(old, layout.server)
    remove(layout.server / BACKUPS / backup)
    _shred(old)
    return waiting


def _keep_backups(old: Path, server: Path) -> None:
    if (old / BACKUPS).exists() and not (server / BACKUPS).exists():
        rename(old / BACKUPS, server / BACKUPS)
        sync_folder(server)


def _interrupted(directory: Path) -> bool:
    """Whether a restoration has begun here and has not ended, by an interruption or yet."""
    return any((directory / name).exists() for name in (_FRESH, _OLD))


def _recover(directory: Path) -> None:
    """Finish, or undo, a restoration that was interrupted."""
    server, fresh, old = (directory / name for name in ("server", _FRESH, _OLD))
    if old.exists():
        if fresh.exists():
            rename(fresh, server)
        _keep_backups(old, server)
        _shred(old)
    elif fresh.exists():
        _shred(fresh)


def _shred(folder: Path) -> None:
    """Remove a server's folder; the keys in its vault are overwritten first, for other copies of
    what they seal may linger.
    """
    erase(folder / VAULT)
    remove_tree(folder)


def _send_all(
    carrier: LocalCarrier,
    stores: Sequence[ClientStore],
    recompute: Callable[[ClientStore], Any],
    progress: Callable[[int], None],
) -> dict[str, str]:
    """Let every client send what it holds; why some have not, by name."""
    sent: set[str] = set()

    def send(store: ClientStore) -> SyncResult:
        synced = Agent(store, carrier, recompute=recompute(store)).sync(accept_restored=True)
        if not synced.waiting:
            sent.add(store.name)
        progress(len(sent))
        return synced

    results = sync_all({store.name: partial(send, store) for store in stores}, patience())
    return {name: synced.waiting for name, synced in results.items() if synced.waiting}


def _compared(
    layout: Layout,
    office: Office,
    stores: Sequence[ClientStore],
    unsent: Mapping[str, str],
    certificates: Sequence[Certificate],
) -> Rebuilt:
    status = office.ask("status", {})
    newest = max(certificates, key=lambda each: (each.time, each.checkpoint.size), default=None)
    return Rebuilt(
        directory=str(layout.path),
        federation=office.federation,
        clients=[store.name for store in stores],
        waiting=[
            client["name"]
            for client in office.ask("clients", {})
            if client["status"] == "must-rejoin"
        ],
        unsent=unsent,
        samples=status["samples"],
        head=status["head"],
        old_samples=-1 if newest is None else newest.count,
        old_head="" if newest is None else newest.head,
        verdict=_verdict(status, certificates),
    )


def _verdict(status: dict[str, Any], certificates: Sequence[Certificate]) -> Verdict:
    """A head of as many samples of as many clients must be the same one, unless a store was
    altered.
    """
    if not certificates:
        return "unknown"
    if any(each.head == status["head"] for each in certificates):
        return "equal"
    now = (status["samples"], status["clients"]["active"], status["spec"])
    same = any((each.count, each.clients, each.spec.digest) == now for each in certificates)
    return "different" if same else "changed"
