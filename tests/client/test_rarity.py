"""Columns and classes that few of the pending samples have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge import Grid, Spec
from expunge.client import ClientStore, Rarity, Selection
from expunge.client.rarity import rarity_of
from expunge.ridge.encoding import integer_rows
from expunge.ridge.spec import recommended_fewest_samples
from support.clients import NOW, SPEC, features, ids, make_store

GRAM = replace(SPEC, messages=("gram",))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ClientStore]:
    with make_store(tmp_path, GRAM, message="gram") as one:
        yield one


@given(
    supports=st.lists(st.integers(0, 12), min_size=3, max_size=3),
    labels=st.lists(st.integers(0, 2), min_size=12, max_size=12),
    cuts=st.integers(1, 12),
)
def test_as_counted_by_hand(supports: list[int], labels: list[int], cuts: int) -> None:
    """However the samples come in blocks: width 4 asks for 8 samples, and half of 12 are 6."""
    spec = Spec(dim=3, labels=("cat", "dog", "eel"), grid=Grid(2, 30), messages=("gram",))
    rows = np.zeros((12, 3))
    for column, support in enumerate(supports):
        rows[:support, column] = 1.5
    blocks = [
        integer_rows(spec, rows[start : start + cuts], np.array(labels[start : start + cuts]))
        for start in range(0, 12, cuts)
    ]
    counts = {name: labels.count(place) for place, name in enumerate(("cat", "dog", "eel"))}
    expected = Rarity(
        12,
        sum(1 <= support <= 6 for support in supports),
        {name: count for name, count in counts.items() if 1 <= count <= 6},
    )
    found = rarity_of(spec, 12, blocks)
    assert found == expected
    assert bool(found) == bool(expected.columns or expected.labels)


def test_enough_samples_are_not_few() -> None:
    """Of a hundred samples, half are more than the rule asks for."""
    spec = Spec(dim=3, outputs=1, grid=Grid(2, 30), messages=("gram",))
    assert recommended_fewest_samples(spec.width) == 8
    rows = np.ones((100, 3))
    rows[7:, 0] = 0.0
    rows[8:, 1] = 0.0
    found = rarity_of(spec, 100, [integer_rows(spec, rows, np.zeros((100, 1)))])
    assert found == Rarity(100, 1)


def test_a_soft_label_counts_for_every_class_that_it_has(store: ClientStore) -> None:
    labels = np.array([[1.0, 0.0, 0.0]] * 3 + [[0.5, 0.5, 0.0]])
    store.add(ids(4), features(4), labels, now=NOW)
    assert store.rarity() == Rarity(4, 0, {"dog": 1})


def test_of_all_that_is_pending_and_nothing_else(store: ClientStore) -> None:
    assert not store.rarity()
    store.add(ids(4), features(4), [0, 0, 0, 1], now=NOW)
    assert store.rarity() == Rarity(4, 0, {"dog": 1})
    store.outbox.compose()
    assert store.rarity() == Rarity()
    store.outbox.settle(1, b"receipt")
    store.forget(Selection(ids=["sample-3"]), now=NOW)
    store.add(ids(3, "more"), features(3), [2, 2, 2], now=NOW)
    assert store.rarity() == Rarity(4, 0, {"dog": 1})


def test_asking_changes_nothing_that_is_sent(store: ClientStore, tmp_path: Path) -> None:
    store.add(ids(3), features(3), [0, 1, 2], now=NOW)
    asked = store.rarity()
    first = store.outbox.compose(nonce=bytes(32))
    assert first is not None
    sent = store.outbox.encode(first)
    store.close()
    with ClientStore.open(tmp_path / "store") as again:  # where nothing is in memory
        outstanding = again.outbox.composed()
        assert outstanding is not None
        assert again.outbox.encode(outstanding) == sent
        again.outbox.abandon(1, "")
        assert again.rarity() == asked
