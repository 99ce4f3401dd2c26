"""Who may do what: commands by number, clients that vanish, keys that change."""

from __future__ import annotations

from pathlib import Path

import pytest

from expunge.crypto import Envelope, SigningKey
from expunge.errors import EvidenceError, StoreError
from expunge.evidence import KeyChain, Receipt, Rotation, verify
from expunge.server.service import Service
from expunge.server.state import Settings
from expunge.wire import payloads
from expunge.wire.schema import time_text
from support.commands import refused
from support.federation import NOW, Clock, Federation, Party, make_key, together

DAY = 86400


def test_roles(federation: Federation) -> None:
    officer = federation.officer()
    client = federation.clients["clinic"]
    for action in ("token", "amend", "forget-client", "rotate-key", "backup"):
        refused(federation, "not-allowed", officer.command, action)
    for action in ("audit", "order", "close-order"):
        refused(federation, "not-allowed", client.command, action)
    for action in ("status", "clients", "orders", "audits"):
        refused(federation, "not-allowed", client.ask, action)
        assert officer.ask(action) == federation.operator.ask(action)
    assert [one["name"] for one in officer.ask("clients")] == ["clinic", "officer", "operator"]
    assert officer.command("audit")["audit"]
    assert officer.command("fold")["round"] == federation.service.state.record.round
    refused(federation, "unknown-actor", Party(federation, "nobody", make_key()).command, "audit")
    refused(federation, "bad-signature", Party(federation, "operator", make_key()).command, "audit")
    refused(federation, "bad-signature", Party(federation, "operator", make_key()).ask, "status")
    refused(federation, "bad-signature", Party(federation, "clinic", make_key()).sync)


def test_commands_are_carried_out_once_each_in_their_order(federation: Federation) -> None:
    operator, service = federation.operator, federation.service
    data = operator.envelope("audit", {}, operator.sequence + 1)
    answer = service.command(data)
    assert service.command(data) == answer
    federation.reopen()
    assert federation.service.command(data) == answer
    operator.sequence += 1
    number = operator.sequence
    service = federation.service
    again = operator.envelope("audit", {}, number)
    assert refused(federation, "sequence-reused", service.command, again).details == {
        "expected": number + 1
    }
    gap = refused(
        federation, "sequence-gap", service.command, operator.envelope("audit", {}, number + 2)
    )
    assert gap.details == {"expected": number + 1}
    assert len(federation.operator.ask("audits")) == 1
    assert verify(answer, federation.first_key.public).kind == "result"


def test_what_nobody_knows_is_refused(federation: Federation) -> None:
    operator = federation.operator
    refused(federation, "unknown-action", operator.command, "reboot")
    refused(federation, "unknown-action", operator.ask, "reboot")
    refused(federation, "unknown-action", operator.ask, "audit")  # a command, not a question
    refused(federation, "unknown-action", operator.command, "status")
    content = {
        "action": 7,
        "actor": "operator",
        "arguments": [],
        "federation": federation.id,
        "sequence": 1,
    }
    wrong = Envelope.signed("command", content | {"nonce": "0" * 64}, operator.key).to_bytes()
    refused(federation, "malformed", federation.service.command, wrong)
    elsewhere = payloads.sign(
        "command",
        {
            "action": "audit",
            "actor": "operator",
            "arguments": {},
            "federation": "0" * 32,
            "nonce": "0" * 64,
            "sequence": 3,
        },
        operator.key,
    )
    refused(federation, "wrong-federation", federation.service.command, elsewhere)


def test_many_commands_and_requests_at_once(federation: Federation) -> None:
    client = federation.clients["clinic"]
    samples = [federation.draw(1) for _ in range(4)]
    requests = []
    for number, sample in enumerate(samples):
        requests.append(client.request(sample, sequence=client.sequence + 1 + number))
    futures = together(federation.service, requests[:2])
    federation.operator.command("rotate-key")
    futures += together(federation.service, requests[2:])
    for future, sample in zip(futures, samples, strict=True):
        client.settled(future.result(), sample)
    federation.check()


def test_when_each_was_last_seen(federation: Federation) -> None:
    clock = federation.clock
    assert isinstance(clock, Clock)
    assert {one["seen"] for one in federation.operator.ask("clients")} == {""}
    clock.now += 3600
    client = next(iter(federation.clients.values()))
    client.sync()
    seen = {one["name"]: one["seen"] for one in federation.operator.ask("clients")}
    assert seen[client.name] == time_text(clock.now)
    assert [name for name, when in seen.items() if when] == [client.name]


def test_a_sync_is_answered_though_nothing_can_be_written(tmp_path: Path) -> None:
    full = False

    def hook(_: str) -> None:
        if full:
            raise OSError(28, "no space left")

    with Federation(tmp_path / "server", hook=hook) as federation:
        client = federation.enrol("clinic")
        full = True
        assert client.sync()["status"] == "active"
        full = False


def test_the_solver_may_be_chosen_at_every_start(federation: Federation) -> None:
    head = federation.service.head_digest()
    for solver in ("cholesky", "woodbury", ""):
        federation.close()
        service = Service.open(federation.path, settings=Settings(solver=solver), upkeep=False)
        assert (service.status()["solver"], service.head_digest()) == (solver or "woodbury", head)
        service.close()
    with pytest.raises(StoreError, match="choose one of"):
        Service.open(federation.path, settings=Settings(solver="newton"), upkeep=False)
    federation.service = federation.opened()


# -- clients that vanish ---------------------------------------------------------------------------


def test_a_client_is_forgotten(federation: Federation) -> None:
    lab = federation.enrol("lab")
    lab.send(federation.draw(3), kind="gram")
    lab.send(federation.draw(2), lab.retained[:1])
    told = federation.operator.command("forget-client", client="lab")
    assert told == {"client": "lab", "count": 4}
    lab.retained = []
    federation.check()
    entry = federation.entries("forgotten")[0]
    digested = federation.entries("digested")  # before a client is forgotten, the journal is folded
    assert (entry["count"], entry["ledger_before"]) == (4, digested[-1]["ledger"])
    refused(federation, "gone", federation.service.request, lab.request(federation.draw(1)))
    refused(federation, "gone", federation.operator.command, "forget-client", client="lab")
    assert lab.sync()["status"] == "gone"
    refused(
        federation, "unknown-actor", federation.operator.command, "forget-client", client="nobody"
    )
    refused(
        federation, "not-allowed", federation.operator.command, "forget-client", client="operator"
    )
    refused(federation, "malformed", federation.operator.command, "forget-client")
    receipt = federation.clients["clinic"].send(federation.draw(1))
    assert receipt.logged.entry["ledger_before"] == entry["ledger_after"]
    federation.reopen()
    federation.check()
    assert federation.service.status()["clients"] == {
        "active": 1,
        "must-rejoin": 0,
        "barred": 0,
        "gone": 1,
    }


def test_a_client_that_never_sent_anything_is_forgotten_too(federation: Federation) -> None:
    federation.enrol("lab")
    assert federation.operator.command("forget-client", client="lab")["count"] == 0
    federation.check()


# -- keys ------------------------------------------------------------------------------------------


def test_after_a_rotation_old_receipts_verify_with_the_new_key_and_new_ones_with_the_old(
    federation: Federation,
) -> None:
    clock, client = federation.clock, federation.clients["clinic"]
    assert isinstance(clock, Clock)
    old = federation.server_key.public
    before = federation.service.request(client.request(federation.draw(1)))
    client.sequence += 1
    clock.now += 10
    told = federation.operator.command("rotate-key")
    clock.now += 10
    after = federation.service.request(client.request(federation.draw(1)))
    client.sequence += 1
    new = federation.server_key.public
    assert old != new
    assert told["key"] == new.text
    rotations = federation.service.state.rotations()
    rotation = Rotation.read(rotations[0])
    assert (rotation.old, rotation.new, rotation.time) == (old, new, time_text(NOW + 10))
    assert federation.entries("rotated")[0]["new"] == new.id
    for pinned in (old, new):
        chain = KeyChain(pinned, rotations)
        for answer in (before, after):
            Receipt.read(Envelope.from_bytes(answer, "receipt"), chain)
    with pytest.raises(EvidenceError):
        Receipt.read(
            Envelope.from_bytes(after, "receipt"), old
        )  # without the rotation, the new key is a stranger
    heard = client.sync()
    assert [Envelope.from_json(one, "rotation") for one in heard["rotations"]] == rotations
    federation.reopen()
    assert federation.server_key.public == new
    assert SigningKey.from_pem((federation.path / "server.key").read_bytes()).public == new
    assert not (federation.path / "server.key.next").exists()


def test_what_a_retired_key_signs_later_is_not_believed(federation: Federation) -> None:
    clock, client = federation.clock, federation.clients["clinic"]
    assert isinstance(clock, Clock)
    old = federation.server_key
    federation.operator.command("rotate-key")
    clock.now += 10
    answer = federation.service.request(client.request(federation.draw(1)))
    content = Envelope.from_bytes(answer, "receipt").unverified() | {"server": old.public.id}
    forged = Envelope.signed("receipt", content, old)
    with pytest.raises(EvidenceError, match="retired"):
        Receipt.read(forged, federation.chain())
