"""Who may do what: enrolment by token, commands by number, and what operators may change."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import pytest

from expunge import Spec, solve
from expunge.errors import EvidenceError, RefusedError, StoreError
from expunge.evidence import KeyChain, Receipt, Rotation, verify
from expunge.protocol import speech
from expunge.protocol.names import time_text
from expunge.protocol.token import secret_digest
from expunge.server.core import Settings
from expunge.server.service import Service
from expunge.signing import Envelope, SigningKey
from federation import NOW, Clock, Federation, Party, make_key, together
from samples import SPEC

DAY = 86400


@pytest.fixture
def federation(tmp_path: Path):
    with Federation(tmp_path / "server", clock=Clock()) as federation:
        federation.enrol("clinic").send(federation.draw(5))
        yield federation


def refused(federation: Federation, code: str, ask: Any, *arguments: Any, **named: Any) -> RefusedError:
    before = federation.dump()
    with pytest.raises(RefusedError) as refusal:
        ask(*arguments, **named)
    assert refusal.value.code == code, refusal.value
    assert federation.dump() == before
    return refusal.value


# -- enrolment ------------------------------------------------------------------------------------------------------------


def test_an_enrolment_may_be_repeated_and_is_logged_once(federation: Federation) -> None:
    key, secret = make_key(), federation.token("lab")
    data = federation.enrolment("lab", key, secret, SPEC.data_digest)
    first = speech.heard("enrolled", federation.service.enrol(data), federation.server_key.public)
    assert (first["name"], first["role"], first["key"], first["sequence"]) == ("lab", "client", key.public.text, 0)
    assert Spec.from_dict(first["spec"]) == SPEC
    again = speech.heard("enrolled", federation.service.enrol(data), federation.server_key.public)
    assert again == first
    assert [entry["name"] for entry in federation.entries("enrolled")] == ["operator", "clinic", "lab"]


def test_enrolments_that_are_refused(federation: Federation) -> None:
    key, secret, enrol = make_key(), federation.token("lab"), federation.service.enrol
    other, data = federation.token("ward"), SPEC.data_digest
    cases: list[tuple[str, bytes]] = [
        ("bad-token", federation.enrolment("lab", key, secrets.token_hex(32), data)),
        ("bad-token", federation.enrolment("lab", key, "short", data)),
        ("bad-token", federation.enrolment("lab", key, other, data)),
        ("bad-token", federation.enrolment("ward", key, secret, data)),
        ("wrong-spec", federation.enrolment("lab", key, secret, "")),
        ("wrong-spec", federation.enrolment("lab", key, secret, Spec(dim=9, labels=("a",)).data_digest)),
        ("name-taken", federation.enrolment("clinic", key, secret, data)),
        ("name-taken", federation.enrolment("lab", federation.clients["clinic"].key, secret, data)),
        ("malformed", federation.enrolment("The Lab", key, secret, data)),
    ]
    for code, enrolment in cases:
        refused(federation, code, enrol, enrolment)
    content = {"federation": federation.id, "key": key.public.text, "name": "lab", "spec": data, "token": secret}
    refused(federation, "bad-signature", enrol, speech.said("enrolment", content, make_key()))
    refused(federation, "wrong-federation", enrol, speech.said("enrolment", content | {"federation": "0" * 32}, key))
    refused(federation, "malformed", enrol, speech.said("enrolment", content | {"key": "AAAA"}, key))
    enrol(federation.enrolment("lab", key, secret, data))
    refused(federation, "name-taken", enrol, federation.enrolment("lab", make_key(), secret, data))


def test_a_token_expires_and_a_new_one_takes_its_place(federation: Federation) -> None:
    clock = federation.clock
    assert isinstance(clock, Clock)
    first = federation.token("lab")
    second = federation.token("lab")
    enrol, key = federation.service.enrol, make_key()
    refused(federation, "bad-token", enrol, federation.enrolment("lab", key, first, SPEC.data_digest))
    clock.now += 7 * DAY + 1
    refused(federation, "bad-token", enrol, federation.enrolment("lab", key, second, SPEC.data_digest))
    enrol(federation.enrolment("lab", key, federation.token("lab"), SPEC.data_digest))


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"name": "lab", "role": "king"}, "malformed"),
        ({"name": "Lab", "role": "client"}, "malformed"),
        ({"role": "client"}, "malformed"),
        ({"name": "lab", "role": "client", "secret": "secret"}, "malformed"),
        ({"name": "lab", "role": "client", "days": 0}, "malformed"),
        ({"name": "lab", "role": "client", "days": True}, "malformed"),
        ({"name": "clinic", "role": "client"}, "name-taken"),
    ],
)
def test_tokens_that_are_refused(federation: Federation, arguments: dict[str, Any], code: str) -> None:
    given = {"secret": secret_digest(secrets.token_hex(32))} | arguments
    refused(federation, code, federation.operator.command, "token", **given)


# -- who and in which order -------------------------------------------------------------------------------------------------


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
    assert refused(federation, "sequence-reused", service.command, again).details == {"expected": number + 1}
    gap = refused(federation, "sequence-gap", service.command, operator.envelope("audit", {}, number + 2))
    assert gap.details == {"expected": number + 1}
    assert len(federation.operator.ask("audits")) == 1
    assert verify(answer, federation.first_key.public).kind == "result"


def test_what_nobody_knows_is_refused(federation: Federation) -> None:
    operator = federation.operator
    refused(federation, "unknown-action", operator.command, "reboot")
    refused(federation, "unknown-action", operator.ask, "reboot")
    refused(federation, "unknown-action", operator.ask, "audit")  # a command, not a question
    refused(federation, "unknown-action", operator.command, "status")
    content = {"action": 7, "actor": "operator", "arguments": [], "federation": federation.id, "sequence": 1}
    wrong = Envelope.signed("command", content | {"nonce": "0" * 64}, operator.key).to_bytes()
    refused(federation, "malformed", federation.service.command, wrong)
    elsewhere = speech.said(
        "command",
        {"action": "audit", "actor": "operator", "arguments": {}, "federation": "0" * 32, "nonce": "0" * 64, "sequence": 3},
        operator.key,
    )
    refused(federation, "wrong-federation", federation.service.command, elsewhere)


# -- amendments -------------------------------------------------------------------------------------------------------------


def amended(federation: Federation, **arguments: Any) -> None:
    """Have the spec amended, and take it on as clients do at their next sync."""
    told = federation.operator.command("amend", **arguments)
    federation.spec = Spec.from_dict(told["spec"])
    heard = next(iter(federation.clients.values())).sync()
    assert Spec.from_dict(heard["spec"]) == federation.spec
    last = Envelope.from_json(heard["amendments"][-1], "amendment").verify(federation.server_key.public)
    assert Spec.from_dict(last["spec"]) == federation.spec
    command = Envelope.from_json(last["command"], "command").verify(federation.operator.key.public)
    assert command["arguments"] == arguments


def test_gamma_and_publication_bits_are_amended_and_the_ledger_stays(federation: Federation) -> None:
    client = federation.clients["clinic"]
    before = federation.service.core.books.solver.statistics.digest
    amended(federation, gamma=(4.0).hex())
    federation.check()
    amended(federation, publication_bits=30)
    federation.check()
    assert federation.service.core.books.solver.statistics.digest == before
    head = federation.service.core.head
    assert head is not None
    assert head == solve(federation.statistics())
    client.send(federation.draw(1), client.retained[:1], "gram")
    federation.reopen()
    federation.check()
    (first, second) = federation.entries("amended")
    assert (first["spec_before"], first["spec_after"]) == (SPEC.digest, second["spec_before"])


def test_labels_are_appended_with_data_in_flight(federation: Federation) -> None:
    client, lab = federation.clients["clinic"], federation.enrol("lab")
    lab.send(federation.draw(3), kind="gram")
    client.send(federation.draw(1), client.retained[:1])  # still in the journal
    stale = client.request(federation.draw(1))
    amended(federation, labels=[*(SPEC.labels or ()), "fox"])
    federation.check()
    refused(federation, "wrong-spec", federation.service.request, stale)
    added = [one for one in federation.draw(40) if one.target == 3]
    client.send(added, client.retained[:1])  # a sample that was committed to under the old labels
    lab.send(added[:0], lab.retained[:2], "gram")
    assert len(added) > 1
    federation.check()
    federation.reopen()
    federation.fold()
    federation.check()
    client.send((), [one for one in client.retained if one.target == 3])
    federation.check()


def test_a_request_read_before_an_amendment_is_judged_after_it(federation: Federation) -> None:
    """Offered before, taken up after: under a new gamma it still holds, under new labels it does not."""
    client, operator, service = federation.clients["clinic"], federation.operator, federation.service
    gone = list(client.retained)
    for arguments, code in (({"gamma": (2.0).hex()}, None), ({"labels": ["cat", "dog", "eel", "fox"]}, "wrong-spec")):
        data = client.request((), gone, "gram") if code is None else client.request(federation.draw(1))
        offer = service._rounds.take(data)
        operator.command("amend", **arguments)
        (answer,) = [service._queue.offer(offer)]
        if code is None:
            client.settled(answer.result(), (), gone)
            federation.spec = federation.spec.with_gamma(2.0)
        else:
            refusal = answer.exception()
            assert isinstance(refusal, RefusedError)
            assert refusal.code == code
    federation.spec = federation.spec.with_labels("fox")
    client.send(federation.draw(3))
    federation.check()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({}, "malformed"),
        ({"gamma": SPEC.gamma.hex()}, "malformed"),
        ({"gamma": 1}, "malformed"),
        ({"gamma": (-1.0).hex()}, "malformed"),
        ({"gamma": "much"}, "malformed"),
        ({"dim": 5}, "malformed"),
        ({"backbone": "other"}, "malformed"),
        ({"labels": ["cat", "dog"]}, "malformed"),
        ({"labels": ["dog", "cat", "eel"]}, "malformed"),
        ({"labels": ["cat", "dog", "eel", "cat"]}, "malformed"),
        ({"labels": "fox"}, "malformed"),
        ({"messages": []}, "malformed"),
        ({"messages": ["factor", "rows"]}, "malformed"),
        ({"messages": ["letters"]}, "malformed"),
        ({"publication_bits": 10**9}, "malformed"),
    ],
)
def test_amendments_that_are_refused(federation: Federation, arguments: dict[str, Any], code: str) -> None:
    federation.fold()
    refused(federation, code, federation.operator.command, "amend", **arguments)
    federation.clients["clinic"].send(federation.draw(1))
    federation.check()


def test_kinds_of_messages_can_be_forbidden_and_allowed_again(federation: Federation) -> None:
    client = federation.clients["clinic"]
    client.send(federation.draw(1), kind="gram")
    amended(federation, messages=["rows"])
    refused(federation, "not-allowed", federation.service.request, client.request(federation.draw(1), kind="gram"))
    federation.reopen()
    client.send(federation.draw(1))
    amended(federation, messages=["gram", "rows"])
    client.send(federation.draw(1), kind="gram")
    federation.check()


# -- clients that vanish ----------------------------------------------------------------------------------------------------


def test_a_client_is_forgotten(federation: Federation) -> None:
    lab = federation.enrol("lab")
    lab.send(federation.draw(3), kind="gram")
    lab.send(federation.draw(2), lab.retained[:1])
    told = federation.operator.command("forget-client", client="lab")
    assert told == {"client": "lab", "count": 4}
    lab.retained = []
    federation.check()
    entry = federation.entries("forgotten")[0]
    changed = federation.entries("changed")
    assert (entry["count"], entry["ledger_before"]) == (4, changed[-1]["ledger_after"])
    refused(federation, "gone", federation.service.request, lab.request(federation.draw(1)))
    refused(federation, "gone", federation.operator.command, "forget-client", client="lab")
    assert lab.sync()["status"] == "gone"
    refused(federation, "unknown-actor", federation.operator.command, "forget-client", client="nobody")
    refused(federation, "not-allowed", federation.operator.command, "forget-client", client="operator")
    refused(federation, "malformed", federation.operator.command, "forget-client")
    receipt = federation.clients["clinic"].send(federation.draw(1))
    assert receipt.logged.entry["ledger_before"] == entry["ledger_after"]
    federation.reopen()
    federation.check()
    assert federation.service.status()["clients"] == {"active": 1, "must-rejoin": 0, "gone": 1}


def test_a_client_that_never_sent_anything_is_forgotten_too(federation: Federation) -> None:
    federation.enrol("lab")
    assert federation.operator.command("forget-client", client="lab")["count"] == 0
    federation.check()


# -- keys -------------------------------------------------------------------------------------------------------------------


def test_after_a_rotation_old_receipts_verify_with_the_new_key_and_new_ones_with_the_old(federation: Federation) -> None:
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
    rotations = federation.service.core.rotations()
    rotation = Rotation.read(rotations[0])
    assert (rotation.old, rotation.new, rotation.time) == (old, new, time_text(NOW + 10))
    assert federation.entries("rotated")[0]["new"] == new.id
    for pinned in (old, new):
        chain = KeyChain(pinned, rotations)
        for answer in (before, after):
            Receipt.read(Envelope.from_bytes(answer, "receipt"), chain)
    with pytest.raises(EvidenceError):
        Receipt.read(Envelope.from_bytes(after, "receipt"), old)  # without the rotation, the new key is a stranger
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


def test_a_secret_is_for_one_token_only(federation: Federation) -> None:
    federation.operator.command("token", name="first", role="client", secret="0" * 64)
    with pytest.raises(RefusedError, match="draw a fresh one") as refusal:
        federation.operator.command("token", name="second", role="client", secret="0" * 64)
    assert refusal.value.code == "name-taken"


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


def test_a_sync_is_answered_though_nothing_can_be_written(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: str) -> None:
        raise OSError(28, "no space left")

    client = next(iter(federation.clients.values()))
    monkeypatch.setattr(federation.service.core.database, "_hook", full)
    assert client.sync()["status"] == "active"


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
