"""The page on Flower runs: its Python, on the in-process grid and in a simulation; its commands, in
Flower's own simulation. A deployment's commands have options that Flower knows.
"""

from __future__ import annotations

import importlib
import subprocess
from functools import cache
from pathlib import Path

import pytest

from support.flower import Clinics
from support.flower_processes import BIN, HOST, connection, flower, free_port, start_superlink
from support.pages import ROOT, blocks_of, run_python, run_shell
from support.shell import Command, commands

PAGE = "docs/how-to/flower.md"


def test_its_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = run_python("docs/how-to/flower.md", "py")
    assert len(names["outcome"].requests) == 2

    clinics = Clinics(tmp_path, 2)
    nodes = {
        number: {"expunge-client": str(clinics.folder(name))}
        for number, name in enumerate(clinics.retained)
    }
    inprocess = importlib.import_module("expunge.transport.flower.inprocess")
    grid = inprocess.InProcessGrid(
        names["client_app"], nodes, {"expunge-server": str(clinics.server)}
    )
    grid.run_server(names["server_app"])
    clinics.check()


def test_its_simulation(tmp_path: Path) -> None:
    clinics = Clinics(tmp_path, 2)
    (tmp_path / "packaging").symlink_to(ROOT / "packaging")
    changes = {
        "/data/federation/server": str(clinics.server),
        "/data/federation/clients": str(clinics.path / "clients"),
        "num-supernodes=10": "num-supernodes=2",
    }
    with flower(tmp_path / "home") as found:
        port = free_port()
        connection(found, port, None)
        simulation = ("flower-superlink", "--insecure", "--simulation")
        start_superlink(found, *simulation, "--host", HOST, "--port", str(port))
        printed = run_shell(
            "docs/how-to/flower.md", tmp_path, changes=changes, environment=found.environment
        )
    assert "Expunge: 10 samples, head" in printed
    clinics.check()


@cache
def options(program: tuple[str, ...]) -> str:
    done = subprocess.run(  # noqa: S603 - Flower's own programs
        [str(BIN / program[0]), *program[1:], "--help"],
        capture_output=True,
        text=True,
        env={"COLUMNS": "200", "NO_COLOR": "1"},
        check=True,
    )
    return done.stdout


def program(command: Command) -> tuple[str, ...]:
    subcommands = {"run": 1, "supernode": 2} if command.program == "flwr" else {}
    return (command.program, *command.arguments[: subcommands.get(command.arguments[0], 0)])


def test_options_of_its_deployment() -> None:
    found = [
        command
        for block in blocks_of(PAGE, "console")
        for command in commands(block.text)
        if command.program in ("flower-superlink", "flower-supernode", "flwr")
    ]
    assert len(found) == 4
    for command in found:
        known = options(program(command)).split()
        unknown = [word for word in command.arguments if word[:2] == "--" and word not in known]
        assert unknown == [], command
