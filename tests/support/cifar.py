"""The real CIFAR-10 features at a hundred clients, split by Dirichlet(0.5); retraining is always at
hand.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from expunge import Spec, Statistics, solve
from expunge.client import ClientStore
from expunge.federation import Federation
from support import real_features

FILE = "cifar10_efficientnet_lite0.npz"
CLIENTS = 100
NAMES = [f"client-{place:03}" for place in range(CLIENTS)]
LABELS = tuple(range(10))


class Cifar:
    """The features, who owns which, and which of them are retained now."""

    def __init__(self) -> None:
        data = real_features.load(FILE)
        self.features, self.labels = data["train_features"], data["train_labels"]
        self.owned = dict(
            zip(
                NAMES,
                dirichlet_split(self.labels, CLIENTS, 0.5, np.random.default_rng(20)),
                strict=True,
            )
        )
        self.retained = np.zeros(len(self.labels), dtype=bool)

    def add(self, store: ClientStore, which: Any) -> None:
        store.add(
            [f"image-{index}" for index in which], self.features[which], self.labels[which], now=0
        )

    def check(self, federation: Federation, spec: Spec) -> None:
        """Ledger and published head are those of central retraining on what is retained, bit for
        bit.
        """
        central = Statistics.of(spec, self.features[self.retained], self.labels[self.retained])
        assert federation.carrier.state.ledger.exact_statistics().digest == central.digest
        assert federation.published()[0].digest == solve(central).digest


def dirichlet_split(labels: Any, clients: int, alpha: float, rng: np.random.Generator) -> list[Any]:
    """Each class is divided among the clients in proportions of their own, drawn from a symmetric
    Dirichlet distribution.
    """
    owned: list[list[Any]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        which = rng.permutation(np.flatnonzero(labels == label))
        ends = np.round(np.cumsum(rng.dirichlet(np.full(clients, alpha))) * len(which)).astype(
            np.int64
        )
        for own, part in zip(owned, np.split(which, ends[:-1]), strict=True):
            own.append(part)
    return [np.sort(np.concatenate(own)) for own in owned]


def spec_of(cifar: Cifar, **options: Any) -> Spec:
    return Spec(dim=cifar.features.shape[1], labels=LABELS, gamma=1.0, **options)


def enrolled(federation: Federation, cifar: Cifar) -> None:
    """Every client with all its samples pending; half of them send rows, the others sums."""
    for place, name in enumerate(NAMES):
        cifar.add(
            federation.client(name, message="gram" if place % 2 else "rows").store,
            cifar.owned[name],
        )
