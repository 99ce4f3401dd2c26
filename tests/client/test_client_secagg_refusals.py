"""What a client demands of rounds, of a server that may lie: whose keys, who is in the sum, and
which sums it helps to unmask.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from expunge.client.secagg import RoundPolicy
from expunge.client.settings import pins_text
from expunge.client.trust import Trust
from expunge.crypto import Envelope
from expunge.errors import EvidenceError
from expunge.secagg import Collector, Participant, read_preamble
from expunge.secagg.messages import read_client_message
from expunge.secagg.roster import Join, Roster
from support.federation import make_key
from support.masked_round import GATHER, PHASE, Circle, drawn
from support.secagg import signed_joins


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
    """Whoever sees the roster says nothing more, and nothing comes of the round; an honest one goes
    on afterwards.
    """
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
    for name in ("c1", "c2", "c3"):
        circle.sync(name)
    refused(circle, "c1")


def test_keys_that_were_swapped_are_noticed(circle: Circle) -> None:
    circle.everybody_adds()

    def swap(joins: dict[str, tuple[Join, bytes]]) -> None:
        (one, first), (two, second) = joins["c1"], joins["c2"]
        joins["c1"] = (Join(one.name, one.sequence, one.cipher, two.mask), first)
        joins["c2"] = (Join(two.name, two.sequence, two.cipher, one.mask), second)

    put_in_the_middle(circle, swap)
    for name in ("c1", "c2", "c3"):
        circle.sync(name)
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


def test_no_two_sums_that_differ_by_few_are_unmasked_with_a_clients_help() -> None:
    with drawn(5) as circle:
        who = aborted_when_revealing(circle, 2)
        away = next(name for name in circle.names if name not in who)
        others = [name for name in circle.names if name != away]
        circle.pass_round(*others)
        since = len(circle.way.said)
        said = {name: set[str]() for name in others}
        for _ in range(8):
            for name in others:
                said[name].add(circle.sync(name).waiting)
            circle.wait(GATHER)
        for name in who:
            assert any(
                f"differ from it by {away} only" in one and "nothing is revealed" in one
                for one in said[name]
            )
        assert not set(who) & set(revealed(circle, since))
        circle.wait(PHASE)
        circle.go(*others)  # those who never helped to unmask the first one are enough for this one
        circle.check()
        assert not set(who) & set(revealed(circle, since))
        circle.everybody_adds(*others)
        circle.go()
        circle.check_whole()


def test_two_sums_may_differ_by_as_many_as_a_round_needs() -> None:
    with drawn(6) as circle:
        who = aborted_when_revealing(circle, 1)
        three = [*who, *(name for name in circle.names if name not in who)][:3]
        circle.pass_round(*three)
        since = len(circle.way.said)
        circle.go(*three)
        assert who[0] in revealed(circle, since)
        circle.check()


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


def test_a_number_that_went_on_belongs_to_the_same_client() -> None:
    """c0 with another number is one client more and the same client less: still one client, and not
    enough to hide in.
    """
    with drawn(4) as circle:
        store = circle.stores["c1"]
        earlier = '[[["c0",1],["c1",1],["c2",1],["c3",1]]]'
        store.remember({"revealed": earlier})
        policy = RoundPolicy(store, circle.way, Trust(store, circle.way))

        class Told:
            included = (("c0", 2), ("c1", 1), ("c2", 1), ("c3", 1))

        with pytest.raises(EvidenceError, match="differ from it by c0 only"):
            policy.require_apart(Told())
        assert store.recall("revealed") == earlier
