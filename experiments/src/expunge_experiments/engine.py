"""Engine: how the server of a compared system reaches its clients.

One way for all systems, so that costs compare.

A system's code for clients (`Worker`) and for the server (`systems.base.System`) is the same on
every engine: in this process (`ProcessEngine`) or on Flower.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from expunge.errors import InputError
from expunge_experiments.message import Array, ArrayMessage
from expunge_experiments.pool import ClientSamples, Pool

State = dict[str, Array]


class Worker(ABC):
    """A client's side of a system.

    It sees its own samples only, and is asked one message at a time.

    `retained` is a mask over its samples. All that a worker must remember between messages is in
    `state`: a new worker given that state answers as the old one would. (On Flower, a worker may be
    created for every message.)
    """

    def __init__(self, client: int, samples: ClientSamples) -> None:
        self.client = client
        self.samples = samples
        self.retained: NDArray[np.bool_] = np.zeros(len(samples.numbers), dtype=bool)

    def respond(self, message: ArrayMessage) -> ArrayMessage:
        """The answer to a message. "add" and "forget" (with the pool's `numbers`) change what is
        retained, for every system.
        """
        if message.task in ("add", "forget"):
            self.change(message.arrays["numbers"], added=message.task == "add")
        return self.answer(message)

    def change(self, numbers: Array, *, added: bool) -> None:
        """Retain these samples, or retain them no longer."""
        positions = np.searchsorted(self.samples.numbers, numbers)
        if len(numbers) and (
            positions.max() >= len(self.retained)
            or (self.samples.numbers[positions] != numbers).any()
        ):
            raise InputError(f"client {self.client} was asked about samples that are not its own")
        if (self.retained[positions] == added).any():
            raise InputError(
                f"client {self.client} was asked to {'add' if added else 'forget'} a sample twice"
            )
        self.retained[positions] = added

    @abstractmethod
    def answer(self, message: ArrayMessage) -> ArrayMessage:
        """The answer of this system's client; for "add" and "forget", after `retained` has
        changed.
        """

    def state(self) -> State:
        """All that this worker must remember, besides its samples. Subclasses add to it."""
        return {"retained": self.retained}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Go on from a state. Subclasses take their own out of it."""
        self.retained = np.array(state["retained"], dtype=bool)


Employ = Callable[[int, ClientSamples], Worker]


@dataclass
class Usage:
    """What has been used so far: an exchange is one message to each of some clients, and their
    answers.
    """

    exchanges: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    client_seconds: float = 0.0  # of all clients together
    waited_seconds: float = 0.0  # by the server, for answers
    busiest_seconds: float = field(
        default=0.0
    )  # of the busiest client of each exchange: the wait that no engine can avoid


class MessageEngine(ABC):
    """Carries messages. `parallel` is how many clients work at the same time."""

    parallel = 1

    def __init__(self) -> None:
        self.usage = Usage()

    def ask(self, messages: Sequence[tuple[int, ArrayMessage]]) -> list[ArrayMessage]:
        """Send messages to clients, one exchange; the answers, in the same order.

        A client may be asked twice in one exchange.
        """
        began = time.perf_counter()
        answers = self._exchange([(client, message.to_bytes()) for client, message in messages])
        self.usage.exchanges += 1
        self.usage.waited_seconds += time.perf_counter() - began
        return [ArrayMessage.from_bytes(answer) for answer in answers]

    def _count(self, sent: int, answered: int, seconds: float) -> None:
        """Note one message, its answer and how long the client worked on it."""
        self.usage.bytes_down += sent
        self.usage.bytes_up += answered
        self.usage.client_seconds += seconds

    @abstractmethod
    def _exchange(self, messages: Sequence[tuple[int, bytes]]) -> list[bytes]:
        """Carry bytes to clients and back, and count them with `_count`; note the busiest client in
        `usage`.
        """

    @abstractmethod
    def states(self) -> dict[int, State]:
        """What each client remembers, to be saved."""

    def state_bytes(self) -> int:
        """The size of what all clients remember; an engine that knows it need not fetch the
        states.
        """
        return sum(array.nbytes for state in self.states().values() for array in state.values())

    @abstractmethod
    def restore(self, states: Mapping[int, State]) -> None:
        """Let clients go on from what they remembered."""


class ProcessEngine(MessageEngine):
    """Clients are objects in this process, which work one after another; messages are real bytes
    all the same.
    """

    def __init__(self, pool: Pool, employ: Employ) -> None:
        super().__init__()
        self.workers = [employ(client, pool.samples_of(client)) for client in range(pool.clients)]

    def _exchange(self, messages: Sequence[tuple[int, bytes]]) -> list[bytes]:
        answers, busiest = [], 0.0
        for client, data in messages:
            began = time.perf_counter()
            answer = self.workers[client].respond(ArrayMessage.from_bytes(data)).to_bytes()
            seconds = time.perf_counter() - began
            self._count(len(data), len(answer), seconds)
            busiest = max(busiest, seconds)
            answers.append(answer)
        self.usage.busiest_seconds += busiest
        return answers

    def states(self) -> dict[int, State]:
        """What each client remembers."""
        return {worker.client: worker.state() for worker in self.workers}

    def restore(self, states: Mapping[int, State]) -> None:
        """Give each worker its state."""
        for worker in self.workers:
            worker.restore(states[worker.client])
