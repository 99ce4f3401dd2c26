"""A federation in one process whose rounds are on a schedule: it lets no time pass."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from expunge import Aggregation, Spec
from expunge.evidence import verify
from expunge.federation import Federation
from expunge.federation.layout import Layout
from expunge.server.service import Service
from expunge.wire.schema import time_seconds
from support.masked_federation import SPEC, Masked, closed_schedule


def closed_now() -> Spec:
    """A spec whose windows are closed now."""
    rules = Aggregation(fewest=3, **asdict(closed_schedule()))
    return replace(SPEC, aggregation=rules)


@pytest.fixture
def masked(tmp_path: Path) -> Masked:
    return Masked.found(tmp_path, 4, spec=closed_now())


def test_the_next_window_begins_when_it_is_needed_and_the_log_has_real_times(
    masked: Masked,
) -> None:
    before = time.time()
    masked.everybody_adds()
    done = masked.federation.sync()
    assert [len(one.receipts) for one in done.values()] == [1] * 4
    masked.check()
    for one in done.values():
        stamped = time_seconds(one.receipts[0].logged.entry["time"])
        assert before - 1 <= stamped <= time.time()
    masked.federation.close()


def test_each_sync_with_changes_has_a_window_of_its_own(masked: Masked) -> None:
    for _ in range(3):
        ids = masked.add("client-1", 2)
        done = masked.federation.sync()
        assert not any(one.waiting for one in done.values())
        masked.check()
        masked.forget("client-1", ids[:1])
    masked.federation.sync()
    masked.check()
    masked.federation.close()


def test_without_changes_nothing_happens_between_windows(masked: Masked) -> None:
    masked.everybody_adds()
    masked.federation.sync()
    rounds = masked.federation.carrier.state.record.round
    masked.federation.close()
    federation = Federation.open(masked.federation.layout.path)
    for number in range(4):
        federation.client(f"client-{number}")
    done = federation.sync()
    assert not any(one.waiting for one in done.values())
    assert federation.carrier.state.record.round == rounds
    federation.close()


def test_orders_and_audits_work(masked: Masked) -> None:
    (sample,) = masked.add("client-2", 1, "ann")
    masked.everybody_adds()
    masked.federation.sync()
    order = masked.federation.order("ann")
    masked.federation.sync()
    del masked.held["client-2"][sample]
    masked.check()
    found = verify(masked.federation.bundle(order), masked.federation.office.server)
    assert ("State", "complete") in found.facts
    assert masked.federation.audit()["result"] == "equal"
    masked.federation.close()


def test_a_push_waits_for_the_sync_by_which_all_do_the_same(masked: Masked) -> None:
    client = masked.federation.client("client-0")
    assert client.add(["x"], [[1.0, 2.0, 3.0, 4.0]], ["yes"]) == []
    assert client.store.status().adding == 1
    done = masked.federation.sync()
    assert len(done["client-0"].receipts) == 1
    masked.federation.close()


def test_a_round_that_lacks_clients_elsewhere_says_so(masked: Masked) -> None:
    masked.everybody_adds()
    masked.federation.close()
    federation = Federation.open(masked.federation.layout.path)
    for number in range(2):
        federation.client(f"client-{number}")
    done = federation.sync()
    assert all("2 of the 3 clients" in one.waiting for one in done.values())
    federation.client("client-2")
    done = federation.sync()  # three of four are enough
    assert [len(one.receipts) for one in done.values()] == [1] * 3
    federation.close()


def test_with_a_server_that_others_use_changes_wait_for_the_window(masked: Masked) -> None:
    masked.everybody_adds()
    masked.federation.close()
    layout = Layout.at(masked.federation.layout.path)
    service = Service.open(layout.server)
    try:
        with Federation(layout, service=service) as federation:
            for number in range(4):
                federation.client(f"client-{number}")
            done = federation.sync()
        assert all("the next round begins on" in one.waiting for one in done.values())
        assert service.status()["samples"] == 0
    finally:
        service.close()


def test_a_window_that_is_open_is_used(tmp_path: Path) -> None:
    rules = Aggregation(fewest=3, every=3600, window=3600)
    masked = Masked.found(tmp_path, 3, spec=replace(SPEC, aggregation=rules))
    masked.everybody_adds()
    masked.federation.sync()
    masked.check()
    masked.add("client-0")
    masked.federation.sync()
    masked.check()
    masked.federation.close()
    federation = Federation.open(masked.federation.layout.path)  # which remembers no window
    for number in range(3):
        federation.client(f"client-{number}")
    federation.client("client-1").store.add(["new"], [[1.0, 2.0, 3.0, 4.0]], ["no"], now=0)
    assert len(federation.sync()["client-1"].receipts) == 1
    federation.close()
