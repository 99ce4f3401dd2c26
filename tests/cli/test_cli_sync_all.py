"""Clients synced together, and how a round that goes on is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from expunge.cli._agent import ROUND, round_state, with_progress
from expunge.client import SyncResult
from expunge.client.sync import patience, sync_all
from expunge.crypto import SigningKey
from expunge.wire import payloads
from support.masked_federation import Masked


class Clock:
    """Time that passes only while somebody sleeps."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def told(*waiting: str) -> Callable[[], SyncResult]:
    """A client that says this at its syncs; the last for ever."""

    def says() -> Iterator[SyncResult]:
        for text in waiting:
            yield SyncResult("active", audits=() if text else ("audit",), waiting=text)
        while True:
            yield SyncResult("active", waiting=waiting[-1])

    found = says()
    return lambda: next(found)


def test_clients_that_need_not_wait_sync_once() -> None:
    clock = Clock()
    done = sync_all(
        {"a": told("", "never"), "b": told("", "never")}, patience(clock=clock, sleep=clock.sleep)
    )
    assert [one.audits for one in done.values()] == [("audit",), ("audit",)]
    assert clock.now == 0.0


def test_they_go_on_while_anything_changes_and_keep_what_was_done() -> None:
    clock = Clock()
    done = sync_all(
        {"a": told("joining", "sharing", ""), "b": told("", "sharing", "")},
        patience(clock=clock, sleep=clock.sleep),
    )
    assert {name: (one.waiting, one.audits) for name, one in done.items()} == {
        "a": ("", ("audit",)),
        "b": ("", ("audit", "audit")),
    }


def test_a_round_that_waits_for_clients_elsewhere_is_left() -> None:
    clock = Clock()
    done = sync_all(
        {"a": told("joining"), "b": told("joining")},
        patience(2.0, clock=clock, sleep=clock.sleep),
    )
    assert {one.waiting for one in done.values()} == {"joining"}
    assert 2.0 <= clock.now < 2.5


@pytest.mark.parametrize(
    ("phase", "words"),
    [
        ("joining", "2 of at least 3 clients have joined"),
        ("sharing", "exchanging key shares"),
        ("masking", "sending masked sums"),
        ("agreeing", "agreeing on who is in the sum"),
        ("revealing", "unmasking the sum"),
        ("done", ""),
    ],
)
def test_how_a_round_stands_in_words(phase: str, words: str) -> None:
    content = {
        "actor": "clinic-a",
        "aggregation": "",
        "content": "",
        "federation": "0" * 32,
        "fewest": 3,
        "joined": 2,
        "opening": None,
        "phase": phase,
        "purpose": "change",
        "reason": "",
        "receipt": None,
        "time": "2026-11-15T09:30:00Z",
        "to": "0" * 64,
    }
    assert round_state(payloads.sign("standing", content, SigningKey(bytes(32)))) == words
    assert round_state(b"nonsense") == ""


def test_whoever_watches_sees_the_round_go_on(tmp_path: Path) -> None:
    masked = Masked.found(tmp_path, 3)
    masked.everybody_adds()
    seen: list[str] = []
    federation = masked.federation
    client = federation.client("client-0")
    agent = type(client.agent)(
        client.store,
        with_progress(client.store, federation.carrier, lambda what, *_: seen.append(what)),
    )
    others = [federation.client(f"client-{number}").sync for number in (1, 2)]
    syncs = {"client-0": agent.sync, **{str(number): sync for number, sync in enumerate(others)}}
    sync_all(syncs, patience())
    federation.close()
    phases = [what.removeprefix(f"{ROUND}: ") for what in dict.fromkeys(seen)]
    assert phases == [
        "0 of at least 3 clients have joined",
        "1 of at least 3 clients have joined",
        "exchanging key shares",
        "sending masked sums",
        "agreeing on who is in the sum",
        "unmasking the sum",
    ]
