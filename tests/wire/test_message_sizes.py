"""What a request has in bytes is known before it is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from expunge import Grid, Spec, Statistics
from expunge.client import Selection
from expunge.wire.messages import request_bytes, statistics_bytes
from expunge.wire.request import OrderAnswer
from support.clients import NOW, features, ids, make_store

LABELS = ("cat", "dog", "eel")
SPECS = {
    "rows": Spec(dim=4, labels=LABELS, grid=Grid(2, 30)),
    "gram": Spec(dim=4, labels=LABELS, grid=Grid(2, 30), intercept=False),
    "factor": Spec(dim=4, labels=LABELS, gamma=0.5, messages=("factor",)),
}


@pytest.mark.parametrize(
    "spec",
    [SPECS["rows"], SPECS["gram"], Spec(dim=7, outputs=2), Spec(dim=1, labels=("a", "b"))],
    ids=["", "plain", "real", "1"],
)
def test_statistics_have_as_many_bytes_as_is_said(spec: Spec) -> None:
    assert statistics_bytes(spec) == len(Statistics.zero(spec).to_bytes())


@pytest.mark.parametrize("kind", ["rows", "gram", "factor"])
@pytest.mark.parametrize("soft", [False, True])
def test_no_request_is_larger_than_is_said(tmp_path: Path, kind: str, soft: bool) -> None:
    labels = [[0.5, 0.25, 0.25]] * 20 if soft else [0] * 20
    with make_store(tmp_path, SPECS[kind], message=kind) as store:
        store.add(ids(20), features(20), labels, subjects=["ann"] * 10 + ["ben"] * 10, now=NOW)
        first = store.outbox.compose()
        assert first is not None
        assert len(store.outbox.encode(first)) <= request_bytes(SPECS[kind], kind, 20, 0)
        store.outbox.settle(1, b"receipt")
        for order, subject in (("ab" * 16, "ann"), ("cd" * 16, "ben")):
            store.forget(Selection(subject=subject), order=order)
        store.add(ids(5, "more"), features(5), labels[:5], now=NOW)
        second = store.outbox.compose()
        assert second is not None
        assert second.orders == (OrderAnswer("ab" * 16, 10), OrderAnswer("cd" * 16, 10))
        bound = request_bytes(SPECS[kind], kind, 5, 20, 2)
        assert bound - 2000 < len(store.outbox.encode(second)) <= bound
