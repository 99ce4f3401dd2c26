"""Masked federations: some clients with samples of their own, whose retraining is always at
hand.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from expunge import Aggregation, Spec, Statistics, solve
from expunge.client import Selection
from expunge.federation import Federation
from expunge.secagg.schedule import Schedule
from expunge.server.state import Settings

RULES = Aggregation(fewest=3)
SPEC = Spec(dim=4, labels=("no", "yes"), gamma=0.5, messages=("masked",), aggregation=RULES)


def closed_schedule(window: int = 10) -> Schedule:
    """A schedule whose windows are closed now, and for some time to come."""
    now = int(time.time())
    schedules = (Schedule(every, window) for every in range(3600, 9000))
    return next(
        schedule
        for schedule in schedules
        if not any(schedule.open_at(now + later, skew=60) for later in range(0, 1200, 30))
    )


@dataclass
class Masked:
    """A masked federation, and what each of its clients retains: by id, feature and label."""

    federation: Federation
    held: dict[str, dict[str, tuple[np.ndarray, int]]] = field(default_factory=dict)
    random: Any = field(default_factory=lambda: np.random.default_rng(7))

    @classmethod
    def found(cls, folder: Path, clients: int = 4, *, spec: Spec = SPEC, **settings: Any) -> Masked:
        options = Settings(**({"erase_within": 3600} | settings))
        masked = cls(Federation.found(folder / "federation", spec, settings=options))
        for number in range(clients):
            masked.enrol(f"client-{number}")
        return masked

    @property
    def spec(self) -> Spec:
        return self.federation.carrier.state.spec

    def enrol(self, name: str) -> None:
        self.federation.client(name)
        self.held[name] = {}

    def add(self, name: str, count: int = 3, subject: str | None = None) -> list[str]:
        """Add samples to a client's store; pending until it syncs."""
        ids = [
            f"{name}-{len(self.held[name]) + number}-{self.random.integers(1 << 40)}"
            for number in range(count)
        ]
        features = self.random.normal(size=(count, self.spec.dim))
        labels = self.random.integers(0, len(self.spec.labels or ()), size=count)
        self.federation.client(name).store.add(
            ids, features, labels, subjects=[subject] * count if subject else None, now=0
        )
        self.held[name] |= {
            one: (feature, int(label))
            for one, feature, label in zip(ids, features, labels, strict=True)
        }
        return ids

    def forget(self, name: str, ids: Sequence[str]) -> None:
        self.federation.client(name).store.forget(Selection(ids=tuple(ids)))
        for one in ids:
            del self.held[name][one]

    def everybody_adds(self, count: int = 3) -> None:
        for name in self.held:
            self.add(name, count)

    def step(self, *names: str) -> dict[str, Any]:
        """One sync of each, in this order."""
        return {name: self.federation.client(name).sync() for name in names or self.held}

    def expected(self, names: Iterable[str] | None = None) -> Statistics:
        total = Statistics.zero(self.spec)
        for name in self.held if names is None else names:
            for feature, label in self.held[name].values():
                total = total + Statistics.of(
                    self.spec, feature[None, :], np.array([label]), lost_columns="accept"
                )
        return total

    def check(self, names: Iterable[str] | None = None) -> None:
        """The ledger is that of retraining on what these clients hold, bit for bit; so is the
        head.
        """
        state = self.federation.carrier.state
        expected = self.expected(names)
        assert state.ledger.exact_statistics().digest == expected.digest
        assert state.head is not None
        assert state.head.digest == solve(expected).digest
