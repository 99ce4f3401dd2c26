"""Kills a server with signal 9 at a chosen write, or at a random time, in the middle of requests
and folds; opens it again, and compares with what was acknowledged.

Run as a program: `killable_service.py FOLDER SEED RUNS`. It forks, so it has one thread whenever
it does.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np

from expunge.crypto import vault
from expunge.server.service import Service
from expunge.server.state import Settings
from support.federation import Client, Federation
from support.samples import Sample

NAMES = ("clinic", "hospital", "lab")


@dataclass
class Planned:
    """A request that was made before anything is killed: the same bytes are offered until they are
    answered.
    """

    client: Client
    sequence: int
    data: bytes
    added: list[Sample]
    deleted: list[Sample]


def planned(federation: Federation, chance: random.Random, count: int) -> list[Planned]:
    """A stream of adds and deletes by several clients, as rows and as Grams."""
    plan: list[Planned] = []
    holds: dict[str, list[Sample]] = {
        name: list(client.retained) for name, client in federation.clients.items()
    }
    sequences = {name: client.sequence for name, client in federation.clients.items()}
    for _ in range(count):
        name = chance.choice(NAMES)
        client, held = federation.clients[name], holds[name]
        added = federation.draw(chance.randrange(3))
        deleted = chance.sample(held, min(len(held), chance.randrange(3)))
        sequences[name] += 1
        data = client.request(
            added, deleted, chance.choice(["rows", "gram"]), sequence=sequences[name]
        )
        plan.append(Planned(client, sequences[name], data, added, deleted))
        gone = set(map(id, deleted))
        holds[name] = [sample for sample in held if id(sample) not in gone] + added
    return plan


class Mortal:
    """Kills its own process at the n-th write that it hears of."""

    def __init__(self, after: int | None) -> None:
        self._left = after

    def __call__(self, _: str = "") -> None:
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                os.kill(os.getpid(), signal.SIGKILL)


def serve(federation: Federation, plan: list[Planned], writing: int, after: int | None) -> NoReturn:
    """In a process of its own: offer what has not been acknowledged, and fold all the while."""
    mortal, write = Mortal(after), vault.VaultFile.write

    def written(*arguments: object) -> None:
        mortal()
        write(*arguments)  # type: ignore[arg-type]
        mortal()

    vault.VaultFile.write = written  # type: ignore[assignment, method-assign]
    service = Service.open(
        federation.path, settings=Settings(erase_within=1), clock=federation.clock, hook=mortal
    )

    def fold_for_ever() -> None:
        while True:
            service.upkeep.fold()

    threading.Thread(target=fold_for_ever, daemon=True).start()
    for number, one in enumerate(plan):
        if one.sequence > one.client.sequence:
            service.request(one.data)
            os.write(writing, number.to_bytes(2, "little"))
    time.sleep(60)  # until it is killed
    os._exit(1)


def killed(
    federation: Federation, plan: list[Planned], after: int | None, delay: float
) -> list[int]:
    """The numbers of the requests that were acknowledged before the server was killed."""
    assert threading.active_count() == 1
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reading)
            serve(federation, plan, writing, after)
        finally:
            os._exit(1)
    os.close(writing)
    deadline = time.monotonic() + delay
    while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < deadline:
        time.sleep(0.002)
    if not ended[0]:
        os.kill(child, signal.SIGKILL)
        ended = os.waitpid(child, 0)
    status = ended[1]
    assert os.WIFSIGNALED(status), "the server failed before it was killed"
    told = b""
    while part := os.read(reading, 1 << 16):
        told += part
    os.close(reading)
    return np.frombuffer(told[: len(told) // 2 * 2], dtype="<u2").tolist()


def catch_up(federation: Federation, plan: list[Planned]) -> int:
    """Bring the clients' books to what the server says it has applied; how many requests that
    are.
    """
    applied = {name: federation.service.state.actor(name).sequence for name in NAMES}
    done = 0
    for one in plan:
        if one.sequence <= applied[one.client.name]:
            done += 1
            if one.sequence == applied[one.client.name] > one.client.sequence:
                # Its answer may be lost: the same bytes are answered by the receipt
                answer = federation.service.request(one.data)
                one.client.settled(answer, one.added, one.deleted)
            elif one.sequence > one.client.sequence:  # the next one was offered with its receipt
                one.client.booked(one.sequence, one.added, one.deleted)
    return done


def check(federation: Federation, plan: list[Planned], acknowledged: list[int]) -> int:
    """Nothing is lost and nothing applied twice; the ledger is that of retraining."""
    federation.service = federation.opened()
    try:
        done = catch_up(federation, plan)
        for number in acknowledged:
            assert plan[number].sequence <= plan[number].client.sequence, (
                "what was acknowledged is lost"
            )
        federation.check()
        told = [(entry["client"], entry["sequence"]) for entry in federation.entries("changed")]
        assert len(set(told)) == len(told)
        for one in plan[:done]:
            if one.sequence == one.client.sequence:
                federation.read(federation.service.request(one.data))
        state = federation.service.state
        slots = (
            "SELECT slot FROM ledger UNION ALL SELECT slot FROM subledgers UNION ALL SELECT slot "
            "FROM generations"
        )
        assert state.vault.live() == {slot for (slot,) in state.storage.database.rows(slots)}
    finally:
        federation.service.close()
    return done


def main(folder: Path, seed: int, runs: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - a seed must reproduce it
    federation = Federation(
        folder / "server", seed=seed, solver=chance.choice(["cholesky", "woodbury"])
    )
    for name in NAMES:
        federation.enrol(name).send(federation.draw(4))
    federation.close()
    plan, done = planned(federation, chance, 25 * runs), 0
    for run in range(runs):
        after = chance.randrange(120) if run % 3 else None
        delay = chance.uniform(0.0, 0.2) if after is None else 0.3
        acknowledged = killed(federation, plan, after, delay)
        try:
            done = check(federation, plan, acknowledged)
        except BaseException:
            sys.stderr.write(
                f"seed {seed}, run {run}: killed after {after} writes or {delay:.4f} s, "
                f"{len(acknowledged)} told\n"
            )
            raise
        sys.stdout.write(f"{done}\n")
    federation.service = federation.opened()
    for one in plan[done : done + 20]:
        if one.sequence == one.client.sequence + 1:
            one.client.settled(federation.service.request(one.data), one.added, one.deleted)
    federation.fold()
    federation.check()
    federation.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
