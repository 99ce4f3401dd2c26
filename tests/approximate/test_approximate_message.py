from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge import Spec, Statistics
from expunge.approximate import ApproximateMessage, Batch, Interval, compress
from expunge.errors import FormatError, InputError, SpecMismatchError

SPEC = Spec(dim=5, labels=("cat", "dog"))
RNG = np.random.default_rng(0)
BATCH = Batch.of(SPEC, RNG.normal(size=(9, 5)), RNG.integers(2, size=9))
MESSAGE = compress(BATCH, "frequent_directions", 3)


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("rank", [1, 3, 20])
def test_bytes_and_back(rank: int, precision: str) -> None:
    message = compress(BATCH, "truncated", rank, precision=precision)
    data = message.to_bytes()
    again = ApproximateMessage.from_bytes(SPEC, data)
    assert again.to_bytes() == data
    assert len(data) == message.size
    assert again.factor.dtype == precision
    assert np.array_equal(again.factor, message.factor)
    assert np.array_equal(again.moment, message.moment)
    assert (again.method, again.count, again.error, again.moment_error) == (
        message.method,
        message.count,
        message.error,
        message.moment_error,
    )
    assert np.array_equal(
        again.class_counts, np.bincount(BATCH.targets.argmax(axis=1), minlength=2)
    )


def test_regression_and_empty_batches_have_messages_too() -> None:
    spec = Spec(dim=5, outputs=2)
    for count in (0, 4):
        message = compress(
            Batch.of(spec, RNG.normal(size=(count, 5)), RNG.normal(size=(count, 2))), "truncated", 3
        )
        again = ApproximateMessage.from_bytes(spec, message.to_bytes())
        assert (again.count, again.rank, len(again.class_counts)) == (count, min(count, 3), 0)


@given(data=st.data())
def test_any_altered_byte_is_refused(data: st.DataObject) -> None:
    content = bytearray(MESSAGE.to_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises((FormatError, SpecMismatchError)):
        ApproximateMessage.from_bytes(SPEC, bytes(content))


@given(end=st.integers(0, 400))
def test_truncated_bytes_are_refused(end: int) -> None:
    content = MESSAGE.to_bytes()
    with pytest.raises(FormatError):
        ApproximateMessage.from_bytes(SPEC, content[: min(end, len(content) - 1)])
    with pytest.raises(FormatError):
        ApproximateMessage.from_bytes(SPEC, content + bytes(1 + end % 7))


def test_false_claims_under_a_true_checksum_are_refused() -> None:
    """A sender that computes the checksum itself cannot say what cannot be."""
    content = MESSAGE.to_bytes()[:-32]
    below = content.index(np.float64(MESSAGE.error.above).tobytes()) - 8
    negative = content[:below] + np.float64(-1.0).tobytes() + content[below + 8 :]
    with pytest.raises(FormatError, match="not negative"):
        ApproximateMessage.from_bytes(SPEC, negative + hashlib.sha256(negative).digest())
    longer = content + bytes(8)
    with pytest.raises(FormatError, match="too many"):
        ApproximateMessage.from_bytes(SPEC, longer + hashlib.sha256(longer).digest())


def test_another_spec_is_refused() -> None:
    for other in (
        Spec(dim=5, labels=("cat", "eel")),
        Spec(dim=5, labels=("cat", "dog"), backbone="other"),
    ):
        with pytest.raises(SpecMismatchError):
            ApproximateMessage.from_bytes(other, MESSAGE.to_bytes())
    ApproximateMessage.from_bytes(SPEC.with_gamma(7.0), MESSAGE.to_bytes())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"method": "magic"}, "no method"),
        ({"factor": np.zeros((2, 6), dtype=np.int64)}, "float32 or float64"),
        ({"factor": np.zeros((2, 5))}, "do not fit"),
        ({"factor": np.full((2, 6), np.nan)}, "finite"),
        ({"moment_error": -1.0}, "not negative"),
        ({"count": 3}, "class counts"),
    ],
)
def test_impossible_messages_are_refused(change: dict[str, object], told: str) -> None:
    with pytest.raises(InputError, match=told):
        replace(MESSAGE, **change)


def test_bad_arguments_are_refused() -> None:
    for arguments, told in (
        (("magic", 3), "no method"),
        (("truncated", 0), "whole number"),
        (("truncated", 2.5), "whole number"),
    ):
        with pytest.raises(InputError, match=told):
            compress(BATCH, *arguments)
    with pytest.raises(InputError, match="float16"):
        compress(BATCH, "truncated", 3, precision="float16")
    for below, above in ((-1.0, 0.0), (0.0, float("inf")), (float("nan"), 0.0)):
        with pytest.raises(InputError):
            Interval(below, above)


def test_the_moment_is_that_of_the_statistics() -> None:
    exact = Statistics.of(SPEC, BATCH.features[:, :5], BATCH.targets.argmax(axis=1))
    assert np.linalg.norm(exact.moment_float() - MESSAGE.moment) <= MESSAGE.moment_error
    assert MESSAGE.moment_error < 1e-13


def test_frequent_directions_at_rank_64_save_five_times_the_bytes_at_width_1280() -> None:
    """Against the exact statistics, and against what a float64 triangle of S would be; from sizes
    alone, so that it is quick.
    """
    spec = Spec(dim=1280, labels=tuple(range(10)))
    factor = np.zeros((64, 1281), dtype=np.float32)
    message = ApproximateMessage(
        spec,
        "frequent_directions",
        factor,
        np.zeros((1281, 10)),
        0,
        np.zeros(10, dtype=np.int64),
        Interval(),
        0.0,
    )
    triangle = 8 * 1281 * 1282 // 2
    assert 5 * message.size <= triangle
    assert 5 * len(message.to_bytes()) <= len(Statistics.zero(spec).to_bytes())
    assert 5 * replace(message, factor=factor.astype(np.float64)).size <= triangle + 8 * 12810
