"""`expunge simulate`: whole federations among faults, and whether every law holds."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
from rich.console import RenderableType

from expunge.cli._command import DONE, FAILED, command
from expunge.cli._options import FOLDER
from expunge.cli._output import Screen, count, facts, line, next_steps, title, unwrapped
from expunge.errors import InputError
from expunge.testing.simulation.campaign import Campaign, run_all
from expunge.testing.simulation.scenario import BUSY_STEPS, STEPS, Scenario
from expunge.testing.simulation.shrinking import shrink
from expunge.testing.simulation.simulation import Outcome
from expunge.testing.simulation.simulation import simulate as run

_RANGE = re.compile(r"(\d{1,12})(?:-(\d{1,12}))?")
_MEMORY = Path("/dev/shm")  # noqa: S108 - where there is one: simulated disks need no real one
_TRIES = 200
_MANY = 20  # simulations, of which one expects to see everything
_GROUPS = {  # by what the names of counts begin with
    "step": "Steps",
    "network": "Network",
    "fault": "Disk faults",
    "damage": "Damage",
    "server": "Server",
    "group": "Aggregators",
    "client": "Clients",
    "operator": "Operator",
    "officer": "Officer",
    "law": "Laws compared",
}


@command("simulate")
@click.option(
    "--seeds",
    default="0-19",
    show_default=True,
    metavar="N|FROM-TO",
    help="The seeds, from which everything follows.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    help=f"Steps of each simulation. [default: {STEPS}, or {BUSY_STEPS} with --busy]",
)
@click.option("--only", metavar="STEPS", help="Only these steps, by their numbers: 3,7,21-24.")
@click.option(
    "--masked/--plain",
    "masked",
    default=None,
    help="With secure aggregation, or without it. [default: as each seed says]",
)
@click.option(
    "--groups/--no-groups",
    "groups",
    default=None,
    help="With aggregators, or without. [default: as each seed says]",
)
@click.option(
    "--busy",
    is_flag=True,
    help="Clients bring most changes at once: many requests for few other messages.",
)
@click.option("--no-faults", "calm", is_flag=True, help="Nothing goes wrong.")
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    help="Simulations to run at once. [default: one per processor]",
)
@click.option(
    "--folder",
    type=FOLDER,
    help="Where to put the simulated disks meanwhile. [default: in memory, where possible]",
)
@click.option("--journal", is_flag=True, help="Show what happened, with a single seed.")
def simulate(
    *,
    seeds: str,
    steps: int | None,
    only: str | None,
    masked: bool | None,
    groups: bool | None,
    busy: bool,
    calm: bool,
    jobs: int | None,
    folder: Path | None,
    journal: bool,
) -> int:
    """Simulate federations among faults, and check that every law holds.

    Each simulation is a whole federation in one thread: the real server, aggregators, clients and
    offices, each on a machine of its own. Machines crash, disks tear writes, fill up and fail,
    messages are lost, repeated and damaged, clocks jump, backups are restored. After every step
    nothing may be lost or applied twice; in the end the heads must be those of a retrain, orders
    complete, receipts valid, and what was erased nowhere on any disk.

    Receipts count the requests of clients that the server has applied and receipted, and that the
    client has verified and settled. Their rate for each core at work has everything in it: faults,
    laws, founding and settling.

    The same seed always does the same. If a law is broken, the fewest steps that break it are
    looked for, and shown with the command that repeats them.

    Example:
      expunge simulate --seeds 0-3
      expunge simulate --seeds 7 --journal
      expunge simulate --seeds 8 --busy --steps 90
    """
    screen = Screen.current()
    numbers = _range("--seeds", seeds)
    if journal and len(numbers) > 1:
        raise InputError(f"--journal shows one simulation, --seeds {seeds} are {len(numbers)}")
    chosen = None if only is None else _steps(only)
    drawn = [
        Scenario.drawn(seed, steps=steps, masked=masked, groups=groups, busy=busy)
        for seed in numbers
    ]
    drawn = [each.without_faults() if calm else each for each in drawn]
    scenarios = [each if chosen is None else each.only(chosen) for each in drawn]
    with tempfile.TemporaryDirectory(dir=folder or _memory(), prefix="expunge-") as temporary:
        place, began = Path(temporary), time.monotonic()
        with screen.progress("Simulating", len(scenarios)) as progress:
            campaign = run_all(scenarios, place, jobs or os.cpu_count() or 1, progress)
        took = time.monotonic() - began
        first = campaign.broken[0] if campaign.broken else None
        if first is not None and chosen is None:
            first = _fewest_steps(screen, first, place)
        if journal and not campaign.broken:
            first = run(scenarios[0], place / "journal")
    kind = _kind(masked=masked, groups=groups, busy=busy, calm=calm)
    replay = None if first is None or first.broken is None else _replay(first, kind)
    screen.result(
        _value(campaign, first, replay, took),
        title(
            f"{count(campaign.runs, 'simulation')}: "
            + (f"{len(campaign.broken)} broke a law" if campaign.broken else "every law held")
        ),
        facts(_facts(campaign, seeds, took)),
        *(_shown(first) if first is not None else ()),
        *([next_steps(replay, why="To see it again:")] if replay is not None else []),
    )
    return FAILED if campaign.broken else DONE


def _memory() -> Path | None:
    return _MEMORY if os.access(_MEMORY, os.W_OK) else None


def _range(option: str, text: str) -> range:
    match = _RANGE.fullmatch(text)
    if match is None:
        raise InputError(f"{option} {text!r:.40} must be a number, or two as in 0-99")
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise InputError(f"{option} {text} ends before it begins: give {last}-{first}")
    return range(first, last + 1)


def _steps(text: str) -> list[int]:
    return [step for part in text.split(",") for step in _range("--only", part.strip())]


def _fewest_steps(screen: Screen, outcome: Outcome, place: Path) -> Outcome:
    """The shortest simulation that was found to break the same law."""
    best, tried = outcome, 0
    law = None if outcome.broken is None else outcome.broken.law
    with screen.progress("Looking for the fewest steps", None) as progress:

        def fails(scenario: Scenario) -> bool:
            nonlocal best, tried
            tried += 1
            progress(tried)
            shorter = run(scenario, place / "shrinking")
            if shorter.broken is None or shorter.broken.law != law:
                return False
            best = shorter
            return True

        shrink(outcome.scenario, fails, _TRIES)
    return best


def _kind(*, masked: bool | None, groups: bool | None, busy: bool, calm: bool) -> str:
    rounds = "" if masked is None else " --masked" if masked else " --plain"
    trees = "" if groups is None else " --groups" if groups else " --no-groups"
    return rounds + trees + " --busy" * busy + " --no-faults" * calm


def _replay(outcome: Outcome, kind: str) -> str:
    steps = ",".join(_ranges(outcome.scenario.steps))
    return f"expunge simulate --seeds {outcome.scenario.seed}{kind} --only {steps or 0} --journal"


def _ranges(numbers: Iterable[int]) -> Iterator[str]:
    """1, 2, 3, 7 as 1-3, 7."""
    first = last = None
    for number in (*numbers, None):
        if first is not None and last is not None and number != last + 1:
            yield f"{first}" if first == last else f"{first}-{last}"
            first = None
        first, last = (number if first is None else first), number


def _facts(campaign: Campaign, seeds: str, took: float) -> Iterator[tuple[str, str]]:
    yield "Seeds", seeds
    yield "Messages", f"{campaign.messages:,}, {campaign.messages / took:,.0f} a second"
    rate = f"{campaign.receipts / took:,.0f} a second, {campaign.rate:,.0f} for each core at work"
    yield "Receipts", f"{campaign.receipts:,}, {rate}"
    for begin, name in _GROUPS.items():
        counts = _group(campaign.coverage, begin)
        if counts:
            yield name, ", ".join(f"{what} {number:,}" for what, number in counts.most_common())
    if campaign.unseen and campaign.runs >= _MANY:
        yield "Not once", ", ".join(campaign.unseen)


def _group(coverage: Counter[str], begin: str) -> Counter[str]:
    parts = {key: key.partition(": ") for key in coverage}
    return Counter({parts[key][2]: coverage[key] for key in coverage if parts[key][0] == begin})


def _shown(outcome: Outcome) -> Iterator[RenderableType]:
    yield line()
    yield title(
        f"Seed {outcome.scenario.seed}, {count(len(outcome.scenario.steps), 'step')}"
        + ("" if outcome.broken is None else f": {outcome.broken.law}")
    )
    for text in outcome.journal:
        yield unwrapped(text)


def _value(
    campaign: Campaign, first: Outcome | None, replay: str | None, took: float
) -> dict[str, object]:
    return {
        "simulations": campaign.runs,
        "broken": [
            {
                "seed": outcome.scenario.seed,
                "law": outcome.broken.law,
                "what": outcome.broken.what,
            }
            for outcome in campaign.broken
            if outcome.broken is not None
        ],
        "messages": campaign.messages,
        "receipts": campaign.receipts,
        "seconds": round(took, 1),
        "core_seconds": round(campaign.seconds, 1),
        "coverage": dict(sorted(campaign.coverage.items())),
        "not_once": campaign.unseen,
        "journal": None if first is None else first.journal,
        "replay": replay,
    }
