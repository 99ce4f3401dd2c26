"""Faults planted in the real code, one in each function: what a simulation must find."""

from __future__ import annotations

import os
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import expunge.office
import expunge.server.storage.folder
from expunge import frame
from expunge.client import states
from expunge.client.samples import SampleTable, Selection
from expunge.crypto.vault import Vault
from expunge.server.ledger import PutInForce, Recorded, ServerLedger
from expunge.server.maintenance import Maintenance
from expunge.server.state import ServerState
from expunge.storage import files
from expunge.storage.machine import machine_of
from expunge.storage.mark import HighWaterMark
from expunge.testing.simulation.database import SimulatedConnection
from expunge.testing.simulation.disk import Disk
from expunge.testing.simulation.machine import SimulatedMachine
from expunge.testing.simulation.scenario import Scenario

Plant = Callable[[pytest.MonkeyPatch], None]
_BEGINNING = 8  # commits: of founding
SPEC = Scenario.drawn(0, masked=False).spec


def files_are_not_synced(patch: pytest.MonkeyPatch) -> None:
    def write_all_new(contents: Mapping[Path, bytes], mode: int = 0o600) -> None:
        for path, data in contents.items():
            machine = machine_of(path)
            descriptor = machine.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            machine.write(descriptor, data, 0)
            machine.close(descriptor)

    patch.setattr(files, "write_all_new", write_all_new)
    patch.setattr(expunge.server.storage.folder, "write_all_new", write_all_new)


def folders_are_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimulatedMachine, "sync_folder", lambda _, path: path)


def vaults_are_not_synced(patch: pytest.MonkeyPatch) -> None:
    true = SimulatedMachine.sync

    def sync(machine: SimulatedMachine, descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().suffix != ".vault":
            true(machine, descriptor)

    patch.setattr(SimulatedMachine, "sync", sync)


def keys_are_not_destroyed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Vault, "shred", lambda _, slots: slots)


def the_server_erases_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ServerLedger, "clean", lambda _: None)
    patch.setattr(ServerLedger, "destroy", lambda _, remains: remains)


def the_server_folds_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Maintenance, "run_due", lambda _: True)


def the_salt_of_an_audit_stays(patch: pytest.MonkeyPatch) -> None:
    forgetful = property(lambda _: False, lambda _, value: value)
    patch.setattr(ServerLedger, "has_remains", forgetful, raising=False)


def the_journal_loses_an_entry(patch: pytest.MonkeyPatch) -> None:
    true = ServerLedger.record

    def record(
        ledger: ServerLedger, changes: Iterable[Recorded], generation: int, time: int
    ) -> None:
        true(ledger, [each for each in changes if each.sequence % 3], generation, time)

    patch.setattr(ServerLedger, "record", record)


def a_fold_leaves_an_entry_out(patch: pytest.MonkeyPatch) -> None:
    def fold_clients(
        ledger: ServerLedger, clients: Iterable[str], until: int, _: Callable[[], bool]
    ) -> Iterator[PutInForce]:
        for client in clients:
            before = ledger.exact_subledger(client, until - 1)
            yield ledger.fold_client(client, until, before)

    patch.setattr(ServerLedger, "fold_clients", fold_clients)


def an_old_head_is_spoken_of(patch: pytest.MonkeyPatch) -> None:
    true = ServerState.settle_head

    def settle_head(state: ServerState) -> None:
        if not getattr(state, "head_digest", ""):
            true(state)

    patch.setattr(ServerState, "settle_head", settle_head)


def an_order_deletes_nothing(patch: pytest.MonkeyPatch) -> None:
    true = states.forget

    def forget(changes: Any, slots: Iterable[int], order: str | None, due: int) -> list[int]:
        return true(changes, slots, None, due) if order is None else []

    patch.setattr(states, "forget", forget)


def the_outbox_loses_a_sample(patch: pytest.MonkeyPatch) -> None:
    true = states.settle

    def settle(changes: Any, sequence: int, *, reset: bool = False) -> list[int]:
        changes.run(
            "DELETE FROM samples WHERE state = 'adding' AND sequence IS NULL "
            "AND slot = (SELECT max(slot) FROM samples)"
        )
        return true(changes, sequence, reset=reset)

    patch.setattr(states, "settle", settle)


def a_deletion_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """What is deleted while its addition is on its way stays."""

    def settle(changes: Any, sequence: int, *, reset: bool = False) -> list[int]:
        changes.run("UPDATE samples SET state = 'live' WHERE state = 'withdrawn'")
        return true(changes, sequence, reset=reset)

    true = states.settle
    patch.setattr(states, "settle", settle)


def answers_come_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    """Each transaction becomes durable when the next one begins."""
    true, late = SimulatedConnection.execute, set[int]()
    commits: Counter[int] = Counter()

    def execute(
        connection: SimulatedConnection, sql: str, parameters: Sequence[Any] = (), /
    ) -> Any:
        commits[id(connection)] += sql == "COMMIT"
        if sql == "COMMIT" and commits[id(connection)] > _BEGINNING:
            late.add(id(connection))
            return true(connection, "SELECT 1")
        if sql.startswith("BEGIN") and id(connection) in late:
            late.remove(id(connection))
            true(connection, "COMMIT")
        return true(connection, sql, parameters)

    def in_transaction(connection: SimulatedConnection) -> bool:
        return id(connection) not in late and connection.connection.in_transaction

    patch.setattr(SimulatedConnection, "execute", execute)
    patch.setattr(SimulatedConnection, "in_transaction", property(in_transaction))


def a_command_is_erased_in_its_place(patch: pytest.MonkeyPatch) -> None:
    """As it was: a crash leaves a file of zeros."""

    def erase(path: Path) -> None:
        if path.exists():
            machine = machine_of(path)
            descriptor = machine.open(path, os.O_WRONLY)
            machine.write(descriptor, bytes(path.stat().st_size), 0)
            machine.sync(descriptor)
            machine.close(descriptor)
            machine.remove(path)

    patch.setattr(expunge.office, "erase", erase)


def vaults_have_no_checksums(patch: pytest.MonkeyPatch) -> None:
    """As it was."""
    patch.setattr(frame, "crc32", lambda _: 0)


def orders_go_by_tags(patch: pytest.MonkeyPatch) -> None:
    """As it was."""

    def about(table: SampleTable, subjects: Collection[str]) -> dict[str, list[int]]:
        found = {
            subject: table.find(Selection(subject=subject), SPEC, for_order=True)
            for subject in subjects
        }
        return {subject: [sample.slot for sample in each] for subject, each in found.items()}

    patch.setattr(SampleTable, "about", about)
    patch.setattr(SampleTable, "mend_subject_tags", lambda _, samples: samples)


def flips_hit_tags(patch: pytest.MonkeyPatch) -> None:
    """No fault, but an aim: where the bit that flips is in a client's database, it is one of a tag
    of a subject.
    """
    true = Disk.flip

    def flip(disk: Disk, name: str, bit: int) -> None:
        places = _places_of_tags(disk.path / name) if name.endswith("client.db") else []
        true(disk, name, 8 * places[bit % len(places)] + bit % 8 if places else bit)

    patch.setattr(Disk, "flip", flip)


def _places_of_tags(database: Path) -> list[int]:
    content = database.read_bytes()
    with closing(sqlite3.connect(f"file:{database}?immutable=1", uri=True)) as connection:
        query = "SELECT subject_tag FROM samples WHERE subject_tag IS NOT NULL"
        tags = {tag for (tag,) in connection.execute(query)}
    return [found.start() for tag in tags for found in re.finditer(re.escape(tag), content)]


def every_jump_of_the_clock_is_followed(patch: pytest.MonkeyPatch) -> None:
    """As it was."""
    patch.setattr("expunge.server.clock.TOLERANCE", 10**12)


def nobody_marks_how_far_a_log_came(patch: pytest.MonkeyPatch) -> None:
    """As it was."""
    patch.setattr(HighWaterMark, "read", lambda _: None)
