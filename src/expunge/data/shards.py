"""Statistics of shards: each computed where there is room, all added up as a tree while they come
in.

Law: the digest is that of `Statistics.of` over all samples on one machine, whatever the shards,
their order, the number of workers and what they run on; for statistics are a commutative group, and
every worker's integers are exact.

`listed` says which files are shards, and which two .npy files belong together. A shard is read
block by block, in the order of its rows, with never more than a block in memory (Parquet by
pyarrow); every refusal names the row. Nothing that could run code is read: arrays of Python objects
are refused.
"""

from __future__ import annotations

import glob
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from expunge.data.columns import labels_of_texts, require_names, usual_name
from expunge.data.engines import Engine, engine_of
from expunge.data.readers import pyarrow
from expunge.errors import FormatError, InputError, ShapeError
from expunge.exact.threads import one_blas_thread
from expunge.ridge.encoding import ColumnWatch, check_lost_columns
from expunge.ridge.spec import Spec
from expunge.ridge.statistics import Statistics
from expunge.ridge.sums import Sums, add_batch

SUFFIXES = (".parquet", ".npz", ".npy")

_MAGIC = "*?["

One = str | Path | tuple[str | Path, str | Path]


@dataclass(frozen=True)
class Shard:
    """One piece of a client's data: a Parquet or .npz file, or the .npy file of its features with
    that of its labels.
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
    """The shards that are meant: paths, globs, or pairs of .npy files, each file once.

    The labels of an .npy file that is not given as a pair are in the file beside it whose name has
    `labels` where its own has `features`: those of `part-7-features.npy` in `part-7-labels.npy`.
    Names of several columns say nothing about files.
    """
    features = features if isinstance(features, str) else "feature"
    labels = labels if isinstance(labels, str) else "label"
    given = [shards] if isinstance(shards, (str, Path, Shard)) else list(shards)
    found: list[Shard] = []
    for one in given:
        if isinstance(one, Shard):
            found.append(one)
        elif isinstance(one, tuple):
            found.append(_pair(one))
        else:
            found += [_single(path, features, labels) for path in _expanded(one)]
    partners = {shard.labels for shard in found}
    # A glob such as *.npy brings the files of labels along.
    found = [shard for shard in found if shard.labels is not None or shard.path not in partners]
    _require_good(found)
    return found


def _expanded(one: str | Path) -> list[Path]:
    text = str(one)
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
    features, labels = (Path(one).absolute() for one in pair)
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


def _require_good(found: list[Shard]) -> None:
    if not found:
        raise InputError(
            "there are no shards: give the files, or a pattern such as 'data/*.parquet'"
        )
    seen: set[Path] = set()
    for shard in found:
        path = shard.path
        if path.suffix.lower() not in SUFFIXES:
            hint = f"; for all files in a folder write '{path}/*.parquet'" if path.is_dir() else ""
            raise InputError(
                f"{path} cannot be a shard: shards are files that end in "
                f"{', '.join(SUFFIXES)}{hint}"
            )
        if path.suffix.lower() == ".npy" and shard.labels is None:
            raise InputError(
                f"{path} has features only, and its name does not say which file has the labels: "
                "call them NAME-features.npy and "
                "NAME-labels.npy, or give the two as a pair"
            )
        if path in seen:
            raise InputError(
                f"{path} is given twice: its samples would be counted twice. Give each shard once"
            )
        seen.add(path)


# Otherwise pyarrow reads whole row groups ahead, and some files have a single one.
_FRUGAL = {"buffer_size": 1 << 20, "pre_buffer": False}

Choose = Callable[[Path, Sequence[str], str], tuple[list[str], list[str]]]


def parquet_blocks(
    path: Path, choose: Choose, rows: int
) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Features and labels of a Parquet file; only the columns that are needed are read.

    Checksums are compared, if it has any.
    """
    pa, parquet = pyarrow()
    try:
        with parquet.ParquetFile(path, **_FRUGAL, page_checksum_verification=True) as file:
            features, labels = choose(path, file.schema_arrow.names, "column")
            first = 0
            for batch in file.iter_batches(
                batch_size=rows, columns=[*features, *labels], use_threads=False
            ):
                table = _Table(pa, batch, first)
                yield table.matrix(features), table.labels(labels)
                first += batch.num_rows
    except (pa.ArrowException, OSError) as problem:
        if (
            isinstance(problem, OSError) and problem.errno
        ):  # without a number, pyarrow says it of damaged pages
            raise
        raise FormatError(f"{path} cannot be read as Parquet: {problem}") from problem


class _Table:
    """A block of a table, and the number of its first row."""

    def __init__(self, pa: Any, batch: Any, first: int) -> None:
        self._pa, self._batch, self._first = pa, batch, first

    def matrix(self, names: list[str]) -> NDArray[Any]:
        """One column of lists, or several of numbers, as a matrix."""
        columns = [self._whole(name) for name in names]
        if len(names) == 1 and self._is_list(columns[0]):
            return self._lists(names[0], columns[0])
        return np.stack(
            [self._plain(name, column) for name, column in zip(names, columns, strict=True)], axis=1
        )

    def labels(self, names: list[str]) -> NDArray[Any]:
        """Names or class indices; with lists, or with several columns, real targets."""
        column = self._whole(names[0])
        if len(names) > 1 or self._is_list(column):
            return self.matrix(names)
        types = self._pa.types
        if types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if types.is_string(column.type) or types.is_large_string(column.type):
            return np.array(column.to_pylist(), dtype=np.str_)
        return self._plain(names[0], column)

    def _whole(self, name: str) -> Any:
        """A column in which nothing is missing."""
        column = self._batch.column(name)
        if column.null_count:
            row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
            raise InputError(
                f"row {self._first + row}: column {name!r} is empty there. Mend or drop that sample"
            )
        return column

    def _is_list(self, column: Any) -> bool:
        types, kind = self._pa.types, column.type
        return bool(
            types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
        )

    def _lists(self, name: str, column: Any) -> NDArray[Any]:
        lengths = column.value_lengths().to_numpy(zero_copy_only=False)
        if not lengths.size:
            return np.zeros(
                (0, max(column.type.list_size, 0) if hasattr(column.type, "list_size") else 0)
            )
        other = np.flatnonzero(lengths != lengths[0])
        if other.size:
            row = int(other[0])
            raise ShapeError(
                f"row {self._first + row}: the list in column {name!r} has {lengths[row]} "
                "entries, and those before it "
                f"{lengths[0]}; they must be alike"
            )
        values = column.flatten()
        if values.null_count:
            place = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
            raise InputError(
                f"row {self._first + place // int(lengths[0])}: an entry of the list in column "
                f"{name!r} is missing. Mend or drop "
                "that sample"
            )
        return self._plain(name, values).reshape(len(lengths), int(lengths[0]))

    def _plain(self, name: str, column: Any) -> NDArray[Any]:
        types, kind = self._pa.types, column.type
        if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
            raise InputError(
                f"column {name!r} holds {kind}, not numbers. Say which columns are features"
            )
        return np.asarray(column.to_numpy(zero_copy_only=False))


Block = tuple[NDArray[Any], NDArray[Any]]

_BLOCK_ENTRIES = (
    1 << 20
)  # of features, 8 MB as float64; below what `add_batch` would share out among threads of its own
_BROKEN = (ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError)
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_OBJECTS = (
    "it holds Python objects, which are never read, because reading them runs code. Save "
    "it as numbers or texts"
)


@dataclass(frozen=True)
class Names:
    """What the columns or arrays are called: one by its usual name (also with an s), or several
    exactly so.
    """

    features: str | Sequence[str]
    labels: str | Sequence[str]

    def chosen(self, path: Path, names: Sequence[str], what: str) -> tuple[list[str], list[str]]:
        """The names of features and of labels, as they are written in the file."""
        features = _chosen(path, names, what, self.features, "Say which columns are features")
        labels = _chosen(path, names, what, self.labels, "Name the one with the labels")
        doubled = sorted({name for name in features if name in labels or features.count(name) > 1})
        if doubled:
            raise InputError(f"{path}: {what} {doubled[0]!r} is named twice")
        return features, labels


def _chosen(
    path: Path, names: Sequence[str], what: str, said: str | Sequence[str], remedy: str
) -> list[str]:
    if isinstance(said, str):
        one = usual_name(names, (said, f"{said}s"))
        found, missing = ([], said) if one is None else ([one], None)
    else:
        found, missing = list(said), next((name for name in said if name not in names), None)
    if missing is not None or not found:
        shown = ", ".join(repr(name) for name in names[:12]) + (", ..." if len(names) > 12 else "")
        raise InputError(
            f"{path} has no {what} {missing or ''!r}; it has {shown or 'none'}. {remedy}"
        )
    return found


def blocks(shard: Shard, names: Names, dim: int) -> Iterator[Block]:
    """The samples of a shard, in blocks of a size that depends on `dim` alone."""
    rows = max(1, _BLOCK_ENTRIES // dim)
    for path in (shard.path, shard.labels):
        if path is not None and not path.is_file():
            raise InputError(f"there is no file {path}, or whoever reads it cannot see it")
    if shard.labels is not None:
        return _pair_blocks(shard.path, shard.labels, rows)
    if shard.path.suffix.lower() == ".npz":
        return _npz_blocks(shard.path, names, rows)
    return parquet_blocks(shard.path, names.chosen, rows)


# -- two .npy files --------------------------------------------------------------------------------


def _pair_blocks(path: Path, labels_path: Path, rows: int) -> Iterator[Block]:
    features, labels = _mapped(path), _mapped(labels_path)
    _require_alike(path, features.shape, labels.shape)
    for start in range(0, len(features), rows):
        yield np.array(features[start : start + rows]), np.array(labels[start : start + rows])


def _mapped(path: Path) -> NDArray[Any]:
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except _BROKEN as problem:
        raise FormatError(f"{path} cannot be read: {_reason(problem)}") from problem


def _require_alike(path: Path, features: tuple[int, ...], labels: tuple[int, ...]) -> None:
    if len(features) != 2:
        raise ShapeError(
            f"{path}: the features must be a matrix (n, dim), got an array of shape {features}"
        )
    if not labels or labels[0] != features[0]:
        raise ShapeError(
            f"{path} has {features[0]} rows of features, but {labels[0] if labels else 'no'} labels"
        )


# -- .npz ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Stream:
    """An array within an .npz file, which is unpacked as it is read."""

    path: Path
    name: str
    file: IO[bytes]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def read(self, rows: int) -> NDArray[Any]:
        """The next rows."""
        shape = (rows, *self.shape[1:])
        data = self.file.read(int(np.prod(shape)) * self.dtype.itemsize)
        try:
            return np.frombuffer(data, self.dtype).reshape(shape)
        except ValueError as problem:
            raise FormatError(
                f"the array {self.name!r} of {self.path} ends too early: the file is truncated"
            ) from problem

    def finish(self) -> None:
        """At the end, where the checksum is compared, there must be nothing more."""
        if self.file.read(1):
            raise FormatError(
                f"the array {self.name!r} of {self.path} is longer than it says: the file is "
                "damaged"
            )


def _npz_blocks(path: Path, names: Names, rows: int) -> Iterator[Block]:
    with ExitStack() as stack:
        try:
            archive = stack.enter_context(zipfile.ZipFile(path))
            there = [
                name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")
            ]
            chosen = names.chosen(path, there, "array")
            if any(len(one) != 1 for one in chosen):
                raise InputError(
                    f"{path}: in an .npz file one array holds all features, and one all labels; "
                    "name one of each"
                )
            features, labels = (
                _stream(path, stack.enter_context(archive.open(f"{name}.npy")), name)
                for (name,) in chosen
            )
            _require_alike(path, features.shape, labels.shape)
            for start in range(0, features.shape[0], rows):
                count = min(rows, features.shape[0] - start)
                yield features.read(count), labels.read(count)
            features.finish()
            labels.finish()
        except (InputError, FormatError):
            raise
        except (
            *_BROKEN,
            RuntimeError,
        ) as problem:  # zipfile's own word for a file that needs a password
            raise FormatError(f"{path} cannot be read: {_reason(problem)}") from problem


def _stream(path: Path, file: IO[bytes], name: str) -> _Stream:
    version = np.lib.format.read_magic(file)
    if version not in _HEADERS:
        raise FormatError(
            f"the array {name!r} of {path} is in version {version} of the format, which is not "
            "read. Save it again"
        )
    shape, by_columns, dtype = _HEADERS[version](file)
    if dtype.hasobject:
        raise FormatError(f"the array {name!r} of {path} cannot be read: {_OBJECTS}")
    if by_columns and len(shape) > 1:
        raise FormatError(
            f"the array {name!r} of {path} is stored column by column, and its rows cannot be "
            "read one after another: save it by "
            "numpy.ascontiguousarray(array), or as an .npy file"
        )
    return _Stream(path, name, file, shape, dtype)


def _reason(problem: Exception) -> str:
    return (
        _OBJECTS
        if "Python objects" in str(problem) or "pickle" in str(problem)
        else str(problem) or type(problem).__name__
    )


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
            said = str(problem)
            raise type(problem)(
                said if str(shard.path) in said else f"shard {shard}: {said}"
            ) from problem
        except OSError as problem:
            raise InputError(
                f"shard {shard} cannot be read: {problem.strerror or problem}"
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
    """The statistics of all samples in these shards: Parquet or .npz files, or pairs of .npy files;
    paths, or globs.

    `features` and `labels` name a column (of lists, in Parquet) or an array, which may have an s at
    its end, or several columns of numbers; for .npy files see `listed`. Integers for labels that
    are texts are refused, unless `label_indices` says that they are class indices.

    `on` is "threads" or "processes" of this machine, "ray" (the Ray that is running, or one that is
    started for this call), "dask" (the current client, or a cluster on this machine for this call),
    or a client of dask.distributed. Workers elsewhere must see the files under the same paths. Each
    worker holds one block of rows and its own sums. `progress` is called with the number of shards
    that are done.

    Refuses, by shard and row, what `Statistics.of` refuses; a column is lost only if it lives in no
    shard.
    """
    if not isinstance(spec, Spec):
        raise InputError(
            f"shard_statistics takes a Spec first, then the shards; got {type(spec).__name__}"
        )
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
