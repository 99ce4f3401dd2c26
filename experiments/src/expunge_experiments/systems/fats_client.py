"""A client of FATS: draws batches, takes steps, and keeps what resuming needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from expunge.errors import InputError
from expunge_experiments.engine import State
from expunge_experiments.letter import Array, Letter
from expunge_experiments.systems.gradient import BATCH, GradientWorker
from expunge_experiments.systems.softmax import Float32, follow, with_constant


@dataclass(frozen=True)
class _Step:
    """A step that was taken: in which generation, on which samples (by their places), and from which head.

    A round's first step starts from the head that the server keeps, and has none of its own.
    """

    generation: int
    batch: NDArray[np.int64]
    start: Float32 | None


class FatsWorker(GradientWorker):
    """Keeps its steps by round, copy (it may be drawn several times in one round) and step in the round.

    "forget" answers with the first round and step whose batch had one of the samples. "train" and "drop" say from where on
    steps of older generations are void: they are dropped, with all that was learnt from deleted samples.
    """

    def __init__(self, *arguments: object, **named: object) -> None:
        super().__init__(*arguments, **named)  # type: ignore[arg-type]  # passed on as they are
        self._steps: dict[tuple[int, int, int], _Step] = {}

    @cached_property
    def rows(self) -> Float32:
        """All its samples' features, centred if the settings say so, with their constant column."""
        features = self.samples.features
        if self.settings.centred:
            features = features - features.mean(axis=1, keepdims=True, dtype=np.float64).astype(np.float32)
        return with_constant(features)

    def answer(self, letter: Letter) -> Letter:
        """As every gradient client's, with what is particular to FATS."""
        if letter.task == "drop":
            self._drop(letter)
            return Letter("dropped")
        if letter.task == "forget":
            return Letter("retained", {"count": int(self.retained.sum()), "first": self._first(letter.arrays["numbers"])})
        return super().answer(letter)

    def train(self, letter: Letter) -> Float32:
        """The local head at the end of the round, from the step that the letter says."""
        round_, copy, first = (int(letter.settings[name]) for name in ("round", "copy", "step"))
        generation = int(letter.settings["generation"])
        start: Array | None = letter.arrays.get("weights")
        if start is None:
            kept = self._steps.get((round_, copy, first))
            if kept is None or kept.start is None:
                raise InputError(f"client {self.client} has kept no head at step {first} of round {round_}: load its state")
            start = kept.start
        self._drop(letter)
        places = self.places
        weights = np.array(start, dtype=np.float32)
        for step in range(first, self.settings.steps):
            draw = np.random.default_rng([self.seed, BATCH, generation, round_, copy, step])
            size = min(self.settings.samples, len(places))
            batch = places[np.sort(draw.choice(len(places), size, replace=False, shuffle=False))]
            self._steps[round_, copy, step] = _Step(generation, batch, weights if step else None)
            weights = follow(weights, self.rows, self.samples.labels, (batch,), self.settings.rate)
        return weights

    def _first(self, numbers: Array) -> list[int] | None:
        """The first round and step whose batch had one of these samples; None if there is none."""
        gone = np.zeros(len(self.retained), dtype=bool)
        gone[np.searchsorted(self.samples.numbers, numbers)] = True
        hits = [(round_, step) for (round_, _, step), kept in self._steps.items() if gone[kept.batch].any()]
        return list(min(hits)) if hits else None

    def _drop(self, letter: Letter) -> None:
        """Drop void steps, but for those of a round's other copies: these resume from them, each at a letter of its own."""
        first, generation = tuple(letter.settings["first"]), letter.settings["generation"]
        resumed = (letter.settings["round"], letter.settings["copy"]) if letter.settings.get("step") else None
        void = [
            at
            for at, kept in self._steps.items()
            if (at[0], at[2]) >= first
            and kept.generation < generation
            and (resumed is None or at[0] != resumed[0] or at[1] == resumed[1])
        ]
        for at in void:
            del self._steps[at]

    def state(self) -> State:
        """What is retained, and the steps in the order of rounds: a table, batches one after another, heads."""
        ordered = sorted(self._steps.items())
        table = [(*at, kept.generation, len(kept.batch)) for at, kept in ordered]
        starts = [kept.start for _, kept in ordered if kept.start is not None]
        shape = (0, self.samples.features.shape[1] + 1, self.classes)
        return super().state() | {
            "steps": np.array(table, dtype=np.int64).reshape(-1, 5),
            "batches": np.concatenate([np.zeros(0, dtype=np.int64), *(kept.batch for _, kept in ordered)]),
            "starts": np.stack(starts) if starts else np.zeros(shape, dtype=np.float32),
        }

    def restore(self, state: Mapping[str, Array]) -> None:
        """Go on from a state."""
        super().restore(state)
        self._steps = {}
        end, starts = 0, iter(np.array(state["starts"]))
        for round_, copy, step, generation, size in state["steps"].tolist():
            batch = np.array(state["batches"][end : end + size], dtype=np.int64)
            self._steps[round_, copy, step] = _Step(generation, batch, next(starts) if step else None)
            end += size
