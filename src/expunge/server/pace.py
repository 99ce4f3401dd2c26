"""How fast the journal is erased at rest, and so what a receipt may promise (`erased_by`).

A fold takes about as long as the one before it, and longer where more clients have sent something.
So the promise is stretched while folds are slow, and a fold begins early enough for what has been
promised; a promise that was missed all the same is counted, and told.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from threading import Lock

from expunge.server.clock import Clock

_REMEMBERED = 8  # folds
_RECENT = 3  # of them, whose time every fold is expected to take
_MARGIN = 3  # times what is expected of a fold: a disk may become slower at any moment
# A receipt that is given when a fold has just begun waits for that one, and then for the next.
_WAITS = 1 + _MARGIN


@dataclass(frozen=True)
class _Fold:
    seconds: float
    clients: int


@dataclass(frozen=True)
class Late:
    """Requests that were erased later than their receipts had promised."""

    requests: int = 0
    seconds: int = 0  # of the latest of them


@dataclass
class _Promised:
    """What receipts have promised of requests that are not folded yet."""

    clients: set[str] = field(default_factory=set)
    times: Counter[int] = field(default_factory=Counter)  # how many requests, by their `erased_by`
    deadline: float = math.inf  # of the earliest, by the clock for durations

    def add(self, other: _Promised) -> None:
        self.clients |= other.clients
        self.times += other.times
        self.deadline = min(self.deadline, other.deadline)


class Pace:
    """May be used from several threads. `seconds` is the clock for durations."""

    def __init__(self, within: int, seconds: Clock) -> None:
        self._within = within
        self._seconds = seconds
        self._lock = Lock()
        self._folds: deque[_Fold] = deque(maxlen=_REMEMBERED)
        self._waiting = _Promised()  # for the next fold
        self._folding = _Promised()  # what this one is to erase
        self._begun: float | None = None  # when this one began
        self.late = Late()  # all that there ever were

    def _expected(self, clients: int) -> float:
        """How long a fold of so many clients will take."""
        with_most = max(self._folds, key=lambda fold: (fold.clients, fold.seconds), default=None)
        if with_most is None:
            return 0.0
        recent = max(fold.seconds for fold in list(self._folds)[-_RECENT:])
        return max(recent, with_most.seconds * clients / max(1, with_most.clients))

    def _span(self) -> int:
        running = 0.0 if self._begun is None else self._seconds() - self._begun
        expected = max(running, self._expected(len(self._waiting.clients)))
        return max(self._within, math.ceil(_WAITS * expected))

    @property
    def span(self) -> int:
        """Within how many seconds a request that is applied now will be erased."""
        with self._lock:
            return self._span()

    @property
    def took(self) -> float:
        """Seconds of the last fold; 0 before the first."""
        with self._lock:
            return self._folds[-1].seconds if self._folds else 0.0

    def promise(self, now: int, clients: Iterable[str]) -> int:
        """By when what these clients send now is erased: one request each, of those that have
        something to be erased. `now` is the time that receipts are stamped with.
        """
        with self._lock:
            names = list(clients)
            self._waiting.clients.update(names)
            span = self._span()
            if names:
                self._waiting.times[now + span] += len(names)
                self._waiting.deadline = min(self._waiting.deadline, self._seconds() + span)
            return now + span

    def found(self, promised: Iterable[int]) -> None:
        """Requests were in the journal at the start, and their receipts promised these times."""
        with self._lock:
            self._waiting.times.update(promised)

    def is_due(self, since: float) -> bool:
        """Whether it is time to fold what has waited since then, by the clock for durations: half
        of the time allowed has passed, or as much as leaves time to keep what was promised. The
        first fold comes early: it shows what to expect of the others.
        """
        with self._lock:
            now = self._seconds()
            part = 2 if self._folds else 8
            lead = _MARGIN * self._expected(len(self._waiting.clients))
            return now - since >= self._within / part or now + lead >= self._waiting.deadline

    def begin(self) -> None:
        """A fold begins: what comes now is for the next one."""
        with self._lock:
            self._folding.add(self._waiting)
            self._waiting = _Promised()
            self._begun = self._seconds()

    def end(self, now: int) -> Late:
        """The fold is over, and its erasure is logged with this time; what came too late."""
        with self._lock:
            if self._begun is not None:
                took = self._seconds() - self._begun
                self._folds.append(_Fold(took, len(self._folding.clients)))
            missed = {time: count for time, count in self._folding.times.items() if time < now}
            late = Late(sum(missed.values()), now - min(missed, default=now))
            self.late = Late(
                self.late.requests + late.requests, max(self.late.seconds, late.seconds)
            )
            self._folding, self._begun = _Promised(), None
            return late

    def fail(self) -> None:
        """The fold was given up: the next one is of this one's requests, too."""
        with self._lock:
            self._waiting.add(self._folding)
            self._folding, self._begun = _Promised(), None
