"""How often a sample is put on the grid on its way from a client's store to the server's ledger.

Once when it is added, to refuse it or commit to it; the process that added it sends those integers.
Another process, or another batch, opens the sealed sample and puts it on the grid anew, to check
that commitment. The server takes integers as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from expunge import Grid
from expunge.client import Selection
from expunge.client.samples import SampleBatch
from support.agents import Home, add, of
from support.clients import NOW, features, ids


@pytest.fixture
def spent(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many rows of features were put on the grid since the last call."""
    counted: list[int] = []
    put = Grid.put

    def counting(self: Grid, values: Any, out: Any, **options: Any) -> float:
        if options.get("what", "features") == "features":
            counted.append(len(values))
        return put(self, values, out, **options)

    def spent() -> int:
        total = sum(counted)
        counted.clear()
        return total

    monkeypatch.setattr(Grid, "put", counting)
    return spent


@pytest.mark.parametrize("message", ["rows", "gram"])
def test_a_client_puts_a_sample_on_the_grid_once_and_the_server_never(
    tmp_path: Path, message: str, spent: Callable[[], int]
) -> None:
    home = Home(tmp_path, message=message)
    offer, before, at_server = home.way.request, [], []

    def request(data: bytes) -> Any:
        before.append(spent())
        answer = offer(data)
        at_server.append(spent())
        return answer

    home.way.request = request
    add(home.store)
    assert spent() == 4  # refused or committed to
    home.agent.sync()
    assert (before, at_server, spent()) == ([0], [0], 0)  # sent and taken as they are
    assert home.ledger == of()
    spent()  # by this test
    home.store.forget(Selection(ids=["sample-0"]))
    assert spent() == 0
    home.agent.sync()
    assert (before[1:], at_server[1:], spent()) == ([1], [0], 0)
    home.close()


def test_a_request_offered_again_is_not_made_again(home: Home, spent: Callable[[], int]) -> None:
    add(home.store)
    home.way.lost = ["before", "after"]
    spent()
    home.agent.push()
    assert (len(home.way.offered), spent()) == (3, 0)


def test_what_was_not_added_as_it_is_sent_is_put_on_the_grid_anew(
    home: Home, spent: Callable[[], int]
) -> None:
    add(home.store)
    home.store.forget(Selection(ids=["sample-0"]))
    home.store.add(["more"], features(1), [0], now=NOW)
    spent()
    composition = home.store.outbox.compose()
    assert composition is not None
    first = home.store.outbox.encode(composition)
    assert spent() == 4
    assert (home.store.outbox.encode(composition), spent()) == (first, 4)


def test_an_amendment_between_adding_and_sending_is_heeded(
    home: Home, spent: Callable[[], int]
) -> None:
    """The targets have more columns then: integers of the former spec are of no use."""
    add(home.store)
    home.store.amend(home.store.spec.with_labels("fox"))
    spent()
    composition = home.store.outbox.compose()
    assert composition is not None
    first = home.store.outbox.encode(composition)
    assert spent() == 4
    assert home.store.outbox.encode(composition) == first


def test_an_audit_is_computed_from_the_store(home: Home, spent: Callable[[], int]) -> None:
    add(home.store)
    home.agent.sync()
    expected = of()
    spent()
    assert home.store.statistics() == expected
    assert spent() == 4


def test_integers_in_memory_are_bounded(
    home: Home, spent: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("expunge.client.samples.RECENT_BYTES", 0)
    add(home.store)
    spent()
    home.agent.push()
    assert spent() == 4


def test_a_correction_is_put_on_the_grid_once(home: Home, spent: Callable[[], int]) -> None:
    add(home.store)
    spent()
    assert home.store.correct("sample-1", label="eel")
    assert spent() == 1
    assert not home.store.correct("sample-1", label="eel")
    assert spent() == 1


def test_samples_that_are_pending_are_compared_and_not_added_twice(
    home: Home, monkeypatch: pytest.MonkeyPatch, spent: Callable[[], int]
) -> None:
    add(home.store)
    spent()
    made, make = [], SampleBatch.of
    monkeypatch.setattr(
        SampleBatch, "of", lambda *given, **more: made.append(0) or make(*given, **more)
    )
    samples = ids(4), features(4), np.arange(4) % 3
    assert home.store.add(*samples, now=NOW, ignore_pending=True) == 0
    assert (len(made), spent()) == (1, 4)
    assert home.store.status().adding == 4
    assert home.store.add(["more"], features(1), [0], now=NOW, ignore_pending=True) == 1
    assert (len(made), spent()) == (2, 1)
