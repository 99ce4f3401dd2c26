"""Modules that are made for a test."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


def importable(name: str, code: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module's name: it can be imported during a test, and has not been yet."""
    (folder / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, name, raising=False)
    return name
