"""What is announced: everything that a sync would say first, for carriers whose answers come
later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from expunge.client import Agent
from expunge.client.outbox import Composition
from expunge.crypto import Envelope, canonical
from expunge.errors import CarrierError
from expunge.wire import request
from support.agents import Home, add, of


class Later:
    """A carrier that takes note of what is said, and answers nothing."""

    def __init__(self) -> None:
        self.said: list[tuple[str, bytes]] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def note(*arguments: Any) -> Any:
            self.said.append((name, arguments[0]))
            raise CarrierError("the answer comes later")

        return note


def announce(home: Home, **options: Any) -> list[tuple[str, bytes]]:
    later = Later()
    Agent(home.store, later, attempts=1, **options).announce()
    return later.said


def composed(home: Home) -> Composition:
    found = home.store.outbox.composed()
    assert found is not None
    return found


def test_the_request_goes_first_and_the_same_bytes_each_time(home: Home) -> None:
    add(home.store)
    first, second = announce(home), announce(home)
    assert [name for name, _ in first] == ["request", "sync"]
    assert first[0] == second[0]
    assert first[0][1] == home.store.outbox.encode(composed(home))
    assert request.read(first[0][1]).header.added == 4
    assert composed(home).doubtful


def test_the_question_has_the_nonce_that_is_given(home: Home) -> None:
    ((name, data),) = announce(home, nonce=lambda: "ab" * 32)
    assert name == "sync"
    assert canonical.decode(Envelope.from_bytes(data, "question").payload)["nonce"] == "ab" * 32
    ((_, one),), ((_, other),) = announce(home), announce(home)
    assert one != other


def test_what_was_announced_is_finished_by_a_sync(home: Home) -> None:
    """Whether it has arrived or not."""
    add(home.store)
    (_, data), _ = announce(home)
    home.federation.service.request(data)
    assert [receipt.sequence for receipt in home.agent.sync().receipts] == [1]
    add(home.store, prefix="more", seed=1)
    announce(home)
    assert [receipt.sequence for receipt in home.agent.sync().receipts] == [2]
    assert home.ledger == of(4) + of(4, seed=1)


def test_an_old_copy_asks_before_it_offers_anything(home: Home) -> None:
    add(home.store)
    home.store.remember({"rejoin": "1"})
    assert [name for name, _ in announce(home)] == ["sync"]


def test_what_cannot_be_offered_does_not_keep_it_from_asking(home: Home) -> None:
    add(home.store)
    home.store.remember({"message": "factor"})  # which the federation does not allow
    assert [name for name, _ in announce(home)] == ["sync"]
