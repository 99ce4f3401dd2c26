"""Batch: samples as the real numbers that the exact statistics are sums of, in float64 and without any error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.rows import integer_rows
from expunge.spec import Spec

Float = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Batch:
    """Features (n, width), with the constant one if the spec has it, and targets (n, columns), as the grids hold them.

    Law: F'F and F'Y in real arithmetic are the gram and the moment of `Statistics.of(spec, features, labels)`. So bounds about a
    batch are bounds about what the exact head is made of.
    """

    spec: Spec
    features: Float
    targets: Float
    class_counts: NDArray[np.int64]

    @classmethod
    def of(cls, spec: Spec, features: Any, labels: Any) -> Batch:
        """Features and labels as for `Statistics.of`, in one piece; values are put on the spec's grids."""
        rows = integer_rows(spec, features, labels)
        return cls(
            spec,
            np.ldexp(rows.integers, -spec.grid.fraction_bits),
            np.ldexp(rows.targets.integers, -spec.label_grid.fraction_bits),
            rows.targets.class_counts,
        )

    def __len__(self) -> int:
        return len(self.features)
