"""The real features in the folder that EXPUNGE_DATA names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest


def load(name: str) -> dict[str, Any]:
    """The arrays of a file: features as float32 in their own scale, labels as integers."""
    folder = os.environ.get("EXPUNGE_DATA")
    if not folder or not (Path(folder) / name).exists():
        pytest.fail(
            f"{name} is missing: set EXPUNGE_DATA to the folder that holds the real features (it "
            f"is {folder!r})"
        )
    with np.load(Path(folder) / name) as content:
        arrays = {key: content[key] for key in content.files}
    scale = arrays.get("scale", np.ones(1)).astype(np.float32)
    for part in ("train", "test"):
        arrays[f"{part}_features"] = arrays[f"{part}_features"].astype(np.float32) * scale
        arrays[f"{part}_labels"] = arrays[f"{part}_labels"].astype(np.int64)
    return arrays
