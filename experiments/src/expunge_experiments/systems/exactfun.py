"""Exact-Fun: federated learning on a quantized head, which a deletion leaves alone when it does not
move the quantized head.

q(W) = alpha round(W / alpha). The server keeps, for every round, who took part, their local heads
and the quantized aggregate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from expunge.errors import InputError
from expunge_experiments.engine import MessageEngine, State
from expunge_experiments.message import Array, ArrayMessage
from expunge_experiments.pool import Pool
from expunge_experiments.systems import gradient
from expunge_experiments.systems.fedavg import FedAvgSettings
from expunge_experiments.systems.linear import require_positive


@dataclass(frozen=True)
class ExactFunSettings(FedAvgSettings):
    """The quantization step, and the rest as for FedAvg."""

    rate: float = 3.0
    alpha: float = 0.08

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "alpha")


class ExactFunWorker(gradient.GradientWorker):
    """Local SGD on all retained samples, with the random state of seed, round and client.

    Batches are drawn for all its places, retained or not, and what is not retained is left out of
    them: so a deletion changes the batches that it is in, and no other. (Were orders drawn for what
    is retained, every deletion would change every batch, and none could ever be skipped.)
    """

    def train(self, message: ArrayMessage) -> gradient.Float32:
        """The head after the local passes."""
        chosen, retained = self.settings, self.retained
        if "without" in message.arrays:  # a question: nothing is forgotten
            retained = retained.copy()
            retained[np.searchsorted(self.samples.numbers, message.arrays["without"])] = False
        draw = np.random.default_rng(
            [self.seed, gradient.LOCAL, message.settings["round"], self.client]
        )
        cuts = gradient.cut(len(retained), epochs=chosen.epochs, batch=chosen.batch, draw=draw)
        batches = (cut[retained[cut]] for cut in cuts)
        return gradient.follow(
            message.arrays["weights"], self.rows, self.samples.labels, batches, chosen.rate
        )


class ExactFun(gradient.GradientSystem):
    """Rounds as in FedAvg, each starting from the quantized aggregate of the one before; the last
    one's is the head.

    Who takes part in a round depends on seed and round alone: the first `clients_per_round` of a
    random order of all clients, whether they have samples or not. One that has none is not asked,
    and counts for nothing in the mean; a round without any samples leaves the head as it was.

    Law: after any deletions, all that is kept but counts equals, bit for bit, that of training on
    the retained samples with the same seed. A deletion costs each client that it touches one local
    training for each round it took part in, even if it is skipped: `repeated` counts these.
    `recomputed` counts rounds from the first whose quantized aggregate changed, to the end.
    """

    name = "exactfun"
    title = "Exact-Fun"
    supports = frozenset({"delete", "delete_client"})

    def __init__(
        self, pool: Pool, engine: MessageEngine | None, settings: ExactFunSettings, seed: int
    ) -> None:
        super().__init__(pool, engine, settings, seed)
        each = min(settings.clients_per_round, pool.clients)
        shape = self._weights.shape
        drawn = [
            np.sort(gradient.turns(seed, round_, pool.clients)[:each])
            for round_ in range(settings.rounds)
        ]
        self.participants: NDArray[np.int64] = np.array(drawn)
        self.models: NDArray[np.float32] = np.zeros(
            (settings.rounds, each, *shape), dtype=np.float32
        )  # by round, of its participants
        self._levels: NDArray[np.int32] = np.zeros(
            (settings.rounds + 1, *shape), dtype=np.int32
        )  # aggregates over alpha
        self.repeated = 0

    @property
    def weights(self) -> Array:
        """The quantized aggregate of the last round."""
        return self._start(self.settings.rounds)

    def _start(self, round_: int) -> gradient.Float32:
        """Where a round starts."""
        return np.asarray(self._levels[round_] * self.settings.alpha, dtype=np.float32)

    def _train(self, numbers: Array) -> None:
        self._say("add", numbers)
        self._rerun(0)

    def _delete(self, numbers: Array) -> None:
        touched = list(self._say("forget", numbers))
        if not touched:
            return
        for round_ in self._rounds_of(touched):
            positions = np.flatnonzero(np.isin(self.participants[round_], touched)).tolist()
            self.repeated += self._learn(round_, positions)
            levels = self._aggregated(self.models[round_], round_, self._sizes)
            if not np.array_equal(levels, self._levels[round_ + 1]):
                self._levels[round_ + 1] = levels
                self._rerun(round_ + 1)
                self.recomputed += self.settings.rounds - round_
                return
        self.skipped += 1

    def first_change(self, numbers: Array) -> int | None:
        """The first round whose quantized aggregate the deletion of these samples would change;
        None: it would be skipped.

        Clients repeat local trainings as they would for the deletion; nothing is deleted.
        """
        chosen = self._checked(numbers)
        if not self.retained[chosen].all():
            raise InputError(
                f"{self.title}: some of these samples are not retained: ask about those that are"
            )
        gone, sizes = self.by_client(chosen), self._sizes.copy()
        for client, mine in gone.items():
            sizes[client] -= len(mine)
        for round_ in self._rounds_of(list(gone)):
            models, start = self.models[round_].copy(), self._start(round_)
            learners = {
                position: int(client)
                for position, client in enumerate(self.participants[round_])
                if int(client) in gone
            }
            learners = {position: client for position, client in learners.items() if sizes[client]}
            messages = [
                (
                    client,
                    ArrayMessage(
                        "train", {"round": round_}, {"weights": start, "without": gone[client]}
                    ),
                )
                for client in learners.values()
            ]
            for position, answer in zip(
                learners, self.engine.ask(messages) if messages else [], strict=True
            ):
                models[position] = answer.arrays["weights"]
            if not np.array_equal(
                self._aggregated(models, round_, sizes), self._levels[round_ + 1]
            ):
                return round_
        return None

    def _rounds_of(self, clients: list[int]) -> list[int]:
        """The rounds in which one of these took part, ascending."""
        rounds: list[int] = np.flatnonzero(np.isin(self.participants, clients).any(axis=1)).tolist()
        return rounds

    def _rerun(self, first: int) -> None:
        """Every round from this one on, with all that take part."""
        for round_ in range(first, self.settings.rounds):
            self._learn(round_, range(self.participants.shape[1]))
            self._levels[round_ + 1] = self._aggregated(self.models[round_], round_, self._sizes)

    def _learn(self, round_: int, positions: list[int] | range) -> int:
        """New local heads of these of a round's participants (of the empty ones: zero); how many
        were trained.
        """
        clients = {position: int(self.participants[round_, position]) for position in positions}
        learners = {position: client for position, client in clients.items() if self._sizes[client]}
        self.models[round_, list(clients)] = 0.0
        if learners:
            for position, model in zip(
                learners,
                self._locals(round_, list(learners.values()), self._start(round_)),
                strict=True,
            ):
                self.models[round_, position] = model
        return len(learners)

    def _aggregated(
        self, models: NDArray[np.float32], round_: int, sizes: NDArray[np.int64]
    ) -> NDArray[np.int32]:
        """The quantized mean of a round's local heads, in steps of alpha."""
        shares = sizes[self.participants[round_]]
        if not shares.any():
            return np.array(self._levels[round_])
        held = np.flatnonzero(shares)
        mean = gradient.mean_of(list(models[held]), shares[held].tolist())
        return np.asarray(np.rint(mean / self.settings.alpha), dtype=np.int32)

    def _state(self) -> State:
        state: State = {
            "participants": self.participants,
            "models": self.models,
            "levels": self._levels,
        }
        return super()._state() | state | {"repeated": np.array([self.repeated])}

    def _restore(self, state: Mapping[str, Array]) -> None:
        super()._restore(state)
        self.participants, self.models, self._levels = (
            np.array(state[name]) for name in ("participants", "models", "levels")
        )
        self.repeated = int(state["repeated"][0])
