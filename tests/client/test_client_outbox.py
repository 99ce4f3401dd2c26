"""The outbox: one request at a time, the same bytes each time; answers to orders and audits;
resets.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from expunge import Statistics
from expunge.client import ClientStore, Selection
from expunge.errors import InputError, ProtocolError, StoreError
from expunge.wire.messages import request_bytes
from expunge.wire.request import AuditAnswer, OrderAnswer
from support.client_files import live_slots, referred_slots
from support.clients import NOW, SPEC, Server, deliver, features, ids, make_store

ORDER = "ab" * 16


class TestComposing:
    def test_nothing_pending_composes_nothing(self, tmp_path: Path) -> None:
        with make_store(tmp_path) as store:
            assert store.outbox.compose() is None
            assert store.outbox.composed() is None

    @pytest.mark.parametrize("message", ["rows", "gram"])
    def test_the_same_bytes_each_time(self, tmp_path: Path, message: str) -> None:
        with make_store(tmp_path, message=message) as store:
            store.add(ids(5), features(5), [0, 1, 2, 0, 1], now=NOW)
            deliver(store, Server())
            store.forget(Selection(ids=["sample-1"]))
            store.correct("sample-2", label="cat")
            store.add(["new"], features(1, 9), [[0.5, 0.5, 0]], now=NOW)
            composition = store.outbox.compose()
            assert composition is not None
            assert (composition.sequence, composition.added, composition.deleted) == (2, 2, 2)
            data = store.outbox.encode(composition)
        with ClientStore.open(tmp_path / "store") as store:
            again = store.outbox.composed()
            assert again == composition
            store.add(["newer"], features(1), [0], now=NOW)
            store.forget(Selection(ids=["sample-0", "new"]))
            store.amend(SPEC.with_labels("fox"))
            assert store.outbox.composed() == composition
            assert store.outbox.encode(composition) == data

    def test_one_at_a_time(self, tmp_path: Path) -> None:
        with make_store(tmp_path) as store:
            store.add(ids(1), features(1), [0], now=NOW)
            store.outbox.compose()
            with pytest.raises(StoreError, match="request 1 has no receipt yet"):
                store.outbox.compose()

    def test_nonces_differ_unless_given(self, tmp_path: Path) -> None:
        nonces = set()
        with make_store(tmp_path) as store:
            store.add(ids(1), features(1), [0], now=NOW)
            for _ in range(3):
                composition = store.outbox.compose()
                assert composition is not None
                nonces.add(composition.nonce)
                store.outbox.abandon(1, "again")
            given = store.outbox.compose(nonce=b"n" * 32)
            assert given is not None
            assert given.nonce == b"n" * 32
            store.outbox.abandon(1, "again")
            with pytest.raises(InputError, match="nonce"):
                store.outbox.compose(nonce=b"short")
            assert store.outbox.composed() is None
        assert len(nonces) == 3

    def test_a_limit_leaves_the_rest_for_later_deletions_first(self, tmp_path: Path) -> None:
        server = Server()
        with make_store(tmp_path) as store:
            store.add(ids(10), features(10), [0] * 10, now=NOW)
            counts = []
            while (header := deliver(store, server, most=4)) is not None:
                counts.append((header.added, header.deleted))
            assert counts == [(4, 0), (4, 0), (2, 0)]
            store.add(["new-0", "new-1"], features(2, 1), [0, 1], now=NOW)
            store.forget(Selection(ids=ids(3)))
            store.correct("sample-5", label=2)
            counts.clear()
            while (header := deliver(store, server, most=3)) is not None:
                counts.append((header.added, header.deleted))
            assert counts == [(0, 3), (2, 1), (1, 0)]

    def test_a_correction_is_never_torn_apart_by_a_limit(self, tmp_path: Path) -> None:
        server = Server()
        with make_store(tmp_path) as store:
            store.add(ids(4), features(4), [0] * 4, now=NOW)
            deliver(store, server)
            for name in ids(4):
                store.correct(name, label="dog")
            while (header := deliver(store, server, most=1)) is not None:
                assert (header.added, header.deleted) == (1, 1)
            assert server.statistics == Statistics.of(SPEC, features(4), [1] * 4)


class TestSettling:
    def test_a_receipt_is_kept_and_may_come_twice(self, tmp_path: Path) -> None:
        with make_store(tmp_path) as store:
            store.add(ids(2), features(2), [0, 1], now=NOW)
            store.outbox.compose()
            store.outbox.settle(1, b"receipt", checkpoint=(7, b"r" * 32))
            before = store.status()
            store.outbox.settle(1, b"receipt")
            assert store.status() == before
            assert store.documents("receipt") == {1: b"receipt"}
            assert store.checkpoint == (7, b"r" * 32)
            assert (before.live, before.sequence, before.composed) == (2, 1, None)
            with pytest.raises(StoreError, match="request 1 is not being offered"):
                store.outbox.settle(1, b"another")
            with pytest.raises(StoreError, match="request 2 is not being offered"):
                store.outbox.abandon(2, "why")

    def test_an_abandoned_request_is_pending_again(self, tmp_path: Path) -> None:
        server = Server()
        with make_store(tmp_path) as store:
            store.add(ids(3), features(3), [0, 1, 2], now=NOW)
            deliver(store, server)
            store.add(["new"], features(1, 1), [0], now=NOW)
            store.forget(Selection(ids=["sample-0"]))
            store.correct("sample-1", label=0)
            store.outbox.compose()
            store.outbox.abandon(2, "the labels have been amended")
            status = store.status()
            assert (status.adding, status.deleting, status.live, status.composed) == (2, 2, 1, None)
            assert status.refusal == "the labels have been amended"
            assert live_slots(store) == referred_slots(store)
            assert len(live_slots(store)) == 1 + status.adding + status.deleting + status.live
            header = deliver(store, server)
            assert header is not None
            assert (header.sequence, header.added, header.deleted) == (2, 2, 2)
            assert store.status().refusal == ""


class TestOrders:
    def test_an_order_is_answered_with_what_was_found(self, tmp_path: Path) -> None:
        server = Server()
        with make_store(tmp_path) as store:
            store.add(ids(4), features(4), [0] * 4, subjects=["ann", "ann", "ben", None], now=NOW)
            deliver(store, server)
            assert store.forget(Selection(subject="ann"), order=ORDER).count == 2
            assert store.status().orders == 1
            assert store.forget(Selection(subject="ann"), order=ORDER).count == 0
            header = deliver(store, server)
            assert header is not None
            assert (header.orders, header.deleted) == ((OrderAnswer(ORDER, 2),), 2)
            assert store.status().orders == 0
            assert deliver(store, server) is None

    def test_nothing_is_an_answer(self, tmp_path: Path) -> None:
        with make_store(tmp_path) as store:
            assert store.forget(Selection(subject="cyd"), order=ORDER).count == 0
            header = deliver(store, Server())
            assert header is not None
            assert (header.orders, header.message, header.deleted) == (
                (OrderAnswer(ORDER, 0),),
                "none",
                0,
            )

    def test_the_answer_waits_for_the_request_that_deletes(self, tmp_path: Path) -> None:
        server = Server()
        with make_store(tmp_path) as store:
            store.add(ids(3), features(3), [0] * 3, subjects=["ann"] * 3, now=NOW)
            store.outbox.compose()
            store.forget(Selection(subject="ann"), order=ORDER)
            first, second = deliver(store, server), deliver(store, server)
            assert first is not None
            assert second is not None
            assert first.orders == ()
            assert (second.orders, second.deleted) == ((OrderAnswer(ORDER, 3),), 3)

    def test_an_abandoned_answer_is_given_again(self, tmp_path: Path) -> None:
        server = Server()
        with make_store(tmp_path) as store:
            store.add(ids(1), features(1), [0], subjects=["ann"], now=NOW)
            deliver(store, server)
            store.forget(Selection(subject="ann"), order=ORDER)
            store.outbox.compose()
            store.outbox.abandon(2, "no")
            header = deliver(store, server)
            assert header is not None
            assert header.orders == (OrderAnswer(ORDER, 1),)

    def test_two_orders_for_one_subject_count_each_sample_once(self, tmp_path: Path) -> None:
        server = Server()
        with make_store(tmp_path) as store:
            store.add(ids(2), features(2), [0, 0], subjects=["ann"] * 2, now=NOW)
            deliver(store, server)
            store.forget(Selection(subject="ann"), order=ORDER)
            store.forget(Selection(subject="ann"), order="cd" * 16)
            header = deliver(store, server)
            assert header is not None
            assert {answer.order: answer.found for answer in header.orders} == {
                ORDER: 2,
                "cd" * 16: 0,
            }

    def test_what_an_order_deletes_is_never_divided(self, tmp_path: Path) -> None:
        server = Server()
        with make_store(tmp_path) as store:
            store.add(
                ids(5), features(5), [0] * 5, subjects=["ann", "ben", "ben", "ben", "ann"], now=NOW
            )
            deliver(store, server)
            store.forget(Selection(subject="ann"))
            store.forget(Selection(subject="ben"), order=ORDER)
            first, second = deliver(store, server, most=2), deliver(store, server, most=2)
            assert first is not None
            assert second is not None
            assert (first.deleted, first.orders) == (3, (OrderAnswer(ORDER, 3),))
            assert (second.deleted, second.orders) == (2, ())

    def test_orders_that_wait_for_one_sample_are_answered_together(self, tmp_path: Path) -> None:
        """The second order finds what the first counts already, and samples of its own."""
        server = Server()
        other = "00" * 16  # which comes first by its id
        with make_store(tmp_path) as store:
            store.add(ids(3), features(3), [0] * 3, subjects=["ann"] * 3, now=NOW)
            deliver(store, server)
            store.forget(Selection(subject="ann"), order=ORDER)
            store.add(ids(2, "more"), features(2, 1), [0] * 2, subjects=["ann"] * 2, now=NOW)
            for _ in range(2):
                header = deliver(store, server, most=1, largest=1)  # so that the order has to wait
                assert header is not None
                assert (header.added, header.deleted, header.orders) == (1, 0, ())
            store.forget(Selection(subject="ann"), order=other)
            header = deliver(store, server, most=1)
            assert header is not None
            assert (header.deleted, header.orders) == (
                5,
                (OrderAnswer(other, 2), OrderAnswer(ORDER, 3)),
            )

    def test_a_sample_of_an_order_that_is_not_waited_for_counts_for_the_next_one(
        self, tmp_path: Path
    ) -> None:
        server = Server()
        with make_store(tmp_path) as store:
            store.add(ids(2), features(2), [0] * 2, subjects=["ann"] * 2, now=NOW)
            deliver(store, server)
            store.forget(Selection(subject="ann"), order="cd" * 16)
            store.drop_orders([])
            store.forget(Selection(subject="ann"), order=ORDER)
            header = deliver(store, server)
            assert header is not None
            assert header.orders == (OrderAnswer(ORDER, 2),)

    @pytest.mark.parametrize("kind", ["rows", "gram"])
    def test_an_order_too_large_for_rows_goes_as_statistics(
        self, tmp_path: Path, kind: str
    ) -> None:
        server = Server()
        with make_store(tmp_path) as store:
            store.add(ids(40), features(40), [0] * 40, subjects=["ann"] * 40, now=NOW)
            deliver(store, server)
            store.forget(Selection(subject="ann"), order=ORDER)
            header = deliver(store, server, most=5, largest=request_bytes(SPEC, kind, 0, 40, 1))
            assert header is not None
            assert (header.message, header.deleted, header.orders) == (
                kind,
                40,
                (OrderAnswer(ORDER, 40),),
            )
            assert server.statistics == Statistics.zero(SPEC)

    def test_an_order_too_large_for_anything_is_named_and_holds_up_nothing_else(
        self, tmp_path: Path
    ) -> None:
        server = Server()
        largest = request_bytes(SPEC, "gram", 0, 40, 1) - 1
        with make_store(tmp_path) as store:
            store.add(ids(41), features(41), [0] * 41, subjects=["ann"] * 40 + ["ben"], now=NOW)
            deliver(store, server)
            store.forget(Selection(subject="ann"), order=ORDER)
            store.forget(Selection(subject="ben"), order="cd" * 16)
            store.add(["new"], features(1, 1), [0], now=NOW)
            header = deliver(store, server, most=5, largest=largest)
            assert header is not None
            assert (header.added, header.deleted, header.orders) == (
                1,
                1,
                (OrderAnswer("cd" * 16, 1),),
            )
            with pytest.raises(
                ProtocolError,
                match=rf"the 40 samples .* order {ORDER} .*takes {largest}.*largest-request",
            ):
                store.outbox.compose(most=5, largest=largest)
            header = deliver(store, server, most=5, largest=largest + 1)
            assert header is not None
            assert header.orders == (OrderAnswer(ORDER, 40),)


class TestAudits:
    def test_an_answer_travels_alone(self, tmp_path: Path) -> None:
        server = Server()
        answer = AuditAnswer("ef" * 16, "d" * 64, 2)
        with make_store(tmp_path) as store:
            store.add(ids(2), features(2), [0, 1], now=NOW)
            deliver(store, server)
            store.add(["new"], features(1), [0], now=NOW)
            store.forget(Selection(ids=["sample-0"]), order=ORDER)
            assert store.statistics() == server.statistics
            header = deliver(store, server, audits=[answer])
            assert header is not None
            assert (header.audits, header.orders, header.message) == ((answer,), (), "none")
            assert store.answered(answer.audit)
            assert not store.answered("00" * 16)
            assert store.statistics() == server.statistics
            header = deliver(store, server)
            assert header is not None
            assert (header.added, header.deleted, len(header.orders)) == (1, 1, 1)


class TestReset:
    def test_everything_that_stays_is_said_again(self, tmp_path: Path) -> None:
        with make_store(tmp_path) as store:
            store.add(ids(4), features(4), [0, 1, 2, 0], now=NOW)
            deliver(store, Server())
            store.add(["new"], features(1, 1), [1], now=NOW)
            store.forget(Selection(ids=["sample-0"]))
            store.correct("sample-1", label=2)
            server = Server(sequence=6)
            header = deliver(store, server, reset=True, sequence=7)
            assert header is not None
            assert (header.reset, header.added, header.deleted, store.sequence) == (True, 4, 0, 7)
            rows = np.concatenate([features(4)[1:], features(1, 1)])
            assert (
                server.statistics == Statistics.of(SPEC, rows, [2, 2, 0, 1]) == store.statistics()
            )
            assert (store.status().live, store.status().deleting, store.status().adding) == (
                4,
                0,
                0,
            )
            store.forget(Selection(everything=True))
            deliver(store, server)
            assert server.account.count == 0

    @pytest.mark.parametrize("refused", [False, True])
    def test_forgotten_while_a_reset_is_on_its_way(self, tmp_path: Path, refused: bool) -> None:
        with make_store(tmp_path) as store:
            server = Server()
            store.add(ids(2), features(2), [0, 1], now=NOW)
            deliver(store, server)
            store.outbox.compose(reset=True)
            store.forget(Selection(ids=["sample-0"]))
            assert store.statistics() == server.statistics
            if refused:
                store.outbox.abandon(2, "no")
            else:
                deliver(store, server)
            header = deliver(store, server)
            assert header is not None
            assert header.deleted == 1
            assert server.statistics == Statistics.of(SPEC, features(2)[1:], [1])

    def test_a_reset_too_large_for_rows_goes_as_statistics(self, tmp_path: Path) -> None:
        with make_store(tmp_path) as store:
            store.add(ids(40), features(40), [0] * 40, now=NOW)
            server = Server(sequence=6)
            largest = request_bytes(SPEC, "gram", 40, 0)
            header = deliver(store, server, reset=True, sequence=7, most=5, largest=largest)
            assert header is not None
            assert (header.message, header.added) == ("gram", 40)
            assert server.statistics == Statistics.of(SPEC, features(40), [0] * 40)

    @pytest.mark.parametrize("refused", [False, True])
    def test_what_a_reset_leaves_out_is_added_afterwards(
        self, tmp_path: Path, refused: bool
    ) -> None:
        with make_store(tmp_path) as store:
            store.add(ids(9), features(9), [0] * 9, now=NOW)
            deliver(store, Server())
            store.correct("sample-1", label=2)
            server = Server(sequence=6)
            composition = store.outbox.compose(reset=True, sequence=7, most=3, largest=100)
            assert composition is not None
            assert (composition.kind, composition.added) == ("rows", 3)
            store.forget(
                Selection(ids=["sample-0", "sample-7"])
            )  # the one goes with the reset, the other was left out
            if refused:
                store.outbox.abandon(7, "no")
                assert store.status().live == 6
                deliver(store, server, reset=True, sequence=7)
            else:
                deliver(store, server)
                assert (store.status().live, store.status().adding, store.status().deleting) == (
                    2,
                    5,
                    1,
                )
                assert store.statistics().count == server.statistics.count == 3
            while deliver(store, server, most=3) is not None:
                pass
            rows = features(9)[[1, 2, 3, 4, 5, 6, 8]]
            assert (
                server.statistics
                == Statistics.of(SPEC, rows, [2, 0, 0, 0, 0, 0, 0])
                == store.statistics()
            )

    def test_an_empty_reset_is_a_request(self, tmp_path: Path) -> None:
        with make_store(tmp_path) as store:
            header = deliver(store, Server(), reset=True)
            assert header is not None
            assert (header.reset, header.added) == (True, 0)
