"""FATS: federated learning whose every draw is kept, so that a deletion resumes at the first draw
that it concerns.

Clients draw batches, take steps, and keep their batches and their local heads in the middle of
rounds; the server keeps who was drawn, and the head at the start of each round. That is all that
resuming needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from expunge.errors import InputError
from expunge_experiments.engine import MessageEngine, State
from expunge_experiments.message import Array, ArrayMessage
from expunge_experiments.pool import Pool
from expunge_experiments.systems.gradient import (
    BATCH,
    MULTISET,
    Float32,
    GradientSystem,
    GradientWorker,
    follow,
    mean_of,
    require_counts,
    with_constant,
)
from expunge_experiments.systems.linear import require_positive


@dataclass(frozen=True)
class _Step:
    """A step that was taken: in which generation, on which samples (by their places), and from
    which head.

    A round's first step starts from the head that the server keeps, and has none of its own.
    """

    generation: int
    batch: NDArray[np.int64]
    start: Float32 | None


class FatsWorker(GradientWorker):
    """Keeps its steps by round, copy (it may be drawn several times in one round) and step in the
    round.

    "forget" answers with the first round and step whose batch had one of the samples. "train" and
    "drop" say from where on steps of older generations are void: they are dropped, with all that
    was learnt from deleted samples.
    """

    def __init__(self, *arguments: object, **named: object) -> None:
        super().__init__(*arguments, **named)  # type: ignore[arg-type]  # passed on as they are
        # What is kept of each step, by round, copy and step
        self.steps: dict[tuple[int, int, int], _Step] = {}

    @cached_property
    def rows(self) -> Float32:
        """All its samples' features, centred if the settings say so, with their constant column."""
        features = self.samples.features
        if self.settings.centred:
            features = features - features.mean(axis=1, keepdims=True, dtype=np.float64).astype(
                np.float32
            )
        return with_constant(features)

    def answer(self, message: ArrayMessage) -> ArrayMessage:
        """As every gradient client's, with what is particular to FATS."""
        if message.task == "drop":
            self._drop(message)
            return ArrayMessage("dropped")
        if message.task == "forget":
            return ArrayMessage(
                "retained",
                {
                    "count": int(self.retained.sum()),
                    "first": self._first(message.arrays["numbers"]),
                },
            )
        return super().answer(message)

    def train(self, message: ArrayMessage) -> Float32:
        """The local head at the end of the round, from the step that the message says."""
        round_, copy, first = (int(message.settings[name]) for name in ("round", "copy", "step"))
        generation = int(message.settings["generation"])
        start: Array | None = message.arrays.get("weights")
        if start is None:
            record = self.steps.get((round_, copy, first))
            if record is None or record.start is None:
                raise InputError(
                    f"client {self.client} has kept no head at step {first} of round {round_}: "
                    "load its state"
                )
            start = record.start
        self._drop(message)
        positions = self.places
        weights = np.array(start, dtype=np.float32)
        for step in range(first, self.settings.steps):
            draw = np.random.default_rng([self.seed, BATCH, generation, round_, copy, step])
            size = min(self.settings.samples, len(positions))
            batch = positions[
                np.sort(draw.choice(len(positions), size, replace=False, shuffle=False))
            ]
            self.steps[round_, copy, step] = _Step(generation, batch, weights if step else None)
            weights = follow(weights, self.rows, self.samples.labels, (batch,), self.settings.rate)
        return weights

    def _first(self, numbers: Array) -> list[int] | None:
        """The first round and step whose batch had one of these samples; None if there is none."""
        gone = np.zeros(len(self.retained), dtype=bool)
        gone[np.searchsorted(self.samples.numbers, numbers)] = True
        hits = [
            (round_, step)
            for (round_, _, step), record in self.steps.items()
            if gone[record.batch].any()
        ]
        return list(min(hits)) if hits else None

    def _drop(self, message: ArrayMessage) -> None:
        """Drop void steps, but for those of a round's other copies: these resume from them, each at
        a message of its own.
        """
        first, generation = tuple(message.settings["first"]), message.settings["generation"]
        resumed = (
            (message.settings["round"], message.settings["copy"])
            if message.settings.get("step")
            else None
        )
        void = [
            at
            for at, record in self.steps.items()
            if (at[0], at[2]) >= first
            and record.generation < generation
            and (resumed is None or at[0] != resumed[0] or at[1] == resumed[1])
        ]
        for at in void:
            del self.steps[at]

    def state(self) -> State:
        """What is retained, and the steps in the order of rounds: a table, batches one after
        another, heads.
        """
        ordered = sorted(self.steps.items())
        table = [(*at, record.generation, len(record.batch)) for at, record in ordered]
        starts = [record.start for _, record in ordered if record.start is not None]
        shape = (0, self.samples.features.shape[1] + 1, self.classes)
        return super().state() | {
            "steps": np.array(table, dtype=np.int64).reshape(-1, 5),
            "batches": np.concatenate(
                [np.zeros(0, dtype=np.int64), *(record.batch for _, record in ordered)]
            ),
            "starts": np.stack(starts) if starts else np.zeros(shape, dtype=np.float32),
        }

    def restore(self, state: Mapping[str, Array]) -> None:
        """Go on from a state."""
        super().restore(state)
        self.steps = {}
        end, starts = 0, iter(np.array(state["starts"]))
        for round_, copy, step, generation, size in state["steps"].tolist():
            batch = np.array(state["batches"][end : end + size], dtype=np.int64)
            self.steps[round_, copy, step] = _Step(
                generation, batch, next(starts) if step else None
            )
            end += size


# -- the server ------------------------------------------------------------------------------------


_NOBODY = -1


@dataclass(frozen=True)
class FatsSettings:
    """R rounds of K clients, E local steps in each, on b samples a step (all that a client has, if
    these are fewer).

    `centred`: clients learn from each sample's features less their mean over the columns. That is a
    function of the sample alone, and the head is one for features as they are, since its columns
    then sum to zero: what it changes is the path of SGD.
    """

    rounds: int = 60
    clients_per_round: int = 5
    samples: int = 64
    steps: int = 1
    rate: float = 0.3
    centred: bool = True

    def __post_init__(self) -> None:
        require_counts(self, rounds=1, clients_per_round=1, samples=1, steps=1)
        require_positive(self, "rate")


class Fats(GradientSystem):
    """Each round draws K of the clients that have samples, with replacement; the plain mean over
    these K copies is its end.

    Deleting samples resumes at the first step in which one of them was in a batch, from what was
    kept, with fresh draws from what is retained: all copies redraw that step's batches, and the
    round keeps its clients. A client that loses its last sample is deleted: the first round that
    drew it redraws its clients, without it. If no draw is concerned, nothing changes.

    Law: afterwards, everything kept is distributed as after training on the retained samples.
    (Draws before the first one concerned are, given that they are not concerned, distributed as
    draws from what is retained; the rest are such draws.) Fresh draws come from the seed and a
    generation, which is raised at each resumption. FATS has no `add`. `recomputed` counts local
    steps of the federation, of R E in all, each taken by K copies.
    """

    name = "fats"
    title = "FATS"
    supports = frozenset({"delete", "delete_client"})

    def __init__(
        self, pool: Pool, engine: MessageEngine | None, settings: FatsSettings, seed: int
    ) -> None:
        super().__init__(pool, engine, settings, seed)
        self.drawn: NDArray[np.int64] = np.full(
            (settings.rounds, settings.clients_per_round), _NOBODY
        )  # the clients of each round
        self._starts: NDArray[np.float32] = np.zeros(
            (settings.rounds + 1, *self._weights.shape), dtype=np.float32
        )
        self._generation = 0

    @property
    def weights(self) -> Array:
        """The mean over the copies of the last round."""
        return np.asarray(self._starts[-1])

    @property
    def stability(self) -> dict[str, float]:
        """FATS's bounds on total variation: rho_C = K R / M for clients, rho_S = b K R E / (M N)
        for samples; and b.

        M counts clients that have samples, N is their mean number, and b the mean of what they draw
        in a step. From 1 on, a bound says nothing.
        """
        sizes = self._sizes[self._sizes > 0]
        if not len(sizes):
            return {"rho_C": 0.0, "rho_S": 0.0, "b": 0.0}
        chosen = self.settings
        draws = chosen.clients_per_round * chosen.rounds
        batch = float(np.minimum(sizes, chosen.samples).mean())
        return {
            "rho_C": draws / len(sizes),
            "rho_S": batch * draws * chosen.steps / float(sizes.sum()),
            "b": batch,
        }

    def _train(self, numbers: Array) -> None:
        self._say("add", numbers)
        self._resume(0, 0, redraw=True)

    def _delete(self, numbers: Array) -> None:
        answers = self._say("forget", numbers)
        if not answers:
            return
        hits = [
            tuple(answer.settings["first"])
            for answer in answers.values()
            if answer.settings["first"] is not None
        ]
        if not hits:
            self.skipped += 1
            return
        round_, step = min(hits)
        emptied = [client for client in answers if not self._sizes[client]]
        self._generation += 1
        self.recomputed += self._resume(
            round_, step, redraw=bool(np.isin(self.drawn[round_], emptied).any())
        )

    def _resume(self, first: int, step: int, *, redraw: bool) -> int:
        """Learn from this step of this round to the end, after the clients have dropped what they
        kept of it; steps taken.
        """
        before = set(self.drawn[first:].ravel().tolist()) - {_NOBODY}
        alive = np.flatnonzero(self._sizes)
        since = {"generation": self._generation, "first": [first, step]}
        if not len(alive):
            self.drawn[:] = _NOBODY
            self._starts[:] = 0.0
            if before:
                self.engine.ask(
                    [(client, ArrayMessage("drop", since)) for client in sorted(before)]
                )
            return 0
        for round_ in range(first, self.settings.rounds):
            if round_ > first or redraw:
                self.drawn[round_] = self._draw(round_, alive)
            at = step if round_ == first else 0
            arrays = {} if at else {"weights": self._starts[round_]}
            copies = list(enumerate(self.drawn[round_].tolist()))
            messages = [
                (
                    client,
                    ArrayMessage(
                        "train", since | {"round": round_, "copy": copy, "step": at}, arrays
                    ),
                )
                for copy, client in copies
            ]
            if round_ == first:
                others = sorted(before - {client for _, client in copies})
                messages += [(client, ArrayMessage("drop", since)) for client in others]
            answers = self.engine.ask(messages)[: len(copies)]
            models = [answer.arrays["weights"] for answer in answers]
            self._starts[round_ + 1] = mean_of(models, [1] * len(models))
        return int((self.settings.rounds - first) * self.settings.steps - step)

    def _draw(self, round_: int, alive: NDArray[np.int64]) -> NDArray[np.int64]:
        """A round's clients, drawn with replacement from these."""
        draw = np.random.default_rng([self.seed, MULTISET, self._generation, round_])
        return np.asarray(alive[draw.integers(0, len(alive), self.settings.clients_per_round)])

    def _state(self) -> State:
        state: State = {
            "drawn": self.drawn,
            "starts": self._starts,
            "generation": np.array([self._generation]),
        }
        return super()._state() | state

    def _restore(self, state: Mapping[str, Array]) -> None:
        super()._restore(state)
        self.drawn, self._starts = np.array(state["drawn"]), np.array(state["starts"])
        self._generation = int(state["generation"][0])
