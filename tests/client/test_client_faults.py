"""Faults: killed processes, failing writes, full disks, old copies.

And the law of erasure, by a scan of raw bytes.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from expunge import Statistics
from expunge.client import ClientStore, Selection
from expunge.client.folder import ClientFolder
from expunge.client.outbox import Composition
from expunge.crypto.vault import Vault
from expunge.errors import ShreddedError, StoreError
from support import killable_client, seeds
from support.client_files import files_of, live_slots, referred_slots, rows_of
from support.clients import NOW, SPEC, Server, deliver, features, found_in, ids, make_store, traces
from support.killable_client import REPEATED, Accepting, attempt, check, count_down_in, steps

RUNNER = Path(killable_client.__file__)


def test_killed_at_any_moment_nothing_is_lost_and_nothing_applied_twice(tmp_path: Path) -> None:
    command = [sys.executable, str(RUNNER), str(tmp_path), str(seeds.seed()), "14"]
    environment = {
        **os.environ,
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)  # noqa: S603 - our own program
    assert run.returncode == 0, run.stderr
    assert len(run.stdout.split()) == 14


@pytest.mark.parametrize("start", range(0, 150, 10))
def test_a_write_that_fails_leaves_a_store_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: int
) -> None:
    """Each write fails once, before or after it took effect; the store is used on without being
    opened again.
    """
    point = start + seeds.chance(start).randrange(10)
    make_store(tmp_path).close()
    left = [point]

    def countdown() -> None:
        left[0] -= 1
        if left[0] == -1:
            raise StoreError("a write failed")

    with ClientStore.open(tmp_path / "store") as store, monkeypatch.context() as patch:
        count_down_in(countdown, patch.setattr)
        for step in steps(store, Accepting(tmp_path / "server")):
            before = left[0]
            attempt(step, "a write failed", "has no receipt yet")
            if before >= 0 > left[0]:
                attempt(step, "has no receipt yet", *REPEATED)
        assert live_slots(store) >= referred_slots(store)
    assert left[0] < 0, f"no write failed: there are fewer than {point}"
    check(tmp_path, 9)


def about_to_delete(store: ClientStore, server: Server) -> Composition:
    """The composed deletion of one of three samples that the server has."""
    store.add(ids(3), features(3), [0, 1, 2], now=NOW)
    deliver(store, server)
    store.forget(Selection(ids=["sample-0"]))
    composition = store.outbox.compose()
    assert composition is not None
    return composition


class TestErasure:
    def failing_once(self, monkeypatch: pytest.MonkeyPatch, *, before: bool) -> None:
        """The next destruction of keys fails, before it has begun or when it is done."""
        shred = Vault.shred

        def failing(vault: Vault, slots: Iterable[int]) -> None:
            monkeypatch.setattr(Vault, "shred", shred)
            if not before:
                shred(vault, slots)
            raise StoreError("the disk failed")

        monkeypatch.setattr(Vault, "shred", failing)

    @pytest.mark.parametrize("before", [True, False])
    def test_an_erasure_that_failed_is_made_up_for(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bool
    ) -> None:
        server = Server()
        with make_store(tmp_path) as store:
            composition = about_to_delete(store, server)
            receipt = server.offer(store.outbox.encode(composition))
            self.failing_once(monkeypatch, before=before)
            with pytest.raises(StoreError, match="the disk failed"):
                store.outbox.settle(2, receipt)
            store.outbox.settle(2, receipt)
            assert live_slots(store) == referred_slots(store)
            assert len(live_slots(store)) == 3

    @pytest.mark.parametrize("before", [True, False])
    def test_a_slot_in_use_again_is_not_destroyed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bool
    ) -> None:
        with make_store(tmp_path) as store:
            store.add(ids(3), features(3), [0, 1, 2], now=NOW)
            self.failing_once(monkeypatch, before=before)
            with pytest.raises(StoreError, match="the disk failed"):
                store.forget(Selection(ids=["sample-0"]))
            store.add(ids(5, "more"), features(5, 1), [0, 1, 2, 0, 1], now=NOW)
            store.forget(Selection(ids=["sample-1"]))
            assert store.preview(Selection(everything=True)).count == 6
            deliver(store, server := Server())
            assert server.statistics == store.statistics()
            assert len(live_slots(store)) == 7

    def test_the_scan_finds_what_lies_open(self, tmp_path: Path) -> None:
        row = features(1)[0]
        integers = np.rint(row.astype(np.float64) * 2.0**SPEC.grid.fraction_bits)
        for form in (row, row.astype(np.float64), integers, integers.astype(np.int64)):
            (tmp_path / "file").write_bytes(b"before" + form.tobytes() + b"after")
            assert found_in(tmp_path, traces(["name"], row))
        (tmp_path / "file").write_bytes(b"a name in the open")
        assert found_in(tmp_path, traces(["name"], row)) == [("file", b"name")]

    def test_nothing_readable_is_ever_written(self, tmp_path: Path) -> None:
        server = Server()
        needles = traces([*ids(5), "ann", "/pictures/1"], features(5))
        with make_store(tmp_path) as store:
            store.add(
                ids(5),
                features(5),
                [0, 1, 2, 0, 1],
                subjects=["ann"] * 5,
                sources=["/pictures/1"] * 5,
                now=NOW,
            )
            assert store.preview(Selection(subject="ann")).count == 5
            assert found_in(tmp_path, needles) == []
            deliver(store, server)
            store.forget(Selection(ids=["sample-3"]))
            composition = store.outbox.compose()
            assert composition is not None
            assert (
                found_in(tmp_path, [*needles, composition.nonce, composition.nonce.hex().encode()])
                == []
            )

    @pytest.mark.parametrize("message", ["rows", "gram"])
    def test_after_the_receipt_no_copy_can_be_opened(self, tmp_path: Path, message: str) -> None:
        server = Server()
        with make_store(tmp_path, message=message) as store:
            store.add(
                ids(5), features(5), [0, 1, 2, 0, 1], subjects=["ann", "ben"] * 2 + ["ann"], now=NOW
            )
            deliver(store, server)
            store.forget(Selection(subject="ann"))
            store.outbox.compose()
            old = {
                row[0]: row[1:]
                for row in rows_of(
                    store, "SELECT slot, id_tag, commitment, names, content FROM samples"
                )
            }
            (nonce,) = rows_of(store, "SELECT slot, sealed FROM compositions")
            doomed = {
                row[0]
                for row in rows_of(store, "SELECT slot FROM samples WHERE state = 'deleting'")
            }
            assert len(doomed) == 3
            receipt = server.offer(store.outbox.encode(store.outbox.composed()))  # type: ignore[arg-type]
            store.outbox.settle(2, receipt)
            log = store.path / "client.db-wal"
            assert not log.exists() or log.stat().st_size == 0
            raw = b"".join(file.read_bytes() for file in store.path.iterdir())
            with files_of(store) as files:
                unseal = files.vault.unseal
                with pytest.raises(ShreddedError):
                    unseal(nonce[0], nonce[1], b"composition:2")
                for slot, (id_tag, commitment, names, content) in old.items():
                    if slot in doomed:
                        assert not any(part in raw for part in (id_tag, commitment, names, content))
                        with pytest.raises(ShreddedError):
                            unseal(slot, names, b"names\0" + id_tag)
                        with pytest.raises(ShreddedError):
                            unseal(slot, content, b"content\0" + id_tag + commitment)
                    else:
                        assert all(part in raw for part in (id_tag, commitment, names))
                        unseal(slot, names, b"names\0" + id_tag)

    def test_keys_are_nowhere_in_the_folder_afterwards(self, tmp_path: Path) -> None:
        with make_store(tmp_path, mirrors=[tmp_path / "mirror"]) as store:
            store.add(ids(3), features(3), [0, 1, 2], now=NOW)
            deliver(store, server := Server())
            content = (store.path / "client.vault").read_bytes()
            keys = {slot: content[512 + 36 * slot : 544 + 36 * slot] for slot in live_slots(store)}
            ((doomed,),) = rows_of(store, "SELECT slot FROM samples WHERE label = 1")
            store.forget(Selection(label="dog"))
            deliver(store, server)
            assert found_in(tmp_path, [keys.pop(doomed)]) == []
            assert all(len(found_in(tmp_path, [key])) == 2 for key in keys.values())


class TestFullDisk:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> ClientFolder:
        make_store(tmp_path).close()
        return ClientFolder.open(tmp_path / "store")

    @pytest.fixture
    def store(self, folder: ClientFolder) -> Iterator[ClientStore]:
        with ClientStore(folder) as store:
            yield store

    def full(self, folder: ClientFolder, more: int = 0) -> None:
        pages = folder.database.value("PRAGMA page_count")
        folder.database.rows(f"PRAGMA max_page_count={pages + more}")

    def roomy(self, folder: ClientFolder) -> None:
        folder.database.rows("PRAGMA max_page_count=1000000")

    def test_an_add_that_does_not_fit_changes_nothing(
        self, folder: ClientFolder, store: ClientStore
    ) -> None:
        server = Server()
        store.add(ids(3), features(3), [0, 1, 2], now=NOW)
        before = store.status(), live_slots(store)
        self.full(folder, 2)
        with pytest.raises(StoreError, match=r"full.*Free some space"):
            store.add(ids(2000, "big"), features(2000), [0] * 2000, now=NOW)
        assert (store.status(), live_slots(store)) == before
        self.roomy(folder)
        store.add(ids(2000, "big"), features(2000), [0] * 2000, now=NOW)
        deliver(store, server)
        assert server.account.count == 2003

    def test_a_receipt_that_does_not_fit_is_settled_later(
        self, folder: ClientFolder, store: ClientStore
    ) -> None:
        server = Server()
        composition = about_to_delete(store, server)
        data = store.outbox.encode(composition)
        self.full(folder)
        with pytest.raises(StoreError, match="full"):
            store.outbox.settle(2, b"x" * 1_000_000)
        assert store.outbox.encode(composition) == data
        assert store.status().deleting == 1
        self.roomy(folder)
        store.outbox.settle(2, server.offer(data))
        assert store.statistics() == server.statistics


class TestOldCopies:
    def test_a_restored_database_forgets_what_has_been_deleted_since(self, tmp_path: Path) -> None:
        with make_store(tmp_path) as store:
            store.add(ids(5), features(5), [0, 1, 2, 0, 1], now=NOW)
            deliver(store, server := Server())
        copy = tmp_path / "backup.db"
        shutil.copy(tmp_path / "store" / "client.db", copy)
        with ClientStore.open(tmp_path / "store") as store:
            store.forget(Selection(ids=["sample-1", "sample-3"]))
            deliver(store, server)
            store.add(["later"], features(1), [0], now=NOW)
        shutil.copy(copy, tmp_path / "store" / "client.db")
        with pytest.raises(StoreError, match=r"older copy.*restored=True"):
            ClientStore.open(tmp_path / "store")
        with ClientStore.open(tmp_path / "store", restored=True) as store:
            assert set(store.preview(Selection(everything=True)).ids) == {
                "sample-0",
                "sample-2",
                "sample-4",
            }
            assert store.recall("rejoin") == "1"
            header = deliver(store, server, reset=True, sequence=3)
            assert header is not None
            assert server.statistics == Statistics.of(SPEC, features(5)[::2], [0, 2, 1])
            assert store.recall("rejoin") == ""
        ClientStore.open(tmp_path / "store").close()

    def test_a_row_that_was_exchanged_is_refused(self, tmp_path: Path) -> None:
        with make_store(tmp_path) as store:
            store.add(ids(2), features(2), [0, 1], now=NOW)
            deliver(store, Server())
        with closing(sqlite3.connect(tmp_path / "store" / "client.db")) as database:
            database.execute("UPDATE samples SET commitment = zeroblob(32) WHERE label = 0")
            database.commit()
        with (
            ClientStore.open(tmp_path / "store") as store,
            pytest.raises(StoreError, match="altered"),
        ):
            store.statistics()

    def test_a_lost_vault_comes_back_from_its_mirror(self, tmp_path: Path) -> None:
        with make_store(tmp_path, mirrors=[tmp_path / "mirror"]) as store:
            store.add(ids(3), features(3), [0, 1, 2], now=NOW)
            deliver(store, server := Server())
            store.forget(Selection(label="cat"))
            deliver(store, server)
        (tmp_path / "store" / "client.vault").unlink()
        shutil.copy(tmp_path / "mirror", tmp_path / "store" / "client.vault")
        with ClientStore.open(tmp_path / "store") as store:
            assert store.statistics() == server.statistics
        with Vault.open(tmp_path / "mirror") as mirror:
            assert len(mirror.live()) == 3
