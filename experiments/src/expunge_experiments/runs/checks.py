"""Checks that settings of several experiments share: each refuses by name, with what would do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from expunge.errors import InputError
from expunge_experiments.config import require_known
from expunge_experiments.datasets.catalogue import NAMES


def check_datasets(names: Sequence[str]) -> None:
    """Refuse names that are neither of the catalogue nor of a file or folder that is there."""
    if not names:
        raise InputError(f"datasets must name at least one of {', '.join(NAMES)}, or a path")
    for name in names:
        path = Path(name)
        if name in NAMES or path.exists():
            continue
        if path.suffix or len(path.parts) > 1:
            raise InputError(f"there is no file or folder {name}; a dataset is one of {', '.join(NAMES)}, or a path")
        require_known("dataset", name, NAMES)


def check_positive(name: str, values: Sequence[float]) -> None:
    """Refuse an empty list, and numbers that are not positive and finite."""
    if not values or not all(math.isfinite(value) and value > 0 for value in values):
        raise InputError(f"{name} = {list(values)} must be positive numbers, at least one of them")
