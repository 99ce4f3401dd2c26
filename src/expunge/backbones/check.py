"""A check that any backbone can be put through, ours or a user's own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from expunge import canonical
from expunge.backbones.base import Backbone, Features
from expunge.errors import BackboneError


def check_backbone(backbone: Backbone, samples: Sequence[object]) -> None:
    """Raise BackboneError unless the backbone keeps its laws on these samples; at least three different ones are best.

    Computes their features several times: again, backwards, in batches of other sizes. Passing is no proof for other samples.
    """
    given = list(samples)
    if not given:
        raise BackboneError("check_backbone needs samples to try")
    fingerprint = backbone.fingerprint
    reported: list[int] = []
    first = backbone.features(given, batch_size=2, progress=reported.append)
    steps = [*range(2, len(given), 2), len(given)]
    _require(reported == steps, f"progress was told {reported}, not {steps}")
    _require(first.shape == (len(given), backbone.dim), f"the features have shape {first.shape}")
    _require(first.dtype == backbone.dtype, f"the features have dtype {first.dtype}, not {backbone.dtype}")
    _require(bool(np.isfinite(first).all()), "the features are not finite")
    _require(_same(first, backbone.features(given, batch_size=2)), "the same call gave other features: it is not deterministic")
    if backbone.independent:
        backwards = backbone.features(given[::-1], batch_size=len(given))[::-1]
        _require(_same(first, backwards), "features depend on order or companions, though the backbone calls itself independent")
        alone = np.concatenate([backbone.features([sample], batch_size=1) for sample in given])
        _require(_same(first, alone), "features depend on companions, though the backbone calls itself independent")
    empty = backbone.features([])
    _require(empty.shape == (0, backbone.dim) and empty.dtype == backbone.dtype, f"no samples gave the shape {empty.shape}")
    canonical.encode(backbone.describe())
    _require(backbone.describe()["fingerprint"] == backbone.fingerprint == fingerprint, "the fingerprint changed with use")


def _same(left: Features, right: Features) -> bool:
    return left.tobytes() == right.tobytes()


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise BackboneError(f"this backbone breaks a law: {problem}")
