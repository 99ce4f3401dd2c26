"""Who masks with whom: a ring in random order on which each client's neighbours are those next to it.

Law: every party that holds the same roster has the same graph; being neighbours is mutual; every client has `degree` neighbours.
The order is by SHA-256(seed, name), which for a seed that nobody chose is a uniformly random order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from expunge.errors import InputError


class Graph:
    """The neighbours of every client of a round."""

    def __init__(self, seed: bytes, names: Sequence[str], degree: int) -> None:
        complete = degree == len(names) - 1
        if not complete and (degree % 2 or not 0 < degree < len(names)):
            raise InputError(
                f"{len(names)} clients cannot have {degree} neighbours each: it must be all others, or an even number"
            )
        self._order = sorted(names, key=lambda name: hashlib.sha256(seed + name.encode("ascii")).digest())
        self._place = {name: place for place, name in enumerate(self._order)}
        self._complete = complete
        self._reach = degree // 2

    def neighbours(self, name: str) -> tuple[str, ...]:
        """The neighbours of a client, sorted by name."""
        place, count = self._place[name], len(self._order)
        if self._complete:
            found = self._order[:place] + self._order[place + 1 :]
        else:
            steps = range(1, self._reach + 1)
            found = [self._order[(place + way * step) % count] for step in steps for way in (1, -1)]
        return tuple(sorted(found))
