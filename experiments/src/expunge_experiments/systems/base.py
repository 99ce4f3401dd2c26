"""System: the one interface behind which everything is compared.

Implement it, and every experiment runs a method of your own.

A system is made for a pool of samples and trained on some of them; after that it deletes and adds
samples by their numbers in the pool. What it cannot do it does not list in `supports`, and asking
for it raises `UnsupportedError`: results then say so. Every operation returns what it cost.
`expunge_experiments.systems.check.check_system` is the conformance suite.
"""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from expunge.errors import ExpungeError, InputError
from expunge_experiments.engine import MessageEngine, State
from expunge_experiments.message import Array, ArrayMessage
from expunge_experiments.pool import Pool

OPERATIONS = ("delete", "delete_client", "add")


class UnsupportedError(ExpungeError, NotImplementedError):
    """An operation that a compared system does not have."""


@dataclass(frozen=True)
class Cost:
    """What an operation cost. seconds = client + server + orchestration.

    `client_seconds` is the work of all clients together, divided by how many work at the same time;
    `orchestration_seconds` is the rest of the wait for them. `rounds` counts exchanges with
    clients. `recomputed` counts the training steps that an operation has repeated (rounds of FedAvg
    and Exact-Fun, local steps of FATS, slices of SISA); `skipped` is 1 if a deletion was answered
    without repeating any, by a system that knows of such a thing. `checkpoint_bytes` is what the
    system must keep afterwards, at server and clients together, besides the samples themselves.
    """

    seconds: float = 0.0
    client_seconds: float = 0.0
    server_seconds: float = 0.0
    orchestration_seconds: float = 0.0
    rounds: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    checkpoint_bytes: int = 0
    recomputed: int = 0
    skipped: int = 0

    def __add__(self, other: Cost) -> Cost:
        """Both, one after the other: everything adds up but what is kept, which is what is kept in
        the end.
        """
        summed = {
            field.name: getattr(self, field.name) + getattr(other, field.name)
            for field in fields(self)
        }
        return Cost(**(summed | {"checkpoint_bytes": other.checkpoint_bytes}))

    def as_dict(self) -> dict[str, Any]:
        """For results."""
        return asdict(self)


class System(ABC):
    """Base of all systems: keeps account of what is retained and of costs; subclasses do the
    learning.

    `engine` is None for centralized systems, which see the pool itself. Randomness comes from
    `seed` alone.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    supports: ClassVar[frozenset[str]] = frozenset(OPERATIONS)

    def __init__(self, pool: Pool, engine: MessageEngine | None, settings: Any, seed: int) -> None:
        self.pool = pool
        self._engine = engine
        self.settings = settings
        self.seed = seed
        self.retained: NDArray[np.bool_] = np.zeros(pool.size, dtype=bool)
        self.trained = False
        self.recomputed = 0  # running counts; an operation's cost is the difference
        self.skipped = 0

    @property
    def engine(self) -> MessageEngine:
        """The way to the clients."""
        if self._engine is None:
            raise InputError(f"{self.title} is centralized: it has no clients to ask")
        return self._engine

    # -- operations --------------------------------------------------------------------------------

    def train(self, numbers: Array | None = None) -> Cost:
        """Train from scratch on these samples (all of the pool, if none are named)."""
        chosen = np.arange(self.pool.size) if numbers is None else self._checked(numbers)
        if self.trained:
            raise InputError(f"{self.title} has been trained already: make a new one")
        self.retained[chosen] = True
        self.trained = True
        return self._measured(lambda: self._train(chosen))

    def delete(self, numbers: Array) -> Cost:
        """Delete samples, of one client or of many, as one request."""
        self._require("delete")
        chosen = self._checked(numbers)
        if not self.retained[chosen].all():
            raise InputError(
                f"{self.title}: some samples to be deleted are not retained; nothing was deleted"
            )
        self.retained[chosen] = False
        return self._measured(lambda: self._delete(chosen))

    def delete_client(self, client: int) -> Cost:
        """Delete all samples of a client, and the client with them."""
        self._require("delete_client")
        if not 0 <= client < self.pool.clients:
            raise InputError(
                f"there are clients 0 to {self.pool.clients - 1}, and no client {client}"
            )
        numbers = self.pool.numbers_of(client)
        chosen = numbers[self.retained[numbers]]
        self.retained[chosen] = False
        return self._measured(lambda: self._delete_client(client, chosen))

    def add(self, numbers: Array) -> Cost:
        """Add samples of the pool that are not retained."""
        self._require("add")
        chosen = self._checked(numbers)
        if self.retained[chosen].any():
            raise InputError(
                f"{self.title}: some samples to be added are retained already; nothing was added"
            )
        self.retained[chosen] = True
        return self._measured(lambda: self._add(chosen))

    @abstractmethod
    def predict(self, features: NDArray[np.float32]) -> NDArray[np.int64]:
        """The predicted label of each row."""

    @property
    def weights(self) -> Array | None:
        """The head (dim + 1, classes), its last row the intercept; None for systems without a
        single one.
        """
        return None

    @property
    def digest(self) -> str:
        """SHA-256 over the head's kind, shape and bytes: equal digests are equal bits.

        Empty where there is no single head.
        """
        weights = self.weights
        if weights is None:
            return ""
        header = f"{weights.dtype.str} {weights.shape} ".encode()
        return hashlib.sha256(header + np.ascontiguousarray(weights).tobytes()).hexdigest()

    def accuracy(self, features: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
        """The fraction of labels predicted right."""
        return float(np.mean(self.predict(features) == labels)) if len(labels) else float("nan")

    # -- what subclasses do ------------------------------------------------------------------------

    @abstractmethod
    def _train(self, numbers: Array, /) -> None:
        """Train on these samples."""

    def _delete(self, numbers: Array, /) -> None:
        """Delete these samples; `retained` has changed already."""
        raise NotImplementedError

    def _delete_client(
        self, _client: int, numbers: Array, /
    ) -> None:  # some treat clients otherwise
        """Delete a client whose retained samples are these."""
        self._delete(numbers)

    def _add(self, numbers: Array, /) -> None:
        """Add these samples; `retained` has changed already."""
        raise NotImplementedError

    @abstractmethod
    def _state(self) -> State:
        """All that the server must remember.

        A new system given it (and its clients theirs) continues in the same way.
        """

    @abstractmethod
    def _restore(self, state: Mapping[str, Array]) -> None:
        """Go on from a state."""

    # -- help for subclasses -----------------------------------------------------------------------

    def by_client(self, numbers: Array) -> dict[int, Array]:
        """These samples by their clients, ascending."""
        ordered = np.sort(numbers)
        owners = self.pool.owners[ordered]
        return {int(client): ordered[owners == client] for client in np.unique(owners)}

    def tell(self, task: str, numbers: Array) -> list[tuple[int, ArrayMessage]]:
        """Ask every client that owns some of these samples, if any does, to "add" or "forget" them;
        the answers, by client.
        """
        parts = self.by_client(numbers)
        if not parts:
            return []
        answers = self.engine.ask(
            [(client, ArrayMessage(task, {}, {"numbers": mine})) for client, mine in parts.items()]
        )
        return list(zip(parts, answers, strict=True))

    # -- keeping -----------------------------------------------------------------------------------

    @property
    def checkpoint_bytes(self) -> int:
        """The bytes of everything that must be kept to go on, at server and clients."""
        own = sum(array.nbytes for array in self._state().values())
        return own + (self._engine.state_bytes() if self._engine is not None else 0)

    def save(self, folder: Path) -> None:
        """Write everything that must be kept, such that `load` in another process goes on alike."""
        folder.mkdir(parents=True, exist_ok=True)
        counts = np.array([self.recomputed, self.skipped], dtype=np.int64)
        account = {"system.retained": self.retained, "system.counts": counts}
        _write(folder / "server.npz", self._state() | account)
        if self._engine is not None:
            for client, state in self._engine.states().items():
                _write(folder / f"client-{client}.npz", state)

    def load(self, folder: Path) -> Self:
        """Go on from what `save` wrote, in a system that was made with the same pool, settings and
        seed.
        """
        state = _read(folder / "server.npz")
        self.retained = state.pop("system.retained").astype(bool)
        self.recomputed, self.skipped = map(int, state.pop("system.counts"))
        self.trained = True
        if self._engine is not None:
            clients = range(self.pool.clients)
            self._engine.restore(
                {client: _read(folder / f"client-{client}.npz") for client in clients}
            )
        self._restore(state)
        return self

    # -- account -----------------------------------------------------------------------------------

    def _require(self, operation: str) -> None:
        if operation not in self.supports:
            raise UnsupportedError(
                f"{self.title} has no operation {operation!r}; it has: "
                f"{', '.join(sorted(self.supports)) or 'none'}"
            )
        if not self.trained:
            raise InputError(f"{self.title} has not been trained: call train first")

    def _checked(self, numbers: Array) -> Array:
        chosen = np.asarray(numbers, dtype=np.int64)
        if chosen.ndim != 1 or len(np.unique(chosen)) != len(chosen):
            raise InputError("samples are named by a list of different numbers")
        if len(chosen) and not (chosen.min() >= 0 and chosen.max() < self.pool.size):
            raise InputError(
                f"the pool has samples 0 to {self.pool.size - 1}, and {chosen.min()} to "
                f"{chosen.max()} were named"
            )
        return np.sort(chosen)

    def _measured(self, operation: Callable[[], None]) -> Cost:
        before, recomputed, skipped = self._used(), self.recomputed, self.skipped
        began = time.perf_counter()
        operation()
        seconds = time.perf_counter() - began
        used = {name: value - before[name] for name, value in self._used().items()}
        parallel = self._engine.parallel if self._engine is not None else 1
        client = used["client_seconds"] / parallel
        return Cost(
            seconds=seconds,
            client_seconds=client,
            server_seconds=seconds - used["waited_seconds"],
            orchestration_seconds=used["waited_seconds"] - client,
            rounds=int(used["exchanges"]),
            bytes_up=int(used["bytes_up"]),
            bytes_down=int(used["bytes_down"]),
            checkpoint_bytes=self.checkpoint_bytes,
            recomputed=self.recomputed - recomputed,
            skipped=self.skipped - skipped,
        )

    def _used(self) -> dict[str, float]:
        names = ("exchanges", "bytes_up", "bytes_down", "client_seconds", "waited_seconds")
        return {
            name: float(getattr(self._engine.usage, name)) if self._engine is not None else 0.0
            for name in names
        }


def _write(path: Path, state: State) -> None:
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **state)


def _read(path: Path) -> State:
    try:
        with np.load(path, allow_pickle=False) as content:
            return {name: content[name] for name in content.files}
    except FileNotFoundError as problem:
        raise InputError(
            f"{path} is missing: a system is loaded from the folder that its `save` wrote"
        ) from problem
