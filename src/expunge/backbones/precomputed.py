"""PrecomputedBackbone: features that were computed elsewhere."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from expunge.backbones.base import Backbone, DType, named
from expunge.backbones.description import written
from expunge.errors import BackboneError


class PrecomputedBackbone(Backbone):
    """A sample is a feature already: a row of `dim` numbers. The fingerprint is the text that the federation agreed on.

    With dtype="float64", the default, every float is taken as it is; "float32" rounds to the nearest.
    """

    kind: ClassVar[str] = "precomputed"

    def __init__(self, fingerprint: str, *, dim: int, dtype: DType = "float64") -> None:
        super().__init__(fingerprint=fingerprint, dim=dim, dtype=dtype)

    @property
    def text(self) -> str:
        """`precomputed:FINGERPRINT?dim=N`."""
        return written(self.kind, self.fingerprint, {"dim": str(self.dim), "dtype": self.dtype.name}, {"dtype": "float64"})

    def _run(self, samples: list[Any], first: int) -> NDArray[Any]:
        rows = []
        for position, sample in enumerate(samples, first):
            row = np.asarray(sample)
            if row.shape != (self.dim,):
                raise BackboneError(
                    f"{named(position, sample)} has shape {row.shape}, not {(self.dim,)}: give a row of features for each sample"
                )
            rows.append(row)
        return np.stack(rows)

    def _compute(self, batch: list[object], first: int) -> Any:
        return self._checked(self._run(batch, first), batch, first)  # rows do not meet, so a whole batch changes nothing
