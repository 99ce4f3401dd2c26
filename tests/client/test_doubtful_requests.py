"""Requests that may have taken effect without an answer: they are offered again until that is
settled, and never taken back.
"""

from __future__ import annotations

import numpy as np
import pytest

from expunge import Statistics
from expunge.client import ClientStore, Selection
from expunge.errors import CarrierError, RefusedError
from support.agents import Home, add, of
from support.clients import NOW, features
from support.federation import SPEC

TURNED_AWAY = {
    "too-many": RefusedError("too-many", "come back later", retry_after=1),
    "storage": RefusedError("storage", "the server is stopping: offer the request again later"),
    "malformed": RefusedError("malformed", "the body did not arrive in time", late=True),
    "too-large": RefusedError(
        "too-large", "a body of 70000 bytes is beyond the 60000 allowed", largest=60000
    ),
    "not-known-here": RefusedError("not-known-here", "a code of a later version"),
}


def in_doubt(home: Home, *refused: str, lost: str = "after") -> None:
    """Offer what is pending: the answer to the first attempt is lost, later attempts are
    refused.
    """
    home.way.lost = [lost]
    home.way.refuse = [None, *(TURNED_AWAY[code] for code in refused)]


@pytest.mark.parametrize("code", TURNED_AWAY)
@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("lost", ["before", "after"])
def test_it_is_kept_when_a_repetition_is_turned_away(
    home: Home, code: str, crash: bool, lost: str
) -> None:
    add(home.store)
    in_doubt(home, *[code] * 3, lost=lost)
    with pytest.raises(RefusedError) as refused:
        home.agent.push()
    assert (refused.value.code, home.store.status().composed) == (code, 1)
    if crash:
        home.store.close()
        home.store = ClientStore.open(home.store.path)
        home.agent = home.agent_of(home.store)
        home.way.refuse = [TURNED_AWAY[code]] * 4
        with pytest.raises(RefusedError):
            home.agent.push()
    home.way.refuse.clear()
    (receipt,) = home.agent.sync().receipts
    assert len(set(home.way.offered)) == 1
    assert (receipt.sequence, home.store.status().live, home.ledger) == (1, 4, of())


def test_a_process_that_is_killed_while_it_offers_leaves_a_doubt(home: Home) -> None:
    class Killed(BaseException):
        pass

    def die(_: object) -> None:
        raise Killed

    add(home.store)
    home.way.change["request"] = die
    with pytest.raises(Killed):
        home.agent.push()
    home.way.change.clear()
    home.store.close()
    home.store = ClientStore.open(home.store.path)
    home.way.refuse = [TURNED_AWAY["malformed"]]
    with pytest.raises(RefusedError):
        home.agent_of(home.store).push()
    home.agent_of(home.store).sync()
    assert (home.store.status().live, home.ledger) == (4, of())


def test_a_sample_that_is_forgotten_meanwhile_is_forgotten_at_the_server_too(home: Home) -> None:
    add(home.store)
    home.agent.sync()
    home.store.add(["alice-1"], features(1, 5), np.array([1]), subjects=["alice"], now=NOW)
    home.store.outbox.compose()
    home.store.forget(Selection(subject="alice"))
    in_doubt(home, *["too-many"] * 3)
    with pytest.raises(RefusedError):
        home.agent.push()
    assert (home.ledger.count, home.store.status().deleting) == (5, 1)
    home.agent.sync()
    assert (home.ledger, home.store.status().deleting) == (of(), 0)


@pytest.mark.parametrize("code", ["malformed", "too-large", "not-known-here"])
def test_a_request_whose_every_attempt_was_refused_is_pending_again(home: Home, code: str) -> None:
    add(home.store, 1)
    home.way.refuse = [TURNED_AWAY["too-many"], TURNED_AWAY[code]]
    with pytest.raises(RefusedError) as refused:
        home.agent.push()
    assert refused.value.code == code
    assert (home.store.status().composed, home.store.status().adding) == (None, 1)


@pytest.mark.parametrize("code", ["storage", "too-many"])
def test_patience_that_ends_takes_nothing_back(home: Home, code: str) -> None:
    add(home.store)
    home.way.refuse = [TURNED_AWAY[code]] * 4
    with pytest.raises(RefusedError):
        home.agent.push()
    assert home.store.status().composed == 1
    home.agent.push()
    assert len(set(home.way.offered)) == 1


def test_what_was_judged_has_not_taken_effect(home: Home) -> None:
    add(home.store)
    home.way.lost = ["before"]
    home.way.refuse = [None, RefusedError("impossible", "no")]
    with pytest.raises(RefusedError):
        home.agent.push()
    assert (home.store.status().composed, home.store.status().adding) == (None, 4)


@pytest.mark.parametrize("lost", ["before", "after"])
@pytest.mark.parametrize("change", ["labels", "messages"])
def test_an_amendment_meanwhile_is_told_apart_by_asking(home: Home, lost: str, change: str) -> None:
    """Whether the request arrived before the spec was amended, or can never take effect now."""
    add(home.store)
    home.way.lost = [lost, "before", "before", "before"]
    with pytest.raises(CarrierError):
        home.agent.push()
    amended = (
        {"labels": ["cat", "dog", "eel", "fox"]} if change == "labels" else {"messages": ["gram"]}
    )
    home.federation.operator.command("amend", **amended)
    home.agent.push()
    assert (home.store.sequence, home.store.status().live) == (1, 4)
    home.agent.sync()
    assert home.ledger == of(spec=home.store.spec) == home.store.statistics()


def test_a_refusal_by_an_outdated_look_is_not_believed_if_the_request_was_applied(
    home: Home,
) -> None:
    """The server looked at the last number, applied the request, was amended, and then looked at
    the spec.
    """
    add(home.store)
    in_doubt(home)
    home.way.refuse = [None, RefusedError("wrong-spec", "the labels have been amended since")]
    (receipt,) = home.agent.push()
    assert (receipt.sequence, home.store.status().live, home.ledger) == (1, 4, of())
    assert len(set(home.way.offered)) == 1


def test_an_audit_answered_in_doubt_is_settled_by_the_next_sync(home: Home) -> None:
    add(home.store)
    home.agent.sync()
    audit = home.federation.operator.command("audit")["audit"]
    home.way.lost = ["", "after"]
    home.way.refuse = [None, RefusedError("wrong-spec", "the labels have been amended since")]
    assert home.agent.sync().audits == ()
    assert home.agent.sync().status == "active"
    assert home.store.answered(audit)
    assert home.ledger == Statistics.of(SPEC, features(4), np.arange(4) % 3)
