"""The examples of docs/how-to/inputs.md that need other libraries run, top to bottom."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "inputs.md"
FENCE = re.compile(r"^```(?:py|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = FENCE.findall(PAGE.read_text())
    assert len(blocks) > 6
    exec(compile("\n".join(blocks), str(PAGE), "exec"), {"__name__": "documentation"})  # noqa: S102 - our own documentation
