"""FedCIO: clustered, isolated, one-shot aggregated federated learning.

Clients are put into clusters by their label distributions (k-means). Each cluster trains a head of
its own by rounds of FedAvg and never hears of another; in the end the heads are averaged once. A
deletion retrains the clusters that it touches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from expunge.errors import InputError
from expunge_experiments.engine import MessageEngine, State
from expunge_experiments.message import Array, ArrayMessage
from expunge_experiments.pool import Pool
from expunge_experiments.systems.fedavg import FedAvgSettings, FedAvgWorker
from expunge_experiments.systems.gradient import GradientSystem, mean_of, require_counts, turns


@dataclass(frozen=True)
class FedCioSettings(FedAvgSettings):
    """FedAvg's settings, within each cluster, and the number of clusters.

    `assignment` names each client's cluster; with none, k-means decides when the system is trained.
    """

    clients_per_round: int = 4
    clusters: int = 5
    assignment: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        require_counts(self, clusters=1)
        if any(not -1 <= cluster < self.clusters for cluster in self.assignment):
            raise InputError(
                f"assignment must name clusters 0 to {self.clusters - 1} (or -1: none), not "
                f"{self.assignment!r:.80}"
            )


class FedCioWorker(FedAvgWorker):
    """FedAvg's client, which also tells how many samples of each label it retains: what clusters
    are made of.
    """

    def answer(self, message: ArrayMessage) -> ArrayMessage:
        """As FedAvg's; after a change with the counts by label."""
        answer = super().answer(message)
        if message.task == "train":
            return answer
        counts = np.bincount(self.samples.labels[self.retained], minlength=self.classes)
        return ArrayMessage(answer.task, answer.settings, {"labels": counts})


class FedCio(GradientSystem):
    """One head for each cluster; the head is their mean, weighted by the numbers of their samples.

    Law: after a deletion every cluster's head is, bit for bit, that of training on the retained
    samples with the same seed and the same clusters. (The clusters themselves stay as training
    found them, though a deletion changes label distributions.) With nothing retained, the zero
    head.
    """

    name = "fedcio"
    title = "FedCIO"
    supports = frozenset({"delete", "delete_client"})

    def __init__(
        self, pool: Pool, engine: MessageEngine | None, settings: FedCioSettings, seed: int
    ) -> None:
        super().__init__(pool, engine, settings, seed)
        if len(settings.assignment) not in (0, pool.clients):
            raise InputError(
                f"assignment names clusters of {len(settings.assignment)} clients, and there are "
                f"{pool.clients}"
            )
        self.clusters = np.full(
            pool.clients, -1, dtype=np.int64
        )  # of clients; -1: had no samples when it was trained
        # By cluster
        self.heads = np.zeros((settings.clusters, *self._weights.shape), dtype=np.float32)

    def _train(self, numbers: Array) -> None:
        counts = {
            client: answer.arrays["labels"] for client, answer in self._say("add", numbers).items()
        }
        if self.settings.assignment:
            self.clusters = np.array(self.settings.assignment, dtype=np.int64)
        else:
            self.clusters[list(counts)] = clustered(
                list(counts.values()), self.settings.clusters, self.seed
            )
        self._learn(range(self.settings.clusters))

    def _delete(self, numbers: Array) -> None:
        touched = {int(self.clusters[client]) for client in self._say("forget", numbers)}
        self.recomputed += self._learn(sorted(touched))

    def _learn(self, clusters: Iterable[int]) -> int:
        """Train these clusters from scratch, side by side: a round of all of them is one exchange.

        How many rounds that were.
        """
        members = {cluster: (self.clusters == cluster) & (self._sizes > 0) for cluster in clusters}
        for cluster in members:
            self.heads[cluster] = 0
        alive = [cluster for cluster, mine in members.items() if mine.any()]
        for round_ in range(self.settings.rounds if alive else 0):
            order = turns(self.seed, round_, self.pool.clients)
            drawn = [
                order[members[cluster][order]][: self.settings.clients_per_round]
                for cluster in alive
            ]
            self._round(
                round_,
                {
                    cluster: sorted(mine.tolist())
                    for cluster, mine in zip(alive, drawn, strict=True)
                },
            )
        self._aggregate()
        return int(self.settings.rounds) * len(alive)

    def _round(self, round_: int, drawn: Mapping[int, Sequence[int]]) -> None:
        """One round of FedAvg in each of these clusters, with these clients."""
        messages = [
            (client, ArrayMessage("train", {"round": round_}, {"weights": self.heads[cluster]}))
            for cluster, clients in drawn.items()
            for client in clients
        ]
        answers = iter(self.engine.ask(messages))
        for cluster, clients in drawn.items():
            models = [next(answers).arrays["weights"] for _ in clients]
            self.heads[cluster] = mean_of(models, self._sizes[list(clients)].tolist())

    def _aggregate(self) -> None:
        held = [
            int(self._sizes[self.clusters == cluster].sum())
            for cluster in range(self.settings.clusters)
        ]
        self._weights = (
            mean_of(list(self.heads), held).astype(np.float32) if any(held) else self._zero()
        )

    def _state(self) -> State:
        return super()._state() | {
            "clusters": self.clusters,
            "heads": self.heads,
            "weights": self._weights,
        }

    def _restore(self, state: Mapping[str, Array]) -> None:
        super()._restore(state)
        self.clusters, self.heads, self._weights = (
            np.array(state[name]) for name in ("clusters", "heads", "weights")
        )


def clustered(counts: Sequence[Array], clusters: int, seed: int) -> Array:
    """A cluster for each client by k-means on the fractions of its labels; no more clusters than
    different fractions.
    """
    from sklearn.cluster import KMeans  # noqa: PLC0415 - takes longer to import than all the rest

    if not counts:
        return np.zeros(0, dtype=np.int64)
    fractions = np.array([histogram / histogram.sum() for histogram in counts])
    most = min(clusters, len(np.unique(fractions, axis=0)))
    labels = KMeans(n_clusters=most, n_init=10, random_state=seed % 2**32).fit_predict(fractions)
    return np.asarray(labels, dtype=np.int64)
