"""Erasure orders and audits, as the agent carries them out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from expunge import Statistics
from expunge.client import Selection
from expunge.errors import CommitmentError, ProtocolError
from expunge.server.service import Service
from expunge.server.state import Settings
from support.agents import Home, add
from support.client_files import change_behind
from support.clients import features, ids
from support.federation import SPEC, Party


def small_requests(path: Path, *, of_ann: int, others: int) -> Home:
    """A client that has synced so many samples with a server that takes requests of 4000 bytes."""
    home = Home(path, settings=Settings(largest_request=4000))
    add(home.store, of_ann + others, subjects=["ann"] * of_ann + [None] * others)
    home.agent.sync()
    return home


class TestOrders:
    def test_an_order_is_carried_out_and_answered(self, home: Home) -> None:
        other = home.enrol("ward-4")
        add(home.store, subjects=["ann", "ben", "ann", None])
        add(other, subjects=["a-17"] * 4, seed=1)
        for store in (home.store, other):
            home.agent_of(store).sync()
        officer: Party = home.federation.officer()
        shown = officer.command("order", subject="ann", subjects={"ward-4": "a-17"})
        synced = home.agent.sync()
        assert [(order, preview.ids) for order, preview in synced.orders] == [
            (shown["order"], ("sample-0", "sample-2"))
        ]
        assert officer.ask("show-order", order=shown["order"])["waiting"] == ["ward-4"]
        home.agent_of(other).sync()
        shown = officer.ask("show-order", order=shown["order"])
        assert (shown["state"], [answer["found"] for answer in shown["answers"]]) == (
            "complete",
            [2, 4],
        )
        assert home.ledger == Statistics.of(SPEC, features(4)[[1, 3]], [1, 0])
        assert home.agent.sync().orders == ()
        other.close()

    def test_nothing_found_is_an_answer(self, home: Home) -> None:
        officer = home.federation.officer()
        order = officer.command("order", subject="nobody")["order"]
        assert home.agent.sync().orders[0][1].count == 0
        assert officer.ask("show-order", order=order)["state"] == "complete"

    def test_an_order_that_cannot_be_carried_out_holds_up_nothing_else(
        self, tmp_path: Path
    ) -> None:
        home = Home(tmp_path, mode="recompute")
        rows = {f"file-{number}": row for number, row in enumerate(features(4))}
        agent = home.agent_of(
            home.store, recompute=lambda sources: np.stack([rows[source] for source in sources])
        )
        add(home.store, subjects=["ann", "ben", "ann", None], sources=list(rows))
        agent.push()
        officer = home.federation.officer()
        bad = officer.command("order", subject="ann")["order"]
        good = officer.command("order", subject="ben")["order"]
        kept, rows["file-2"] = rows["file-2"], rows["file-2"] * 2
        with pytest.raises(CommitmentError, match="the feature of a sample is not the one"):
            agent.sync()
        assert officer.ask("show-order", order=good)["state"] == "complete"
        assert officer.ask("show-order", order=bad)["state"] == "open"
        rows["file-2"] = kept
        agent.sync()
        assert officer.ask("show-order", order=bad)["state"] == "complete"
        assert home.ledger == Statistics.of(SPEC, features(4)[3:], [0])
        home.close()

    def test_an_order_that_the_server_no_longer_waits_for_is_not_answered(self, home: Home) -> None:
        add(home.store)
        home.store.forget(Selection(subject="ann"), order="ab" * 16)
        (receipt,) = home.agent.sync().receipts
        assert receipt.logged.entry["orders"] == []
        assert len(home.way.offered) == 1

    def test_orders_and_changes_together(self, home: Home) -> None:
        add(home.store, subjects=["ann"] * 4)
        home.store.outbox.compose()
        order = home.federation.officer().command("order", subject="ann")["order"]
        synced = home.agent.sync()
        assert [receipt.logged.entry["orders"] for receipt in synced.receipts] == [
            [],
            [{"found": 4, "order": order}],
        ]
        assert home.ledger == Statistics.zero(SPEC)

    def test_an_order_too_large_for_rows_tells_how_many_samples_were_found(
        self, tmp_path: Path
    ) -> None:
        home = small_requests(tmp_path, of_ann=50, others=10)
        order = home.federation.operator.command("order", subject="ann")["order"]
        (receipt,) = home.agent.sync().receipts
        assert (receipt.logged.entry["message"], receipt.logged.entry["deleted"]) == ("gram", 50)
        (answer,) = home.federation.operator.ask("show-order", order=order)["answers"]
        assert (answer["found"], home.ledger) == (
            50,
            Statistics.of(SPEC, features(60)[50:], np.arange(50, 60) % 3),
        )
        home.close()

    def test_two_orders_for_one_subject_are_not_answered_before_its_samples_are_deleted(
        self, tmp_path: Path
    ) -> None:
        home = small_requests(tmp_path, of_ann=50, others=10)
        operator = home.federation.operator
        orders = [operator.command("order", subject="ann")["order"] for _ in range(2)]
        seen = []

        def look(data: Any) -> Any:
            states = [operator.ask("show-order", order=one)["state"] for one in orders]
            seen.append((states, home.ledger.count))
            return data

        home.way.change["request"] = look
        home.agent.sync()
        assert seen == [(["complete", "complete"], 10)]
        found = [operator.ask("show-order", order=one)["answers"][0]["found"] for one in orders]
        assert sorted(found) == [0, 50]
        home.close()

    def test_an_order_beyond_what_the_server_takes_waits_until_it_takes_more(
        self, tmp_path: Path
    ) -> None:
        home = small_requests(tmp_path, of_ann=150, others=50)
        order = home.federation.operator.command("order", subject="ann")["order"]
        add(home.store, 1, "new", 1)
        with pytest.raises(ProtocolError, match=f"150 samples .*{order}.*takes 4000"):
            home.agent.sync()
        assert home.ledger.count == 201, "the rest is not held up"
        home.federation.close()
        home.federation.service = Service.open(
            home.federation.path,
            settings=Settings(largest_request=9000),
            clock=home.federation.clock,
            upkeep=False,
        )
        home.agent.sync()
        (answer,) = home.federation.operator.ask("show-order", order=order)["answers"]
        assert (answer["found"], home.ledger.count) == (150, 51)
        home.close()


class TestAudits:
    @pytest.mark.parametrize("message", ["rows", "gram"])
    def test_an_audit_of_two_clients(self, tmp_path: Path, message: str) -> None:
        home = Home(tmp_path, message=message)
        other = home.enrol("ward-4")
        add(home.store, 600)
        add(other, seed=1)
        home.agent.push()
        home.store.forget(Selection(ids=ids(3)))
        audit = home.federation.operator.command("audit")["audit"]
        assert home.agent.sync().audits == (audit,)
        assert home.agent_of(other).sync().audits == (audit,)
        home.federation.service.upkeep.run_due()
        shown = home.federation.operator.ask("show-audit", audit=audit)
        assert (shown["result"], shown["equal"], shown["count"]) == (
            "equal",
            ["ward-3", "ward-4"],
            601,
        )
        assert home.store.answered(audit)
        assert home.agent.sync().audits == ()
        other.close()
        home.close()

    def test_a_store_that_differs_is_found_out(self, home: Home) -> None:
        add(home.store)
        home.agent.push()
        change_behind(home.store, "DELETE FROM samples WHERE label = 2")
        audit = home.federation.operator.command("audit")["audit"]
        home.agent.sync()
        home.federation.service.upkeep.run_due()
        assert home.federation.operator.ask("show-audit", audit=audit)["result"] == "different"
