"""Samples for the estimators, and what two equal estimators have in common."""

from __future__ import annotations

from typing import Any

import numpy as np

SOLVERS = ("cholesky", "woodbury")


def classification(
    samples: int = 60, dim: int = 4, classes: int = 3, seed: int = 0
) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    labels = np.arange(samples) % classes
    return random.normal(size=(samples, dim)) + labels[:, None], labels


def regression(
    samples: int = 40, dim: int = 4, outputs: int | None = None, seed: int = 0
) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    features = random.normal(size=(samples, dim))
    weights = random.normal(size=dim if outputs is None else (dim, outputs))
    return features, features @ weights + 0.5 + random.normal(
        size=(samples, *weights.shape[1:])
    ) / 10


def published(model: Any) -> tuple[bytes, ...]:
    """Everything that two equal estimators have in common, as bytes."""
    return (
        model.statistics_.to_bytes(),
        model.head_.digest.encode(),
        np.ascontiguousarray(model.coef_).tobytes(),
        np.asarray(model.intercept_).tobytes(),
    )


def state(model: Any) -> tuple[Any, ...]:
    attributes = {
        key: value for key, value in vars(model).items() if key not in ("_solver", "classes_")
    }
    return (
        published(model),
        model.spec_,
        attributes,
        getattr(model, "classes_", np.zeros(0)).tolist(),
    )
