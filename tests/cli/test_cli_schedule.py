"""Rounds on a schedule on the command line: founding, what they cost, changes that wait for a
window, and status.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from expunge import Spec
from expunge.secagg.schedule import DAY, Schedule, duration_text
from expunge.secagg.traffic import RoundSizes
from support.cli import Federation, run, value
from support.masked_federation import closed_schedule
from support.serving import Server

MASKED = ("--dim", 3, "--labels", "cat,dog", "--secure-aggregation")
ROWS = "id,subject,label,x,y,z\n{0}1,p1,cat,1,2,3\n{0}2,p2,dog,2,1,0.5\n"
NAMES = ("clinic-a", "clinic-b", "clinic-c")


@pytest.fixture
def closed(tmp_path: Path) -> Federation:
    """A federation whose windows are closed now."""
    schedule = closed_schedule()
    return Federation.found(tmp_path, *MASKED, "--every", schedule.every, "--window", "10s")


@pytest.fixture
def always(tmp_path: Path) -> Iterator[Federation]:
    """A federation that is served, and in which one window follows the other."""
    place = Federation.found(tmp_path, *MASKED, "--every", "1h", "--window", "1h")
    server = Server(place.folder, "--phase-for", "600")
    yield place
    server.stop()


def enrolled(place: Federation) -> list[Path]:
    folders = [place.enrol(name) for name in NAMES]
    for name, folder in zip(NAMES, folders, strict=True):
        rows = place.file(f"{name}.csv", ROWS.format(name[-1]))
        run("client", "add", rows, "--no-sync", "--dir", folder)
    return folders


def take_turns(folders: list[Path]) -> list[dict[str, Any]]:
    """Let clients sync in turn until their round is over; what they said last."""
    for _ in range(9):
        done = [
            json.loads(
                run("client", "sync", "--no-wait", "--json", "--dir", folder, code=None).stdout
            )
            for folder in folders
        ]
        if not any(one["waiting"] for one in done):
            break
    return done


# -- founding --------------------------------------------------------------------------------------


def test_founding_says_what_the_schedule_costs(tmp_path: Path) -> None:
    options = (*MASKED, "--every", "1h", "--window", "5m", "--clients", 20)
    found = value("init", tmp_path / "a", *options)
    spec = Spec.from_dict(found["spec"])
    assert spec.aggregation is not None
    assert (spec.aggregation.every, spec.aggregation.window) == (3600, 300)
    names = [f"client-{number:09}" for number in range(20)]
    traffic = RoundSizes(spec, names).of(names[0])
    assert found["schedule"] == {
        "every": 3600,
        "window": 300,
        "rounds_a_day": 24.0,
        "sent": traffic.sent,
        "received": traffic.received,
        "logged": traffic.logged,
    }
    shown = run("init", tmp_path / "b", *options).stdout.words
    assert "every 1h, joined in the first 5m" in shown
    assert "Rounds a day 24, also when nobody changes anything" in shown
    assert f"Each client sends {traffic.sent / 1000:.3g} kB a round, " in shown
    assert f"{24 * traffic.sent / 1000:.3g} kB a day" in shown
    assert f"Audit log grows by {24 * traffic.logged / 1000:.3g} kB a day" in shown


def test_without_a_number_of_clients_founding_says_when_rounds_are(tmp_path: Path) -> None:
    found = value("init", tmp_path / "a", *MASKED, "--every", "2d", "--window", "90m")
    assert found["schedule"] == {"every": 2 * DAY, "window": 5400, "rounds_a_day": 0.5}
    assert value("init", tmp_path / "b", *MASKED)["schedule"] is None
    office = ("--office", tmp_path / "a" / "operator")
    assert "every 2d, joined in the first 90m" in run("server", "spec", *office).stdout.words


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--every", "1h"], 2, "--every and --window belong together"),
        (["--window", "5m"], 2, "--every and --window belong together"),
        (["--every", "5m", "--window", "1h"], 1, "must lie between 1 and every=300"),
        (["--every", "1h", "--window", "9s"], 1, "too short for clients to meet in"),
        (["--every", "1h", "--window", "0"], 1, "must lie between 1 and every=3600"),
        (["--every", "1 hour", "--window", "5m"], 2, "must be a duration such as 90s, 5m, 1h"),
        (["--every", "-1h", "--window", "5m"], 2, "must be a duration such as"),
        (["--every", "400d", "--window", "5m"], 1, "every=34560000"),
    ],
)
def test_schedules_that_cannot_work_are_refused(
    tmp_path: Path, options: list[Any], code: int, message: str
) -> None:
    told = run("init", tmp_path / "f", *MASKED, *options, code=code).stderr
    assert message in told
    assert list(tmp_path.iterdir()) == []


def test_a_schedule_needs_secure_aggregation(tmp_path: Path) -> None:
    plain = ("--dim", 3, "--labels", "cat,dog", "--every", "1h", "--window", "5m")
    told = run("init", tmp_path / "f", *plain, code=2).stderr
    assert "--every is a rule of secure aggregation" in told


def test_rare_rounds_are_warned_of(tmp_path: Path) -> None:
    told = run("init", tmp_path / "f", *MASKED, "--every", "30d", "--window", "1h").stderr
    assert "Rounds every 30d are rare" in told


# -- changes ---------------------------------------------------------------------------------------


def test_a_change_is_left_to_the_next_sync_which_says_when_the_round_is(
    closed: Federation,
) -> None:
    """The server is not asked: it is not even there."""
    folder = closed.enrol("clinic-a")
    rows = closed.file("a.csv", ROWS.format("a"))
    shown = run("client", "add", rows, "--dir", folder, code=7).stdout.words
    assert "2 changes pending until the next sync" in shown
    assert "The next round begins on" in shown
    told = json.loads(run("client", "add", rows, "--json", "--dir", folder, code=7).stdout)
    assert (told["pending"], told["sync"]) == (True, None)
    left = json.loads(run("client", "leave", "--yes", "--json", "--dir", folder, code=None).stdout)
    assert "the next round begins on" in left["waiting"]


def test_a_sync_outside_of_windows_says_when_the_next_round_is(closed: Federation) -> None:
    server = Server(closed.folder)
    try:
        (first, *_) = enrolled(closed)
        shown = run("client", "sync", "--dir", first, code=7).stdout.words
        assert "by this client's clock it is" in shown
        assert "the next round begins on" in shown
    finally:
        server.stop()


def test_in_a_window_clients_make_a_round_and_status_shows_it(always: Federation) -> None:
    folders = enrolled(always)
    office = ("--office", always.office)
    before = value("server", "status", *office)["aggregation"]
    assert before["last"] is None
    done = take_turns(folders)
    assert not any(one["waiting"] for one in done)
    told = value("server", "status", *office)["aggregation"]
    schedule = told["schedule"]
    assert (schedule["every"], schedule["window"], schedule["is_open"]) == (3600, 3600, True)
    assert (told["last"]["clients"], told["last"]["added"], told["last"]["deleted"]) == (3, 6, 0)
    shown = run("server", "status", *office).stdout.words
    assert f"Schedule {Schedule(3600, 3600)}; open now; next on" in shown
    assert "Last round 3 clients, 6 added, 0 deleted" in shown


# -- durations -------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["45s", "5m", "90m", "2h", "1d"])
def test_durations_are_shown_as_they_are_typed(tmp_path: Path, text: str) -> None:
    found = value("init", tmp_path / "f", *MASKED, "--every", "1d", "--window", text)
    assert duration_text(found["schedule"]["window"]) == text
