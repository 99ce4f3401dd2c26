"""ExactSolver: what a user of Variant A or Variant B calls.

A solver's sums, caches and scratch memory change together, so it takes one caller at a time
(`exclusive`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from threading import RLock
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from expunge.errors import (
    ImpossibleDeletionError,
    InputError,
    InterruptedChangeError,
    ShapeError,
    SpecMismatchError,
)
from expunge.exact import blas
from expunge.ridge.encoding import (
    Rows,
    check_lost_columns,
    checked_features,
    integer_rows,
    seen_columns,
)
from expunge.ridge.feature_names import FeatureNames
from expunge.ridge.head import Head
from expunge.ridge.inputs import single_batch
from expunge.ridge.plausibility import count_problem, rows_behind
from expunge.ridge.spec import Spec
from expunge.ridge.statistics import Statistics
from expunge.ridge.sums import Sums, add_rows, require_room
from expunge.ridge.tables import Matrix, readable_again
from expunge.solvers.change import Change
from expunge.solvers.factor import Downdate
from expunge.solvers.following import REMEDY, FollowedSums
from expunge.solvers.stream import MOST_ROWS
from expunge.solvers.system import is_well_conditioned, require_well_conditioned

Method = TypeVar("Method", bound=Callable[..., Any])


def exclusive(method: Method) -> Method:
    """A solver's method, under its lock; refused once a change was interrupted."""

    @wraps(method)
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            if self._torn:
                raise InterruptedChangeError(
                    "this solver was interrupted in the middle of a change, and its sums can no "
                    "longer be trusted; make a new one from statistics or samples that you kept"
                )
            return method(self, *args, **kwargs)

    return cast("Method", guarded)


Float = NDArray[np.float64]


class ExactSolver(FollowedSums):
    """Adds and deletes samples and publishes the head of what is retained.

    Law: after any stream of adds and deletes, `statistics` and `head()` are, bit for bit, those of
    retraining on the retained samples. A refused call leaves the solver as it was; so does one that
    is interrupted, or out of memory, unless it was changing a few samples row by row: then every
    later call raises InterruptedChangeError, and says what to do.

    The truth is the sums (exact integers); the system's float copy, the preconditioner and the
    iterate are caches, which can be thrown away at any time. Threads may share a solver: calls take
    turns. A pickle holds spec, statistics and feature names alone.

    Parameters
    ----------
    spec : Spec
        What the head is solved under.
    statistics : Statistics, optional
        What is retained at the beginning; nothing if it is left out.
    """

    def __init__(self, spec: Spec, statistics: Statistics | None = None) -> None:
        if not isinstance(spec, Spec):
            raise InputError(
                f"{type(self).__name__} takes a Spec first (and statistics second), got "
                f"{type(spec).__name__}"
            )
        super().__init__(spec)
        self._lock = RLock()
        self._feature_names: tuple[str, ...] | None = None
        if statistics is not None:
            self.add_statistics(statistics)

    def __reduce__(self) -> tuple[Any, ...]:
        made = type(self), (self.spec, self.statistics)
        names = self._feature_names
        return made if names is None else (*made, {"_feature_names": names})

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} of {self.count} samples, {self.spec.width} features, "
            f"gamma={self.spec.gamma:g}>"
        )

    @property
    def count(self) -> int:
        """The number of retained samples: those added less those deleted."""
        return self._sums.count

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """The names of the columns of the first table; None as long as there were arrays only.

        Every later table must have the same columns in the same order, and arrays go by position.
        Names are not part of statistics, digests and heads.
        """
        return self._feature_names

    @property
    @exclusive
    def statistics(self) -> Statistics:
        """The Statistics of what is retained: those of retraining, bit for bit."""
        if self._statistics is None:
            self._settle()
            self._statistics = Statistics.snapshot(
                self._sums, by_construction=self._by_construction
            )
        return self._statistics

    @exclusive
    def settled(self) -> Sums:
        """The sums themselves, for a digest without a copy.

        Returns
        -------
        Sums
            To be read and not changed, and only until the next change.
        """
        self._settle()
        return self._sums

    # -- changes -----------------------------------------------------------------------------------

    @exclusive
    def add(self, features: Any, labels: Any = None, *, lost_columns: str = "refuse") -> None:
        """Add samples; `delete` of the same samples is the exact inverse.

        Parameters
        ----------
        features, labels
            Samples in any form that `Statistics.of` takes, in one batch or in several. All of them
            are added, or none.
        lost_columns : {"refuse", "accept"}, default="refuse"
            What to do with a column that is not zero but rounds to zero throughout. It counts as
            lost only if it is zero in everything retained as well.

        Raises
        ------
        InputError
            If features or labels cannot be taken, or a table has other columns than the first one:
            the message names the column, and nothing was added.

        Examples
        --------
        >>> from expunge import CholeskySolver, Spec
        >>> solver = CholeskySolver(Spec(dim=2, labels=("cat", "dog")))
        >>> solver.add({"age": [0.5, 2.0], "dose": [1.0, 0.0], "label": ["cat", "dog"]})
        >>> solver.count, solver.feature_names
        (2, ('age', 'dose'))
        >>> solver.add({"dose": [1.0], "age": [0.5], "label": ["cat"]})
        Traceback (most recent call last):
        expunge.errors.ShapeError: the columns are in another order than in the first table: ...
        """
        check_lost_columns(lost_columns)
        features = readable_again(features)
        names = FeatureNames(self._feature_names)
        batch = self._small_batch(features, labels, names)
        if batch is None:
            living = self._living if lost_columns == "refuse" else None
            self.add_statistics(
                Statistics.of_named(
                    self.spec, features, labels, names, lost_columns=lost_columns, living=living
                )
            )
        else:
            array, rows = batch
            if lost_columns == "refuse":
                watch = seen_columns(self.spec, array, rows)
                if watch.any_lost:
                    watch.require_none_lost(self._living)
            self.add_rows(rows)
        self._feature_names = names.names

    @exclusive
    def add_rows(self, rows: Rows) -> None:
        """Add samples that are integers already, as `integer_rows` or a message gives them.

        The same as `add` of the samples, without a look at lost columns: integers have lost what
        they have.

        Parameters
        ----------
        rows : Rows
            Integer features and targets of the samples.

        Raises
        ------
        ShapeError
            If they are of another spec; nothing has changed.
        """
        self._require_rows(rows)
        if len(rows) > self._most_rows:
            after = self._sums.copied()
            add_rows(after, rows)
            after.settle()
            self._replace(after, by_construction=self._by_construction, floor=self._floor)
            return
        if not len(rows):
            return
        change, stream = Change(self.spec, rows), self._ready_stream(len(rows))
        with self._changing():
            self._changed()
            if stream is not None and isinstance(self._streamed(stream, change, 1), Downdate):
                self._give_up_stream()
            self._sums.change(rows, 1)
            self._trace += change.trace
            if self._stream is None:
                self._follow(change, 1)

    @exclusive
    def delete(self, features: Any, labels: Any = None) -> None:
        """Delete samples that were added; what is left is what retraining without them gives.

        Parameters
        ----------
        features, labels
            The same features and labels that the samples were added with, in any form that
            `Statistics.of` takes. All of them are deleted, or none.

        Raises
        ------
        ImpossibleDeletionError
            If these samples provably were not added; nothing was deleted. Arithmetic cannot see
            every such mistake.
        InputError
            If features or labels cannot be taken, or a table has other columns than the first one.

        Examples
        --------
        >>> import numpy as np
        >>> from expunge import CholeskySolver, Spec, WoodburySolver
        >>> spec = Spec(dim=2, labels=("cat", "dog"))
        >>> features, labels = np.array([[0.5, 1.0], [2.0, 0.0]]), ["cat", "dog"]
        >>> solver, retrained = WoodburySolver(spec), CholeskySolver(spec)
        >>> solver.add(features, labels)
        >>> solver.delete(features[:1], labels[:1])
        >>> retrained.add(features[1:], labels[1:])
        >>> solver.head().digest == retrained.head().digest
        True
        """
        features = readable_again(features)
        names = FeatureNames(self._feature_names)
        is_followed = is_well_conditioned(self.spec, self._trace)
        batch = self._small_batch(features, labels, names) if is_followed else None
        if batch is None:
            self.delete_statistics(
                Statistics.of_named(self.spec, features, labels, names, lost_columns="accept")
            )
        else:
            self.delete_rows(batch[1])
        self._feature_names = names.names

    def _small_batch(
        self, features: Any, labels: Any, names: FeatureNames
    ) -> tuple[Matrix, Rows] | None:
        """Features and integers of a batch whose rows are worth following; None if there are too
        many, or several batches.
        """
        batch = single_batch(features, labels)
        if batch is None:
            return None
        array = checked_features(self.spec, batch[0], names)
        if len(array) > self._most_rows:
            return None
        return array, integer_rows(self.spec, array, batch[1])

    @exclusive
    def delete_rows(self, rows: Rows) -> None:
        """Delete samples that are integers already; the same as `delete` of the samples.

        Parameters
        ----------
        rows : Rows
            Integer features and targets of the samples.

        Raises
        ------
        ShapeError
            If they are of another spec; nothing has changed.
        ImpossibleDeletionError
            If these samples provably were not added; nothing has changed.
        """
        self._require_rows(rows)
        if len(rows) > self._most_rows or not is_well_conditioned(self.spec, self._trace):
            self.delete_statistics(Statistics.of_rows(self.spec, rows))
            return
        if not len(rows):
            return
        counts = self._sums.class_counts - rows.targets.class_counts
        problem = count_problem(self.spec, self._sums.count - len(rows), counts.tolist())
        if problem is not None:
            raise ImpossibleDeletionError(f"{problem}; {REMEDY}")
        self._delete_unless_impossible(rows)

    @exclusive
    def add_statistics(self, statistics: Statistics) -> None:
        """Add samples by their statistics; the same as `add` of the samples behind them.

        Statistics of one sample, or of one of each of some classes, give the samples away; these
        are followed like rows. Otherwise the next head may cost a factorisation.

        Parameters
        ----------
        statistics : Statistics
            Made under the solver's spec, or under one that it grew from.

        Raises
        ------
        SpecMismatchError
            If they belong to another spec; nothing was added.

        Examples
        --------
        >>> from expunge import CholeskySolver, Spec, Statistics
        >>> spec = Spec(dim=1, outputs=1)
        >>> solver = CholeskySolver(spec)
        >>> solver.add_statistics(Statistics.of(spec, [[0.5], [1.5]], [2.0, 3.0]))
        >>> solver.count
        2
        """
        self._require_spec(statistics)
        require_room(self.count + statistics.count)
        added = statistics.under(self.spec)
        rows = rows_behind(added) if self._are_few(added.count) else None
        if rows is not None:
            self.add_rows(rows)
            return
        after = self._sums.copied()
        after.merge(added)
        is_gram = statistics.gram_by_construction
        self._replace(
            after,
            by_construction=self._by_construction and is_gram,
            floor=self._floor if is_gram else None,
        )

    @exclusive
    def delete_statistics(self, statistics: Statistics) -> None:
        """Delete samples by their statistics; the same as `delete` of the samples behind them.

        Parameters
        ----------
        statistics : Statistics
            Those of samples that were added, under the solver's spec or one that it grew from.

        Raises
        ------
        ImpossibleDeletionError
            If what is left would provably be no samples' statistics; nothing was deleted.
        SpecMismatchError
            If they belong to another spec.

        Examples
        --------
        >>> from expunge import CholeskySolver, Spec, Statistics
        >>> spec = Spec(dim=1, outputs=1)
        >>> solver = CholeskySolver(spec, Statistics.of(spec, [[0.5], [1.5]], [2.0, 3.0]))
        >>> solver.delete_statistics(Statistics.of(spec, [[0.5]], [2.0]))
        >>> solver.statistics == Statistics.of(spec, [[1.5]], [3.0])
        True
        """
        self._require_spec(statistics)
        gone = statistics.under(self.spec)
        require_room(self.count - gone.count)
        judgeable = self._are_few(gone.count) and self._has_floor
        rows = rows_behind(gone) if judgeable else None
        if rows is not None:
            try:
                self.delete_rows(rows)
            except ImpossibleDeletionError:
                rows = None  # refused below as well, with the reason that statistics give
        if rows is not None:
            return
        judged = self._judged_statistics(gone) if judgeable else None
        self._end_stream()
        self._system = self._refinement = (
            None  # caches, in whose place the proof below will need memory
        )
        left = self._sums.copied()
        left.merge(gone, -1)
        system, floor = self._proof_after_deletion(left, None if judged is None else judged[1])
        with self._caching():
            if judged is not None:
                self._absorb(judged[0], -1)
        self._replace(left, by_construction=False, floor=floor, system=system)

    def _are_few(self, count: int) -> bool:
        """Whether statistics of so many samples are worth following as rows."""
        most = min(self._most_rows, MOST_ROWS)
        return 0 < count <= most and is_well_conditioned(self.spec, self._trace)

    @exclusive
    def amend(self, spec: Spec) -> None:
        """Continue under another spec; the head becomes that of retraining under it.

        Parameters
        ----------
        spec : Spec
            One that differs in gamma, publication or policy, or has labels appended. Statistics and
            feature names are kept.

        Raises
        ------
        SpecMismatchError
            If the samples would be other integers under `spec`; nothing was changed.

        Examples
        --------
        >>> from expunge import CholeskySolver, Spec, Statistics, solve
        >>> spec = Spec(dim=1, outputs=1)
        >>> solver = CholeskySolver(spec, Statistics.of(spec, [[0.5], [1.5]], [2.0, 3.0]))
        >>> solver.amend(spec.with_gamma(0.25))
        >>> solver.head().digest == solve(solver.statistics).digest
        True
        """
        if not spec.grows_from(self.spec):
            raise SpecMismatchError(
                f"a solver cannot be amended to that spec: {self.spec.difference(spec)}"
            )
        with self._changing():
            self._changed()
            self._end_stream()
            self._refinement = None
            if spec.gamma != self.spec.gamma:
                self._floor = None
                self._drop_preconditioner()
            if self._system is not None:
                self._system.set_gamma(spec)
            self._sums.grow(spec)

    # -- the head ----------------------------------------------------------------------------------

    @exclusive
    def head(self) -> Head:
        """The certified head of what is retained: bit for bit that of `solve(statistics)`.

        Returns
        -------
        Head
            Published weights with digest, error bound and diagnostics. The same object until the
            next change.

        Raises
        ------
        SolveError
            If no head can be published, for example because the system is too ill-conditioned to
            certify; nothing was changed.

        Examples
        --------
        >>> from expunge import CholeskySolver, Spec, WoodburySolver
        >>> spec = Spec(dim=1, labels=("cat", "dog"))
        >>> solver, other = CholeskySolver(spec), WoodburySolver(spec)
        >>> solver.add([[0.5], [2.0]], ["cat", "dog"])
        >>> other.add([[2.0], [0.5]], ["dog", "cat"])
        >>> solver.head().digest == other.head().digest
        True
        """
        if self._head is None:
            if not is_well_conditioned(self.spec, self._trace):
                self._require_possible()  # first, as `solve` does
                require_well_conditioned(self.spec, self._trace)
            with self._caching():  # an interrupt may tear iterate and residual apart
                self._head = self._streamed_head() or self._certified_head()
        return self._head

    @property
    def _living(self) -> NDArray[np.bool_]:
        """Which features are not zero throughout what is retained."""
        self._settle()
        diagonal = self._sums.gram[:, blas.packed_diagonal(self.spec.width)[: self.spec.dim]]
        return np.asarray(diagonal.any(axis=0))

    def _require_rows(self, rows: Rows) -> None:
        if not isinstance(rows, Rows):
            raise InputError(f"a solver takes Rows, got {type(rows).__name__}")
        shapes = rows.integers.shape, rows.targets.integers.shape
        needed = (len(rows), self.spec.width), (len(rows), self.spec.columns)
        if shapes != needed:
            raise ShapeError(
                f"integer features of shape {shapes[0]} with targets of shape {shapes[1]} were "
                f"given where the solver's spec has shapes {needed[0]} and {needed[1]}. Make them "
                "under the solver's spec"
            )

    def _require_spec(self, statistics: Statistics) -> None:
        if not isinstance(statistics, Statistics):
            raise InputError(f"a solver takes Statistics, got {type(statistics).__name__}")
        if not self.spec.grows_from(statistics.spec):
            raise SpecMismatchError(
                "these statistics belong to another spec: "
                f"{self.spec.difference(statistics.spec)}. Make them under the solver's spec"
            )
