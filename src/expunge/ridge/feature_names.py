"""Names of columns: the usual ones, how errors show them, and whether later tables agree with the
first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from expunge.errors import ShapeError

FEATURES, LABELS = ("features",), ("label", "labels")
IDS, SUBJECTS = ("id", "ids"), ("subject", "subjects")

_ALL_SHOWN = 12
_LONGEST_NAME = 40  # characters of a column name that is shown


def usual_name(names: Iterable[object], usual: Sequence[str]) -> str | None:
    """The name among these that is a usual one; failing that, one but for capitals and spaces."""
    texts = [name for name in names if isinstance(name, str)]
    exact = next((name for name in usual if name in texts), None)
    return exact or next(
        (name for word in usual for name in texts if name.strip().lower() == word), None
    )


def usual_features(names: Sequence[Any], taken: Collection[Any]) -> list[Any]:
    """The column `features` if there is one; else all columns that are not taken."""
    lists = usual_name(names, FEATURES)
    return [name for name in names if name not in taken] if lists is None else [lists]


def is_cell(name: str) -> bool:
    """Whether what should be the name of a column is rather a cell: a number or a long text.

    Then it may be personal.
    """
    try:
        float(name)
    except ValueError:
        return len(name) > _LONGEST_NAME
    return True


def shown_column(names: Sequence[Any] | None, position: int) -> str:
    """A column as errors call it: by its name, or by its number if it has none to be shown."""
    name = names[position] if names is not None else None
    is_shown = isinstance(name, str) and not is_cell(name)
    return f"column {name!r}" if is_shown else f"column {position}"


class FeatureNames:
    """The names of features: those of the first table; every later one must have the same, in the
    same order. Arrays have none and go by position.
    """

    def __init__(self, names: tuple[str, ...] | None = None) -> None:
        self.names = names

    def require(self, names: tuple[str, ...] | None) -> None:
        """Take the names of the first table; refuse another one's by column name."""
        if names is None or names == self.names:
            return
        if self.names is not None:
            raise ShapeError(
                f"{difference(self.names, names)}. Select the columns of the first table, in its "
                "order, or give an array, which goes by position. Nothing was changed"
            )
        self.names = names


def difference(expected: tuple[str, ...], names: tuple[str, ...]) -> str:
    """How the columns of a table differ from those of the first table."""
    missing = [position for position, name in enumerate(expected) if name not in names]
    extra = [position for position, name in enumerate(names) if name not in expected]
    if not missing and not extra:
        pairs = zip(names, expected, strict=True)
        position = next(index for index, (name, first) in enumerate(pairs) if name != first)
        return (
            f"the columns are in another order than in the first table: {position} is "
            f"{shown_column(names, position)}, and was {shown_column(expected, position)}"
        )
    parts = []
    if missing:
        parts.append(f"the table lacks {shown_columns(expected, missing)}")
    if extra:
        parts.append(f"the first table had no {shown_columns(names, extra)}")
    return ", and ".join(parts)


def shown_columns(names: tuple[str, ...], positions: Sequence[int] | None = None) -> str:
    """Columns as errors list them."""
    positions = range(len(names)) if positions is None else positions
    shown = ", ".join(shown_column(names, position) for position in positions[:_ALL_SHOWN])
    more = len(positions) - _ALL_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown
