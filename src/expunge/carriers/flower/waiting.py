"""How a ServerApp waits: in pauses that grow while nothing happens. (Flower's `send_and_receive` always sleeps 3 s)."""

from __future__ import annotations

from collections.abc import Callable

from flwr.serverapp import Grid

_SHORTEST, _LONGEST = 0.005, 0.25

Clock = Callable[[], float]
Sleep = Callable[[float], None]


class Pauses:
    """Pauses that double from 5 ms to the longest, and begin anew when something has happened."""

    def __init__(self, sleep: Sleep, longest: float = _LONGEST) -> None:
        self._sleep = sleep
        self._longest = longest
        self._next = _SHORTEST

    def begin(self) -> None:
        """Something has happened: the next pause is a short one."""
        self._next = _SHORTEST

    def take(self) -> None:
        """Pause."""
        self._sleep(self._next)
        self._next = min(2 * self._next, self._longest)


def connected(grid: Grid, fewest: int, seconds: float, clock: Clock, sleep: Sleep) -> list[int]:
    """The nodes, as soon as there are enough of them; after so many seconds, those that are there."""
    end, pauses = clock() + seconds, Pauses(sleep)
    while len(nodes := sorted(grid.get_node_ids())) < fewest and clock() < end:
        pauses.take()
    return nodes
