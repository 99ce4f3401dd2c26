"""Features to measure on: the real ones where they are, synthetic ones of the same shape
elsewhere.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FILE = "cifar10_efficientnet_lite0.npz"


@dataclass(frozen=True)
class Data:
    """Float32 features (50,000 x 1,280), labels 0 to 9, and where they come from."""

    features: NDArray[np.float32]
    labels: NDArray[np.int64]
    source: str
    real: bool


def load() -> Data:
    """CIFAR-10 features by EfficientNet-Lite0 if EXPUNGE_DATA names a folder that has them."""
    path = Path(os.environ.get("EXPUNGE_DATA") or ".") / FILE
    if path.exists():
        with np.load(path) as content:
            arrays: dict[str, Any] = {
                name: content[name] for name in ("train_features", "train_labels", "scale")
            }
        features = arrays["train_features"].astype(np.float32) * arrays["scale"].astype(np.float32)
        return Data(
            features,
            arrays["train_labels"].astype(np.int64),
            "CIFAR-10 features (EfficientNet-Lite0)",
            real=True,
        )
    draw = np.random.default_rng(0)
    features = np.maximum(draw.standard_normal((50_000, 1280), dtype=np.float32), np.float32(-0.3))
    return Data(
        features, draw.integers(0, 10, 50_000), "synthetic features of the same shape", real=False
    )
