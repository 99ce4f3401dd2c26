"""The schedule of rounds: when they begin, and until when clients join them.

Rounds of changes begin at multiples of `every` seconds since 1970-01-01 UTC, and are joined in the
first `window` seconds from there. Everybody takes part in them, so taking part says nothing. Audits
and rebuilds need all clients, and have no schedule.

A client goes by its own clock, not by the server's word. Its clock and the server's may differ by
`skew` seconds: the least of 60, `window`, and a quarter of the time between two windows, so that at
least half of that time stays closed.

Pure: no clock, no I/O. Times are seconds since 1970.
"""

from __future__ import annotations

from dataclasses import dataclass

from expunge.evidence.wording import moment
from expunge.ridge.spec import Aggregation
from expunge.wire.schema import time_text

DAY = 24 * 3600
_MOST_SKEW = 60
_UNITS = (("d", DAY), ("h", 3600), ("m", 60))


@dataclass(frozen=True)
class Schedule:
    """Windows of `window` seconds, one every `every` seconds."""

    every: int
    window: int

    @classmethod
    def of(cls, rules: Aggregation | None) -> Schedule | None:
        """The schedule of these rules; None if rounds begin whenever a client has changes."""
        return None if rules is None or not rules.every else cls(rules.every, rules.window)

    @property
    def skew(self) -> int:
        """Seconds by which the clocks of a client and the server may differ."""
        return min(_MOST_SKEW, self.window, (self.every - self.window) // 4)

    def open_at(self, now: float, *, skew: int = 0) -> int | None:
        """The beginning of the window that is open at this time, or would be on a clock that
        differs by `skew` seconds at most; None between windows.
        """
        begin = self.latest(now + skew)
        return begin if now < self.end(begin) + skew else None

    def latest(self, now: float) -> int:
        """The beginning of the last window that has begun, open or not."""
        return int(now) // self.every * self.every

    def end(self, begin: int) -> int:
        """When the window that begins then ends."""
        return begin + self.window

    def following(self, now: float) -> int:
        """The beginning of the first window after this time."""
        return self.latest(now) + self.every

    def next_round(self, now: float, *, skew: int = 0) -> str:
        """A sentence that says when the next round begins.

        A window within `skew` seconds is the current one, not the next.
        """
        begin = moment(time_text(self.following(now + skew)))
        return f"the next round begins on {begin}, and is joined for {duration_text(self.window)}"

    def __str__(self) -> str:
        return (
            f"every {duration_text(self.every)}, joined in the first {duration_text(self.window)}"
        )


def duration_text(seconds: int) -> str:
    """A duration in the largest unit that divides it: 1h, 90m, 45s."""
    unit, size = next(
        ((unit, size) for unit, size in _UNITS if seconds and seconds % size == 0), ("s", 1)
    )
    return f"{seconds // size}{unit}"
