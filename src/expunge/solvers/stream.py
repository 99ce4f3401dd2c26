"""HeadStream: the head under single changes, one after another.

A stream begins with a published head and the sums behind it. Each change moves the head by as many
rank-one steps as it has rows, judges a deletion by the same columns, and screens the minors of what
is left. From time to time the rows are folded into a fresh base. Where the bounds here do not tell,
a stream says so, and the solver goes the exact way.

A fold is made ahead, by a thread of its own, from what does not change (`Fold`): it begins when
five eighths of the room for rows are taken, and the stream goes on with the old base. When the rest
is taken, the stream changes over to the new base with the rows that came since, and waits for it if
it must. So when that happens depends on the changes alone, and not on how fast the thread was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from expunge.exact import wide
from expunge.exact.threads import Background, one_blas_thread
from expunge.ridge.head import Head
from expunge.ridge.spec import Spec
from expunge.ridge.sums import LentGram, Sums
from expunge.solvers.change import Change
from expunge.solvers.factor import CholeskyFactor, Downdate, raised_floor
from expunge.solvers.minors import MinorScreen
from expunge.solvers.refinement import Propose
from expunge.solvers.tracking import Mark, TrackedHead
from expunge.solvers.truncated import TruncatedSystem

Float = NDArray[np.float64]

MOST_ROWS = 32  # of one change: for more, refining the whole head is faster
BACKGROUND_WIDTH = 256  # from here on a fold takes longer than a thread costs
_MUCH_RISK = 2.0**-9  # of an undecided weight: then the bounds are made tight again
_SOME_RISK = 2.0**-11  # of one: then a fold finds out what makes them tight
_WORN = 0.5  # a bound on the smallest eigenvalue that is so much worse than it was is raised again

Absorb = Callable[[Float, int, Float | None], None]


def room_for(width: int) -> int:
    """How many rows to follow before they are folded into a base: then products with them cost
    about as much as that.
    """
    return max(4, min(128, width // 8))


def _ahead(room: int) -> int:
    """How many rows a fold has time for, before the stream waits for it."""
    return room * 3 // 8


@dataclass(frozen=True)
class Folded:
    """A newer base: the Gram as integers, the system and the screen of it; and where they were
    asked for, its Cholesky factor, a bound on its smallest eigenvalue, and the residual of the head
    with bounds on what that is off by.
    """

    gram: wide.Wide
    system: TruncatedSystem
    screen: MinorScreen
    factor: CholeskyFactor | None
    floor: float | None
    residual: tuple[Float, Float] | None


@dataclass(frozen=True)
class Fold:
    """What a newer base is made from, as it was at one moment. Nothing here changes, so that
    another thread can make it, or this one once more.
    """

    spec: Spec
    lent: LentGram
    moment: wide.Wide
    mark: Mark
    bits: int  # of the head's fixed point
    enough: float  # how well the residual should be known
    floor: float  # the proven bound on the smallest eigenvalue
    factors: bool  # whether a Cholesky factor is wanted
    raises: bool  # whether a better floor is
    refines: bool  # whether the residual is

    def made(self) -> Folded:
        """The newer base."""
        with one_blas_thread():  # other threads have other work
            gram = self.lent.settled()
            system = TruncatedSystem(self.spec, gram, room_for(self.spec.width))
            factor = CholeskyFactor(system) if self.factors or self.raises else None
            floor = residual = None
            if factor is not None and self.raises:
                floor = raised_floor(system, factor.solve, self.floor)
            if self.refines:
                weights = self.mark.weights()
                residual = system.remainder(self.moment, weights, self.bits, self.enough)
            screen = MinorScreen(system)
            return Folded(gram, system, screen, factor, floor, residual)


class HeadStream:
    """A tracked head, the base that its columns are solved with, and a screen of minors.

    `propose` is an approximate inverse of H as it is now; `absorb` brings it along with a row, by
    its sign and, where it is known, by H^-1 times the row before the change. Both belong to the
    solver, which also keeps the sums and `floor`, the proven lower bound on the smallest eigenvalue
    of H.
    """

    def __init__(self, tracked: TrackedHead) -> None:
        self._tracked = tracked
        self._screen = MinorScreen(tracked.system)
        self._raised = 0.0  # the bound on the smallest eigenvalue when it was raised last
        self._mark: Mark | None = None
        self._heads = self._undecided = 0  # asked for, and those that a weight was undecided in
        self._fold: tuple[Fold, Callable[[], Folded]] | None = None  # under way

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

    # -- folds -------------------------------------------------------------------------------------

    @property
    def is_folding(self) -> bool:
        """Whether a fold is under way."""
        return self._fold is not None

    @property
    def _folds_ahead(self) -> bool:
        return self.system.spec.width >= BACKGROUND_WIDTH

    def is_due(self, floor: float) -> bool:
        """Whether a fold is to begin, to be finished later."""
        count, room = self.system.rows.count, self.system.rows.room
        is_early = count >= room // 4 and (self.is_loose(floor) or self.is_worn(floor))
        is_full = count >= room - _ahead(room)
        return (is_full or is_early) and self._folds_ahead and not self.is_folding

    def must_finish(self, rows: int) -> bool:
        """Whether a fold under way is to be finished before so many rows are taken."""
        stack = self.system.rows
        return self._fold is not None and (
            stack.count + rows > min(self._fold[0].mark.rows + _ahead(stack.room), stack.room)
        )

    def must_fold(self, rows: int, floor: float) -> bool:
        """Whether all rows must be folded before so many are taken."""
        is_worn = self.is_worn(floor) and not self._folds_ahead
        return is_worn or self.system.rows.count + rows > self.system.rows.room

    def begin_fold(
        self, sums: Sums, lent: LentGram, floor: float, *, factors: bool, ahead: bool
    ) -> None:
        """Begin to fold the rows there are, in the background if it is `ahead`."""
        fold = Fold(
            spec=sums.spec,
            lent=lent,
            moment=sums.moment.copy(),
            mark=self._tracked.watch(),
            bits=self._tracked.bits,
            enough=self._tracked.tolerable(floor),
            floor=floor,
            factors=factors,
            raises=self.is_worn(floor),
            refines=not self._tracked.risk(floor) <= _SOME_RISK,
        )
        self._fold = fold, Background(fold.made).result if ahead else fold.made

    def folded(self) -> tuple[Fold, Folded]:
        """The fold under way; waits for it."""
        if self._fold is None:
            raise RuntimeError("no fold has begun")
        fold, wait = self._fold
        return fold, wait()

    def rebase(self, fold: Fold, folded: Folded, floor: float) -> float:
        """Go on with the new base and the rows that came since; the bound on the smallest
        eigenvalue, raised if the fold has raised it.
        """
        rows = self.system.rows.since(fold.mark.rows)
        self._fold = self._mark = None
        self._screen = folded.screen
        folded.system.rows = rows
        self._tracked.rebase(folded.system)
        if folded.floor is not None:
            # deletions since have taken from the old bound what they take at most from a better one
            taken = 1.0 / floor - 1.0 / fold.floor
            floor = max(floor, (1 - 2.0**-20) / (1.0 / folded.floor + max(taken, 0.0)))
            self._raised = floor
        return floor

    def correct(self, propose: Propose, floor: float, residual: Float, errors: Float) -> bool:
        """Make the bounds tight by the residual that the head had when the last fold began; whether
        that worked, apart from what changes since have added.
        """
        return self._tracked.correct_since(propose, residual, errors, floor) <= _MUCH_RISK

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

    @property
    def is_often_undecided(self) -> bool:
        """Whether so many heads were undecided that the exact way is faster."""
        return self._undecided > 4 + self._heads // 8

    def head(self, spec: Spec, floor: float) -> Head | None:
        """The published head; None if a weight is undecided."""
        found = self._tracked.rounded(floor)
        self._heads += 1
        self._undecided += found is None
        return None if found is None else Head(spec, *found)


def _base(sums: Sums) -> TruncatedSystem:
    return TruncatedSystem(sums.spec, sums.gram, room_for(sums.spec.width))
