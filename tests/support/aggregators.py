"""A tree: a root, aggregators, and clients of each; what every client retains is at hand, so
retraining always is.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from expunge import Spec, Statistics, solve
from expunge.aggregator import Aggregator
from expunge.client import Selection
from expunge.federation import Federation

SPEC = Spec(dim=4, labels=("no", "yes"), gamma=0.5, messages=("gram", "group", "rows"))


@dataclass
class Tree:
    """The root, its groups by name, and what each client of each group retains."""

    folder: Path
    root: Federation
    groups: dict[str, Aggregator] = field(default_factory=dict)
    held: dict[tuple[str, str], dict[str, tuple[np.ndarray, int]]] = field(default_factory=dict)
    random: Any = field(default_factory=lambda: np.random.default_rng(11))

    @classmethod
    def planted(cls, folder: Path, groups: int = 2, clients: int = 2, **options: Any) -> Tree:
        tree = cls(folder, Federation.found(folder / "root", SPEC))
        for number in range(groups):
            name = f"region-{number}"
            tree.groups[name] = Aggregator.found(
                folder / name, tree.root.token(name), tree.root.carrier, **options
            )
            for one in range(clients):
                tree.groups[name].group.client(f"client-{one}")
                tree.held[name, f"client-{one}"] = {}
        return tree

    def reopen(self, group: str, **options: Any) -> Aggregator:
        """A group closed and opened again, with its clients; the options are the aggregator's."""
        self.groups[group].close()
        return self.open(group, **options)

    def open(self, group: str, **options: Any) -> Aggregator:
        """A group that was closed, with its clients."""
        again = Aggregator(self.folder / group, self.root.carrier, **options)
        self.groups[group] = again
        for name, client in self.held:
            if name == group:
                again.group.client(client)
        return again

    def add(self, group: str, client: str, count: int = 3, subject: str | None = None) -> list[str]:
        ids = [secrets.token_hex(8) for _ in range(count)]
        features, labels = (
            self.random.normal(size=(count, 4)),
            self.random.integers(0, 2, size=count),
        )
        store = self.groups[group].group.client(client).store
        store.add(ids, features, labels, subjects=[subject] * count if subject else None, now=0)
        self.held[group, client] |= {
            one: (feature, int(label))
            for one, feature, label in zip(ids, features, labels, strict=True)
        }
        return ids

    def forget(self, group: str, client: str, ids: list[str]) -> None:
        self.groups[group].group.client(client).store.forget(Selection(ids=tuple(ids)))
        for one in ids:
            del self.held[group, client][one]

    def sync(self) -> None:
        """The clients of every group, then the aggregators."""
        for group in self.groups.values():
            group.group.sync()
        for group in self.groups.values():
            group.sync()

    def expected(self) -> Statistics:
        spec = self.root.carrier.state.spec
        total = Statistics.zero(spec)
        for samples in self.held.values():
            for feature, label in samples.values():
                total = total + Statistics.of(
                    spec, feature[None, :], np.array([label]), lost_columns="accept"
                )
        return total

    def check(self) -> None:
        """The root's ledger and head are those of retraining on all that is retained anywhere, bit
        for bit.
        """
        state, expected = self.root.carrier.state, self.expected()
        assert state.ledger.exact_statistics().digest == expected.digest
        assert state.head is not None
        assert state.head.digest == solve(expected).digest

    def close(self) -> None:
        for group in self.groups.values():
            group.close()
        self.root.close()
