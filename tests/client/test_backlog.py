"""Changes of few samples wait for more, and no longer than they may."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from expunge import Spec, Statistics, solve
from expunge.client import Agent, Backlog, ClientStore, Selection
from expunge.client.backlog import due_time, usual_due_time
from expunge.client.trust import PendingOrder
from expunge.errors import CarrierError, RefusedError
from expunge.server.backup import restore
from expunge.wire import request
from expunge.wire.request import Header
from expunge.wire.schema import time_text
from support.agents import Home, add
from support.clients import features, ids, make_store
from support.federation import NOW, SPEC, scratch

FEWEST, DAY = 5, 86400
GRAM = replace(SPEC, messages=("gram",), fewest_samples=FEWEST)


class Ward(Home):
    """A client whose small changes wait, with the time in the test's hands."""

    def __init__(self, path: Path, spec: Spec = GRAM) -> None:
        super().__init__(path, spec)
        self.agent = self.timed(self.store)

    def timed(self, store: ClientStore) -> Agent:
        return self.agent_of(store, wall_clock=self.federation.clock)

    @property
    def now(self) -> float:
        return self.federation.clock()

    def pass_days(self, days: float) -> None:
        self.federation.clock.now += int(days * DAY)

    def add(self, count: int, prefix: str, **options: object) -> None:
        add(self.store, count, prefix, seed=len(prefix), **options)

    def restart(self) -> None:
        path = self.store.path
        self.store.close()
        self.store = ClientStore.open(path)
        self.agent = self.timed(self.store)

    def requests(self) -> list[Header]:
        return [request.read(data).header for data in self.way.offered]


@pytest.fixture
def ward(tmp_path: Path) -> Iterator[Ward]:
    one = Ward(tmp_path)
    yield one
    one.close()


# -- when it is due --------------------------------------------------------------------------------


@given(filed=st.integers(0, 2**40), days=st.integers(1, 3650))
def test_due_within_the_first_quarter_of_an_orders_time(filed: int, days: int) -> None:
    deadline = filed + days * DAY
    due = due_time(filed, deadline)
    assert filed <= due < deadline
    assert 4 * (due - filed) == deadline - filed


@given(filed=st.integers(0, 2**40), late=st.integers(0, 2**40))
def test_an_order_whose_deadline_has_passed_before_it_was_filed_is_due(
    filed: int, late: int
) -> None:
    assert due_time(filed, filed - late) == filed


def test_without_an_order_a_deletion_is_due_as_if_one_were_filed_now(ward: Ward) -> None:
    usual = ward.federation.operator.command("order", subject="nobody")["order"]
    shown = ward.federation.operator.ask("show-order", order=usual)
    order = PendingOrder(usual, "nobody", shown["deadline"], shown["filed"])
    assert order.due(NOW + 5 * DAY) == usual_due_time(ward.now) == NOW + 7.5 * DAY


@given(filed=st.one_of(st.none(), st.integers(-99, 99)), left=st.integers(-99, 400))
def test_no_server_makes_a_deletion_wait_longer_than_a_quarter_of_what_is_left(
    filed: int | None, left: int
) -> None:
    """A server that says nothing of the filing, or names a time to come, gains nothing."""
    said = None if filed is None else time_text(NOW + filed * DAY)
    due = PendingOrder("o", "s", time_text(NOW + left * DAY), said).due(NOW)
    assert due <= NOW + max(0, left) * DAY // 4


# -- waiting ---------------------------------------------------------------------------------------


def test_fewer_samples_wait_and_go_out_with_enough_others(ward: Ward) -> None:
    ward.add(2, "first")
    done = ward.agent.sync()
    assert done.backlog == Backlog(samples=2, fewest=FEWEST, due=None)
    assert (done.receipts, done.waiting, ward.way.offered) == ((), "", [])
    ward.pass_days(10_000)  # additions are never due
    assert ward.agent.sync().backlog == done.backlog
    ward.add(3, "second")
    done = ward.agent.sync()
    assert [receipt.logged.entry["added"] for receipt in done.receipts] == [5]
    assert done.backlog is None


def test_added_and_deleted_samples_are_counted_together(ward: Ward) -> None:
    ward.add(5, "first")
    ward.agent.sync()
    ward.store.forget(Selection(ids=ids(2, "first")), now=ward.now)
    ward.add(1, "second")
    ward.store.correct("first-4", label=0, now=ward.now)  # two rows: the old one and the new one
    (receipt,) = ward.agent.sync().receipts
    assert (receipt.logged.entry["added"], receipt.logged.entry["deleted"]) == (2, 3)


def test_a_deletion_waits_for_a_quarter_of_the_usual_time(ward: Ward) -> None:
    ward.add(5, "first")
    ward.agent.sync()
    ward.store.forget(Selection(ids=["first-0"]), now=ward.now)
    ward.add(1, "second")
    due = NOW + int(7.5 * DAY)
    for days in (0, 7.5 - 1 / DAY):
        ward.federation.clock.now = NOW + int(days * DAY)
        done = ward.agent.sync()
        assert (done.backlog, done.receipts) == (Backlog(2, FEWEST, due), ())
    ward.restart()  # which loses no time
    assert ward.store.backlog(now=ward.now) == Backlog(2, FEWEST, due)
    ward.pass_days(1 / DAY)
    (receipt,) = ward.agent.sync().receipts  # and everything pending goes out with it
    assert (receipt.logged.entry["added"], receipt.logged.entry["deleted"]) == (1, 1)
    assert ward.store.status().deleting == 0


def test_a_correction_waits_as_long_as_a_deletion(ward: Ward) -> None:
    ward.add(5, "first")
    ward.agent.sync()
    ward.store.correct("first-0", label=1, now=ward.now)
    assert ward.agent.sync().backlog == Backlog(2, FEWEST, usual_due_time(NOW))
    ward.pass_days(7.5)
    assert ward.agent.sync().backlog is None


def test_the_earliest_time_counts_and_asking_again_gives_no_more(ward: Ward) -> None:
    ward.add(5, "first", subjects=["ann"] * 5)
    ward.agent.sync()
    ward.store.forget(Selection(ids=["first-0"]), now=ward.now)
    ward.pass_days(3)
    ward.store.forget(Selection(ids=["first-0", "first-1"]), now=ward.now)
    backlog = ward.store.backlog(now=ward.now)
    assert backlog == Backlog(2, FEWEST, usual_due_time(NOW))


def test_a_sample_that_was_never_sent_is_forgotten_at_once(ward: Ward) -> None:
    ward.add(2, "first")
    ward.store.forget(Selection(ids=["first-0"]), now=ward.now)
    assert ward.agent.sync().backlog == Backlog(1, FEWEST, None)
    ward.store.forget(Selection(ids=["first-1"]), now=ward.now)
    assert ward.agent.sync().backlog is None
    assert ward.way.offered == []


def test_what_was_forgotten_while_it_was_sent_has_a_time_of_its_own(ward: Ward) -> None:
    ward.add(5, "first")
    ward.way.lost += ["", "after"]
    ward.agent = ward.agent_of(ward.store, wall_clock=ward.federation.clock)
    with pytest.raises(CarrierError):
        Agent(ward.store, ward.way, attempts=1, wall_clock=ward.federation.clock).sync()
    ward.pass_days(1)
    ward.store.forget(Selection(ids=["first-0"]), now=ward.now)
    assert ward.agent.sync().backlog == Backlog(1, FEWEST, usual_due_time(NOW + DAY))


# -- orders ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("days", "heard"), [(30, 0), (30, 5), (1, 0), (4, 0.5)])
def test_an_order_waits_for_a_quarter_of_its_time_from_its_filing_on(
    ward: Ward, days: int, heard: float
) -> None:
    ward.add(5, "first", subjects=["ann", *"abcd"])
    ward.agent.sync()
    number = ward.federation.operator.command("order", subject="ann", days=days)["order"]
    ward.pass_days(heard)
    assert ward.agent.sync().backlog == Backlog(1, FEWEST, NOW + days * DAY // 4)
    ward.federation.clock.now = NOW + days * DAY // 4
    (receipt,) = ward.agent.sync().receipts
    assert receipt.logged.entry["deleted"] == 1
    told = ward.federation.operator.ask("show-order", order=number)
    assert told["state"] == "complete"
    assert told["completed"] < told["deadline"]


def test_an_order_that_is_heard_of_after_its_quarter_is_carried_out_at_once(ward: Ward) -> None:
    ward.add(5, "first", subjects=["ann", *"abcd"])
    ward.agent.sync()
    ward.federation.operator.command("order", subject="ann", days=8)
    ward.pass_days(2)
    assert len(ward.agent.sync().receipts) == 1


def test_an_order_for_which_nothing_is_held_is_answered_while_others_wait(ward: Ward) -> None:
    ward.add(2, "first", subjects=["ann", "bob"])
    number = ward.federation.operator.command("order", subject="eve")["order"]
    assert ward.agent.sync().backlog == Backlog(2, FEWEST, None)
    assert ward.federation.operator.ask("show-order", order=number)["state"] == "complete"


# -- at once ---------------------------------------------------------------------------------------


def test_the_client_may_send_few_samples(ward: Ward) -> None:
    ward.add(2, "first")
    (receipt,) = ward.agent.sync(at_once=True).receipts
    assert receipt.samples_in_sum == 2
    ward.add(1, "second")  # was not meant
    assert ward.agent.sync().backlog == Backlog(1, FEWEST, None)
    assert [header.added for header in ward.requests()] == [2]
    assert len(ward.agent.push(at_once=True)) == 1


def test_the_decision_to_send_outlives_what_interrupts_it(ward: Ward) -> None:
    ward.add(2, "first")
    ward.way.lost += ["", *["before"] * 4]
    with pytest.raises(CarrierError):
        ward.agent.sync(at_once=True)
    outstanding = ward.store.outbox.composed()
    assert outstanding is not None
    ward.store.outbox.abandon(outstanding.sequence, "refused")
    ward.restart()
    (receipt,) = ward.agent.sync().receipts
    assert receipt.logged.entry["added"] == 2
    ward.store.forget(Selection(ids=["first-0"]), now=ward.now)  # has a time of its own
    assert ward.store.backlog(now=ward.now) == Backlog(1, FEWEST, usual_due_time(ward.now))


# -- what is not counted ---------------------------------------------------------------------------


def test_leaving_goes_out_at_once(ward: Ward) -> None:
    ward.add(5, "first")
    ward.agent.sync()
    ward.add(1, "second")
    ward.store.leave()
    done = ward.agent.sync()
    assert done.backlog is None
    assert ward.store.status().left


def test_an_audit_is_answered_while_a_change_waits(ward: Ward) -> None:
    ward.add(5, "first")
    ward.agent.sync()
    ward.add(1, "second")
    ward.store.forget(Selection(ids=["first-0"]), now=ward.now)
    audit = ward.federation.operator.command("audit")["audit"]
    done = ward.agent.sync()
    assert (done.audits, done.backlog is None) == ((audit,), False)
    ward.federation.finish_audits()
    assert ward.federation.operator.ask("show-audit", audit=audit)["result"] == "equal"


def test_a_restored_server_gets_what_is_held_however_few(ward: Ward, tmp_path: Path) -> None:
    ward.add(2, "first")
    ward.agent.sync(at_once=True)
    ward.store.forget(Selection(ids=["first-1"]), now=ward.now)
    ward.federation.operator.command("backup", name="b")
    folder = ward.federation.service.state.folder
    backup, key = folder.path / "backups" / "b", folder.key
    ward.federation.close()
    restore(tmp_path / "restored", backup, key, clock=ward.federation.clock)
    ward.federation.path = tmp_path / "restored"
    ward.federation.service = ward.federation.opened()
    done = ward.agent.sync(accept_restored=True)
    assert (done.rejoined, done.backlog) == (True, None)
    assert ward.ledger.count == 1


def test_what_a_restored_server_has_no_room_for_is_as_if_it_were_added_now(tmp_path: Path) -> None:
    with make_store(tmp_path, replace(GRAM, dim=4), message="gram") as store:
        store.add(ids(5), features(5), [0] * 5, now=NOW)
        store.outbox.expedite(NOW)  # which was about that request only
        store.outbox.compose()
        store.outbox.settle(1, b"receipt")
        store.outbox.compose(reset=True, sequence=2, most=3, largest=100)
        store.outbox.settle(2, b"receipt")
        assert store.backlog(now=NOW) == Backlog(2, FEWEST, None)


def test_an_order_hurries_what_is_being_deleted_already(ward: Ward) -> None:
    subjects = ["p0", *["p1"] * (FEWEST - 1)]
    ward.store.add(ids(FEWEST), features(FEWEST), [0] * FEWEST, subjects=subjects, now=ward.now)
    ward.agent.sync()
    ward.store.forget(Selection(subject="p0"), now=ward.now)
    assert ward.agent.sync().backlog == Backlog(1, FEWEST, usual_due_time(ward.now))
    ward.federation.operator.command("order", subject="p0", days=1)
    assert ward.agent.sync().backlog == Backlog(1, FEWEST, int(ward.now) + DAY // 4)


# -- requests that are too large -------------------------------------------------------------------


def groups(store: ClientStore, *sizes: int) -> None:
    """Live samples, deleted by orders of so many samples each."""
    total = sum(sizes)
    subjects = [f"p{place}" for place, size in enumerate(sizes) for _ in range(size)]
    store.add(ids(total), features(total), np.zeros(total, dtype=int), subjects=subjects, now=NOW)
    store.outbox.compose()
    store.outbox.settle(1, b"receipt")
    for place in range(len(sizes)):
        store.forget(Selection(subject=f"p{place}"), order=f"{place:032x}", due=0)


@given(sizes=st.lists(st.integers(1, 25), min_size=1, max_size=5))
@settings(max_examples=25)
def test_no_part_of_a_large_change_is_of_few_samples_but_the_last(sizes: list[int]) -> None:
    path = scratch()
    with make_store(path, replace(GRAM, dim=4), message="gram") as store:
        groups(store, *sizes)
        parts = []
        while composition := store.outbox.compose(most=2 * FEWEST, largest=1 << 20):
            parts.append(composition.deleted)
            store.outbox.settle(composition.sequence, b"receipt")
    shutil.rmtree(path)
    assert sum(parts) == sum(sizes)
    small = [place for place, part in enumerate(parts) if part < FEWEST]
    assert small in ([], [len(parts) - 1])


def test_a_request_is_not_divided_below_the_rule(ward: Ward) -> None:
    ward.add(4 * FEWEST + 1, "first")
    ward.way.refuse += [RefusedError("too-large", "too large")] * 3
    with pytest.raises(RefusedError, match="too large"):
        ward.agent.sync()
    assert [header.added for header in ward.requests()] == [21, 10]


# -- any order of events ---------------------------------------------------------------------------


class BacklogMachine(RuleBasedStateMachine):
    """No request is of few samples unless something in it was due; nothing waits beyond its time;
    and what has gone out is what retraining on it gives, bit for bit.
    """

    @initialize()
    def begin(self) -> None:
        self.path = scratch()
        self.ward = Ward(self.path)
        self.model: dict[str, str] = {}  # subject by id
        self.due: dict[str, float] = {}  # of deletions that were asked for, by id; of orders
        self.sent: set[str] = set()  # what the server counts
        self.subjects: dict[str, str] = {}  # also of what was forgotten
        self.number = 0

    @rule(count=st.integers(1, 4), subject=st.sampled_from(["ann", "bob"]))
    def add(self, count: int, subject: str) -> None:
        names = [f"s{self.number + place}" for place in range(count)]
        rows = np.stack([features(1, self.number + place)[0] for place in range(count)])
        self.number += count
        self.ward.store.add(names, rows, [0] * count, subjects=[subject] * count, now=self.ward.now)
        self.model |= dict.fromkeys(names, subject)
        self.subjects |= dict.fromkeys(names, subject)

    def forgotten(self, names: list[str], due: float) -> None:
        for name in names:
            del self.model[name]
            if name in self.sent:
                self.due[name] = min(due, self.due.get(name, due))

    @rule(place=st.integers(0, 20))
    def forget(self, place: int) -> None:
        names = sorted(self.model)
        if names:
            name = names[place % len(names)]
            self.ward.store.forget(Selection(ids=[name]), now=self.ward.now)
            self.forgotten([name], usual_due_time(self.ward.now))

    @rule(subject=st.sampled_from(["ann", "bob"]), days=st.integers(1, 40))
    def order(self, subject: str, days: int) -> None:
        self.ward.federation.operator.command("order", subject=subject, days=days)
        self.synced(at_once=False, due=self.ward.now + days * DAY // 4, subject=subject)

    @rule(days=st.sampled_from([0.1, 1, 3, 8]))
    def pass_days(self, days: float) -> None:
        self.ward.pass_days(days)

    @rule()
    def restart(self) -> None:
        self.ward.restart()

    @rule(at_once=st.booleans())
    def sync(self, at_once: bool) -> None:
        self.synced(at_once=at_once)

    def synced(self, *, at_once: bool, due: float = 0.0, subject: str = "") -> None:
        ward = self.ward
        self.forgotten([name for name, of_ in self.model.items() if of_ == subject], due)
        for name, time in self.due.items():  # an order is also about what is being deleted
            if self.subjects[name] == subject:
                self.due[name] = min(due, time)
        before = len(ward.way.offered)
        pending = len(self.model.keys() - self.sent) + len(self.due)
        is_due = at_once or any(time <= ward.now for time in self.due.values())
        done = ward.agent.sync(at_once=at_once)
        changes = [header for header in ward.requests()[before:] if header.added + header.deleted]
        if pending and (is_due or pending >= FEWEST):
            (header,) = changes
            assert header.added + header.deleted == pending
            self.sent, self.due = set(self.model), {}
            assert done.backlog is None
        else:
            assert changes == []
            waits = Backlog(pending, FEWEST, min(map(int, self.due.values()), default=None))
            assert done.backlog == (waits if pending else None)

    @invariant()
    def the_ledger_is_that_of_retraining(self) -> None:
        if not hasattr(self, "ward"):
            return
        names = sorted(self.sent, key=lambda name: int(name[1:]))
        expected = Statistics.zero(GRAM)
        if names:
            rows = np.stack([features(1, int(name[1:]))[0] for name in names])
            expected = Statistics.of(GRAM, rows, [0] * len(names))
            head = self.ward.federation.service.state.head
            assert head is not None
            assert head.digest == solve(expected).digest
        assert self.ward.ledger == expected

    def teardown(self) -> None:
        if hasattr(self, "ward"):
            self.synced(at_once=True)
            self.the_ledger_is_that_of_retraining()
            self.ward.close()
            shutil.rmtree(self.path)


TestBacklog = BacklogMachine.TestCase
TestBacklog.settings = settings(max_examples=12, stateful_step_count=25)
