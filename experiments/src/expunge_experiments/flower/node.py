"""A node's side: the worker of its client is created for each message, answers, and saves its state
in a file.

Law: the answers, and the state in the end, are those of a worker that lives on. Nodes know of a run
what is in its folder: a job, the shared pool, and a file for each client's state.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from expunge.crypto import canonical
from expunge.errors import FormatError, InputError
from expunge.transport.flower.messages import Payload
from expunge_experiments.engine import Employ, State, Worker
from expunge_experiments.flower.job import Job, SharedPool
from expunge_experiments.message import ArrayMessage
from expunge_experiments.pool import Pool
from expunge_experiments.systems.catalogue import employ, fitted

FOLDER = "experiment-folder"  # the run's folder, in a run's config
_STATES = "states"


@dataclass(frozen=True)
class Run:
    """What every node of a run knows."""

    folder: Path
    pool: Pool
    employ: Employ

    @classmethod
    @lru_cache(maxsize=2)
    def of(cls, folder: Path) -> Self:
        """Read once in a process, however many messages and nodes it serves."""
        job, pool = Job.read(folder), SharedPool.read(folder).pool
        settings = fitted(
            job.system, job.settings, pool
        )  # as the server's are, which sees the same pool
        return cls(folder, pool, employ(job.system, settings, job.seed, pool.classes, pool.dim))


def client_of(node_config: Mapping[str, Any]) -> int:
    """The client that a node is: its partition, as simulations number them."""
    client = node_config.get("partition-id")
    if not isinstance(client, int):
        raise InputError(
            "this node does not know its client: start the SuperNode with --node-config "
            "'partition-id=0' or another"
        )
    return client


def respond(parcel: Payload, run: Run, client: int) -> Payload:
    """The answer to a parcel of `FlowerEngine`."""
    match canonical.decode(parcel.note, "a question of the engine"):
        case {"ask": "client"}:
            return _answer(
                {"client": client, "kept": size_of(_OpenWorker.open(run, client).worker.state())}
            )
        case {"ask": "messages"}:
            return _messages(parcel.parts, run, client)
        case {"ask": "state"}:
            return _answer({}, packed(_OpenWorker.open(run, client).worker.state()))
        case {"ask": "restore"}:
            opened = _OpenWorker.open(run, client)
            opened.worker.restore(unpacked(parcel.parts[0]))
            return _answer({"kept": opened.close()})
    raise FormatError(
        f"{parcel.note!r:.80} is no question of the engine: it was altered, or is of another "
        "version"
    )


def _messages(messages: tuple[bytes, ...], run: Run, client: int) -> Payload:
    """Answer messages one after another.

    The worker's own time is measured as in one process: reading, answering, writing.
    """
    began = time.perf_counter_ns()
    opened = _OpenWorker.open(run, client)
    answers, worked = [], []
    for data in messages:
        since = time.perf_counter_ns()
        answers.append(opened.worker.respond(ArrayMessage.from_bytes(data)).to_bytes())
        worked.append(time.perf_counter_ns() - since)
    state_bytes = opened.close()
    loaded = time.perf_counter_ns() - began - sum(worked)
    return _answer({"kept": state_bytes, "loaded": loaded, "worked": worked}, *answers)


@dataclass
class _OpenWorker:
    """A worker while a message is answered, and the bytes of its state as they were found."""

    worker: Worker
    path: Path
    stored: bytes | None

    @classmethod
    def open(cls, run: Run, client: int) -> Self:
        """The client's worker as its last message left it."""
        if not 0 <= client < run.pool.clients:
            raise InputError(
                f"there are clients 0 to {run.pool.clients - 1}, and no client {client}: start "
                "fewer nodes"
            )
        worker, path = (
            run.employ(client, run.pool.samples_of(client)),
            run.folder / _STATES / f"{client}.state",
        )
        stored = path.read_bytes() if path.exists() else None
        if stored is not None:
            worker.restore(unpacked(stored))
        return cls(worker, path, stored)

    def close(self) -> int:
        """Leave the state for the next message, if it has changed; its size."""
        state = self.worker.state()
        data = packed(state)
        if data != self.stored:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            draft = self.path.with_suffix(".part")
            draft.write_bytes(
                data
            )  # whole or absent; a machine that loses power loses the measurement anyway
            draft.replace(self.path)
        return size_of(state)


def packed(state: State) -> bytes:
    """A state as bytes."""
    return ArrayMessage("state", {}, state).to_bytes()


def unpacked(data: bytes) -> State:
    """The inverse of `packed`; nobody can write to its arrays."""
    return dict(ArrayMessage.from_bytes(data).arrays)


def size_of(state: State) -> int:
    """The bytes that count as kept."""
    return sum(array.nbytes for array in state.values())


def _answer(note: Mapping[str, Any], *parts: bytes) -> Payload:
    return Payload(canonical.encode(dict(note)), parts)
