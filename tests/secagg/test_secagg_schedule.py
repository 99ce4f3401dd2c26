"""The arithmetic of schedules, second by second."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge.ridge.spec import Aggregation
from expunge.secagg.schedule import Schedule, duration_text

HOURLY = Schedule(every=3600, window=300)
NOON = 1_790_000_000 // 3600 * 3600

schedules = st.integers(1, 4000).flatmap(
    lambda every: st.builds(Schedule, st.just(every), st.integers(1, every))
)


def test_rules_without_a_schedule_have_none() -> None:
    assert Schedule.of(None) is None
    assert Schedule.of(Aggregation()) is None
    assert Schedule.of(Aggregation(every=3600, window=300)) == HOURLY


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (NOON - 1, None),
        (NOON - 0.001, None),
        (NOON, NOON),
        (NOON + 299.999, NOON),
        (NOON + 300, None),
        (NOON + 3600, NOON + 3600),
    ],
)
def test_a_window_is_open_from_its_first_second_to_before_its_end(
    now: float, expected: int | None
) -> None:
    assert HOURLY.open_at(now) == expected


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (NOON - 61, None),
        (NOON - 60, NOON),
        (NOON + 359, NOON),
        (NOON + 360, None),
        (NOON + 3540, NOON + 3600),
    ],
)
def test_a_clock_may_be_off_by_a_minute(now: int, expected: int | None) -> None:
    assert HOURLY.skew == 60
    assert HOURLY.open_at(now, skew=HOURLY.skew) == expected


@given(schedules, st.integers(0, 2_000_000_000))
def test_every_second_is_in_its_window_or_before_the_next(schedule: Schedule, now: int) -> None:
    begin, following = schedule.open_at(now), schedule.following(now)
    assert following % schedule.every == 0
    assert now < following <= now + schedule.every
    if begin is None:
        assert following - schedule.every + schedule.window <= now
    else:
        assert begin % schedule.every == 0
        assert begin <= now < schedule.end(begin) <= following


@given(schedules, st.integers(1, 1_000_000), st.data())
def test_clocks_that_differ_by_no_more_than_the_skew_see_the_same_window(
    schedule: Schedule, number: int, data: st.DataObject
) -> None:
    begin = number * schedule.every
    server = data.draw(st.integers(begin, schedule.end(begin) - 1))
    client = server + data.draw(st.integers(-schedule.skew, schedule.skew))
    seen = schedule.open_at(client, skew=schedule.skew)
    # Where windows adjoin there is no tolerance, nor is one needed.
    assert seen == begin


@given(schedules)
def test_half_of_the_time_between_windows_stays_closed_to_any_clock(schedule: Schedule) -> None:
    gap = schedule.every - schedule.window
    begin = 10 * schedule.every
    closed = sum(
        schedule.open_at(now, skew=schedule.skew) is None
        for now in range(begin, begin + schedule.every)
    )
    assert 2 * closed >= gap


def test_a_schedule_in_words() -> None:
    assert str(HOURLY) == "every 1h, joined in the first 5m"
    assert HOURLY.next_round(NOON + 700).startswith("the next round begins on ")
    assert HOURLY.next_round(NOON - 30, skew=60) == HOURLY.next_round(NOON)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(45, "45s"), (60, "1m"), (90, "90s"), (5400, "90m"), (7200, "2h"), (86400, "1d"), (0, "0s")],
)
def test_durations_have_the_largest_unit_that_divides_them(seconds: int, expected: str) -> None:
    assert duration_text(seconds) == expected
