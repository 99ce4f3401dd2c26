"""Backups of a client's store, and stores that are restored from them.

A backup is a folder with a copy of the database and of the signing key, never of the vault: what is
sealed in it opens with the client's living vault alone, or with a mirror of that. So whatever was
deleted since the backup was made, and receipted, stays unreadable: its key is gone. What was added
since is not in it, nor are deletions that were asked for since and not delivered.

Law: a restored store opens as an old copy does (`restored=True`): it goes on by itself only if no
request was receipted since; otherwise by a reset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from expunge.client.folder import (
    DATABASE,
    KEY,
    VAULT,
    ClientFolder,
    copy_of_database,
    recorded_vault,
)
from expunge.client.store import ClientStore
from expunge.crypto.vault import ReadOnlyVault
from expunge.errors import StoreError
from expunge.storage.files import (
    FolderLock,
    erase,
    make_folder,
    remove_tree,
    rename,
    sync_folder,
    write_whole,
)


def back_up(folder: Path, target: Path) -> None:
    """Back a client's store up into a new folder, which appears whole or not at all; also while
    another process works on the store.
    """
    target = target.absolute()
    if target.exists():
        raise StoreError(f"{target} is there already: give each backup a folder of its own")
    draft = target.with_name(target.name + ".part")
    if draft.exists():  # left by a backup that was interrupted
        remove_tree(draft)
    make_folder(draft)
    opened = ClientFolder.open_read_only(folder)
    try:
        copy_of_database(opened, draft / DATABASE)
        write_whole(draft / KEY, opened.key.pem)
        sync_folder(draft)
        rename(draft, target)
    except BaseException:
        remove_tree(draft)
        raise
    finally:
        opened.close()
    sync_folder(target.parent)


@dataclass(frozen=True)
class RestoredClient:
    """A restored store: its client, and how many samples of the backup are there still, and how
    many were deleted since.
    """

    name: str
    samples: int
    dropped: int


def no_question(_: int) -> None:
    """Default of `ask`: goes on."""


def restore_client(
    path: Path, backup: Path, vault: Path | None = None, ask: Callable[[int], None] = no_question
) -> RestoredClient:
    """Restore a store from a backup into a new folder, which is as it was if that fails.

    `vault` is the living vault, or a mirror of it; None for the first mirror that is recorded in
    the backup and is there. One that is not such a mirror is moved: it is erased where it was. Keys
    that the backup does not know of are destroyed: `ask` is called with their number before, if
    there are any, and may raise.
    """
    path = path.absolute()
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise StoreError(f"{path} is not empty: a client is restored into a new folder")
    for name in (DATABASE, KEY):
        if not (backup / name).is_file():
            raise StoreError(
                f"{backup / name} is missing: give the folder that expunge client backup made"
            )
    draft = path.with_name(path.name + ".new")
    if draft.exists():  # left by a restoration that was interrupted
        remove_tree(draft)
    make_folder(draft)
    with ExitStack() as held:
        try:
            write_whole(draft / DATABASE, (backup / DATABASE).read_bytes())
            write_whole(draft / KEY, (backup / KEY).read_bytes())
            identity, mirrors = recorded_vault(draft)
            living = _living(vault, mirrors)
            held.enter_context(_unused(living))
            write_whole(draft / VAULT, living.read_bytes())
            _require_same(living, draft / VAULT, identity)
            sync_folder(draft)
            if newer := _keys_since(draft):
                ask(newer)
            rename(draft, path)  # in place of an empty folder, if there is one
            before = _samples(path)
            with ClientStore.open(path, restored=True) as store:
                status = store.status()
                left, name = status.live + status.adding + status.deleting, store.name
        except BaseException:
            for folder in (draft, path):
                if folder.exists():
                    remove_tree(folder)
            raise
        if not any(mirror.exists() and mirror.samefile(living) for mirror in mirrors):
            erase(living)
    return RestoredClient(name, left, before - left)


def _living(vault: Path | None, mirrors: Sequence[Path]) -> Path:
    """The vault to restore with."""
    found = vault or next((mirror for mirror in mirrors if mirror.is_file()), None)
    if found is None or not found.is_file():
        where = "" if vault is None else f" in {vault}"
        listed = ", ".join(map(str, mirrors)) or "none"
        raise StoreError(
            f"there is no vault{where} (mirrors on record: {listed}). A backup opens with the "
            "client's living vault alone: give it, or a mirror, with --vault. Without one nobody "
            "can read the samples: have the operator forget this client (expunge server "
            "forget-client), enrol a new one, and add the samples there from where they came"
        )
    return found


@contextmanager
def _unused(living: Path) -> Iterator[None]:
    """Nobody works on the folder that the vault is in: keys that are made there would be lost."""
    if not ClientFolder.is_at(living.parent):
        yield
        return
    lock = FolderLock(living.parent)
    try:
        yield
    finally:
        lock.release()


def _require_same(living: Path, copy: Path, identity: str | None) -> None:
    """Refuse another client's vault: nothing would open with it, and it would be erased."""
    opened = ReadOnlyVault(copy)
    try:
        if opened.identity == identity:
            return
    finally:
        opened.close()
    raise StoreError(
        f"{living} is not the vault that this backup opens with, nor a mirror of it: give the "
        "vault of the client that was backed up. Nothing was changed"
    )


def _keys_since(draft: Path) -> int:
    """How many keys have been made since the backup, and are there still."""
    opened = ClientFolder.open_read_only(draft)
    try:
        return opened.unreferred()
    finally:
        opened.close()


def _samples(path: Path) -> int:
    """How many samples the database in a folder lists."""
    opened = ClientFolder.open_read_only(path)
    try:
        return int(opened.database.value("SELECT count(*) FROM samples"))
    finally:
        opened.close()
