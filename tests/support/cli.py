"""The command line as tests use it: a small federation in a folder, spoken to by `expunge` within
this process.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from expunge.cli import _connect
from support.printed import run

ROWS_A = "id,subject,label,x,y,z\na1,p1,cat,1,2,3\na2,p1,dog,2,1,0.5\na3,p2,cat,0,1,1\n"
ROWS_B = "id,subject,label,x,y,z\nb1,p1,cat,1,1,3\nb2,p3,dog,2,0,0.25\n"


def value(*arguments: object, code: int = 0, given: str | None = None) -> dict[str, Any]:
    """The one JSON object that a command prints with --json."""
    printed = run(*arguments, "--json", code=code, given=given).stdout
    assert printed.count("\n") == 1
    found = json.loads(printed)
    assert isinstance(found, dict)
    return found


def set_waits(monkeypatch: pytest.MonkeyPatch, **waits: float) -> None:
    """Set how long commands wait for servers and for other processes: `attempts`, `patience`,
    `moment` and `looks`, the constants of `expunge.cli._connect`.
    """
    for name, wait in waits.items():
        monkeypatch.setattr(_connect, name.upper(), wait)


@dataclass(frozen=True)
class Federation:
    """A federation within one machine."""

    path: Path

    @property
    def folder(self) -> Path:
        return self.path / "federation"

    @property
    def office(self) -> Path:
        return self.folder / "operator"

    @property
    def key(self) -> Path:
        return self.folder / "server.pub"

    @classmethod
    def found(cls, path: Path, *options: object) -> Federation:
        made = cls(path)
        given = options or ("--dim", 3, "--labels", "cat,dog")
        run("init", made.folder, *given)
        return made

    def enrol(self, name: str, *options: object, role: str = "client") -> Path:
        token = self.path / f"{name}.token"
        run("server", "token", name, "--role", role, "-o", token, "--office", self.office)
        run("enroll", token, "--dir", self.path / name, *options)
        return self.path / name

    def client(self, name: str, rows: str) -> Path:
        """An enrolled client that has added these rows."""
        folder = self.enrol(name)
        run("client", "add", self.file(f"{name}.csv", rows), "--dir", folder)
        return folder

    def file(self, name: str, text: str) -> Path:
        path = self.path / name
        path.write_text(text)
        return path

    def samples(self) -> int:
        return int(value("server", "status", "--office", self.office)["samples"])


def features_of(rows: str) -> tuple[np.ndarray[Any, Any], list[str]]:
    """Features and labels of some rows."""
    parts = [row.split(",") for row in rows.splitlines()[1:]]
    return np.array([[float(one) for one in row[3:]] for row in parts]), [row[2] for row in parts]
