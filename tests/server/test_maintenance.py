"""Folding happens in time whatever the clock does, and times in the log never go back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from expunge.errors import RefusedError, StoreError
from expunge.evidence import Receipt
from expunge.server import maintenance as module
from expunge.server.ledger import PutInForce, ServerLedger
from expunge.server.state import Settings
from expunge.wire.schema import time_seconds, time_text
from support.federation import NOW, Clock, Federation

YEAR = 365 * 86400


@pytest.fixture
def watch() -> Clock:
    """In place of the monotonic clock."""
    return Clock()


@pytest.fixture
def federation(tmp_path: Path, watch: Clock):
    with Federation(
        tmp_path / "server", clock=Clock(), seconds=watch, settings=Settings(erase_within=60)
    ) as federation:
        federation.enrol("clinic").send(federation.draw(3))
        federation.fold()
        yield federation


def journal(federation: Federation) -> int:
    return int(federation.service.status()["journal"])


def set_clock(federation: Federation, now: float) -> None:
    assert isinstance(federation.clock, Clock)
    federation.clock.now = now


def times(federation: Federation) -> list[str]:
    return [entry["time"] for entry in federation.entries()]


def test_a_fold_is_due_after_half_of_the_time_allowed(federation: Federation, watch: Clock) -> None:
    run_due, client = federation.service.upkeep.run_due, federation.clients["clinic"]
    run_due()
    watch.now += 1000
    client.send((), client.retained[:1])
    run_due()  # the first look
    watch.now += 29
    client.send(federation.draw(1))
    run_due()
    assert journal(federation) == 2
    watch.now += 1
    run_due()
    assert journal(federation) == 0
    client.send(federation.draw(1))
    run_due()
    assert journal(federation) == 1
    federation.check()


def test_what_an_earlier_process_left_is_folded_at_once(
    federation: Federation, watch: Clock
) -> None:
    """How long it has been there is not known: a server that is restarted again and again must fold
    as well.
    """
    federation.clients["clinic"].send(federation.draw(1))
    federation.reopen()
    federation.service.upkeep.run_due()
    assert journal(federation) == 0
    federation.check()


@pytest.mark.parametrize("jump", [-10 * YEAR, -3600, 3600, 10 * YEAR])
def test_a_clock_that_jumps(federation: Federation, watch: Clock, jump: int) -> None:
    client, run_due = federation.clients["clinic"], federation.service.upkeep.run_due
    set_clock(federation, NOW + 100)
    first = client.send(federation.draw(1)).logged.entry["time"]
    set_clock(federation, NOW + 100 + jump)
    second = client.send(federation.draw(1)).logged.entry
    set_clock(federation, NOW + 200)
    third = client.send((), client.retained[:1]).logged.entry["time"]
    assert first == time_text(NOW + 100)
    assert second["time"] == time_text(NOW + 100 + max(0, jump))
    assert second["erased_by"] == time_text(NOW + 160 + max(0, jump))
    assert third == time_text(NOW + 200) if jump < 0 else third == second["time"]
    run_due()
    watch.now += 30
    run_due()
    assert journal(federation) == 0
    federation.operator.command("order", subject="somebody")
    federation.operator.command("audit")
    assert times(federation) == sorted(times(federation))
    heard = client.sync()
    assert heard["time"] >= max(times(federation))
    federation.reopen()
    federation.check()
    client.send(federation.draw(1))
    assert times(federation) == sorted(times(federation))


@pytest.mark.parametrize("now", [1e12, 1e300, float("inf"), float("nan")])
def test_a_clock_that_has_gone_mad_changes_nothing(federation: Federation, now: float) -> None:
    client = federation.clients["clinic"]
    before, sample = federation.dump(), federation.draw(1)
    data = client.request(sample)
    set_clock(federation, now)
    with pytest.raises(RefusedError) as refusal:
        federation.service.request(data)
    assert refusal.value.code == "storage"
    with pytest.raises(RefusedError):
        federation.operator.command("audit")
    set_clock(federation, NOW + 1)
    assert federation.dump() == before
    client.settled(federation.service.request(data), sample)
    federation.check()


def test_a_fold_that_failed_is_due_until_it_is_done(
    federation: Federation, watch: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when all that is missing is the destruction of the keys, and the journal is empty
    already.
    """
    client, state = federation.clients["clinic"], federation.service.state
    client.send((), client.retained[:1])
    live, logged = state.vault.live(), len(federation.entries("erased"))
    run_due, shred = federation.service.upkeep.run_due, state.vault.shred

    def failing(_: object) -> None:
        raise StoreError("made to fail")

    run_due()
    watch.now += 30
    monkeypatch.setattr(state.vault, "shred", failing)
    with pytest.raises(StoreError, match="made to fail"):
        run_due()
    assert journal(federation) == 0
    assert state.vault.live() > live
    assert len(federation.entries("erased")) == logged
    monkeypatch.setattr(state.vault, "shred", shred)
    run_due()
    assert len(federation.entries("erased")) == logged + 1
    assert len(state.vault.live()) == len(live)
    watch.now += 1000
    before = federation.dump()
    run_due()
    assert federation.dump() == before


def test_a_very_long_journal_is_folded_early(
    federation: Federation, watch: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONGEST_JOURNAL", 3)
    client, run_due = federation.clients["clinic"], federation.service.upkeep.run_due
    run_due()
    for expected in (1, 2, 3, 0):
        client.send(federation.draw(1))
        run_due()
        assert journal(federation) == expected
    federation.check()


def test_the_server_looks_after_itself(tmp_path: Path) -> None:
    with Federation(
        tmp_path / "server", settings=Settings(erase_within=0), upkeep=True
    ) as federation:
        client = federation.enrol("clinic")
        client.send(federation.draw(3))
        audit = federation.operator.command("audit")["audit"]
        client.answer_audits()
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            time.sleep(0.02)
            if (
                not journal(federation)
                and federation.operator.ask("show-audit", audit=audit)["result"] != "under way"
            ):
                break
        assert federation.operator.ask("show-audit", audit=audit)["result"] == "equal"
        assert journal(federation) == 0
        federation.check()


def test_folds_and_requests_at_the_same_time(tmp_path: Path) -> None:
    with Federation(tmp_path / "server") as federation:
        clients = [federation.enrol(name) for name in ("clinic", "lab")]
        done, failures = threading.Event(), []

        def fold_for_ever() -> None:
            try:
                while not done.is_set():
                    federation.fold()
            except BaseException as problem:
                failures.append(problem)
                raise

        folding = threading.Thread(target=fold_for_ever)
        folding.start()
        try:
            for number in range(25):
                client = clients[number % 2]
                client.send(
                    federation.draw(2), client.retained[:1], "gram" if number % 3 else "rows"
                )
        finally:
            done.set()
            folding.join()
        assert not failures
        assert len(federation.entries("erased")) > 1
        federation.check()
        federation.reopen()
        federation.check()


def test_a_fold_of_nothing_changes_nothing(federation: Federation) -> None:
    before = federation.dump()
    federation.fold()
    assert federation.dump() == before
    federation.service.close(fold=True)
    federation.service = federation.opened()
    assert federation.dump() == before


def test_closing_with_a_fold_erases_first(federation: Federation) -> None:
    client = federation.clients["clinic"]
    client.send((), client.retained[:1])
    federation.service.close(fold=True)
    federation.service = federation.opened()
    assert journal(federation) == 0
    federation.check()


class Slow:
    """Folds that take so many seconds for each client, by the clock for durations."""

    def __init__(self, watch: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        self.each = 0.0
        true = ServerLedger.fold_clients

        def fold_clients(
            ledger: ServerLedger, clients: Sequence[str], until: int, is_short: Callable[[], bool]
        ) -> Iterator[PutInForce]:
            watch.now += self.each * len(clients)
            yield from true(ledger, clients, until, is_short)

        monkeypatch.setattr(ServerLedger, "fold_clients", fold_clients)


def span(receipt: Receipt) -> int:
    """Within how many seconds a request is to be erased, as its receipt promises."""
    entry = receipt.logged.entry
    return time_seconds(entry["erased_by"]) - time_seconds(entry["time"])


def test_a_receipt_promises_no_more_than_recent_folds_can_keep(
    federation: Federation, watch: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, client, other = (
        Slow(watch, monkeypatch),
        federation.clients["clinic"],
        federation.enrol("lab"),
    )
    assert span(client.send(federation.draw(1))) == 60
    slow.each = 40.0
    federation.fold()
    slowly = span(client.send(federation.draw(1)))
    assert slowly >= 2 * 40
    assert span(other.send(federation.draw(1))) >= 2 * 80  # a fold of two takes longer
    slow.each = 0.0
    for _ in range(8):
        federation.fold()
        last = span(client.send(federation.draw(1)))
    assert last == 60
    federation.check()


def test_a_fold_begins_early_enough_for_what_was_promised(
    federation: Federation, watch: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has been promised to one client is kept, though more and more follow it."""
    slow, run_due = Slow(watch, monkeypatch), federation.service.upkeep.run_due
    crowd = [federation.enrol(f"client-{number}") for number in range(6)]
    slow.each = 6.0
    crowd[0].send(federation.draw(1))
    federation.fold()
    assert span(crowd[0].send(federation.draw(1))) == 60
    run_due()
    for client in crowd[1:]:
        client.send(federation.draw(1))
    watch.now += 10  # of 60 seconds; the fold will take 36
    run_due()
    assert journal(federation) == 0
    assert federation.service.state.pace.late.requests == 0
    federation.check()


def test_a_promise_that_was_missed_is_told_and_counted(
    federation: Federation, watch: Clock
) -> None:
    client = federation.clients["clinic"]
    client.send(federation.draw(1))
    client.send((), client.retained[:1])
    client.send()  # has nothing to be erased
    watch.now += 100
    set_clock(federation, NOW + 100)
    told: list[str] = []
    federation.service.close()  # the server is down meanwhile: the log knows what was promised
    federation.service = federation.opened(report=lambda text, _: told.append(text))
    federation.service.upkeep.run_due()
    late = federation.service.state.pace.late
    assert (late.requests, late.seconds) == (2, 40)
    assert ["2 requests were erased later" in text for text in told] == [True]


def test_a_command_does_not_wait_for_a_fold(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do requests behind it; and what the fold has made is not taken for what is left over."""
    client, officer = federation.clients["clinic"], federation.officer()
    order = officer.command("order", subject="somebody")["order"]
    client.answer_order(order)
    client.send(federation.draw(1))
    written, go_on = threading.Event(), threading.Event()
    true = ServerLedger.fold_clients

    def fold_clients(
        ledger: ServerLedger, clients: Sequence[str], until: int, is_short: Callable[[], bool]
    ) -> Iterator[PutInForce]:
        for put_in_force in true(ledger, clients, until, is_short):
            written.set()
            assert go_on.wait(60)
            yield put_in_force

    monkeypatch.setattr(ServerLedger, "fold_clients", fold_clients)
    fold = threading.Thread(target=federation.service.upkeep.fold)
    fold.start()
    try:
        assert written.wait(60)
        officer.command("order", subject="somebody else")
        officer.command("close-order", order=order)  # which cleans up
        client.send(federation.draw(1))
        assert fold.is_alive()
    finally:
        go_on.set()
        fold.join()
    assert len(federation.entries("erased")) == 2
    federation.check()
    federation.reopen()
    federation.check()


@pytest.mark.parametrize("orders", [1, 3])
def test_a_fold_destroys_no_key_that_is_another_s_by_now(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, orders: int
) -> None:
    """What an order that is closed meanwhile cleans up includes what the fold has replaced; those
    slots must not be given away before the fold is over, which empties them.
    """
    client, officer = federation.clients["clinic"], federation.officer()
    closed = officer.command("order", subject="somebody")["order"]
    client.answer_order(closed)
    client.send(federation.draw(1))
    filed: list[str] = []
    true = ServerLedger.fold_clients

    def fold_clients(
        ledger: ServerLedger, clients: Sequence[str], until: int, is_short: Callable[[], bool]
    ) -> Iterator[PutInForce]:
        officer.command("close-order", order=closed)
        filed.extend(officer.command("order", subject=f"s{n}")["order"] for n in range(orders))
        yield from true(ledger, clients, until, is_short)

    monkeypatch.setattr(ServerLedger, "fold_clients", fold_clients)
    federation.service.upkeep.fold()
    federation.check()
    federation.reopen()
    federation.check()
    waiting = {order["subject"] for order in client.sync()["orders"]}
    assert waiting == {f"s{number}" for number in range(orders)}
    state = federation.service.state
    assert state.vault.live() == state.storage.files.slots()


def test_shares_are_folded_together(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty clients cost as many syncs of the vault as one."""
    syncs: list[int] = []
    true = federation.service.state.vault.new
    monkeypatch.setattr(
        federation.service.state.vault, "new", lambda count=1: syncs.append(count) or true(count)
    )
    crowd = [federation.enrol(f"client-{number}") for number in range(20)]
    for clients in (crowd[:1], crowd):
        syncs.clear()
        for client in clients:
            client.send(federation.draw(1))
        federation.service.upkeep.fold()
        assert syncs == [1, 1, len(clients)]  # a generation, the ledger, the shares
    federation.check()
