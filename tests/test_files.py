"""Small files are whole or absent, and a folder has one process at work on it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from expunge import files
from expunge.errors import StoreBusyError, StoreError
from expunge.files import FolderLock, write_whole


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "key"
    write_whole(path, b"first")
    write_whole(path, b"x" * 100_000)
    assert path.read_bytes() == b"x" * 100_000
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    write_whole(path, b"", 0o644)
    assert path.read_bytes() == b""
    assert [file.name for file in tmp_path.iterdir()] == ["key"]


@pytest.mark.parametrize("step", ["write", "fsync"])
def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
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
    write = os.write
    monkeypatch.setattr(files.os, "write", lambda descriptor, data: write(descriptor, bytes(data[:3])))
    write_whole(tmp_path / "key", b"a longer text than three bytes")
    assert (tmp_path / "key").read_bytes() == b"a longer text than three bytes"


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
    program = "import os, sys; from pathlib import Path; from expunge.files import FolderLock\n"
    program += "lock = FolderLock(Path(sys.argv[1])); print(os.getpid(), flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:  # noqa: S603 - our own
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
