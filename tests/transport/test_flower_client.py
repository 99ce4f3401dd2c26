"""The relay behind the Flower carrier, without Flower: nodes are run once for each message, and
nothing is lost in between.
"""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import expunge
from expunge.crypto import canonical
from expunge.errors import CarrierError, FormatError, RefusedError
from expunge.transport.flower.client import NotYet, ReplayCarrier
from expunge.transport.flower.messages import (
    CALLS,
    Call,
    NodeMessage,
    Payload,
    PayloadParts,
    Reply,
    ServerMessage,
    packed,
    unpacked,
)
from expunge.transport.flower.server import CallHandler
from expunge.transport.local import LocalCarrier
from expunge.wire.carrier import Carrier
from support.flower import Clinics, exchanges_of, without_replies
from support.sources import nodes_of

VALUES = st.recursive(
    st.none() | st.text(max_size=20) | st.integers(-(2**53), 2**53) | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=4),
)


@pytest.fixture
def clinics(tmp_path: Path) -> Clinics:
    return Clinics(tmp_path)


# -- calls and parcels -----------------------------------------------------------------------------


def test_every_method_of_a_carrier_is_a_call() -> None:
    assert set(CALLS) == {name for name in dir(Carrier) if not name.startswith("_")} - {"close"}
    assert {"request", "sync", "enrol", "head", "consistency"} <= set(CALLS)


@given(VALUES)
def test_values_travel_unchanged(value: Any) -> None:
    parts = PayloadParts()
    assert unpacked(canonical.decode(canonical.encode(packed(value, parts))), parts.chunks) == value


@pytest.mark.parametrize(
    "value",
    [{"bytes": 1}, {"bytes": -1}, {"bytes": True}, {"value": []}, {"value": 1, "list": []}, {}, 7],
)
def test_altered_values_are_refused(value: Any) -> None:
    with pytest.raises(FormatError):
        unpacked(value, [b"only one"])


def test_a_call_has_one_digest_and_others_have_others() -> None:
    assert (
        Call.of("head").digest == Call.of("head", None).digest == Call.of("head", known=None).digest
    )
    different = [
        *(
            Call.of("head"),
            Call.of("head", "00"),
            Call.of("checkpoint"),
            Call.of("request", b"a"),
            Call.of("sync", b"a"),
        ),
        *(
            Call.of("request", b"ab"),
            Call.of("consistency", 1, 12),
            Call.of("consistency", 11, 2),
            Call.of("entries", 1, 12),
        ),
    ]
    assert len({call.digest for call in different}) == len(different)


@pytest.mark.parametrize(
    "call",
    [
        Call("close", ()),
        Call("__class__", ()),
        Call("service", ()),
        Call("request", ("text",)),
        Call("request", ()),
        Call("request", (b"a", b"b")),
        Call("entries", (0, None)),
        Call("entries", (True, 2)),
        Call("head", (7,)),
    ],
)
def test_what_is_no_call_is_refused_and_changes_nothing(clinics: Clinics, call: Call) -> None:
    with exchanges_of(clinics) as exchanges:
        says = exchanges.handler.answer(NodeMessage("t", "clinic-00", (call,)))
        assert [(reply.refusal.code if reply.refusal else "") for reply in says.replies] == [
            "malformed"
        ]


def test_a_reply_is_given_once_and_refusals_arrive_whole() -> None:
    call = Call.of("request", b"data")
    refusal = RefusedError("sequence-gap", "number 4 is expected", expected=4)
    says = ServerMessage(
        "t2",
        "t1",
        (
            Reply(call.digest, "request", refusal=refusal),
            Reply(Call.of("head").digest, "head", b"head"),
        ),
    )
    relay = ReplayCarrier(ServerMessage.read(says.to_parcel()).replies)
    with pytest.raises(RefusedError) as raised:
        relay.carrier.request(b"data")
    assert (raised.value.code, raised.value.reason, raised.value.details) == (
        "sequence-gap",
        str(refusal),
        {"expected": 4},
    )
    assert relay.carrier.head() == b"head"
    for _ in range(2):
        with pytest.raises(NotYet):
            relay.carrier.head()
        with pytest.raises(CarrierError):
            relay.carrier.request(b"data")
    assert relay.noted == (Call.of("head"), call)
    with pytest.raises(AttributeError):
        relay.carrier.service  # type: ignore[attr-defined]  # noqa: B018 - it is the looking that fails


@pytest.mark.parametrize(
    "change",
    [{"version": 2}, {"turn": 7}, {"replies": {}}, {"replies": [{"call": "x"}]}, {"more": 1}],
)
def test_a_message_of_another_form_is_refused(change: dict[str, Any]) -> None:
    note = canonical.decode(ServerMessage("t").to_parcel().note) | change
    with pytest.raises(FormatError):
        ServerMessage.read(Payload(canonical.encode(note)))


@pytest.mark.parametrize(
    "change",
    [{"version": 0}, {"done": 1}, {"size": -1}, {"calls": [{"name": "head"}]}, {"problem": None}],
)
def test_a_reply_of_another_form_is_refused(change: dict[str, Any]) -> None:
    note = canonical.decode(NodeMessage("t", "clinic-00").to_parcel().note) | change
    with pytest.raises(FormatError):
        NodeMessage.read(Payload(canonical.encode(note)))


def test_only_this_folder_imports_flower() -> None:
    root = Path(expunge.__file__).parent
    found = set()
    for file, node in nodes_of(root, "flwr", "import ray", "from ray"):
        names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if any(name.split(".")[0] in ("flwr", "ray") for name in names):
            found.add(file.as_posix())
    allowed = ("client_app", "inprocess", "records", "server_app")
    assert found == {f"transport/flower/{name}.py" for name in allowed}


# -- conversations ---------------------------------------------------------------------------------


def test_a_whole_sync_takes_two_exchanges(clinics: Clinics) -> None:
    with exchanges_of(clinics) as exchanges:
        assert [exchanges.run(name) for name in clinics.retained] == [2, 2, 2]
        clinics.forget("clinic-01", 2)
        assert exchanges.run("clinic-01") == 2
        assert [exchanges.run(name) for name in clinics.retained] == [2, 2, 2]
    clinics.check()


def test_an_order_takes_one_exchange_more(clinics: Clinics) -> None:
    ids = clinics.add("clinic-02", 2, subject="ada")
    with exchanges_of(clinics) as exchanges:
        for name in clinics.retained:
            exchanges.run(name)
    order = clinics.order("ada")
    for one in ids:
        del clinics.retained["clinic-02"][one]
    with exchanges_of(clinics) as exchanges:
        assert [exchanges.run(name) for name in clinics.retained] == [3, 3, 3]
        for name in clinics.retained:
            exchanges.run(name)
    clinics.check()
    with clinics.service():
        assert clinics.officer.ask("show-order", order=order)["state"] == "complete"


def test_an_audit_is_answered(clinics: Clinics) -> None:
    with exchanges_of(clinics) as exchanges:
        for name in clinics.retained:
            exchanges.run(name)
    with clinics.service():
        audit = clinics.officer.command("audit")["audit"]
    with exchanges_of(clinics) as exchanges:
        assert [exchanges.run(name) for name in clinics.retained] == [3, 3, 3]
    clinics.check()
    with clinics.service() as federation:
        federation.finish_audits()
        assert clinics.officer.ask("show-audit", audit=audit)["equal"] == list(clinics.retained)


@pytest.mark.parametrize("name", ["consistency", "head", "sync", "request"])
def test_what_is_not_foreseen_is_asked_for(clinics: Clinics, name: str) -> None:
    """Answers that are left out, whichever they are, cost exchanges and nothing else."""
    with exchanges_of(clinics) as exchanges:
        for clinic in clinics.retained:
            exchanges.run(clinic)
        clinics.forget("clinic-00", 1)
        left = [True]

        def once(says: ServerMessage) -> ServerMessage:
            if left and any(reply.name == name for reply in says.replies):
                left.clear()
                return without_replies(says, name)
            return says

        exchanges.change, exchanges.backwards = once, name == "consistency"
        assert exchanges.run("clinic-00") > 2
        assert left == []
        for clinic in clinics.retained:
            exchanges.run(clinic)
    clinics.check()


class BracketProofs(LocalCarrier):
    """A carrier whose proofs have a hash that begins as JSON does: one of 256 does by chance."""

    def consistency(self, first: int, second: int) -> list[bytes]:
        return [b"{" + bytes(31), *super().consistency(first, second)]


def test_a_hash_that_begins_like_json_is_a_hash(clinics: Clinics) -> None:
    """Found by test-random: the server took it for an envelope, and the whole round failed."""
    with exchanges_of(clinics) as exchanges:
        said = exchanges.tell("clinic-00", exchanges.handler.opening())
    carrier = BracketProofs.open(clinics.server)
    try:
        handler = CallHandler(carrier, lambda what, _: pytest.fail(what))
        proof = Call.of("consistency", 1, 2)
        says = handler.answer(replace(said, calls=(proof, *said.calls)))
    finally:
        carrier.close()
    assert [reply.name for reply in says.replies][:3] == ["consistency", "request", "sync"]
    assert says.replies[0].value[0] == b"{" + bytes(31)


def test_the_same_bytes_are_offered_until_they_are_answered(clinics: Clinics) -> None:
    with exchanges_of(clinics) as exchanges:
        first = exchanges.tell("clinic-00", exchanges.handler.opening())
        second = exchanges.tell("clinic-00", exchanges.handler.opening())
        assert [call.name for call in first.calls] == ["request", "sync"]
        assert first.calls == second.calls
        exchanges.run("clinic-00")
        third = exchanges.tell("clinic-00", exchanges.handler.opening())
        assert [call.name for call in third.calls] == ["sync"]
        assert third.calls[0] not in first.calls


def test_a_message_that_does_not_follow_the_last_one_brings_no_answers(clinics: Clinics) -> None:
    """An old head that arrives late must not take the place of a newer one."""
    with exchanges_of(clinics) as exchanges:
        handler = exchanges.handler
        late = handler.answer(exchanges.tell("clinic-00", handler.opening()))
        exchanges.run("clinic-00")
        exchanges.run("clinic-01")
        exchanges.run("clinic-00")
        with clinics.store("clinic-00") as store:
            newest = store.recall("head"), store.checkpoint
        said = exchanges.tell("clinic-00", late)
        assert not said.done
        with clinics.store("clinic-00") as store:
            assert (store.recall("head"), store.checkpoint) == newest


def test_a_message_twice_does_no_harm(clinics: Clinics) -> None:
    with exchanges_of(clinics) as exchanges:
        for name in clinics.retained:
            says = exchanges.handler.opening()
            while True:
                exchanges.tell(name, says)
                said = exchanges.tell(name, says)
                if said.done or len(exchanges.said) > 100:
                    break
                says = exchanges.handler.answer(said)
                first = exchanges.tell(name, says)
                if first.done:
                    break
        assert exchanges.handler.answered["request"] >= 3
    with exchanges_of(clinics) as exchanges:
        for name in clinics.retained:
            assert exchanges.run(name) == 2
    clinics.check()


def test_a_refusal_is_told_and_everything_stays(
    clinics: Clinics, monkeypatch: pytest.MonkeyPatch
) -> None:
    with exchanges_of(clinics) as exchanges:
        exchanges.run("clinic-00")
    clinics.federation.service = clinics.federation.opened()
    before = clinics.federation.dump()
    clinics.federation.close()

    def full(_: LocalCarrier, __: bytes) -> bytes:
        raise RefusedError("storage", "the disk is full: offer it again later")

    monkeypatch.setattr(LocalCarrier, "request", full)
    with exchanges_of(clinics) as exchanges:
        assert exchanges.run("clinic-01") == 2
        assert exchanges.said[-1].problem == "storage: the disk is full: offer it again later"
    monkeypatch.undo()
    with clinics.service() as federation:
        after = federation.dump()
    assert after["memory"] == before["memory"]
    assert after["log"] == before["log"]
    with exchanges_of(clinics) as exchanges:
        for name in (*clinics.retained, *clinics.retained):
            exchanges.run(name)
    clinics.check()


def test_a_request_that_is_too_large_is_divided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal speaks for the only attempt, so the request is taken back; after a lost reply it
    would not be.
    """
    clinics = Clinics(tmp_path, 1, samples=8)
    taken = LocalCarrier.request

    def narrow(self: LocalCarrier, data: bytes) -> bytes:
        if len(data) > 1000:
            raise RefusedError("too-large", f"{len(data)} bytes are too many")
        return taken(self, data)

    monkeypatch.setattr(LocalCarrier, "request", narrow)
    with exchanges_of(clinics) as exchanges:
        exchanges.run("clinic-00")
        assert exchanges.handler.answered["request"] > 1
    clinics.check()


@pytest.mark.parametrize("doubtful", [False, True])
def test_an_amendment_in_between_is_taken_on(clinics: Clinics, doubtful: bool) -> None:
    """A request of an old spec is made anew if it never took effect, also when an attempt of it was
    lost.
    """
    with exchanges_of(clinics) as exchanges:
        exchanges.tell("clinic-00", exchanges.handler.opening())
        if doubtful:
            exchanges.tell("clinic-00", exchanges.handler.opening())
        before = exchanges.said[-1]
    with clinics.service() as federation:
        federation.operator.command("amend", labels=["cat", "dog", "eel", "fox"])
    with exchanges_of(clinics) as exchanges:
        said = exchanges.tell("clinic-00", exchanges.handler.answer(before))
        assert not said.done
        for _ in range(2):
            for name in clinics.retained:
                exchanges.run(name)
                assert exchanges.said[-1].problem == ""
    with clinics.store("clinic-00") as store:
        clinics.spec = store.spec
    assert clinics.spec.labels == ("cat", "dog", "eel", "fox")
    clinics.check()


def test_a_client_is_enrolled_over_the_relay(clinics: Clinics) -> None:
    with clinics.service():
        token = clinics.token("clinic-99")
    with exchanges_of(clinics) as exchanges:
        assert exchanges.run("clinic-99", token=token) == 4
        clinics.retained["clinic-99"] = {}
        clinics.add("clinic-99", 4)
        exchanges.run("clinic-99", token=token)
        for name in (*clinics.retained, *clinics.retained):
            exchanges.run(name)
    clinics.check()


def test_problems_do_not_name_samples(clinics: Clinics) -> None:
    with exchanges_of(clinics) as exchanges:
        said = exchanges.tell("nobody", exchanges.handler.opening())
        assert (said.done, said.calls) == (True, ())
        assert str(clinics.path) not in said.problem
        assert "StoreError" in said.problem


def test_a_store_in_use_is_a_problem_and_not_a_fault(clinics: Clinics) -> None:
    with exchanges_of(clinics) as exchanges:
        with clinics.store("clinic-00"):
            said = exchanges.tell("clinic-00", exchanges.handler.opening(), timeout=0.0)
        assert (said.done, said.problem) == (True, "StoreBusyError; its own log says more")
        assert exchanges.run("clinic-00") == 2


def test_a_fault_of_the_server_is_reported_and_refused(
    clinics: Clinics, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: LocalCarrier, __: bytes) -> bytes:
        raise OSError("the disk is gone")

    monkeypatch.setattr(LocalCarrier, "sync", broken)
    reports: list[str] = []
    carrier = LocalCarrier.open(clinics.server)
    handler = CallHandler(carrier, lambda what, problem: reports.append(f"{what}: {problem}"))
    says = handler.answer(NodeMessage("t", "clinic-00", (Call.of("sync", b"?"),)))
    carrier.close()
    assert says.replies[0].refusal is not None
    assert says.replies[0].refusal.code == "storage"
    assert reports == ["the call 'sync' could not be answered: the disk is gone"]
