"""Clients that spoil rounds, or complain, take turns with the others: none of them holds up
everybody's changes, and nobody is kept out for good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from expunge.client.round_policy import UnsafeRoundError
from expunge.errors import RefusedError
from expunge.exact import wide
from expunge.secagg import Participant
from server.test_server_dispute_attacks import aggregated
from server.test_server_disputes import RULES, Lie, circle_of, enormous, lying, negative
from server.test_server_secagg_schedule import EVERY, WINDOW, Scheduled, scheduled
from support.lying_rounds import bad_parcels, complaint_of
from support.masked_round import GATHER, PHASE, SPEC, Circle

# -- audits and rebuilds ---------------------------------------------------------------------------


def wants_a_rebuild(circle: Circle) -> None:
    circle.forget_client("c1")


def wants_an_audit(circle: Circle) -> None:
    circle.federation.operator.command("audit")


def until_deleted(circle: Circle, sync: Callable[[str], object], seconds: float) -> None:
    """Sync, liar first, until the deletion of c0 has taken effect; it may take so long."""
    circle.forget("c0", [next(iter(circle.held["c0"]))])
    ends = circle.federation.seconds.now + seconds
    while circle.stores["c0"].status().deleting:
        assert circle.federation.seconds.now < ends, "an audit or a rebuild holds up a deletion"
        for name in ["c3", *(name for name in circle.names if name != "c3")]:
            sync(name)
        circle.wait(5.0)


@pytest.mark.parametrize(
    ("want", "phase"), [(wants_an_audit, "sharing"), (wants_a_rebuild, "masking")]
)
def test_who_joins_a_round_of_all_and_leaves_it_does_not_hold_up_changes(
    want: Callable[[Circle], None], phase: str
) -> None:
    with circle_of(4) as circle:
        want(circle)

        def sync(name: str) -> None:
            collector = circle.collector
            is_of_all = collector is not None and collector.opening.purpose != "change"
            if name != "c3" or circle.phase != phase or not is_of_all:
                circle.sync(name)

        until_deleted(circle, sync, 3 * PHASE)
        circle.wait(PHASE)  # and the audit or the rebuild has its turn, too
        circle.go()
        assert circle.entries("audited") or circle.entries("forgotten")


@pytest.mark.parametrize("want", [wants_an_audit, wants_a_rebuild])
@pytest.mark.parametrize("order", [("c0", "c2", "c4"), ("c4", "c2", "c0")])
def test_who_syncs_once_in_a_while_is_not_held_up_by_who_is_away(
    want: Callable[[Circle], None], order: tuple[str, ...]
) -> None:
    """All but one client come together, by a timer, much more seldom than phases last. Each hears
    that the audit came to nothing when it comes again: that must not be all that it does then, or
    the next audit has begun when it comes once more.
    """
    with circle_of(5) as circle:
        want(circle)
        circle.forget("c0", [next(iter(circle.held["c0"]))])
        for _ in range(2):
            for name in order:
                circle.sync(name)
            circle.wait(60 * PHASE)
        circle.sync("c2")
        collector = circle.collector
        assert collector is not None
        assert collector.opening.purpose == "change", "the next audit has begun"
        circle.go(*order)
        assert not circle.stores["c0"].status().deleting
        circle.wait(PHASE)  # and the audit or the rebuild has its turn, when all have come
        circle.go()
        circle.wait(PHASE)
        circle.go()
        assert circle.entries("audited") or circle.entries("forgotten")


def test_a_change_that_too_few_join_does_not_hold_up_an_audit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They know of it, and can not: a sum of theirs may be in dispute."""
    with circle_of(4) as circle:
        wants_an_audit(circle)
        circle.forget("c0", [next(iter(circle.held["c0"]))])
        for _ in range(2):
            circle.pass_round("c2", "c1", "c0")
            circle.wait(60 * PHASE)
        monkeypatch.setattr("expunge.client.secagg.Masked.cover", lambda _: None)
        for _ in range(8):
            circle.pass_round()
        assert circle.entries("audited")


@contextmanager
def false_rebuilds(liar: str, lie: Lie = negative) -> Iterator[None]:
    true = Participant.on_deliveries
    with pytest.MonkeyPatch.context() as patch:

        def masked(self: Participant, told: bytes, vector: wide.Wide) -> bytes:
            if self.name == liar and self.opening.purpose == "rebuild":
                vector = vector.copy()
                lie(vector)
            return true(self, told, vector)

        patch.setattr(Participant, "on_deliveries", masked)
        yield


def test_false_statistics_in_a_rebuild_do_not_hold_up_changes() -> None:
    with circle_of(4) as circle, false_rebuilds("c3"):
        wants_a_rebuild(circle)
        said = set[str]()
        until_deleted(circle, lambda name: said.add(circle.sync(name).waiting), 3 * PHASE)
        told = min((one for one in said if "negative" in one), key=len)
        assert "the rebuild is tried again later" in told
        assert "the operator must find out whose" in told
        assert "smaller groups" not in told
        assert "arbiter" not in told


def test_no_rebuild_takes_the_head_away() -> None:
    """The old ledger is erased with a rebuild: nobody could undo that."""
    with circle_of(4) as circle:
        before = circle.ledger()
        with false_rebuilds("c3", enormous):
            wants_a_rebuild(circle)
            said = {one.waiting for _ in range(3) for one in circle.go().values()}
        assert circle.ledger() == before
        assert any("leaves no head" in one and "publication_bits" in one for one in said)
        circle.wait(PHASE)  # in which changes come first
        circle.go()
        assert circle.entries("forgotten")
        circle.check_whole()


# -- bad parcels -----------------------------------------------------------------------------------


def test_an_excluded_liar_does_not_stop_the_rounds_of_a_schedule() -> None:
    """It makes a sum false, opens nothing, is excluded, and comes back with its part, to seal bad
    parcels for all: complaints count in rounds with its part, too.
    """
    spec = replace(SPEC, aggregation=replace(RULES, every=EVERY, window=WINDOW))
    with scheduled(5, spec=spec) as circle:
        assert isinstance(circle, Scheduled)
        honest = circle.names[:4]
        circle.at(10)
        circle.everybody_adds()
        with lying(circle, {"c4": negative}):
            for window in (0, 1):
                circle.at(10 + window, window=window)
                for _ in range(8):
                    for name in honest if circle.entries("voided") else circle.names:
                        circle.sync(name)
                    circle.pass_time(1)
        for window in (2, 3, 4):
            for seconds in (10, WINDOW, WINDOW + 100):
                circle.at(seconds, window=window)
                circle.meet(*honest)
        assert [entry["excluded"] for entry in circle.entries("excluded")] == [["c4"]]
        assert not any(circle.stores[name].status().adding for name in honest)
        circle.forget("c0", [next(iter(circle.held["c0"]))])
        circle.at(1, window=5)
        with bad_parcels("c4"):
            for _ in range(16):
                for name in ["c4", "c4", *honest, "c4"]:
                    circle.sync(name)
                circle.pass_time(20)
        assert not circle.stores["c0"].status().deleting
        assert circle.rounds()[-1] == honest


def test_an_excluded_client_is_not_kept_out_by_bad_parcels() -> None:
    """c4 was away for too long, and is back with its part; c0 spoils what it seals for c4."""
    with circle_of(5) as circle:
        circle.forget("c4", [next(iter(circle.held["c4"]))])
        circle.everybody_adds()
        circle.until("revealing")
        circle.wait(PHASE)
        others = circle.names[:4]
        circle.time_is_up(*others)
        circle.go(*others, passes=30)
        assert [entry["excluded"] for entry in circle.entries("excluded")] == [["c4"]]
        with bad_parcels("c0", "c4"):
            for number in range(60):
                if number % 8 == 0:
                    circle.everybody_adds(*others)
                for name in [*others, "c4", "c0"]:
                    circle.sync(name)
                circle.wait(GATHER if circle.phase == "joining" else 20)
                if not circle.stores["c4"].status().deleting:
                    break
        assert not circle.stores["c4"].status().deleting
        circle.check()
        rounds = [{one["client"] for one in entry["clients"]} for entry in aggregated(circle)]
        assert not any({"c0", "c4"} <= one for one in rounds)
        assert any("c0" in one for one in rounds[1:])


def aborted_when_revealed(circle: Circle) -> None:
    """Each deletes a sample, and their sum is to be repeated: it may have been unmasked."""
    for name in circle.names:
        circle.forget(name, [next(iter(circle.held[name]))])
    circle.until("revealing")
    circle.restart_server()


def rounds_of(circle: Circle, sync: Callable[[str], object]) -> None:
    """The clock goes on by twice the time after which the silent are excluded."""
    for _ in range(40):
        for name in circle.names:
            sync(name)
        circle.wait(GATHER if circle.phase == "joining" else PHASE / 2)
        circle.federation.clock.now += RULES.set_aside_after // 20


def is_deleting(circle: Circle, *names: str) -> bool:
    return any(circle.stores[name].status().deleting for name in names)


@pytest.mark.parametrize("liar", ["c0", "c3"])
def test_who_seals_bad_parcels_and_does_not_answer_is_excluded_alone(liar: str) -> None:
    """Of four, of whom three must be in a sum: nobody is excluded with it, so the others go on."""
    with circle_of(4) as circle:
        aborted_when_revealed(circle)
        honest = [name for name in circle.names if name != liar]
        with bad_parcels(liar, honest[0]):
            rounds_of(circle, circle.sync)
        assert [entry["excluded"] for entry in circle.entries("excluded")] == [[liar]]
        assert not is_deleting(circle, *honest)
        circle.check()


def test_others_hear_whose_shares_they_cannot_use() -> None:
    """In a round of few, nobody can go on without the dealer, and the operator must know it."""
    with circle_of(4) as circle, bad_parcels("c3"):
        circle.everybody_adds()
        said = set[str]()
        for _ in range(20):
            said |= {circle.sync(name).waiting for name in circle.names}
            circle.wait(PHASE / 4)
        assert any("c3 answered no complaint about its shares" in one for one in said)


def test_who_complains_of_good_parcels_is_excluded_alone() -> None:
    """Those of whom it complains answer, and it does not go on with what they show."""
    with circle_of(4) as circle:
        aborted_when_revealed(circle)
        rounds = set[str]()

        def sync(name: str) -> None:
            collector = circle.collector
            if name != "c1" or collector is None or collector.phase != "masking":
                circle.sync(name)
            elif "c1" in collector.clients and collector.opening.round not in rounds:
                circle.service.aggregate(complaint_of(circle, "c1", "c0", "c2", "c3"))
                rounds.add(collector.opening.round)

        rounds_of(circle, sync)
        assert [entry["excluded"] for entry in circle.entries("excluded")] == [["c1"]]
        assert not is_deleting(circle, "c0", "c2", "c3")
        circle.check()


@pytest.mark.parametrize("of_all", [False, True])
def test_who_seals_bad_parcels_and_answers_spoils_nothing(of_all: bool) -> None:
    with circle_of(4) as circle, bad_parcels("c2", *([] if of_all else ["c0"]), answers=True):
        circle.everybody_adds()
        circle.go(passes=20)
        assert [one["client"] for one in aggregated(circle)[-1]["clients"]] == circle.names
        circle.check_whole()


def waits_too_long(circle: Circle) -> None:
    """All have been asked for a sum, and c0 has been away since."""
    circle.everybody_adds()
    circle.until("revealing")
    circle.restart_server()
    circle.time_is_up(*circle.names[1:], times=2)


@pytest.mark.parametrize("silent", [4, 5, 6])
def test_those_that_leave_a_round_are_excluded_unless_most_do(silent: int) -> None:
    """The way to the server is cut for the time of a phase."""
    with circle_of(9) as circle:
        waits_too_long(circle)
        circle.until("agreeing")
        collector = circle.collector
        assert collector is not None
        for name in sorted(collector.silent)[silent:]:
            circle.sync(name)
        assert len(collector.silent) == silent
        circle.wait(PHASE)
        circle.sync("c0")
        assert bool(circle.entries("excluded")) == (silent == 4)
        circle.go(passes=20)
        circle.check_whole()


@pytest.mark.parametrize("answer", ["on_roster", "on_deliveries"])
def test_who_joins_and_is_silent_in_any_phase_is_excluded(
    answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = getattr(Participant, answer)

    def silent(self: Participant, *told: Any) -> bytes:
        if self.name == "c0":
            raise UnsafeRoundError("it says nothing")
        return bytes(true(self, *told))

    with circle_of(6) as circle:
        waits_too_long(circle)
        monkeypatch.setattr(Participant, answer, silent)
        for _ in range(20):
            circle.pass_round()
            circle.wait(PHASE / 6)
        assert [entry["excluded"] for entry in circle.entries("excluded")] == [["c0"]]
        assert not any(circle.stores[name].status().adding for name in circle.names[1:])


def test_liars_one_after_another_keep_nobody_out() -> None:
    """c0 meets each of them once, and then none of them."""
    with circle_of(7) as circle, bad_parcels("c5", "c0"), bad_parcels("c6", "c0"):
        circle.forget("c0", [next(iter(circle.held["c0"]))])
        liars = ["c5", "c6"]
        for number in range(60):
            if number % 4 == 0:
                circle.everybody_adds(*circle.names[1:])
            away = liars[number // 8 % 2]  # they take turns
            circle.pass_round(*(name for name in circle.names if name != away))
            circle.wait(GATHER if circle.phase == "joining" else PHASE / 2)
            if not is_deleting(circle, "c0"):
                break
        assert not is_deleting(circle, "c0")
        circle.check()


# -- complaints ------------------------------------------------------------------------------------


def refused(circle: Circle, data: bytes) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        circle.service.aggregate(data)
    return caught.value


def at_masking(circle: Circle) -> None:
    circle.everybody_adds()
    circle.until("masking", *reversed(circle.names))


def test_who_complains_goes_on_when_it_is_answered() -> None:
    with circle_of(5) as circle:
        at_masking(circle)
        circle.service.aggregate(complaint_of(circle, "c2", "c0"))
        assert "phase of masking" in circle.sync("c2").waiting
        circle.go()
        assert [one["client"] for one in aggregated(circle)[-1]["clients"]] == circle.names
        circle.check_whole()


def test_who_takes_part_does_not_complain() -> None:
    with circle_of(5) as circle:
        at_masking(circle)
        late = complaint_of(circle, "c1", "c0")
        circle.sync("c1")
        assert refused(circle, late).code == "wrong-phase"


def test_a_complaint_prolongs_a_phase_once_and_comes_in_time_to_be_answered() -> None:
    with circle_of(5) as circle:
        at_masking(circle)
        circle.wait(PHASE - 1)
        later = complaint_of(circle, "c3", "c0")
        circle.service.aggregate(complaint_of(circle, "c2", "c1"))
        circle.wait(2)
        assert refused(circle, later).code == "wrong-phase"
        circle.wait(PHASE - 2)
        for name in ("c0", "c1", "c2", "c3", "c4"):
            circle.sync(name)
        assert circle.phase == "agreeing"
        circle.go()
        circle.check_whole()


def test_a_complaint_that_cannot_be_read_is_refused() -> None:
    with circle_of(4) as circle:
        at_masking(circle)
        good = complaint_of(circle, "c1", "c0")
        assert refused(circle, good + b"xx").code == "malformed"
        circle.go()
        circle.check_whole()
