"""A federation for programs is the real one: its folders are those of the command line, and its
heads those of retraining.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from expunge import Spec, Statistics, solve
from expunge.errors import RefusedError, StoreBusyError, StoreError
from expunge.evidence import verify
from expunge.federation import Federation
from expunge.federation.layout import Layout
from expunge.server.service import Service
from support.printed import run

SPEC = Spec(dim=4, labels=("cat", "dog"))
FEATURES = np.random.default_rng(3).standard_normal((12, 4)).astype(np.float32)
LABELS = np.arange(12) % 2
IDS = [f"s{index}" for index in range(12)]
PEOPLE = [f"p{index % 3}" for index in range(12)]


def trained(rows: np.ndarray) -> str:
    return solve(Statistics.of(SPEC, FEATURES[rows], LABELS[rows])).digest


def filled(folder: Path) -> Federation:
    federation = Federation.found(folder, SPEC)
    for number, (name, message) in enumerate({"north": "rows", "south": "gram"}.items()):
        own = np.arange(number, 12, 2)
        federation.client(name, message=message).add(
            [IDS[index] for index in own],
            FEATURES[own],
            LABELS[own],
            subjects=[PEOPLE[index] for index in own],
        )
    return federation


def test_a_person_is_forgotten_at_all_clients(tmp_path: Path) -> None:
    with filled(tmp_path / "federation") as federation:
        assert federation.published()[0].digest == trained(np.arange(12))
        order = federation.order("p1")
        synced = federation.sync()
        assert {name: dict(one.orders)[order].count for name, one in synced.items()} == {
            "north": 2,
            "south": 2,
        }
        head, certificate = federation.published()
        assert head.digest == trained(np.flatnonzero(np.arange(12) % 3 != 1))
        assert (certificate.count, certificate.clients) == (8, 2)
        assert "complete" in " ".join(
            verify(federation.bundle(order), federation.office.server).proved
        )
        assert federation.audit()["result"] == "equal"


def test_it_goes_on_where_it_was_left(tmp_path: Path) -> None:
    filled(tmp_path / "federation").close()
    with Federation.open(tmp_path / "federation") as federation:
        gone, receipts = federation.client("north").forget(ids=["s0"])
        assert (gone.ids, len(receipts)) == (("s0",), 1)
        assert federation.client("north") is federation.client("north")
        assert federation.published()[0].digest == trained(np.arange(1, 12))


def test_a_service_that_is_given_is_not_closed(tmp_path: Path) -> None:
    filled(tmp_path / "federation").close()
    service = Service.open(tmp_path / "federation" / "server")
    try:
        with Federation(Layout.at(tmp_path / "federation"), service=service) as federation:
            federation.client("north").forget(ids=["s0"])
        with pytest.raises(StoreError):
            Federation(Layout.at(tmp_path / "federation"), service=service, office=tmp_path)
        assert service.status()["samples"] == 11
        assert service.status()["journal"] == 1  # nor folded
    finally:
        service.close()


def test_the_command_line_works_on_the_same_folders(tmp_path: Path) -> None:
    folder = tmp_path / "federation"
    filled(folder).close()
    run("client", "forget", "--id", "s1", "--yes", "--dir", folder / "clients" / "south")
    with Federation.open(folder) as federation:
        assert federation.published()[0].digest == trained(np.array([0, *range(2, 12)]))


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no federation"):
        Federation.open(tmp_path)
    federation = filled(tmp_path / "federation")
    with pytest.raises(StoreError, match="not empty"):
        Federation.found(tmp_path / "federation", SPEC)
    with pytest.raises(RefusedError, match="subject"):
        federation.order("")
    federation.close()
    federation = Federation.open(tmp_path / "federation")
    with pytest.raises(StoreBusyError):
        Federation.open(tmp_path / "federation", timeout=0.1).close()
    federation.close()


def test_a_client_of_another_federation_is_not_taken_for_ours(tmp_path: Path) -> None:
    filled(tmp_path / "one").close()
    with filled(tmp_path / "two") as federation:
        (tmp_path / "one" / "clients" / "north").rename(tmp_path / "two" / "clients" / "east")
        with pytest.raises(StoreError, match="another federation"):
            federation.client("east")


def test_a_closed_federation_says_so_and_locks_nothing(tmp_path: Path) -> None:
    federation = filled(tmp_path / "federation")
    federation.close()
    for call in (federation.sync, lambda: federation.client("north")):
        with pytest.raises(StoreError, match="was closed here"):
            call()
    with Federation.open(tmp_path / "federation", timeout=0.1) as again:
        assert again.client("north").store.status().live == 6


def test_threads_that_sync_take_turns(tmp_path: Path) -> None:
    """The proofs for one thread were held against the log that another had followed meanwhile, and
    the server was accused.
    """
    with filled(tmp_path / "federation") as federation, ThreadPoolExecutor(4) as threads:
        for number in range(3):
            federation.client("north").store.add(
                [f"more {number}"], [[1.0] * SPEC.dim], ["cat"], now=0
            )
            results = [threads.submit(federation.sync) for _ in range(4)]
            assert sum(len(done.result()["north"].receipts) for done in results) == 1
        assert federation.audit()["result"] == "equal"
