"""A server that lies about who dealt shares and who survived cannot open a client's vector.

The same search finds openings at every size where clients trust the server (version 1 of the
messages), and real participants that are patched to trust it are opened by what it finds.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from expunge.ridge.spec import Aggregation
from expunge.secagg import Plan, plan
from expunge.secagg.plan import share_of
from support.lying_server import (
    LyingServer,
    drawn_lies,
    every_list_opens,
    first_opening,
    opens,
    trusting_plan,
)
from support.secagg import RULES

SIZES = (3, 4, 5, 8, 14, 20)


@pytest.mark.parametrize("clients", range(3, 101))
def test_no_lies_open_a_vector(clients: int) -> None:
    assert first_opening(clients, RULES) is None


@pytest.mark.parametrize("clients", range(4, 101, 4))
def test_the_search_finds_openings_where_clients_trust_the_server(clients: int) -> None:
    assert first_opening(clients, RULES, trusting_plan(RULES, clients)) is not None


@pytest.mark.parametrize("rules", [RULES, Aggregation(dropouts=20, colluding=40)])
@pytest.mark.parametrize("clients", [3, 4])
def test_no_list_at_all_opens_a_vector_of_few(clients: int, rules: Aggregation) -> None:
    chosen = plan(rules, clients)
    for colluding in range(min(clients - 2, share_of(rules.colluding, clients)) + 1):
        assert not every_list_opens(clients, chosen, colluding)
    assert every_list_opens(clients, Plan(clients - 1, 1, 0, 1, 0), 0)  # it would find one


@pytest.mark.parametrize("clients", SIZES)
def test_real_participants_are_not_opened_by_any_lies_that_were_found(clients: int) -> None:
    """What opens those that trust the server is played to those that do not."""
    trusting, chosen = trusting_plan(RULES, clients), plan(RULES, clients)
    played = 0
    for lies in drawn_lies(clients, trusting, min(clients - 2, chosen.colluders)):
        if opens(lies, trusting) and played < 3:
            played += 1
            server = LyingServer(lies, RULES)
            assert not server.has_opened()
            assert server.refusals
    assert played or clients == 3


@pytest.mark.parametrize("clients", SIZES[1:])
def test_real_participants_that_trust_the_server_are_opened(
    clients: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the lies are lies, and it is threshold and quorum that protect."""
    monkeypatch.setattr("expunge.secagg.roster.plan", trusting_plan)
    lies = first_opening(clients, RULES, trusting_plan(RULES, clients))
    assert lies is not None
    assert LyingServer(lies, RULES).has_opened()


@pytest.mark.parametrize(
    ("missing", "clients"), [("quorum", 8), ("quorum", 14), ("threshold", 4), ("threshold", 14)]
)
def test_each_of_the_two_is_needed(
    clients: int, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the quorum, or with the old threshold, these are opened."""
    whole, trusting = plan(RULES, clients), trusting_plan(RULES, clients)
    weak = (
        replace(whole, quorum=0) if missing == "quorum" else replace(trusting, quorum=whole.quorum)
    )
    lies = first_opening(clients, RULES, weak)
    assert lies is not None
    monkeypatch.setattr("expunge.secagg.roster.plan", lambda *_: weak)
    assert LyingServer(lies, RULES).has_opened()
