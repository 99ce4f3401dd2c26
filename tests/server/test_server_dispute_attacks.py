"""Lies about sums that were, or are said to be, false: no server opens a client by them, no client
stops others, and nobody honest is named.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from expunge.errors import EvidenceError, RefusedError
from expunge.secagg.arbitration import Opened, Verdict, examine, seal_opening
from expunge.secagg.messages import read_client_message, sign
from expunge.secagg.parcels import Dealing
from expunge.secagg.roster import Roster
from expunge.secagg.unmasking import Decision, rows
from server.test_server_disputes import (
    ARBITER,
    RULES,
    after_a_sum,
    circle_of,
    dispute_of,
    disputed,
    judged,
    lying,
    miscounted,
    negative,
    until_disputed,
    until_opened,
    until_voided,
    verdict_on,
)
from support.golden_secagg import arbitration
from support.lying_rounds import bad_parcels, complaint_of, lying_server
from support.masked_round import GATHER, PHASE, Circle

# -- a server that lies ----------------------------------------------------------------------------


@pytest.mark.parametrize("claims", [{}, {"aggregation": "ab" * 16}, {"size": 8}])
def test_an_entry_about_a_sum_that_never_was_permits_nothing(claims: dict[str, Any]) -> None:
    """The sum of all, and then that of all but one, which a made-up entry calls a false one."""
    with after_a_sum(9) as (circle, server):
        ((parts, _),) = server.sums
        rest = frozenset(part for part in parts if part[0] != "c8")
        assert not server.sum_of(*circle.names[:8], passes=6)
        signed = server.rounds[0]
        server.voided(rest, **(signed | {"agreed": {}} | claims))
        with pytest.raises(EvidenceError, match="0 clients have agreed"):
            server.sum_of(*circle.names[:8], passes=8)
        assert server.exposed() == []


def test_signatures_that_are_not_the_clients_are_noticed() -> None:
    with after_a_sum(5) as (circle, server):
        ((parts, _),), (signed,) = server.sums, server.rounds
        rest = frozenset(part for part in parts if part[0] != "c4")
        server.voided(rest, **signed)  # they signed the sum of five
        with pytest.raises(EvidenceError):
            server.sum_of(*circle.names[:4])


def test_who_is_said_to_be_silent_waits_for_its_own_clock() -> None:
    """Entries that contradict one another would free everybody for other sums."""
    with after_a_sum(5) as (circle, server):
        ((parts, _),) = server.sums
        server.excluded(parts, "c0", "c1")
        server.excluded(parts, "c2", "c3")
        assert not server.sum_of(*circle.names[:4], passes=8)
        assert server.exposed() == []
        # When time is up, the first entry counts, for all.
        circle.federation.clock.now += RULES.set_aside_after
        assert not server.sum_of(*circle.names[:4], passes=8)
        assert server.exposed() == []


def test_no_row_is_of_clients_that_were_never_asked() -> None:
    """They are bound to nothing, agree to another sum, and the other rows show theirs."""
    with circle_of(16) as circle:
        circle.everybody_adds()
        with lying_server(circle) as server:
            circle.until("agreeing")
            collector = circle.collector
            assert collector is not None
            opening, parts = collector.opening, frozenset(collector.included)
            everybody = frozenset(circle.names)
            whole = Decision("voided", opening.round, parts, signers=everybody, size=16)
            free = [{name for name, _ in one} for one in rows(whole, RULES)]
            row = min((one for one in free if one.isdisjoint(collector.agreed)), key=len)
            asked = [name for name in circle.names if name not in row]
            for _ in range(6):
                for name in asked:
                    if not server.sums:
                        circle.sync(name)
                if not server.sums:
                    circle.wait(PHASE)
            assert [parts for parts, _ in server.sums] == [parts]
            assert set(server.rounds[0]["agreed"]) == set(asked)
            assert server.sum_of(*sorted(row)[:-1])  # all of it but one
            server.voided(parts, **server.rounds[0])
            cut = rows(replace(whole, signers=frozenset(asked)), RULES)
            assert all(len({name for name, _ in one} & set(asked)) >= 3 for one in cut)
            for one in [*rows(whole, RULES), *cut]:
                server.sum_of(*sorted(name for name, _ in one), passes=6)
            assert server.exposed() == []


def test_a_verdict_about_a_round_that_never_was_bars_nobody() -> None:
    """The server plays a round with keys of its own, and an honest arbiter finds c0 false."""
    with circle_of(4) as circle:
        state = circle.service.state
        verdict = Verdict(
            state.federation,
            "5a" * 16,
            "0" * 64,
            frozenset((name, 2) for name in circle.names),
            {"c0": "a round that never was"},
            "2026-01-01T00:00:00Z",
        )
        with state.changing() as now:
            envelope = ARBITER.sign(verdict).to_json()
            state.append("judged", now, aggregation=verdict.aggregation, verdict=envelope)
        circle.everybody_adds()
        circle.go()
        circle.check_whole()


def test_a_barred_client_does_not_come_back_with_the_servers_help() -> None:
    with disputed(5, {"c2": negative}) as (circle, dispute):
        judged(circle, dispute, examine(dispute, ARBITER))
        state = circle.service.state
        with state.changing():
            state.storage.actors.put(replace(state.actor("c2"), status="active"))
        circle.go("c0", "c1", "c3", "c4")
        circle.everybody_adds()
        said = set[str]()
        for _ in range(12):
            said |= {done.waiting for done in circle.pass_round().values()}
            circle.wait(GATHER if circle.phase == "joining" else PHASE)
        assert any("was barred by a verdict" in one for one in said)
        assert all(
            "c2" not in {member["client"] for member in entry["clients"]}
            for entry in circle.entries("aggregated")[1:]
        )


def test_no_key_seals_two_openings() -> None:
    """Under one key, two openings of a client would show what they differ by."""
    content = arbitration()
    roster = Roster.read(_decoded(content["dispute"]["records"]["roster"]))
    dealing = Dealing(bytes(32), bytes(range(32)), bytes(range(1, 33)), ())
    first = seal_opening(roster, "hospital-a", Opened(dealing, b"one", b""))
    second = seal_opening(roster, "hospital-a", Opened(dealing, b"two", b""))
    assert first[:32] != second[:32]
    assert first == seal_opening(roster, "hospital-a", Opened(dealing, b"one", b""))


def _decoded(text: str) -> bytes:
    import base64  # noqa: PLC0415

    return base64.b64decode(text)


# -- clients that lie ------------------------------------------------------------------------------


def aggregated(circle: Circle) -> list[dict[str, Any]]:
    """The rounds since the first one."""
    return circle.entries("aggregated")[1:]


def test_a_bad_parcel_keeps_nobody_out_of_rounds() -> None:
    """c5 seals something for c0 that c0 cannot open, in every round, and does not answer."""
    with circle_of(6) as circle, bad_parcels("c5", "c0"):
        circle.forget("c0", [next(iter(circle.held["c0"]))])
        circle.everybody_adds(*circle.names[1:])
        for _ in range(30):
            circle.pass_round()
            circle.wait(GATHER if circle.phase == "joining" else PHASE / 2)
        rounds = [{one["client"] for one in entry["clients"]} for entry in aggregated(circle)]
        assert not circle.stores["c0"].status().deleting
        assert [one & {"c0", "c5"} for one in rounds[:2]] == [{"c5"}, {"c0"}]
        circle.check()


def test_a_client_that_complains_of_all_drops_out_itself() -> None:
    with circle_of(5) as circle:
        circle.everybody_adds()
        circle.until("masking", *reversed(circle.names))
        circle.service.aggregate(complaint_of(circle, "c4", *circle.names[:4]))
        circle.go(*circle.names[:4])
        assert not any(circle.stores[name].status().adding for name in circle.names[:4])
        assert circle.stores["c4"].status().adding


def test_two_liars_at_once_can_both_be_forgotten() -> None:
    with disputed(7, {"c2": negative, "c4": miscounted}) as (circle, dispute):
        judged(circle, dispute, examine(dispute, ARBITER))
        with pytest.raises(RefusedError, match="forget c2 first"):
            circle.federation.operator.command("forget-client", client="c0")
        for name in ("c2", "c4"):
            circle.forget_client(name)
        circle.go(passes=40)
        circle.check_whole()


def test_a_liar_that_does_not_open_its_part_holds_up_no_sum_of_few() -> None:
    """Of three, two are left: they go on with others."""
    with circle_of(8) as circle:
        three = circle.names[:3]
        for name in three[:2]:
            circle.forget(name, [next(iter(circle.held[name]))])
        with lying(circle, {"c2": negative}):
            until_opened(circle, three, silent="c2")
        honest = [name for name in circle.names if name != "c2"]
        circle.time_is_up(*three[:2])
        circle.everybody_adds(*honest[2:])
        circle.go(*honest, passes=30)
        assert [entry["excluded"] for entry in circle.entries("excluded")] == [["c2"]]
        assert not any(circle.stores[name].status().deleting for name in honest)
        circle.check()


def test_few_do_not_push_out_those_that_come_every_day() -> None:
    with circle_of(9) as circle:
        circle.everybody_adds()
        circle.until("revealing")
        circle.wait(PHASE)
        for _ in range(4):
            circle.go(*circle.names[:8], passes=3)
            circle.federation.clock.now += RULES.set_aside_after // 4
        circle.restart_server()
        for _ in range(3):
            circle.pass_round(*circle.names[:3])
        circle.wait(PHASE)  # for the others
        circle.pass_round(*circle.names[:3])
        assert [entry["excluded"] for entry in circle.entries("excluded")] == [["c8"]]
        circle.go(*circle.names[:8], passes=20)
        circle.check()


def test_an_opening_is_no_larger_than_the_spec_allows() -> None:
    with circle_of(4) as circle:
        circle.everybody_adds()
        with lying(circle, {"c2": negative}):
            until_disputed(circle)
        message = read_client_message(dispute_of(circle).openings["c0"])
        large = sign(message.header, bytes(1 << 20), circle.stores["c0"].key)
        with pytest.raises(RefusedError, match="at most") as caught:
            circle.service.aggregate(large)
        assert caught.value.code == "too-large"


# -- an unlucky federation -------------------------------------------------------------------------


def lied_and_left(circle: Circle) -> list[str]:
    """c2 lies; c5 leaves when the sum has been unmasked, and its time is up; the others."""
    others = [name for name in circle.names if name != "c5"]
    with lying(circle, {"c2": negative}):
        until_opened(circle, circle.names, silent="c5")
    circle.time_is_up(*others)
    return others


def test_an_exclusion_is_not_forgotten() -> None:
    """The round of those that are left is lost, too: they need not wait for another week."""
    with circle_of(6) as circle:
        circle.everybody_adds()
        others = lied_and_left(circle)
        circle.until("revealing", *others)
        assert [entry["excluded"] for entry in circle.entries("excluded")] == [["c5"]]
        circle.restart_server()
        circle.go(*others, passes=20)
        assert not any(circle.stores[name].status().adding for name in others)
        circle.check()


def comes_back(circle: Circle) -> None:
    """The server was away for longer than clients may be."""
    circle.federation.clock.now += RULES.set_aside_after + 3600
    circle.restart_server()


def sync_one_by_one(circle: Circle, *names: str) -> None:
    for name in names:
        for _ in range(2):
            circle.sync(name)
            circle.federation.clock.now += 30


def opened(circle: Circle) -> list[str]:
    (dispute,) = circle.federation.operator.ask("disputes")
    return list(dispute["opened"])


@pytest.mark.parametrize("first", [0, 1])
def test_nobody_is_excluded_since_the_server_was_away(first: int) -> None:
    """In a dispute, of which as many have opened their parts before."""
    with circle_of(4) as circle:
        circle.everybody_adds()
        with lying(circle, {"c2": negative}):
            until_voided(circle, 1)
        sync_one_by_one(circle, *circle.names[:first])
        *late, last = sorted(set(circle.names) - set(opened(circle)))
        assert len(late) == 3 - first
        comes_back(circle)
        sync_one_by_one(circle, *late)
        assert opened(circle) == [name for name in circle.names if name != last]
        assert circle.entries("excluded") == []
        circle.time_is_up("c0")
        circle.sync("c0")
        assert [entry["excluded"] for entry in circle.entries("excluded")] == [[last]]


def test_in_a_dispute_time_counts_from_the_first_opening() -> None:
    """All were away, and come back one after the other."""
    with circle_of(4) as circle:
        circle.everybody_adds()
        with lying(circle, {"c2": negative}):
            until_voided(circle, 1)
        circle.federation.clock.now += 3 * RULES.set_aside_after
        sync_one_by_one(circle, *circle.names)
        assert opened(circle) == circle.names
        assert circle.entries("excluded") == []


def test_a_sum_is_repeated_by_all_when_the_server_is_back() -> None:
    with circle_of(5) as circle:
        circle.everybody_adds()
        circle.until("revealing")
        comes_back(circle)
        for _ in range(2):
            sync_one_by_one(circle, "c0", "c1", "c2")
            circle.wait(GATHER)
        circle.go(passes=20)
        assert circle.entries("excluded") == []
        circle.check_whole()


def test_a_verdict_counts_for_every_sum_that_the_liar_is_in() -> None:
    """A client is forgotten in a dispute; the others try again with the liar, and then it is
    named.
    """
    with circle_of(6) as circle:
        circle.everybody_adds()
        good = ["c0", "c3", "c4", "c5"]
        with lying(circle, {"c2": negative}):
            until_disputed(circle)
            first = dispute_of(circle)
            circle.forget_client("c1")
            until_opened(circle, circle.names, silent="c2", false=2)
        verdict = verdict_on(first, examine(first, ARBITER).false)
        circle.federation.operator.command("judge", verdict=verdict.to_json())
        circle.go(*good, passes=20)
        assert not any(circle.stores[name].status().adding for name in good)
        circle.forget_client("c2")
        circle.go(passes=30)
        circle.check_whole()


def test_nobody_is_excluded_since_all_were_away() -> None:
    """The server was there: those that come back first wait for the others, as after an outage."""
    with circle_of(5) as circle:
        circle.everybody_adds()
        circle.until("revealing")
        circle.wait(PHASE)
        circle.pass_round()
        circle.federation.clock.now += 2 * RULES.set_aside_after
        for _ in range(3):
            circle.pass_round("c0", "c1", "c2")
            circle.wait(PHASE)
            circle.restart_server()  # which changes nothing about that
        assert circle.entries("excluded") == []
        circle.go(passes=20)
        circle.check_whole()


def test_a_server_that_is_restarted_each_day_excludes_who_stays_away() -> None:
    with circle_of(5) as circle:
        circle.everybody_adds()
        circle.until("revealing")
        for _ in range(8):
            circle.restart_server()
            circle.go(*circle.names[:4], passes=4)
            circle.federation.clock.now += RULES.set_aside_after // 5
        circle.go(*circle.names[:4], passes=20)
        assert [entry["excluded"] for entry in circle.entries("excluded")] == [["c4"]]
        assert not any(circle.stores[name].status().adding for name in circle.names[:4])
