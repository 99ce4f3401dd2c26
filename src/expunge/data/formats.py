"""The one reader of .npz, .npy, .csv and .parquet files: named columns, whole or in blocks of rows.

Laws: a file is read the same way by everything that reads it, and what is wrong with it is refused
with one and the same error; nothing that could run code is read; no error shows what a file holds
of a person, only the file and the row.

| what is wrong | error |
|---|---|
| not there, not a file, not to be opened, of a kind that is not read | InputError |
| not what its name says, truncated, damaged, with Python objects in it | FormatError |
| a column that is not there, or is empty in some row | InputError |
| values of another kind than is needed, another shape, unequal lengths | ShapeError |
| NaN or infinity among features | NotFiniteError |

Rows are counted from 0; of .csv files, lines are counted as editors do, from 1. A .csv file has
neither length nor checksum, so that one cut between two lines passes for a shorter one.
"""

from __future__ import annotations

import csv
import lzma
import math
import struct
import threading
import tokenize
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from expunge.errors import (
    ExpungeError,
    FormatError,
    InputError,
    MissingExtraError,
    NotFiniteError,
    ShapeError,
)
from expunge.ridge.feature_names import is_cell

SUFFIXES = (".npz", ".npy", ".csv", ".parquet")

_MAGIC = {".npz": b"PK", ".npy": b"\x93NUMPY", ".parquet": b"PAR1"}
_DAMAGED = (  # what the libraries let through where a file is damaged
    ValueError,
    TypeError,
    LookupError,
    EOFError,
    OverflowError,
    MemoryError,
    RuntimeError,  # also NotImplementedError, and zipfile's word for what needs a password
    SyntaxError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    csv.Error,
)
_OBJECTS = (
    "it holds Python objects, which are never read, because reading them runs code. Save it as "
    "numbers or texts"
)
# numpy parses headers as Python, and Python's parser counts its depth for all threads together: two
# of them at once can make it raise SystemError (seen with 3.11).
_PARSING = threading.Lock()
HEADER_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_CHUNK = 1 << 20  # bytes unpacked at a time
_TABLE_ROWS = 4096  # rows of a table that are held as texts or in pyarrow's form at a time
# Otherwise pyarrow reads whole row groups ahead, and some files have a single one.
_FRUGAL = {"buffer_size": 1 << 20, "pre_buffer": False}
_ALL_SHOWN = 12


# -- errors ----------------------------------------------------------------------------------------


def require_suffix(path: Path, suffixes: Sequence[str] = SUFFIXES) -> str:
    """The suffix in small letters, if it is one of these."""
    suffix = path.suffix.lower()
    if suffix not in suffixes:
        raise InputError(
            f"{path} is of a kind that cannot be read: give a file that ends in "
            f"{', '.join(suffixes)}"
        )
    return suffix


def missing_column(
    path: Path, what: str, sought: Sequence[str], names: Sequence[str], remedy: str = ""
) -> InputError:
    """The error for a column that is not there; it lists those that are."""
    wanted = " or ".join(repr(name) for name in sought)
    return InputError(
        f"{path} has no {what} {wanted}; it has {shown_names(names)}{remedy and f'. {remedy}'}"
    )


def require_alike(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse parts that have other numbers of rows than the first."""
    (first, shape), *others = shapes.items()
    count = shape[0] if shape else "no"
    for name, other in others:
        if not other or other[0] != count:
            raise ShapeError(
                f"{path} has {count} rows of {first}, but {other[0] if other else 'no'} {name}"
            )


def shown_names(names: Sequence[str]) -> str:
    """The names of columns as messages list them; not if they look like cells."""
    if any(is_cell(name) for name in names):
        return (
            f"{len(names)} columns, whose names look like a sample. A table begins with a line "
            "of column names"
        )
    more = len(names) - _ALL_SHOWN
    return (", ".join(repr(name) for name in names[:_ALL_SHOWN]) or "none") + (
        f" and {more} more" if more > 0 else ""
    )


@contextmanager
def _refusing_damage(path: Path, part: str = "", kind: str = "") -> Iterator[None]:
    """Around calls of a library: what it raises becomes the error of this module.

    Its words are not repeated: libraries quote the bytes that they stumble over.
    """
    try:
        yield
    except ExpungeError:
        raise
    except OSError as problem:
        if problem.errno is None:  # pyarrow and bz2 say it so of damaged bytes
            raise _damaged(path, part, kind) from problem
        raise InputError(f"{path} cannot be read: {problem.strerror}") from problem
    except _DAMAGED as problem:
        raise _damaged(path, part, kind) from problem


def _damaged(path: Path, part: str, kind: str) -> FormatError:
    return FormatError(
        f"{part}{path} cannot be read{kind}: it is damaged, cut short, or packed in a way that is "
        "not known here. Get or make it again"
    )


# -- columns ---------------------------------------------------------------------------------------


class Column(ABC):
    """A named column, or a block of its rows."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name

    @abstractmethod
    def numbers(self) -> NDArray[Any]:
        """Real numbers of the type they are stored in: one for each row, or a row of them."""

    @abstractmethod
    def labels(self) -> NDArray[Any]:
        """Texts or real numbers, none of them missing."""

    @abstractmethod
    def values(self) -> list[Any]:
        """What is in each row, as Python has it; None where it is missing."""

    @abstractmethod
    def row(self, row: int) -> str:
        """A row of this block as messages name it."""

    def _wrong_kind(self, kind: object, needed: str, remedy: str) -> ShapeError:
        return ShapeError(
            f"{self.path}: {self._named} holds {kind}, where {needed} are needed. {remedy}"
        )

    @property
    def _named(self) -> str:
        return f"column {self.name!r}"

    def _empty(self, row: int) -> InputError:
        return InputError(
            f"{self.row(row)}: {self._named} is empty there. Mend or drop that sample"
        )


_FEATURES = "Say which columns are features"
_SAVE = "Save them as such"


class ArrayColumn(Column):
    """A column that is an array; `first` is the number of its first row."""

    def __init__(self, path: Path, name: str, array: NDArray[Any], first: int = 0) -> None:
        super().__init__(path, name)
        self._array, self._first = array, first

    @property
    def _named(self) -> str:
        return f"array {self.name!r}"

    def numbers(self) -> NDArray[Any]:
        """The array itself."""
        if self._array.dtype.kind not in "biuf":
            raise self._wrong_kind(_kind(self._array), "real numbers", _SAVE)
        return self._array

    def labels(self) -> NDArray[Any]:
        """The array itself."""
        if self._array.dtype.kind not in "biufU":
            raise self._wrong_kind(_kind(self._array), "texts or numbers", _SAVE)
        return self._array

    def values(self) -> list[Any]:
        """What is in each row."""
        if not self._array.ndim:
            raise ShapeError(f"{self.path}: {self._named} is a single value, not one for each row")
        return list(self._array.tolist())

    def row(self, row: int) -> str:
        """By its number within the file."""
        return f"row {self._first + row} of {self.path}"


def _kind(array: NDArray[Any]) -> str:
    return {"U": "texts", "S": "bytes"}.get(array.dtype.kind, str(array.dtype))


class _TextColumn(Column):
    def __init__(self, path: Path, name: str, texts: list[str], lines: list[int]) -> None:
        super().__init__(path, name)
        self._texts, self._lines = texts, lines

    def numbers(self) -> NDArray[Any]:
        try:
            return np.array([float(text) for text in self._texts], dtype=np.float64)
        except ValueError:
            row = next(row for row, text in enumerate(self._texts) if not _is_number(text))
        raise ShapeError(
            f"{self.row(row)}: {self._named} holds no number. Mend it. {_FEATURES}, if that is "
            "none of them"
        )

    def labels(self) -> NDArray[Any]:
        if "" in self._texts:
            raise self._empty(self._texts.index(""))
        return np.array(self._texts, dtype=np.str_)

    def values(self) -> list[Any]:
        return list(self._texts)

    def row(self, row: int) -> str:
        return f"line {self._lines[row]} of {self.path}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


class _ArrowColumn(Column):
    def __init__(self, path: Path, name: str, pa: Any, column: Any, first: int) -> None:
        super().__init__(path, name)
        self._types, self._column, self._first = pa.types, column, first

    def numbers(self) -> NDArray[Any]:
        column = self._whole()
        return self._lists(column) if self._is_list(column.type) else self._plain(column, _FEATURES)

    def labels(self) -> NDArray[Any]:
        column, types = self._whole(), self._types
        if types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if types.is_string(column.type) or types.is_large_string(column.type):
            return np.array(column.to_pylist(), dtype=np.str_)
        if self._is_list(column.type):
            return self._lists(column)
        return self._plain(column, "Save them as texts or numbers")

    def values(self) -> list[Any]:
        return list(self._column.to_pylist())

    def row(self, row: int) -> str:
        return f"row {self._first + row} of {self.path}"

    def _whole(self) -> Any:
        if self._column.null_count:
            raise self._empty(_first_null(self._column))
        return self._column

    def _is_list(self, kind: Any) -> bool:
        types = self._types
        return bool(
            types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
        )

    def _lists(self, column: Any) -> NDArray[Any]:
        """Equally long lists as a matrix."""
        lengths = column.value_lengths().to_numpy(zero_copy_only=False)
        width = int(lengths[0]) if lengths.size else max(getattr(column.type, "list_size", 0), 0)
        other = np.flatnonzero(lengths != width)
        if other.size:
            row = int(other[0])
            raise ShapeError(
                f"{self.row(row)}: the list in {self._named} has {lengths[row]} entries, and those "
                f"before it {width}; they must be alike"
            )
        values = column.flatten()
        if values.null_count:
            row = _first_null(values) // width
            raise InputError(
                f"{self.row(row)}: an entry of the list in {self._named} is missing. Mend or drop "
                "that sample"
            )
        return self._plain(values, _FEATURES).reshape(len(lengths), width)

    def _plain(self, column: Any, remedy: str) -> NDArray[Any]:
        types, kind = self._types, column.type
        if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
            raise self._wrong_kind(kind, "real numbers", remedy)
        return np.asarray(column.to_numpy(zero_copy_only=False))


def _first_null(column: Any) -> int:
    return int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])


def matrix(columns: Sequence[Column]) -> NDArray[Any]:
    """Features: one column of rows of numbers, or several of single ones, all of them finite."""
    path, parts = columns[0].path, [column.numbers() for column in columns]
    single = len(columns) == 1 and (isinstance(columns[0], ArrayColumn) or parts[0].ndim > 1)
    for column, part in zip(columns, parts, strict=True):
        if part.ndim != (2 if single else 1):
            raise ShapeError(
                f"{path}: {column.name} must be a matrix (n, dim), and has the shape {part.shape}"
                if single
                else f"{path}: column {column.name!r} holds lists, and so must be the only one of "
                f"features. {_FEATURES}"
            )
    features = parts[0] if single else np.stack(parts, axis=1)
    position = _first_not_finite(features)
    if position is not None:
        row, number = position
        name = f"{number} of {columns[0].name!r}" if single else repr(columns[number].name)
        raise NotFiniteError(
            f"{columns[0].row(row)}: column {name} is {features[row, number]}: features must be "
            "finite. Mend or drop that sample"
        )
    return features


def _first_not_finite(features: NDArray[Any]) -> tuple[int, int] | None:
    """Row and column of the first NaN or infinity."""
    if features.dtype.kind != "f":
        return None
    step = max(1, _CHUNK // max(1, features.shape[1]))
    for start in range(0, len(features), step):
        finite = np.isfinite(features[start : start + step])
        if not finite.all():
            row, number = np.argwhere(~finite)[0]
            return start + int(row), int(number)
    return None


# -- files -----------------------------------------------------------------------------------------


class DataFile(ABC):
    """An open file of named columns."""

    what: Literal["array", "column"] = "column"

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        self.path, self.names = path, tuple(names)
        positions: dict[str, int] = {}
        for second, name in enumerate(self.names, start=1):
            first = positions.setdefault(name, second)
            if first != second:
                raise FormatError(
                    f"{path}: a column name occurs twice in the first line, in columns {first} and "
                    f"{second}. Name each once; if that line is a sample, write a line of column "
                    "names before it"
                    if path.suffix.lower() == ".csv"
                    else f"{path}: the name of {self.what} {first} is also that of {second}. Name "
                    "each once"
                )

    @property
    def name_features(self) -> str:
        """What to do where the features are elsewhere in the file."""
        return _FEATURES if self.what == "column" else "Name the one with the features"

    def require(self, *names: str, remedy: str = "") -> None:
        """Refuse names that this file does not have, with those that it has."""
        for name in names:
            if name not in self.names:
                raise missing_column(self.path, self.what, [name], self.names, remedy)

    @abstractmethod
    def blocks(self, names: Sequence[str], rows: int | None = None) -> Iterator[dict[str, Column]]:
        """These columns, in blocks of at most `rows` rows, at least one block.

        Without `rows`, the block size suits the format: all rows of arrays in one.
        """

    def column(self, name: str) -> Column:
        """One array, whole."""
        (block,) = self.blocks([name])
        return block[name]


@contextmanager
def open_file(path: Path, labels: Path | None = None) -> Iterator[DataFile]:
    """The named columns of a file, as long as the block lasts.

    An .npy file has one array, `features`; a second one can be given for the array `labels`.
    """
    suffix = require_suffix(path)
    _require_there(path, suffix)
    if labels is not None:
        for file in (path, labels):
            require_suffix(file, [".npy"])
        _require_there(labels, ".npy")
    with ExitStack() as stack:
        yield _Npy(path, labels) if suffix == ".npy" else _OPEN[suffix](path, stack)


def _require_there(path: Path, suffix: str) -> None:
    try:
        if not path.is_file():
            raise InputError(f"there is no file {path}, or none that can be seen from here")
        with path.open("rb") as file:
            begins = file.read(len(_MAGIC.get(suffix, b"")))
    except OSError as problem:
        raise InputError(f"{path} cannot be read: {problem.strerror or 'no access'}") from problem
    if begins != _MAGIC.get(suffix, b""):
        raise FormatError(
            f"{path} cannot be read: it is not {_article(suffix)} file, though its name says so"
        )


def _article(suffix: str) -> str:
    return f"an {suffix}" if suffix.startswith(".np") else f"a {suffix}"


# -- arrays: .npz and .npy -------------------------------------------------------------------------


@dataclass(frozen=True)
class _Header:
    """What an array says of itself, and where its values begin."""

    shape: tuple[int, ...]
    by_columns: bool
    dtype: np.dtype[Any]
    offset: int

    @property
    def bytes(self) -> int:
        """How many its values are."""
        return math.prod(self.shape) * self.dtype.itemsize


def _read_header(path: Path, part: str, file: IO[bytes], size: int) -> _Header:
    """The header at the beginning of `file`, if an array of `size` bytes can have it."""
    with _refusing_damage(path, part):
        version = np.lib.format.read_magic(file)
        if version not in HEADER_READERS:
            raise FormatError(
                f"{part}{path} is in version {version} of the format, which cannot be read. Save "
                "it again"
            )
        with _PARSING:
            shape, by_columns, dtype = HEADER_READERS[version](file)
        header = _Header(shape, by_columns, dtype, file.tell())
        if dtype.hasobject:
            raise FormatError(f"{part}{path} cannot be read: {_OBJECTS}")
        if any(number < 0 for number in shape) or header.offset + header.bytes > size:
            raise _damaged(path, part, "")
    if header.offset + header.bytes < size:
        raise FormatError(
            f"{part}{path} cannot be read: it is longer than it says, and so is damaged"
        )
    return header


class _Stream:
    """An array within an .npz file, which is unpacked as it is read."""

    def __init__(self, path: Path, name: str, file: IO[bytes], size: int) -> None:
        self.path, self.part, self.file = path, f"the array {name!r} of ", file
        self.header = _read_header(path, self.part, file, size)

    def whole(self) -> NDArray[Any]:
        """All of it."""
        shape, by_columns = self.header.shape, self.header.by_columns
        array = self._filled(shape[::-1] if by_columns else shape)
        self.finish()
        return array.T if by_columns else array

    def rows(self, count: int) -> NDArray[Any]:
        """The next rows."""
        return self._filled((count, *self.header.shape[1:]))

    def require_rows(self) -> None:
        """Refuse what cannot be read row by row."""
        if self.header.by_columns and len(self.header.shape) > 1:
            raise FormatError(
                f"{self.part}{self.path} is stored column by column, and its rows cannot be read "
                "one after another: save it by numpy.ascontiguousarray(array), or as an .npy file"
            )

    def _filled(self, shape: tuple[int, ...]) -> NDArray[Any]:
        with _refusing_damage(self.path, self.part):
            array = np.empty(shape, self.header.dtype)
            view = array.reshape(-1).view(np.uint8) if array.nbytes else np.empty(0, np.uint8)
            for start in range(0, len(view), _CHUNK):
                data = self.file.read(min(_CHUNK, len(view) - start))
                view[start : start + _CHUNK] = np.frombuffer(data, np.uint8)
        return array

    def finish(self) -> None:
        """At the end, where the checksum is compared, there must be nothing more."""
        with _refusing_damage(self.path, self.part):
            if self.file.read(1):
                raise FormatError(
                    f"{self.part}{self.path} cannot be read: it is longer than it says, and so "
                    "is damaged"
                )


class _Npz(DataFile):
    what = "array"

    def __init__(self, path: Path, stack: ExitStack) -> None:
        with _refusing_damage(path):
            self._archive = stack.enter_context(zipfile.ZipFile(path))
            names = [name for name in self._archive.namelist() if name.endswith(".npy")]
        super().__init__(path, [name.removesuffix(".npy") for name in names])

    def blocks(self, names: Sequence[str], rows: int | None = None) -> Iterator[dict[str, Column]]:
        self.require(*names)
        with ExitStack() as stack:
            streams = {name: self._stream(name, stack) for name in names}
            if rows is None:
                yield {
                    name: ArrayColumn(self.path, name, stream.whole())
                    for name, stream in streams.items()
                }
                return
            require_alike(
                self.path, {name: stream.header.shape for name, stream in streams.items()}
            )
            for stream in streams.values():
                stream.require_rows()
            total = streams[names[0]].header.shape[0]
            for start in range(0, max(1, total), rows):
                count = min(rows, total - start)
                yield {
                    name: ArrayColumn(self.path, name, stream.rows(count), start)
                    for name, stream in streams.items()
                }
            for stream in streams.values():
                stream.finish()

    def _stream(self, name: str, stack: ExitStack) -> _Stream:
        with _refusing_damage(self.path, f"the array {name!r} of "):
            entry = self._archive.getinfo(f"{name}.npy")
            file = stack.enter_context(self._archive.open(entry))
        return _Stream(self.path, name, file, entry.file_size)


class _Npy(DataFile):
    """The array `features`, and perhaps `labels` from a second file; both are read from the disk
    as they are needed.
    """

    what = "array"

    def __init__(self, path: Path, labels: Path | None = None) -> None:
        files = {"features": path} | ({} if labels is None else {"labels": labels})
        super().__init__(path, list(files))
        self._files = files
        self._arrays = {name: read_array(file) for name, file in files.items()}

    def blocks(self, names: Sequence[str], rows: int | None = None) -> Iterator[dict[str, Column]]:
        self.require(*names)
        arrays = {name: self._arrays[name] for name in names}
        if rows is None:
            yield {name: ArrayColumn(self._files[name], name, arrays[name]) for name in names}
            return
        require_alike(self.path, {name: array.shape for name, array in arrays.items()})
        for start in range(0, max(1, len(arrays[names[0]])), rows):
            yield {
                name: ArrayColumn(
                    self._files[name], name, np.array(array[start : start + rows]), start
                )
                for name, array in arrays.items()
            }


def read_array(path: Path) -> NDArray[Any]:
    """The array in an .npy file, mapped: nothing of it is read before it is used."""
    _require_there(path, require_suffix(path, [".npy"]))
    with _refusing_damage(path), path.open("rb") as file:
        header = _read_header(path, "", file, path.stat().st_size)
        if not header.bytes:
            return np.empty(header.shape, header.dtype)
        order: Literal["F", "C"] = "F" if header.by_columns else "C"
        return np.asarray(np.memmap(path, header.dtype, "r", header.offset, header.shape, order))


# -- tables: .csv and .parquet ---------------------------------------------------------------------


class _Csv(DataFile):
    """A table in UTF-8 with commas, whose first line has the names; empty lines do not count."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        with _refusing_damage(path):
            file = stack.enter_context(path.open(encoding="utf-8-sig", newline=""))
        self._reader = csv.reader(file, strict=True)
        with self._refusing(path):
            header = next(self._reader, None)
        if not header:
            raise FormatError(f"{path} is empty: a CSV file begins with a line of column names")
        other = next((mark for mark in ";\t|" if len(header) == 1 and mark in header[0]), None)
        if other is not None:
            raise FormatError(
                f"{path} has {other!r} between its columns: a CSV file has commas. Write it again "
                "with those"
            )
        super().__init__(path, header)

    @contextmanager
    def _refusing(self, path: Path) -> Iterator[None]:
        try:
            with _refusing_damage(path):
                yield
        except FormatError as problem:
            cause = problem.__cause__  # the csv module quotes nothing of a line
            why = (
                f"line {self._reader.line_num}: {cause}"
                if isinstance(cause, csv.Error)
                else ("it is written otherwise")
            )
            raise FormatError(f"{path} cannot be read as CSV in UTF-8: {why}") from cause

    def blocks(self, names: Sequence[str], rows: int | None = None) -> Iterator[dict[str, Column]]:
        self.require(*names)
        positions = [self.names.index(name) for name in names]
        for lines, block in self._row_blocks(rows or _TABLE_ROWS):
            yield {
                name: _TextColumn(self.path, name, [row[position] for row in block], lines)
                for name, position in zip(names, positions, strict=True)
            }

    def _row_blocks(self, count: int) -> Iterator[tuple[list[int], list[list[str]]]]:
        rows, first = self._rows(), True
        while True:
            with self._refusing(self.path):
                block = list(islice(rows, count))
            uneven = next((line for line, row in block if len(row) != len(self.names)), None)
            if uneven is not None:
                fields = next(len(row) for line, row in block if line == uneven)
                raise FormatError(
                    f"line {uneven} of {self.path} has {fields} fields, but the header has "
                    f"{len(self.names)}"
                )
            if not block and not first:
                return
            yield [line for line, _ in block], [row for _, row in block]
            first = False

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        for row in self._reader:
            if row:
                yield self._reader.line_num, row


def pyarrow() -> tuple[Any, Any]:
    """The modules pyarrow and pyarrow.parquet, which are an extra."""
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as problem:
        raise MissingExtraError(
            "Parquet files are read by pyarrow, which is missing: pip install 'expunge[parquet]'"
        ) from problem


class _Parquet(DataFile):
    """Only the columns that are needed are read; checksums are compared, if it has any."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._pa, parquet = pyarrow()
        with _refusing_damage(path, kind=" as Parquet"):
            self._file = stack.enter_context(
                parquet.ParquetFile(path, **_FRUGAL, page_checksum_verification=True)
            )
            self._schema = self._file.schema_arrow
        super().__init__(path, self._schema.names)

    def blocks(self, names: Sequence[str], rows: int | None = None) -> Iterator[dict[str, Column]]:
        self.require(*names)
        first = 0
        for batch in self._batches(list(names), rows or _TABLE_ROWS):
            yield {
                name: _ArrowColumn(self.path, name, self._pa, batch.column(name), first)
                for name in names
            }
            first += batch.num_rows
        if not first:
            yield {
                name: _ArrowColumn(
                    self.path, name, self._pa, self._pa.array([], self._schema.field(name).type), 0
                )
                for name in names
            }

    def _batches(self, names: list[str], rows: int) -> Iterator[Any]:
        with _refusing_damage(self.path, kind=" as Parquet"):
            batches = self._file.iter_batches(batch_size=rows, columns=names, use_threads=False)
        while True:
            with _refusing_damage(self.path, kind=" as Parquet"):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch


_OPEN: dict[str, Callable[[Path, ExitStack], DataFile]] = {
    ".npz": _Npz,
    ".csv": _Csv,
    ".parquet": _Parquet,
}
