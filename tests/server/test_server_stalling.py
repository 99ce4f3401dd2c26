"""One client that would have others wait for ever: it answers too late, uses up its number, only
asks, or leaves each round. The others go on without it, and nobody else is excluded.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from expunge.client import ClientStore
from expunge.client.contributor import Contributor, RoundPending
from expunge.errors import CarrierError, ExpungeError, RefusedError
from expunge.kinds import ClientStatus
from expunge.secagg.messages import is_said, read_client_message
from expunge.wire import payloads
from expunge.wire.request import Header, write
from server.test_server_dispute_attacks import aggregated
from server.test_server_disputes import RULES, circle_of, lying, negative, until_disputed
from server.test_server_round_attacks import colluding
from server.test_server_turns import aborted_when_revealed, at_masking, is_deleting
from support.lying_rounds import bad_parcels, complaint_of
from support.masked_round import GATHER, PHASE, Circle


def excluded(circle: Circle) -> list[list[str]]:
    return [entry["excluded"] for entry in circle.entries("excluded")]


def forget_one(circle: Circle, *names: str) -> None:
    for name in names:
        circle.forget(name, [next(iter(circle.held[name]))])


# -- late answers ----------------------------------------------------------------------------------


def answering_late(circle: Circle, liar: str, limit: str, passes: int) -> None:
    """All sync every five seconds; the liar answers complaints half a second before the time is up:
    for answers, or for all.
    """
    for _ in range(passes):
        circle.pass_round(*(name for name in circle.names if name != liar))
        collector = circle.collector
        if collector is None or not any(liar in one for one in collector.unanswered.values()):
            circle.sync(liar)
            circle.wait(GATHER)
        else:
            left = getattr(circle.service.rounds._round, limit) - circle.federation.seconds.now
            is_last = 0.5 < left <= GATHER
            circle.wait(left - 0.5 if is_last else GATHER)
            if is_last:
                circle.sync(liar)
                circle.wait(0.5)
        circle.federation.clock.now += RULES.set_aside_after // 40


@pytest.mark.parametrize("limit", ["answer_by", "deadline"])
def test_who_answers_late_keeps_nobody_out(limit: str) -> None:
    """In time for the holder to go on, or too late, and then it is left out itself."""
    with circle_of(5) as circle, bad_parcels("c3", "c0", answers=True):
        forget_one(circle, "c0")
        circle.everybody_adds("c1")
        answering_late(circle, "c3", limit, passes=120)
        assert not is_deleting(circle, "c0")
        assert excluded(circle) == []
        circle.check()


@pytest.mark.parametrize("limit", ["answer_by", "deadline"])
def test_who_answers_all_late_does_not_stop_a_sum_that_is_repeated(limit: str) -> None:
    with circle_of(5) as circle:
        aborted_when_revealed(circle)
        with bad_parcels("c3", answers=True):
            answering_late(circle, "c3", limit, passes=160)
        assert not is_deleting(circle, "c0", "c1", "c2", "c4")
        assert excluded(circle) in ([], [["c3"]])
        circle.check()


def test_a_complaint_that_was_lost_is_made_again() -> None:
    """By an agent that lives on."""
    with circle_of(5) as circle, pytest.MonkeyPatch.context() as patch:
        agents, true = {name: circle.agent(name) for name in circle.names}, circle.way.__getattr__
        patch.setattr(circle, "agent", lambda name, **_: agents[name])
        lost = list[bytes]()

        def aggregate(message: bytes) -> bytes:
            if is_said(message) and read_client_message(message).kind == "complaint" and not lost:
                lost.append(message)
                raise CarrierError("lost on the way: offer it again")
            answer: bytes = true("aggregate")(message)
            return answer

        patch.setattr(circle.way, "aggregate", aggregate, raising=False)
        circle.everybody_adds()
        with bad_parcels("c3", "c0", answers=True):
            for _ in range(12):
                for name in circle.names:
                    try:
                        circle.sync(name)
                    except CarrierError:
                        assert name == "c0"
                circle.wait(5.0)
        assert lost
        assert [one["client"] for one in aggregated(circle)[0]["clients"]] == circle.names


def test_two_agents_on_one_store_may_both_hear_of_a_complaint() -> None:
    with circle_of(5) as circle, pytest.MonkeyPatch.context() as patch:
        at_masking(circle)
        circle.service.aggregate(complaint_of(circle, "c2", "c0"))
        true, is_slow = circle.way.__getattr__, [True]

        def aggregate(message: bytes) -> bytes:
            answer: bytes = true("aggregate")(message)
            if is_slow and b"complaint" in _content(answer):
                is_slow.clear()
                for _ in range(3):  # the other one goes on, meanwhile
                    circle.pass_round()
            return answer

        patch.setattr(circle.way, "aggregate", aggregate, raising=False)
        circle.sync("c0")
        assert not is_slow
        circle.go()
        circle.check_whole()


def _content(answer: bytes) -> bytes:
    return base64.b64decode(payloads.open_unverified("standing", answer)[1]["content"])


# -- numbers ---------------------------------------------------------------------------------------


def empty(circle: Circle, name: str, sequence: int, *, reset: bool = False) -> bytes:
    """A request that changes no samples, and needs no round."""
    store, spec = circle.stores[name], circle.spec
    header = Header(
        federation=store.federation,
        client=name,
        sequence=sequence,
        nonce=secrets.token_hex(32),
        data_digest=spec.data_digest,
        labels_digest=spec.labels_digest,
        message="none",
        reset=reset,
    )
    return write(header, [], [], b"", store.key)


def use_up(circle: Circle, name: str) -> RefusedError:
    """The number of a client's part, by an empty request."""
    with pytest.raises(RefusedError) as caught:
        circle.service.request(empty(circle, name, circle.stores[name].sequence + 1))
    return caught.value


def test_the_number_of_a_part_that_others_wait_for_is_not_used_up() -> None:
    with circle_of(5) as circle:
        aborted_when_revealed(circle)
        assert "others wait to be summed up with request 2 of c4" in use_up(circle, "c4").reason
        circle.go(passes=20)
        circle.check_whole()


def test_nor_is_that_of_a_part_in_dispute() -> None:
    with circle_of(4) as circle, lying(circle, {"c3": negative}):
        circle.everybody_adds()
        until_disputed(circle)
        assert use_up(circle, "c3").code == "not-allowed"
        assert len(circle.federation.operator.ask("disputes")) == 1


def start_over(store: ClientStore, sequence: int) -> None:
    """A liar forgets its request, and all that binds it."""
    store.participation.drop()
    composed = store.outbox.composed()
    if composed is not None:
        store.outbox.abandon(composed.sequence, "")
    bound = dict.fromkeys(("masked", "rosters", "revealed", "agreed", "rejoin"), "")
    store.remember({"sequence": str(sequence), **bound})


@pytest.mark.parametrize("kind", ["join", "masked"])
def test_who_would_use_up_its_number_in_the_middle_of_each_round_stops_nobody(kind: str) -> None:
    """Nobody waits for its part yet: while others join, the round goes on without it, and from then
    on the number is taken.
    """
    with circle_of(5) as circle:
        honest, liar = circle.names[:4], "c4"
        forget_one(circle, *honest)
        circle.add(liar)
        true, used, refused = circle.way.__getattr__, [1], list[str]()

        def aggregate(message: bytes) -> bytes:
            answer: bytes = true("aggregate")(message)
            if is_said(message):
                said, number = read_client_message(message), circle.stores[liar].sequence + 1
                if (said.kind, said.client) == (kind, liar) and number > used[-1]:
                    try:
                        circle.service.request(empty(circle, liar, number))
                        used.append(number)
                    except RefusedError as refusal:
                        refused.append(refusal.reason)
            return answer

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(circle.way, "aggregate", aggregate, raising=False)
            for _ in range(30):
                with suppress(ExpungeError):
                    circle.sync(liar)
                circle.pass_round(*honest)
                if circle.stores[liar].sequence < used[-1] and circle.phase in ("", "joining"):
                    start_over(circle.stores[liar], used[-1])
                circle.wait(GATHER if circle.phase == "joining" else PHASE / 4)
        assert len(used) > 1 if kind == "join" else "has joined a round with" in refused[0]
        assert not is_deleting(circle, *honest)
        assert excluded(circle) == []
        assert circle.service.rounds.aborted == 0


def test_who_comes_with_another_request_than_others_wait_for_has_not_come() -> None:
    """After a restore each may send everything anew under any later number: one that did so again
    could hold up those that agreed to a sum with its first one, and counted as present.
    """
    with circle_of(5) as circle, colluding("c4"):
        honest, liar = circle.names[:4], "c4"
        circle.seem_restored()
        aborted_when_revealed(circle)
        assert {len(one.parts) for one in circle.service.rounds._conclusions.attempted()} == {5}
        start_over(circle.stores[liar], 2)
        for _ in range(60):
            for name in circle.names:
                with suppress(ExpungeError):
                    circle.sync(name)
            circle.wait(GATHER if circle.phase == "joining" else PHASE / 4)
            circle.federation.clock.now += RULES.set_aside_after // 20
            if excluded(circle):
                break
        assert excluded(circle) == [[liar]]
        circle.go(*honest, passes=30)
        assert {len(one["clients"]) for one in aggregated(circle)} == {4}
        assert all(circle.stores[name].outbox.composed() is None for name in honest)


def test_who_was_excluded_and_has_come_back_is_in_all_later_rounds() -> None:
    """That one of its parts hides nobody says nothing of those that come after it."""
    with circle_of(6) as circle:
        aborted_when_revealed(circle)
        others = circle.names[:5]
        circle.time_is_up(*others, times=2)
        circle.go(*others)
        assert excluded(circle) == [["c5"]]
        for _ in range(3):
            circle.go()
            circle.federation.clock.now += 600
        circle.check_whole()
        forget_one(circle, "c5")
        circle.everybody_adds("c0")
        circle.go()
        circle.check_whole()
        assert [one["client"] for one in aggregated(circle)[-1]["clients"]] == circle.names


def test_a_reset_that_others_wait_for_goes_out_under_its_number() -> None:
    """Or they would be bound for ever to a sum that can be no more."""
    with circle_of(5) as circle:
        circle.seem_restored()
        aborted_when_revealed(circle)
        store = circle.stores["c4"]
        store.participation.drop()
        store.outbox.abandon(2, "")
        with pytest.raises(RefusedError, match="others wait to be summed up with request 2 of c4"):
            circle.sync("c4")


@pytest.mark.parametrize("status", ["gone", "barred"])
def test_who_takes_part_in_no_round_begins_none(status: ClientStatus) -> None:
    """Others would take part with zeros, without end."""
    with circle_of(5) as circle:
        state = circle.service.state
        with state.changing():
            state.storage.actors.put(replace(state.actor("c4"), status=status))
        content = {
            "actor": "c4",
            "aggregation": "",
            "federation": state.federation,
            "reset": False,
            "sequence": 9999,
            "wait": 0,
        }
        question = payloads.sign("turn", content, circle.stores["c4"].key)
        told = payloads.open_unverified("standing", circle.service.aggregate(question))[1]
        assert (told["phase"], circle.phase) == ("closed", "")
        assert "takes part in no round" in told["reason"]
        refused = payloads.sign("turn", content | {"actor": "c3"}, circle.stores["c3"].key)
        with pytest.raises(RefusedError) as caught:
            circle.service.aggregate(refused)
        assert (caught.value.code, circle.phase) == ("sequence-gap", "")


def test_who_leaves_with_the_number_of_its_part_does_not_stop_the_others_of_its_sum() -> None:
    """They are summed up without it, as if it had stayed away."""
    with circle_of(8) as circle:
        four = circle.names[:4]
        forget_one(circle, *four)
        circle.until("agreeing", *four)
        for name in ("c0", "c1", "c2"):
            circle.sync(name)
        circle.restart_server()
        store = circle.stores.pop("c3")
        header = Header(
            federation=store.federation,
            client="c3",
            sequence=2,
            nonce=secrets.token_hex(32),
            data_digest=circle.spec.data_digest,
            labels_digest=circle.spec.labels_digest,
            message="none",
            leave=True,
        )
        circle.service.request(write(header, [], [], b"", store.key))
        store.close()
        circle.go(passes=30)
        assert not is_deleting(circle, "c0", "c1", "c2")


# -- presence --------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [2, 3, 8])
def test_who_stays_away_is_excluded_however_seldom_the_others_come(part: int) -> None:
    """At least twice in the time of the rules."""
    with circle_of(5) as circle:
        aborted_when_revealed(circle)
        honest = circle.names[:4]
        for _ in range(4 * part):
            circle.go(*honest, passes=8)
            circle.federation.clock.now += RULES.set_aside_after // part
            if not is_deleting(circle, *honest):
                break
        assert not is_deleting(circle, *honest)
        assert excluded(circle) == [["c4"]]


def refusing(patch: pytest.MonkeyPatch, liar: str, *ways: str) -> None:
    """From now on a client takes no part in changes (`change`), nor in audits (`join`)."""
    for way in ways:
        true = getattr(Contributor, way)

        def either(self: Contributor, *given: object, true: Callable[..., object] = true) -> object:
            if self._store.name == liar:
                return RoundPending("it does not take part")
            return true(self, *given)

        patch.setattr(Contributor, way, either)


def test_who_joins_audits_and_no_changes_is_excluded() -> None:
    with circle_of(5) as circle, pytest.MonkeyPatch.context() as patch:
        aborted_when_revealed(circle)
        refusing(patch, "c4", "change")
        circle.federation.operator.command("audit")
        joined = 0
        for number in range(120):
            if number % 15 == 14:
                ask_for_a_round(circle, "c4")  # of which an audit comes first
            circle.pass_round("c4", *circle.names[:4])
            collector = circle.collector
            joined += collector is not None and collector.opening.purpose == "audit"
            circle.wait(20)
            circle.federation.clock.now += RULES.set_aside_after // 40
            if circle.entries("excluded"):
                break
        assert joined
        assert excluded(circle) == [["c4"]]


def ask_for_a_round(circle: Circle, name: str) -> None:
    store = circle.stores[name]
    question = {
        "actor": name,
        "aggregation": "",
        "federation": store.federation,
        "reset": False,
        "sequence": store.sequence,
        "wait": 0,
    }
    circle.service.aggregate(payloads.sign("turn", question, store.key))


def test_who_waits_in_a_round_for_long_is_not_excluded_with_who_only_asks() -> None:
    """All but c4 have joined it; c3 is the last to join again, when the server was restarted."""
    week = 7 * 86400
    with (
        circle_of(5, replace(RULES, set_aside_after=week)) as circle,
        pytest.MonkeyPatch.context() as patch,
    ):
        aborted_when_revealed(circle)
        refusing(patch, "c4", "change", "join")
        for _ in range(14):
            circle.pass_round()
            circle.federation.clock.now += 2 * week // 14
        circle.restart_server()
        circle.federation.clock.now += 60
        for _ in range(3):
            circle.pass_round("c0", "c1", "c2")
            circle.wait(PHASE / 2 + 1)
        circle.sync("c0")
        assert excluded(circle) == [["c4"]]


def test_a_liar_that_opens_first_does_not_exclude_those_that_are_away() -> None:
    with circle_of(4) as circle, lying(circle, {"c3": negative}):
        circle.everybody_adds()
        for _ in range(30):
            if circle.entries("voided"):
                break
            circle.pass_round()
            circle.wait(GATHER)
        circle.time_is_up("c3", times=3)
        assert excluded(circle) == []
        for _ in range(3):
            circle.pass_round()
        (dispute,) = circle.federation.operator.ask("disputes")
        assert dispute["opened"] == circle.names


def test_what_cannot_be_noted_of_a_turn_does_not_fail_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with circle_of(4) as circle:
        aborted_when_revealed(circle)

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(type(circle.service.state.storage.actors), "put", full)
        circle.federation.clock.now += 600
        assert all(done.waiting for done in circle.pass_round().values())


def test_two_that_join_each_round_and_leave_it_stop_nobody() -> None:
    """Of five, where three must be in a sum and four must agree."""
    with circle_of(5) as circle:
        honest, liars = circle.names[:3], circle.names[3:]
        forget_one(circle, *honest)
        for _ in range(40):
            for name in [honest[0], *liars, *honest[1:]]:
                if name in honest or circle.phase in ("", "joining"):
                    circle.sync(name)
            circle.wait(GATHER if circle.phase == "joining" else PHASE / 2)
        assert not is_deleting(circle, *honest)
