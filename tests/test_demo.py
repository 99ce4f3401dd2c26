"""The demo does what it says, and what it tells people to type works."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from expunge.cli import demo
from support.printed import run


def test_the_demo_forgets_a_person_and_equals_retraining(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    keep = "the demo of Dr O'Neill: $HOME"
    printed = run("demo", "--keep", keep).output
    assert "The heads after forgetting and after retraining are equal, bit for bit." in printed
    assert "equal: the sum of all clients is the ledger" in printed
    digests = re.findall(r"^  (?:forgotten|retrained) +([0-9a-f]{40})", printed, re.MULTILINE)
    assert len(digests) == 2
    assert digests[0] == digests[1]
    typed = re.findall(r"^  expunge (.*)$", printed.partition("Next:")[2], re.MULTILINE)
    assert len(typed) == 6
    for line in typed:
        if not line.startswith("serve"):
            run(
                *shlex.split(line),
                *(["--yes"] if "client forget" in line and "--dry-run" not in line else []),
            )
    assert "is not empty" in run("demo", "--keep", keep, code=1).stderr


def test_the_demo_fits_a_terminal_of_80_characters() -> None:
    """So does the one with secure aggregation: tests/cli/test_cli_masked_demo.py."""
    printed = run("demo", env={"COLUMNS": "80"}).stdout
    assert max(map(len, printed.splitlines())) <= 80


def test_the_demo_as_json_leaves_nothing_behind() -> None:
    told = json.loads(run("demo", "--json").stdout)
    assert told["equal_to_retraining"] is True
    assert told["audit"] == "equal"
    assert told["deleted"] > 20
    assert told["accuracy_before"] > 0.9
    assert told["accuracy_after"] > 0.9


def test_the_demo_fails_when_a_digest_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    real = demo.solve
    monkeypatch.setattr(
        demo, "solve", lambda statistics: real(statistics.under(statistics.spec.with_gamma(11.0)))
    )
    printed = run("demo", code=3).output
    assert "DIFFER" in printed
    assert "is not that of retraining" in printed
