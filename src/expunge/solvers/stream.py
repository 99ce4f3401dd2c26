"""HeadStream: the head under single changes, one after another.

A stream begins with a published head and the sums behind it. Each change moves the head by as many
rank-one steps as it has rows, judges a deletion by the same columns, and screens the minors of what
is left. From time to time the rows are folded into a fresh base. Where the bounds here do not tell,
a stream says so, and the solver goes the exact way.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from expunge.ridge.head import Head
from expunge.ridge.spec import Spec
from expunge.ridge.sums import Sums
from expunge.solvers.change import Change
from expunge.solvers.factor import Downdate, raised_floor
from expunge.solvers.minors import MinorScreen
from expunge.solvers.refinement import Propose
from expunge.solvers.tracking import Mark, TrackedHead
from expunge.solvers.truncated import TruncatedSystem

Float = NDArray[np.float64]

MOST_ROWS = 32  # of one change: for more, refining the whole head is faster
_MUCH_RISK = 2.0**-9  # of an undecided weight: then the bounds are made tight again
_WORN = 0.5  # a bound on the smallest eigenvalue that is so much worse than it was is raised again

Absorb = Callable[[Float, int, Float | None], None]


def room_for(width: int) -> int:
    """How many rows to follow before they are folded into a base: then products with them cost
    about as much as that.
    """
    return max(4, min(128, width // 8))


class HeadStream:
    """A tracked head, the base that its columns are solved with, and a screen of minors.

    `propose` is an approximate inverse of H as it is now; `absorb` brings it along with a row, by
    its sign and, where it is known, by H^-1 times the row before the change. Both belong to the
    solver, which also keeps the sums and `floor`, the proven lower bound on the smallest eigenvalue
    of H.
    """

    def __init__(self, tracked: TrackedHead) -> None:
        self._tracked = tracked
        self._screen = MinorScreen(tracked.system.gram)
        self._raised = 0.0  # the bound on the smallest eigenvalue when it was raised last
        self._mark: Mark | None = None

    @classmethod
    def begin(cls, sums: Sums, head: Head) -> HeadStream | None:
        """Begin with this head of these (settled) sums, to be tightened first; None if it cannot be
        tracked.
        """
        tracked = TrackedHead.of(_base(sums), head.integers)
        return None if tracked is None else cls(tracked)

    @property
    def system(self) -> TruncatedSystem:
        """The base, and the rows since."""
        return self._tracked.system

    def has_room(self, rows: int) -> bool:
        """Whether so many rows can be taken before a fold."""
        return self.system.rows.count + rows <= self.system.rows.room

    def change(
        self, propose: Propose, absorb: Absorb, change: Change, sign: int, *, floor: float
    ) -> float | Downdate:
        """Add or delete rows; the bound on the smallest eigenvalue of H afterwards.

        Nothing has changed if the deletion is impossible, or if the bounds do not tell.
        """
        self._mark = self._tracked.mark()
        for index in range(len(change)):
            row = change.digits[index : index + 1]
            moved = self._tracked.move(
                propose,
                row,
                change.values[index],
                change.integers[index],
                sign=sign,
                floor=floor,
            )
            if isinstance(moved, Downdate):
                self.undo(absorb)
                return moved
            floor, column = moved
            absorb(change.values[index : index + 1], sign, column)
        return floor

    def undo(self, absorb: Absorb) -> None:
        """Take the last change back."""
        mark, rows = self._mark, self.system.rows
        if mark is None:
            return
        for place in range(rows.count - 1, mark.rows - 1, -1):
            absorb(rows.values[place : place + 1].copy(), -int(rows.signs[place]), None)
        self._tracked.back_to(mark)
        self._mark = None

    def minors_are_safe(self) -> bool:
        """Whether float64 shows that no 2x2 minor of what is left is negative."""
        return self._screen.is_safe(self.system.rows)

    def fold(self, sums: Sums) -> None:
        """Take the (settled) sums, which have all rows in them, as the base."""
        system = _base(sums)
        self._screen = MinorScreen(system.gram)
        self._tracked.rebase(system)
        self._mark = None

    def is_worn(self, floor: float) -> bool:
        """Whether the bound on the smallest eigenvalue is much worse than it was once."""
        return floor <= _WORN * self._raised

    def raised(self, propose: Propose, floor: float) -> float:
        """The bound on the smallest eigenvalue, raised if it has worn; right after a fold."""
        if self.is_worn(floor) or not self._raised:
            floor = self._raised = raised_floor(self.system, propose, floor)
        return floor

    def is_loose(self, floor: float) -> bool:
        """Whether the bounds are such that an undecided weight is likely."""
        return not self._tracked.risk(floor) <= _MUCH_RISK

    def tighten(self, sums: Sums, propose: Propose, floor: float) -> bool:
        """Make the bounds tight again, right after a fold; whether that worked."""
        return self._tracked.refreshed(sums.moment, propose, floor)

    def head(self, spec: Spec, floor: float) -> Head | None:
        """The published head; None if a weight is undecided."""
        found = self._tracked.rounded(floor)
        return None if found is None else Head(spec, *found)


def _base(sums: Sums) -> TruncatedSystem:
    return TruncatedSystem(sums.spec, sums.gram, room_for(sums.spec.width))
