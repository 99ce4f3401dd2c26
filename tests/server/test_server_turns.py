"""Clients that spoil rounds, or complain, take turns with the others: none of them holds up
everybody's changes, and nobody is kept out for good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise

import pytest

from expunge.errors import RefusedError
from expunge.exact import wide
from expunge.secagg import Participant, parcels
from expunge.secagg.messages import read_server_message, sign
from server.test_server_dispute_attacks import aggregated, deal_as
from server.test_server_disputes import RULES, circle_of, lying, negative
from server.test_server_secagg_schedule import EVERY, WINDOW, Scheduled, scheduled
from support.masked_round import GATHER, PHASE, SPEC, Circle

# -- audits and rebuilds ---------------------------------------------------------------------------


def wants_a_rebuild(circle: Circle) -> None:
    circle.federation.operator.command("forget-client", client="c1")
    circle.stores.pop("c1").close()
    circle.held.pop("c1")


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


@contextmanager
def false_rebuilds(liar: str) -> Iterator[None]:
    true = Participant.on_deliveries
    with pytest.MonkeyPatch.context() as patch:

        def masked(self: Participant, told: bytes, vector: wide.Wide) -> bytes:
            if self.name == liar and self.opening.purpose == "rebuild":
                vector = vector.copy()
                negative(vector)
            return true(self, told, vector)

        patch.setattr(Participant, "on_deliveries", masked)
        yield


def test_false_statistics_in_a_rebuild_do_not_hold_up_changes() -> None:
    with circle_of(4) as circle, false_rebuilds("c3"):
        wants_a_rebuild(circle)
        said = set[str]()
        until_deleted(circle, lambda name: said.add(circle.sync(name).waiting), 3 * PHASE)
        (told,) = {one for one in said if "negative" in one}
        assert "the rebuild is tried again later" in told
        assert "the operator must find out whose" in told
        assert "smaller groups" not in told
        assert "arbiter" not in told


# -- bad parcels -----------------------------------------------------------------------------------


def spoil_all(dealt: parcels.Dealt) -> parcels.Dealt:
    """Nobody can open what is sealed for it."""
    spoilt = [replace(one, sealed=bytes(len(one.sealed))) for one in dealt.parcels]
    return replace(dealt, parcels=tuple(spoilt))


def test_an_excluded_liar_does_not_stop_the_rounds_of_a_schedule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
        for seconds in (10, WINDOW, WINDOW + 100):
            circle.at(seconds, window=2)
            circle.meet(*honest)
        assert [entry["excluded"] for entry in circle.entries("excluded")] == [["c4"]]
        assert not any(circle.stores[name].status().adding for name in honest)
        monkeypatch.setattr("expunge.secagg.participant.deal", deal_as("c4", spoil_all))
        circle.forget("c0", [next(iter(circle.held["c0"]))])
        circle.at(1, window=3)
        for _ in range(12):
            for name in ["c4", "c4", *honest, "c4"]:
                circle.sync(name)
            circle.pass_time(20)
        assert not circle.stores["c0"].status().deleting
        assert circle.rounds()[-1] == honest


def test_an_excluded_client_is_not_kept_out_by_bad_parcels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """c4 was away for too long, and is back with its part; c0 spoils what it seals for c4."""
    with circle_of(5) as circle:
        circle.forget("c4", [next(iter(circle.held["c4"]))])
        circle.everybody_adds()
        circle.until("revealing")
        circle.wait(PHASE)
        others = circle.names[:4]
        circle.federation.clock.now += RULES.set_aside_after
        circle.go(*others, passes=30)
        assert [entry["excluded"] for entry in circle.entries("excluded")] == [["c4"]]

        def spoil(dealt: parcels.Dealt) -> parcels.Dealt:
            if circle.collector is None or "c4" not in circle.collector.clients:
                return dealt
            *first, last = dealt.parcels  # c4's, by name
            return replace(dealt, parcels=(*first, replace(last, sealed=bytes(len(last.sealed)))))

        monkeypatch.setattr("expunge.secagg.participant.deal", deal_as("c0", spoil))
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


# -- complaints ------------------------------------------------------------------------------------


def complaint(circle: Circle, client: str, dealer: str) -> bytes:
    """What a client says that cannot, or will not, use the parcel of another."""
    collector = circle.collector
    assert collector is not None
    told, _ = read_server_message("deliveries", collector.say(client) or b"")
    header = {
        "client": client,
        "dealer": dealer,
        "federation": circle.federation.id,
        "kind": "complaint",
        "roster": told["roster"],
        "round": collector.opening.round,
        "sequence": circle.stores[client].sequence + 1,
    }
    return sign(header, b"", circle.stores[client].key)


def refused(circle: Circle, data: bytes) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        circle.service.aggregate(data)
    return caught.value


def test_two_that_complain_of_one_do_not_keep_it_out() -> None:
    with circle_of(5) as circle:
        circle.everybody_adds()
        circle.until("masking", *reversed(circle.names))
        liars = sorted(circle.collector.awaited - {"c0"})[-2:]
        for liar in liars:
            circle.service.aggregate(complaint(circle, liar, "c0"))
        circle.wait(PHASE)
        circle.go(passes=20)
        first, said = len(circle.entries("aggregated")), set[str]()
        for _ in range(3):
            circle.add("c0", 1)
            circle.add("c1", 1)
            for _ in range(6):
                done = circle.pass_round()
                said.add(done["c0"].waiting)
                circle.wait(GATHER if circle.phase == "joining" else 1)
        rounds = [
            {one["client"] for one in entry["clients"]}
            for entry in circle.entries("aggregated")[first:]
        ]
        assert all(("c0" in one) != ("c0" in other) for one, other in pairwise(rounds))
        assert len(rounds) >= 3
        assert all(("c0" in one) != (liars[0] in one) for one in rounds)
        assert any(f"this client and {', '.join(liars)} cannot meet" in one for one in said)
        assert not any("which had dropped out" in one for one in said)
        circle.check()


def test_who_complains_takes_no_part_and_who_takes_part_does_not_complain() -> None:
    with circle_of(5) as circle:
        circle.everybody_adds()
        circle.until("masking", *reversed(circle.names))
        late = complaint(circle, "c1", "c0")
        circle.sync("c1")
        assert refused(circle, late).code == "wrong-phase"
        circle.service.aggregate(complaint(circle, "c2", "c0"))
        assert "c2 has complained of c0, and dropped out" in circle.sync("c2").waiting
        circle.wait(PHASE)
        circle.go("c0", "c1", "c3", "c4")
        assert "c2" not in {one["client"] for one in aggregated(circle)[-1]["clients"]}


def test_a_complaint_that_cannot_be_read_is_refused() -> None:
    with circle_of(4) as circle:
        circle.everybody_adds()
        circle.until("masking", *reversed(circle.names))
        good = complaint(circle, "c1", "c0")
        assert refused(circle, good + b"xx").code == "malformed"
        circle.go()
        circle.check_whole()
