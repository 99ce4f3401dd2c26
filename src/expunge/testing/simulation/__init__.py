"""Whole federations, simulated: every party on a machine of its own, in one process and one thread,
while messages are lost and repeated, disks tear writes and fail, and clocks jump.

A seed decides everything, so that whatever goes wrong can be looked at again. The parties are the
real ones; simulated are their disks (below vaults, files and SQLite), their clocks, what they draw
at random, and the network. It needs the extra `simulation`.
"""

from typing import TYPE_CHECKING

from expunge._lazy import lazy_names

if TYPE_CHECKING:
    from expunge.testing.simulation.scenario import Scenario
    from expunge.testing.simulation.shrinking import shrink
    from expunge.testing.simulation.simulation import Outcome, simulate
    from expunge.testing.simulation.world import LawBrokenError

__all__ = ["LawBrokenError", "Outcome", "Scenario", "shrink", "simulate"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "LawBrokenError": "expunge.testing.simulation.world",
        "Outcome": "expunge.testing.simulation.simulation",
        "Scenario": "expunge.testing.simulation.scenario",
        "shrink": "expunge.testing.simulation.shrinking",
        "simulate": "expunge.testing.simulation.simulation",
    },
)
