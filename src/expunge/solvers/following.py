"""FollowedSums: sums, and the caches from which a head is solved, which follow every change.

The caches are in one of two forms. A system with an exact residual (`refinement`) serves any
change. A `HeadStream` serves single rows, one after another, and is several times faster; it begins
when there have been some such changes, each with a head.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from expunge.errors import ExpungeError, ImpossibleDeletionError, NotAGramError
from expunge.exact import blas, wide
from expunge.exact.threads import one_blas_thread
from expunge.ridge.encoding import Rows
from expunge.ridge.head import Diagnostics, Head
from expunge.ridge.plausibility import problem_with
from expunge.ridge.spec import Spec
from expunge.ridge.statistics import Statistics
from expunge.ridge.sums import Sums
from expunge.solvers.certify import Preconditioner, certified, require_possible, with_diagnostics
from expunge.solvers.change import Change
from expunge.solvers.factor import (
    CholeskyFactor,
    Downdate,
    FloatCopy,
    Proof,
    downdate,
    low_rank,
    proven_floor,
)
from expunge.solvers.minors import minors_are_safe
from expunge.solvers.refinement import Refinement
from expunge.solvers.stream import MOST_ROWS, HeadStream, room_for
from expunge.solvers.system import KEPT_WIDTH, RidgeSystem, is_well_conditioned

Float = NDArray[np.float64]

_HEADS_BEFORE = 2  # after changes of few rows, before a stream begins
_CLOSE_ENOUGH = 2.0**-10  # of gamma: rows in float64 are then worth following
_MOST_FOLLOWED = 256  # rows: beyond this a factorisation is faster at any width
_HEADS_APART = 64  # the same, after a stream that was given up
# Of one change: for more, refining the whole head is faster, if it has followed the changes before.
# Going over to it costs some heads, so a stream takes one such change, and ends with the second in
# a row.
_FEW_ROWS = 10
REMEDY = (
    "nothing was deleted. Delete only samples that were added, with the features and labels "
    "they were added with"
)


class FollowedSums(ABC):
    """The truth is the sums (exact integers); the system's float copy, the preconditioner and the
    iterate are caches, which can be thrown away at any time.
    """

    method: str

    def __init__(self, spec: Spec) -> None:
        self._torn = False
        self._sums = Sums(spec)
        self._by_construction = True  # only ever added to: then S is a Gram, and no proof is needed
        self._trace = 0  # of S, in units of 2^(-2 fraction_bits); part of the truth
        self._system: RidgeSystem | None = None
        self._refinement: Refinement | None = None
        self._stream: HeadStream | None = None  # if there is one, there are neither of these two
        self._followed_heads = 0  # heads after changes of few rows
        self._large_changes = 0  # changes of more rows than that, since the last one of few
        self._floor: float | None = None  # proven lower bound on the smallest eigenvalue of H
        self._head: Head | None = None
        self._statistics: Statistics | None = None
        self.factorisations = 0
        self.resets = 0

    @property
    def spec(self) -> Spec:
        """The Spec that the head is solved under; only `amend` changes it."""
        return self._sums.spec

    def _certified_head(self) -> Head:
        """By refinement with an exact residual."""
        self._end_stream()
        self._followed_heads += self._system is not None and self._system.pending_rows > 0
        preconditioner, floor = self._preconditioner(), self._ready_floor()
        head, diagnostics = certified(self._ready_refinement(), preconditioner, floor)
        self.resets += preconditioner.renewals
        return with_diagnostics(head, diagnostics, self.method, self.factorisations, self.resets)

    # -- streams of single changes -----------------------------------------------------------------

    def _ready_stream(self, rows: int) -> HeadStream | None:
        """The stream, with room for so many rows; None if these are not to be streamed.

        One begins with a head that is current, once there were some heads after few changed rows.
        It ends where the conditioning rule refuses heads: additions are taken there, too, but a
        fold or a factor might find no positive definite system in float64.
        """
        self._large_changes = self._large_changes + 1 if rows > _FEW_ROWS else 0
        are_many = rows > min(MOST_ROWS, room_for(self.spec.width)) or self._large_changes > 1
        with self._caching():
            if are_many or not is_well_conditioned(self.spec, self._trace):
                self._end_stream()
            elif self._stream is not None:
                self._make_room(self._stream, rows)
            elif self._head is not None and self._is_due and not self._large_changes:
                self._begin_stream(self._head)
        if self._large_changes and self._stream is None:
            self._followed_heads = min(self._followed_heads, -1)  # the next one is after many rows
        return self._stream

    @property
    def _is_due(self) -> bool:
        """Whether a stream is to begin with the next change of few rows."""
        return self._followed_heads >= _HEADS_BEFORE and self.spec.width <= KEPT_WIDTH

    def _begin_stream(self, head: Head) -> None:
        floor = self._ready_floor()
        self._system = self._refinement = None  # memory may not hold both forms
        self._followed_heads = 0
        self._settle()
        self._stream = stream = HeadStream.begin(self._sums, head)
        if stream is None:
            self._give_up_stream()
        else:
            self._tighten(stream, floor)

    def _end_stream(self) -> None:
        self._stream = None

    def _give_up_stream(self) -> None:
        """It does not pay here, at least for some time."""
        self._end_stream()
        self._followed_heads = -_HEADS_APART

    def _make_room(self, stream: HeadStream, rows: int) -> None:
        """Begin a fold, finish one, or fold all there is, as it is time before so many rows."""
        is_tight = not stream.must_finish(rows) or self._finish_fold(stream)
        floor = self._ready_floor()
        if not (is_tight and self._follows) or stream.must_fold(rows, floor):
            self._fold(stream)
        elif stream.is_due(floor):
            self._begin_fold(stream, ahead=True)

    def _begin_fold(self, stream: HeadStream, *, ahead: bool) -> None:
        floor = self._ready_floor()
        with self._changing():
            lent = self._sums.lend()
        stream.begin_fold(self._sums, lent, floor, factors=self._renews_at_folds, ahead=ahead)
        self._fold_begins()

    def _finish_fold(self, stream: HeadStream) -> bool:
        """Change over to the new base, also of the sums; false if the bounds are loose, and a step
        of refinement did not make them tight.
        """
        fold, folded = stream.folded()
        with self._changing():
            self._sums.take(fold.lent, folded.gram)
        self._floor = stream.rebase(fold, folded, self._ready_floor())
        self._fold_ends(folded.factor, stream.system.rows.count)
        if folded.residual is None or not self._follows:
            return True
        return stream.correct(self._proposed, self._ready_floor(), *folded.residual)

    def _fold(self, stream: HeadStream) -> None:
        """Bring all of the stream's rows into its base; make its bounds tight where they are
        loose.
        """
        if stream.is_folding:
            self._finish_fold(stream)
        if stream.system.rows.count:
            self._begin_fold(stream, ahead=False)
            self._finish_fold(stream)
        self._tighten(stream, self._ready_floor())

    def _tighten(self, stream: HeadStream, floor: float) -> None:
        """See to it that bounds, inverse and floor of a stream are good, right after a fold; or end
        it.
        """
        self._renew_worn()
        propose = self._preconditioner().solve
        self._floor = floor = stream.raised(propose, floor)
        if stream.is_loose(floor) and not stream.tighten(self._sums, propose, floor):
            self._give_up_stream()

    def _streamed(self, stream: HeadStream, change: Change, sign: int) -> float | Downdate:
        """What a stream says of a change, after it was made."""
        try:
            with one_blas_thread():  # calls are so short that a second thread would only spin
                return stream.change(
                    self._proposed, self._absorb, change, sign, floor=self._ready_floor()
                )
        except BaseException:  # it may be in the middle of a step
            self._end_stream()
            raise

    def _proposed(self, right: Float) -> Float:
        """By the inverse that has followed all changes; not a number, if it was given up."""
        return self._preconditioner().solve(right) if self._follows else right * np.nan

    def _streamed_head(self) -> Head | None:
        """The head of a stream; None if there is none, or if it does not decide all weights."""
        stream = self._stream
        if stream is None:
            return None
        head = stream.head(self.spec, self._ready_floor())
        if head is not None:
            return self._with_stream_diagnostics(head, 0)
        if stream.is_folding:
            self._finish_fold(stream)
            head = stream.head(self.spec, self._ready_floor())
        if head is None:
            self._fold(stream)
            propose, floor = self._preconditioner().solve, self._ready_floor()
            head = stream.head(self.spec, floor)
            if head is None and stream.tighten(self._sums, propose, floor):
                head = stream.head(self.spec, floor)
        if stream.is_often_undecided:
            self._give_up_stream()
        return None if head is None else self._with_stream_diagnostics(head, 1)

    def _with_stream_diagnostics(self, head: Head, steps: int) -> Head:
        spec = self.spec
        trace = math.ldexp(float(self._trace), -2 * spec.grid.fraction_bits)
        diagnostics = Diagnostics(
            method="",
            condition=(trace + spec.width * spec.gamma) / self._ready_floor(),
            contraction=0.0,
            refinement_steps=steps,
            digits=0,
        )
        return with_diagnostics(head, diagnostics, self.method, self.factorisations, self.resets)

    def _delete_streamed(self, stream: HeadStream, rows: Rows, change: Change) -> bool:
        """Delete rows in a stream; false if it does not tell whether they can be deleted."""
        verdict = self._streamed(stream, change, -1)
        if verdict is Downdate.IMPOSSIBLE:
            raise ImpossibleDeletionError(f"what is left would not be positive definite; {REMEDY}")
        trace = math.ldexp(float(self._trace), -2 * self.spec.grid.fraction_bits)
        least = Proof.by_trace(self.spec, trace + self.spec.width * self.spec.gamma).accepted
        if isinstance(verdict, Downdate) or verdict < least:
            stream.undo(self._absorb)
            self._give_up_stream()
            return False
        self._sums.change(rows, -1)
        if self._last_of_a_kind(rows) or not stream.minors_are_safe():
            self._settle()
            problem = problem_with(self._sums)
            if problem is not None:
                self._sums.change(rows, 1)
                stream.undo(self._absorb)
                raise ImpossibleDeletionError(f"{problem}; {REMEDY}")
        self._floor = verdict
        self._by_construction = False
        self._trace -= change.trace
        self._changed()
        return True

    # -- caches ------------------------------------------------------------------------------------

    @property
    def _most_rows(self) -> int:
        """Batches larger than this are changed by their statistics: following rows would cost more
        than starting over.
        """
        return max(16, min(self.spec.width // 8, _MOST_FOLLOWED))

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Around every change: any interruption, other than a refusal that restored everything,
        makes the solver unusable.
        """
        try:
            yield
        except ExpungeError:
            raise
        except BaseException:
            self._torn = True
            raise

    @contextmanager
    def _caching(self) -> Iterator[None]:
        """Around long work on caches: an interruption drops them, and the sums are as they were,
        or known to be torn.
        """
        try:
            yield
        except ExpungeError:
            raise
        except BaseException:
            self._drop_caches()
            raise

    def _settle(self) -> None:
        """Bring what waits into the sums; an interruption changes nothing."""
        if not self._sums.is_settled:
            self._sums = self._sums.copied()

    def _drop_caches(self) -> None:
        self._system = None
        self._refinement = None
        self._end_stream()
        self._drop_preconditioner()

    def _changed(self) -> None:
        self._head = None
        self._statistics = None

    def _replace(
        self,
        sums: Sums,
        *,
        by_construction: bool,
        floor: float | None,
        system: RidgeSystem | None = None,
    ) -> None:
        """Go on with other (settled) sums, a bound on their smallest eigenvalue and their system,
        where these are known: what follows rows must be rebuilt.

        All that takes long comes before, so that an interruption finds one or the other.
        """
        trace = _trace(sums)
        with self._changing():
            self._changed()
            self._end_stream()
            self._refinement = None
            self._sums, self._trace, self._system = sums, trace, system
            self._by_construction, self._floor = by_construction, floor
            self._outdate()

    def _float_copy(self) -> FloatCopy:
        """A system whose float copy of S is current."""
        stream = self._stream
        if stream is not None and not stream.system.rows.count:
            return stream.system
        self._end_stream()
        return self._ready_system()

    def _ready_system(self) -> RidgeSystem:
        system = self._system
        if (
            system is None
            or system.pending_rows > self._most_rows
            or self._float_copy_is_lost(system)
        ):
            return self._fresh_system()
        return system

    def _float_copy_is_lost(self, system: RidgeSystem) -> bool:
        """Whether changes since the float copy of S was made have cost it too many of its bits."""
        return system.pending_rows > 0 and system.gram_error > 2.0**-10 * self.spec.gamma

    def _fresh_system(self) -> RidgeSystem:
        """The system, rebuilt from the sums unless it is current."""
        if self._system is None or self._system.pending_rows:
            self._settle()
            refinement, self._refinement, self._system = self._refinement, None, None
            if refinement is None:
                self._system = RidgeSystem(self.spec, self._sums.gram)
                return self._system
            del refinement.system  # free the old one first: memory may not hold two
            self._system = refinement.system = RidgeSystem(self.spec, self._sums.gram)
            self._refinement = refinement
        return self._system

    def _ready_refinement(self) -> Refinement:
        system = self._ready_system()
        if self._refinement is None:
            self._settle()
            self._refinement = Refinement(system, self._sums.moment)
        return self._refinement

    def _require_possible(self) -> None:
        """Refuse sums that were not only added up from samples, and that integers prove to be of no
        samples.
        """
        if self._floor is None and not self._by_construction:
            self._settle()
            require_possible(self._sums)

    @property
    def _has_floor(self) -> bool:
        """Whether `_ready_floor` needs no proof, and so cannot refuse the sums as they are."""
        return self._floor is not None or self._by_construction

    def _ready_floor(self) -> float:
        if self._floor is None:
            self._require_possible()
            self._floor = (
                self.spec.gamma if self._by_construction else proven_floor(self._fresh_system())
            )
        return self._floor

    def _judged_statistics(self, gone: Statistics) -> tuple[Float, float] | None:
        """Rows that are close to those behind statistics of few samples, and a proven bound on the
        smallest eigenvalue of H without what the statistics hold; None if a factorisation must
        tell.

        If V'V is off by at most e from what is deleted, in the Frobenius norm, then the smallest
        eigenvalue is at most e below that of H - V'V, which the downdate lemma bounds.
        """
        if self._system is None or not self._follows:
            return None
        packed = wide.to_float(gone.gram, -2 * self.spec.grid.fraction_bits)
        copied = 2.0**-49 * blas.norm(packed)
        rows, off = low_rank(blas.upper_from_packed(self.spec.width, packed), gone.count)
        if not (len(rows) and off < _CLOSE_ENOUGH * self.spec.gamma):
            return None
        verdict = self._judged(rows)
        if isinstance(verdict, Downdate):
            return None
        floor = (verdict - off - copied) * (1 - 2.0**-20)
        return (rows, floor) if floor >= Proof.of(self._ready_system()).accepted else None

    def _proof_after_deletion(
        self, left: Sums, floor: float | None
    ) -> tuple[RidgeSystem | None, float | None]:
        """The system of what a deletion by statistics leaves, and the proof that it is positive
        definite, unless there is one (`floor`), or integers prove the deletion impossible.

        There is neither where the conditioning rule says that float64 could not tell; `head`
        refuses there anyway.
        """
        system = None
        if is_well_conditioned(self.spec, _trace(left)):
            system = RidgeSystem(self.spec, left.gram)
        problem = problem_with(left, None if system is None else system.gram)
        if problem is not None:
            raise ImpossibleDeletionError(f"{problem}; {REMEDY}")
        if system is None:
            return None, None
        try:
            return system, proven_floor(system) if floor is None else floor
        except NotAGramError as refusal:
            raise ImpossibleDeletionError(
                f"what is left would not be positive definite; {REMEDY}"
            ) from refusal

    def _delete_unless_impossible(self, rows: Rows) -> None:
        """Delete rows whose counts allow it, unless minors or the factorisation prove that
        impossible.
        """
        change, stream = Change(self.spec, rows), self._ready_stream(len(rows))
        with self._changing():
            if stream is not None and self._delete_streamed(stream, rows, change):
                return
        verdict = self._judged(change.values)
        if verdict is Downdate.IMPOSSIBLE:
            raise ImpossibleDeletionError(f"what is left would not be positive definite; {REMEDY}")
        with self._changing():
            self._delete_judged(rows, change, verdict)

    def _judged(self, values: Float) -> float | Downdate:
        """What the downdate lemma says of deleting these rows; a stale preconditioner that leaves
        it open is rebuilt.
        """
        floor, system = self._ready_floor(), self._ready_system()
        preconditioner, least = self._preconditioner(), Proof.of(system).accepted
        verdict = downdate(system, preconditioner.solve, floor, values, least)
        if verdict is Downdate.UNDECIDED and not preconditioner.fresh:
            verdict = downdate(system, preconditioner.renew(), floor, values, least)
        return verdict

    def _delete_judged(self, rows: Rows, change: Change, verdict: float | Downdate) -> None:
        """Take the rows out, unless integers or a proof object; then nothing has changed."""
        system = self._ready_system()
        self._sums.change(rows, -1)
        system.change(change.digits, change.values, -1)
        try:
            if self._last_of_a_kind(rows) or not minors_are_safe(system):
                self._settle()
                problem = problem_with(self._sums)
                if problem is not None:
                    raise ImpossibleDeletionError(f"{problem}; {REMEDY}")
            del system  # it is rebuilt for a proof, and memory may not hold two
            self._floor = (
                verdict if isinstance(verdict, float) else proven_floor(self._fresh_system())
            )
        except ExpungeError as refusal:
            self._sums.change(rows, 1)
            # Rebuilt when needed: taking the rows out of float64 and putting them back costs bits
            self._system = None
            if isinstance(refusal, NotAGramError):
                raise ImpossibleDeletionError(
                    f"what is left would not be positive definite; {REMEDY}"
                ) from refusal
            raise
        self._by_construction = False
        self._trace -= change.trace
        self._changed()
        self._follow(change, -1, system_changed=True)

    def _last_of_a_kind(self, rows: Rows) -> bool:
        """Whether a deletion just made took the last sample of a kind: then the exact checks know
        more than float64.
        """
        counts = self._sums.class_counts
        emptied = ((rows.targets.class_counts > 0) & (counts == 0)).any()
        soft_gone = (
            int(rows.targets.class_counts.sum()) < len(rows)
            and int(counts.sum()) == self._sums.count
        )
        return self._sums.count == 0 or bool(emptied) or soft_gone

    def _follow(self, change: Change, sign: int, *, system_changed: bool = False) -> None:
        """Bring the caches along with rows that were added or deleted."""
        if self._refinement is not None:
            self._refinement.change(change.digits, change.targets, sign)
        if self._system is not None and not system_changed:
            self._system.change(change.digits, change.values, sign)
        self._absorb(change.values, sign)

    @property
    @abstractmethod
    def _follows(self) -> bool:
        """Whether there is an approximate inverse that has followed all changes of rows."""

    @abstractmethod
    def _renew_worn(self) -> None:
        """Give up an approximate inverse that should be made anew when that is cheap."""

    _renews_at_folds: bool  # whether the approximate inverse is made anew at every fold

    @abstractmethod
    def _fold_begins(self) -> None:
        """Note which rows the approximate inverse has followed by now."""

    @abstractmethod
    def _fold_ends(self, factor: CholeskyFactor | None, rows: int) -> None:
        """Take the factor that a fold has made, with the rows that came since it began."""

    @abstractmethod
    def _preconditioner(self) -> Preconditioner:
        """An approximate inverse of the system, made if there is none."""

    @abstractmethod
    def _absorb(self, values: Float, sign: int, solved: Float | None = None) -> None:
        """Bring the preconditioner along with rows that were added or deleted, or note that it is
        stale. `solved` is H^-1 times the one row, before the change, if that is known.
        """

    @abstractmethod
    def _drop_preconditioner(self) -> None:
        """Forget the preconditioner."""

    @abstractmethod
    def _outdate(self) -> None:
        """Note that the preconditioner is stale."""


def _trace(sums: Sums) -> int:
    """The trace of S, as an integer."""
    return sum(wide.to_ints(sums.gram[:, blas.packed_diagonal(sums.spec.width)]))
