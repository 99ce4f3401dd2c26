"""Scores and labels that weights give: what every kind of head predicts by, in ordinary float64 arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.rows import finite_features
from expunge.spec import Spec

Float = NDArray[np.float64]


def scores_of(spec: Spec, weights: Float, features: Any) -> Float:
    """features @ weights plus the intercept, shape (n, columns)."""
    array = finite_features(spec, features).astype(np.float64, copy=False)
    scores: Float = array @ weights[: spec.dim]
    return scores + weights[-1] if spec.intercept else scores


def predictions_of(spec: Spec, weights: Float, features: Any) -> NDArray[Any]:
    """For classification the label of the largest score (the first of equals), shape (n,); for regression the scores."""
    scores = scores_of(spec, weights, features)
    if spec.labels is None:
        return scores
    names: NDArray[Any] = np.asarray(spec.labels)
    return np.asarray(names[scores.argmax(axis=1)])
