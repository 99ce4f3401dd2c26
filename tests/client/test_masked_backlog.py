"""Under secure aggregation, changes of few samples wait for more, and no time of an answer says who
holds anything.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from expunge import Statistics
from expunge.client import Backlog, Selection
from expunge.client.backlog import usual_due_time
from support.federation import NOW, scratch
from support.masked_round import SPEC, Circle, drawn

FEWEST, DAY, SUBJECT = 4, 86400, "subject-17"
MASKED = replace(SPEC, fewest_samples=FEWEST)


def pass_days(circle: Circle, days: float) -> None:
    circle.federation.clock.now += int(days * DAY)


def ready(circle: Circle) -> Circle:
    """Everybody has enough samples that the server counts."""
    for name in circle.names:
        circle.add(name, FEWEST)
    circle.go()
    circle.check_whole()
    return circle


@pytest.fixture
def circle() -> Iterator[Circle]:
    with drawn(spec=MASKED) as one:
        yield ready(one)


def ledger(circle: Circle) -> Statistics:
    return circle.service.state.ledger.exact_statistics()


def reconstructed(before: Statistics, after: Statistics) -> np.ndarray | None:
    """The attack of a server that keeps ledgers: if they differ by one sample, its feature is the
    row of the constant feature in the difference.
    """
    difference = before - after
    return difference.gram_float()[-1, :-1] if abs(difference.count) == 1 else None


def order(circle: Circle, days: int = 30) -> str:
    """An order, of which everybody has heard."""
    number = circle.federation.operator.command("order", subject=SUBJECT, days=days)["order"]
    circle.pass_round()
    return str(number)


def shown(circle: Circle, number: str) -> dict[str, Any]:
    told: dict[str, Any] = circle.federation.operator.ask("show-order", order=number)
    return told


# -- the attack ------------------------------------------------------------------------------------


def test_a_server_reads_a_sample_from_the_ledgers_around_its_deletion() -> None:
    """Which is what the rule is for: masks alone do not help."""
    with drawn() as circle:
        ready(circle)
        before, sample = ledger(circle), next(iter(circle.held["c0"]))
        row, _ = circle.held["c0"][sample]
        circle.forget("c0", [sample])
        circle.go()
        found = reconstructed(before, ledger(circle))
        assert found is not None
        assert np.allclose(found, row, atol=2.0**-34)


def test_a_single_deletion_goes_out_with_others(circle: Circle) -> None:
    before = ledger(circle)
    circle.forget("c0", [next(iter(circle.held["c0"]))])
    done = circle.go()
    assert done["c0"].backlog == Backlog(1, FEWEST, usual_due_time(NOW))
    assert ledger(circle) == before
    circle.add("c0", FEWEST - 1)
    circle.go()
    assert reconstructed(before, ledger(circle)) is None
    circle.check_whole()


def test_a_single_deletion_shows_at_last_when_it_is_due(circle: Circle) -> None:
    """As docs/privacy.md says."""
    before = ledger(circle)
    circle.forget("c0", [next(iter(circle.held["c0"]))])
    circle.go()
    pass_days(circle, 7.5)
    circle.go()
    assert reconstructed(before, ledger(circle)) is not None
    circle.check_whole()


# -- covering --------------------------------------------------------------------------------------


def test_a_client_whose_change_waits_covers_the_rounds_of_others(circle: Circle) -> None:
    circle.add("c0", 1)
    circle.add("c1", FEWEST)
    done = circle.go()
    assert done["c0"].backlog == Backlog(1, FEWEST, None)
    entry = circle.entries("aggregated")[-1]
    assert (entry["added"], len(entry["clients"])) == (FEWEST, 4)
    assert circle.stores["c0"].status().adding == 1
    circle.add("c0", FEWEST - 1)
    circle.go()
    assert circle.entries("aggregated")[-1]["added"] == FEWEST
    circle.check_whole()


def test_enough_samples_go_out_in_the_round_that_a_cover_has_joined(circle: Circle) -> None:
    """As long as the cover was not masked, it is composed again."""
    circle.add("c0", 1)
    circle.add("c1", FEWEST)
    circle.pass_round("c1", "c0")
    circle.add("c0", FEWEST - 1)
    circle.go()
    assert circle.entries("aggregated")[-1]["added"] == 2 * FEWEST
    circle.check_whole()


@pytest.mark.parametrize("phase", ["joining", "sharing", "masking"])
def test_a_change_that_becomes_too_small_in_a_round_leaves_zeros_there(
    circle: Circle, phase: str
) -> None:
    ids, before = circle.add("c0", FEWEST), len(circle.entries("aggregated"))
    circle.until(phase)
    circle.forget("c0", ids[:1])
    done = circle.go()
    (entry,) = circle.entries("aggregated")[before:]
    assert (entry["added"], entry["deleted"], len(entry["clients"])) == (0, 0, 4)
    assert done["c0"].backlog == Backlog(FEWEST - 1, FEWEST, None)


def test_the_decision_to_send_few_outlives_a_round_that_comes_to_nothing(circle: Circle) -> None:
    circle.add("c0", 1)
    assert circle.sync("c0", at_once=True).waiting
    circle.restart_server()
    circle.restart_client("c0")
    done = circle.go()
    assert len(done["c0"].receipts) == 1
    circle.check_whole()


def test_what_is_left_of_a_request_that_was_put_back_goes_out_at_once_too(circle: Circle) -> None:
    ids = circle.add("c0", FEWEST)
    assert circle.sync("c0").waiting  # composed, and waits for others
    circle.forget("c0", ids[:2])
    assert circle.sync("c0", at_once=True).backlog is None
    circle.go()
    assert not circle.stores["c0"].status().adding


def test_leaving_goes_out_at_once(circle: Circle) -> None:
    circle.add("c0", 1)
    circle.stores["c0"].leave()
    circle.held["c0"] = {}
    circle.go()
    assert circle.stores["c0"].status().left


def test_an_audit_takes_place_while_changes_wait(circle: Circle) -> None:
    circle.add("c0", 1)
    circle.forget("c1", [next(iter(circle.held["c1"]))])
    circle.pass_round()
    audit = circle.federation.operator.command("audit")["audit"]
    circle.go()
    assert circle.federation.operator.ask("show-audit", audit=audit)["result"] == "equal"
    assert circle.stores["c0"].backlog(now=NOW) == Backlog(1, FEWEST, None)


# -- orders ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("days", [30, 1])
def test_everybody_answers_after_a_round_since_the_quarter(circle: Circle, days: int) -> None:
    ids = circle.add("c0", FEWEST, SUBJECT)
    circle.go()
    rounds = len(circle.entries("aggregated"))
    number = order(circle, days)
    for sample in ids:
        del circle.held["c0"][sample]
    circle.go()
    circle.add("c1", FEWEST)  # a round with everybody in it, before the quarter
    circle.go()
    assert len(circle.entries("aggregated")) == rounds + 1
    assert shown(circle, number)["waiting"] == circle.names
    pass_days(circle, days / 4)
    circle.go()
    told = shown(circle, number)
    assert (told["state"], told["waiting"]) == ("complete", [])
    assert told["completed"] < told["deadline"]
    assert len(circle.entries("aggregated")) == rounds + 2
    circle.check_whole()


def seen(holder: str, pending: int) -> list[tuple[str, ...]]:
    """All that the log shows of an order for a subject of whom this client holds a sample, with
    samples of its own pending; but for salts, which are random.
    """
    with drawn(spec=MASKED) as circle:
        ready(circle)
        for name in circle.names:
            circle.add(name, FEWEST, SUBJECT if name == holder else None)
        circle.go()
        first = len(circle.federation.entries())
        for name in circle.names:
            circle.add(name, pending)
        circle.go()
        number = order(circle)
        for _ in range(6):
            pass_days(circle, 1.6)
            circle.go()
        assert shown(circle, number)["state"] == "complete"
        return [
            (entry["kind"], entry.get("client", ""), entry["time"])
            for entry in circle.federation.entries()[first:]
        ]


@pytest.mark.parametrize("pending", [0, FEWEST - 1])
def test_no_time_says_who_holds_anything(pending: int) -> None:
    """Not even if with the samples of the order the client has enough to begin a round."""
    log = seen("c0", pending)
    assert log == seen("c1", pending)
    assert log == seen("", pending)
    assert [kind for kind, *_ in log].count("answered") == 4


def test_samples_of_an_order_count_when_it_is_due(circle: Circle) -> None:
    circle.add("c0", FEWEST, SUBJECT)
    circle.go()
    order(circle)
    circle.add("c0", 1)
    expected = Backlog(1, FEWEST, NOW + int(7.5 * DAY), uncounted=FEWEST)
    assert circle.sync("c0").backlog == expected
    circle.add("c0", FEWEST - 1)  # enough without them: they go along
    circle.go()
    assert circle.entries("aggregated")[-1]["deleted"] == FEWEST


# -- any order of events ---------------------------------------------------------------------------


class ViewMachine(RuleBasedStateMachine):
    """What an attacker at the server sees: of no client does an unmasked sum hold few samples,
    unless something of them was due or the client has decided to send them.
    """

    @initialize(seed=st.integers(0, 99))
    def begin(self, seed: int) -> None:
        self.path = scratch()
        self.circle = Circle(self.path, 3, spec=MASKED, seed=seed)
        self.due: dict[str, dict[str, float]] = {name: {} for name in self.circle.names}
        self.composed: dict[tuple[str, int], tuple[int, bool]] = {}
        self.orders: list[str] = []

    @property
    def now(self) -> float:
        return self.circle.federation.clock()

    def sync(self, name: str, *, at_once: bool = False) -> None:
        """Sync, and note what is composed, and whether it may be of few samples."""
        store = self.circle.stores[name]
        if at_once:
            self.due[name] |= dict.fromkeys(self.pending(name), 0.0)
        self.circle.sync(name, at_once=at_once)
        composition = store.outbox.composed()
        if composition is not None:
            due = any(time <= self.now for time in self.due[name].values())
            rows = composition.added + composition.deleted
            self.composed[name, composition.sequence] = rows, due
        pending = self.pending(name)
        self.due[name] = {one: time for one, time in self.due[name].items() if one in pending}

    def pending(self, name: str) -> set[str]:
        listed = self.circle.stores[name].listed(Selection(everything=True))
        return {one.names.id for one in listed if one.state != "live"}

    @rule(place=st.integers(0, 2), count=st.integers(1, 5), about=st.booleans())
    def add(self, place: int, count: int, about: bool) -> None:
        self.circle.add(f"c{place}", count, SUBJECT if about else None)

    @rule(place=st.integers(0, 2), which=st.integers(0, 9))
    def forget(self, place: int, which: int) -> None:
        name = f"c{place}"
        held = sorted(self.circle.held[name])
        if held:
            self.circle.forget(name, [held[which % len(held)]])
            self.due[name].setdefault(held[which % len(held)], usual_due_time(self.now))

    @rule(days=st.sampled_from([1, 8, 30]))
    def order(self, days: int) -> None:
        due = self.now + days * DAY // 4
        command = self.circle.federation.operator.command
        self.orders.append(command("order", subject=SUBJECT, days=days)["order"])
        for name in self.circle.names:
            listed = self.circle.stores[name].listed(Selection(everything=True))
            for one in listed:
                if one.names.subject == SUBJECT:
                    self.circle.held[name].pop(one.names.id, None)
                    self.due[name][one.names.id] = min(due, self.due[name].get(one.names.id, due))
            self.sync(name)

    @rule(days=st.sampled_from([0.2, 2, 7.5]))
    def pass_days(self, days: float) -> None:
        pass_days(self.circle, days)

    @rule(place=st.integers(0, 2))
    def restart(self, place: int) -> None:
        self.circle.restart_client(f"c{place}")

    @rule(place=st.integers(0, 2), at_once=st.booleans())
    def sync_one(self, place: int, at_once: bool) -> None:
        self.sync(f"c{place}", at_once=at_once)

    @rule()
    def sync_all(self) -> None:
        """Until nobody waits for others."""
        for _ in range(12):
            for name in self.circle.names:
                self.sync(name)
            self.circle.wait(60.0 if self.circle.phase == "joining" else 0.0)

    @invariant()
    def no_sum_is_of_few_samples_of_a_client(self) -> None:
        if not hasattr(self, "circle"):
            return
        for entry in self.circle.entries("aggregated"):
            members = [
                self.composed[member["client"], member["sequence"]] for member in entry["clients"]
            ]
            assert all(rows == 0 or rows >= FEWEST or due for rows, due in members)
            assert sum(rows for rows, _ in members) == entry["added"] + entry["deleted"]

    def teardown(self) -> None:
        if not hasattr(self, "circle"):
            return
        pass_days(self.circle, 8)
        self.sync_all()
        for name in self.circle.names:
            assert self.circle.stores[name].status().deleting == 0  # nothing waits for ever
            self.sync(name, at_once=True)
        self.sync_all()
        self.no_sum_is_of_few_samples_of_a_client()
        if any(self.circle.held.values()):
            self.circle.check_whole()
        assert all(shown(self.circle, number)["state"] == "complete" for number in self.orders)
        self.circle.close()
        shutil.rmtree(self.path)


TestView = ViewMachine.TestCase
TestView.settings = settings(max_examples=4, stateful_step_count=10)
