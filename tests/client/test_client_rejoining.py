"""Restored servers, old copies of stores, and clients that were forgotten."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from expunge import Spec, Statistics
from expunge.client import ClientStore, Selection
from expunge.crypto import Envelope, canonical
from expunge.errors import (
    CarrierError,
    EvidenceError,
    RefusedError,
    StoreError,
)
from expunge.server.backup import restore, write_backup
from expunge.server.service import Service
from expunge.server.state import Settings
from support.agents import Home, add, of
from support.clients import features
from support.federation import SPEC


class TestRejoining:
    def restored(
        self, home: Home, settings: Settings | None = None, place: Path | None = None
    ) -> None:
        """The server's disk is lost; a backup from before the last requests is put in its place."""
        state = home.federation.service.state
        backup, key = state.folder.path / "backups" / "b", state.folder.key
        place = place or home.path / "restored"
        home.federation.close()
        restore(place, backup, key, clock=home.federation.clock)
        home.federation.path = place
        home.federation.service = Service.open(
            place, settings=settings, clock=home.federation.clock, upkeep=False
        )

    @pytest.mark.parametrize(("messages", "requests"), [(("rows", "gram"), 1), (("rows",), 4)])
    def test_everything_is_sent_again_though_it_never_fitted_one_request(
        self, tmp_path: Path, messages: tuple[str, ...], requests: int
    ) -> None:
        spec = Spec(
            **{
                **{name: getattr(SPEC, name) for name in SPEC.__dataclass_fields__},
                "messages": messages,
            }
        )
        home = Home(tmp_path, spec, settings=Settings(largest_request=4000), message="rows")
        add(home.store, 60)
        assert len(home.agent.sync().receipts) == 4
        write_backup(home.federation.service.state.folder, "b")
        self.restored(home, Settings(largest_request=4000))
        home.store.forget(Selection(ids=["sample-59"]))
        synced = home.agent.sync(accept_restored=True)
        assert (synced.rejoined, len(synced.receipts)) == (True, requests)
        expected = Statistics.of(spec, features(60)[:59], np.arange(59) % 3)
        assert home.ledger == home.store.statistics() == expected
        assert home.store.status().live == 59
        home.close()

    def test_a_reset_that_is_too_large_after_all_is_made_smaller(self, home: Home) -> None:
        add(home.store, 40)
        home.agent.push()
        write_backup(home.federation.service.state.folder, "b")
        self.restored(home)
        home.way.refuse = [RefusedError("too-large", "no")] * 2
        home.agent.sync(accept_restored=True)
        assert (home.ledger, home.store.status().live) == (of(40), 40)

    def test_a_reset_whose_answer_was_lost_is_settled_though_its_number_is_far_ahead(
        self, home: Home
    ) -> None:
        add(home.store)
        for number in range(3):
            add(home.store, 1, f"more-{number}", number + 1)
            home.agent.push()
        write_backup(home.federation.service.state.folder, "b")
        self.restored(home)
        home.store.remember(
            {"sequence": "1", "rejoin": "1"}
        )  # as an old copy of the store would be
        home.way.lost = ["", "", *["after"] * 4]
        with pytest.raises(CarrierError):
            home.agent.sync(accept_restored=True)
        assert home.store.status().composed == 4
        home.agent.sync()
        assert (home.store.sequence, home.ledger) == (4, home.store.statistics())

    def test_a_reset_that_was_lost_with_the_next_server_is_made_again(self, home: Home) -> None:
        """The second server knows the receipt of the reset from its backup, but holds nothing of
        it.
        """
        add(home.store)
        home.agent.push()
        write_backup(home.federation.service.state.folder, "b")
        self.restored(home)
        home.way.lost = ["", *["after"] * 4]
        with pytest.raises(CarrierError):
            home.agent.sync(accept_restored=True)
        write_backup(home.federation.service.state.folder, "b")
        self.restored(home, place=home.path / "again")
        home.agent.sync(accept_restored=True)
        assert (home.ledger, home.store.status().live) == (of(), 4)

    def test_nothing_of_the_answer_but_the_log_is_kept(self, home: Home) -> None:
        add(home.store, subjects=["alice-liddell", None, None, None])
        home.agent.sync()
        write_backup(home.federation.service.state.folder, "b")
        add(home.store, 1, "late", 1)
        home.agent.sync()
        size, root = home.store.checkpoint
        self.restored(home)
        operator = home.federation.operator
        operator.sequence = operator.sync()["sequence"]
        order = operator.command("order", subject="alice-liddell")["order"]
        home.agent.sync(accept_restored=True)
        assert operator.ask("show-order", order=order)["state"] == "complete"
        lost, now = home.store.documents("lost-log").values()
        assert canonical.decode(lost) == {"root": root.hex(), "size": size}
        content = Envelope.from_bytes(now, "checkpoint").verify(home.federation.server_key.public)
        assert set(content) == {"federation", "root", "size", "time"}

    @pytest.mark.parametrize("message", ["rows", "gram"])
    def test_a_restored_server_gets_what_is_held_now(self, tmp_path: Path, message: str) -> None:
        home = Home(tmp_path, message=message)
        add(home.store)
        home.agent.push()
        write_backup(home.federation.service.state.folder, "b")
        home.store.forget(Selection(ids=["sample-0"]))
        home.agent.sync()
        add(home.store, 2, "more", 1)
        self.restored(home)
        with pytest.raises(EvidenceError, match=r"restored from a backup.*accept_restored"):
            home.agent.sync()
        synced = home.agent.sync(accept_restored=True)
        assert synced.rejoined
        assert len(home.store.documents("lost-log")) == 2
        rows = np.concatenate([features(4)[1:], features(2, 1)])
        assert home.ledger == Statistics.of(SPEC, rows, [1, 2, 0, 0, 1]) == home.store.statistics()
        assert synced.new_head
        home.store.forget(Selection(everything=True))
        home.agent.sync()
        assert home.ledger == Statistics.zero(SPEC)
        home.close()

    def test_a_request_on_its_way_is_taken_back_first(self, home: Home) -> None:
        write_backup(home.federation.service.state.folder, "b")
        add(home.store)
        home.way.lost = ["after"] * 4
        with pytest.raises(CarrierError):
            home.agent.push()
        self.restored(home)
        synced = home.agent.sync(accept_restored=True)
        assert (synced.rejoined, home.ledger) == (True, of())

    def test_a_push_rejoins_too(self, home: Home) -> None:
        write_backup(home.federation.service.state.folder, "b")
        self.restored(home)
        add(home.store)
        home.agent.push()
        assert (home.ledger, home.store.sequence, home.store.status().live) == (of(), 1, 4)

    def test_an_order_that_was_answered_before_the_backup_was_restored_is_answered_again(
        self, home: Home
    ) -> None:
        add(home.store, subjects=["ann", "ben", "cyd", None])
        home.agent.push()
        officer = home.federation.officer()
        order = officer.command("order", subject="ann")["order"]
        later = officer.command("order", subject="ben")["order"]
        write_backup(home.federation.service.state.folder, "b")
        vault = home.federation.path / "server.vault"
        shutil.copy(vault, home.path / "vault")
        home.agent.sync()
        state = home.federation.service.state
        backup, key, place = (
            state.folder.path / "backups" / "b",
            state.folder.key,
            home.path / "restored",
        )
        home.federation.close()
        restore(place, backup, key, vault=home.path / "vault", clock=home.federation.clock)
        home.federation.path = place
        home.federation.service = Service.open(place, clock=home.federation.clock, upkeep=False)
        home.agent.sync(accept_restored=True)
        for one in (order, later):
            assert officer.ask("show-order", order=one)["state"] == "complete"
        assert home.ledger == Statistics.of(SPEC, features(4)[2:], [2, 0])

    def test_a_vanished_client_that_was_forgotten_is_told(self, home: Home) -> None:
        add(home.store)
        home.agent.push()
        home.federation.operator.command("forget-client", client="ward-3")
        assert home.agent.sync().status == "gone"
        assert home.store.recall("gone") == "1"
        assert home.store.status().gone
        with pytest.raises(StoreError, match="knows ward-3 no longer"):
            add(home.store, 1, "late")
        assert home.agent.push() == []

    def test_an_old_copy_of_the_store_does_not_go_on(self, home: Home) -> None:
        add(home.store)
        home.agent.push()
        home.store.close()
        shutil.copytree(home.store.path, home.path / "copy")
        with ClientStore.open(home.store.path) as store:
            add(store, 1, "more", 1)
            home.agent_of(store).push()
        with ClientStore.open(home.path / "copy") as copy:
            with pytest.raises(StoreError, match=r"2 requests .*knows of 1: it is an old copy"):
                home.agent_of(copy).sync()
            add(copy, 1, "other", 2)
            with pytest.raises(RefusedError, match="has been used"):
                home.agent_of(copy).push()

    def test_a_server_that_forgot_what_it_receipted_is_found_out(self, home: Home) -> None:
        add(home.store)
        home.agent.push()
        home.federation.service.state.storage.database.rows(
            "UPDATE actors SET sequence = 0 WHERE name = 'ward-3'"
        )
        with pytest.raises(EvidenceError, match="forgotten requests"):
            home.agent.sync()
