"""How a server begins: a federation founded, or restored from a backup."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from pathlib import Path

from expunge import canonical
from expunge.errors import FormatError
from expunge.server.backup import restore_files
from expunge.server.books import SOLVERS
from expunge.server.core import Clock, Core, Settings
from expunge.server.folder import Folder
from expunge.server.orders import drop_unreadable
from expunge.signing import PublicKey, SigningKey
from expunge.spec import Spec


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
    folder = Folder.create(path, key or SigningKey(secrets.token_bytes(32)), mirrors)
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
                "INSERT INTO actors VALUES ('operator', 'operator', ?, 'active', 0, ?, '', NULL)", (operator.text, now)
            )
        core = Core(folder, Settings(), clock)
        digests = core.solved()
        with core.changing() as (connection, now):
            core.keep_digests(connection, digests)
            content = {"federation": core.federation, "spec": spec.digest, "server": public.id, "key": public.text}
            core.append(connection, "founded", now, solver=solver, **content)
            core.append(connection, "enrolled", now, name="operator", role="operator", key=operator.text)
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
    """A server from a backup; returns the clients that must rejoin, which each does at its next sync."""
    restore_files(path, backup, key, vault, mirrors)
    folder = Folder.open(path, mirrors)
    try:
        (slot,) = folder.vault.new()
        with folder.database.transaction() as connection:
            generation = int(folder.database.value("SELECT generation FROM state")) + 1
            connection.execute("INSERT INTO generations (generation, slot) VALUES (?, ?)", (generation, slot))
            connection.execute("UPDATE state SET generation = ?", (generation,))
            # Whether the keys of earlier generations were destroyed, this server cannot know: it never speaks of them.
            connection.execute("INSERT OR IGNORE INTO erasures (generation, position) VALUES (?, -1)", (generation - 1,))
            connection.execute("UPDATE actors SET status = 'must-rejoin' WHERE role = 'client' AND status = 'active'")
            connection.execute("UPDATE audits SET finished = started, result = 'abandoned', slot = NULL WHERE finished IS NULL")
            drop_unreadable(folder, connection)
        core = Core(folder, Settings(), clock)
        digests = core.solved()
        with core.changing() as (connection, now):
            core.keep_digests(connection, digests)
            waiting = core.clients("must-rejoin")
            core.append(connection, "restored", now, size=core.log.size, withheld=waiting)
        core.books.clean()
        return waiting
    finally:
        folder.close()
