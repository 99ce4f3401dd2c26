"""The network between a client or office and the server: it loses, repeats, delays, damages and
reorders what it carries, and can be cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol, cast

from expunge.errors import CarrierError, RefusedError
from expunge.testing.simulation.world import World
from expunge.wire.carrier import Carrier

# What happens to one message; "delayed" lets others act before the server has it, "late" brings it
# when its sender waits no longer.
Fate = Literal["lost", "unanswered", "repeated", "late", "delayed", "damaged", "garbled"]
FATES: tuple[Fate, ...] = (
    "lost",
    "unanswered",
    "repeated",
    "late",
    "delayed",
    "damaged",
    "garbled",
)


class Answers(Protocol):
    """A server that can be called."""

    def call(self, name: str, *arguments: Any, meanwhile: Callable[[], None]) -> Any:
        """What the server answers; CarrierError if it does not."""
        ...


@dataclass
class Network:
    """The way of all to one server. `chances` says how likely each fate of a message is."""

    world: World
    server: Answers
    chances: Mapping[Fate, float]
    meanwhile: Callable[[], None]  # lets somebody else act
    late: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    cut_off: set[str] = field(default_factory=set)
    is_calm: bool = False

    def carrier(self, who: str) -> Carrier:
        """The way of one of them."""
        return cast("Carrier", _Line(self, who))

    def carry(self, who: str, name: str, *arguments: Any) -> Any:
        """Bring a message to the server, and the answer back."""
        fate = self._fate(who)
        if fate == "lost":
            raise CarrierError(f"the message of {who} was lost")
        if fate == "late":
            self.late.append((name, arguments))
            raise CarrierError(f"the message of {who} has not arrived yet")
        if fate == "garbled":
            arguments = tuple(self._damaged(argument) for argument in arguments)
        meanwhile = self.meanwhile if fate == "delayed" else _nothing
        answer = self._call(name, *arguments, meanwhile=meanwhile)
        if fate == "repeated":
            answer = self._call(name, *arguments, meanwhile=_nothing)
        if fate == "unanswered":
            raise CarrierError(f"the answer to {who} was lost")
        return self._damaged(answer) if fate == "damaged" else answer

    def _fate(self, who: str) -> Fate | None:
        if who in self.cut_off:
            self.world.count("network: cut off")
            return "lost"
        drawn = 1.0 if self.is_calm else self.world.chance.random()
        for fate, chance in self.chances.items():
            drawn -= chance
            if drawn < 0.0:
                self.world.count(f"network: {fate}")
                return fate
        return None

    def _call(self, name: str, *arguments: Any, meanwhile: Callable[[], None]) -> Any:
        self.world.messages += 1
        for argument in arguments:
            self.world.trace(argument if isinstance(argument, bytes) else repr(argument).encode())
        answer = self.server.call(name, *arguments, meanwhile=meanwhile)
        self.world.trace(answer if isinstance(answer, bytes) else repr(answer).encode())
        return answer

    def _damaged(self, data: Any) -> Any:
        """One bit is another one, or the end is missing."""
        if not isinstance(data, bytes) or not data:
            return data
        chance = self.world.chance
        if chance.random() < 0.5:
            return data[: chance.randrange(len(data))]
        changed, place = bytearray(data), chance.randrange(8 * len(data))
        changed[place // 8] ^= 1 << place % 8
        return bytes(changed)

    def deliver_late(self) -> None:
        """What was delayed arrives, in any order; nobody waits for the answers."""
        self.world.chance.shuffle(self.late)
        while self.late:
            name, arguments = self.late.pop()
            try:
                self._call(name, *arguments, meanwhile=_nothing)
            except (CarrierError, RefusedError) as problem:
                self.world.count(f"late message: {type(problem).__name__}")
            else:
                self.world.count("late message: answered")


class _Line:
    """A carrier over this network."""

    def __init__(self, network: Network, who: str) -> None:
        self._network, self._who = network, who

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(self._network.carry, self._who, name)


def _nothing() -> None:
    """Nobody else acts."""
