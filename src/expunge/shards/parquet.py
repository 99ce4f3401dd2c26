"""Parquet block by block, by pyarrow; every refusal names the row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.client.tables import pyarrow
from expunge.errors import FormatError, InputError, ShapeError

# Otherwise pyarrow reads whole row groups ahead, and some files have a single one.
_FRUGAL = {"buffer_size": 1 << 20, "pre_buffer": False}

Choose = Callable[[Path, Sequence[str], str], tuple[list[str], list[str]]]


def parquet_blocks(path: Path, choose: Choose, rows: int) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Features and labels of a Parquet file; only the columns that are needed are read. Checksums are compared, if it has any."""
    pa, parquet = pyarrow()
    try:
        with parquet.ParquetFile(path, **_FRUGAL, page_checksum_verification=True) as file:
            features, labels = choose(path, file.schema_arrow.names, "column")
            first = 0
            for batch in file.iter_batches(batch_size=rows, columns=[*features, *labels], use_threads=False):
                table = _Table(pa, batch, first)
                yield table.matrix(features), table.labels(labels)
                first += batch.num_rows
    except (pa.ArrowException, OSError) as problem:
        if isinstance(problem, OSError) and problem.errno:  # without a number, pyarrow says it of damaged pages
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
        return np.stack([self._plain(name, column) for name, column in zip(names, columns, strict=True)], axis=1)

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
            raise InputError(f"row {self._first + row}: column {name!r} is empty there. Mend or drop that sample")
        return column

    def _is_list(self, column: Any) -> bool:
        types, kind = self._pa.types, column.type
        return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))

    def _lists(self, name: str, column: Any) -> NDArray[Any]:
        lengths = column.value_lengths().to_numpy(zero_copy_only=False)
        if not lengths.size:
            return np.zeros((0, max(column.type.list_size, 0) if hasattr(column.type, "list_size") else 0))
        other = np.flatnonzero(lengths != lengths[0])
        if other.size:
            row = int(other[0])
            raise ShapeError(
                f"row {self._first + row}: the list in column {name!r} has {lengths[row]} entries, and those before it "
                f"{lengths[0]}; they must be alike"
            )
        values = column.flatten()
        if values.null_count:
            place = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
            raise InputError(
                f"row {self._first + place // int(lengths[0])}: an entry of the list in column {name!r} is missing. Mend or drop "
                "that sample"
            )
        return self._plain(name, values).reshape(len(lengths), int(lengths[0]))

    def _plain(self, name: str, column: Any) -> NDArray[Any]:
        types, kind = self._pa.types, column.type
        if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
            raise InputError(f"column {name!r} holds {kind}, not numbers. Say which columns are features")
        return np.asarray(column.to_numpy(zero_copy_only=False))
