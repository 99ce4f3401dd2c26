"""The parties of a simulated federation: each a machine with a disk, a clock and a program that may
be running.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from expunge.crypto.vault import SECTOR, SLOT_BYTES, SLOTS
from expunge.errors import ExpungeError
from expunge.storage.machine import mounted
from expunge.storage.scrub import ScrubResult
from expunge.testing.simulation.disk import CrashedError, Disk
from expunge.testing.simulation.machine import SimulatedMachine
from expunge.testing.simulation.world import Clock, LawBrokenError, World

_T = TypeVar("_T")
_NO_KEY = bytes(32)


class Party:
    """Somebody with a machine. `vaults` are where it keeps keys, if it does."""

    vaults: tuple[str, ...] = ()

    def __init__(self, world: World, name: str, path: Path) -> None:
        self.world = world
        self.name = name
        self.path = path / name
        self.disk = Disk(self.path)
        self.clock = Clock(world)
        self.keys: set[bytes] = set()  # that were ever in its vault
        self.is_busy = False
        self.failure: ExpungeError | None = None  # what the last attempt failed by
        self.problem: ExpungeError | None = None  # what any has failed by last
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
        self._stop_machine()
        if power:
            loss = self.world.chance.choice((0.1, 0.5, 1.0))
            self.disk.cut_power(self.world.chance, loss)
        self.world.count(f"{self.name.rstrip('0123456789')}: {'power cut' if power else 'killed'}")
        self.machine = self._booted()

    def replace_disk(self) -> None:
        """The disk is lost, with every key that was on it; there is an empty one."""
        shutil.rmtree(self.path)
        self.disk, self.keys = Disk(self.path), set()
        self.machine = self._booted()

    def end(self) -> None:
        """The simulation is over."""
        self._stop_machine()
        self._mount.__exit__(None, None, None)

    def _stop_machine(self) -> None:
        self.world.coverage.update(self.machine.counts)
        self.machine.crash()
        self.abandon()

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
        self.failure = None
        with self.at_work():
            try:
                result = action()
            except CrashedError:
                self.world.tell(self.name, f"{what}: crashed")
                self.crash(power=self.world.chance.random() < 0.7)
                return None
            except LawBrokenError:
                raise
            except ExpungeError as problem:
                self.failure = self.problem = problem
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

    def scrub(self, *, repair: bool) -> list[str]:  # noqa: ARG002 - of those that can be scrubbed
        """While it is stopped, read everything that it has; what is damaged, and stays so."""
        return []

    # -- keys --------------------------------------------------------------------------------------

    def note_keys(self) -> set[bytes]:
        """The keys that are in its vaults now; they are remembered."""
        now = {key for vault in self.vaults for key in self.keys_of(vault)}
        self.keys |= now
        return now

    def keys_of(self, vault: str) -> set[bytes]:
        """Those in one vault."""
        file = self.path / vault
        return {key for _, key in keys_in(file.read_bytes())} if file.exists() else set()

    def needed_keys(self) -> dict[str, int]:
        """How many keys each of its vaults needs, when nothing is under way."""
        return {}


def unrepaired(scrubbed: ScrubResult) -> list[str]:
    """What a scrub has found and left."""
    return [f"{each.what}: {each.text}" for each in scrubbed.findings if not each.repaired]


def keys_in(vault: bytes) -> Iterator[tuple[int, bytes]]:
    """The keys in the file of a vault, by slot; its format is that of `expunge.crypto.vault`."""
    for sector in range(SECTOR, len(vault), SECTOR):
        for place in range(SLOTS):
            start = sector + place * SLOT_BYTES
            key = vault[start : start + 32]
            if key != _NO_KEY:
                yield (sector // SECTOR - 1) * SLOTS + place, key
