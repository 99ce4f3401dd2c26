"""SISA: sharded, isolated, sliced, aggregated training, centralized as in the original.

Samples are dealt out to shards, and within a shard to slices. A shard's model learns from its first
slice, then from its first two, and so on; a checkpoint is kept after each. Shards vote. A deletion
retrains the shards it touches, each from the checkpoint before its first touched slice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge_experiments.engine import MessageEngine, State
from expunge_experiments.message import Array
from expunge_experiments.pool import Pool
from expunge_experiments.systems.base import System
from expunge_experiments.systems.gradient import (
    descend,
    predicted,
    require_counts,
    with_constant,
    zero_head,
)
from expunge_experiments.systems.linear import require_positive

_DEALING, LEARNING = (
    0x5EA1,
    0x5EA2,
)  # what random numbers are for, so that no two uses share a stream


@dataclass(frozen=True)
class SisaSettings:
    """Shards, slices of each, and for each slice passes of SGD over the samples so far (batch 0:
    all of them in one step).
    """

    shards: int = 5
    slices: int = 5
    epochs: int = 2
    batch: int = 32
    rate: float = 0.01

    def __post_init__(self) -> None:
        require_counts(self, shards=1, slices=1, epochs=1, batch=0)
        require_positive(self, "rate")


class Sisa(System):
    """Shards of softmax heads, each trained by SGD slice upon slice; the majority's label, the
    first of equals.

    Law: shard and slice of a sample depend on its number and the seed alone, and so does the
    randomness of each slice; so after a deletion every checkpoint is, bit for bit, that of training
    on the retained samples with the same seed. A shard without samples does not vote.
    """

    name = "sisa"
    title = "SISA"
    supports = frozenset({"delete", "delete_client"})

    def __init__(
        self, pool: Pool, engine: MessageEngine | None, settings: SisaSettings, seed: int
    ) -> None:
        super().__init__(pool, engine, settings, seed)
        dealt = np.empty(pool.size, dtype=np.int64)
        order = np.random.default_rng([seed, _DEALING]).permutation(pool.size)
        dealt[order] = np.arange(pool.size) % (settings.shards * settings.slices)
        self.shard_of, self.slice_of = np.divmod(dealt, settings.slices)
        blank = zero_head(pool.dim, pool.classes)
        self.checkpoints = np.zeros(
            (settings.shards, settings.slices, *blank.shape), dtype=blank.dtype
        )  # by shard: its head after each slice

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.int64]:
        """The label that most shards predict, the first of equals."""
        votes = np.zeros((len(features), self.pool.classes), dtype=np.int64)
        for shard in np.unique(self.shard_of[self.retained]):
            votes[np.arange(len(features)), predicted(self.checkpoints[shard, -1], features)] += 1
        return np.asarray(votes.argmax(axis=1), dtype=np.int64)

    def _train(self, _: Array) -> None:  # what is retained is all that matters
        for shard in range(self.settings.shards):
            self._learn(shard, 0)

    def _delete(self, numbers: Array) -> None:
        for shard in np.unique(self.shard_of[numbers]):
            first = int(self.slice_of[numbers[self.shard_of[numbers] == shard]].min())
            self._learn(int(shard), first)
            self.recomputed += self.settings.slices - first

    def _learn(self, shard: int, first: int) -> None:
        """Train a shard from this slice on, starting from the checkpoint before it."""
        mine = np.flatnonzero(self.retained & (self.shard_of == shard))
        mine = mine[np.argsort(self.slice_of[mine], kind="stable")]
        features, labels = with_constant(self.pool.features[mine]), self.pool.labels[mine]
        ends = np.searchsorted(self.slice_of[mine], np.arange(self.settings.slices), side="right")
        weights: Any = (
            self.checkpoints[shard, first - 1]
            if first
            else zero_head(self.pool.dim, self.pool.classes)
        )
        for index in range(first, self.settings.slices):
            draw = np.random.default_rng([self.seed, LEARNING, shard, index])
            weights = descend(
                weights,
                features[: ends[index]],
                labels[: ends[index]],
                epochs=self.settings.epochs,
                batch=self.settings.batch,
                rate=self.settings.rate,
                draw=draw,
            )
            self.checkpoints[shard, index] = weights

    def _state(self) -> State:
        return {"checkpoints": self.checkpoints}

    def _restore(self, state: Mapping[str, Array]) -> None:
        self.checkpoints = np.array(state["checkpoints"])
