"""Whether the server's clock is right, by all that can be known: its own log, and the clocks of
those who ask.

A clock that is ahead stamps the log with times to come. So it is reported as soon as it shows: at a
start long after the last entry, when most of those who ask have another time, when the log is
ahead of the clock. `expunge server correct-clock` mends it.
"""

from __future__ import annotations

from collections import OrderedDict
from statistics import median_low
from threading import Lock

from expunge.server.clock import TOLERANCE, Report
from expunge.server.state import ServerState

_LONG = 30 * 86400  # seconds without an entry, after which a server that starts asks for the time
_MOST = 1000  # whose clocks are remembered
_FEWEST = 2  # whose clocks are believed, if they agree


class ClockWatch:
    """What is known of the server's clock; any thread may ask, or tell of a clock."""

    def __init__(self, state: ServerState, report: Report) -> None:
        self._state = state
        self._report = report
        self._lock = Lock()
        self._differences: OrderedDict[str, float] = OrderedDict()
        self._reported = {"stamps": False, "clients": False}
        since = state.by_clock() - state.record.time
        if since > _LONG:
            report(
                f"this machine's clock says that the last entry of the log was made {since:,} "
                "seconds ago: unless the server was stopped for as long, the clock is ahead. Stop "
                "the server and set it right before anything is stamped",
                None,
            )
        self.look()

    def hear(self, actor: str, time: float) -> None:
        """Somebody whose signature was verified has a clock that says this now."""
        difference = self._state.by_clock() - time
        with self._lock:
            self._differences[actor] = difference
            self._differences.move_to_end(actor)
            while len(self._differences) > _MOST:
                self._differences.popitem(last=False)

    def ahead_of_clients(self) -> float:
        """By how many seconds the clock is ahead of most of those heard; negative if it is behind,
        and 0 while too few were heard.
        """
        with self._lock:
            differences = list(self._differences.values())
        return median_low(differences) if len(differences) >= _FEWEST else 0.0

    def look(self) -> None:
        """Report what has begun or ended."""
        stamps, clients = self._state.note_stamps_ahead(), self.ahead_of_clients()
        self._tell(
            "stamps",
            stamps > TOLERANCE,
            f"the log's last entry is stamped {stamps:,} seconds ahead of this machine's clock: "
            "either that is behind now, or it was ahead then. New entries get the same time until "
            "the clock has caught up. If the clock is right now: expunge server correct-clock",
            "the log is stamped by the clock again",
        )
        self._tell(
            "clients",
            clients > TOLERANCE,
            f"this machine's clock is {clients:,.0f} seconds ahead of those of most clients: set "
            "it right, and then: expunge server correct-clock",
            "the clocks of clients agree with this machine's again",
        )

    def _tell(self, what: str, is_so: bool, begun: str, ended: str) -> None:
        if is_so != self._reported[what]:
            self._reported[what] = is_so
            self._report(begun if is_so else ended, None)
