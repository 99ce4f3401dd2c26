"""Samples that come as arrays or in batches, added to sums block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from itertools import zip_longest
from typing import Any

import numpy as np

from expunge.errors import ShapeError
from expunge.exact import parallel
from expunge.rows import ColumnWatch, Rows, checked_features, put_features
from expunge.sums import Sums, require_room
from expunge.targets import checked_labels, targets_of

Progress = Callable[[int], None]

_END = object()
_BLOCK_ROWS = 512
_WORTH_SHARING = 1 << 21  # entries of a batch below which one thread is faster
_NARROW = 256  # up to this width more BLAS threads would cost more than they save
_SHARED_WIDTH = 2048  # beyond this BLAS dominates, and a set of products for each thread would cost more than it saves


def batches(features: Any, labels: Any) -> Iterator[tuple[Any, Any]]:
    """Pairs of features and labels, from two arrays, two iterators, or one iterable of pairs."""
    if labels is not None and not (isinstance(features, Iterator) and isinstance(labels, Iterator)):
        yield features, labels
        return
    if labels is not None:
        for index, (one, other) in enumerate(zip_longest(features, labels, fillvalue=_END)):
            if one is _END or other is _END:
                missing = "features" if one is _END else "labels"
                raise ShapeError(f"batch {index} has no {missing}: features and labels must come in equally many batches")
            yield one, other
        return
    if isinstance(features, np.ndarray) or not isinstance(features, Iterable):
        raise ShapeError("labels are missing: give features and labels, or an iterable of (features, labels) batches")
    for index, batch in enumerate(features):
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise ShapeError(f"batch {index} is not a pair (features, labels)")
        yield batch[0], batch[1]


def add_batch(sums: Sums, watch: ColumnWatch, features: Any, labels: Any, progress: Progress | None) -> None:
    """Add one batch, block by block; large ones by one thread a core, each with sums of its own."""
    spec = sums.spec
    array = checked_features(spec, features)
    checked = checked_labels(spec, labels, len(array), sums.count)
    require_room(sums.count + len(array))
    shared = array.size >= _WORTH_SHARING and spec.width <= _SHARED_WIDTH
    workers = parallel.cores() if shared else 1
    parts = [(sums, watch)] + [(Sums(spec), ColumnWatch(spec)) for _ in range(workers - 1)]
    before = sums.count

    def work(worker: int, share: slice) -> None:
        own, seen = parts[worker]
        buffer = np.empty((min(_BLOCK_ROWS, share.stop - share.start), spec.width))
        for start in range(share.start, share.stop, _BLOCK_ROWS):
            block = slice(start, min(start + _BLOCK_ROWS, share.stop))
            integers = buffer[: block.stop - block.start]
            largest = put_features(spec, array[block], integers, before + start)
            seen.see(array[block], integers[:, : spec.dim], largest)
            own.change(Rows(integers, largest, targets_of(spec, checked[block], before + start)), 1)
            if progress is not None and worker == 0:
                progress(before + (start - share.start + len(integers)) * workers)

    if workers == 1:
        with parallel.one_blas_thread() if spec.width <= _NARROW else nullcontext():
            work(0, slice(0, len(array)))
    else:
        parallel.share_out(len(array), workers, work)
    for own, seen in parts[1:]:
        sums.merge(own)
        watch.merge(seen)
    if progress is not None:
        progress(before + len(array))
