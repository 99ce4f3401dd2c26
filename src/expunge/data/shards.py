"""Statistics of shards: each computed where there is room, all added up as a tree while they come
in.

Law: the digest is that of `Statistics.of` over all samples on one machine, whatever the shards,
their order, the number of workers and what they run on; for statistics are a commutative group, and
every worker's integers are exact.

`listed` says which files are shards, and which two .npy files belong together. A shard is read
block by block, in the order of its rows, with never more than a block in memory; every refusal
names the row.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from expunge.data.columns import (
    NAME_LABELS,
    labels_of_texts,
    one_of_each,
    require_distinct,
    require_names,
    require_width,
)
from expunge.data.engines import Engine, engine_of
from expunge.data.formats import DataFile, matrix, missing_column, open_file, require_suffix
from expunge.data.readers import label_array
from expunge.errors import FormatError, InputError
from expunge.exact.threads import one_blas_thread
from expunge.ridge.encoding import ColumnWatch, check_lost_columns
from expunge.ridge.feature_names import usual_name
from expunge.ridge.spec import Spec
from expunge.ridge.statistics import Statistics
from expunge.ridge.sums import Sums, add_batch

SUFFIXES = (".parquet", ".npz", ".npy")

_MAGIC = "*?["

One = str | Path | tuple[str | Path, str | Path]


@dataclass(frozen=True)
class Shard:
    """One piece of a client's data: a file, or two .npy files that belong together.

    Parameters
    ----------
    path : Path
        A Parquet or .npz file with features and labels, or the .npy file of the features.
    labels : Path, optional
        The .npy file of the labels, where `path` is one of features.

    See Also
    --------
    listed : shards from paths and globs, with files of labels found by their names.

    Examples
    --------
    >>> from pathlib import Path
    >>> from expunge.data import Shard
    >>> print(Shard(Path("part-7-features.npy"), Path("part-7-labels.npy")))
    part-7-features.npy with part-7-labels.npy
    """

    path: Path
    labels: Path | None = None

    def __str__(self) -> str:
        return str(self.path) if self.labels is None else f"{self.path} with {self.labels}"


def listed(
    shards: One | Shard | Iterable[One | Shard],
    *,
    features: str | Sequence[str] = "feature",
    labels: str | Sequence[str] = "label",
) -> list[Shard]:
    """The shards of paths, globs and pairs of .npy files, each file once.

    Parameters
    ----------
    shards : path, glob, Shard or pair of paths, or an iterable of these
        A path is a str or Path; a pair is a tuple of the .npy files of features and of labels. The
        files of a glob come in the order of their names.
    features : str or sequence of str, default "feature"
        What the name of an .npy file of features has in it. Names of several columns say nothing
        about files, and count as "feature".
    labels : str or sequence of str, default "label"
        What the name of the .npy file beside it has in that place: the labels of
        `part-7-features.npy` are in `part-7-labels.npy`.

    Returns
    -------
    list of Shard
        With absolute paths, unless a Shard was given.

    Raises
    ------
    InputError
        If there are none, a glob matches nothing, a file is given twice or is of another kind than
        .parquet, .npz or .npy, a path is a folder, or the labels of an .npy file cannot be found
        from its name.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from expunge.data import listed
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("a-features.npy", "a-labels.npy", "b.parquet"):
    ...         Path(folder, name).touch()
    ...     shards = listed(f"{folder}/*")
    >>> [shard.path.name for shard in shards]
    ['a-features.npy', 'b.parquet']
    >>> shards[0].labels.name
    'a-labels.npy'
    """
    features = features if isinstance(features, str) else "feature"
    labels = labels if isinstance(labels, str) else "label"
    given = [shards] if isinstance(shards, (str, Path, Shard)) else list(shards)
    listing: list[Shard] = []
    for entry in given:
        if isinstance(entry, Shard):
            listing.append(entry)
        elif isinstance(entry, tuple):
            listing.append(_pair(entry))
        else:
            listing += [_single(path, features, labels) for path in _expanded(entry)]
    partners = {shard.labels for shard in listing}
    # A glob such as *.npy brings the files of labels along.
    listing = [shard for shard in listing if shard.labels is not None or shard.path not in partners]
    _require_good(listing)
    return listing


def _expanded(pattern: str | Path) -> list[Path]:
    text = str(pattern)
    if not any(mark in text for mark in _MAGIC) or Path(text).exists():
        return [Path(text).absolute()]
    paths = sorted(Path(name).absolute() for name in glob.glob(text, recursive=True))
    if not paths:
        raise InputError(f"no file is called like {text!r:.200}: check the folder and the pattern")
    return paths


def _pair(pair: tuple[str | Path, str | Path]) -> Shard:
    if len(pair) != 2:
        raise InputError(
            "a pair has the .npy file of features and that of labels, and this one has "
            f"{len(pair)} entries"
        )
    features, labels = (Path(file).absolute() for file in pair)
    for path in (features, labels):
        if path.suffix.lower() != ".npy":
            raise InputError(
                f"{path} is half of a pair, and so must be an .npy file. Other files hold "
                "features and labels both"
            )
    return Shard(features, labels)


def _single(path: Path, features: str, labels: str) -> Shard:
    if path.suffix.lower() != ".npy":
        return Shard(path)
    before, named, after = path.name.rpartition(features)
    return Shard(path, path.with_name(before + labels + after)) if named else Shard(path)


def _require_good(shards: list[Shard]) -> None:
    if not shards:
        raise InputError(
            "there are no shards: give the files, or a pattern such as 'data/*.parquet'"
        )
    seen: set[Path] = set()
    for shard in shards:
        path = shard.path
        if path.is_dir():
            raise InputError(f"{path} is a folder: for all files in it write '{path}/*.parquet'")
        require_suffix(path, SUFFIXES)
        if path.suffix.lower() == ".npy" and shard.labels is None:
            raise InputError(
                f"{path} has features only, and its name does not say which file has the labels: "
                "call them NAME-features.npy and NAME-labels.npy, or give the two as a pair"
            )
        if path in seen:
            raise InputError(
                f"{path} is given twice: its samples would be counted twice. Give each shard once"
            )
        seen.add(path)


Block = tuple[NDArray[Any], NDArray[Any]]

# Of features, 8 MB as float64: memory of each worker, against what each block costs by itself;
# below what `add_batch` would share out among threads of its own.
BLOCK_ENTRIES = 1 << 20


@dataclass(frozen=True)
class ColumnNames:
    """What the columns or arrays are called: one by its usual name (also with an s), or several
    exactly so.
    """

    features: str | Sequence[str]
    labels: str | Sequence[str]

    def choose(self, file: DataFile) -> tuple[list[str], list[str]]:
        """The names of features and of labels, as they are written in the file."""
        features = _chosen(file, self.features, file.name_features)
        labels = _chosen(file, self.labels, NAME_LABELS)
        require_distinct(file, features, labels)
        if file.what == "array" and (len(features) > 1 or len(labels) > 1):
            raise one_of_each(file)
        return features, labels


def _chosen(file: DataFile, given: str | Sequence[str], remedy: str) -> list[str]:
    if not isinstance(given, str):
        file.require(*given, remedy=remedy)
        return list(given)
    usual = (given, f"{given}s")
    name = usual_name(file.names, usual)
    if name is None:
        sought = usual[:1] if given.endswith("s") else usual
        raise missing_column(file.path, file.what, sought, file.names, remedy)
    return [name]


def blocks(shard: Shard, names: ColumnNames, dim: int) -> Iterator[Block]:
    """The samples of a shard in the order of its rows, in blocks of a size that depends on `dim`
    alone; never more than a block of them is in memory.
    """
    rows = max(1, BLOCK_ENTRIES // dim)
    with open_file(shard.path, shard.labels) as file:
        # The arrays of a pair of .npy files have their names from us.
        chosen = ColumnNames("feature", "label") if shard.labels is not None else names
        features, labels = chosen.choose(file)
        ignored = set(file.names) - {*features, *labels}
        for block in file.blocks([*features, *labels], rows):
            values = matrix([block[name] for name in features])
            require_width(file, values, dim, columns=features, ignored=ignored, is_chosen=True)
            if len(values):
                yield values, label_array([block[name] for name in labels])


Progress = Callable[[int], None]


@dataclass(frozen=True)
class Part:
    """Statistics of some of the shards, and what became of their columns on the grid.

    Parts add up; a worker returns one.
    """

    statistics: Statistics
    watch: ColumnWatch

    def __add__(self, other: Part) -> Part:
        watch = ColumnWatch(self.statistics.spec)
        for source in (self.watch, other.watch):
            watch.merge(source)
        return Part(self.statistics + other.statistics, watch)


@dataclass(frozen=True)
class Task:
    """How one shard is read; the same for all of them, and sent to each worker."""

    spec: Spec
    names: ColumnNames
    label_indices: bool

    def __call__(self, shard: Shard) -> Part:
        """The part of one shard.

        What is wrong with it is said with its name; rows are counted from 0 within the shard.
        """
        spec = self.spec
        sums, watch = Sums(spec), ColumnWatch(spec)
        try:
            with one_blas_thread():  # there are as many workers as cores
                for features, labels in blocks(shard, self.names, spec.dim):
                    require_names(shard, labels, spec, label_indices=self.label_indices)
                    add_batch(sums, watch, features, self._as_meant(labels), None)
        except (InputError, FormatError) as problem:
            reason = str(problem)
            raise type(problem)(
                reason if str(shard.path) in reason else f"shard {shard}: {reason}"
            ) from problem
        return Part(Statistics.snapshot(sums, by_construction=True), watch)

    def _as_meant(self, labels: NDArray[Any]) -> NDArray[Any]:
        """Digits that were written as texts, where the classes have no names."""
        if (
            labels.dtype.kind == "U"
            and self.spec.labels is not None
            and isinstance(self.spec.labels[0], int)
        ):
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
    """The exact statistics of all samples in these shards.

    The digest is that of `Statistics.of` over all samples on one machine, whatever the shards,
    their order, the number of workers and what they run on.

    Parameters
    ----------
    spec : Spec
        What the statistics are made under.
    shards : path, glob, Shard or pair of paths, or an iterable of these
        Parquet or .npz files, or pairs of .npy files: see `listed`.
    features : str or sequence of str, default "feature"
        The column (of lists, in Parquet) or array of features, which may have an s at its end; or
        several columns of numbers. For .npy files see `listed`.
    labels : str or sequence of str, default "label"
        The same for labels; several columns are real targets.
    label_indices : bool, default False
        Whether integers are class indices where the spec's labels are texts. Otherwise they are
        refused there.
    lost_columns : {"refuse", "accept"}, default "refuse"
        Whether a column is refused that is not zero, but rounds to zero on the grid in every shard.
    on : {"threads", "processes", "ray", "dask"} or dask.distributed.Client, default "threads"
        What shards are computed on: threads or processes of this machine, the Ray that is running
        or one started for this call, the current Dask client or a cluster on this machine for this
        call. Workers elsewhere must see the files under the same paths.
    workers : int, optional
        How many; 1 or more. By default one for each core of this machine; on Ray or Dask what the
        cluster has.
    progress : callable, optional
        Called with the number of shards that are done.

    Returns
    -------
    Statistics
        Of all samples.

    Raises
    ------
    InputError
        If a shard has what `Statistics.of` refuses, by the same subclasses; the message names shard
        and row. Also if an argument is wrong.
    FormatError
        If a file is damaged or of another kind.
    MissingExtraError
        If pyarrow, Ray or Dask is needed and not installed.
    ExpungeError
        If a worker was lost.

    Notes
    -----
    Each worker holds one block of rows (8 MB of features) and its own sums. Sums are added up as a
    tree while they come in.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import expunge
    >>> from expunge.data import shard_statistics
    >>> spec = expunge.Spec(dim=2, labels=("cat", "dog"))
    >>> X = np.array([[0.0, 1.0], [1.0, 0.5], [3.0, 2.0], [4.0, 2.5]])
    >>> y = np.array(["cat", "cat", "dog", "dog"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for part in range(2):
    ...         np.savez(f"{folder}/{part}.npz", features=X[part::2], labels=y[part::2])
    ...     statistics = shard_statistics(spec, f"{folder}/*.npz", workers=1)
    >>> statistics.digest == expunge.Statistics.of(spec, X, y).digest
    True
    """
    if not isinstance(spec, Spec):
        raise InputError(
            f"shard_statistics takes a Spec first, then the shards; got {type(spec).__name__}"
        )
    check_lost_columns(lost_columns)
    if workers is not None and workers < 1:
        raise InputError(f"workers={workers} must be at least 1")
    listing = listed(shards, features=features, labels=labels)
    task = Task(spec, ColumnNames(features, labels), label_indices)
    with engine_of(on, workers) as engine:
        total = _added_up(engine, task, listing, progress)
    if lost_columns == "refuse":
        total.watch.require_none_lost()
    return total.statistics


def _added_up(engine: Engine, task: Task, shards: list[Shard], progress: Progress | None) -> Part:
    """The sum of all parts, in pairs of the same number of shards as far as that goes, so that few
    wait at any time.
    """
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
