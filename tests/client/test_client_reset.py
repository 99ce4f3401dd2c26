"""Resets: a client has the server drop all that it holds of it, and sends what stays. So what has
lost its source is deleted, and an old copy goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from expunge import Aggregation, Statistics
from expunge.client import ClientStore, Selection
from expunge.errors import InputError, StoreError
from support.agents import Home, add
from support.clients import NOW, features, make_store
from support.federation import SPEC

KINDS = ("rows", "gram")


def pictures(sources: list[str]) -> NDArray[Any]:
    return np.stack([np.load(source) for source in sources])


class Ward(Home):
    """A client that keeps no features, with four samples of two people."""

    def __init__(self, path: Path, kind: str) -> None:
        super().__init__(path, SPEC, mode="recompute", message=kind)
        self.agent = self.agent_of(self.store, recompute=pictures)
        self.sources = [str(path / f"{number}.npy") for number in range(4)]
        for source, row in zip(self.sources, features(4), strict=True):
            np.save(source, row)
        add(self.store, sources=self.sources, subjects=["ann", "bob", "ann", "cyd"])
        self.agent.sync()

    def lose(self, *numbers: int) -> None:
        for number in numbers:
            Path(self.sources[number]).unlink()

    def holds(self, *numbers: int) -> None:
        """The ledger is that of these samples, and an audit agrees."""
        chosen = list(numbers)
        labels = np.array(chosen, dtype=int) % 3
        whole = (
            Statistics.of(SPEC, features(4)[chosen], labels) if chosen else Statistics.zero(SPEC)
        )
        assert self.ledger == whole
        operator = self.federation.operator
        audit = operator.command("audit")["audit"]
        assert self.agent.sync().audits == (audit,)
        self.federation.finish_audits()
        shown = operator.ask("show-audit", audit=audit)
        assert shown["result"] == "equal"

    def order(self, subject: str) -> str:
        return str(
            self.federation.officer(f"officer-{subject}").command("order", subject=subject)["order"]
        )

    def state(self, order: str) -> tuple[str, list[int]]:
        shown = self.federation.operator.ask("show-order", order=order)
        return shown["state"], [answer["found"] for answer in shown["answers"]]


@pytest.fixture(params=KINDS)
def ward(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ward]:
    ward = Ward(tmp_path, request.param)
    yield ward
    ward.close()


def test_a_missing_source_blocks_no_other_order_and_no_deletion(ward: Ward) -> None:
    lost, other = ward.order("ann"), ward.order("bob")
    ward.lose(0)
    with pytest.raises(InputError, match="cannot be computed again") as problem:
        ward.agent.sync()
    assert "expunge client sync" in "".join(problem.value.__notes__)
    assert (ward.state(lost)[0], ward.state(other)) == ("open", ("complete", [1]))
    ward.store.forget(Selection(subject="cyd"), recompute=pictures)
    with pytest.raises(InputError):
        ward.agent.sync()
    assert ward.ledger == Statistics.of(SPEC, features(4)[[0, 2]], np.array([0, 2]))


def test_an_order_about_what_has_lost_its_source_is_answered_by_a_reset(ward: Ward) -> None:
    order = ward.order("ann")
    ward.lose(0)
    done = ward.agent.sync(reset=True)
    (receipt,) = done.receipts
    entry = receipt.logged.entry
    assert (entry["reset"], entry["added"], entry["orders"]) == (
        True,
        2,
        [{"found": 2, "order": order}],
    )
    assert ward.state(order) == ("complete", [2])
    assert not ward.store.is_resetting
    ward.holds(1, 3)
    ward.federation.reopen()
    ward.holds(1, 3)
    ward.federation.fold()
    ward.federation.reopen()
    ward.holds(1, 3)


def test_what_else_has_lost_its_source_is_named_and_can_be_forgotten(ward: Ward) -> None:
    other, order = ward.order("bob"), ward.order("ann")
    ward.lose(0, 3)
    before = ward.store.status().live
    with pytest.raises(InputError, match=r"1 of the samples that are to stay.*--lost"):
        ward.agent.sync(reset=True)
    with pytest.raises(InputError, match=r"1 of the samples that are to stay.*--lost"):
        ward.store.forget(Selection(subject="ann"), recompute=pictures, reset=True)
    assert (ward.store.status().live, ward.store.is_resetting) == (before, False)
    with pytest.raises(InputError, match="cannot be computed again"):
        ward.agent.sync()
    assert [ward.state(each)[0] for each in (other, order)] == ["complete", "open"]
    assert ward.store.lost(recompute=pictures) == ["sample-0", "sample-3"]
    lost = Selection(ids=ward.store.lost(recompute=pictures))
    ward.store.forget(lost, recompute=pictures, reset=True)
    ward.agent.sync()
    assert ward.store.lost(recompute=pictures) == []
    assert ward.state(order) == ("complete", [2])
    ward.holds()


def test_what_vanishes_before_a_reset_is_sent_does_not_stay_in_the_way(ward: Ward) -> None:
    ward.lose(0)
    ward.store.forget(Selection(ids=["sample-0"]), recompute=pictures, reset=True)
    ward.lose(3)
    with pytest.raises(InputError) as problem:
        ward.agent.sync()
    assert "--lost" in "".join(problem.value.__notes__)
    assert ward.store.outbox.composed() is None
    ward.store.forget(Selection(ids=["sample-3"]), recompute=pictures)
    ward.agent.sync()
    ward.holds(1, 2)


def test_a_client_leaves_although_its_sources_are_gone(ward: Ward) -> None:
    ward.lose(0, 1, 2, 3)
    assert ward.store.leave(recompute=pictures).count == 4
    (receipt,) = ward.agent.sync().receipts
    assert (receipt.logged.entry["leave"], receipt.logged.entry["reset"]) == (True, True)
    assert ward.ledger.count == 0
    assert ward.store.status().left


@pytest.mark.parametrize("lost", ["before", "after"])
def test_a_reset_that_is_interrupted_is_applied_once(ward: Ward, lost: str) -> None:
    ward.lose(0)
    ward.store.forget(Selection(ids=["sample-0"]), recompute=pictures, reset=True)
    ward.way.change["request"] = lambda _: (_ for _ in ()).throw(KeyboardInterrupt)
    if lost == "before":
        ward.way.change.clear()
        ward.way.lost = ["", *["before"] * 8]
        with pytest.raises(Exception, match="lost on the way"):
            ward.agent.sync()
        ward.way.lost = []
    else:
        with pytest.raises(KeyboardInterrupt):
            ward.agent.sync()
        ward.way.change.clear()
    ward.agent.sync()
    ward.holds(1, 2, 3)
    resets = [entry for entry in ward.federation.entries("changed") if entry["reset"]]
    assert len(resets) == 1


def test_an_old_copy_goes_on_by_a_reset(ward: Ward, tmp_path: Path) -> None:
    """What was deleted since stays deleted, though the copy has it."""
    copy = (ward.store.path / "client.db").read_bytes()
    ward.store.forget(Selection(ids=["sample-1"]), recompute=pictures)
    ward.agent.sync()
    path = ward.store.path
    ward.store.close()
    (path / "client.db").write_bytes(copy)
    (path / "client.mark").unlink()
    ward.store = ClientStore.open(path, restored=True)
    ward.agent = ward.agent_of(ward.store, recompute=pictures)
    with pytest.raises(StoreError, match="sync --reset"):
        ward.agent.sync()
    ward.agent.sync(reset=True)
    ward.holds(0, 2, 3)


@pytest.mark.parametrize("spec", ["masked", "float64"])
def test_where_nothing_can_be_reset_it_says_what_can_be_done(tmp_path: Path, spec: str) -> None:
    changed = (
        replace(SPEC, messages=("masked",), aggregation=Aggregation())
        if spec == "masked"
        else replace(SPEC, messages=("factor",))
    )
    message = changed.messages[0]
    with make_store(tmp_path, spec=changed, message=message) as store:
        with pytest.raises(StoreError, match="expunge server forget-client ward-3"):
            store.reset()
        assert not store.is_resetting


# -- leaving ---------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    add(home.store, subjects=["ann", "bob", "ann", "cyd"])
    home.agent.sync()
    yield home
    home.close()


def test_a_departure_can_be_withdrawn_until_it_is_delivered(home: Home) -> None:
    before = home.ledger
    home.store.forget(Selection(subject="bob"))
    home.store.leave()
    assert home.store.stay() == 3
    status = home.store.status()
    assert (status.leaving, status.live, status.deleting) == (False, 3, 1)
    with pytest.raises(StoreError, match="is not leaving"):
        home.store.stay()
    home.agent.sync()
    assert home.ledger == before - Statistics.of(SPEC, features(4)[1:2], [1])
    add(home.store, 1, prefix="more", seed=9)
    assert len(home.agent.push()) == 1


def test_what_an_order_asks_for_is_not_withdrawn(home: Home) -> None:
    home.store.leave()
    home.store.carry_out([("0" * 32, "ann", NOW)])
    assert home.store.stay() == 2


def test_a_departure_that_may_have_arrived_is_not_withdrawn(home: Home) -> None:
    home.store.leave()
    home.way.lost = ["", *["after"] * 4]
    with pytest.raises(Exception, match="no answer came"):
        home.agent.sync()
    with pytest.raises(StoreError, match="is on its way"):
        home.store.stay()
    assert home.agent.sync().receipts or home.store.status().left


def test_a_server_that_cannot_be_trusted_is_told_before_anything_is_noted(home: Home) -> None:
    home.way.change["sync"] = lambda data: data[:-2] + b"}}"
    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever a false answer is
        home.agent.check()
    home.way.change.clear()
    home.agent.check()
    assert not home.store.status().leaving
