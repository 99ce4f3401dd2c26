"""`expunge simulate`: what was seen, and how a broken law can be seen again."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from expunge.server.maintenance import Maintenance
from support.cli import run, value
from support.pages import run_shell


def test_laws_that_hold_are_counted(tmp_path: Path) -> None:
    options = ("--steps", 30, "--plain", "--no-groups", "--jobs", 1, "--folder", tmp_path)
    shown = run("simulate", "--seeds", "0-1", *options).output
    assert "2 simulations: every law held" in shown
    assert "Seeds" in shown
    assert "0-1" in shown
    told = value("simulate", "--seeds", "0-1", *options)
    assert (told["simulations"], told["broken"], told["replay"]) == (2, [], None)
    assert told["coverage"]["law: ledger"] == 2
    assert told["receipts"] == told["coverage"]["receipts"] > 0
    assert "damage: lost log" in told["not_once"]
    assert list(tmp_path.iterdir()) == []  # nothing is left of the disks


def test_a_broken_law_is_shown_with_the_command_that_repeats_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Played: a server that never erases anything."""
    monkeypatch.setattr(Maintenance, "run_due", lambda _: True)
    options = ("--seeds", "0-1", "--plain", "--jobs", 1, "--folder", tmp_path)
    told = value("simulate", *options, code=1)
    assert [broken["law"] for broken in told["broken"]] == ["erased by", "erased by"]
    assert told["journal"]
    shown = run("simulate", *options, code=1).output
    assert "2 simulations: 2 broke a law" in shown
    assert told["replay"] in shown
    program, *again = shlex.split(told["replay"])
    assert program == "expunge"
    assert "--only" in again
    repeated = value(*again, code=1)
    assert [broken["law"] for broken in repeated["broken"]] == ["erased by"]
    assert repeated["journal"] == told["journal"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--seeds", "few"), "--seeds 'few' must be a number, or two as in 0-99"),
        (("--seeds", "9-3"), "--seeds 9-3 ends before it begins: give 3-9"),
        (("--only", "1,x"), "--only 'x' must be a number"),
        (("--seeds", "0-1", "--journal"), "--journal shows one simulation"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: tuple[str, ...], says: str) -> None:
    assert says in value("simulate", *options, code=1)["error"]["message"]


def test_one_simulation_can_be_read(tmp_path: Path) -> None:
    shown = run("simulate", "--seeds", 3, "--steps", 9, "--journal", "--folder", tmp_path).output
    assert "Seed 3, 9 steps" in shown
    assert "client0: sync" in shown


@pytest.mark.long
def test_the_page_is_run(tmp_path: Path) -> None:
    assert "4 simulations: every law held" in run_shell("docs/how-to/simulate.md", tmp_path)
