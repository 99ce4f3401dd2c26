"""A client that its server knows no longer: it erases its own samples, at once and without a
receipt.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from expunge.client import ClientStore, Selection
from expunge.errors import EvidenceError, StoreError
from support.agents import Home, add
from support.client_files import live_slots


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.close()


def forgotten(home: Home) -> None:
    home.federation.operator.command("forget-client", client="ward-3")


def keys(store: ClientStore) -> int:
    return len(live_slots(store)) - 1  # one makes tags


def test_what_is_forgotten_is_gone_at_once(home: Home) -> None:
    add(home.store)
    home.agent.push()
    forgotten(home)
    assert home.agent.sync().status == "gone"
    assert (home.store.status().live, keys(home.store)) == (4, 4)
    assert home.store.forget(Selection(ids=["sample-1"])).ids == ("sample-1",)
    assert home.store.forget(Selection(subject="nobody"), order="ab" * 16).count == 0
    status = home.store.status()
    assert (status.live, status.deleting, status.orders, keys(home.store)) == (3, 0, 0, 3)
    assert home.store.leave().count == 3
    status = home.store.status()
    assert (status.live, status.left, status.gone, keys(home.store)) == (0, True, False, 0)


def test_what_was_asked_for_before_is_done_when_the_server_says_so(home: Home) -> None:
    add(home.store)
    home.agent.push()
    add(home.store, 2, "on its way", 1)
    home.store.outbox.compose()
    home.store.forget(Selection(ids=["on its way-0", "sample-0"]))
    forgotten(home)
    home.agent.sync()
    status = home.store.status()
    assert (status.live, status.adding, status.deleting, status.composed) == (3, 1, 0, None)
    assert keys(home.store) == 4


def test_leaving_ends_when_the_server_says_so(home: Home) -> None:
    add(home.store)
    home.agent.push()
    forgotten(home)
    home.store.leave()
    home.agent.sync()
    status = home.store.status()
    assert (status.left, status.deleting, keys(home.store)) == (True, 0, 0)


def test_a_store_without_features_needs_no_backbone_to_erase(tmp_path: Path) -> None:
    home = Home(tmp_path, mode="recompute")
    add(home.store, sources=["a", "b", "c", "d"])
    home.agent.push()
    forgotten(home)
    home.agent.sync()
    assert home.store.leave().count == 4
    assert keys(home.store) == 0
    home.close()


def test_a_server_that_takes_it_back_is_found_out(home: Home) -> None:
    add(home.store)
    home.agent.push()
    home.store.outbox.release()  # as if it had said so
    with pytest.raises(EvidenceError, match="knows ward-3 no longer, and now says that it does"):
        home.agent.sync()


def copied(home: Home) -> Path:
    """The folder of a closed client with samples in the ledger; its database is copied."""
    add(home.store)
    home.agent.push()
    folder = home.store.path
    home.store.close()
    shutil.copy(folder / "client.db", home.path / "backup.db")
    return folder


class TestOldCopies:
    def test_a_copy_that_no_receipt_came_after_goes_on(self, home: Home) -> None:
        folder = copied(home)
        with ClientStore.open(folder) as store:
            add(store, 1, "unsent", 1)
        shutil.copy(home.path / "backup.db", folder / "client.db")
        with ClientStore.open(folder, restored=True) as store:
            add(store, 1, "more", 2)
            assert home.agent_of(store).sync().receipts[0].sequence == 2
            assert store.statistics() == home.ledger

    def test_a_copy_that_was_on_its_way_with_what_was_then_forgotten_goes_on(
        self, home: Home
    ) -> None:
        add(home.store)
        home.store.outbox.compose()
        home.store.forget(Selection(ids=["sample-0"]))
        home.store.close()
        with ClientStore.open(home.store.path, restored=True) as store:
            home.agent_of(store).sync()
            assert (store.status().live, home.ledger.count) == (3, 3)
            assert store.statistics() == home.ledger

    def test_an_older_one_is_read_and_then_erased(self, home: Home) -> None:
        folder = copied(home)
        with ClientStore.open(folder) as store:
            store.forget(Selection(ids=["sample-0"]))
            home.agent_of(store).push()
        shutil.copy(home.path / "backup.db", folder / "client.db")
        with ClientStore.open(folder, restored=True) as store:
            assert store.preview(Selection(everything=True)).count == 3
            with pytest.raises(StoreError, match=r"expunge server forget-client ward-3"):
                home.agent_of(store).sync()
            forgotten(home)
            home.agent_of(store).sync()
            assert store.leave().count == 3
            assert keys(store) == 0
