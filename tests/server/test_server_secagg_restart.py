"""Restarts and failures in the middle of rounds: a round may be lost, a request never is, and none
is applied twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from expunge import kinds
from expunge.errors import CarrierError, RefusedError, StoreError
from expunge.server.secagg_outcomes import Outcomes
from support.federation import writer_of
from support.masked_round import PHASE, Circle, drawn

PHASES = kinds.PHASES[:-1]  # in which a round can be interrupted


@pytest.fixture
def circle() -> Iterator[Circle]:
    with drawn() as one:
        yield one


@pytest.mark.parametrize("answers", [1, 2])
@pytest.mark.parametrize("phase", PHASES)
def test_a_server_that_stops_in_any_phase_loses_the_round_and_nothing_else(
    circle: Circle, phase: str, answers: int
) -> None:
    circle.everybody_adds()
    circle.until(phase)
    if answers == 2 and phase != "revealing":  # where two are enough
        circle.sync("c1")
    before = circle.ledger()
    circle.restart_server()
    assert circle.ledger() == before
    assert "it was started anew. Nothing was changed" in circle.sync("c0").waiting
    done = circle.go()
    assert all(len(one.receipts) == 1 for one in done.values())
    circle.check_whole()
    assert len(circle.entries("aggregated")) == 1


def test_a_server_that_stops_after_the_round_still_has_the_receipts(circle: Circle) -> None:
    circle.everybody_adds()
    circle.until("revealing")
    for name in circle.names:
        if circle.phase:
            circle.sync(
                name
            )  # the last one that is needed ends the round, and some have not heard of it
    assert len(circle.entries("aggregated")) == 1
    circle.restart_server()
    done = circle.pass_round()
    assert any(one.receipts for one in done.values())
    circle.check_whole()
    assert len(circle.entries("aggregated")) == 1


@pytest.mark.parametrize("step", range(1, 9))
def test_a_client_whose_store_is_reopened_between_any_two_steps_goes_on(
    circle: Circle, step: int
) -> None:
    """Each exchange of c0 with the server is followed by a restart of its store, from the n-th on
    once.
    """
    circle.everybody_adds()
    exchanges = [0]

    def lose(name: str) -> str:
        exchanges[0] += name == "aggregate" and is_c0[0]
        return "back" if name == "aggregate" and is_c0[0] and exchanges[0] == step else ""

    is_c0, lost = [False], 0
    circle.way.lose = lose
    for _ in range(8):
        for name in circle.names:
            is_c0[0] = name == "c0"
            try:
                circle.sync(name)
            except CarrierError:
                lost += 1
            circle.restart_client(name)
    circle.check_whole()
    assert lost == 1
    assert len(circle.entries("aggregated")) == 1


@pytest.mark.parametrize("cut", ["cut there", "cut back"])
@pytest.mark.parametrize("step", range(1, 9))
def test_a_turn_that_is_cut_short_is_taken_again(circle: Circle, step: int, cut: str) -> None:
    """The n-th exchange of c0 in the round is damaged on the way: c0 stays in that round."""
    circle.everybody_adds()
    turns = 0

    def lose(name: str) -> str:
        nonlocal turns
        turns += name == "aggregate"
        return cut if name == "aggregate" and turns == step else ""

    for _ in range(8):
        circle.way.lose = lose
        circle.sync("c0", attempts=2)
        circle.way.lose = lambda _: ""
        circle.pass_round("c1", "c2", "c3")
    assert turns > step
    circle.check_whole()
    (entry,) = circle.entries("aggregated")
    assert "c0" in [member["client"] for member in entry["clients"]]


def test_one_that_drops_out_after_its_masked_message_learns_the_outcome_before_it_offers_anything(
    circle: Circle,
) -> None:
    circle.everybody_adds()
    circle.until("masking")
    circle.sync("c0")
    circle.pass_round(
        "c1", "c2", "c3", "c1", "c2"
    )  # all have masked; all but c0 have helped to unmask the sum
    circle.wait(PHASE)
    circle.go("c1", "c2", "c3")
    (entry,) = circle.entries("aggregated")
    assert "c0" in [member["client"] for member in entry["clients"]]
    ids = circle.add("c0")
    circle.forget("c0", list(circle.held["c0"])[:1])
    circle.restart_client("c0")
    said = len(circle.way.said)
    done = circle.sync("c0")
    assert [receipt.sequence for receipt in done.receipts] == [1]
    assert (
        circle.stores["c0"].status().live == 1
    )  # one of those that were included has been forgotten since
    first = circle.way.said[said + 1 : said + 2]
    assert first[0][0] == "told"  # its first exchange in rounds was to ask how the old one ended
    assert [receipt.logged.entry["aggregation"] for receipt in done.receipts] == [
        entry["aggregation"]
    ]
    circle.everybody_adds("c1", "c2")
    circle.go()
    circle.check_whole()
    assert set(ids) <= set(circle.held["c0"])


def test_what_was_masked_once_goes_out_unchanged_under_its_number(circle: Circle) -> None:
    """Or the server, which may have unmasked the aborted round, would see what this client added in
    between.
    """
    circle.everybody_adds()
    circle.until("revealing")
    first = {
        name: circle.stores[name].outbox.statistics(circle.stores[name].outbox.composed())
        for name in circle.names
    }
    circle.restart_server()
    for name in circle.names:
        circle.forget(name, list(circle.held[name])[:1])
        circle.add(name, 3)
        circle.sync(name)
        composed = circle.stores[name].outbox.composed()
        assert composed is not None
        assert circle.stores[name].outbox.statistics(composed) == first[name]
        assert (composed.added, composed.deleted) == (2, 0)
    circle.go()
    circle.check()
    assert [entry["added"] for entry in circle.entries("aggregated")] == [8, 12]
    circle.check_whole()


# -- failures at the end of a round ----------------------------------------------------------------


class Failing:
    """A disk that fails once, at the next commit."""

    def __init__(self) -> None:
        self.when = ""

    def __call__(self, when: str) -> None:
        if when == self.when:
            self.when = ""
            raise StoreError("the disk is full")


@pytest.mark.parametrize("when", ["before commit", "after commit"])
def test_a_disk_that_fails_at_the_end_of_a_round_loses_nothing(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = Failing()
    with drawn(hook=failing) as circle:
        circle.everybody_adds()
        circle.until("revealing")
        before, ledger = circle.ledger(), circle.service.state.ledger
        record = ledger.record

        def recorded(*arguments: Any) -> None:
            record(*arguments)
            failing.when = when

        with monkeypatch.context() as patch:
            patch.setattr(ledger, "record", recorded)
            told = circle.pass_round()
        is_applied = when == "after commit"
        assert (circle.ledger() != before) is is_applied
        if not is_applied:
            assert any("could not store the round" in one.waiting for one in told.values())
        circle.go(passes=20)
        circle.check_whole()
        assert len(circle.entries("aggregated")) == 1


def test_a_disk_that_fails_before_anything_is_unmasked_loses_the_round_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing = Failing()
    with drawn(hook=failing) as circle:
        circle.everybody_adds()
        circle.until("masking")
        attempt = Outcomes.attempt

        def attempted(*arguments: Any) -> None:
            failing.when = "before commit"
            attempt(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(Outcomes, "attempt", attempted)
            told = circle.pass_round()
        assert any("could not store whose sum it asks for" in one.waiting for one in told.values())
        assert not any(b'"kind":"reveal"' in data for _, data in circle.way.said)
        circle.go()
        circle.check_whole()


def test_a_failure_that_nobody_thought_of_ends_the_round_and_the_next_one_works(
    circle: Circle, monkeypatch: pytest.MonkeyPatch
) -> None:
    circle.everybody_adds()
    circle.until("revealing")

    def broken(*_: object) -> None:
        raise MemoryError("no memory left")

    with monkeypatch.context() as patch:
        patch.setattr(Outcomes, "change", broken)
        patch.setattr(Outcomes, "applied", broken)
        with pytest.raises(MemoryError):
            circle.pass_round()
    circle.go()
    circle.check_whole()


def test_a_server_that_is_stopping_ends_the_round(circle: Circle) -> None:
    circle.everybody_adds()
    circle.until("revealing")
    before = circle.ledger()
    writer_of(circle.service).close()
    told = circle.pass_round()
    assert circle.ledger() == before
    assert any("the server is stopping" in one.waiting for one in told.values())
    circle.restart_server()
    circle.go()
    circle.check_whole()


# -- clocks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("jump", [-1e6, 1e6])
@pytest.mark.parametrize("phase", PHASES)
def test_a_clock_that_jumps_costs_a_round_at_most(circle: Circle, phase: str, jump: float) -> None:
    circle.everybody_adds()
    circle.until(phase)
    circle.wait(jump)
    circle.go(passes=30)
    circle.check_whole()


def test_a_wall_clock_that_jumps_back_changes_nothing(circle: Circle) -> None:
    circle.everybody_adds()
    circle.until("masking")
    circle.federation.clock.now -= 86400.0 * 365
    circle.go()
    circle.check_whole()
    times = [entry["time"] for entry in circle.federation.entries()]
    assert times == sorted(times)


def test_refusals_of_a_turn_leave_the_round_as_it_is(circle: Circle) -> None:
    circle.everybody_adds()
    circle.until("masking")
    shares = [data for who, data in circle.way.said if who == "said" and b'"kind":"shares"' in data]
    with pytest.raises(RefusedError):
        circle.service.aggregate(shares[0][:-1])
    circle.go()
    circle.check_whole()
