"""A client that deals wrong shares, so that nobody can unmask the sum: rows without it are applied
at once, the arbiter names it, and the others go on.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from expunge.errors import RefusedError
from expunge.secagg.arbitration import examine
from expunge.secagg.unmasking import Decision, rows
from server.test_server_disputes import (
    ARBITER,
    RULES,
    after_a_sum,
    all_have_opened,
    circle_of,
    dispute_of,
    judged,
    restarting_all,
    until_disputed,
    until_opened,
    until_voided,
)
from support.masked_round import GATHER, PHASE, Circle
from support.wrong_shares import called_irrecoverable, dealing_wrong, opening_wrong

NO_ARBITER = replace(RULES, arbiter="")


def deletes_and_adds(circle: Circle) -> None:
    """Everybody forgets a sample, and has new ones."""
    for name in circle.names:
        circle.forget(name, [next(iter(circle.held[name]))])
    circle.everybody_adds()


def is_done(circle: Circle, name: str) -> bool:
    status = circle.stores[name].status()
    return not (status.adding or status.deleting)


def require_named(circle: Circle, liar: str) -> None:
    """The arbiter names the liar, who is barred; all others go on; the liar can be forgotten."""
    dispute = dispute_of(circle)
    assert dispute.reason == "irrecoverable"
    examined = examine(dispute, ARBITER)
    assert list(examined.false) == [liar]
    judged(circle, dispute, examined)
    others = [name for name in circle.names if name != liar]
    circle.go(*others, passes=20)
    assert all(is_done(circle, name) for name in others)
    assert not is_done(circle, liar)
    circle.check()
    assert circle.service.status()["aggregation"]["barred"] == [liar]
    assert circle.sync(liar).waiting
    circle.forget_client(liar)
    circle.go(passes=30)
    circle.check_whole()


def require_left_out(circle: Circle, liar: str) -> None:
    """When it has heard how its last round ended, it joins no other."""
    said = [circle.sync(liar).waiting for _ in range(3)]
    assert "dealt wrong shares in an earlier round" in said[-1]


# -- a liar in the sum -----------------------------------------------------------------------------


def test_deletions_of_rows_without_the_liar_complete_at_once() -> None:
    with circle_of(9) as circle:
        deletes_and_adds(circle)
        now = circle.federation.clock.now
        with dealing_wrong("c4", "seed"):
            for _ in range(12):
                circle.go(passes=8)
                if all_have_opened(circle) and len(circle.entries("aggregated")) > 1:
                    break
        first, second = circle.entries("voided")
        assert (first["reason"], second["reason"]) == ("irrecoverable", "irrecoverable")
        assert set(first["agreed"]) == set(circle.names)
        waiting = {member["client"] for member in second["clients"]}
        assert "c4" in waiting
        assert len(waiting) in (4, 5)
        assert {name for name in circle.names if not is_done(circle, name)} == waiting
        circle.check()
        require_named(circle, "c4")
        assert circle.federation.clock.now == now
        assert circle.entries("excluded") == []


def test_too_few_for_two_rows_wait_for_one_opening() -> None:
    with circle_of(4) as circle:
        deletes_and_adds(circle)
        before, now = circle.ledger(), circle.federation.clock.now
        with dealing_wrong("c2", "seed"):
            until_disputed(circle)
        assert circle.ledger() == before
        assert [entry["reason"] for entry in circle.entries("voided")] == ["irrecoverable"]
        require_named(circle, "c2")
        assert circle.federation.clock.now == now


@pytest.mark.parametrize("opened", ["seed", "dealing"])
def test_a_liar_that_opens_false_secrets_is_named(opened: str) -> None:
    with circle_of(4) as circle:
        circle.everybody_adds()
        with dealing_wrong("c2", "seed"), opening_wrong("c2", opened):
            until_disputed(circle)
        require_named(circle, "c2")


def test_a_liar_that_does_not_open_its_part_is_excluded() -> None:
    with circle_of(5) as circle:
        deletes_and_adds(circle)
        others = [name for name in circle.names if name != "c2"]
        with dealing_wrong("c2", "seed"):
            until_opened(circle, circle.names, silent="c2")
        assert examine(dispute_of(circle), ARBITER).missing == ("c2",)
        assert not any(is_done(circle, name) for name in others)
        circle.time_is_up(*others)
        circle.go(*others, passes=20)
        assert [entry["excluded"] for entry in circle.entries("excluded")] == [["c2"]]
        assert all(is_done(circle, name) for name in others)
        circle.check()
        circle.everybody_adds(*others)
        with dealing_wrong("c2", "seed"):  # there is no second wait
            require_left_out(circle, "c2")
            circle.go(passes=20)
        assert all(is_done(circle, name) for name in others)
        assert len(circle.entries("voided")) == 1


def test_a_liar_is_named_whoever_is_restarted_when() -> None:
    with circle_of(4) as circle:
        deletes_and_adds(circle)
        with dealing_wrong("c2", "seed"):
            restarting_all(circle)
        assert len(circle.entries("voided")) == 1
        circle.restart_server()
        require_named(circle, "c2")


def test_a_restarted_server_voids_the_next_sum_too() -> None:
    """A liar that behaves in its row costs one round each time, before and after a restart."""
    with circle_of(8) as circle:
        for times in (1, 2):
            deletes_and_adds(circle)
            with dealing_wrong("c4", "seed"):
                until_voided(circle, times)
            circle.restart_server()
            circle.go(passes=30)
            circle.check_whole()
        assert len(circle.entries("voided")) == 2


# -- a liar that drops out -------------------------------------------------------------------------


def test_wrong_shares_of_a_mask_key_do_nothing_while_it_takes_part() -> None:
    with circle_of(4) as circle:
        deletes_and_adds(circle)
        with dealing_wrong("c2", "mask"):
            circle.go()
        circle.check_whole()
        assert circle.entries("voided") == []


def test_the_sum_of_those_that_a_liar_has_left_is_repeated_at_once() -> None:
    """It is in no sum that could be false: the others need nobody to name it."""
    with circle_of(6) as circle:
        deletes_and_adds(circle)
        now, others = circle.federation.clock.now, circle.names[:5]
        with dealing_wrong("c5", "mask"):
            circle.until("sharing")
            circle.sync("c5")  # it deals its shares, and leaves before the others have
            circle.go(*others, passes=30)
        assert circle.service.rounds.aborted == 1
        assert all(is_done(circle, name) for name in others)
        circle.check()
        assert circle.federation.clock.now == now
        assert circle.entries("voided") == circle.entries("excluded") == []
        circle.everybody_adds(*others)
        require_left_out(circle, "c5")
        circle.go(passes=14)
        assert all(is_done(circle, name) for name in others)


# -- no arbiter, and no change ---------------------------------------------------------------------


def test_without_an_arbiter_wrong_shares_cost_one_wait_and_no_second_one() -> None:
    """Who made the sum irrecoverable is known to the server, and left out when its time is up."""
    with circle_of(6, NO_ARBITER) as circle, dealing_wrong("c5", "seed"):
        circle.forget("c0", [next(iter(circle.held["c0"]))])
        circle.everybody_adds(*circle.names[1:])
        others = circle.names[:5]
        circle.go(passes=14)
        assert len(circle.entries("aggregated")) == 1
        circle.time_is_up(*circle.names)
        circle.go(passes=20)
        assert [entry["excluded"] for entry in circle.entries("excluded")] == [["c5"]]
        for _ in range(2):
            circle.go(*others, passes=14)
            assert not any(circle.stores[name].status().adding for name in others)
            circle.everybody_adds(*others)
            told = circle.go(passes=14)
        assert "dealt wrong shares" in told["c5"].waiting
        assert len(circle.entries("excluded")) == 1
        assert circle.entries("voided") == []


def test_an_audit_that_cannot_be_unmasked_voids_nothing() -> None:
    with circle_of(4) as circle:
        circle.federation.operator.command("audit")
        with dealing_wrong("c2", "seed"):
            for _ in range(8):
                circle.pass_round()
                circle.wait(1.0)
        assert circle.service.rounds.aborted > 0
        assert circle.entries("voided") == circle.entries("audited") == []


def test_who_dealt_wrong_shares_is_named_while_an_audit_waits_for_it() -> None:
    """No join of it is taken, and an audit needs all: somebody must say what to do."""
    with circle_of(4) as circle:
        circle.federation.operator.command("audit")
        said = set[str]()
        with dealing_wrong("c2", "seed"):
            for _ in range(12):
                said |= {done.waiting for done in circle.pass_round().values()}
                circle.wait(PHASE if circle.phase in ("", "joining") else GATHER)
        assert circle.federation.operator.ask("status")["aggregation"]["culprits"] == ["c2"]
        assert any(
            "c2 dealt wrong shares in an earlier round, and takes part" in one for one in said
        )
        assert any("start the server anew, or forget c2" in one for one in said)
        circle.restart_server()
        assert circle.federation.operator.ask("status")["aggregation"]["culprits"] == []
        circle.go()
        assert [entry["result"] for entry in circle.entries("audited")] == ["equal"]


# -- a server that lies ----------------------------------------------------------------------------


def test_a_sum_that_is_called_irrecoverable_names_nobody() -> None:
    """A server that could unmask it leads its clients to the arbiter, who finds nothing."""
    with circle_of(4) as circle:
        deletes_and_adds(circle)
        with called_irrecoverable():
            until_disputed(circle)
        dispute = dispute_of(circle)
        examined = examine(dispute, ARBITER)
        assert (dispute.reason, examined.false, examined.missing) == ("irrecoverable", {}, ())
        with pytest.raises(RefusedError, match="nobody false, but the sum cannot be unmasked"):
            judged(circle, dispute, examined)


def test_a_sum_that_is_called_irrecoverable_shows_the_server_rows_alone() -> None:
    with after_a_sum(9) as (circle, server):
        ((parts, _),), (signed,) = server.sums, server.rounds
        server.voided(parts, reason="irrecoverable", **signed)
        whole = Decision(
            "voided", signed["aggregation"], parts, signers=frozenset(circle.names), size=9
        )
        for row in rows(whole, RULES):
            names = sorted(name for name, _ in row)
            assert not server.sum_of(*names[:-1], passes=6)
            assert server.sum_of(*names)
        assert server.exposed() == []
