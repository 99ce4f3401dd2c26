"""Servers that begin: founded, or restored from backups that hold nothing to forget.

A backup is a copy of the database without ledger, sub-ledgers, journal and commitments: who is
enrolled, what was answered, the audit log, the orders (whose subjects stay sealed under keys of the
vault, which is not part of it). A restored server therefore begins with an empty ledger; every
client, at its next sync, sends what it holds *now*. So whatever was deleted since the backup was
made is not restored, and what a client that does not come back had is not there.
"""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

from expunge.crypto import PublicKey, SigningKey, canonical
from expunge.crypto.vault import Vault
from expunge.errors import FormatError, StoreError
from expunge.ridge.spec import Spec
from expunge.server.ledger import SOLVERS
from expunge.server.orders import drop_unreadable
from expunge.server.state import Clock, ServerState, Settings
from expunge.server.storage import ServerFolder
from expunge.storage.files import make_folder, sync_folder, write_whole

_EMPTIED = ("ledger", "subledgers", "journal", "commitments", "generations", "tokens")


def write_backup(folder: ServerFolder, name: str) -> Path:
    """Copy the database to `backups/NAME` in the server's folder, without what must be forgettable;
    a file there is replaced.
    """
    backups = folder.path / "backups"
    make_folder(backups)
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


def restore_files(
    path: Path, backup: Path, key: SigningKey, vault: Path | None, mirrors: Sequence[Path] = ()
) -> None:
    """A server's folder from a backup, its signing key and, where it was saved, its vault;
    `service.restore` does the rest.
    """
    if not backup.is_file():
        raise StoreError(f"there is no backup {backup}")
    if path.exists() and any(path.iterdir()):
        raise StoreError(f"{path} is not empty: a server is restored into a new folder")
    make_folder(path)
    connection = sqlite3.connect(f"file:{backup}?mode=ro", uri=True)
    try:
        row = connection.execute("SELECT key FROM state").fetchone()
    except sqlite3.Error as problem:
        raise StoreError(f"{backup} is no backup of a server: {problem}") from problem
    finally:
        connection.close()
    if row is None or row[0] != key.public.id:
        raise StoreError(
            "the signing key given is not the one that the backed-up server signed with"
        )
    if vault is not None:
        for place in (
            path / "server.vault",
            *(mirror for mirror in mirrors if not mirror.exists()),
        ):
            write_whole(place, vault.read_bytes())
    else:
        Vault.create(path / "server.vault", mirrors).close()
    write_whole(path / "server.db", backup.read_bytes())
    write_whole(path / "server.key", key.pem)


def found(
    path: Path,
    spec: Spec,
    operator: PublicKey,
    *,
    solver: str = "woodbury",
    key: SigningKey | None = None,
    mirrors: Sequence[Path] = (),
    clock: Clock = time.time,
) -> None:
    """Found a federation in a new folder, with its first operator."""
    if solver not in SOLVERS:
        raise FormatError(f"the solver must be one of {', '.join(SOLVERS)}, got {solver!r}")
    folder = ServerFolder.create(path, key or SigningKey(secrets.token_bytes(32)), mirrors)
    try:
        (slot,) = folder.vault.new()
        now, public = int(clock()), folder.key.public
        with folder.database.transaction() as connection:
            connection.execute("INSERT INTO generations (generation, slot) VALUES (1, ?)", (slot,))
            text = canonical.encode(spec.to_dict()).decode("ascii")
            connection.execute(
                "INSERT INTO state VALUES (1, ?, ?, ?, ?, 0, ?, 1, x'', '', '')",
                (secrets.token_hex(16), public.id, text, solver, now),
            )
            connection.execute(
                "INSERT INTO actors VALUES ('operator', 'operator', ?, 'active', 0, ?, '', NULL)",
                (operator.text, now),
            )
        core = ServerState(folder, Settings(), clock)
        digests = core.solved()
        with core.changing() as (connection, now):
            core.keep_digests(connection, digests)
            content = {
                "federation": core.federation,
                "spec": spec.digest,
                "server": public.id,
                "key": public.text,
            }
            core.append(connection, "founded", now, solver=solver, **content)
            core.append(
                connection, "enrolled", now, name="operator", role="operator", key=operator.text
            )
    finally:
        folder.close()


def restore(
    path: Path,
    backup: Path,
    key: SigningKey,
    *,
    vault: Path | None = None,
    mirrors: Sequence[Path] = (),
    clock: Clock = time.time,
) -> list[str]:
    """A server from a backup; returns the clients that must rejoin, which each does at its next
    sync.
    """
    restore_files(path, backup, key, vault, mirrors)
    folder = ServerFolder.open(path, mirrors)
    try:
        (slot,) = folder.vault.new()
        with folder.database.transaction() as connection:
            generation = int(folder.database.value("SELECT generation FROM state")) + 1
            connection.execute(
                "INSERT INTO generations (generation, slot) VALUES (?, ?)", (generation, slot)
            )
            connection.execute("UPDATE state SET generation = ?", (generation,))
            # Whether the keys of earlier generations were destroyed, this server cannot know: it
            # never speaks of them.
            connection.execute(
                "INSERT OR IGNORE INTO erasures (generation, position) VALUES (?, -1)",
                (generation - 1,),
            )
            connection.execute(
                "UPDATE actors SET status = 'must-rejoin' WHERE role = 'client' "
                "AND status = 'active'"
            )
            connection.execute(
                "UPDATE audits SET finished = started, result = 'abandoned', slot = NULL "
                "WHERE finished IS NULL"
            )
            drop_unreadable(folder, connection)
        core = ServerState(folder, Settings(), clock)
        digests = core.solved()
        with core.changing() as (connection, now):
            core.keep_digests(connection, digests)
            waiting = core.clients("must-rejoin")
            core.append(connection, "restored", now, size=core.log.size, withheld=waiting)
        core.books.clean()
        return waiting
    finally:
        folder.close()
