"""Backups of clients: what was deleted since does not come back, and the client goes on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from expunge import Aggregation, Statistics
from expunge.client import ClientStore, Selection
from expunge.client.backup import back_up, restore_client
from expunge.errors import StoreBusyError, StoreError
from support.agents import Home, add
from support.clients import features, make_store
from support.federation import SPEC


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path, mirrors=[tmp_path / "mirror"])
    add(home.store, subjects=["ann", "bob", "ann", "cyd"])
    home.agent.sync()
    yield home
    home.close()


def lost_and_restored(home: Home, backup: Path, vault: Path | None = None) -> int:
    """Returns how many samples were dropped."""
    home.store.close()
    shutil.rmtree(home.store.path)
    restored = restore_client(home.path / "restored", backup, vault)
    home.store = ClientStore.open(home.path / "restored")
    home.agent = home.agent_of(home.store)
    return restored.dropped


def test_a_backup_of_now_goes_on_by_itself(home: Home) -> None:
    back_up(home.store.path, home.path / "monday")  # while the store is open
    assert {file.name for file in (home.path / "monday").iterdir()} == {"client.db", "client.key"}
    assert all(file.stat().st_mode & 0o077 == 0 for file in (home.path / "monday").iterdir())
    assert lost_and_restored(home, home.path / "monday") == 0
    home.store.forget(Selection(subject="bob"))
    home.agent.sync()
    assert home.ledger == Statistics.of(SPEC, features(4)[[0, 2, 3]], [0, 2, 0])


def test_what_was_deleted_since_does_not_come_back(home: Home) -> None:
    back_up(home.store.path, home.path / "monday")
    home.store.forget(Selection(subject="ann"))
    add(home.store, 2, prefix="later", seed=5)
    home.agent.sync()
    assert lost_and_restored(home, home.path / "monday") == 2
    listed = home.store.listed(Selection(everything=True))
    assert [sample.names.id for sample in listed] == ["sample-1", "sample-3"]
    with pytest.raises(StoreError, match="sync --reset"):
        home.agent.sync()
    home.agent.sync(reset=True)
    assert home.ledger == Statistics.of(SPEC, features(4)[[1, 3]], [1, 0])
    add(home.store, 2, prefix="later", seed=5)
    home.agent.sync()
    assert home.ledger.count == 4


def test_without_the_living_vault_nothing_is_restored(home: Home) -> None:
    back_up(home.store.path, home.path / "monday")
    with pytest.raises(StoreError, match="is there already"):
        back_up(home.store.path, home.path / "monday")
    vault = home.path / "mirror"
    kept = home.path / "elsewhere"
    shutil.copy(vault, kept)
    vault.unlink()
    with pytest.raises(StoreError, match="expunge server forget-client"):
        restore_client(home.path / "restored", home.path / "monday")
    assert not (home.path / "restored").exists()
    lost_and_restored(home, home.path / "monday", kept)
    assert not kept.exists()  # there is one living copy


def test_another_client_s_vault_is_refused_and_stays(tmp_path: Path) -> None:
    """It was taken for one whose keys had all been destroyed since, and erased."""
    with make_store(tmp_path / "one") as store:
        back_up(store.path, tmp_path / "monday")
    with make_store(tmp_path / "other") as other:
        add(other, 2)
        vault = other.path / "client.vault"
    with pytest.raises(StoreError, match="is not the vault that this backup opens with"):
        restore_client(tmp_path / "restored", tmp_path / "monday", vault)
    assert not (tmp_path / "restored").exists()
    with ClientStore.open(vault.parent) as other:
        assert len(other.listed(Selection(everything=True))) == 2


def test_an_older_backup_destroys_nothing_of_a_newer_one_unasked(home: Home) -> None:
    back_up(home.store.path, home.path / "monday")
    add(home.store, 2, prefix="later", seed=5)
    home.agent.sync()
    back_up(home.store.path, home.path / "friday")
    home.store.close()
    asked: list[int] = []

    def no(newer: int) -> None:
        asked.append(newer)
        raise StoreError("no")

    with pytest.raises(StoreError, match=r"^no$"):
        restore_client(home.path / "restored", home.path / "monday", ask=no)
    assert asked == [2]
    restored = restore_client(home.path / "restored", home.path / "friday", ask=no)
    assert (restored.samples, restored.dropped) == (6, 0)
    home.store = ClientStore.open(home.path / "restored")


def test_a_mirror_stays_by_whatever_path_it_is_given(home: Home) -> None:
    back_up(home.store.path, home.path / "monday")
    (home.path / "disk").symlink_to(home.path)
    assert lost_and_restored(home, home.path / "monday", home.path / "disk" / "mirror") == 0
    assert (home.path / "mirror").exists()


def test_the_vault_of_a_folder_in_use_is_not_moved(home: Home) -> None:
    back_up(home.store.path, home.path / "monday")
    vault = home.store.path / "client.vault"
    with pytest.raises(StoreBusyError, match="in use"):
        restore_client(home.path / "restored", home.path / "monday", vault)
    assert vault.exists()
    assert not (home.path / "restored").exists()
    home.store.close()
    restore_client(home.path / "restored", home.path / "monday", vault)
    assert not vault.exists()
    with ClientStore.open(home.path / "restored") as home.store:
        assert home.store.status().live == 4


def test_an_old_copy_in_a_masked_federation_is_not_restored(tmp_path: Path) -> None:
    spec = replace(SPEC, messages=("masked",), aggregation=Aggregation())
    with make_store(tmp_path, spec=spec, message="masked") as store:
        back_up(store.path, tmp_path / "monday")
        vault = store.path / "client.vault"
    with pytest.raises(StoreError, match="enrol a new one"):
        restore_client(tmp_path / "restored", tmp_path / "monday", vault)
    assert vault.exists()
    assert not (tmp_path / "restored").exists()
