"""Many simulations, on several processes; and what all of them have seen."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

from expunge.testing.simulation.machine import TROUBLES
from expunge.testing.simulation.network import FATES
from expunge.testing.simulation.scenario import DAMAGES, WEIGHTS, Scenario
from expunge.testing.simulation.simulation import Outcome, simulate

# What there is to be seen; other things are counted as they come.
KINDS = (
    *(f"step: {kind}" for kind in WEIGHTS),
    *(f"network: {fate}" for fate in FATES),
    *(f"fault: {trouble}" for trouble in TROUBLES),
    *(f"damage: {damage}" for damage in DAMAGES),
)


@dataclass
class Campaign:
    """What simulations have seen together."""

    runs: int = 0
    messages: int = 0
    seconds: float = 0.0  # of processors
    coverage: Counter[str] = field(default_factory=Counter)
    broken: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """One more."""
        self.runs += 1
        self.messages += outcome.messages
        self.seconds += outcome.seconds
        self.coverage += outcome.coverage
        if outcome.broken is not None:
            self.broken.append(outcome)

    @property
    def receipts(self) -> int:
        """How many requests of clients have their receipts."""
        return self.coverage["receipts"]

    @property
    def rate(self) -> float:
        """Requests with receipts for each second that one core is at work, with everything: faults,
        laws, founding, settling.
        """
        return self.receipts / self.seconds if self.seconds else 0.0

    @property
    def unseen(self) -> list[str]:
        """What has not happened once."""
        return [kind for kind in KINDS if not self.coverage[kind]]


def run_all(
    scenarios: Sequence[Scenario], folder: Path, jobs: int, progress: Callable[[int], None]
) -> Campaign:
    """Simulate all of these, below a folder; `progress` is told how many have ended."""
    campaign = Campaign()
    for outcome in _outcomes(scenarios, folder, jobs):
        campaign.add(outcome)
        progress(campaign.runs)
    campaign.broken.sort(key=lambda outcome: outcome.scenario.seed)
    return campaign


def _outcomes(scenarios: Sequence[Scenario], folder: Path, jobs: int) -> Iterator[Outcome]:
    if jobs == 1 or len(scenarios) == 1:
        yield from (_one(scenario, folder) for scenario in scenarios)
        return
    # Processes, for a simulation has SQLite and the mounted disks to itself.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        try:
            for done in as_completed([pool.submit(_one, each, folder) for each in scenarios]):
                yield done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _one(scenario: Scenario, folder: Path) -> Outcome:
    return simulate(scenario, folder / f"simulation-{os.getpid()}")
