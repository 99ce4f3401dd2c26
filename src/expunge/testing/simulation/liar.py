"""A client that lies in rounds of secure aggregation: what it masks is not what it has.

Its program is the real one, patched to cheat at one place.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from expunge.exact.wide import Wide
from expunge.secagg import Participant
from expunge.testing.simulation.world import World


@contextmanager
def lying(name: str, world: World) -> Iterator[None]:
    """Meanwhile a client of this name has another bit in each sum of a change that it masks."""
    honest = Participant.on_deliveries

    def on_deliveries(self: Participant, told: bytes, vector: Wide) -> bytes:
        if self.name == name and self.opening.purpose == "change":
            world.count("a lie")
            vector = vector.copy()
            entry = world.chance.randrange(vector.shape[1])
            vector[1, entry] ^= np.uint64(1 << 63)
        return honest(self, told, vector)

    Participant.on_deliveries = on_deliveries  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        Participant.on_deliveries = honest  # type: ignore[method-assign]
