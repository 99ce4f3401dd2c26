"""Fewer steps that break the same law: what has nothing to do with it is left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from expunge.testing.simulation.scenario import Scenario


def shrink(scenario: Scenario, fails: Callable[[Scenario], bool], most: int = 200) -> Scenario:
    """The scenario without steps that it fails without.

    Parts of half of the steps are left out, then of a quarter, and so on, as long as what is left
    still fails.

    Parameters
    ----------
    scenario : Scenario
        One that fails.
    fails : callable
        Whether a scenario fails in the same way.
    most : int, default 200
        How often to try at the most.

    Returns
    -------
    Scenario
        One that fails as well, if not all tries were used up one without any step to spare.

    Examples
    --------
    >>> from expunge.testing.simulation import Scenario, shrink
    >>> list(shrink(Scenario.drawn(0), lambda less: {30, 70} <= set(less.steps)).steps)
    [30, 70]
    """
    steps: Sequence[int] = list(scenario.steps)
    size, tries = max(1, len(steps) // 2), 0
    while True:
        start, has_shrunk = 0, False
        while start < len(steps) and tries < most:
            fewer = [*steps[:start], *steps[start + size :]]
            tries += 1
            if fails(scenario.only(fewer)):
                steps, has_shrunk = fewer, True
            else:
                start += size
        if tries >= most or (size == 1 and not has_shrunk):
            return scenario.only(steps)
        size = max(1, size // 2)
