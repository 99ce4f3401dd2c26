"""The rules of secure aggregation, one test for each: what waits, what stays hidden, what is
refused, and what follows.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from expunge import Statistics
from expunge.client.secagg import Masked
from expunge.crypto import Envelope, SigningKey, canonical
from expunge.errors import CarrierError, EvidenceError, RefusedError
from expunge.evidence.digests import commitments_root
from expunge.secagg import Contribution, read_preamble
from support.client_files import rows_of
from support.federation import make_key
from support.masked_round import PHASE, Circle, drawn


@pytest.fixture
def circle() -> Iterator[Circle]:
    with drawn() as one:
        yield one


# -- enough contributors ---------------------------------------------------------------------------


def test_changes_wait_for_enough_clients_and_say_how_many_are_missing(circle: Circle) -> None:
    circle.everybody_adds("c0", "c1")
    assert "waits for 2 more clients" in circle.sync("c0").waiting
    assert (
        "2 of the 3 clients that it needs: it waits for one more client"
        in circle.sync("c1").waiting
    )
    for _ in range(5):
        circle.wait(10 * PHASE)
        assert all(done.waiting for done in circle.pass_round("c0", "c1").values())
    assert circle.entries("aggregated") == []
    circle.go("c0", "c1", "c3")  # c3 has nothing to change, and helps
    circle.check_whole()
    (entry,) = circle.entries("aggregated")
    assert [member["client"] for member in entry["clients"]] == ["c0", "c1", "c3"]


def test_a_lone_change_is_applied_and_does_not_stand_out(circle: Circle) -> None:
    """Those with nothing to change take part with zeros: nobody can tell whose change it is."""
    circle.everybody_adds()
    circle.go()
    (sample,) = circle.add("c2", 1)
    circle.go()
    circle.forget("c2", [sample])
    circle.go()
    circle.check_whole()
    entries = circle.entries("aggregated")
    assert [(entry["added"], entry["deleted"]) for entry in entries] == [(8, 0), (1, 0), (0, 1)]
    for entry in entries:
        assert [member["client"] for member in entry["clients"]] == circle.names
    # Covers leave nothing behind: neither receipts nor numbers that are not in order.
    assert {len(store.documents("receipt")) for store in circle.stores.values()} == {1, 3}
    assert {store.sequence for store in circle.stores.values()} == {3}


def test_those_with_nothing_to_change_begin_no_round(circle: Circle) -> None:
    circle.everybody_adds()
    circle.go()
    for _ in range(3):
        assert not any(done.waiting for done in circle.pass_round().values())
        circle.wait(PHASE)
    assert circle.phase == ""
    assert len(circle.entries("aggregated")) == 1


def test_a_cover_that_missed_its_round_begins_no_other(circle: Circle) -> None:
    circle.everybody_adds()
    circle.go()
    circle.add("c0", 1)
    circle.sync("c0")
    turns = iter(["", "there"])  # c1 hears of the round, and its wish to join it is lost
    circle.way.lose = lambda what: next(turns, "there") if what == "aggregate" else ""
    with pytest.raises(CarrierError):
        circle.sync("c1")
    circle.way.lose = lambda _: ""
    circle.go("c0", "c2", "c3")
    for _ in range(2):
        assert circle.sync("c1").waiting == ""
    assert circle.phase == ""
    assert len(circle.entries("aggregated")) == 2
    circle.check_whole()


def test_a_change_that_comes_while_a_client_covers_goes_into_the_same_round(
    circle: Circle,
) -> None:
    circle.everybody_adds()
    circle.go()
    circle.add("c0", 1)
    circle.sync("c0")
    assert "waits" in circle.sync("c1").waiting
    circle.add("c1", 1)
    circle.go()
    circle.check_whole()
    assert [entry["added"] for entry in circle.entries("aggregated")] == [8, 2]


def test_a_sum_of_nothing_costs_no_ledger(circle: Circle) -> None:
    """A change that was taken back while others joined: the round is logged, and changes nothing
    else.
    """
    circle.everybody_adds()
    circle.go()
    before, folds = circle.ledger(), circle.service.state.storage.journal.count()
    (sample,) = circle.add("c0", 1)
    circle.pass_round("c0", "c1")
    circle.forget("c0", [sample])
    circle.go()
    circle.check_whole()
    assert circle.ledger()[0] == before[0]
    assert circle.ledger()[2] == before[2]
    assert circle.service.state.storage.journal.count() == folds


def test_what_comes_while_a_client_waits_for_others_goes_into_the_same_round(
    circle: Circle,
) -> None:
    circle.everybody_adds("c0", "c1")
    circle.pass_round("c0", "c1")
    circle.forget("c0", list(circle.held["c0"])[:1])
    circle.add("c1", 3)
    circle.everybody_adds("c2")
    circle.go()
    circle.check_whole()
    assert [(entry["added"], entry["deleted"]) for entry in circle.entries("aggregated")] == [
        (1 + 5 + 2, 0)
    ]


# -- counts are masked -----------------------------------------------------------------------------


def shown(value: Any) -> str:
    return canonical.encode(value).decode("ascii")


def numbers(value: Any) -> set[int]:
    """Every number in a JSON value, or in rows of a table."""
    if isinstance(value, dict):
        return set().union(*(numbers(one) for one in value.values()))
    if isinstance(value, list | tuple):
        return set().union(*(numbers(one) for one in value))
    return {value} if isinstance(value, int) else set()


def test_no_single_clients_counts_are_shown_anywhere(circle: Circle) -> None:
    """Counts that occur nowhere else would show in tables, log, receipts and answers."""
    counts = {"c0": 201, "c1": 302, "c2": 403, "c3": 504}
    for name, count in counts.items():
        circle.add(name, count)
    done = circle.go()
    ask = circle.federation.operator.ask
    receipts = [
        Envelope.from_bytes(circle.stores[name].documents("receipt")[1], "receipt").unverified()
        for name in counts
    ]
    told = [
        [ask(question) for question in ("status", "clients", "orders", "audits")],
        circle.federation.entries(),
        *receipts,
    ]
    for value in told:
        assert sum(counts.values()) in numbers(value)
        assert numbers(value).isdisjoint(counts.values())
    assert numbers(circle.federation.dump()).isdisjoint(counts.values())
    seen = [
        Envelope.from_bytes(data, "standing").unverified()
        for who, data in circle.way.said
        if who == "told"
    ]
    assert numbers(seen).isdisjoint(counts.values())
    assert (
        len({receipt.logged.entry["added"] for one in done.values() for receipt in one.receipts})
        == 1
    )


def test_adds_and_deletes_are_counted_apart(circle: Circle) -> None:
    circle.everybody_adds()
    circle.go()
    for name in circle.names:
        circle.forget(name, list(circle.held[name])[:1])
        circle.add(name, 1)
    circle.go()
    assert [(entry["added"], entry["deleted"]) for entry in circle.entries("aggregated")] == [
        (8, 0),
        (4, 4),
    ]
    circle.check_whole()


# -- no commitments, and what is checked on sums ---------------------------------------------------


def test_no_commitments_travel(circle: Circle) -> None:
    circle.everybody_adds()
    circle.go()
    for name in circle.names:
        circle.forget(name, list(circle.held[name])[:1])
    circle.go()
    rows = rows_of(circle.stores["c0"], "SELECT commitment FROM samples")
    seen = b"".join(data for _, data in circle.way.said)
    assert rows
    assert all(
        bytes(row[0]) not in seen and bytes(row[0]).hex().encode() not in seen for row in rows
    )
    assert circle.service.state.storage.database.value("SELECT count(*) FROM commitments") == 0
    assert not any("commitments" in key for entry in circle.entries("aggregated") for key in entry)
    assert commitments_root([]) not in shown(circle.entries("aggregated"))


def false(
    monkeypatch: pytest.MonkeyPatch, circle: Circle, name: str, contribution: Contribution
) -> None:
    """Let a client contribute something else than what it adds and deletes."""
    true, store = Masked.contribution, circle.stores[name]
    monkeypatch.setattr(
        Masked,
        "contribution",
        lambda self, *rest: contribution if self._store is store else true(self, *rest),
    )


def of(circle: Circle, added: np.ndarray | None, deleted: np.ndarray | None) -> Contribution:
    parts = [
        None if rows is None else Statistics.of(circle.spec, rows, [0] * len(rows))
        for rows in (added, deleted)
    ]
    return Contribution.of(parts[0], parts[1], circle.spec)


IMPOSSIBLE = {
    "counts": (None, np.ones((50, 3))),
    "diagonal": (np.zeros((1, 3)), np.full((1, 3), 60.0)),
}


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_impossible_sums_are_refused_and_change_nothing(
    circle: Circle, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """A client deletes what it never added: everybody learns it, and rounds without that client
    work once it is forgotten.
    """
    circle.everybody_adds()
    circle.go()
    before = circle.ledger()
    circle.everybody_adds()
    false(monkeypatch, circle, "c3", of(circle, *IMPOSSIBLE[what]))
    circle.until("revealing")
    told = {name: circle.sync(name) for name in ("c0", "c1", "c2", "c3", "c0", "c1", "c2")}
    assert circle.ledger() == before
    for done in told.values():
        assert "cannot tell which client's statistics are false" in done.waiting
        assert "Nothing was changed" in done.waiting
    # The sum was seen. A sum of the others would show the false one's part: they refuse until it
    # has been forgotten.
    said = set()
    for _ in range(6):
        said |= {done.waiting for done in circle.pass_round("c0", "c1", "c2").values()}
        circle.wait(10.0)
    assert any("no arbiter" in one and "forget it" in one for one in said)
    assert circle.ledger() == before
    (entry,) = circle.entries("voided")
    assert entry["reason"] == "impossible"
    circle.wait(PHASE)
    circle.forget_client("c3")
    circle.go(passes=30)
    circle.check_whole()
    assert (len(circle.entries("aggregated")), len(circle.entries("forgotten"))) == (2, 1)


def test_a_sum_whose_counts_contradict_one_another_is_refused(
    circle: Circle, monkeypatch: pytest.MonkeyPatch
) -> None:
    circle.everybody_adds()
    circle.go()
    before = circle.ledger()
    circle.everybody_adds()
    vector = of(circle, np.ones((1, 3)), None).vector()
    vector[0, -1] += np.uint64(1)  # one more of a class is deleted than the class has less

    class Contradicting(Contribution):
        def vector(self) -> Any:
            return vector

    honest = of(circle, np.ones((1, 3)), None)
    false(monkeypatch, circle, "c3", Contradicting(**honest.__dict__))
    circle.until("revealing")
    told = {name: circle.sync(name).waiting for name in ("c0", "c1", "c2", "c3", "c0", "c1", "c2")}
    assert circle.ledger() == before
    assert all(
        "the sum of the round is that of no samples" in waiting for waiting in told.values()
    ), told


# -- receipts --------------------------------------------------------------------------------------


def test_receipts_are_of_rounds_and_list_those_included(circle: Circle) -> None:
    circle.everybody_adds()
    circle.until("masking")
    circle.pass_round("c0", "c1", "c2")  # c3 has shared, and is not there to mask
    circle.wait(PHASE)
    done = circle.go("c0", "c1", "c2")
    for name in ("c0", "c1", "c2"):
        (receipt,) = done[name].receipts
        entry = receipt.logged.entry
        assert receipt.is_of_round
        assert receipt.client == name
        assert [member["client"] for member in entry["clients"]] == ["c0", "c1", "c2"]
        assert entry["added"] == 6
    circle.check()
    assert "went on without this client" in circle.sync("c3").waiting
    circle.everybody_adds("c0", "c1")
    circle.go()
    circle.check_whole()


def test_a_receipt_of_another_round_is_not_believed(circle: Circle) -> None:
    """A server that shows a client the receipt of its last round instead of this one's."""
    circle.everybody_adds()
    circle.go()
    circle.everybody_adds()
    circle.until("revealing")
    old = Envelope.from_bytes(circle.stores["c0"].documents("receipt")[1], "receipt").to_json()
    key = circle.federation.server_key

    def forged(answer: bytes) -> bytes:
        content = Envelope.from_bytes(answer, "standing").unverified()
        return Envelope.signed(
            "standing", content | {"phase": "done", "receipt": old}, key
        ).to_bytes()

    circle.way.change["aggregate"] = forged
    with pytest.raises(EvidenceError, match="not for the round"):
        circle.sync("c0")
    circle.way.change.clear()
    circle.go()
    circle.check_whole()


# -- a masked message twice ------------------------------------------------------------------------


def test_a_masked_message_sent_twice_counts_once(circle: Circle) -> None:
    circle.everybody_adds()
    circle.until("masking")
    circle.sync("c0")
    masked = [
        data
        for who, data in circle.way.said
        if who == "said" and data[:1] != b"{" and read_preamble(data).kind == "masked"
    ]
    again = next(data for data in masked if read_preamble(data).client == "c0")
    for _ in range(3):
        circle.service.aggregate(again)
    circle.go()
    circle.service.aggregate(again)  # late, it is answered by how the round ended
    circle.check_whole()
    assert [entry["added"] for entry in circle.entries("aggregated")] == [8]


# -- thresholds ------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["sharing", "masking", "revealing"])
def test_too_many_drop_outs_abort_and_the_next_round_succeeds(circle: Circle, phase: str) -> None:
    circle.everybody_adds()
    circle.until(phase)
    before, log = (
        circle.ledger(),
        circle.service.state.log.size,
    )  # one client has answered in this phase, and no other does
    circle.wait(PHASE)
    waiting = circle.sync("c0").waiting
    assert (
        "too many clients dropped out" if phase == "revealing" else "but the rules ask for 3"
    ) in waiting
    assert "Nothing was changed: the next sync goes on" in waiting
    assert (circle.ledger(), circle.service.state.log.size) == (before, log)
    circle.go()
    circle.check_whole()
    assert len(circle.entries("aggregated")) == 1


@pytest.mark.parametrize("phase", ["sharing", "masking", "revealing"])
def test_one_drop_out_does_not_stop_a_round(circle: Circle, phase: str) -> None:
    circle.everybody_adds()
    circle.until(phase)
    circle.go("c0", "c1", "c2")
    (entry,) = circle.entries("aggregated")
    included = [member["client"] for member in entry["clients"]]
    assert included == (["c0", "c1", "c2"] if phase != "revealing" else circle.names)
    circle.check()
    circle.everybody_adds("c0", "c1", "c2")
    circle.go()
    circle.check_whole()


# -- whose messages --------------------------------------------------------------------------------


def refused(circle: Circle, data: bytes, code: str) -> None:
    before = circle.ledger(), circle.service.rounds.pulse()[0]
    with pytest.raises(RefusedError) as problem:
        circle.service.aggregate(data)
    assert problem.value.code == code
    assert (circle.ledger(), circle.service.rounds.pulse()[0]) == before


def test_messages_that_the_enrolled_key_did_not_sign_are_refused(circle: Circle) -> None:
    circle.everybody_adds()
    circle.until("masking")
    said = [data for who, data in circle.way.said if who == "said"]
    binary, asking = (
        next(data for data in said if (data[:1] == b"{") is is_text) for is_text in (False, True)
    )
    forged = bytearray(binary)
    forged[-1 if read_preamble(binary).kind == "join" else 30 + binary.index(b"}")] ^= (
        1  # of the signature
    )
    refused(circle, bytes(forged), "bad-signature")
    content = Envelope.from_bytes(asking, "turn").unverified()
    refused(circle, Envelope.signed("turn", content, make_key()).to_bytes(), "bad-signature")
    stranger = SigningKey(b"\7" * 32)
    refused(
        circle,
        Envelope.signed("turn", content | {"actor": "nobody"}, stranger).to_bytes(),
        "unknown-actor",
    )
    refused(
        circle,
        Envelope.signed("turn", content | {"federation": "0" * 32}, stranger).to_bytes(),
        "wrong-federation",
    )
    refused(circle, binary[:50], "malformed")
    circle.go()
    circle.check_whole()


def test_a_late_message_is_answered_only_if_its_client_signed_it(circle: Circle) -> None:
    """Or anybody could fetch another client's receipts."""
    circle.everybody_adds()
    circle.go()
    join = next(data for who, data in circle.way.said if who == "said" and data[:1] != b"{")
    assert b"receipt" in base64.b64decode(
        canonical.decode(circle.service.aggregate(join))["payload"]
    )
    forged = join[:-1] + bytes([join[-1] ^ 1])
    refused(circle, forged, "bad-signature")
