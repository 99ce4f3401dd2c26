"""FedAvg, retrained from scratch at every change: the reference among the gradient systems."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from expunge_experiments.engine import State
from expunge_experiments.message import Array, ArrayMessage
from expunge_experiments.systems import gradient
from expunge_experiments.systems.linear import require_positive


@dataclass(frozen=True)
class FedAvgSettings:
    """Rounds, clients in each, and each one's local SGD: passes, batch size (0: all samples in one)
    and learning rate.
    """

    rounds: int = 120
    clients_per_round: int = 20
    epochs: int = 1
    batch: int = 64
    rate: float = 0.05

    def __post_init__(self) -> None:
        gradient.require_counts(self, rounds=1, clients_per_round=1, epochs=1, batch=0)
        require_positive(self, "rate")


class FedAvgWorker(gradient.GradientWorker):
    """Local SGD on all retained samples. Its random state is made of seed, round and client."""

    def train(self, message: ArrayMessage) -> gradient.Float32:
        """The head after the local passes."""
        positions, chosen = self.places, self.settings
        draw = np.random.default_rng(
            [self.seed, gradient.LOCAL, message.settings["round"], self.client]
        )
        whole = chosen.batch == 0 or chosen.batch >= len(positions)
        cuts = gradient.cut(
            len(positions), epochs=chosen.epochs, batch=0 if whole else chosen.batch, draw=draw
        )
        batches: Iterator[Array] = (positions[cut] for cut in cuts)
        return gradient.follow(
            message.arrays["weights"], self.rows, self.samples.labels, batches, chosen.rate
        )


class FedAvg(gradient.GradientSystem):
    """Rounds of local SGD and a mean weighted by numbers of samples; any change resets head and
    random state and reruns all.

    In each round all clients are put in a random order (of seed and round), and the first
    `clients_per_round` of them that have samples take part: a sample without replacement of the
    clients that have some. Law: the head is a function of the retained samples, the partition and
    the seed, bit for bit on one machine. Without samples it is zero.
    """

    name = "fedavg"
    title = "FedAvg retrain"

    def _train(self, numbers: Array) -> None:
        self._say("add", numbers)
        self._rerun()

    def _delete(self, numbers: Array) -> None:
        self._change("forget", numbers)

    def _add(self, numbers: Array) -> None:
        self._change("add", numbers)

    def _change(self, task: str, numbers: Array) -> None:
        if self._say(task, numbers):
            self.recomputed += self._rerun()

    def _rerun(self) -> int:
        """Every round from the zero head; how many there were."""
        weights = self._zero()
        rounds = self.settings.rounds if self._sizes.any() else 0
        for round_ in range(rounds):
            order = gradient.turns(self.seed, round_, self.pool.clients)
            clients = sorted(
                order[self._sizes[order] > 0][: self.settings.clients_per_round].tolist()
            )
            models = self._locals(round_, clients, weights)
            weights = gradient.mean_of(models, self._sizes[clients].tolist()).astype(np.float32)
        self._weights = weights
        return rounds

    def _state(self) -> State:
        return super()._state() | {"weights": self._weights}

    def _restore(self, state: Mapping[str, Array]) -> None:
        super()._restore(state)
        self._weights = np.array(state["weights"])
