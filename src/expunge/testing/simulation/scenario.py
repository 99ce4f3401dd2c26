"""What a simulation is to be: its federation, its steps, and which faults there are. Everything
follows from a seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Literal

from expunge.ridge.spec import Aggregation, Spec
from expunge.secagg.arbitration import Arbiter
from expunge.testing.simulation.machine import TROUBLES, TroubleKind
from expunge.testing.simulation.network import FATES, Fate

STEPS, BUSY_STEPS = 120, 600  # usually

# How often each kind of step is taken, if it is taken at all.
WEIGHTS: Mapping[str, int] = {
    "add": 16,
    "forget": 8,
    "forget a subject": 4,
    "correct": 4,
    "sync": 40,
    "forward": 12,
    "stop": 4,
    "kill": 4,
    "order": 3,
    "close an order": 2,
    "audit": 2,
    "fold": 2,
    "rotate the key": 1,
    "correct the clock": 1,
    "amend": 1,
    "back up": 2,
    "restore the server": 1,
    "judge": 3,
    "copy a client": 2,
    "put an old copy back": 1,
    "wait": 8,
    "wait long": 1,
    "late messages": 4,
    "cut off": 2,
    "set a clock": 1,
}
_ALWAYS = ("add", "forget", "sync", "forward", "wait")
# A client that is an old copy has to be forgotten, which masked needs more clients than there are.
_NEVER_MASKED = ("copy a client", "put an old copy back")
_FOR_GROUPS = ("forward",)
_FAULTS = (
    "kill",
    "restore the server",
    "copy a client",
    "put an old copy back",
    "late messages",
    "cut off",
    "set a clock",
)
_FEWEST_SAMPLES = 4
_SET_ASIDE_AFTER = 3600  # seconds
# How often there are groups; how often these have rounds, and with how many clients each.
_GROUPED, _MASKED_WITHIN, _IN_ROUNDS, _WITHIN = 0.25, 0.15, 4, Aggregation(fewest=3)
# How much more often clients change something where they are busy, and bring it at once.
_BUSY: Mapping[str, float] = {
    "add": 6,
    "forget": 6,
    "forget a subject": 3,
    "correct": 6,
    "sync": 0.5,
}
_PUSHES = 0.9
_RARER = 4  # are faults there, by step and message: there are more of both
# Without an arbiter there is nothing to judge; and where there is, the server is not lost.
_FOR_LIARS, _NOT_WITH_LIARS = ("judge",), ("back up", "restore the server")
ARBITER = Arbiter(hashlib.sha512(b"the arbiter of simulations").digest())

# What happens to a file of a party that is killed, once all steps have been taken.
DamageKind = Literal["flipped bit", "flipped bit in a vault", "lost log"]
DAMAGES: tuple[DamageKind, ...] = ("flipped bit", "flipped bit in a vault", "lost log")


@dataclass(frozen=True)
class Scenario:
    """One simulation: nothing in it is left to chance.

    Attributes
    ----------
    seed : int
        What all chance follows from.
    steps : sequence of int
        The numbers of the steps that are taken; the chance of a step does not depend on the others.
    clients : int
        How many clients there are.
    spec : Spec
        What the federation computes.
    weights : mapping of str to float
        How often each kind of step is taken.
    fates : mapping of str to float
        How likely each fate of a message is.
    troubles : sequence of str
        What goes wrong with disks.
    trouble : float
        How likely the disk of a party fails in a step.
    mirrored : bool
        Whether the vaults have mirrors.
    damage : str
        What happens to a file at the end; empty for nothing.
    has_liar : bool
        Whether the last client lies in rounds of secure aggregation.
    groups : int
        How many aggregators there are, each with a group of clients.
    within : Aggregation or None
        The rules of secure aggregation within the groups; None without.
    pushes : float
        How likely a client brings a change to the server at once, without a sync.

    Examples
    --------
    >>> from expunge.testing.simulation import Scenario
    >>> scenario = Scenario.drawn(7)
    >>> scenario == Scenario.drawn(7)
    True
    >>> len(scenario.steps), scenario.only([3, 5]).steps
    (120, (3, 5))
    """

    seed: int
    steps: Sequence[int]
    clients: int
    spec: Spec
    weights: Mapping[str, float]
    fates: Mapping[Fate, float]
    troubles: Sequence[TroubleKind]
    trouble: float
    mirrored: bool = False
    damage: DamageKind | Literal[""] = ""
    has_liar: bool = False
    groups: int = 0
    within: Aggregation | None = None
    pushes: float = 0.0

    @classmethod
    def drawn(
        cls,
        seed: int,
        *,
        steps: int | None = None,
        masked: bool | None = None,
        groups: bool | None = None,
        busy: bool = False,
    ) -> Scenario:
        """The scenario of a seed: some faults of all there are, so that each has its time.

        Parameters
        ----------
        seed : int
            The seed.
        steps : int or None, default None
            How many steps are taken; None for 120, or 600 if `busy`.
        masked : bool or None, default None
            Whether changes travel in rounds of secure aggregation; None if chance says so.
        groups : bool or None, default None
            Whether there are aggregators; None if chance says so, and never under secure
            aggregation at the root.
        busy : bool, default False
            Whether clients change much, and mostly bring each change to the server at once: many
            requests for few other messages. Then nothing is masked unless `masked` says so.

        Returns
        -------
        Scenario
            The same for the same arguments.
        """
        chance = Random(f"scenario {seed}")  # noqa: S311 - it is to be repeated
        is_masked = chance.random() < 0.2
        if masked is not None or busy:
            is_masked = bool(masked)
        optional = [kind for kind in WEIGHTS if kind not in _ALWAYS]
        left_out = set(chance.sample(optional, chance.randint(0, len(optional) // 2)))
        left_out |= set(_NEVER_MASKED) if is_masked else set()
        has_liar = is_masked and chance.random() < 0.4
        left_out |= set(_NOT_WITH_LIARS if has_liar else _FOR_LIARS)
        fates = chance.sample(FATES, chance.randint(0, len(FATES)))
        clients = chance.randint(1, 3) + 3 * is_masked + has_liar
        trees = Random(f"groups {seed}")  # noqa: S311 - it is to be repeated
        in_groups, count = trees.random() < _GROUPED, trees.choice((1, 2, 2))
        if groups is not None:
            in_groups = groups
        count = count if in_groups and not is_masked else 0
        is_within = count and trees.random() < _MASKED_WITHIN and not busy
        within = _WITHIN if is_within else None
        left_out |= set(_NEVER_MASKED) if within is not None else set()
        rarer = _RARER if busy else 1
        left_out |= set() if count else set(_FOR_GROUPS)
        return cls(
            seed=seed,
            steps=range(1, (steps or (BUSY_STEPS if busy else STEPS)) + 1),
            clients=(clients if within is None else _IN_ROUNDS) * max(1, count) + (count > 0),
            spec=_masked_spec(chance, has_liar=has_liar) if is_masked else _plain_spec(),
            weights={
                kind: _BUSY.get(kind, 1) * weight if busy else weight
                for kind, weight in WEIGHTS.items()
                if kind not in left_out
            },
            fates={fate: chance.choice((0.01, 0.05, 0.15)) / rarer for fate in fates},
            troubles=chance.sample(TROUBLES, chance.randint(0, len(TROUBLES))),
            trouble=chance.choice((0.02, 0.1, 0.3)) / rarer,
            mirrored=chance.random() < 0.3,
            damage=chance.choice(DAMAGES) if chance.random() < 0.3 and not has_liar else "",
            has_liar=has_liar,
            groups=count,
            within=within,
            pushes=0.0 if is_masked or within is not None else _PUSHES * busy,
        )

    def without_faults(self) -> Scenario:
        """The same, in which nothing goes wrong.

        Returns
        -------
        Scenario
            The same people do the same things.
        """
        weights = {kind: self.weights[kind] for kind in self.weights if kind not in _FAULTS}
        return replace(self, weights=weights, fates={}, troubles=(), damage="")

    @property
    def is_masked(self) -> bool:
        """Whether changes travel in rounds of secure aggregation, at the root or in groups."""
        return self.spec.aggregation is not None or self.within is not None

    @property
    def group_spec(self) -> Spec:
        """That of every group."""
        if self.within is None:
            return replace(self.spec, messages=("gram", "rows"))
        return replace(self.spec, messages=("masked",), aggregation=self.within)

    @property
    def names(self) -> list[str]:
        """Of the clients."""
        return [f"client{number}" for number in range(self.clients)]

    def only(self, steps: Sequence[int]) -> Scenario:
        """The same with fewer steps.

        Parameters
        ----------
        steps : sequence of int
            The numbers of the steps that are taken.

        Returns
        -------
        Scenario
            Every other choice is the same.
        """
        return replace(self, steps=tuple(steps))


def _plain_spec() -> Spec:
    return Spec(dim=4, labels=("no", "yes"), gamma=1.0, messages=("rows", "gram", "group"))


def _masked_spec(chance: Random, *, has_liar: bool) -> Spec:
    """With rounds whenever somebody has something to change, or on a schedule; some batched."""
    rules = chance.choice((Aggregation(fewest=3), Aggregation(fewest=3, every=120, window=40)))
    if has_liar:
        rules = replace(rules, arbiter=ARBITER.public, set_aside_after=_SET_ASIDE_AFTER)
    return Spec(
        dim=4,
        labels=("no", "yes"),
        gamma=1.0,
        messages=("masked",),
        aggregation=rules,
        fewest_samples=chance.choice((0, 0, _FEWEST_SAMPLES)),
    )
