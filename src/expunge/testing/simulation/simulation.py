"""A simulation: a whole federation in one thread; with faults of disks, machines, network and
clocks, and the laws that hold nevertheless.
"""

from __future__ import annotations

import shutil
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from expunge.errors import InputError
from expunge.server.storage.folder import OpenStorage
from expunge.server.storage.sqlite import open_storage
from expunge.testing.simulation import damage, laws
from expunge.testing.simulation.client import ClientParty
from expunge.testing.simulation.database import draw_salts_from
from expunge.testing.simulation.federation import SimulatedFederation
from expunge.testing.simulation.liar import lying
from expunge.testing.simulation.parties import Party
from expunge.testing.simulation.scenario import Scenario
from expunge.testing.simulation.steps import Steps, order_about_anybody
from expunge.testing.simulation.world import LawBrokenError, World
from expunge.wire.carrier import Carrier


@dataclass(frozen=True)
class Outcome:
    """What a simulation has come to.

    Attributes
    ----------
    scenario : Scenario
        What was simulated.
    broken : LawBrokenError or None
        The law that does not hold; None if all do.
    messages : int
        How many messages the server has answered.
    coverage : Counter of str
        How often everything happened: steps, faults, errors, laws that were compared.
    digest : str
        A hash of all that was sent, said and left on the disks: that of another run of the same
        scenario is the same.
    journal : list of str
        What happened, for people.
    seconds : float
        How long a processor was at it.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from expunge.testing.simulation import Scenario, simulate
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     outcome = simulate(Scenario.drawn(2, steps=3), Path(folder) / "disks")
    >>> outcome.broken is None, sum(outcome.scenario.steps), outcome.messages > 0
    (True, 6, True)
    """

    scenario: Scenario
    broken: LawBrokenError | None
    messages: int
    coverage: Counter[str]
    digest: str
    journal: list[str] = field(repr=False)
    seconds: float = field(default=0.0, compare=False)


def simulate(
    scenario: Scenario,
    path: Path,
    *,
    carrier: Callable[[Carrier], Carrier] = lambda line: line,
    storage: OpenStorage = open_storage,
) -> Outcome:
    """Run a scenario in a new folder, which is removed afterwards.

    Parameters
    ----------
    scenario : Scenario
        What is to happen.
    path : Path
        Where the disks are: a folder that is empty, or not there; best on a file system in memory.
    carrier : callable, optional
        Returns the carrier of each client and office, which may be your own, from the simulated
        line that it sends over.
    storage : callable, optional
        Opens the store of the server, which may be your own, as `Service.open` takes it.

    Returns
    -------
    Outcome
        Whether a law was broken, and what happened.

    Raises
    ------
    InputError
        The folder is not empty.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from expunge.testing.simulation import Scenario, simulate
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     scenario = Scenario.drawn(1, steps=5, groups=False)
    ...     outcome = simulate(scenario, Path(folder) / "disks")
    >>> outcome.broken is None, outcome.coverage["law: ledger"]
    (True, 1)
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(f"{path} is not empty: choose another folder for the simulated disks")
    begun = time.process_time()
    world, steps = World(scenario.seed, path), Steps()
    federation = SimulatedFederation(
        scenario, world, carrier, storage, lambda: steps.take_meanwhile(federation)
    )
    draw_salts_from(partial(_salt, federation))
    broken = None
    try:
        with lying(scenario.names[-1], world) if scenario.has_liar else nullcontext():
            _run(federation, steps)
    except LawBrokenError as problem:
        broken = problem
        world.tell("law", str(problem))
    except Exception as problem:
        broken = LawBrokenError("errors", f"{type(problem).__name__}: {problem}")
        world.tell("law", "".join(traceback.format_exception(problem)))
    finally:
        federation.end()
        shutil.rmtree(path)
    return Outcome(
        scenario,
        broken,
        world.messages,
        world.coverage,
        world.digest,
        world.journal,
        time.process_time() - begun,
    )


def _salt(federation: SimulatedFederation, count: int) -> bytes:
    """What SQLite draws, from whichever machine the server has now."""
    return federation.root.server.machine.random(count)


def _run(federation: SimulatedFederation, steps: Steps) -> None:
    """Found the federation, take the steps, and look whether everything settles."""
    world = federation.world
    federation.found()
    for home in federation.homes:
        home.network.is_calm = False
    for step in federation.scenario.steps:
        world.begin(step)
        steps.take(federation)
        for party in federation.parties:
            party.note_keys()
    world.begin(0)
    kind = federation.scenario.damage
    if kind:
        victim = damage.damage(federation, kind)
        damage.tolerate(federation, kind, victim, lambda: _settle(federation, victim))
    else:
        _settle(federation, None)


def _settle(federation: SimulatedFederation, victim: Party | None) -> None:
    """Nothing fails any more: what must hold then. Of the damaged party somebody wants something
    deleted.
    """
    with federation.calm():
        for home in federation.homes:
            home.network.deliver_late()
        if victim is not None:
            clients = [victim] if isinstance(victim, ClientParty) else federation.clients
            order_about_anybody(federation, federation.root, federation.officer, clients)
        laws.settle(federation)
        laws.compare_ledger(federation)
        laws.compare_evidence(federation)
        laws.compare_keys(federation)
