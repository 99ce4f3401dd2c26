"""Stories: what clients are told to keep, add and forget, and the check that the server has just
that, bit for bit.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from expunge import Spec, Statistics, solve
from expunge.client import Selection, SyncResult
from expunge.errors import CarrierError, RefusedError
from support.carriers import ATTEMPTS, Died, Lane
from support.federation import NOW, Client


@dataclass
class Story:
    """What the clients of a lane were told to keep, and the check that the server has just that."""

    lane: Lane
    seed: int = 0
    kept: dict[str, dict[str, tuple[np.ndarray[Any, Any], int, str | None]]] = field(
        default_factory=dict
    )
    number: int = 0

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def twin(self, lane: Lane) -> Story:
        """The same story so far, on a lane that is a twin of its own."""
        kept = {name: dict(samples) for name, samples in self.kept.items()}
        other = replace(self, lane=lane, kept=kept)
        other.rng = copy.deepcopy(self.rng)
        return other

    @property
    def spec(self) -> Spec:
        return self.lane.federation.spec

    def enrol(self, name: str, message: str = "") -> None:
        self.lane.enrol(name, message)
        self.kept[name] = {}

    def add(self, name: str, count: int, subject: str | None = None) -> None:
        rows = self.rng.standard_normal((count, self.spec.dim)).astype(np.float32)
        labels = [int(one) for one in self.rng.integers(self.spec.columns, size=count)]
        ids = [f"{name}-{self.number + place}" for place in range(count)]
        self.number += count
        self.lane.stores[name].add(ids, rows, labels, subjects=[subject] * count, now=NOW)
        self.kept[name] |= {
            one: (row, label, subject) for one, row, label in zip(ids, rows, labels, strict=True)
        }

    def forget(self, name: str, count: int = 1) -> None:
        """The oldest samples."""
        gone = list(self.kept[name])[:count]
        self.lane.stores[name].forget(Selection(ids=gone))
        for one in gone:
            del self.kept[name][one]

    def correct(self, name: str) -> None:
        """The newest sample gets another feature and another label."""
        sample = list(self.kept[name])[-1]
        row, label = (
            self.rng.standard_normal(self.spec.dim).astype(np.float32),
            int(self.rng.integers(self.spec.columns)),
        )
        self.lane.stores[name].correct(sample, feature=row, label=label)
        self.kept[name][sample] = (row, label, self.kept[name][sample][2])

    def forgotten(self, subject: str) -> None:
        """An order for this subject has been carried out."""
        for name, samples in self.kept.items():
            self.kept[name] = {
                one: sample for one, sample in samples.items() if sample[2] != subject
            }

    def brought(self, name: str) -> SyncResult:
        """Sync until it goes through.

        A client that dies ends a sync, and so do as many faults as it has attempts.
        """
        while True:
            before = len(self.lane.met)
            try:
                return self.lane.sync(name)
            except Died:
                continue
            except CarrierError:
                if len(self.lane.met) - before < ATTEMPTS:
                    raise

    def something(self, name: str, chance: random.Random) -> None:
        """Whatever a client and its surroundings may do between two syncs."""
        deeds: list[Callable[[], None]] = [
            lambda: self.add(name, chance.randrange(1, 4)),
            lambda: self.lane.restart_client(name),
        ]
        if len(self.kept[name]) > 2:
            deeds += [lambda: self.forget(name, 2), lambda: self.correct(name)]
        if chance.random() < 0.1:
            deeds = [self.lane.restart_server]
        chance.choice(deeds)()

    def retrained(self) -> Statistics:
        samples = [sample for own in self.kept.values() for sample in own.values()]
        if not samples:
            return Statistics.zero(self.spec)
        return Statistics.of(
            self.spec, np.stack([row for row, _, _ in samples]), [label for _, label, _ in samples]
        )

    def check(self) -> None:
        """The ledger is that of retraining, and so is the head; each request stands in the log
        once.
        """
        retrained, head = self.retrained(), self.lane.head
        assert self.lane.ledger.digest == retrained.digest
        assert head is not None
        assert head.digest == solve(retrained).digest
        self.check_log()

    def check_log(self) -> None:
        entries = self.lane.federation.entries("changed")
        for name, own in self.kept.items():
            theirs = [entry for entry in entries if entry["client"] == name]
            assert [entry["sequence"] for entry in theirs] == list(range(1, len(theirs) + 1))
            assert sum(entry["added"] - entry["deleted"] for entry in theirs) == len(own)


def begun(story: Story) -> Story:
    """Two clients that have samples at the server: one sends rows, the other grams."""
    for name, message in (("north", "rows"), ("south", "gram")):
        story.enrol(name, message)
        story.add(name, 4)
        story.brought(name)
    return story


def by_hand(story: Story, name: str) -> Client:
    """Somebody with the key of a client, who writes requests byte by byte."""
    store = story.lane.stores[name]
    return Client(story.lane.federation, name, store.key, store.sequence)


def refused(story: Story, data: bytes, code: str) -> None:
    """A request that must be refused: as the service itself says it, with nothing changed, and good
    requests still taken.
    """
    lane, before = story.lane, story.lane.federation.dump()
    with pytest.raises(RefusedError) as said:
        lane.federation.service.request(data)
    with pytest.raises(RefusedError) as heard:
        lane.offer(data)
    assert heard.value.code == said.value.code == code, heard.value
    if code not in ("malformed", "too-large"):  # which a carrier may see before the service does
        assert (heard.value.reason, heard.value.details) == (said.value.reason, said.value.details)
    assert lane.federation.dump() == before
    for name in story.kept:
        story.add(name, 1)
        story.forget(name)
        story.brought(name)
    story.check()
