"""New servers: founded, or restored from backups that hold nothing to forget.

A backup is a copy of the database without ledger, sub-ledgers, journal and commitments: who is
enrolled, what was answered, the audit log, the orders (whose subjects stay sealed under keys of the
vault, which is not part of it). A restored server therefore begins with an empty ledger; every
client, at its next sync, sends what it holds *now*. So whatever was deleted since the backup was
made is not restored, and what a client that does not come back had is not there.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from expunge.crypto import Envelope, PublicKey, SigningKey, canonical
from expunge.crypto.vault import Vault
from expunge.errors import FormatError, StoreError
from expunge.evidence.rotation import KeyChain, Rotation
from expunge.ridge.spec import Aggregation, Spec
from expunge.server import DATABASE, KEY, VAULT
from expunge.server.clock import Clock
from expunge.server.ledger import SOLVERS
from expunge.server.orders import drop_unreadable
from expunge.server.state import ServerState, Settings
from expunge.server.storage.folder import OpenStorage, ServerFolder
from expunge.server.storage.sqlite import open_storage, rotations_of, signer_of
from expunge.server.storage.tables import Actor, Erasure, ServerRecord
from expunge.storage.files import make_folder, remove, rename, sync_folder, write_whole
from expunge.storage.machine import machine_of

BACKUPS = "backups"


def write_backup(folder: ServerFolder, name: str) -> Path:
    """Back the store up to `backups/NAME` in the server's folder; a file there is replaced."""
    backups = folder.path / BACKUPS
    make_folder(backups)
    target, draft = backups / name, backups / f".{folder.machine.random(8).hex()}"
    try:
        folder.storage.write_backup(draft)
        rename(draft, target)
        sync_folder(backups)
    finally:
        remove(draft)
    return target


def restore_files(
    path: Path,
    backup: Path,
    key: SigningKey,
    *,
    vault: Path | None,
    mirrors: Sequence[Path] = (),
    rotations: Sequence[Envelope] = (),
) -> None:
    """A server's folder from a backup, the signing key and, where it was saved, the vault;
    `restore` does the rest. If the key is a later one than the backup's, `rotations` must show it.
    """
    if not backup.is_file():
        raise StoreError(f"there is no backup {backup}")
    if path.exists() and any(path.iterdir()):
        raise StoreError(f"{path} is not empty: a server is restored into a new folder")
    _require_key(backup, key, rotations)
    make_folder(path)
    if vault is not None:
        for target in (
            path / VAULT,
            *(mirror for mirror in mirrors if not mirror.exists()),
        ):
            write_whole(target, vault.read_bytes())
    else:
        Vault.create(path / VAULT, mirrors).close()
    write_whole(path / DATABASE, backup.read_bytes())
    write_whole(path / KEY, key.pem)


def _require_key(backup: Path, key: SigningKey, rotations: Sequence[Envelope]) -> None:
    """Refuse a key that neither signed when the backup was made, nor came after that one."""
    signer = signer_of(backup)
    if signer == key.public.id and not rotations:
        return
    chain = KeyChain(key.public, [*_rotations_in(backup), *rotations])
    if chain.newest != key.public:
        raise StoreError(
            f"the signing key given was retired: by the rotations given, key "
            f"{chain.newest.id[:16]}… followed it. Give that one"
        )
    if signer is None or not chain.knows(signer):
        raise StoreError(
            "the signing key given is not the one that the backed-up server signed with. If the "
            "key was rotated after the backup was made, give the newest key, and every rotation "
            "since as proof (--rotation FILE: expunge server rotate-key wrote it, "
            "DIR/rotation-N.json is a copy). If the newest key is lost, rebuild the server from "
            "its clients (expunge audit --rebuild)"
        )


def _rotations_in(backup: Path) -> list[Envelope]:
    return [Envelope.from_bytes(data, "rotation") for data in rotations_of(backup)]


def _require_arbiter(rules: Aggregation) -> None:
    """Refuse an arbiter for whom nothing can be sealed."""
    if rules.arbiter:
        from expunge.secagg.arbitration import require_public  # noqa: PLC0415 - for masks only

        require_public(rules.arbiter)


def found(
    path: Path,
    spec: Spec,
    operator: PublicKey,
    *,
    solver: str = "woodbury",
    key: SigningKey | None = None,
    mirrors: Sequence[Path] = (),
    clock: Clock = time.time,
    storage: OpenStorage = open_storage,
) -> None:
    """Found a federation in a new folder, with its first operator."""
    if solver not in SOLVERS:
        raise FormatError(f"the solver must be one of {', '.join(SOLVERS)}, got {solver!r}")
    if spec.aggregation is not None:
        spec.aggregation.require_feasible()
        _require_arbiter(spec.aggregation)
    key = key or SigningKey(machine_of(path).random(32))
    folder = ServerFolder.create(path, key, mirrors, storage=storage)
    try:
        (slot,) = folder.vault.new()
        now, public = int(clock()), folder.key.public
        record = ServerRecord(
            federation=folder.machine.random(16).hex(),
            key=public.id,
            spec=canonical.encode(spec.to_dict()).decode("ascii"),
            solver=solver,
            round=0,
            time=now,
            generation=1,
            salt=b"",
            ledger_digest="",
            head_digest="",
        )
        with folder.storage.transaction():
            folder.storage.generations.begin(record.generation, slot)
            folder.storage.state.put(record)
            folder.storage.actors.put(
                Actor("operator", "operator", operator.text, "active", 0, now, "")
            )
        state = ServerState(folder, Settings(), clock)
        digests = state.solved()
        with state.changing() as now:
            state.keep_digests(digests)
            content = {
                "federation": state.federation,
                "spec": spec.digest,
                "server": public.id,
                "key": public.text,
            }
            state.append("founded", now, solver=solver, **content)
            state.append("enrolled", now, name="operator", role="operator", key=operator.text)
    finally:
        folder.close()


def restore(
    path: Path,
    backup: Path,
    key: SigningKey,
    *,
    vault: Path | None = None,
    mirrors: Sequence[Path] = (),
    rotations: Sequence[Envelope] = (),
    clock: Clock = time.time,
) -> list[str]:
    """A server from a backup; returns the clients that must rejoin, which each does at its next
    sync. It signs with `key`, to which `rotations` lead, if it was made after the backup.
    """
    restore_files(path, backup, key, vault=vault, mirrors=mirrors, rotations=rotations)
    folder = ServerFolder.open(path, mirrors, lossy=True)  # its key may not be the database's yet
    try:
        before = len(folder.storage.rotations.all())
        with folder.storage.transaction():
            _begin_anew(folder)
            _take_rotations(folder, rotations)
        folder.mark_log()
        state = ServerState(folder, Settings(), clock)
        digests = state.solved()
        with state.changing() as now:
            state.keep_digests(digests)
            for envelope in state.rotations()[before:]:
                link = Rotation.read(envelope)
                ids = {"old": link.old.id, "new": link.new.id}
                state.append("rotated", now, **ids, key=link.new.text)
            waiting = state.clients("must-rejoin")
            identity = {"version": 2, "id": folder.machine.random(32).hex()}
            state.append("restored", now, **identity, size=state.log.size, withheld=waiting)
        state.ledger.clean()
        return waiting
    finally:
        folder.close()


def _take_rotations(folder: ServerFolder, rotations: Sequence[Envelope]) -> None:
    """Add the rotations that came after the backup, and sign with the key that they lead to."""
    storage, record = folder.storage, folder.storage.state.get()
    if record is None or not rotations:
        return
    known = [Envelope.from_bytes(data, "rotation") for data in storage.rotations.all()]
    chain = KeyChain(folder.key.public, [*known, *rotations])
    chain.require_federation(record.federation, "backup")
    for envelope in chain.in_order[len(known) :]:
        storage.rotations.add(envelope.to_bytes())
    storage.state.put(replace(record, key=folder.key.public.id))


def _begin_anew(folder: ServerFolder) -> None:
    """What a backup does not have is not spoken of as if it were there."""
    storage, record = folder.storage, folder.storage.state.get()
    if record is None:
        raise StoreError("the backup is of a server that was never finished: found another")
    (slot,) = folder.vault.new()
    storage.generations.begin(record.generation + 1, slot)
    storage.state.put(replace(record, generation=record.generation + 1))
    # Whether the keys of earlier generations were destroyed, this server cannot know.
    storage.generations.erased(Erasure(record.generation, -1))
    for actor in storage.actors.all():
        if (actor.role, actor.status) == ("client", "active"):
            storage.actors.put(replace(actor, status="must-rejoin"))
    # Nobody repeats a sum of before: all send everything anew.
    storage.rounds.drop_attempts({attempt.aggregation for attempt in storage.rounds.attempts()})
    for audit in storage.audits.running():
        storage.audits.put(replace(audit, finished=audit.started, result="abandoned", slot=None))
    drop_unreadable(folder)
