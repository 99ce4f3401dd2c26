"""What a client demands of rounds, of a server that may lie: whose keys, who is in the sum, and
which sums it helps to unmask.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from expunge.client.round_policy import RoundPolicy
from expunge.client.settings import pins_text
from expunge.client.trust import Trust
from expunge.crypto import Envelope
from expunge.errors import EvidenceError, FormatError, RefusedError
from expunge.secagg import Collector, Participant, read_preamble
from expunge.secagg.messages import read_client_message, read_server_message
from expunge.secagg.roster import Join, Roster
from expunge.server.secagg import SecureAggregation
from expunge.server.secagg_outcomes import Outcomes
from support.federation import make_key
from support.masked_round import GATHER, PHASE, Circle, drawn
from support.secagg import OPENING, signed_joins


@pytest.fixture
def circle() -> Iterator[Circle]:
    with drawn() as one:
        yield one


def kinds(circle: Circle, name: str, since: int = 0) -> list[str]:
    """What a client has said in rounds."""
    said = [data for who, data in circle.way.said[since:] if who == "said" and data[:1] != b"{"]
    return [read_preamble(data).kind for data in said if read_preamble(data).client == name]


def lying(circle: Circle, lie: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """The server signs something else than what it should say."""
    key = circle.federation.server_key

    def answer(data: bytes) -> bytes:
        content = Envelope.from_bytes(data, "standing").unverified()
        return Envelope.signed("standing", content | lie(content), key).to_bytes()

    circle.way.change["aggregate"] = answer


@pytest.mark.parametrize("told", ["é", "x", "eA", "eA==\n"])
def test_what_is_told_has_one_form(circle: Circle, told: str) -> None:
    lying(circle, lambda _: {"content": told})
    circle.add("c0")
    with pytest.raises(FormatError, match="what the server tells"):
        circle.sync("c0")
    circle.way.change.clear()
    circle.everybody_adds()
    circle.go()
    circle.check_whole()


# -- whose keys ------------------------------------------------------------------------------------


def put_in_the_middle(
    circle: Circle, swap: Callable[[dict[str, tuple[Join, bytes]]], None]
) -> None:
    """The server shows another roster than that of the clients' joins."""

    def lie(content: dict[str, Any]) -> dict[str, Any]:
        if content["phase"] != "sharing" or not content["content"]:
            return {}
        honest = Roster.read(base64.b64decode(content["content"]))
        joins = signed_joins(honest.data)
        swap(joins)
        roster = Roster.write(honest.opening, honest.rules, list(joins.values()))
        return {"content": base64.b64encode(roster).decode("ascii")}

    lying(circle, lie)


def refused(circle: Circle, match: str) -> None:
    """When all have joined, whoever sees the roster says nothing more, and nothing comes of the
    round; an honest one goes on afterwards.
    """
    for name in ("c1", "c2", "c3"):
        circle.sync(name)
    before = circle.ledger()
    with pytest.raises(EvidenceError, match=match):
        circle.sync("c0")
    assert set(kinds(circle, "c0")) == {"join"}
    circle.way.change.clear()
    circle.wait(PHASE)
    assert circle.ledger() == before
    circle.go(passes=20)
    circle.check_whole()


def test_a_forged_key_is_noticed(circle: Circle) -> None:
    """A join in the name of c1, by somebody else's key."""
    circle.everybody_adds()

    def swap(joins: dict[str, tuple[Join, bytes]]) -> None:
        opening = circle.collector.opening
        forged = read_client_message(
            Participant.join(
                opening, circle.spec.aggregation, name="c1", sequence=1, key=make_key()
            ).message
        )
        joins["c1"] = (Join.from_header(forged.header), forged.signed.signature)

    put_in_the_middle(circle, swap)
    refused(circle, "c1")


def test_keys_that_were_swapped_are_noticed(circle: Circle) -> None:
    circle.everybody_adds()

    def swap(joins: dict[str, tuple[Join, bytes]]) -> None:
        (one, first), (two, second) = joins["c1"], joins["c2"]
        joins["c1"] = (Join(one.name, one.sequence, one.cipher, two.mask), first)
        joins["c2"] = (Join(two.name, two.sequence, two.cipher, one.mask), second)

    put_in_the_middle(circle, swap)
    refused(circle, "c1|c2")


def test_a_name_that_is_enrolled_again_with_another_key_is_noticed(circle: Circle) -> None:
    circle.everybody_adds()
    state = circle.service.state
    with state.changing() as now:
        state.append("enrolled", now, name="c1", role="client", key=make_key().public.text)
    for name in ("c1", "c2", "c3"):
        circle.sync(name)
    with pytest.raises(EvidenceError, match="enrols c1 twice"):
        circle.sync("c0")
    assert set(kinds(circle, "c0")) == {"join"}


def test_a_key_that_the_server_exchanged_in_its_own_books_is_noticed(circle: Circle) -> None:
    """The server takes another's key for c1's; the log, which everybody reads, still shows the one
    that was enrolled.
    """
    circle.everybody_adds()
    other = make_key()
    state = circle.service.state
    with state.changing():
        state.storage.actors.put(replace(state.actor("c1"), key=other.public.text))
    circle.sync("c0")
    circle.sync("c2")
    opening = circle.collector.opening
    forged = Participant.join(opening, circle.spec.aggregation, name="c1", sequence=1, key=other)
    circle.service.aggregate(forged.message)
    circle.wait(PHASE)
    with pytest.raises(EvidenceError, match="c1"):
        circle.sync("c0")
    assert set(kinds(circle, "c0")) == {"join"}


def test_pins_keep_strangers_out(circle: Circle) -> None:
    keys = {name: store.key.public.text for name, store in circle.stores.items()}
    circle.stores["c0"].remember(
        {"pins": pins_text({name: keys[name] for name in ("c0", "c1", "c2")})}
    )
    circle.everybody_adds()
    for name in ("c1", "c2", "c3"):
        circle.sync(name)
    with pytest.raises(EvidenceError, match="c3"):
        circle.sync("c0")
    assert set(kinds(circle, "c0")) == {"join"}
    circle.go("c1", "c2", "c3")
    circle.check()
    circle.everybody_adds("c1", "c2")
    circle.go("c0", "c1", "c2")
    circle.check_whole()


def test_a_pin_that_contradicts_the_log_stops_everything(circle: Circle) -> None:
    circle.stores["c0"].remember({"pins": pins_text({"c1": make_key().public.text})})
    circle.everybody_adds()
    for name in ("c1", "c2", "c3"):
        circle.sync(name)
    with pytest.raises(EvidenceError, match="another key for c1 than the one pinned"):
        circle.sync("c0")
    assert set(kinds(circle, "c0")) == {"join"}


# -- who is in the sum -----------------------------------------------------------------------------


def test_an_audit_that_leaves_somebody_out_is_not_taken_part_in(
    circle: Circle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger minus that sum would be what that client holds."""
    circle.everybody_adds()
    circle.go()
    circle.federation.operator.command("audit")
    state = circle.service.state
    clients = state.clients
    monkeypatch.setattr(
        state, "clients", lambda *statuses: [name for name in clients(*statuses) if name != "c3"]
    )
    since = len(circle.way.said)
    for _ in range(4):
        told = circle.pass_round("c0", "c1", "c2")
    assert any(
        "an audit must be of all clients that the log shows" in one.waiting for one in told.values()
    )
    assert {kind for name in ("c0", "c1", "c2") for kind in kinds(circle, name, since)} == {"join"}
    assert circle.entries("audited") == []


def test_an_audit_from_which_somebody_dropped_out_is_not_unmasked(
    circle: Circle, monkeypatch: pytest.MonkeyPatch
) -> None:
    circle.everybody_adds()
    circle.go()
    circle.federation.operator.command("audit")
    # The server takes whoever joined for included, and asks for the sum though one is missing.
    monkeypatch.setattr(
        Collector, "included", property(lambda one: [(name, 0) for name in one.clients])
    )
    circle.until("masking")
    masked = [name for name in circle.names if "masked" in kinds(circle, name)]
    since = len(circle.way.said)
    others = (
        [name for name in circle.names if name != "c3"]
        if "c3" not in masked
        else ["c1", "c2", "c3"]
    )
    circle.pass_round(*others)
    circle.wait(PHASE)
    told = circle.pass_round(*others)
    assert any(
        "dropped out of a round that needs all clients" in one.waiting for one in told.values()
    )
    assert not any("reveal" in kinds(circle, name, since) for name in circle.names)
    assert circle.entries("audited") == []


# -- which sums ------------------------------------------------------------------------------------


def revealed(circle: Circle, since: int = 0) -> list[str]:
    return [name for name in circle.names if "reveal" in kinds(circle, name, since)]


def survivors_told(circle: Circle) -> dict[str, tuple[str, ...]]:
    """To whose sums clients were asked to agree, by round."""
    survivors = {}
    for who, data in circle.way.said:
        told = Envelope.from_bytes(data, "standing").unverified() if who == "told" else {}
        if told and told["phase"] == "agreeing" and told["content"]:
            header, _ = read_server_message("survivors", base64.b64decode(told["content"]))
            survivors[header["round"]] = tuple(header["clients"])
    return survivors


def sums_asked(circle: Circle) -> set[tuple[str, ...]]:
    return set(survivors_told(circle).values())


def sums_revealed(circle: Circle) -> set[tuple[str, ...]]:
    """Of whose sums shares were revealed."""
    survivors = survivors_told(circle)
    said = [data for who, data in circle.way.said if who == "said" and data[:1] != b"{"]
    return {
        survivors[read_preamble(data).round]
        for data in said
        if read_preamble(data).kind == "reveal"
    }


def aborted_when_revealing(circle: Circle, count: int) -> list[str]:
    """A round of all that is aborted after so many have helped to unmask its sum; who they are."""
    circle.everybody_adds()
    circle.until("revealing")
    for name in circle.names:
        if len(revealed(circle)) < count:
            circle.sync(name)
    circle.wait(PHASE)
    who = revealed(circle)
    assert len(who) == count
    assert circle.phase
    return who


def test_a_client_that_agreed_to_a_sum_agrees_to_no_other() -> None:
    """A server that calls a round aborted, and asks for the sum of all but one: as it is told by
    the real one, and as it is patched to ask all the same.
    """
    with drawn(5) as circle:
        aborted_when_revealing(circle, 2)
        away, *others = circle.names
        for _ in range(2):  # everybody learns that the round was aborted, and joins the next one
            circle.pass_round(*others)
        since, before = len(circle.way.said), circle.ledger()
        circle.wait(GATHER)
        waiting = circle.pass_round(*others)
        assert all(f"a sum without {away} would show" in one.waiting for one in waiting.values())
        assert circle.phase == "joining"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Outcomes, "attempted", lambda _: [])
            said = {name: set[str]() for name in others}
            for _ in range(8):
                for name in others:
                    said[name].add(circle.sync(name).waiting)
            assert circle.phase == "masking"
        for name in others:
            assert any(f"differ from it by {away}" in one for one in said[name])
        assert revealed(circle, since) == []
        assert circle.ledger() == before
        circle.wait(PHASE)
        circle.go()
        circle.check_whole()
        assert len(circle.entries("aggregated")) == 1


def test_sums_of_disjoint_sets_do_not_add_up_to_one_that_shows_a_client() -> None:
    """Three clients and three others help to unmask sums that are never applied: with the sum of
    all seven, the server would have the seventh.
    """
    with drawn(7) as circle:
        circle.everybody_adds()
        three, others, last = circle.names[:3], circle.names[3:6], circle.names[6]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Outcomes, "change", _refuse)
            for some in (three, others):
                for _ in range(9):
                    circle.pass_round(*some)
                    circle.wait(GATHER)
                assert set(revealed(circle)) >= set(some)
                circle.wait(PHASE)  # the round that they have begun again is over, too
            patch.setattr(Outcomes, "attempted", lambda _: [])
            said = {name: set[str]() for name in circle.names}
            for _ in range(12):
                for name, done in circle.pass_round().items():
                    said[name].add(done.waiting)
        assert sums_revealed(circle) == {tuple(three), tuple(others)}
        assert all(
            any("differ from it by" in one and last in one for one in said[name])
            for name in (*three, *others)
        )
        circle.wait(PHASE)
        circle.go(*three, *others, passes=40)  # the same sums again, which show nothing new
        circle.check()
        assert {
            tuple(member["client"] for member in entry["clients"])
            for entry in circle.entries("aggregated")
        } == {tuple(three), tuple(others)}


def _refuse(*_: object) -> None:
    raise RefusedError("storage", "a server that keeps what it has seen, and applies nothing")


def test_a_client_that_agreed_to_a_sum_masks_in_no_other_round() -> None:
    """A server that does not ask it to agree would have its part in the sum all the same: with a
    quorum of others, two sums that differ by few.
    """
    with drawn(8) as circle:
        circle.everybody_adds()
        circle.until("revealing")
        circle.wait(PHASE)
        circle.enrol("new")
        circle.add("new")
        some = [*circle.names[:4], "new"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Outcomes, "attempted", lambda _: [])
            for _ in range(3):
                circle.pass_round(*some)
            circle.wait(GATHER)
            since = len(circle.way.said)
            told = [circle.pass_round(*some) for _ in range(3)][-1]
        assert [name for name in some if "masked" in kinds(circle, name, since)] == ["new"]
        assert all("would differ from it" in told[name].waiting for name in some[:4])


def test_a_server_that_was_not_restored_does_not_get_everything_again() -> None:
    """It would subtract what some send from what it has of all."""
    with drawn(5) as circle:
        circle.everybody_adds()
        circle.go()
        state, before = circle.service.state, circle.ledger()
        with state.changing():
            for name in circle.names[:4]:
                actor = state.actor(name)
                state.storage.actors.put(replace(actor, status="must-rejoin"))
        since = len(circle.way.said)
        for _ in range(2):
            for name in circle.names[:4]:
                with pytest.raises(EvidenceError, match="its log does not show that"):
                    circle.sync(name)
        assert [kinds(circle, name, since) for name in circle.names[:4]] == [[]] * 4
        assert circle.ledger() == before


def test_nothing_is_audited_while_a_client_is_being_forgotten() -> None:
    """The ledger still has it: the difference would be all that it held."""
    with drawn(5) as circle:
        circle.everybody_adds()
        circle.go()
        circle.federation.operator.command("audit")
        circle.forget_client("c4")
        since = len(circle.way.said)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SecureAggregation, "wanted", lambda _: "audit")
            for _ in range(4):
                told = circle.pass_round()
        assert all("while c4 is being forgotten" in one.waiting for one in told.values())
        assert not any("shares" in kinds(circle, name, since) for name in circle.names)


def test_who_has_left_does_not_come_back() -> None:
    """A server could let a client go, add up the others, and let it come back."""
    with drawn(4) as circle:
        circle.everybody_adds()
        circle.go()
        state = circle.service.state
        actor = state.actor("c3")
        circle.federation.operator.command("forget-client", client="c3")
        with state.changing() as now:
            state.append("enrolled", now, name="c3", role="client", key=actor.key)
        circle.everybody_adds("c0", "c1", "c2")
        with pytest.raises(EvidenceError, match="the log shows c3 again after it had left"):
            circle.go("c0", "c1", "c2")


def test_those_that_remain_go_on_without_one_that_has_left() -> None:
    with drawn(5) as circle:
        aborted_when_revealing(circle, 2)
        circle.forget_client("c4")
        circle.go(passes=30)
        circle.check_whole()
        (entry,) = circle.entries("aggregated")
        assert [member["client"] for member in entry["clients"]] == ["c0", "c1", "c2", "c3"]


def test_a_round_that_repeats_an_aborted_one_is_for_the_same_clients_or_for_none() -> None:
    """If one dropped out of the repetition, those that never agreed would agree to what is left,
    and all would wait for one another for ever.
    """
    with drawn(4) as circle:
        circle.everybody_adds()
        circle.until("agreeing")
        circle.sync("c0")  # agrees, as the last one that masked did; two more would be a quorum
        circle.wait(PHASE)
        circle.until("masking")
        assert circle.collector is not None
        away = max(circle.collector.awaited)
        others = [name for name in circle.names if name != away]
        circle.pass_round(*others)
        circle.wait(PHASE)
        told = circle.pass_round(*others)
        assert any(
            f"{away} dropped out of a round that repeats" in one.waiting for one in told.values()
        )
        assert sums_asked(circle) == {("c0", "c1", "c2", "c3")}
        circle.go(passes=30)
        circle.check_whole()


def test_the_same_sum_may_be_asked_for_again_and_others_wait_for_the_next_round() -> None:
    """Also by a server that was started anew meanwhile."""
    with drawn(4) as circle:
        aborted_when_revealing(circle, 1)
        circle.restart_server()
        circle.enrol("new")
        circle.add("new")
        circle.go(passes=30)
        first, *_ = circle.entries("aggregated")
        assert [member["client"] for member in first["clients"]] == ["c0", "c1", "c2", "c3"]
        circle.everybody_adds()
        circle.go(passes=30)
        circle.check_whole()


def test_a_number_that_went_on_makes_another_sum() -> None:
    with drawn(4) as circle:
        store = circle.stores["c1"]
        earlier = '[[["c0",1],["c1",1],["c2",1],["c3",1]]]'
        store.remember({"revealed": earlier})
        policy = RoundPolicy(store, circle.way, Trust(store, circle.way))

        def agree(*numbers: int) -> None:
            included = tuple(zip(circle.names, numbers, strict=True))
            roster = SimpleNamespace(parts=frozenset(included), exposed=frozenset({included[3]}))
            told = {"name": "c1", "opening": OPENING, "roster": roster, "sequence": numbers[1]}
            policy.require_one_sum(SimpleNamespace(included=included, **told))

        with pytest.raises(EvidenceError, match="differ from it by c0, whose"):
            agree(2, 1, 1, 1)
        assert store.recall("revealed") == earlier
        agree(1, 1, 1, 1)
        assert store.recall("revealed") == earlier
        agree(2, 2, 2, 2)  # another change of the same client
        added = '{"exposed":[["c3",2]],"parts":[["c0",2],["c1",2],["c2",2],["c3",2]]}'
        assert store.recall("revealed") == f"{earlier[:-1]},{added}]"
