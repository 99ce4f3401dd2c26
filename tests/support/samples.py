"""Samples as their clients know them, and what they are in the protocol: rows, statistics,
commitments.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge import Spec, Statistics
from expunge.ridge.encoding import Rows, integer_rows
from expunge.solvers.float64 import FloatWoodburySolver
from expunge.wire.commitment import commitments
from expunge.wire.messages import FactorPart, GramPart, RowsPart

SPEC = Spec(dim=4, labels=("cat", "dog", "eel"), gamma=0.5)


@dataclass(frozen=True, eq=False)
class Sample:
    """One sample as its client knows it. `target` is a class index, or a row of real targets."""

    features: NDArray[Any]
    target: Any
    salt: bytes = field(default_factory=lambda: secrets.token_bytes(32))


def draw(rng: np.random.Generator, count: int, spec: Spec = SPEC) -> list[Sample]:
    """Samples that nobody has seen."""
    features = rng.normal(size=(count, spec.dim)).astype(np.float32)
    if spec.is_classification:
        return [Sample(row, int(rng.integers(spec.columns))) for row in features]
    return [Sample(row, rng.normal(size=spec.columns)) for row in features]


def _arrays(spec: Spec, samples: Sequence[Sample]) -> tuple[NDArray[Any], NDArray[Any]]:
    features = np.array([sample.features for sample in samples], dtype=np.float64).reshape(
        len(samples), spec.dim
    )
    if all(np.ndim(sample.target) == 0 for sample in samples) and spec.is_classification:
        return features, np.array([sample.target for sample in samples], dtype=np.int64)
    whole = [
        np.eye(spec.columns)[one.target] if np.ndim(one.target) == 0 else one.target
        for one in samples
    ]
    padded = [
        np.pad(np.asarray(row, dtype=np.float64), (0, spec.columns - len(row))) for row in whole
    ]
    return features, np.array(padded).reshape(len(samples), spec.columns)


def rows_of(spec: Spec, samples: Sequence[Sample]) -> Rows:
    return integer_rows(spec, *_arrays(spec, samples))


def statistics_of(spec: Spec, samples: Sequence[Sample]) -> Statistics:
    if not samples:
        return Statistics.zero(spec)
    return Statistics.of(spec, *_arrays(spec, samples), lost_columns="accept")


def part_of(
    spec: Spec, kind: str, samples: Sequence[Sample]
) -> RowsPart | GramPart | FactorPart | None:
    if not samples:
        return None
    if kind == "gram":
        return GramPart(statistics_of(spec, samples))
    if kind == "factor":
        statistics = statistics_of(spec, samples)
        factor = FloatWoodburySolver(spec).message(*_arrays(spec, samples))
        return FactorPart(factor, len(samples), statistics.class_counts)
    return RowsPart(rows_of(spec, samples), tuple(sample.salt for sample in samples))


def commitments_of(spec: Spec, samples: Sequence[Sample]) -> list[bytes]:
    return (
        commitments(spec, [sample.salt for sample in samples], rows_of(spec, samples))
        if samples
        else []
    )
