"""Samples cut into shards, in every form that shards have."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from expunge import Spec, Statistics

SPEC = Spec(dim=5, labels=("cat", "dog", "eel"))
FORMS = ("parquet", "npz", "packed", "npy")


def samples(count: int, seed: int = 0) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, SPEC.dim)).astype(np.float32), np.array(SPEC.labels)[
        rng.integers(3, size=count)
    ]


def write(path: Path, features: Any, labels: Any, form: str = "parquet", group: int = 7) -> Path:
    """One shard; `path` has no suffix. Returns what to name it by."""
    if form == "parquet":
        table = pa.table(
            {
                "id": np.arange(len(features)),
                "feature": list(np.asarray(features)),
                "label": list(labels),
            }
        )
        if not len(features):
            table = table.cast(
                pa.schema(
                    {"id": pa.int64(), "feature": pa.list_(pa.float32()), "label": pa.string()}
                )
            )
        pq.write_table(table, path.with_suffix(".parquet"), row_group_size=group)
        return path.with_suffix(".parquet")
    if form == "npy":
        np.save(path.with_name(f"{path.name}-labels.npy"), labels)
        np.save(path.with_name(f"{path.name}-features.npy"), features)
        return path.with_name(f"{path.name}-features.npy")
    (np.savez if form == "npz" else np.savez_compressed)(
        path.with_suffix(".npz"), features=features, labels=labels
    )
    return path.with_suffix(".npz")


def written(
    folder: Path, features: Any, labels: Any, cuts: Sequence[int], forms: Sequence[str]
) -> list[Path]:
    """Samples cut into shards before these rows, each in the next of these forms."""
    bounds = [0, *sorted(cuts), len(features)]
    return [
        write(
            folder / f"part-{place}",
            features[start:end],
            labels[start:end],
            forms[place % len(forms)],
        )
        for place, (start, end) in enumerate(pairwise(bounds))
    ]


def whole(features: Any, labels: Any, spec: Spec = SPEC) -> Statistics:
    return Statistics.of(spec, features, labels)
