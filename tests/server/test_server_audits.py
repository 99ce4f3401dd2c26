"""Audits: the sum of what clients recompute from their own stores must be the ledger, and whoever
differs is named.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from expunge.errors import RefusedError, ShreddedError
from expunge.evidence import published_head
from expunge.evidence.digests import salted
from expunge.wire.messages import GramPart, Message
from support.federation import Client, Federation
from support.samples import SPEC, Sample, statistics_of


@pytest.fixture
def federation(two_kinds: Federation, tmp_path: Path) -> Iterator[Federation]:
    with two_kinds.twin(tmp_path / "server") as federation:
        yield federation


def start(federation: Federation) -> str:
    return str(federation.operator.command("audit")["audit"])


def shown(federation: Federation, audit: str) -> dict[str, Any]:
    return federation.operator.ask("show-audit", audit=audit)


def finish(federation: Federation, audit: str) -> dict[str, Any]:
    federation.service.upkeep.run_due()
    return shown(federation, audit)


def test_an_audit_of_honest_clients_finds_both_sums_equal(federation: Federation) -> None:
    audit = start(federation)
    clinic, lab = federation.clients.values()
    assert shown(federation, audit)["waiting"] == ["clinic", "lab"]
    clinic.answer_audits()
    assert clinic.sync()["audits"] == []
    assert finish(federation, audit)["result"] == "under way"
    lab.answer_audits()
    told = finish(federation, audit)
    assert (told["result"], told["equal"], told["different"], told["waiting"]) == (
        "equal",
        ["clinic", "lab"],
        [],
        [],
    )
    assert told["count"] == 9
    (entry,) = federation.entries("audited")
    assert entry["ledger"] == entry["recomputed"]
    assert (entry["result"], entry["count"], entry["clients"]) == ("equal", 9, ["clinic", "lab"])
    _, certificate = published_head.read(federation.service.head() or b"", federation.chain())
    assert certificate.audit == {
        "audit": audit,
        "index": told["index"],
        "result": "equal",
        "time": told["finished"],
    }
    federation.check()


def test_the_salt_of_an_audit_is_erased_when_it_ends(federation: Federation) -> None:
    """Not when something is folded next, which may be never."""
    state = federation.service.state
    federation.service.upkeep.fold()
    audit = start(federation)
    (slot,) = {record.slot for record in state.storage.audits.running()}
    assert slot is not None
    for client in federation.clients.values():
        client.answer_audits()
    assert finish(federation, audit)["result"] == "equal"
    with pytest.raises(ShreddedError):
        state.vault.seal(slot, b"", b"")


def test_clients_go_on_while_an_audit_runs(federation: Federation) -> None:
    audit = start(federation)
    clinic, lab = federation.clients.values()
    clinic.send(federation.draw(1), clinic.retained[:2])
    clinic.answer_audits()
    clinic.send(federation.draw(2), kind="gram")  # after its answer
    federation.fold()
    lab.send((), lab.retained[:1])
    lab.answer_audits()
    federation.reopen()
    assert finish(federation, audit)["result"] == "equal"
    federation.check()


def test_a_client_that_holds_something_else_is_found(federation: Federation) -> None:
    audit = start(federation)
    clinic, lab = federation.clients.values()
    clinic.answer_audits(clinic.retained[1:])
    lab.answer_audits()
    told = finish(federation, audit)
    assert (told["result"], told["equal"], told["different"]) == ("different", ["lab"], ["clinic"])
    _, certificate = published_head.read(federation.service.head() or b"", federation.chain())
    assert certificate.audit is not None
    assert certificate.audit["result"] == "different"
    again = start(federation)
    for client in (clinic, lab):
        client.answer_audits()
    assert finish(federation, again)["result"] == "equal"


def test_a_count_that_is_wrong_is_a_difference(federation: Federation) -> None:
    audit = start(federation)
    clinic, lab = federation.clients.values()
    answer = clinic.audit_answer(clinic.sync()["audits"][0])
    clinic.send(audits=(replace(answer, count=answer.count + 1),))
    lab.answer_audits()
    assert finish(federation, audit)["different"] == ["clinic"]


def test_a_client_whose_gram_was_not_of_its_samples_is_found(federation: Federation) -> None:
    liar = federation.enrol("liar")
    mine, told = federation.draw(3), federation.draw(3)
    told = [Sample(one.features, other.target) for one, other in zip(told, mine, strict=True)]
    data = liar.request(
        mine,
        kind="gram",
        message=Message("gram", GramPart(statistics_of(SPEC, told))).to_bytes(SPEC),
    )
    liar.settled(federation.service.request(data), mine)
    audit = start(federation)
    for client in federation.clients.values():
        client.answer_audits()
    assert finish(federation, audit)["different"] == ["liar"]


def _leaves(federation: Federation, lab: Client) -> None:
    lab.send((), list(lab.retained), leave=True)


def _is_forgotten(federation: Federation, lab: Client) -> None:
    federation.operator.command("forget-client", client="lab")
    lab.retained = []


@pytest.mark.parametrize("goes", [_leaves, _is_forgotten])
@pytest.mark.parametrize("answered", [False, True])
def test_a_client_that_goes_during_an_audit_does_not_hold_it_up(
    federation: Federation, goes: Any, answered: bool
) -> None:
    audit = start(federation)
    clinic, lab = federation.clients.values()
    if answered:
        lab.answer_audits()
    goes(federation, lab)
    clinic.answer_audits()
    told = finish(federation, audit)
    assert told["result"] == "equal"
    assert told["equal"] == (["clinic", "lab"] if answered else ["clinic"])
    federation.check()


def test_a_ledger_that_is_not_the_sum_of_its_shares_is_found(federation: Federation) -> None:
    """Which only damage or a fault of the server could bring about."""
    audit = start(federation)
    for client in federation.clients.values():
        client.answer_audits()
    sample = federation.draw(1)[0]
    federation.service.state.ledger.solver.add(sample.features[None], [sample.target])
    told = finish(federation, audit)
    assert (told["result"], told["different"]) == ("different", [])
    (entry,) = federation.entries("audited")
    assert entry["ledger"] != entry["recomputed"]


def test_an_audit_of_nobody_is_equal(tmp_path: Path) -> None:
    with Federation(tmp_path / "server") as federation:
        assert finish(federation, start(federation))["result"] == "equal"


def test_answers_that_nobody_waits_for_are_refused(federation: Federation) -> None:
    start(federation)
    clinic = federation.clients["clinic"]
    answer = clinic.audit_answer(clinic.sync()["audits"][0])
    clinic.send(audits=(answer,))
    before = federation.dump()
    for data in (
        clinic.request(audits=(answer,)),
        clinic.request(audits=(replace(answer, audit="ab" * 16),)),
    ):
        with pytest.raises(RefusedError) as refusal:
            federation.service.request(data)
        assert refusal.value.code == "unknown-audit"
    assert federation.dump() == before


def test_an_answer_given_twice_in_one_request_is_refused(federation: Federation) -> None:
    """Otherwise a lie could be covered by a truth."""
    start(federation)
    clinic = federation.clients["clinic"]
    answer = clinic.audit_answer(clinic.sync()["audits"][0])
    with pytest.raises(RefusedError) as refusal:
        federation.service.request(
            clinic.request(audits=(replace(answer, digest="0" * 64), answer))
        )
    assert refusal.value.code == "unknown-audit"


def test_several_audits_at_once(federation: Federation) -> None:
    first, second = start(federation), start(federation)
    clinic, lab = federation.clients.values()
    clinic.answer_audits()
    lab.answer_audits()
    federation.service.upkeep.run_due()
    assert [one["result"] for one in federation.operator.ask("audits")] == ["equal", "equal"]
    assert {one["audit"] for one in federation.operator.ask("audits")} == {first, second}
    with pytest.raises(RefusedError) as refusal:
        federation.operator.ask("show-audit", audit="0" * 32)
    assert refusal.value.code == "unknown-audit"


def test_a_client_that_enrolls_during_an_audit_must_answer_it_too(federation: Federation) -> None:
    audit = start(federation)
    late = federation.enrol("late")
    late.send(federation.draw(2))
    for name in ("clinic", "lab"):
        federation.clients[name].answer_audits()
    assert finish(federation, audit)["waiting"] == ["late"]
    assert federation.entries("audited") == []
    late.answer_audits()
    assert finish(federation, audit)["equal"] == ["clinic", "lab", "late"]
    assert federation.entries("audited")[0]["clients"] == ["clinic", "lab", "late"]


def test_what_an_audit_logs_is_salted_by_a_salt_that_no_client_knows(
    federation: Federation,
) -> None:
    audit = start(federation)
    known = [
        bytes.fromhex(one["salt"])
        for client in federation.clients.values()
        for one in client.sync()["audits"]
    ]
    for client in federation.clients.values():
        client.answer_audits()
    assert finish(federation, audit)["result"] == "equal"
    entry = federation.entries("audited")[0]
    plain = federation.service.state.ledger.solver.statistics.digest
    assert entry["ledger"] not in {salted("ledger", salt, plain) for salt in known}
    assert entry["ledger"] == salted("ledger", federation.service.state.salt(), plain)
