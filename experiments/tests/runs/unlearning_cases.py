"""A small federation with settings of its own, for the unlearning experiments: real systems, real
files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from expunge_experiments.datasets.catalogue import Library
from expunge_experiments.runs.base import Done, Experiment, Results

NAME = "tiny"
GRADIENT = {"rounds": 4, "clients_per_round": 2, "rate": 0.3}
CHOSEN = {
    "central": {"gamma": 1.0},
    "fedavg": GRADIENT,
    "fats": {"rounds": 4, "clients_per_round": 2, "samples": 8, "steps": 1, "rate": 0.3},
    "exactfun": GRADIENT,
    "sisa": {"shards": 2, "slices": 2, "rate": 0.1},
    "fedcio": {**GRADIENT, "clusters": 2},
}


def library(
    folder: Path, monkeypatch: Any, *, size: int = 120, dim: int = 5, classes: int = 3
) -> Library:
    """Features around one centre for each class, in a file; and settings where the sweep would
    leave them.
    """
    draw = np.random.default_rng(7)
    labels = np.arange(size + 60) % classes
    features = (
        draw.normal(size=(classes, dim))[labels] * 2 + draw.normal(size=(len(labels), dim))
    ).astype(np.float32)
    path = folder / f"{NAME}.npz"
    arrays = {
        "train_features": features[:size],
        "train_labels": labels[:size],
        "test_features": features[size:],
        "test_labels": labels[size:],
    }
    np.savez(path, allow_pickle=False, **arrays)
    chosen = {
        NAME: {
            name: {"settings": one, "accuracy": 0.0, "points": []} for name, one in CHOSEN.items()
        }
    }
    (folder / "sweep.json").write_text(json.dumps({"format": 1, "chosen": chosen}))
    monkeypatch.setenv("EXPUNGE_SWEEP", str(folder / "sweep.json"))
    return Library(folder, own={NAME: path})


def measured(experiment: Experiment[Any], settings: Any, data: Library) -> Results:
    """All cells in process, their results as a file would hold them."""
    cells = [cell for cell in experiment.cells(settings) if cell.engine == "process"]
    return Results(Done(cell.key, as_file(cell.run(data, lambda *_: None))) for cell in cells)


def as_file(result: Mapping[str, Any]) -> Any:
    """A result as JSON gives it back."""
    return json.loads(json.dumps(result, allow_nan=False))
