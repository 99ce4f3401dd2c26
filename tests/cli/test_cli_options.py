"""What is read from options: times, with and without offsets."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge.cli._options import seconds
from expunge.client import ClientStore
from expunge.errors import InputError
from support.cli import ROWS_A, Federation, run, value

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("text", "after_noon"),
    [
        ("2026-11-15", -12 * 3600),
        ("2026-11-15T12:00", 0),
        ("2026-11-15T12:00:01", 1),
        ("2026-11-15T12:00:01Z", 1),
        ("2026-11-15T12:00Z", 0),
        ("2026-11-15T14:00:00+02:00", 0),
        ("2026-11-15T14:00+0200", 0),
        ("2026-11-15T06:30-05:30", 0),
        ("2026-11-16T01:00+13:00", 0),
    ],
)
def test_a_time_without_an_offset_is_in_utc(text: str, after_noon: int) -> None:
    assert seconds(text, "--since") == NOON + after_noon


@given(st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1)), st.integers(-14 * 60, 14 * 60))
def test_the_same_moment_in_every_zone(local: datetime, minutes: int) -> None:
    moment = local.replace(microsecond=0, tzinfo=timezone(timedelta(minutes=minutes)))
    assert seconds(moment.isoformat(), "--since") == moment.timestamp()


@pytest.mark.parametrize(
    "text",
    [
        "soon",
        "",
        "2026-11-15+02:00",
        "2026-11-15T12",
        "2026-13-01",
        "2026-11-15T12:00 CET",
        "12:00Z",
    ],
)
def test_anything_else_is_refused_with_examples(text: str) -> None:
    with pytest.raises(
        InputError, match=r"--until .* must be a time in UTC such as .* or one with its offset"
    ):
        seconds(text, "--until")


def test_the_help_says_which_zone_is_meant() -> None:
    for command in ("forget", "export"):
        shown = run("client", command, "--help").stdout.words
        assert "2026-11-15T09:30 in UTC" in shown
        assert "2026-11-15T09:30+02:00" in shown


def test_offsets_select(tmp_path: Path) -> None:
    place = Federation.found(tmp_path)
    folder = place.enrol("clinic-a")
    with ClientStore.open(folder) as store:
        store.add(["a"], [[1.0, 2.0, 3.0]], ["cat"], now=NOON)
    run("client", "add", place.file("a.csv", ROWS_A), "--no-sync", "--dir", folder)
    until = ["--until", "2026-11-15T14:00:01+02:00", "--dry-run", "--dir", folder]
    assert value("client", "forget", "--since", "2026-11-15T14:00:00+02:00", *until)["ids"] == ["a"]
    assert (
        value("client", "forget", "--since", "2026-11-15T14:00:00+01:59", *until, code=1)["error"][
            "kind"
        ]
        == "input"
    )
