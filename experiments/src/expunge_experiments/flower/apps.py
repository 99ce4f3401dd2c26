"""The two apps of a measurement: nodes work for the system of a job, and the ServerApp's main does
the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from expunge.errors import ExpungeError, InputError
from expunge.transport.flower.messages import Payload
from expunge_experiments.flower.engine import FlowerEngine
from expunge_experiments.flower.exchange import Exchange, NodeContext, client_app, server_app
from expunge_experiments.flower.job import Diary, Job, JobRequest, SharedPool
from expunge_experiments.flower.node import FOLDER, Run, client_of, respond
from expunge_experiments.systems.base import Cost, System
from expunge_experiments.systems.catalogue import build

ACTION = "experiment"
ACTORS = "experiment-actors"  # how many clients work at the same time, in a run's config


def answer_parcel(parcel: Payload, context: NodeContext) -> Payload:
    """What a node answers."""
    return respond(parcel, Run.of(_folder(context.run_config)), client_of(context.node_config))


def lead(exchange: Exchange, config: Mapping[str, Any]) -> None:
    """Do the job of the run's folder, and leave there what comes of it.

    An error of ours is left there, too.
    """
    folder = _folder(config)
    diary = Diary.begin(folder)
    try:
        job, shared_pool = Job.read(folder), SharedPool.read(folder)
        engine = FlowerEngine(exchange, shared_pool.pool.clients, int(config[ACTORS]))
        system = build(
            job.system, shared_pool.pool, settings=job.settings, seed=job.seed, engine=engine
        )
        training = None if job.training is None else np.array(job.training, dtype=np.int64)
        _note(diary, system, shared_pool, engine, system.train(training))
        for request in job.requests:
            _note(diary, system, shared_pool, engine, _performed(system, request))
    except ExpungeError as problem:
        diary.problem = f"{type(problem).__name__}: {problem}"
        diary.write()


def _performed(system: System, request: JobRequest) -> Cost:
    if request.operation == "delete_client":
        return system.delete_client(request.numbers[0])
    numbers = np.array(request.numbers, dtype=np.int64)
    return system.delete(numbers) if request.operation == "delete" else system.add(numbers)


def _note(
    diary: Diary, system: System, shared_pool: SharedPool, engine: FlowerEngine, cost: Cost
) -> None:
    diary.costs.append(cost)
    diary.accuracies.append(system.accuracy(shared_pool.test_features, shared_pool.test_labels))
    diary.digests.append(system.digest)
    diary.loading_seconds = engine.loading_seconds
    diary.write()


def _folder(config: Mapping[str, Any]) -> Path:
    if not config.get(FOLDER):
        raise InputError(f"the run config has no {FOLDER}: give the folder of a job")
    return Path(str(config[FOLDER]))


client = client_app(ACTION, answer_parcel)
server = server_app(ACTION, lead)
