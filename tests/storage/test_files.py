"""Small files are whole or absent, and a folder has one process at work on it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge import Spec
from expunge.client import ClientStore
from expunge.crypto import SigningKey
from expunge.errors import StoreBusyError, StoreError
from expunge.server.backup import found
from expunge.server.service import Service
from expunge.storage import files
from expunge.storage.files import FolderLock, erase, erase_drafts, write_whole
from expunge.storage.machine import mounted
from expunge.testing.simulation.disk import CrashedError, Disk
from expunge.testing.simulation.machine import TROUBLES, SimulatedMachine, Trouble, TroubleKind


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "key"
    write_whole(path, b"first")
    write_whole(path, b"x" * 100_000)
    assert path.read_bytes() == b"x" * 100_000
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    write_whole(path, b"", 0o644)
    assert path.read_bytes() == b""
    assert [file.name for file in tmp_path.iterdir()] == ["key"]


def test_a_draft_that_others_could_read_is_not_written_to(tmp_path: Path) -> None:
    draft = tmp_path / "key.part"
    draft.write_bytes(b"left by a crash")
    draft.chmod(0o644)
    with draft.open("rb") as read_by_others:
        write_whole(tmp_path / "key", b"secret")
        assert read_by_others.read() == b"left by a crash"
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


@pytest.mark.parametrize("step", ["pwrite", "fsync"])
def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "key"
    write_whole(path, b"old")

    def failing(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files.os, step, failing)
        with pytest.raises(OSError, match="No space"):
            write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    write_whole(path, b"new")  # whatever was left in between does no harm
    assert path.read_bytes() == b"new"
    assert [file.name for file in tmp_path.iterdir()] == ["key"]


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwrite
    monkeypatch.setattr(
        files.os,
        "pwrite",
        lambda descriptor, data, offset: write(descriptor, bytes(data[:3]), offset),
    )
    write_whole(tmp_path / "key", b"a longer text than three bytes")
    assert (tmp_path / "key").read_bytes() == b"a longer text than three bytes"


def test_what_a_killed_process_left_is_overwritten_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", die)
        with pytest.raises(Killed):
            write_whole(tmp_path / "key", b"secret" * 20_000)
    (tmp_path / "other").write_bytes(b"kept")
    (tmp_path / "link").hardlink_to(
        tmp_path / "key.part"
    )  # what a look at the disk itself would find
    erase_drafts(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["link", "other"]
    assert (tmp_path / "link").read_bytes() == bytes(120_000)
    assert (tmp_path / "other").read_bytes() == b"kept"


def test_whoever_opens_a_folder_clears_such_drafts_away(tmp_path: Path) -> None:
    spec, key = Spec(dim=2, labels=("a", "b")), SigningKey(b"\x01" * 32)
    store = ClientStore.create(
        tmp_path / "client", federation="0" * 32, name="a", server=key.public, spec=spec
    )
    store.close()
    found(tmp_path / "server", spec, key.public, key=key)
    for name in ("client/client.key.part", "server/server.key.part"):
        (tmp_path / name).write_bytes(b"a private key")
    ClientStore.open(tmp_path / "client").close()
    Service.open(tmp_path / "server", upkeep=False).close()
    assert list(tmp_path.rglob("*.part")) == []


@given(after=st.integers(0, 12), kind=st.sampled_from(TROUBLES), seed=st.integers(0, 2**32))
def test_a_file_is_whole_or_gone_when_the_power_is_cut_while_it_is_erased(
    after: int, kind: TroubleKind, seed: int
) -> None:
    """And the next time, whatever was left of it is erased."""
    with TemporaryDirectory() as folder:
        path, secret = Path(folder) / "machine" / "command", b"a person's name" * 100
        disk = Disk(path.parent)
        machine = SimulatedMachine("first", disk, b"first")
        with mounted(path.parent, machine):
            write_whole(path, secret)
            machine.trouble = Trouble(kind, after)
            with suppress(OSError, CrashedError):
                erase(path)
        disk.cut_power(Random(seed), 0.5)  # noqa: S311 - it is to be repeated
        with mounted(path.parent, SimulatedMachine("second", disk, b"second")):
            assert not path.exists() or path.read_bytes() == secret
            erase(path)
        assert not disk.finds([secret[:100]])
        assert list(path.parent.iterdir()) == []


def test_what_is_not_there_is_erased_already(tmp_path: Path) -> None:
    erase(tmp_path / "nothing")
    erase_drafts(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_lock_is_released_once(tmp_path: Path) -> None:
    """By the second time the number of its file may be somebody else's."""
    lock = FolderLock(tmp_path)
    lock.release()
    with (tmp_path / "other").open("wb") as other:
        lock.release()
        other.write(b"written")
    assert (tmp_path / "other").read_bytes() == b"written"


def test_a_folder_is_locked_until_it_is_released(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    with pytest.raises(StoreBusyError, match=f"process {os.getpid()}"):
        FolderLock(tmp_path)
    lock.release()
    FolderLock(tmp_path).release()


def test_whoever_waits_gets_the_lock_when_it_is_free(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    taken: list[FolderLock] = []
    waiting = threading.Thread(target=lambda: taken.append(FolderLock(tmp_path, timeout=10.0)))
    waiting.start()
    time.sleep(0.05)
    assert not taken
    lock.release()
    waiting.join()
    taken[0].release()


def test_a_process_that_dies_leaves_no_lock(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from expunge.storage.files import FolderLock\n"
    )
    program += (
        "lock = FolderLock(Path(sys.argv[1])); print(os.getpid(), flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(  # noqa: S603 - our own
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        holder = child.stdout.readline().strip()
        with pytest.raises(StoreBusyError, match=f"process {holder}"):
            FolderLock(tmp_path)
        child.kill()
        child.wait()
        FolderLock(tmp_path).release()


def test_there_must_be_a_folder(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no folder"):
        FolderLock(tmp_path / "nowhere")
