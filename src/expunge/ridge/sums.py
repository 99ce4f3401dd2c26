"""Sums: the exact sums behind statistics while they change in place.

`Statistics` is the immutable value; this is the workshop in which one is made, or kept up to date
row by row. A change is undone exactly by the opposite change, which is how a refused deletion of
rows leaves no trace; a change that takes long is made to a copy. `add_batch` takes samples that
come as arrays or in batches, block by block.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.errors import InputError, SpecError
from expunge.exact import blas, threads, wide
from expunge.exact.gram import CrossSum, GramSum, PanelGramSum, WaitingRows, digits_of
from expunge.ridge.encoding import (
    ColumnWatch,
    Rows,
    checked_features,
    checked_labels,
    put_features,
    targets_of,
)
from expunge.ridge.feature_names import FeatureNames
from expunge.ridge.spec import Spec
from expunge.ridge.tables import names_of

Float = NDArray[np.float64]

# Beyond this, whole products of digits would take several times the memory of the sums; below it
# panels would only cost time.
PANEL_WIDTH = 2048
_MOST_SAMPLES = 1 << 44  # with 42-bit integers the sums of this many samples stay below 2^127


@dataclass(frozen=True)
class LentGram:
    """A Gram (packed upper triangle) and rows that are not in it yet; nothing here changes."""

    gram: wide.Wide
    rows: WaitingRows

    def settled(self) -> wide.Wide:
        """The Gram with the rows in it, in memory of its own."""
        return self.rows.added_to(self.gram)


class Sums:
    """Gram, moment and label Gram as 128-bit integers, with the counts, for one spec."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.gram = wide.zeros((blas.packed_length(spec.width),))
        self.moment = wide.zeros((spec.width, spec.columns))
        self.label_gram = wide.zeros((spec.columns, spec.columns))
        self.count = 0
        self.class_counts = np.zeros(spec.columns if spec.is_classification else 0, dtype=np.int64)
        # Part of the truth, not yet in the arrays above: see `settle`.
        self._gram = (PanelGramSum if spec.width > PANEL_WIDTH else GramSum)(spec.width)
        self._moment = CrossSum(spec.width, spec.columns)
        self._label_gram = CrossSum(spec.columns, spec.columns)
        self._memory: list[Float] = []  # scratch for digits

    def change(self, rows: Rows, sign: int) -> None:
        """Add (sign 1) or subtract (sign -1) rows. The opposite change undoes this one exactly."""
        if not self._memory or len(self._memory[0]) < len(rows):
            self._memory = [np.empty(rows.integers.shape) for _ in range(3)]
        features = digits_of(rows.integers, self.spec.grid.digits, rows.largest, self._memory)
        labels = digits_of(rows.targets.integers, self.spec.label_grid.digits)
        if not self._gram.has_room(features):
            self._own_gram()
        self._gram.add(features, self.gram, sign)
        self._moment.add(features, labels, self.moment, sign)
        self._label_gram.add(labels, labels, self.label_gram, sign)
        self.count += sign * len(rows)
        self.class_counts += sign * rows.targets.class_counts

    @property
    def is_settled(self) -> bool:
        """Whether nothing is pending."""
        return all(part.is_drained for part in (self._gram, self._moment, self._label_gram))

    def settle(self) -> None:
        """Bring everything pending into the arrays."""
        if not self._gram.is_drained:
            self._own_gram()
        self._gram.drain(self.gram)
        self._moment.drain(self.moment)
        self._label_gram.drain(self.label_gram)

    def copied(self) -> Sums:
        """The same sums, settled, in memory of their own: a change that is refused or interrupted
        there leaves these as they are.
        """
        twin = Sums(self.spec)
        twin.gram = self._gram.added_to(self.gram)
        twin.moment = self._moment.added_to(self.moment)
        twin.label_gram = self._label_gram.added_to(self.label_gram)
        twin.count, twin.class_counts = self.count, self.class_counts.copy()
        return twin

    def lend(self) -> LentGram:
        """The Gram and the rows that wait to be in it, for another thread; neither changes,
        whatever becomes of the sums. The moment is settled.
        """
        self._moment.drain(self.moment)
        if self._gram.has_products:
            self.settle()
        self.gram.flags.writeable = False
        return LentGram(self.gram, self._gram.waiting())

    def take(self, lent: LentGram, settled: wide.Wide) -> None:
        """Take the Gram that was made from a lent one, and go on with the rows that came since;
        unless the sums were settled meanwhile, or rows that waited have become products.
        """
        if self.gram is lent.gram and not self._gram.has_products:
            self.gram = settled
            self._gram.forget(len(lent.rows))

    def _own_gram(self) -> None:
        """Before the Gram changes in place: a lent one stays as it is."""
        if not self.gram.flags.writeable:
            self.gram = self.gram.copy()

    def merge(self, other: Any, sign: int = 1) -> None:
        """Add or subtract other sums (settled first) or statistics of the same spec."""
        require_room(self.count + sign * other.count)
        self.settle()
        if isinstance(other, Sums):
            other.settle()
        change = wide.add_into if sign > 0 else wide.subtract_into
        self._own_gram()
        change(self.gram, other.gram)
        change(self.moment, other.moment)
        change(self.label_gram, other.label_gram)
        self.count += sign * other.count
        self.class_counts += sign * other.class_counts

    def grow(self, spec: Spec) -> None:
        """Take on a spec that grows from the present one; new classes are empty."""
        if not spec.grows_from(self.spec):
            raise SpecError(f"statistics cannot be carried over: {self.spec.difference(spec)}")
        self.settle()
        self.moment, self.label_gram, self.class_counts = embedded(
            spec, self.moment, self.label_gram, self.class_counts
        )
        self._moment = CrossSum(spec.width, spec.columns)
        self._label_gram = CrossSum(spec.columns, spec.columns)
        self.spec = spec


def require_room(count: int) -> None:
    """Refuse a number of samples whose sums might not fit 128 bits."""
    if abs(count) > _MOST_SAMPLES:
        raise InputError(f"{count} samples are more than the 2^44 whose sums fit 128 bits")


def embedded(
    spec: Spec, moment: wide.Wide, label_gram: wide.Wide, class_counts: NDArray[np.int64]
) -> tuple[wide.Wide, wide.Wide, NDArray[np.int64]]:
    """The same statistics under a spec with more labels: the new columns are zero."""
    more = spec.columns - moment.shape[2]
    return (
        np.pad(moment, ((0, 0), (0, 0), (0, more))),
        np.pad(label_gram, ((0, 0), (0, more), (0, more))),
        np.pad(class_counts, (0, more if spec.is_classification else 0)),
    )


Progress = Callable[[int], None]

_BLOCK_ROWS = 512
WORTH_SHARING = 1 << 21  # entries of a batch below which one thread is faster
_NARROW = 256  # up to this width more BLAS threads would cost more than they save
# Beyond this BLAS dominates, and a set of products for each thread would cost more than it saves
_SHARED_WIDTH = 2048


def add_batch(
    sums: Sums,
    watch: ColumnWatch,
    features: Any,
    labels: Any,
    progress: Progress | None,
    *,
    names: FeatureNames | None = None,
) -> None:
    """Add one batch, block by block; large ones by one thread a core, each with sums of its own.

    The columns of a table must have these names.
    """
    spec, before = sums.spec, sums.count
    array = checked_features(spec, features, names, before)
    checked = checked_labels(spec, labels, len(array), before)
    watch.names = names_of(array) or watch.names

    def on_the_grid(block: slice, buffer: Float, seen: ColumnWatch) -> Rows:
        integers = buffer[: block.stop - block.start]
        first = before + block.start
        values = array[block]
        largest = put_features(spec, values, integers, first, watch.names)
        seen.see(values, integers[:, : spec.dim], largest)
        return Rows(integers, largest, targets_of(spec, checked[block], first))

    _add_blocks(sums, watch, len(array), on_the_grid, progress)


def add_rows(sums: Sums, rows: Rows) -> None:
    """Add rows, block by block and shared out as `add_batch` does."""
    spec = sums.spec

    def as_they_are(block: slice, _: Float, __: ColumnWatch) -> Rows:
        return rows.part(spec, block)

    _add_blocks(sums, ColumnWatch(spec), len(rows), as_they_are, None)


def _add_blocks(
    sums: Sums,
    watch: ColumnWatch,
    count: int,
    rows_of: Callable[[slice, Float, ColumnWatch], Rows],
    progress: Progress | None,
) -> None:
    """Add `count` rows, of which `rows_of` gives a block, perhaps in the memory that it is
    handed.
    """
    spec, before = sums.spec, sums.count
    require_room(before + count)
    shared = count * spec.dim >= WORTH_SHARING and spec.width <= _SHARED_WIDTH
    workers = threads.cores() if shared else 1
    parts = [(sums, watch)] + [(Sums(spec), ColumnWatch(spec)) for _ in range(workers - 1)]

    def work(worker: int, share: slice) -> None:
        own, seen = parts[worker]
        buffer = np.empty((min(_BLOCK_ROWS, share.stop - share.start), spec.width))
        for start in range(share.start, share.stop, _BLOCK_ROWS):
            block = slice(start, min(start + _BLOCK_ROWS, share.stop))
            own.change(rows_of(block, buffer, seen), 1)
            if progress is not None and worker == 0:
                progress(before + (block.stop - share.start) * workers)

    if workers == 1:
        with threads.one_blas_thread() if spec.width <= _NARROW else nullcontext():
            work(0, slice(0, count))
    else:
        threads.share_out(count, workers, work)
    for own, seen in parts[1:]:
        sums.merge(own)
        watch.merge(seen)
    if progress is not None:
        progress(before + count)
