"""Backups that hold nothing to forget, and servers restored from them.

A backup is a copy of the database without ledger, sub-ledgers, journal and commitments: who is enrolled, what was answered, the
audit log, the orders (whose subjects stay sealed under keys of the vault, which is not part of it). A restored server therefore
begins with an empty ledger; every client, at its next sync, sends what it holds *now*. So whatever was deleted since the backup
was made is not restored, and what a client that does not come back had is not there.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from expunge.errors import StoreError
from expunge.files import sync_folder, write_whole
from expunge.server.folder import Folder
from expunge.signing import SigningKey
from expunge.vault import Vault

_EMPTIED = ("ledger", "subledgers", "journal", "commitments", "generations", "tokens")


def write_backup(folder: Folder, name: str) -> Path:
    """Copy the database to `backups/NAME` in the server's folder, without what must be forgettable; a file there is replaced."""
    backups = folder.path / "backups"
    backups.mkdir(mode=0o700, exist_ok=True)
    target, draft = backups / name, backups / f".{secrets.token_hex(8)}"
    try:
        folder.database.copy_to(draft)
        connection = sqlite3.connect(draft, isolation_level=None)
        try:
            connection.execute("PRAGMA secure_delete=ON")
            for table in _EMPTIED:
                connection.execute(f"DELETE FROM {table}")  # noqa: S608 - our own names
            connection.execute("UPDATE state SET salt = x''")
            connection.execute("VACUUM")
        finally:
            connection.close()
        draft.replace(target)
        sync_folder(backups)
    finally:
        draft.unlink(missing_ok=True)
    return target


def restore_files(path: Path, backup: Path, key: SigningKey, vault: Path | None, mirrors: Sequence[Path] = ()) -> None:
    """A server's folder from a backup, its signing key and, where it was saved, its vault; `service.restore` does the rest."""
    if not backup.is_file():
        raise StoreError(f"there is no backup {backup}")
    if path.exists() and any(path.iterdir()):
        raise StoreError(f"{path} is not empty: a server is restored into a new folder")
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    connection = sqlite3.connect(f"file:{backup}?mode=ro", uri=True)
    try:
        row = connection.execute("SELECT key FROM state").fetchone()
    except sqlite3.Error as problem:
        raise StoreError(f"{backup} is no backup of a server: {problem}") from problem
    finally:
        connection.close()
    if row is None or row[0] != key.public.id:
        raise StoreError("the signing key given is not the one that the backed-up server signed with")
    if vault is not None:
        for place in (path / "server.vault", *(mirror for mirror in mirrors if not mirror.exists())):
            write_whole(place, vault.read_bytes())
    else:
        Vault.create(path / "server.vault", mirrors).close()
    write_whole(path / "server.db", backup.read_bytes())
    write_whole(path / "server.key", key.pem)
