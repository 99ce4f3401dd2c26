"""Small federations for jobs on Flower, and the same jobs done in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from expunge.transport.flower.messages import Payload
from expunge_experiments.flower import Job, JobRequest, SharedPool
from expunge_experiments.flower.node import Run, respond
from expunge_experiments.pool import Pool
from expunge_experiments.systems.base import Cost, System
from expunge_experiments.systems.catalogue import SYSTEMS, build, settings_from

CLIENTS = 5
WITH_CLIENTS = tuple(name for name, entry in SYSTEMS.items() if not entry.centralized)

# Enough rounds that everybody is asked, and few enough that it takes no time.
_SMALL = {
    "fedavg": {"rounds": 4, "clients_per_round": 2, "batch": 8},
    "fedcio": {"clusters": 2, "rounds": 4, "clients_per_round": 2, "batch": 8},
    "exactfun": {"rounds": 4, "clients_per_round": 2, "batch": 8},
    "fats": {"rounds": 4, "clients_per_round": 3, "samples": 4, "steps": 2},
}
_ASKED = {"delete": (3, 11, 40), "delete_client": (1,), "add": (3, 40)}


def shared_pool(clients: int = CLIENTS, size: int = 90) -> SharedPool:
    """Three classes around three points."""
    draw = np.random.default_rng(7)
    labels = draw.integers(3, size=size)
    features = (2 * draw.normal(size=(3, 6))[labels] + draw.normal(size=(size, 6))).astype(
        np.float32
    )
    owners = np.arange(size) % clients
    return SharedPool(Pool(features, labels, owners, 3, clients), features[:30], labels[:30])


def job_of(name: str, *, seed: int = 4) -> Job:
    """A small job: everything that the system can be asked."""
    supported = SYSTEMS[name].find("system").supports
    requests = [
        JobRequest(operation, numbers)
        for operation, numbers in _ASKED.items()
        if operation in supported
    ]
    if "delete" not in supported:  # then nothing can be added that is not left out at first
        return Job(
            name, None, seed, tuple(requests), tuple(sorted(set(range(90)) - set(_ASKED["add"])))
        )
    return Job(name, settings_from(name, _SMALL.get(name, {})), seed, tuple(requests))


def perform(system: System, job: Job) -> tuple[list[Cost], list[str]]:
    """Do a job; costs, and the head's digest after each step."""
    costs = [system.train(None if job.training is None else np.array(job.training))]
    digests = [system.digest]
    for request in job.requests:
        numbers: Any = (
            request.numbers[0]
            if request.operation == "delete_client"
            else np.array(request.numbers)
        )
        costs.append(getattr(system, request.operation)(numbers))
        digests.append(system.digest)
    return costs, digests


def in_process(laid: SharedPool, job: Job) -> tuple[list[Cost], list[str]]:
    """A job done by objects of this process."""
    return perform(build(job.system, laid.pool, settings=job.settings, seed=job.seed), job)


def counted(cost: Cost) -> dict[str, Any]:
    """What of a cost does not depend on time."""
    return {name: value for name, value in cost.as_dict().items() if not name.endswith("seconds")}


class Direct:
    """Nodes that are asked without Flower. `asked` are the numbers of messages of each message."""

    def __init__(self, folder: Path, clients: tuple[int, ...] = tuple(range(CLIENTS))) -> None:
        self.run = Run.of(folder)
        self.clients = clients
        self.asked: list[int] = []

    def nodes(self, count: int) -> list[int]:
        assert count <= len(self.clients)
        return [100 + place for place in range(len(self.clients))]

    def ask(self, parcels: Any) -> list[Payload]:
        assert len({node for node, _ in parcels}) == len(parcels)
        self.asked += [len(parcel.parts) for _, parcel in parcels]
        return [respond(parcel, self.run, self.clients[node - 100]) for node, parcel in parcels]
