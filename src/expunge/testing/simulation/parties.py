"""The parties of a simulated federation: each a machine with a disk, a clock and a program that may
be running.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from expunge.crypto.vault import SECTOR, SLOT_BYTES, SLOTS
from expunge.errors import CarrierError, ExpungeError, RefusedError
from expunge.server.requests import Offer
from expunge.server.service import Service
from expunge.server.state import Settings
from expunge.storage.machine import mounted
from expunge.testing.simulation.disk import CrashedError, Disk
from expunge.testing.simulation.machine import SimulatedMachine
from expunge.testing.simulation.world import Clock, LawBrokenError, World

_T = TypeVar("_T")


class Party:
    """Somebody with a machine. `vault` is where it keeps keys, if it does."""

    vault = ""

    def __init__(self, world: World, name: str, path: Path) -> None:
        self.world = world
        self.name = name
        self.path = path / name
        self.disk = Disk(self.path)
        self.clock = Clock(world)
        self.keys: set[bytes] = set()  # that were ever in its vault
        self.is_busy = False
        self._boots = 0
        self._mount: Any = None
        self.machine = self._booted()

    def _booted(self) -> SimulatedMachine:
        self._boots += 1
        seed = f"{self.world.seed}/{self.name}/{self._boots}".encode()
        machine = SimulatedMachine(self.name, self.disk, seed)
        if self._mount is not None:
            self._mount.__exit__(None, None, None)
        self._mount = mounted(self.path, machine)
        self._mount.__enter__()
        return machine

    # -- running -----------------------------------------------------------------------------------

    @property
    def is_up(self) -> bool:
        """Whether its program is running."""
        raise NotImplementedError

    def start(self) -> None:
        """Start the program, if it is not running."""
        raise NotImplementedError

    def stop(self) -> None:
        """End the program in good order."""
        raise NotImplementedError

    def abandon(self) -> None:
        """The program is gone without an end."""
        raise NotImplementedError

    def crash(self, *, power: bool) -> None:
        """The program is killed; or the power of its machine is cut."""
        for operation, count in self.machine.operations.items():
            self.world.coverage[f"disk: {operation}"] += count
        self.machine.crash()
        self.abandon()
        if power:
            loss = self.world.chance.choice((0.1, 0.5, 1.0))
            self.disk.cut_power(self.world.chance, loss)
        self.world.count(f"{self.name.rstrip('0123456789')}: {'power cut' if power else 'killed'}")
        self.machine = self._booted()

    def end(self) -> None:
        """The simulation is over."""
        self.machine.crash()
        self.abandon()
        self._mount.__exit__(None, None, None)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Nobody lets this party act meanwhile."""
        self.is_busy = True
        try:
            yield
        finally:
            self.is_busy = False

    def attempt(self, what: str, action: Callable[[], _T]) -> _T | None:
        """Do something that may fail: a crash of this machine ends its program, an error of ours
        is noted. Every other exception breaks a law.
        """
        with self.at_work():
            try:
                result = action()
            except CrashedError:
                self.world.tell(self.name, f"{what}: crashed")
                self.crash(power=self.world.chance.random() < 0.7)
                return None
            except ExpungeError as problem:
                self.world.tell(self.name, f"{what}: {type(problem).__name__}: {problem}")
                self.world.count(f"{what}: {type(problem).__name__}")
                return None
            except OSError as problem:
                if not self.machine.had_trouble:
                    raise LawBrokenError("errors", f"{what}: {problem!r}") from problem
                self.world.tell(self.name, f"{what}: {problem.strerror}")
                self.world.count(f"{what}: OSError")
                return None
            except Exception as problem:
                raise LawBrokenError(
                    "errors", f"{self.name}, {what}: {type(problem).__name__}: {problem}"
                ) from problem
        self.world.count(f"{what}: done")
        return result

    # -- keys --------------------------------------------------------------------------------------

    def note_keys(self) -> set[bytes]:
        """The keys that are in the vault now; they are remembered."""
        file = self.path / self.vault
        if not self.vault or not file.exists():
            return set()
        now = set(keys_in(file.read_bytes()))
        self.keys |= now
        return now


class ServerParty(Party):
    """The server."""

    vault = "server/server.vault"

    def __init__(self, world: World, name: str, path: Path, settings: Settings) -> None:
        super().__init__(world, name, path)
        self.folder = self.path / "server"
        self.settings = settings
        self.service: Service | None = None
        self.healthy_since = world.time
        # What has been answered: the entries of the log that somebody may know of.
        self.log: list[bytes] = []

    @property
    def is_up(self) -> bool:
        """Whether the service is running."""
        return self.service is not None

    def start(self) -> None:
        """Start the service."""
        if self.service is None:
            self.service = Service.open(
                self.folder,
                settings=self.settings,
                clock=self.clock.wall,
                seconds=self.clock.seconds,
                report=self._reported,
                upkeep=False,
                threads=False,
            )
            self.healthy_since = self.world.time

    def _reported(self, text: str, problem: BaseException | None) -> None:
        self.world.tell(self.name, text if problem is None else f"{text}: {problem}")
        if isinstance(problem, Exception) and not isinstance(problem, (ExpungeError, OSError)):
            raise LawBrokenError("errors", f"{text}: {problem!r}") from problem

    def stop(self) -> None:
        """End it in good order."""
        service, self.service = self.service, None
        if service is not None:
            service.close()

    def abandon(self) -> None:
        """It was killed."""
        self.service = None

    def tick(self) -> None:
        """What the server does from time to time."""
        service = self.service
        if service is not None and not self.is_busy:
            self.attempt("upkeep", service.upkeep.run_due)
            if self.machine.has_trouble:
                self.healthy_since = self.world.time

    def call(self, name: str, *arguments: Any, meanwhile: Callable[[], None]) -> Any:
        """What the server answers, as a carrier brings it."""
        if self.is_busy:
            raise CarrierError("the server does something else")
        offer = None
        if name == "request" and self.service is not None:
            offer = self._answered(name, lambda service: service.take(*arguments))
        meanwhile()
        if offer is not None:
            return self._answered(name, lambda service: _receipt(service, offer))
        return self._answered(name, lambda service: _answer(service, name, *arguments))

    def _answered(self, name: str, ask: Callable[[Service], _T]) -> _T:
        service = self.service
        if service is None:
            raise CarrierError("the server is not running")
        with self.at_work():
            try:
                answer = ask(service)
            except (RefusedError, CarrierError):
                raise
            except CrashedError:
                self.world.tell(self.name, f"crashed in {name}")
                self.crash(power=self.world.chance.random() < 0.7)
                raise CarrierError("the server has stopped") from None
            except (ExpungeError, OSError) as problem:
                self.world.tell(self.name, f"{name} failed: {problem}")
                self.world.count(f"server failed: {type(problem).__name__}")
                raise CarrierError("the server failed") from problem
            except Exception as problem:
                raise LawBrokenError("errors", f"the server, {name}: {problem!r}") from problem
        return answer


def _answer(service: Service, name: str, *arguments: Any) -> Any:
    if name == "aggregate":  # nobody waits: the client comes again
        return service.turn(*arguments).data
    return getattr(service, name)(*arguments)


def _receipt(service: Service, offer: Offer) -> bytes:
    service.catch_up()
    if not offer.answer.done():
        raise CarrierError("the server was started anew")
    return offer.answer.result()


def keys_in(vault: bytes) -> Iterator[bytes]:
    """The keys in the file of a vault, as docs/protocol.md has it."""
    for sector in range(SECTOR, len(vault), SECTOR):
        for slot in range(SLOTS):
            start = sector + slot * SLOT_BYTES
            key = vault[start : start + 32]
            if any(key):
                yield key
