"""Store: the results of one experiment, a file for each cell, written whole the moment the cell is
done.

A cell's file is named by the digest of its key. Its result counts as long as key, data, the
experiment's version and the format of results are those that are wanted; others stay where they are
and are left out. Files may be deleted at any time: what they held is then measured again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from expunge.errors import InputError
from expunge.storage.files import write_whole
from expunge_experiments.runs.base import Cell, Experiment, Key

FORMAT = 1
Identities = Mapping[str, Mapping[str, Any] | None]  # of data by name; None for what is not here


@dataclass(frozen=True)
class CellResult:
    """A cell's result as it is stored. `data` says what it was measured on, `environment` where."""

    key: Mapping[str, Any]
    result: Mapping[str, Any]
    seconds: float
    data: Mapping[str, Mapping[str, Any]]
    environment: Mapping[str, Any]


class Store:
    """The cells of one experiment in a folder."""

    def __init__(self, folder: Path, experiment: Experiment[Any]) -> None:
        self.folder = folder
        self._experiment = experiment
        self._cells = folder / "cells"

    def path(self, key: Key) -> Path:
        """Where the result of the cell with this key is, or will be."""
        whole = {
            "experiment": self._experiment.name,
            "version": self._experiment.version,
            "key": plain(key),
        }
        return self._cells / f"{hashlib.sha256(_text(whole).encode()).hexdigest()[:32]}.json"

    def find(self, cell: Cell, identities: Identities) -> CellResult | None:
        """The cell's result, if it was measured on the same data.

        Where data are not here, it cannot have changed with them.
        """
        try:
            content = json.loads(self.path(cell.key).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError:
            return None  # truncated or edited by hand: measure again
        if (
            not isinstance(content, dict)
            or content.get("format") != FORMAT
            or content.get("key") != plain(cell.key)
        ):
            return None
        if not all(name in content for name in ("result", "seconds", "data", "environment")):
            return None
        record = CellResult(
            *(content[name] for name in ("key", "result", "seconds", "data", "environment"))
        )
        same = all(
            identities.get(name) is None or identities[name] == record.data.get(name)
            for name in data_names(cell.key)
        )
        return record if same else None

    def keep(self, record: CellResult) -> None:
        """Write a result; after a crash the file is whole or absent."""
        self._cells.mkdir(parents=True, exist_ok=True)
        content = {
            "format": FORMAT,
            "experiment": self._experiment.name,
            "version": self._experiment.version,
            "key": plain(record.key),
            "data": plain(record.data),
            "environment": plain(record.environment),
            "seconds": record.seconds,
            "result": plain(record.result),
        }
        write_whole(
            self.path(record.key),
            (json.dumps(content, indent=1, allow_nan=False) + "\n").encode(),
            mode=0o644,
        )

    def forget(self, cell: Cell) -> None:
        """Remove a cell's result, so that it is measured again."""
        self.path(cell.key).unlink(missing_ok=True)


def data_names(key: Key) -> list[str]:
    """The datasets that a key names."""
    named = key.get("dataset", ())
    return [named] if isinstance(named, str) else [str(name) for name in named]


def plain(value: Any, path: str = "") -> Any:
    """A value as JSON gives it back: tuples are lists, numbers of numpy are Python's.

    Refuses what JSON does not have.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, np.generic):
        return plain(value.item(), path)
    if isinstance(value, int):
        return value
    if isinstance(value, float) and np.isfinite(value):
        return value
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{path}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return {name: plain(item, f"{path}.{name}") for name, item in value.items()}
    raise InputError(
        f"a result has {value!r:.40} ({type(value).__name__}) at {path or 'its root'}, which JSON "
        "does not have: use finite "
        "numbers, words, booleans, null, lists, and objects with words as keys"
    )


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
