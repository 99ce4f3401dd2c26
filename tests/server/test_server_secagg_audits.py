"""Audits and rebuilds under secure aggregation: rounds of all clients, whose sum is compared with
the ledger, or replaces it.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Any

import pytest
from test_server_erasure import copied, opens, sealed_in

from expunge.errors import RefusedError
from expunge.evidence import verify
from expunge.server.secagg import SecureAggregation
from support.client_files import change_behind
from support.masked_round import PHASE, Circle


@pytest.fixture
def circle(circle_of_four: Circle) -> Circle:
    return circle_of_four


def audit(circle: Circle) -> str:
    return str(circle.federation.operator.command("audit")["audit"])


def result(circle: Circle, number: str) -> dict[str, Any]:
    told: dict[str, Any] = circle.federation.operator.ask("show-audit", audit=number)
    return told


def tamper(circle: Circle, name: str) -> None:
    """A sample is changed behind the back of a client: it is replaced by another, as if that had
    always been there.
    """
    store = circle.stores[name]
    circle.correct(name, next(iter(circle.held[name])))
    change_behind(
        store,
        "DELETE FROM samples WHERE state = 'deleting'",
        "UPDATE samples SET state = 'live', held = 1, replaces = NULL WHERE state = 'adding'",
    )


def test_an_audit_of_honest_clients_finds_the_ledger_equal(circle: Circle) -> None:
    number = audit(circle)
    done = circle.go()
    assert {one.audits for one in done.values()} == {(number,)}
    assert not any(one.waiting for one in done.values())
    told = result(circle, number)
    assert (told["result"], told["equal"], told["waiting"]) == ("equal", circle.names, [])
    (entry,) = circle.entries("audited")
    assert (entry["clients"], entry["count"], entry["ledger"]) == (
        circle.names,
        8,
        entry["recomputed"],
    )
    circle.check_whole()


def test_an_audit_after_a_store_was_tampered_with_finds_a_difference_and_cannot_say_whose(
    circle: Circle,
) -> None:
    tamper(circle, "c2")
    number = audit(circle)
    circle.go()
    told = result(circle, number)
    assert told["result"] == "different"
    assert (told["equal"], told["different"], told["clients"]) == ([], [], circle.names)
    (entry,) = circle.entries("audited")
    assert entry["ledger"] != entry["recomputed"]
    finding = verify(circle.service.head() or b"", circle.federation.first_key.public)
    assert any("THE LAST AUDIT FOUND A DIFFERENCE" in sentence for sentence in finding.not_proved)


def test_certificates_and_findings_speak_of_masked_federations(circle: Circle) -> None:
    audit(circle)
    circle.go()
    finding = verify(circle.service.head() or b"", circle.federation.first_key.public)
    assert any(
        "added up by secure aggregation, equalled the ledger" in sentence
        for sentence in finding.proved
    )
    assert any("can check no single one" in sentence for sentence in finding.assumptions)
    assert not any(
        "commitments" in sentence for sentence in (*finding.proved, *finding.assumptions)
    )
    receipt = verify(
        circle.stores["c0"].documents("receipt")[1], circle.federation.first_key.public
    )
    assert ("Clients included", "c0, c1, c2 and c3") in receipt.facts
    assert any("8 samples added, no samples deleted" in sentence for sentence in receipt.proved)
    assert any("nobody but the client can tell" in sentence for sentence in receipt.not_proved)


def test_an_audit_with_changes_pending_everywhere(circle: Circle) -> None:
    """The audit is of what the server has receipted; then the changes go on."""
    circle.everybody_adds()
    for name in circle.names:
        circle.forget(name, list(circle.held[name])[:1])
    number = audit(circle)
    circle.go()
    assert result(circle, number)["result"] == "equal"
    circle.check_whole()
    assert [entry["kind"] for entry in circle.federation.entries()[-2:]] == [
        "audited",
        "aggregated",
    ]


@pytest.mark.parametrize("phase", ["joining", "sharing", "masking", "revealing"])
def test_an_audit_that_begins_in_the_middle_of_a_round_of_changes(
    circle: Circle, phase: str
) -> None:
    circle.everybody_adds("c0", "c1", "c2")
    circle.until(phase)
    number = audit(circle)
    circle.go()
    assert result(circle, number)["result"] == "equal"
    circle.check_whole()
    kinds = [
        entry["kind"]
        for entry in circle.federation.entries()
        if entry["kind"] in ("audited", "aggregated")
    ]
    assert kinds == (
        ["aggregated", "audited", "aggregated"]
        if phase == "joining"
        else ["aggregated", "aggregated", "audited"]
    )


def test_changes_that_come_in_the_middle_of_an_audit_wait_for_its_end(circle: Circle) -> None:
    number = audit(circle)
    circle.pass_round("c0", "c1")
    circle.everybody_adds()
    assert circle.agent("c0").push() == []
    circle.go()
    assert result(circle, number)["result"] == "equal"
    circle.check_whole()


def test_a_client_that_joins_late_is_part_of_the_audit(circle: Circle) -> None:
    number = audit(circle)
    circle.pass_round("c0", "c1", "c2", "c3")
    circle.enrol("late")
    circle.go("c0", "c1", "c2", "c3", passes=3)
    assert result(circle, number)["result"] == "under way"
    assert result(circle, number)["waiting"] == [*circle.names]
    circle.go(passes=30)
    assert result(circle, number)["result"] == "equal"
    assert circle.entries("audited")[0]["clients"] == circle.names


@pytest.mark.parametrize("phase", ["sharing", "masking", "revealing"])
def test_a_drop_out_aborts_an_audit_and_it_goes_on_next_time(circle: Circle, phase: str) -> None:
    number = audit(circle)
    circle.until(phase)
    aborted = circle.service.rounds.aborted
    circle.pass_round("c1", "c2", "c3")
    circle.wait(PHASE)
    told = circle.pass_round("c1", "c2", "c3")
    if phase == "revealing":  # c0 is in the sum already: two of four are enough to unmask it
        assert result(circle, number)["result"] == "equal"
    else:
        assert circle.service.rounds.aborted == aborted + 1
        assert result(circle, number)["result"] == "under way"
        assert any("c0" in one.waiting for one in told.values())
    circle.go(passes=30)
    assert result(circle, number)["result"] == "equal"
    circle.check_whole()


def test_an_audit_that_waits_for_somebody_does_not_hold_up_changes_for_ever(circle: Circle) -> None:
    number = audit(circle)
    circle.everybody_adds()
    others = ("c1", "c2", "c3")
    circle.pass_round(*others)
    circle.wait(PHASE)
    told = circle.pass_round(*others)
    assert any(
        "c0 did not join, and an audit needs every client" in one.waiting for one in told.values()
    )
    circle.go(*others)
    assert (
        len(circle.entries("aggregated")) == 2
    )  # what they had to change has taken effect meanwhile
    assert result(circle, number)["result"] == "under way"
    circle.wait(2 * PHASE)
    circle.everybody_adds("c1", "c2")
    circle.go(passes=40)
    assert result(circle, number)["result"] == "equal"
    circle.check_whole()


def test_a_server_that_stops_in_the_middle_of_an_audit(circle: Circle) -> None:
    number = audit(circle)
    for phase in ("joining", "sharing", "masking", "revealing"):
        circle.until(phase)
        circle.restart_server()
    circle.go()
    assert result(circle, number)["result"] == "equal"
    circle.check_whole()


def test_an_order_answered_in_the_middle_of_an_audit_does_not_disturb_it(circle: Circle) -> None:
    """The answer is a request of its own, so the client's number is another one when the round goes
    on.
    """
    number = audit(circle)
    circle.until("sharing")
    circle.federation.operator.command("order", subject="nobody here knows")
    circle.go()
    assert result(circle, number)["result"] == "equal"
    (order,) = circle.federation.operator.ask("orders")
    assert order["state"] == "complete"
    circle.check_whole()


# -- rebuilds --------------------------------------------------------------------------------------


def test_a_forgotten_client_is_gone_from_the_ledger_and_from_every_file(circle: Circle) -> None:
    before = copied(circle.federation, "before")
    everything = sealed_in(before)
    assert {"ledger", "message"} & {one.what for one in everything}
    assert all(opens(circle.service.state.vault, one) for one in everything)
    circle.forget_client("c3")
    circle.everybody_adds()
    circle.go()
    circle.check_whole()
    still = [one for one in everything if opens(circle.service.state.vault, one)]
    assert still == []
    (entry,) = circle.entries("forgotten")
    assert entry["client"] == "c3"
    assert circle.entries("erased")[-1]["generation"] >= 1
    shutil.rmtree(before)


def test_a_forgotten_client_takes_no_part_any_more(circle: Circle) -> None:
    circle.everybody_adds()
    gone, store = circle.agent("c3"), circle.stores["c3"]
    circle.until("sharing")
    circle.federation.operator.command("forget-client", client="c3")
    circle.stores.pop("c3")
    circle.held.pop("c3")
    assert gone.sync().status == "gone"
    assert store.participation.read() is None
    circle.go(passes=30)
    circle.check_whole()
    store.close()


@pytest.mark.parametrize("phase", ["joining", "sharing", "masking", "revealing"])
def test_a_client_forgotten_in_the_middle_of_a_round(circle: Circle, phase: str) -> None:
    circle.everybody_adds()
    circle.until(phase)
    circle.forget_client("c3")
    circle.go(passes=30)
    circle.check_whole()
    assert len(circle.entries("forgotten")) == 1


def test_a_drop_out_aborts_a_rebuild_and_nothing_is_replaced(circle: Circle) -> None:
    circle.forget_client("c3")
    ledger = circle.ledger()
    circle.until("sharing", "c0", "c1", "c2")
    circle.pass_round("c0", "c1")
    circle.wait(PHASE)
    told = circle.pass_round("c0", "c1")
    assert any(
        "c2 dropped out" in one.waiting or "the rules ask for 3" in one.waiting
        for one in told.values()
    )
    assert circle.ledger() == ledger
    circle.wait(PHASE)
    circle.go(passes=30)
    circle.check_whole()


def test_with_too_few_others_a_client_cannot_be_forgotten(circle: Circle) -> None:
    circle.forget_client("c3")
    circle.go()
    before = circle.federation.dump()
    with pytest.raises(
        RefusedError, match="which needs 3 of them, and there are 2: enrol more clients first"
    ):
        circle.federation.operator.command("forget-client", client="c2")
    assert circle.federation.dump() == before


def test_a_client_that_never_changed_anything_is_forgotten_at_once(circle: Circle) -> None:
    circle.enrol("new")
    circle.sync("new")
    circle.forget_client("new")
    assert circle.entries("forgotten")[-1]["client"] == "new"
    circle.everybody_adds()
    circle.go()
    circle.check_whole()


def test_a_rebuild_and_an_audit_at_once(circle: Circle) -> None:
    number = audit(circle)
    circle.pass_round("c0", "c1")
    circle.forget_client("c3")
    circle.everybody_adds()
    circle.go(passes=40)
    assert result(circle, number)["result"] == "equal"
    circle.check_whole()
    kinds = [entry["kind"] for entry in circle.federation.entries()]
    assert kinds.index("forgotten") < kinds.index("audited")


def test_an_audit_in_which_a_client_is_doubtful_waits_until_it_knows(circle: Circle) -> None:
    """Included after it dropped out, it does not know what the server counts: it learns that
    first.
    """
    circle.everybody_adds()
    circle.until("masking")
    circle.pass_round("c0", "c1", "c2", "c3", "c1", "c2", "c3")
    circle.wait(PHASE)
    number = audit(circle)
    circle.go("c1", "c2", "c3", passes=2)
    composed = circle.stores["c0"].outbox.composed()
    assert composed is not None
    assert composed.doubtful
    circle.go(passes=30)
    assert result(circle, number)["result"] == "equal"
    circle.check_whole()


def test_what_is_wanted_next(circle: Circle) -> None:
    rounds: SecureAggregation = circle.service.rounds
    assert rounds.wanted() == "change"
    audit(circle)
    assert rounds.wanted() == "audit"
    circle.federation.operator.command("forget-client", client="c3")
    assert rounds.wanted() == "rebuild"
    state = circle.service.state
    with state.changing():
        state.storage.actors.put(replace(state.actor("c0"), status="must-rejoin"))
    assert (
        rounds.wanted() == "change"
    )  # with too few clients for the others, changes may bring some back
