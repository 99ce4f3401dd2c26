"""A shard block by block: its features and labels in the order of its rows, never more than a block of them in memory.

Nothing that could run code is read: arrays of Python objects are refused.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from expunge.client.columns import usual_name
from expunge.errors import FormatError, InputError, ShapeError
from expunge.shards.listing import Shard
from expunge.shards.parquet import parquet_blocks

Block = tuple[NDArray[Any], NDArray[Any]]

_BLOCK_ENTRIES = 1 << 20  # of features, 8 MB as float64; below what `add_batch` would share out among threads of its own
_BROKEN = (ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError)
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_OBJECTS = "it holds Python objects, which are never read, because reading them runs code. Save it as numbers or texts"


@dataclass(frozen=True)
class Names:
    """What the columns or arrays are called: one by its usual name (also with an s), or several exactly so."""

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


def _chosen(path: Path, names: Sequence[str], what: str, said: str | Sequence[str], remedy: str) -> list[str]:
    if isinstance(said, str):
        one = usual_name(names, (said, f"{said}s"))
        found, missing = ([], said) if one is None else ([one], None)
    else:
        found, missing = list(said), next((name for name in said if name not in names), None)
    if missing is not None or not found:
        shown = ", ".join(repr(name) for name in names[:12]) + (", ..." if len(names) > 12 else "")
        raise InputError(f"{path} has no {what} {missing or ''!r}; it has {shown or 'none'}. {remedy}")
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


# -- two .npy files ------------------------------------------------------------------------------------------------------


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
        raise ShapeError(f"{path}: the features must be a matrix (n, dim), got an array of shape {features}")
    if not labels or labels[0] != features[0]:
        raise ShapeError(f"{path} has {features[0]} rows of features, but {labels[0] if labels else 'no'} labels")


# -- .npz ----------------------------------------------------------------------------------------------------------------


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
            raise FormatError(f"the array {self.name!r} of {self.path} ends too early: the file is truncated") from problem

    def finish(self) -> None:
        """At the end, where the checksum is compared, there must be nothing more."""
        if self.file.read(1):
            raise FormatError(f"the array {self.name!r} of {self.path} is longer than it says: the file is damaged")


def _npz_blocks(path: Path, names: Names, rows: int) -> Iterator[Block]:
    with ExitStack() as stack:
        try:
            archive = stack.enter_context(zipfile.ZipFile(path))
            there = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
            chosen = names.chosen(path, there, "array")
            if any(len(one) != 1 for one in chosen):
                raise InputError(f"{path}: in an .npz file one array holds all features, and one all labels; name one of each")
            features, labels = (_stream(path, stack.enter_context(archive.open(f"{name}.npy")), name) for (name,) in chosen)
            _require_alike(path, features.shape, labels.shape)
            for start in range(0, features.shape[0], rows):
                count = min(rows, features.shape[0] - start)
                yield features.read(count), labels.read(count)
            features.finish()
            labels.finish()
        except (InputError, FormatError):
            raise
        except (*_BROKEN, RuntimeError) as problem:  # zipfile's own word for a file that needs a password
            raise FormatError(f"{path} cannot be read: {_reason(problem)}") from problem


def _stream(path: Path, file: IO[bytes], name: str) -> _Stream:
    version = np.lib.format.read_magic(file)
    if version not in _HEADERS:
        raise FormatError(f"the array {name!r} of {path} is in version {version} of the format, which is not read. Save it again")
    shape, by_columns, dtype = _HEADERS[version](file)
    if dtype.hasobject:
        raise FormatError(f"the array {name!r} of {path} cannot be read: {_OBJECTS}")
    if by_columns and len(shape) > 1:
        raise FormatError(
            f"the array {name!r} of {path} is stored column by column, and its rows cannot be read one after another: save it by "
            "numpy.ascontiguousarray(array), or as an .npy file"
        )
    return _Stream(path, name, file, shape, dtype)


def _reason(problem: Exception) -> str:
    return _OBJECTS if "Python objects" in str(problem) or "pickle" in str(problem) else str(problem) or type(problem).__name__
