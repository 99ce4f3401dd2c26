"""The demo with secure aggregation: the same head, by sums of which nobody sees the parts."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from support.cli import run


def test_it_forgets_a_person_in_a_round_and_equals_retraining(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = ("demo", "--secure-aggregation", "--keep", "O'Neill demo")
    printed = run(*given, env={"COLUMNS": "80"}).stdout
    story, _, after = printed.partition("Next (")
    assert max(map(len, story.splitlines())) <= 80
    assert "The heads after forgetting and after retraining are equal, bit for bit." in printed
    assert "equal: the sum of all clients is the ledger" in printed
    assert "the number at each client is not disclosed" in printed
    assert re.search(r"Samples added\s+144\s+received\s+as\s+[0-9a-f]{24}…", printed)
    typed = re.findall(r"^  expunge (.*)$", after, re.MULTILINE)
    assert len(typed) == 5
    for line in typed:
        if not line.startswith("serve"):
            run(*shlex.split(line))
