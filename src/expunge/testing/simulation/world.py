"""What all parties of a simulation share: time, chance, and what has been seen of them."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path
from random import Random

BEGINNING = 1_800_000_000.0  # seconds since 1970, when every simulation begins


class LawBrokenError(Exception):
    """A law of Expunge does not hold in this simulation.

    Parameters
    ----------
    law : str
        The name of the law.
    what : str
        How it was broken.

    Examples
    --------
    >>> from expunge.testing.simulation import LawBrokenError
    >>> print(LawBrokenError("nothing lost", "north lacks 2 samples"))
    nothing lost: north lacks 2 samples
    """

    def __init__(self, law: str, what: str) -> None:
        super().__init__(law, what)
        self.law, self.what = law, what

    def __str__(self) -> str:
        return f"{self.law}: {self.what}"


class World:
    """Time passes when somebody says so; chance is drawn anew for each step, so that leaving one
    out changes nothing in the others.
    """

    def __init__(self, seed: int, path: Path) -> None:
        """`path` is where the disks are; nothing that is traced has it."""
        self.seed = seed
        self.path = path
        self.time = BEGINNING
        self.step = 0
        self.chance = Random(f"{seed}")  # noqa: S311 - it is to be repeated
        self.coverage: Counter[str] = Counter()
        self.messages = 0
        self.journal: list[str] = []
        self._trace = hashlib.sha256()

    def begin(self, step: int) -> None:
        """From now on chance is that of a step."""
        self.step = step
        self.chance = Random(f"{self.seed}/{step}")  # noqa: S311 - it is to be repeated

    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.time += seconds

    def tell(self, who: str, what: str) -> None:
        """Somebody did something, for those who read what happened."""
        what = what.replace(f"{self.path}/", "")
        self.journal.append(f"{self.step:4} {self.time - BEGINNING:9.1f}s  {who}: {what}")
        self.trace(f"{who}: {what}".encode())

    def count(self, what: str) -> None:
        """Something happened that is worth counting."""
        self.coverage[what] += 1

    def trace(self, data: bytes) -> None:
        """Bytes that must be the same whenever this is repeated."""
        self._trace.update(len(data).to_bytes(8, "big"))
        self._trace.update(data)

    @property
    def digest(self) -> str:
        """A hash of everything that has been traced."""
        return self._trace.hexdigest()


class Clock:
    """The clock of a machine, which may be wrong; how long something takes it knows."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.ahead = 0.0

    def wall(self) -> float:
        """The seconds since 1970, as this machine has them."""
        return self.world.time + self.ahead

    def seconds(self) -> float:
        """A time that is never set."""
        return self.world.time
