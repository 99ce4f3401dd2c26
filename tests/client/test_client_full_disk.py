"""A client whose disk is full, and one whose server's disk is: what is stored can be read, and
forgetting goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from expunge.client import ClientStore, Selection
from expunge.errors import RefusedError, StoreError
from expunge.server.state import Settings
from expunge.storage.machine import mounted
from expunge.testing.simulation.disk import Disk
from expunge.testing.simulation.machine import SimulatedMachine, Trouble
from support.agents import Home, add
from support.clients import NOW, features, make_store
from support.disks import SmallDisk

NEED = 1 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    machine = SmallDisk(tmp_path / "disk")
    machine.path.mkdir()
    with mounted(machine.path, machine):
        yield machine


@pytest.fixture
def ward(tmp_path: Path) -> Iterator[SmallDisk]:
    """The disk of the client alone."""
    machine = SmallDisk(tmp_path / "ward-3")
    with mounted(machine.path, machine):
        yield machine


def test_a_store_on_a_full_disk_is_read_and_forgets(ward: SmallDisk, tmp_path: Path) -> None:
    disk, home = ward, Home(tmp_path)
    add(home.store, 5)
    home.agent.push()
    reserve = home.store.path / "client.reserve"
    size = reserve.stat().st_size
    disk.fill()
    home.store.close()
    with ClientStore.open(home.store.path) as store:
        assert not reserve.exists()
        assert store.status().live == 5
        assert len(store.listed(Selection(everything=True))) == 5
        disk.fill()  # by others, who take what was given up as well
        with pytest.raises(StoreError, match=r"disk of .* is full: .* Nothing was added: free"):
            add(store, 1, "late")
        disk.fill(size)
        store.forget(Selection(ids=["sample-0"]))
        (receipt,) = home.agent_of(store).push()
        assert receipt.logged.entry["deleted"] == 1
        with pytest.raises(StoreError, match="Nothing was added"):
            add(store, 1, "late")
        disk.fill(4 * size)
    assert reserve.stat().st_size == size
    with ClientStore.open(home.store.path) as store:
        add(store, 1, "late")
        home.agent_of(store).push()
        assert store.status().live == 5
    home.close()


def test_deletions_do_not_wait_with_additions_that_the_server_has_no_room_for(
    disk: SmallDisk,
) -> None:
    home = Home(disk.path, settings=Settings(room=NEED))
    with home.store as store:
        add(store, 5)
        home.agent.push()
        disk.fill(600_000)  # enough for the client, which is on the same disk
        add(store, 2, "late")
        with pytest.raises(RefusedError, match="it takes no additions until its operator") as no:
            home.agent.push()
        assert no.value.code == "no-room"
        store.forget(Selection(ids=["sample-0"]))
        old = store.listed(Selection(ids=["sample-1"]))
        store.correct("sample-1", feature=features(1, 7)[0], label=2, now=NOW)
        (receipt,) = home.agent.push()
        entry = receipt.logged.entry
        assert (len(old), entry["added"], entry["deleted"]) == (1, 1, 2)
        status = store.status()
        assert (status.live, status.adding, status.deleting) == (4, 2, 0)
        disk.fill(8 * NEED)
        home.federation.service.upkeep.run_due()
        (receipt,) = home.agent.push()
        assert receipt.logged.entry["added"] == 2
        assert home.ledger == store.statistics()
    home.federation.close()


def test_a_reset_does_not_wait_for_room_that_it_does_not_take(disk: SmallDisk) -> None:
    """It deletes what an order asks for, and holds up every other deletion until it is through."""
    home = Home(disk.path, settings=Settings(room=NEED))
    with home.store as store:
        add(store, 5)
        home.agent.push()
        disk.fill(600_000)
        add(store, 2, "late")
        store.forget(Selection(ids=["sample-0"]), reset=True)
        (receipt,) = home.agent.push()
        entry = receipt.logged.entry
        assert (entry["reset"], entry["added"]) == (True, 4)
        status = store.status()
        assert (status.live, status.adding, status.deleting) == (4, 2, 0)
        disk.fill(8 * NEED)
        home.federation.service.upkeep.run_due()
        (receipt,) = home.agent.push()
        assert receipt.logged.entry["added"] == 2
        assert home.ledger == store.statistics()
    home.federation.close()


def test_a_store_that_can_only_be_read_is_named(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "disk")
    with mounted(disk.path, machine := SimulatedMachine("ward", disk, b"seed")):
        store = make_store(disk.path)
        machine.trouble = Trouble("read-only", 0)
        with pytest.raises(StoreError, match="Read-only file system"):
            store.add(["x"], features(1), [0], now=NOW)
        assert store.status().live == 0
        store.close()
        with pytest.raises(StoreError, match="mounted read-only: mount it for writing"):
            ClientStore.open(disk.path / "store")
        machine.mend()
        with ClientStore.open(disk.path / "store") as store:
            store.add(["x"], features(1), [0], now=NOW)
