"""`expunge server correct-clock`, and what `expunge server status` says before."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest

from expunge.cli.server_clock import clock_problem
from expunge.server.service import Service
from support.cli import Federation, run, value

AHEAD = 86400.0


@pytest.fixture
def place(tmp_path: Path) -> Federation:
    return Federation.found(tmp_path)


def test_a_log_that_is_stamped_ahead_is_told_and_corrected(place: Federation) -> None:
    with (
        closing(
            Service.open(place.folder / "server", clock=lambda: time.time() + AHEAD, upkeep=False)
        ) as service,
        service.state.changing(),
    ):
        pass  # the time of a transaction is stamped
    status = value("server", "status", "--office", place.office)
    assert status["clock"]["stamps_ahead"] == pytest.approx(AHEAD, abs=60.0)
    shown = run("server", "status", "--office", place.office).stdout
    assert "expunge server correct-clock" in " ".join(shown.split())
    done = value("server", "correct-clock", "--yes", "--office", place.office)
    assert done["ahead"] == pytest.approx(AHEAD, abs=60.0)
    assert value("server", "status", "--office", place.office)["clock"]["stamps_ahead"] == 0
    again = run("server", "correct-clock", "--yes", "--office", place.office, code=1)
    assert "there is nothing to correct" in " ".join(again.stderr.split())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("jumped_ahead", "jumped ahead by 400 seconds: set it right"),
        ("ahead_of_clients", "400 seconds ahead of most clients: set it right"),
        ("stamps_ahead", "stamped 400 seconds ahead"),
    ],
)
def test_what_is_wrong_with_a_clock_is_said_with_its_remedy(name: str, words: str) -> None:
    right = {"jumped_ahead": 0, "ahead_of_clients": -400, "stamps_ahead": 0}
    assert clock_problem(right, 300) == ""
    assert words in clock_problem(right | {name: 400}, 300)
