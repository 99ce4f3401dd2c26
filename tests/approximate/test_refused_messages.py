"""Messages that no ledger should take, and what a refusal or an interrupt leaves behind: everything
as it was.
"""

from __future__ import annotations

import hashlib
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge import Spec, Statistics
from expunge.approximate import ApproximateLedger, ApproximateMessage, Batch, Interval, compress
from expunge.errors import (
    ExpungeError,
    FormatError,
    ImpossibleDeletionError,
    InputError,
    NotAGramError,
)
from expunge.exact import blas
from support.approximate import facts, sums_of

SPEC = Spec(dim=4, labels=(0, 1), gamma=0.5)
RNG = np.random.default_rng(0)
FEATURES, LABELS = RNG.normal(size=(12, 4)), RNG.integers(2, size=12)
MESSAGE = compress(Batch.of(SPEC, FEATURES, LABELS), "truncated", 3, precision="float64")


def begun() -> ApproximateLedger:
    ledger = ApproximateLedger(SPEC)
    ledger.add(MESSAGE)
    return ledger


@pytest.mark.parametrize("verb", ["add", "delete"])
@pytest.mark.parametrize(
    "change",
    [
        {"factor": np.full((3, 5), 1e153)},
        {"moment": np.full((5, 2), 1e153)},
        {"error": Interval(1.7e308, 1.7e308)},
        {"moment_error": 1.7e308},
    ],
    ids=["factor", "moment", "error", "moment_error"],
)
def test_sums_that_would_overflow_are_refused_with_nothing_changed(
    change: dict[str, Any], verb: str
) -> None:
    """Each message is finite in itself; together with what the ledger holds it is not."""
    ledger = begun()
    unkind = replace(MESSAGE, **change)
    for _ in range(20):
        before = facts(ledger)
        try:
            getattr(ledger, verb)(
                replace(unkind, count=0, class_counts=np.zeros(2, dtype=np.int64))
            )
        except ExpungeError:
            assert facts(ledger) == before
            break
        assert all(
            np.isfinite(value).all()
            for value in (sums_of(ledger).gram, sums_of(ledger).moment, ledger.moment_error)
        )
    assert np.isfinite(sums_of(ledger).gram).all()
    assert np.isfinite(ledger.moment_error)


@pytest.mark.parametrize("place", ["factor", "moment"])
def test_arrays_whose_squares_overflow_are_no_message(place: str) -> None:
    with pytest.raises(InputError, match="finite"):
        replace(MESSAGE, **{place: np.full_like(getattr(MESSAGE, place), 1e200)})


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"class_counts": np.zeros(3, dtype=np.int64)}, "class counts"),
        ({"class_counts": np.zeros((1, 2), dtype=np.int64)}, "class counts"),
        ({"class_counts": np.full(2, 2**62, dtype=np.int64), "count": 12}, "class counts"),
        ({"class_counts": np.zeros(2)}, "int64"),
        ({"moment": np.zeros((5, 2), dtype=np.float32)}, "float64"),
        ({"count": 2**60}, "2\\^44"),
    ],
)
def test_messages_that_no_ledger_could_add_are_refused(change: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        replace(MESSAGE, **change)


@given(data=st.data())
def test_altered_bytes_under_a_true_checksum_never_tear_a_ledger(data: st.DataObject) -> None:
    """Whatever a sender writes, the message is refused, or the ledger refuses it whole, or the
    ledger is finite afterwards.
    """
    content = bytearray(MESSAGE.to_bytes()[:-32])
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(85, len(content) - 1))] = data.draw(st.integers(0, 255))
    ledger = begun()
    before = facts(ledger)
    try:
        message = ApproximateMessage.from_bytes(
            SPEC, bytes(content) + hashlib.sha256(content).digest()
        )
    except FormatError:
        return
    try:
        data.draw(st.sampled_from([ledger.add, ledger.delete]))(message)
    except ExpungeError:
        assert facts(ledger) == before
        return
    assert np.isfinite(sums_of(ledger).gram).all()
    assert np.isfinite(sums_of(ledger).moment).all()
    assert ledger.requests == 2


@pytest.mark.parametrize("verb", ["add", "delete"])
def test_an_interrupt_leaves_the_ledger_whole(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = begun()
    before = facts(ledger)
    add_gram = blas.add_gram

    def interrupted(*arguments: Any) -> None:
        add_gram(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(blas, "add_gram", interrupted)
        with pytest.raises(KeyboardInterrupt):
            getattr(ledger, verb)(MESSAGE)
    assert facts(ledger) == before


def test_a_deletion_that_is_taken_leaves_a_head() -> None:
    """Also where gamma is about as small as what float64 can prove: there it is refused, or there
    is a head.
    """
    features = np.repeat(np.array([[40.0, -30.0, 20.0, 10.0]]), 30, axis=0)
    labels = np.arange(30) % 2
    taken = refused = 0
    for gamma in np.geomspace(1e-12, 1e-8, 60):
        spec = replace(SPEC, gamma=float(gamma))
        ledger = ApproximateLedger.of(spec, [Statistics.of(spec, features, labels)])
        try:
            ledger.delete(
                compress(
                    Batch.of(spec, features[:3], labels[:3]), "truncated", 3, precision="float64"
                )
            )
        except NotAGramError:
            refused += 1
            continue
        taken += 1
        assert ledger.head().bounds.floor > 0.0
    assert taken > 10
    assert refused > 10


def test_a_reset_is_due_where_no_head_can_be_proven() -> None:
    spec = replace(SPEC, gamma=1e-12)
    ledger = ApproximateLedger(spec, reset_above=1.0)
    ledger.add(compress(Batch.of(spec, np.full((30, 4), 50.0), np.arange(30) % 2), "truncated", 1))
    with pytest.raises(NotAGramError, match="reset"):
        ledger.head()
    assert ledger.reset_due


def test_a_floor_is_not_kept_beyond_the_sums_that_it_is_of() -> None:
    whole = Statistics.of(SPEC, FEATURES, LABELS)
    ledger = ApproximateLedger.of(SPEC, [whole])
    floors = [ledger.head().bounds.floor]
    ledger.delete(compress(Batch.of(SPEC, FEATURES[:9], LABELS[:9]), "truncated", 5))
    floors.append(ledger.head().bounds.floor)
    ledger.add(compress(Batch.of(SPEC, FEATURES[:9], LABELS[:9]), "truncated", 5))
    floors.append(ledger.head().bounds.floor)
    ledger.reset([Statistics.zero(SPEC)])
    floors.append(ledger.head().bounds.floor)
    assert floors[1] < floors[0]
    assert floors[2] == pytest.approx(floors[0], rel=1e-3)
    assert floors[3] == floors[0]
    assert ledger.head(2.0).bounds.floor == pytest.approx(floors[0] + 1.5, rel=1e-2)
    assert ledger.head().bounds.floor == floors[0]


def test_a_ledger_does_not_begin_with_statistics_of_no_samples() -> None:
    some, more = (
        Statistics.of(SPEC, FEATURES[:4], LABELS[:4]),
        Statistics.of(SPEC, FEATURES, LABELS),
    )
    for wrong in ([some - more], [some, some - more]):
        with pytest.raises(NotAGramError, match="samples"):
            ApproximateLedger.of(SPEC, wrong)
    assert ApproximateLedger.of(SPEC, [more - some]).count == 8


def test_soft_labels_cannot_be_deleted_from_hard_ones() -> None:
    ledger = begun()
    before = facts(ledger)
    soft = compress(Batch.of(SPEC, FEATURES[:2], np.full((2, 2), 0.5)), "truncated", 2)
    with pytest.raises(ImpossibleDeletionError, match="nothing was deleted"):
        ledger.delete(soft)
    assert facts(ledger) == before


@pytest.mark.parametrize("seed", [-1, 1.5, True])
def test_a_seed_is_a_whole_number(seed: Any) -> None:
    with pytest.raises(InputError, match="seed"):
        compress(Batch.of(SPEC, FEATURES, LABELS), "gaussian", 2, seed=seed)


def test_a_rank_beyond_the_samples_takes_no_memory() -> None:
    few = compress(Batch.of(SPEC, FEATURES, LABELS), "frequent_directions", 12)
    assert (
        compress(Batch.of(SPEC, FEATURES, LABELS), "frequent_directions", 2**50).to_bytes()
        == few.to_bytes()
    )


def test_ledgers_heads_and_messages_survive_a_pickle() -> None:
    ledger = begun()
    again = pickle.loads(pickle.dumps(ledger))  # noqa: S301 - our own bytes
    assert facts(again) == facts(ledger)
    again.add(MESSAGE)
    ledger.add(MESSAGE)
    assert facts(again) == facts(ledger)
    head = pickle.loads(pickle.dumps(ledger.head()))  # noqa: S301 - our own bytes
    assert head.bounds == ledger.head().bounds
    assert np.array_equal(head.weights, ledger.head().weights)
