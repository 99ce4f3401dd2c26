"""A server that has lost the end of its write-ahead log does not serve what is left: it says what
is lost, and goes on only when the loss is accepted, without undoing a deletion.
"""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

from expunge import Statistics, solve
from expunge.errors import EvidenceError, StoreDamagedError, StoreError
from expunge.federation import Federation
from expunge.federation.recovery import accept_loss
from expunge.server.scrub import scrub_server
from expunge.server.service import Service
from expunge.storage.machine import Machine, mounted
from support import federation as parties
from support import seeds
from support.cli import value
from support.clients import features, ids
from support.federation import SPEC
from support.printed import run

FRAME = 24  # bytes of a frame's header in a write-ahead log; the log's own has 32


class Story:
    """A server's folder as a kill leaves it, after deletions that were receipted, with the sizes
    of the log that somebody was told of.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        federation = parties.Federation(path / "federation" / "server")
        clinic = federation.enrol("clinic")
        clinic.send(federation.draw(6))
        federation.close()  # what is in the database by now is not lost with its log
        federation.service = federation.opened()
        for _ in range(3):
            clinic.send(federation.draw(1), clinic.retained[:1])
        self.samples = len(clinic.retained)
        self.size = federation.service.state.log.size
        self.root = federation.service.state.log.root(self.size)
        self.left = path / "left"
        shutil.copytree(federation.path, self.left)
        federation.close()
        self.federation = federation

    @property
    def log(self) -> bytes:
        return (self.left / "server.db-wal").read_bytes()

    def with_log(self, log: bytes | None) -> Path:
        """The folder with this write-ahead log."""
        path = self.path / "again"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(self.left, path)
        for name in ("server.db-wal", "server.db-shm"):
            (path / name).unlink(missing_ok=True)
        if log is not None:
            (path / "server.db-wal").write_bytes(log)
        return path

    def opens(self, path: Path) -> bool:
        """Whether the server there is as it was; if not, it does not start, and is left alone."""
        before = {
            file.name: file.read_bytes()
            for file in path.iterdir()
            if file.suffix in (".db", ".db-wal", ".key", ".mark")
        }
        try:
            service = Service.open(path, clock=self.federation.clock, upkeep=False)
        except StoreDamagedError as problem:
            said = str(problem)
        else:
            said = ""
        if said:
            assert "accept-loss" in said
            assert f"and had {self.size}" in said
            findings = scrub_server(path).findings
            assert any(f"and had {self.size}" in finding.text for finding in findings)
            assert {name: (path / name).read_bytes() for name in before} == before
            return False
        log = service.state.log
        assert (log.size, log.root(log.size)) == (self.size, self.root)
        assert service.status()["samples"] == self.samples
        service.close()
        return True


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return Story(tmp_path_factory.mktemp("story"))


def frames_of(log: bytes) -> list[int]:
    (page,) = struct.unpack(">I", log[8:12])
    return list(range(32, len(log) - page - FRAME + 1, page + FRAME))


def test_what_a_kill_leaves_opens_as_it_was(story: Story) -> None:
    assert story.opens(story.with_log(story.log))


def test_no_damaged_frame_is_silently_wrong(story: Story) -> None:
    log, chance = story.log, seeds.chance("frames")
    frames, opened = frames_of(log), []
    for start in frames:
        at = start + chance.randrange(len(log) // len(frames))
        damaged = bytearray(log)
        damaged[min(at, len(log) - 1)] ^= 1 << chance.randrange(8)
        opened.append(story.opens(story.with_log(bytes(damaged))))
    assert not all(opened)
    assert len(opened) > 20


def test_no_cut_is_silently_wrong(story: Story) -> None:
    log = story.log
    opened = [story.opens(story.with_log(log[:start])) for start in frames_of(log)]
    assert not any(opened)
    assert not story.opens(story.with_log(None))
    assert not story.opens(story.with_log(b""))


@pytest.mark.parametrize("where", ["header", "anywhere"])
def test_no_flipped_bit_is_silently_wrong(story: Story, where: str) -> None:
    log, chance = story.log, seeds.chance(where)
    bits = range(8 * 32) if where == "header" else chance.sample(range(8 * len(log)), 60)
    for bit in bits:
        damaged = bytearray(log)
        damaged[bit // 8] ^= 1 << bit % 8
        story.opens(story.with_log(bytes(damaged)))


def test_another_log_is_not_taken_for_this_one(story: Story) -> None:
    path = story.with_log(story.log)
    Service.open(path, upkeep=False).close()
    other = parties.Federation(story.path / "other")
    client = other.enrol("clinic")
    client.send(other.draw(6))
    for _ in range(8):
        client.send(other.draw(1))
    other.close()
    shutil.copy(path / "server.mark", other.path / "server.mark")
    with pytest.raises(StoreDamagedError, match="is not the one whose first"):
        Service.open(other.path)
    shutil.rmtree(other.path)


def test_a_mark_that_is_behind_is_raised_and_one_that_is_missing_is_made(story: Story) -> None:
    path = story.with_log(story.log)
    new = (path / "server.mark").read_bytes()
    for old in (None, new):
        if old is None:
            (path / "server.mark").unlink()
        assert story.opens(path)
        mark = (path / "server.mark").read_bytes()
        assert sorted([mark[:61], mark[512:573]])[-1] in (new[:61], new[512:573])


# -- going on --------------------------------------------------------------------------------------


class Loss:
    """A federation whose server is killed, and loses its write-ahead log, after deletions that were
    receipted and an order.
    """

    def __init__(self, path: Path) -> None:
        self.path = path / "federation"
        with Federation.found(self.path, SPEC) as federation:
            for name, seed in (("north", 1), ("south", 2)):
                client = federation.client(name)
                client.add(ids(4, name), features(4, seed), [0, 1, 2, 0], subjects=list("abcd"))
            federation.office.do("backup", {"name": "monday"})
            federation.sync()
        with Federation.open(self.path) as federation:
            log = federation.carrier.state.log
            size = log.size
            federation.client("north").forget(subject="a")
            federation.client("south").forget(subject="b")
            federation.order("c")
            federation.sync()
            self.lost = log.size - size
            shutil.copytree(self.server, path / "left")
        shutil.rmtree(self.server)
        shutil.copytree(path / "left", self.server)
        for end in ("-wal", "-shm"):
            (self.server / f"server.db{end}").unlink()

    @property
    def server(self) -> Path:
        return self.path / "server"

    @staticmethod
    def expected() -> Statistics:
        return Statistics.of(SPEC, features(4, 1)[[1, 3]], [1, 0]) + Statistics.of(
            SPEC, features(4, 2)[[0, 3]], [0, 0]
        )


@pytest.fixture
def loss(tmp_path: Path) -> Loss:
    return Loss(tmp_path)


def test_what_is_left_is_served_only_when_the_loss_is_accepted_and_undoes_nothing(
    loss: Loss,
) -> None:
    with pytest.raises(StoreDamagedError, match="the rest is lost"):
        Federation.open(loss.path)
    accepted = accept_loss(loss.path)
    assert (accepted.waiting, accepted.lost) == (["north", "south"], loss.lost)
    assert [file.name for file in (loss.server / "backups").iterdir()] == ["monday"]
    with Federation.open(loss.path) as federation:
        assert federation.office.ask("status", {})["samples"] == 0
        for name in ("north", "south"):
            client = federation.client(name)
            with pytest.raises(EvidenceError, match="accept_restored=True"):
                client.sync()
            assert client.agent.sync(accept_restored=True).rejoined
        ledger = federation.carrier.state.ledger.solver.statistics
        assert ledger == loss.expected()
        assert federation.published()[0].digest == solve(ledger).digest
        assert federation.audit()["result"] == "equal"
        client.forget(subject="d")
    with pytest.raises(StoreError, match="nothing is lost"):
        accept_loss(loss.path)


class Cut(Machine):
    """Stops at one of the renames and removals."""

    def __init__(self, stop_at: int) -> None:
        self.left = stop_at

    def _step(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt

    def rename(self, path: Path, target: Path) -> None:
        self._step()
        super().rename(path, target)

    def remove_tree(self, path: Path) -> None:
        self._step()
        super().remove_tree(path)


def test_accepting_can_be_interrupted_anywhere(tmp_path: Path) -> None:
    Loss(tmp_path / "first")
    stop_at, was_cut = 1, True
    while was_cut:
        path = tmp_path / "again"
        shutil.copytree(tmp_path / "first" / "federation", path)
        machine = Cut(stop_at)
        with mounted(path, machine):
            try:
                accept_loss(path)
            except KeyboardInterrupt:
                accept_loss(path)
            else:
                was_cut = False
        assert sorted(file.name for file in path.iterdir() if "server." in file.name) == [
            "server.pub"
        ]
        assert (path / "server" / "backups" / "monday").is_file()
        with Federation.open(path) as federation:
            for name in ("north", "south"):
                federation.client(name).agent.sync(accept_restored=True)
            assert federation.carrier.state.ledger.solver.statistics == Loss.expected()
        shutil.rmtree(path)
        stop_at += 1
    assert stop_at > 5


def test_the_command_says_what_is_lost_and_what_to_do_next(loss: Loss) -> None:
    said = run("server", "status", "--office", loss.path / "operator", code=1).stderr
    assert "expunge server accept-loss" in " ".join(said.split())
    assert value("server", "accept-loss", loss.path, "--yes") == {
        "directory": str(loss.path),
        "lost": loss.lost,
        "waiting": ["north", "south"],
    }
    run("server", "accept-loss", loss.path, "--yes", code=1)
    assert value("server", "status", "--office", loss.path / "operator")["samples"] == 0
