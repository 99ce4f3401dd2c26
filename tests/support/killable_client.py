"""Kills a client at a chosen point, or at a random time, then opens its store again and brings the
work to its end.

Run as a program: `killable_client.py FOLDER SEED RUNS`. It forks, so it must have one thread. The
server is a folder of the requests that it has accepted: whatever happens to the client, what is
there has been accepted.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from expunge import Statistics
from expunge.client import ClientStore, Selection
from expunge.crypto.vault import Vault
from expunge.errors import ExpungeError, ShreddedError
from expunge.storage.sqlite import Database
from expunge.wire import request
from support.client_files import live_slots, referred_slots
from support.clients import NOW, SPEC, Server, features, found_in, ids, make_store, traces

GONE = ["sample-1", "sample-4", "extra-0"]
SUBJECT = "subject-of-the-request"
REPEATED = (
    "in the store already",
    "is pending",
    "no sample of that subject",
)  # a step that had been done before the crash


class Accepting:
    """A server that outlives the client: a request is accepted when its file is there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def offer(self, data: bytes) -> bytes:
        file = self.folder / f"{request.read(data).header.sequence:04}"
        if file.exists():
            assert file.read_bytes() == data, "another request of the same number was offered"
        else:
            draft = file.with_suffix(".part")
            draft.write_bytes(data)
            draft.rename(file)
        return f"receipt {file.name}".encode()

    def replayed(self) -> Server:
        server = Server()
        for file in sorted(self.folder.iterdir()):
            server.offer(file.read_bytes())
        return server


def deliver(store: ClientStore, server: Accepting) -> None:
    composition = store.outbox.composed() or store.outbox.compose()
    if composition is not None:
        store.outbox.settle(composition.sequence, server.offer(store.outbox.encode(composition)))


def steps(store: ClientStore, server: Accepting) -> list[Callable[[], object]]:
    """The work. Each step may be done again after a crash in the middle of it."""
    subjects = [SUBJECT if name in GONE else None for name in ids(6)]
    return [
        lambda: store.add(ids(6), features(6), [0, 1, 2, 0, 1, 2], subjects=subjects, now=NOW),
        lambda: deliver(store, server),
        lambda: store.add(
            ids(2, "extra"), features(2, 1), [0, 1], subjects=[SUBJECT, None], now=NOW
        ),
        lambda: store.correct("sample-2", label="cat"),
        store.outbox.compose,
        lambda: store.forget(Selection(subject=SUBJECT), order="ab" * 16),
        lambda: deliver(store, server),
        lambda: deliver(store, server),
        lambda: deliver(store, server),
    ]


def attempt(step: Callable[[], object], *tolerated: str) -> None:
    """Do a step, which may fail for these reasons."""
    try:
        step()
    except ExpungeError as problem:
        if not any(text in str(problem) for text in tolerated):
            raise


def work(
    folder: Path,
    first: int,
    done: Callable[[int], None],
    countdown: Callable[[], None] | None = None,
) -> None:
    with ClientStore.open(folder / "store") as store:
        if countdown is not None:
            count_down_in(countdown)
        for number, step in enumerate(
            steps(store, Accepting(folder / "server"))[first:], start=first
        ):
            attempt(step, "has no receipt yet", *(REPEATED if number == first else ()))
            done(number + 1)


def count_down_in(
    countdown: Callable[[], None], patch: Callable[[Any, str, Any], None] = setattr
) -> None:
    """Call `countdown` before and in the middle of writes, and around every statement and every
    change of keys.
    """
    pwrite, fsync = os.pwrite, os.fsync

    def counting_pwrite(descriptor: int, data: Any, offset: int) -> int:
        countdown()
        pwrite(descriptor, bytes(data)[: len(data) // 2], offset)
        countdown()
        return pwrite(descriptor, data, offset)

    def counting_fsync(descriptor: int) -> None:
        countdown()
        fsync(descriptor)

    patch(os, "pwrite", counting_pwrite)
    patch(os, "fsync", counting_fsync)
    for owner, name in (
        (Database, "run"),
        (Database, "run_many"),
        (Database, "truncate_log"),
        (Vault, "shred"),
        (Vault, "new"),
    ):
        patch(owner, name, around(getattr(owner, name), countdown))


def around(original: Callable[..., Any], countdown: Callable[[], None]) -> Callable[..., Any]:
    def counting(*arguments: Any) -> Any:
        countdown()
        result = original(*arguments)
        countdown()
        return result

    return counting


def killed(folder: Path, after: int | None, delay: float) -> int:
    """Do the work in a child that is killed after so many points, or at a time; how many steps it
    had finished.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        left = [after]

        def countdown() -> None:
            if left[0] is not None:
                left[0] -= 1
                if left[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        code = 1
        try:
            work(folder, 0, lambda number: os.write(writing, bytes([number])) and None, countdown)
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    if after is None:
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, (
        "the work failed before it was killed"
    )
    finished = os.read(reading, 100)
    os.close(reading)
    return finished[-1] if finished else 0


def check(folder: Path, finished: int) -> None:
    """Whatever happened, after opening and going on everything is as if nothing had happened."""
    with ClientStore.open(folder / "store") as store:
        assert live_slots(store) == referred_slots(store)
    backup = (folder / "store" / "client.db").read_bytes()
    work(folder, finished, lambda _: None)
    rows = np.concatenate([features(6)[[0, 2, 3, 5]], features(2, 1)[1:]])
    expected = Statistics.of(SPEC, rows, [0, 0, 0, 2, 1])
    server = Accepting(folder / "server").replayed()
    with ClientStore.open(folder / "store") as store:
        assert store.status().live == 5
        assert (store.status().adding, store.status().deleting, store.status().orders) == (0, 0, 0)
        assert store.statistics() == server.statistics == expected
        assert set(store.preview(Selection(everything=True)).ids) == {
            *ids(6),
            *ids(2, "extra"),
        } - set(GONE)
    gone = np.concatenate([features(6)[[1, 4]], features(2, 1)[:1]])
    assert found_in(folder / "store", traces([*GONE, SUBJECT], gone)) == []
    backup_says_nothing(folder, backup)


def backup_says_nothing(folder: Path, backup: bytes) -> None:
    """With the keys that are left, a copy of the database from before the end opens none of the
    samples that are gone.
    """
    place = folder / "backup.db"
    place.write_bytes(backup)
    connection = sqlite3.connect(place)
    rows = connection.execute("SELECT slot, id_tag, names FROM samples").fetchall()
    connection.close()
    with Vault.open(folder / "store" / "client.vault") as vault:
        for slot, id_tag, names in rows:
            try:
                opened = vault.unseal(slot, names, b"names\0" + id_tag)
            except ShreddedError:
                continue
            assert not any(name.encode() in opened for name in GONE), opened


def main(folder: Path, seed: int, runs: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - a seed must reproduce it
    for run in range(runs):
        place = folder / f"run-{run}"
        place.mkdir()
        make_store(place).close()
        after = chance.randrange(165) if run % 4 else None
        delay = chance.uniform(0.0, 0.06)
        finished = killed(place, after, delay)
        try:
            check(place, finished)
        except BaseException:
            sys.stderr.write(
                f"seed {seed}, run {run}: killed after {after} points or {delay:.4f} s, "
                f"{finished} steps done\n"
            )
            raise
        sys.stdout.write(f"{finished}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
