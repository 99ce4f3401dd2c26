"""What FedAvg, Exact-Fun and FATS share: clients with one softmax head, rounds, and who takes part in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.errors import InputError
from expunge_experiments.engine import Engine, State, Worker
from expunge_experiments.letter import Array, Letter
from expunge_experiments.pool import Pool, Samples
from expunge_experiments.systems.linear import LinearSystem
from expunge_experiments.systems.softmax import Float32, with_constant, zero_head

_TURNS = 0x6772_01  # what random numbers are for, so that no two uses share a stream
LOCAL, MULTISET, BATCH = 0x6772_02, 0x6772_03, 0x6772_04


def require_counts(settings: Any, **least: int) -> None:
    """Refuse settings of which one of these is not a whole number of at least so much."""
    for name, bound in least.items():
        value = getattr(settings, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < bound:
            raise InputError(f"{name} must be a whole number of at least {bound}, and is {value!r}")


def turns(seed: int, round_: int, clients: int) -> NDArray[np.int64]:
    """All clients in the random order of a round. A function of its arguments: the data have no say in it."""
    return np.random.default_rng([seed, _TURNS, round_]).permutation(clients)


def mean_of(models: Sequence[Array], sizes: Sequence[int]) -> NDArray[np.float64]:
    """The mean of heads, weighted by sizes, summed in float64 in the order given."""
    total = np.zeros(models[0].shape)
    for model, size in zip(models, sizes, strict=True):
        total += size * model.astype(np.float64)
    return total / sum(sizes)


class GradientWorker(Worker):
    """A client that learns by SGD from the samples it retains."""

    def __init__(self, client: int, samples: Samples, *, settings: Any, seed: int, classes: int) -> None:
        super().__init__(client, samples)
        self.settings = settings
        self.seed = seed
        self.classes = classes

    @cached_property
    def rows(self) -> Float32:
        """All its samples' features with their constant column, retained or not."""
        return with_constant(self.samples.features)

    @property
    def places(self) -> NDArray[np.int64]:
        """Where in its samples those are that it retains."""
        return np.flatnonzero(self.retained)

    def answer(self, letter: Letter) -> Letter:
        """How many samples are retained after "add" and "forget"; the head after "train"."""
        if letter.task in ("add", "forget"):
            return Letter("retained", {"count": int(self.retained.sum())})
        if letter.task == "train":
            return Letter("trained", {}, {"weights": self.train(letter)})
        raise InputError(f"client {self.client} of a gradient system does not know the task {letter.task!r:.60}")

    def train(self, letter: Letter) -> Float32:
        """The local head, from the head that the letter has."""
        raise NotImplementedError


class GradientSystem(LinearSystem):
    """The server: knows how many samples each client has, from the clients' own answers, and never sees one."""

    dtype = np.float32

    def __init__(self, pool: Pool, engine: Engine | None, settings: Any, seed: int) -> None:
        super().__init__(pool, engine, settings, seed)
        self._sizes: NDArray[np.int64] = np.zeros(pool.clients, dtype=np.int64)

    def _zero(self) -> Float32:
        return zero_head(self.pool.dim, self.pool.classes)

    def _say(self, task: str, numbers: Array) -> dict[int, Letter]:
        """Let clients "add" or "forget" these samples; their answers. Nobody is asked if there are none."""
        if not len(numbers):
            return {}
        answers = dict(self.tell(task, numbers))
        for client, letter in answers.items():
            self._sizes[client] = letter.settings["count"]
        return answers

    def _locals(self, round_: int, clients: Sequence[int], start: Float32) -> list[Array]:
        """The heads of these clients after training in this round from this start; one exchange."""
        letter = Letter("train", {"round": round_}, {"weights": start})
        return [answer.arrays["weights"] for answer in self.engine.ask([(client, letter) for client in clients])]

    def _state(self) -> State:
        return {"sizes": self._sizes}

    def _restore(self, state: Mapping[str, Array]) -> None:
        self._sizes = np.array(state["sizes"], dtype=np.int64)
