"""What time it is, by a clock that somebody may set wrongly.

Times in the log never go back. So one jump ahead, were it followed, would stamp everything with a
time to come until that time has come: orders would be due too late, and tokens expired.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock

Clock = Callable[[], float]
Report = Callable[[str, BaseException | None], None]

TOLERANCE = 300  # seconds that a clock may be put ahead at once
# It goes on while the machine sleeps, where there is one like that.
_NEVER_SET = getattr(time, "CLOCK_BOOTTIME", None)


def seconds_since_start() -> float:
    """A time that nobody can set."""
    return time.monotonic() if _NEVER_SET is None else time.clock_gettime(_NEVER_SET)


class SteadyClock:
    """Law: while it is used, a jump ahead of more than `TOLERANCE` seconds changes nothing but what
    it reports: time goes on as it did before. Smaller steps, and steps back, are followed.
    """

    def __init__(
        self,
        report: Report,
        wall: Clock = time.time,
        seconds: Clock = seconds_since_start,
    ) -> None:
        """`wall` may be set; by `seconds` it is known how much time has passed."""
        self._report = report
        self._wall = wall
        self._seconds = seconds
        self._lock = Lock()
        self._offset = wall() - seconds()
        self._reported = False

    def __call__(self) -> float:
        """The seconds since 1970."""
        with self._lock:
            ahead = self._difference()
            if ahead <= TOLERANCE:
                self._offset += ahead
                self._reported = False
            elif not self._reported:
                self._reported = True
                self._report(
                    f"this machine's clock has jumped ahead by {ahead:.0f} seconds while the "
                    "server was running: times go on as before. If the clock is right now, start "
                    "the server again; if it is not, set it right",
                    None,
                )
            return self._seconds() + self._offset

    def ahead(self) -> float:
        """By how many seconds the machine's clock is ahead of what it would be without jumps."""
        with self._lock:
            return max(0.0, self._difference())

    def _difference(self) -> float:
        return self._wall() - self._seconds() - self._offset
