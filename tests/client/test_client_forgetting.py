"""Forgetting and correcting, in every state that a sample can be in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from expunge import Statistics
from expunge.client import Selection
from expunge.errors import InputError, StoreError, UnknownSampleError
from support.client_files import live_slots
from support.clients import NOW, SPEC, Server, deliver, features, ids, make_store


class TestForgetting:
    def test_what_never_left_home_is_gone_at_once(self, tmp_path: Path) -> None:
        with make_store(tmp_path) as store:
            store.add(ids(3), features(3), [0, 1, 2], now=NOW)
            preview = store.forget(Selection(ids=["sample-1"]))
            assert (preview.ids, preview.unsent, preview.pending) == (("sample-1",), 1, ())
            assert store.status().adding == 2
            with pytest.raises(UnknownSampleError):
                store.preview(Selection(ids=["sample-1"]))

    def test_what_is_on_its_way_is_deleted_by_a_later_request(self, tmp_path: Path) -> None:
        server = Server()
        with make_store(tmp_path) as store:
            store.add(ids(3), features(3), [0, 1, 2], now=NOW)
            composition = store.outbox.compose()
            assert composition is not None
            preview = store.forget(Selection(ids=["sample-1"]))
            assert (preview.count, preview.unsent) == (1, 0)
            assert store.status().deleting == 1
            deliver(store, server)
            assert server.account.count == 3
            header = deliver(store, server)
            assert header is not None
            assert (header.added, header.deleted) == (0, 1)
            assert server.statistics == Statistics.of(SPEC, features(3)[[0, 2]], [0, 2])

    def test_what_was_on_its_way_and_refused_is_gone(self, tmp_path: Path) -> None:
        with make_store(tmp_path) as store:
            store.add(ids(3), features(3), [0, 1, 2], now=NOW)
            store.outbox.compose()
            store.forget(Selection(ids=["sample-1"]))
            store.outbox.abandon(1, "no")
            assert (store.status().adding, store.status().deleting) == (2, 0)
            store.add(["sample-1"], features(1), [0], now=NOW)

    def test_asking_twice_is_asking_once(self, tmp_path: Path) -> None:
        with make_store(tmp_path) as store:
            store.add(ids(2), features(2), [0, 1], now=NOW)
            deliver(store, server := Server())
            store.forget(Selection(ids=["sample-0"]))
            again = store.forget(Selection(everything=True))
            assert (again.ids, again.pending) == (("sample-1",), ("sample-0",))
            header = deliver(store, server)
            assert header is not None
            assert header.deleted == 2

    def test_leaving_takes_everything_along(self, tmp_path: Path) -> None:
        server = Server()
        with make_store(tmp_path) as store:
            store.add(ids(4), features(4), [0, 1, 2, 0], now=NOW)
            deliver(store, server)
            store.add(["on its way"], features(1), [0], now=NOW)
            store.outbox.compose()
            store.add(["at home"], features(1), [0], now=NOW)
            assert store.leave().count == 6
            with pytest.raises(StoreError, match="leaving"):
                store.add(["late"], features(1), [0], now=NOW)
            with pytest.raises(StoreError, match="leaving"):
                store.correct("sample-0", label=1)
            header = deliver(store, server)
            assert header is not None
            assert not header.leave
            header = deliver(store, server)
            assert header is not None
            assert (header.leave, header.deleted, server.account.count) == (True, 5, 0)
            assert (store.status().leaving, store.status().left) == (True, True)
            assert deliver(store, server) is None

    def test_a_client_without_samples_can_leave(self, tmp_path: Path) -> None:
        with make_store(tmp_path) as store:
            assert store.leave().count == 0
            header = deliver(store, Server())
            assert header is not None
            assert (header.leave, header.message, header.deleted) == (True, "none", 0)

    def test_leaving_waits_for_a_limit(self, tmp_path: Path) -> None:
        server = Server()
        with make_store(tmp_path) as store:
            store.add(ids(5), features(5), [0] * 5, now=NOW)
            deliver(store, server)
            store.leave()
            leaves = []
            while (header := deliver(store, server, most=2)) is not None:
                leaves.append(header.leave)
            assert leaves == [False, False, True]


class TestCorrecting:
    def test_delete_and_add_travel_together(self, tmp_path: Path) -> None:
        server = Server()
        with make_store(tmp_path) as store:
            store.add(ids(3), features(3), ["cat", "dog", "eel"], subjects=["ann"] * 3, now=NOW)
            deliver(store, server)
            store.correct("sample-0", label="eel")
            store.correct("sample-1", feature=features(1, 5, np.float64)[0])
            store.correct("sample-2", feature=features(1, 6)[0], label="cat")
            header = deliver(store, server)
            assert header is not None
            assert (header.added, header.deleted) == (3, 3)
            rows = np.concatenate([features(3)[:1], features(1, 5, np.float64), features(1, 6)])
            assert server.statistics == Statistics.of(SPEC, rows, [2, 1, 0]) == store.statistics()
            assert set(store.preview(Selection(subject="ann", until=NOW + 1)).ids) == set(ids(3))

    @pytest.mark.parametrize("delivered", [False, True])
    def test_what_is_so_already_makes_no_request(self, tmp_path: Path, delivered: bool) -> None:
        server = Server()
        with make_store(tmp_path) as store:
            store.add(["a"], features(1), [0], now=NOW)
            if delivered:
                deliver(store, server)
            before = store.status(), live_slots(store), store.statistics()
            name = SPEC.labels[0] if SPEC.labels else ""
            for change in ({"label": 0}, {"label": name}, {"feature": features(1)[0]}):
                assert store.correct("a", **change) is False
            assert (store.status(), live_slots(store), store.statistics()) == before
            assert (store.outbox.compose() is None) == delivered

    def test_commitments_are_new_if_something_changes(self, tmp_path: Path) -> None:
        server = Server()
        with make_store(tmp_path) as store:
            store.add(["a"], features(1), [0], now=NOW)
            deliver(store, server)
            before = set(server.live)
            assert store.correct("a", label=1)
            assert store.correct("a", label=0)
            deliver(store, server)
            assert len(server.live) == 1
            assert not server.live & before

    def test_what_never_left_home_is_just_replaced(self, tmp_path: Path) -> None:
        server = Server()
        with make_store(tmp_path) as store:
            store.add(["a"], features(1), [0], now=NOW)
            store.correct("a", label=1)
            assert store.status().adding == 1
            header = deliver(store, server)
            assert header is not None
            assert (header.added, header.deleted) == (1, 0)
            assert server.statistics == Statistics.of(SPEC, features(1), [1])

    @pytest.mark.parametrize("composed", [False, True])
    def test_twice(self, tmp_path: Path, composed: bool) -> None:
        server = Server()
        with make_store(tmp_path) as store:
            store.add(["a"], features(1), [0], now=NOW)
            deliver(store, server)
            store.correct("a", label=1)
            if composed:
                store.outbox.compose()
            store.correct("a", label=2)
            while (header := deliver(store, server, most=1)) is not None:
                assert (header.added, header.deleted) == (1, 1)
            assert server.statistics == Statistics.of(SPEC, features(1), [2])

    def test_the_id_of_a_corrected_sample_is_taken(self, tmp_path: Path) -> None:
        with make_store(tmp_path) as store:
            store.add(["z", "a"], features(2), [0, 0], now=NOW)
            store.forget(
                Selection(ids=["z"])
            )  # so that the corrected sample gets a lower slot than the one that it replaces
            deliver(store, Server())
            store.correct("a", label=1)
            with pytest.raises(InputError, match=r"row 0 .*is in the store already"):
                store.add(["a"], features(1), [0], now=NOW)

    def test_corrected_and_then_forgotten(self, tmp_path: Path) -> None:
        server = Server()
        with make_store(tmp_path) as store:
            store.add(["a", "b"], features(2), [0, 1], now=NOW)
            deliver(store, server)
            store.correct("a", label=1)
            store.forget(Selection(ids=["a"]))
            header = deliver(store, server)
            assert header is not None
            assert (header.added, header.deleted) == (0, 1)
            assert server.statistics == Statistics.of(SPEC, features(2)[1:], [1])

    @pytest.mark.parametrize(
        ("change", "text"),
        [
            ({}, "nothing"),
            ({"label": "cow"}, "^the sample cannot be taken.*: the label is not in the spec"),
            ({"feature": [1, 2, np.nan, 4]}, "^the sample cannot be taken.*column 2.*nan"),
            ({"label": 3}, "the label is not a class index"),
        ],
    )
    def test_a_bad_correction_changes_nothing(self, tmp_path: Path, change: Any, text: str) -> None:
        with make_store(tmp_path) as store:
            store.add(["a"], features(1), [0], now=NOW)
            deliver(store, Server())
            before = store.status(), live_slots(store)
            with pytest.raises(InputError, match=text):
                store.correct("a", **change)
            assert (store.status(), live_slots(store)) == before

    def test_what_is_being_deleted_cannot_be_corrected(self, tmp_path: Path) -> None:
        with make_store(tmp_path) as store:
            store.add(["a"], features(1), [0], now=NOW)
            deliver(store, Server())
            store.forget(Selection(ids=["a"]))
            with pytest.raises(UnknownSampleError, match="being deleted"):
                store.correct("a", label=1)
