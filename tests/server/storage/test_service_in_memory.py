"""The whole service on a store that is not SQLite: it needs nothing but the interface."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from expunge.errors import RefusedError
from expunge.wire.request import OrderAnswer
from support.federation import Federation, scratch
from support.masked_round import drawn
from support.memory_storage import MemoryDisk


@pytest.fixture
def federation() -> Iterator[Federation]:
    place = scratch()
    with Federation(place / "server", storage=MemoryDisk()) as federation:
        yield federation
    shutil.rmtree(place)


def test_clients_add_delete_and_leave(federation: Federation) -> None:
    clinic, ward = federation.enrol("clinic"), federation.enrol("ward")
    clinic.send(federation.draw(5))
    ward.send(federation.draw(4), kind="gram")
    federation.check_settled()
    clinic.send(federation.draw(1), clinic.retained[:2])
    ward.send([], ward.retained[:1], "gram")
    federation.check_settled()
    ward.send([], list(ward.retained), leave=True)
    federation.check_settled()
    with pytest.raises(RefusedError) as refusal:
        ward.send(federation.draw(1))
    assert refusal.value.code == "gone"
    federation.check_settled()


def test_the_same_request_again_gets_the_same_answer(federation: Federation) -> None:
    client, samples = federation.enrol("clinic"), federation.draw(2)
    data = client.request(samples)
    answer = federation.service.request(data)
    federation.reopen()
    assert federation.service.request(data) == answer
    client.settled(answer, samples)
    federation.check_settled()


def test_orders_and_audits(federation: Federation) -> None:
    client, operator = federation.enrol("clinic"), federation.operator
    client.send(federation.draw(5))
    order = operator.command("order", subject="somebody")["order"]
    (waiting,) = client.sync()["orders"]
    assert waiting["order"] == order
    client.send([], client.retained[:2], orders=(OrderAnswer(order, 2),))
    assert operator.ask("show-order", order=order)["state"] == "complete"
    audit = operator.command("audit")["audit"]
    client.send([], [], audits=(client.audit_answer(client.sync()["audits"][0]),))
    federation.finish_audits()
    assert operator.ask("show-audit", audit=audit)["result"] == "equal"
    operator.command("close-order", order=order)
    assert [one["state"] for one in operator.ask("orders")] == ["closed"]
    federation.check_settled()


def test_the_operator_amends_rotates_and_forgets(federation: Federation) -> None:
    clinic, ward = federation.enrol("clinic"), federation.enrol("ward")
    clinic.send(federation.draw(5))
    ward.send(federation.draw(3))
    federation.operator.command("amend", gamma=(2.0).hex())
    federation.spec = federation.spec.with_gamma(2.0)
    federation.operator.command("rotate-key")
    federation.check_settled()
    federation.operator.command("forget-client", client="ward")
    ward.retained = []
    federation.check_settled()
    assert [len(federation.entries(kind)) for kind in ("amended", "forgotten")] == [1, 1]


def test_rounds_of_secure_aggregation() -> None:
    with drawn(storage=MemoryDisk()) as circle:
        circle.everybody_adds()
        circle.go()
        circle.check_whole()
        circle.federation.operator.command("audit")
        circle.go()
        (audit,) = circle.federation.operator.ask("audits")
        assert audit["result"] == "equal"
        circle.everybody_adds("c0", "c1", "c2")
        circle.go()
        circle.check_whole()
