"""What the digest of the ledger in receipts is of: the sums, or the samples that are live and the
sums of before; and what a server that lies gains by that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from expunge.crypto import Envelope
from expunge.evidence import KeyChain, published_head, render_bundle, verify
from expunge.evidence.digests import MultisetHash, binding, salted
from expunge.evidence.wording import MULTISET_HASH, SUMS_SINCE
from expunge.wire.messages import Message
from support.federation import Federation, together
from support.samples import SPEC, commitments_of, statistics_of


@pytest.fixture
def federation(two_kinds: Federation, tmp_path: Path) -> Iterator[Federation]:
    with two_kinds.twin(tmp_path / "server") as federation:
        yield federation


def audited(federation: Federation) -> str:
    audit = federation.operator.command("audit")["audit"]
    for client in federation.clients.values():
        client.answer_audits()
    federation.finish_audits()
    return str(federation.operator.ask("show-audit", audit=audit)["result"])


def test_rows_bind_samples_and_sums_of_samples_bind_the_sums(federation: Federation) -> None:
    clinic, lab = federation.clients.values()
    first, second = federation.entries("changed")
    assert (first["version"], first["binds"]) == (2, "samples")
    assert (second["binds"], second["base"]) == ("sums", None)
    size = federation.service.state.log.size
    sums = federation.statistics().digest
    for added, deleted, kind in (
        (federation.draw(2), clinic.retained[:1], "rows"),
        ((), (), "none"),
        (federation.draw(1), (), "rows"),
    ):
        entry = clinic.send(added, deleted, kind).logged.entry
        assert (entry["binds"], entry["base"]) == ("samples", size)
        assert federation.service.state.basis().sums == sums
        federation.check()
    for deleted in (lab.retained[:1], ()):  # a request that changes nothing goes on as it was
        entry = lab.send((), deleted, "gram").logged.entry
        assert (entry["binds"], entry["base"]) == ("sums", None)
        federation.check()


def test_a_round_with_one_sum_in_it_binds_the_sums(federation: Federation) -> None:
    clinic, lab = federation.clients.values()
    rows, gram = federation.draw(1), federation.draw(1)
    futures = together(federation.service, [clinic.request(rows), lab.request(gram, kind="gram")])
    entries = [
        clinic.settled(futures[0].result(), rows).logged.entry,
        lab.settled(futures[1].result(), gram).logged.entry,
    ]
    if entries[0]["round"] == entries[1]["round"]:
        assert [entry["binds"] for entry in entries] == ["sums", "sums"]
        assert entries[0]["ledger_after"] == entries[1]["ledger_after"]
    federation.check()


def test_whoever_has_the_salt_opens_a_binding_from_the_commitments(federation: Federation) -> None:
    """An auditor has the log, the commitments, an old digest of the sums and the salt."""
    clinic, state = federation.clients["clinic"], federation.service.state
    earlier = federation.statistics()
    entry = clinic.send(federation.draw(1), clinic.retained[:2]).logged.entry
    held = {
        name: commitments_of(SPEC, client.retained) for name, client in federation.clients.items()
    }
    opened = binding(state.salt(), earlier.digest, MultisetHash.of(held), 8)
    assert entry["ledger_after"] == opened
    others = [
        binding(state.salt(), federation.statistics().digest, MultisetHash.of(held), 8),
        binding(state.salt(), earlier.digest, MultisetHash.of(held | {"lab": []}), 8),
        binding(state.salt(), earlier.digest, MultisetHash.of(held), 9),
    ]
    assert entry["ledger_after"] not in others


def test_at_a_fold_the_log_gets_a_digest_of_the_sums(federation: Federation) -> None:
    clinic, state = federation.clients["clinic"], federation.service.state
    receipt = clinic.send((), clinic.retained[:1]).logged.entry
    federation.fold()
    (entry,) = federation.entries("digested")
    assert (entry["round"], entry["count"]) == (receipt["round"], 8)
    assert entry["ledger"] == salted("ledger", state.salt(), federation.statistics().digest)
    assert entry["head"] == salted("head", state.salt(), state.head_digest)
    assert (state.record.binds, state.record.ledger_digest) == ("sums", entry["ledger"])
    federation.check()
    federation.fold()
    assert federation.entries("digested") == [entry]  # nothing has changed since
    after = clinic.send(federation.draw(1)).logged.entry
    assert (after["ledger_before"], after["base"]) == (entry["ledger"], state.log.size - 1)


def test_a_crash_leaves_samples_and_their_hash_together(federation: Federation) -> None:
    clinic = federation.clients["clinic"]
    for _ in range(2):
        clinic.send(federation.draw(2), clinic.retained[:1])
        federation.reopen()
        federation.check()


def test_a_refused_request_changes_no_hash(federation: Federation) -> None:
    clinic, state = federation.clients["clinic"], federation.service.state
    before = state.record
    wrong = clinic.request((), clinic.retained[:1], named=([], [bytes(32)]))
    future = together(federation.service, [wrong])[0]
    assert future.exception() is not None
    assert (state.record.ledger_digest, state.record.basis) == (before.ledger_digest, before.basis)
    federation.check()


def test_a_store_that_knew_of_no_bindings_goes_on(federation: Federation) -> None:
    """As a migrated one does: the first change finds hash and digest anew."""
    clinic, state = federation.clients["clinic"], federation.service.state
    clinic.send(federation.draw(2), kind="gram")
    with state.changing():
        state.storage.state.put(replace(state.record, basis=b""))
    federation.reopen()
    federation.check()
    entry = clinic.send((), clinic.retained[:1]).logged.entry
    assert entry["binds"] == "samples"
    federation.check()
    federation.fold()
    federation.check()
    assert audited(federation) == "equal"


def test_a_certificate_says_what_its_digest_is_of(federation: Federation) -> None:
    clinic, service = federation.clients["clinic"], federation.service
    for kind, binds in (("rows", "samples"), ("gram", "sums")):
        clinic.send(federation.draw(1), kind=kind)
        data = service.head() or b""
        _, certificate = published_head.read(data, federation.chain())
        assert (certificate.binds, certificate.ledger) == (
            binds,
            service.state.record.ledger_digest,
        )
        found = verify(data, federation.first_key.public)
        assert (SUMS_SINCE in found.not_proved) == (binds == "samples")


def test_an_audit_names_the_state_that_it_is_of(federation: Federation) -> None:
    clinic = federation.clients["clinic"]
    clinic.send((), clinic.retained[:1])
    assert audited(federation) == "equal"
    (entry,) = federation.entries("audited")
    last = federation.entries("changed")[-1]
    assert (entry["version"], entry["current"]) == (2, last["ledger_after"])
    assert last["binds"] == "samples"


# -- servers that lie ------------------------------------------------------------------------------


def keeps(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The receipt of a deletion that a server enters everywhere but in its sums."""
    state, clinic = federation.service.state, federation.clients["clinic"]
    gone = clinic.retained[:1]
    with monkeypatch.context() as patch:

        def apply(_: Sequence[Message]) -> None:
            """Changes nothing."""

        patch.setattr(state.ledger, "apply", apply)
        data = clinic.request((), gone)
        answer = federation.service.request(data)
        clinic.settled(answer, (), gone)
    return answer, gone


def test_sums_that_did_not_follow_are_seen_at_the_next_digest_and_by_an_audit(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a digest of the sums, the receipt itself would not open to what should be left. One that
    binds samples opens, as far as the samples go; so a receipt says that this is open.
    """
    federation.fold()
    earlier, state = federation.statistics(), federation.service.state
    answer, gone = keeps(federation, monkeypatch)
    receipt = federation.read(answer)
    finding = verify(answer, federation.first_key.public)
    assert SUMS_SINCE in finding.not_proved
    live, count = federation.live(), state.ledger.solver.count
    opened = [binding(state.salt(), earlier.digest, live, number) for number in (count - 1, count)]
    assert receipt.logged.entry["ledger_after"] == opened[1]  # its count shows it, if nothing else
    federation.fold()
    (entry,) = federation.entries("digested")[-1:]
    assert entry["ledger"] != salted("ledger", state.salt(), federation.statistics().digest)
    kept = statistics_of(SPEC, [*federation.retained(), *gone])
    assert entry["ledger"] == salted("ledger", state.salt(), kept.digest)
    assert audited(federation) == "different"


def test_a_hash_that_did_not_follow_is_seen_by_an_audit(federation: Federation) -> None:
    """Of samples that are said to be live, and are not; or the other way round."""
    state, clinic = federation.service.state, federation.clients["clinic"]
    clinic.send((), clinic.retained[:1])
    basis = state.basis()
    (one,) = commitments_of(SPEC, clinic.retained[:1])
    for false in (
        basis.live.having("clinic", [bytes(32)]),
        basis.live.without("clinic", [one]),
        basis.live.without("clinic", [one]).having("lab", [one]),
    ):
        with state.changing():
            state.keep_digests(state.digests_of(replace(basis, live=false)))
        assert audited(federation) == "different"
    with state.changing():
        state.keep_digests(state.digests_of(basis))
    assert audited(federation) == "equal"
    federation.check()


def test_a_receipt_cannot_be_made_to_say_that_it_binds_the_sums(federation: Federation) -> None:
    """The kind is part of the entry, and so of the log's root."""
    clinic = federation.clients["clinic"]
    data = clinic.request(federation.draw(1))
    answer = Envelope.from_bytes(federation.service.request(data), "receipt")
    content = answer.unverified()
    content["entry"] |= {"binds": "sums", "base": None}
    forged = Envelope.signed("receipt", content, federation.server_key)
    with pytest.raises(Exception, match="not in the log as claimed"):
        verify(forged.to_bytes(), KeyChain(federation.first_key.public).pinned)


def test_a_bundle_says_what_its_digests_leave_open(federation: Federation) -> None:
    clinic, lab = federation.clients.values()
    order = federation.operator.command("order", subject="Ada", subjects={})["order"]
    clinic.answer_order(order, clinic.retained[:1])
    lab.answer_order(order)
    for open_yet in (True, False):
        bundle = Envelope.from_json(federation.operator.ask("bundle", order=order), "bundle")
        found = verify(render_bundle(bundle), federation.first_key.public)
        assert (SUMS_SINCE in found.not_proved) == open_yet
        assert MULTISET_HASH in found.assumptions
        federation.fold()
