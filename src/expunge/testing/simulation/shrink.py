"""Fewer steps that break the same law: what has nothing to do with it is left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from expunge.testing.simulation.plan import Plan


def shrink(plan: Plan, fails: Callable[[Plan], bool], most: int = 200) -> Plan:
    """The plan without steps that it fails without, found in so many tries at the most.

    Parts of half of the steps are left out, then of a quarter, and so on, as long as what is left
    still fails.
    """
    steps: Sequence[int] = list(plan.steps)
    size, tries = max(1, len(steps) // 2), 0
    while True:
        start, has_shrunk = 0, False
        while start < len(steps) and tries < most:
            fewer = [*steps[:start], *steps[start + size :]]
            tries += 1
            if fails(plan.only(fewer)):
                steps, has_shrunk = fewer, True
            else:
                start += size
        if tries >= most or (size == 1 and not has_shrunk):
            return plan.only(steps)
        size = max(1, size // 2)
