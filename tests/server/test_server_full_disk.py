"""A full disk, or one that can only be read: additions are refused and deletions go on, nothing is
lost or applied twice, and the server says what is wrong and what to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from expunge.errors import RefusedError, StoreError
from expunge.server import RESERVE
from expunge.server.service import Service
from expunge.server.state import Settings
from expunge.storage.machine import mounted
from expunge.testing.simulation.disk import Disk
from expunge.testing.simulation.machine import SimulatedMachine, Trouble
from support.disks import SmallDisk
from support.federation import Federation
from support.raw_bytes import nothing_lingers

NEED = 1 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    machine = SmallDisk(tmp_path / "disk")
    machine.path.mkdir()
    with mounted(machine.path, machine):
        yield machine


@pytest.fixture
def federation(disk: SmallDisk) -> Iterator[Federation]:
    with Federation(disk.path / "server", settings=Settings(room=NEED)) as federation:
        federation.enrol("clinic").send(federation.draw(6))
        federation.fold()
        yield federation


def test_a_full_disk_takes_deletions_and_no_additions(
    federation: Federation, disk: SmallDisk
) -> None:
    client, room = federation.clients["clinic"], federation.service.state.room
    reserve = federation.path / RESERVE
    assert reserve.stat().st_size == 2 * NEED
    assert not room.problem()
    disk.fill()
    for _ in range(2):
        with pytest.raises(RefusedError, match="disk is full") as refusal:
            client.send(federation.draw(2))
        assert refusal.value.code == "no-room"
    client.send([], client.retained[:1])
    assert not reserve.exists()
    with pytest.raises(RefusedError, match="disk is full"):
        client.send(federation.draw(2), client.retained[:1])
    client.send(federation.draw(1), client.retained[:1])  # a correction adds nothing
    federation.operator.command("order", subject="p1", days=30)
    federation.fold()
    with pytest.raises(RefusedError, match="disk is full"):
        federation.operator.command("backup", name="monday")
    federation.check()
    nothing_lingers(federation)
    assert "Free " in room.problem()
    disk.fill(8 * NEED)
    federation.service.upkeep.run_due()
    assert reserve.stat().st_size == 2 * NEED
    assert not room.problem()
    client.send(federation.draw(2))
    federation.check()


def test_a_server_starts_on_a_full_disk_and_says_so(
    federation: Federation, disk: SmallDisk
) -> None:
    client, told = federation.clients["clinic"], list[str]()
    federation.service.close()
    disk.fill()
    federation.service = Service.open(
        federation.path,
        settings=Settings(room=NEED),
        clock=federation.clock,
        upkeep=False,
        report=lambda text, _: told.append(text),
    )
    (problem,) = told
    assert "is full: " in problem
    assert "Free " in problem
    with pytest.raises(RefusedError, match="disk is full"):
        client.send(federation.draw(1))
    client.send([], client.retained[:2])
    federation.fold()
    federation.check()
    disk.fill(8 * NEED)
    federation.service.upkeep.run_due()
    assert told[1:] == ["the disk has room again: additions are taken"]
    client.send(federation.draw(1))
    federation.check()


def test_what_others_have_taken_of_the_disk_is_asked_for(
    federation: Federation, disk: SmallDisk
) -> None:
    """As many bytes as are named are enough."""
    room, client = federation.service.state.room, federation.clients["clinic"]
    disk.fill(100)
    client.send([], client.retained[:1])
    disk.fill(100)
    needed = int(room.problem().rpartition("Free ")[2].partition(" bytes")[0].replace(",", ""))
    disk.fill(100 + needed - 1)
    federation.service.upkeep.run_due()
    assert room.is_short
    disk.fill(100 + needed)
    federation.service.upkeep.run_due()
    assert not room.problem()


def test_a_disk_that_can_only_be_read_is_named(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "disk")
    with mounted(disk.path, machine := SimulatedMachine("server", disk, b"seed")):
        federation = Federation(disk.path / "server")
        client, service = federation.enrol("clinic"), federation.service
        client.send(federation.draw(3))
        machine.trouble = Trouble("read-only", 0)
        for _ in range(2):
            with pytest.raises(RefusedError, match=r"readonly|Read-only") as refusal:
                client.send(federation.draw(1))
            assert refusal.value.code == "storage"
        assert "mounted read-only" in service.state.room.problem()
        assert client.sync()["sequence"] == client.sequence
        service.close()
        with pytest.raises(StoreError, match="mounted read-only: mount it for writing"):
            Service.open(federation.path)
        machine.mend()
        federation.service = federation.opened()
        assert not federation.service.state.room.problem()
        client.send(federation.draw(1))
        federation.check()
        federation.close()
