"""What a simulation is to be: its federation, its steps, and which faults there are. Everything
follows from a seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from expunge.ridge.spec import Aggregation, Spec
from expunge.testing.simulation.machine import TROUBLES, TroubleKind
from expunge.testing.simulation.network import FATES, Fate

STEPS = 120

# How often each kind of step is taken, if it is taken at all.
WEIGHTS: Mapping[str, int] = {
    "add": 16,
    "forget": 8,
    "forget a subject": 4,
    "correct": 4,
    "sync": 40,
    "restart": 4,
    "kill": 4,
    "order": 3,
    "close an order": 2,
    "audit": 2,
    "fold": 2,
    "rotate the key": 1,
    "amend": 1,
    "back up": 1,
    "wait": 8,
    "wait long": 1,
    "late messages": 4,
    "cut off": 2,
    "set a clock": 1,
}
_ALWAYS = ("add", "forget", "sync", "wait")


@dataclass(frozen=True)
class Plan:
    """One simulation: nothing in it is left to chance.

    `steps` are the numbers of the steps that are taken; the chance of a step does not depend on the
    others. `trouble` says how likely the disk of a party fails in a step.
    """

    seed: int
    steps: Sequence[int]
    clients: int
    masked: bool
    weights: Mapping[str, int]
    fates: Mapping[Fate, float]
    troubles: Sequence[TroubleKind]
    trouble: float

    @classmethod
    def drawn(cls, seed: int, *, steps: int = STEPS, masked: bool | None = None) -> Plan:
        """The plan of a seed: some faults of all there are, so that each has its time."""
        chance = Random(f"plan {seed}")  # noqa: S311 - it is to be repeated
        is_masked = chance.random() < 0.2
        optional = [kind for kind in WEIGHTS if kind not in _ALWAYS]
        left_out = set(chance.sample(optional, chance.randint(0, len(optional) // 2)))
        fates = chance.sample(FATES, chance.randint(0, len(FATES)))
        return cls(
            seed=seed,
            steps=range(1, steps + 1),
            clients=chance.randint(1, 3),
            masked=is_masked if masked is None else masked,
            weights={kind: weight for kind, weight in WEIGHTS.items() if kind not in left_out},
            fates={fate: chance.choice((0.01, 0.05, 0.15)) for fate in fates},
            troubles=chance.sample(TROUBLES, chance.randint(0, len(TROUBLES))),
            trouble=chance.choice((0.02, 0.1, 0.3)),
        )

    @property
    def spec(self) -> Spec:
        """What the federation computes."""
        rules = Aggregation(fewest=3) if self.masked else None
        return Spec(
            dim=4,
            labels=("no", "yes"),
            gamma=1.0,
            messages=("masked",) if self.masked else ("rows", "gram"),
            aggregation=rules,
        )

    @property
    def names(self) -> list[str]:
        """Of the clients."""
        return [f"client{number}" for number in range(3 + self.clients if self.masked else self.clients)]

    def only(self, steps: Sequence[int]) -> Plan:
        """The same with fewer steps."""
        return replace(self, steps=tuple(steps))
