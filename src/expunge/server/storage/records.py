"""Rows of SQLite as records of `tables`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any, Generic, TypeVar

from expunge.storage.sqlite import Database

Record = TypeVar("Record")


class Records(Generic[Record]):
    """A table whose columns are the fields of a record; `constants` are columns beside them."""

    def __init__(
        self, database: Database, table: str, record: type[Record], constants: str = ""
    ) -> None:
        names = [field.name for field in fields(record)]  # type: ignore[arg-type]
        self._database = database
        self._record = record
        self._select = f"SELECT {', '.join(f'{table}.{name}' for name in names)} FROM {table} "  # noqa: S608 - our own names
        constant_columns = [constants] if constants else []
        self._into = f"INTO {table} ({', '.join([*constant_columns, *names])}) VALUES ("
        self._into += ", ".join([*("?" for _ in constant_columns), *("?" for _ in names)]) + ")"

    def one(self, where: str = "", arguments: Sequence[Any] = ()) -> Record | None:
        """The first record that this is true of, or None."""
        row = self._database.row(self._select + where, arguments)
        return None if row is None else self._record(*row)

    def all(self, where: str = "", arguments: Sequence[Any] = ()) -> list[Record]:
        """Every record that this is true of."""
        return [self._record(*row) for row in self._database.rows(self._select + where, arguments)]

    def insert(self, records: Iterable[Record], *constants: Any, rule: str = "") -> None:
        """New rows; `rule` says what happens where there is one already."""
        self._database.run_many(
            f"INSERT {self._into} {rule}", [(*constants, *_values(record)) for record in records]
        )

    def replace(self, record: Record, *constants: Any) -> None:
        """Put a row in the place of the one with the same key."""
        self._database.run(f"INSERT OR REPLACE {self._into}", (*constants, *_values(record)))


def _values(record: Any) -> tuple[Any, ...]:
    return tuple(getattr(record, field.name) for field in fields(record))
