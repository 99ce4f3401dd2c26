"""Rounds of secure aggregation to test with: clients that are separate objects, and exchange bytes
only with the collector.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from expunge.crypto import PublicKey, SigningKey
from expunge.exact import wide
from expunge.exact.wide import Wide
from expunge.ridge.spec import Aggregation
from expunge.secagg import Collector, Opening, Participant, messages
from expunge.secagg.roster import Join, Roster

RULES = Aggregation()
OPENING = Opening("f" * 32, "0" * 31 + "1", "change", "d" * 64, "e" * 64)
SPARSE = Aggregation(dropouts=10, colluding=2, security_bits=2, completion_bits=2)
RING = 130  # clients, so that with these rules the ring is not complete
STEPS = ("sharing", "masking", "agreeing", "revealing")


def randomness(seed: str) -> Callable[[int], bytes]:
    """Bytes that look random and are the same for the same seed."""
    count = 0

    def random(size: int) -> bytes:
        nonlocal count
        count += 1
        return hashlib.shake_256(f"{seed}/{count}".encode()).digest(size)

    return random


def name_of(place: int) -> str:
    return f"client-{place:02d}"


def key_of(name: str) -> SigningKey:
    return SigningKey(hashlib.sha256(name.encode()).digest())


def total(vectors: Iterable[Wide]) -> Wide:
    found = list(vectors)
    result = np.zeros_like(found[0])
    for vector in found:
        wide.add_into(result, vector)
    return result


def draw_vectors(clients: int, length: int = 7, seed: int = 0) -> dict[str, Wide]:
    rng = np.random.default_rng(seed)
    return {
        name_of(place): rng.integers(0, 2**64, size=(2, length), dtype=np.uint64)
        for place in range(clients)
    }


def signed_joins(data: bytes) -> dict[str, tuple[Join, bytes]]:
    """The joins in the bytes of a roster, each with its signature."""
    roster, (_, body) = Roster.read(data), messages.read_server_message("roster", data)
    each = len(body) // len(roster.names)
    return {
        name: (roster.join(name), bytes(body[place * each + 64 : (place + 1) * each]))
        for place, name in enumerate(roster.names)
    }


def state_of(participant: Participant) -> Any:
    """What a participant keeps to itself: its secrets, the shares that it holds, the roster."""
    return participant._state


@dataclass
class Room:
    """One round: its clients with their vectors, the collector, and every byte that went to or from
    the server.
    """

    vectors: Mapping[str, Wide]
    rules: Aggregation = RULES
    opening: Opening = OPENING
    seed: str = "seed"
    exposed: Collection[str] = ()  # who says so of its part
    participants: dict[str, Participant] = field(default_factory=dict)
    transcript: list[tuple[str, str, bytes]] = field(
        default_factory=list
    )  # direction, client, bytes

    def __post_init__(self) -> None:
        self.pins: dict[str, PublicKey] = {name: key_of(name).public for name in self.vectors}
        self.collector = Collector(self.opening, self.rules, self.pins.__getitem__)

    @property
    def names(self) -> list[str]:
        return sorted(self.vectors)

    def joining(self, name: str) -> Participant:
        random = randomness(f"{self.seed}/{name}")
        return Participant.join(
            self.opening,
            self.rules,
            name=name,
            sequence=5,
            key=key_of(name),
            exposed=name in self.exposed,
            random=random,
        )

    def join(self, names: Iterable[str] | None = None) -> None:
        for name in names if names is not None else self.names:
            self.participants[name] = self.joining(name)
            self.hear(name, self.participants[name].message)

    def hear(self, name: str, data: bytes) -> None:
        """The server hears bytes."""
        self.transcript.append(("up", name, data))
        assert self.collector.take(data) == name

    def told(self, name: str) -> bytes:
        """What the server tells a client."""
        data = self.collector.say(name)
        assert data is not None
        self.transcript.append(("down", name, data))
        return data

    def answer(self, name: str) -> bytes:
        """What the client says to what it is told now."""
        participant, data = self.participants[name], self.told(name)
        if self.collector.phase == "sharing":
            return participant.on_roster(data, self.pins)
        if self.collector.phase == "masking":
            return participant.on_deliveries(data, self.vectors[name])
        if self.collector.phase == "agreeing":
            return participant.on_survivors(data)
        return participant.on_agreements(data, self.pins)

    def go(self, *, without: Iterable[str] = ()) -> None:
        """One phase: all who are awaited answer, but for some; then the next phase."""
        for name in sorted(self.collector.awaited - set(without)):
            self.hear(name, self.answer(name))
        self.collector.advance()

    def run(self, drops: Mapping[str, Iterable[str]] | None = None) -> Wide:
        """The whole round, with these clients dropping out before they answer in these phases."""
        self.join()
        self.collector.advance()
        gone: set[str] = set()
        for step in STEPS:
            gone |= set((drops or {}).get(step, ()))
            self.go(without=gone)
        return self.collector.sum()

    def until(self, phase: str) -> None:
        """Everybody answers until the round is at this phase."""
        self.join()
        self.collector.advance()
        while self.collector.phase != phase:
            self.go()
