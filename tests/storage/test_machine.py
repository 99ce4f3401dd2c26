"""Whatever belongs to a machine, its disk and its randomness, is asked of the machine that the
folder is on; and unless a simulation says otherwise, that is this computer.
"""

from __future__ import annotations

import ast
import os
import secrets
from pathlib import Path

import pytest

from expunge.storage.files import write_whole
from expunge.storage.machine import THIS, Machine, machine_of, mounted

SOURCES = Path(__file__).parents[2] / "src" / "expunge"
# What clients, servers and offices consist of: everything that a simulation runs.
SIMULATED = ("client", "crypto", "evidence", "exact", "federation", "secagg", "server", "storage")
FRONT = ("server/http/",)  # certificates, sockets and signals of this computer

# By module: what changes a disk, or draws at random, beside the machine; and why it may.
FORBIDDEN = {
    "os": {"open", "write", "pwrite", "fsync", "ftruncate", "rename", "replace", "unlink", "close"},
    "shutil": {"rmtree", "copyfile", "copytree", "move"},
    "secrets": {"token_bytes", "token_hex", "SystemRandom", "randbelow"},
}
METHODS = {"unlink", "rename", "rmdir", "write_bytes", "write_text", "mkdir", "touch"}
ALLOWED = {
    ("office.py", "rmdir"): "of an office that was never enrolled, when nothing is left in it",
    ("secagg/participant.py", "token_bytes"): "a default, for callers that have no folder",
}


def asked_directly(source: str) -> set[str]:
    """The names of what a module asks of this computer rather than of a machine."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Attribute):
            continue
        owner = ast.unparse(node.value).split("(")[0]
        if node.attr in FORBIDDEN.get(owner, ()) or (
            node.attr in METHODS and owner not in ("machine", "machine_of")
        ):
            found.add(node.attr)
    return found


def modules() -> list[str]:
    paths = [SOURCES / "office.py", *(SOURCES / "federation").rglob("*.py")]
    for package in SIMULATED:
        paths += (SOURCES / package).rglob("*.py")
    names = {path.relative_to(SOURCES).as_posix() for path in paths} - {"storage/machine.py"}
    return sorted(name for name in names if not name.startswith(FRONT))


@pytest.mark.parametrize("name", modules())
def test_nothing_beside_the_machine_changes_a_disk_or_draws_at_random(name: str) -> None:
    direct = asked_directly((SOURCES / name).read_text(encoding="utf-8"))
    assert direct - {what for where, what in ALLOWED if where == name} == set()


def test_what_is_asked_directly_is_found() -> None:
    assert asked_directly("import os, shutil\nos.fsync(3)\npath.unlink()\nshutil.rmtree(x)") == {
        "fsync",
        "unlink",
        "rmtree",
    }
    assert asked_directly("machine_of(x).rename(x, y)\nos.fstat(3)\nsecrets.cipher") == set()


def test_only_simulations_mount_machines() -> None:
    users = {
        path.relative_to(SOURCES).as_posix()
        for path in SOURCES.rglob("*.py")
        if "mounted(" in path.read_text(encoding="utf-8") and path.name != "machine.py"
    }
    assert all(name.startswith("testing/") for name in users)


def test_a_machine_has_what_is_below_its_folder(tmp_path: Path) -> None:
    north, inner = Machine(), Machine()
    with mounted(tmp_path / "north", north):
        assert machine_of(tmp_path / "north") is north
        assert machine_of(tmp_path / "north" / "server" / "server.db") is north
        assert machine_of(tmp_path / "northern") is THIS
        with mounted(tmp_path / "north" / "usb", inner):
            assert machine_of(tmp_path / "north" / "usb" / "vault") is inner
            assert machine_of(tmp_path / "north" / "client.vault") is north
        assert machine_of(tmp_path / "north" / "usb" / "vault") is north
        with mounted(tmp_path / "north", inner):  # as after a restart
            assert machine_of(tmp_path / "north") is inner
        assert machine_of(tmp_path / "north") is north
    assert machine_of(tmp_path / "north") is THIS


def test_this_computer_draws_keys_from_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def drawn(count: int) -> bytes:
        asked.append(count)
        return os.urandom(count)

    monkeypatch.setattr(secrets, "token_bytes", drawn)
    assert len(THIS.random(32)) == 32
    assert asked == [32]


def test_a_file_is_written_by_the_machine_that_it_is_on(tmp_path: Path) -> None:
    class Noting(Machine):
        def __init__(self) -> None:
            self.done: list[str] = []

        def write(self, descriptor: int, data: bytes | memoryview, offset: int) -> None:
            self.done.append("write")
            super().write(descriptor, data, offset)

        def sync(self, descriptor: int) -> None:
            self.done.append("sync")
            super().sync(descriptor)

        def rename(self, path: Path, target: Path) -> None:
            self.done.append("rename")
            super().rename(path, target)

        def sync_folder(self, path: Path) -> None:
            self.done.append("sync folder")
            super().sync_folder(path)

    machine = Noting()
    with mounted(tmp_path, machine):
        write_whole(tmp_path / "key", b"secret")
    assert machine.done == ["write", "sync", "rename", "sync folder"]
    assert (tmp_path / "key").read_bytes() == b"secret"
