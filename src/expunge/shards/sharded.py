"""Statistics of shards: each computed where there is room, all added up as a tree while they come in.

Law: the digest is that of `Statistics.of` over all samples on one machine, whatever the shards, their order, the number of
workers and what they run on; for statistics are a commutative group, and every worker's integers are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from expunge.batches import add_batch
from expunge.client.columns import labels_of_texts, require_names
from expunge.errors import FormatError, InputError
from expunge.exact.parallel import one_blas_thread
from expunge.rows import ColumnWatch, check_lost_columns
from expunge.shards.engines import Engine, engine_of
from expunge.shards.listing import One, Shard, listed
from expunge.shards.reading import Names, blocks
from expunge.spec import Spec
from expunge.statistics import Statistics
from expunge.sums import Sums

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Part:
    """Statistics of some of the shards, and what became of their columns on the grid. Parts add up; a worker returns one."""

    statistics: Statistics
    watch: ColumnWatch

    def __add__(self, other: Part) -> Part:
        watch = ColumnWatch(self.statistics.spec)
        for one in (self.watch, other.watch):
            watch.merge(one)
        return Part(self.statistics + other.statistics, watch)


@dataclass(frozen=True)
class Task:
    """How one shard is read; the same for all of them, and sent to each worker."""

    spec: Spec
    names: Names
    label_indices: bool

    def __call__(self, shard: Shard) -> Part:
        """The part of one shard. What is wrong with it is said with its name; rows are counted from 0 within the shard."""
        spec = self.spec
        sums, watch = Sums(spec), ColumnWatch(spec)
        try:
            with one_blas_thread():  # there are as many workers as cores
                for features, labels in blocks(shard, self.names, spec.dim):
                    require_names(shard, labels, spec, label_indices=self.label_indices)
                    add_batch(sums, watch, features, self._as_meant(labels), None)
        except (InputError, FormatError) as problem:
            said = str(problem)
            raise type(problem)(said if str(shard.path) in said else f"shard {shard}: {said}") from problem
        except OSError as problem:
            raise InputError(f"shard {shard} cannot be read: {problem.strerror or problem}") from problem
        return Part(Statistics.snapshot(sums, by_construction=True), watch)

    def _as_meant(self, labels: NDArray[Any]) -> NDArray[Any]:
        """Digits that were written as texts, where the classes have no names."""
        if labels.dtype.kind == "U" and self.spec.labels is not None and isinstance(self.spec.labels[0], int):
            return labels_of_texts(labels.tolist(), self.spec)
        return labels


def shard_statistics(
    spec: Spec,
    shards: One | Shard | Iterable[One | Shard],
    *,
    features: str | Sequence[str] = "feature",
    labels: str | Sequence[str] = "label",
    label_indices: bool = False,
    lost_columns: str = "refuse",
    on: Any = "threads",
    workers: int | None = None,
    progress: Progress | None = None,
) -> Statistics:
    """The statistics of all samples in these shards: Parquet or .npz files, or pairs of .npy files; paths, or globs.

    `features` and `labels` name a column (of lists, in Parquet) or an array, which may have an s at its end, or several columns
    of numbers; for .npy files see `listed`. Integers for labels that are texts are refused, unless `label_indices` says that they
    are class indices.

    `on` is "threads" or "processes" of this machine, "ray" (the Ray that is running, or one that is started for this call),
    "dask" (the current client, or a cluster on this machine for this call), or a client of dask.distributed. Workers elsewhere
    must see the files under the same paths. Each worker holds one block of rows and its own sums. `progress` is called with the
    number of shards that are done.

    Refuses, by shard and row, what `Statistics.of` refuses; a column is lost only if it lives in no shard.
    """
    if not isinstance(spec, Spec):
        raise InputError(f"shard_statistics takes a Spec first, then the shards; got {type(spec).__name__}")
    check_lost_columns(lost_columns)
    if workers is not None and workers < 1:
        raise InputError(f"workers={workers} must be at least 1")
    found = listed(shards, features=features, labels=labels)
    task = Task(spec, Names(features, labels), label_indices)
    with engine_of(on, workers) as engine:
        total = _added_up(engine, task, found, progress)
    if lost_columns == "refuse":
        total.watch.require_none_lost()
    return total.statistics


def _added_up(engine: Engine, task: Task, shards: list[Shard], progress: Progress | None) -> Part:
    """The sum of all parts, in pairs of the same number of shards as far as that goes, so that few wait at any time."""
    waiting, done = iter(shards), 0
    running: dict[Any, int] = {}  # what is on its way, and how often it has been added up
    ready: dict[int, Any] = {}  # at most one of each kind
    while True:
        while len(running) < engine.most and (shard := next(waiting, None)) is not None:
            running[engine.run(task, shard)] = 0
        if not running:
            break
        for part in engine.finished(list(running)):
            level = running.pop(part)
            done += level == 0
            if progress is not None and level == 0:
                progress(done)
            if level in ready:
                running[engine.add(ready.pop(level), part)] = level + 1
            else:
                ready[level] = part
    total, *others = (ready[level] for level in sorted(ready))
    for other in others:
        total = engine.add(total, other)
    result: Part = engine.result(total)
    return result
