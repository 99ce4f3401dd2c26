"""Lists that grow for years: asked for in part, at a cost that does not grow with the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from expunge import Spec
from expunge.errors import RefusedError
from expunge.federation import Federation as Embedded
from expunge.wire import payloads
from support.federation import NOW, Clock, Federation, Party

DAY = 86400


@pytest.fixture
def federation(tmp_path: Path):
    with Federation(tmp_path / "server", clock=Clock(NOW)) as federation:
        for name in ("clinic", "lab"):
            federation.enrol(name).send(federation.draw(2))
        yield federation


@pytest.fixture
def officer(federation: Federation) -> Party:
    return federation.officer()


def filed(officer: Party, count: int, **more: Any) -> list[str]:
    return [officer.command("order", subject=f"p{one}", **more)["order"] for one in range(count)]


def ids(entries: list[dict[str, Any]]) -> list[str]:
    return [entry["order"] for entry in entries]


def test_orders_are_listed_in_pages_the_newest_first(
    federation: Federation, officer: Party
) -> None:
    orders = filed(officer, 7)
    found: list[str] = []
    while page := officer.ask("orders", limit=3, before=found[-1] if found else ""):
        assert page["total"] == 7
        if not page["orders"]:
            break
        found += ids(page["orders"])
    assert found == orders[::-1]
    assert ids(officer.ask("orders")) == orders  # as offices of before ask
    assert officer.ask("orders", limit=1)["orders"][0] == officer.ask("show-order", order=orders[6])
    for wrong in ({"limit": 0}, {"limit": 1001}, {"limit": 1, "before": "x"}, {"limit": "all"}):
        with pytest.raises(RefusedError) as refusal:
            officer.ask("orders", **wrong)
        assert refusal.value.code == "malformed"


def test_only_lost_and_overdue_orders_can_be_asked_for(
    federation: Federation, officer: Party
) -> None:
    late, done, open_ = filed(officer, 2, days=1) + filed(officer, 1, days=9)
    for client in federation.clients.values():
        client.answer_order(done)
    federation.clock.now += 2 * DAY  # type: ignore[attr-defined]
    page = officer.ask("orders", limit=10, overdue=True)
    assert (ids(page["orders"]), page["total"]) == ([late], 1)
    assert officer.ask("status")["orders"]["open"] == 1
    assert ids(officer.ask("orders", limit=1)["orders"]) == [open_]


def test_orders_are_found_by_name(federation: Federation, officer: Party) -> None:
    (order,) = filed(officer, 1, reference="T-1")
    filed(officer, 3)
    for name in (order, order[:9], "T-1", order[:9].upper()):
        assert ids(officer.ask("orders", named=name)) == [order]
    assert officer.ask("orders", named="T-") == []
    assert officer.ask("orders", unknown=[order, "0" * 32]) == ["0" * 32]


def test_clients_are_listed_in_pages_by_name(federation: Federation, officer: Party) -> None:
    everybody = [entry["name"] for entry in officer.ask("clients")]
    first = officer.ask("clients", limit=2)
    rest = officer.ask("clients", limit=9, after=first["clients"][-1]["name"])
    assert first["total"] == rest["total"] == 4
    assert [entry["name"] for entry in first["clients"] + rest["clients"]] == everybody


def test_open_orders_come_to_a_client_a_page_at_a_time(
    federation: Federation, officer: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("expunge.server.orders.ORDERS_AT_ONCE", 3)
    orders, lab = filed(officer, 7), federation.clients["lab"]
    assert ids(lab.sync()["orders"]) == orders[:3]
    assert ids(asked(lab, orders[2])) == orders[3:6]
    assert ids(asked(lab, orders[5])) == orders[6:]
    assert asked(lab, orders[6]) == []
    lab.answer_order(orders[1])
    assert ids(lab.sync()["orders"]) == [orders[0], *orders[2:4]]


def asked(client: Party, after: str) -> list[dict[str, Any]]:
    """The orders that wait for a client and come after one."""
    content = {"actor": client.name, "federation": client.federation.id, "after": after}
    content |= {"nonce": "0" * 64, "sequence": client.sequence, "size": 0}
    answer = client.federation.service.sync(payloads.sign("question", content, client.key))
    key = client.federation.server_key.public
    orders: list[dict[str, Any]] = payloads.open_verified("answer", answer, key)["orders"]
    return orders


def test_what_a_sync_reads_does_not_grow_with_orders_that_are_complete(
    federation: Federation, officer: Party
) -> None:
    """By SQLite's own count of what its programs do."""
    lab = federation.clients["lab"]
    connection = federation.service.state.storage.database._connection  # to look, not to set
    steps = [0]

    def one_more() -> int:
        steps[-1] += 1
        return 0

    connection.set_progress_handler(one_more, 10)
    try:
        for count in (1, 30):
            for order in filed(officer, count):
                for client in federation.clients.values():
                    client.answer_order(order)
            steps.append(0)
            lab.sync()
            steps.append(0)
            officer.ask("orders", limit=1)
            steps.append(0)
    finally:
        connection.set_progress_handler(None, 0)
    sync, page, _, later_sync, later_page, _ = steps[1:]
    assert later_sync <= 1.5 * sync + 5
    assert later_page <= 1.5 * page + 5


def test_a_client_goes_on_until_no_order_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("expunge.server.orders.ORDERS_AT_ONCE", 2)
    monkeypatch.setattr(payloads, "ORDERS_AT_ONCE", 2)
    found = Embedded.found(tmp_path / "federation", Spec(dim=2, labels=("cat", "dog"), gamma=1.0))
    with found as federation:
        client = federation.client("north")
        client.add(["a", "b"], [[1.0, 0.5], [0.0, 1.0]], ["cat", "dog"], subjects=["ann", "bob"])
        orders = [federation.order(subject) for subject in ("eve", "bob", "kim", "lee", "ann")]
        synced = client.sync()
        assert [order for order, _ in synced.orders] == orders
        assert sum(found.count for _, found in synced.orders) == 2
        assert client.sync().orders == ()
        assert federation.carrier.status()["orders"]["complete"] == 5
