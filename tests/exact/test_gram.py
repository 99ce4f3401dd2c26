"""Exact sums of products against Python's integers, at the guard and across it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from expunge.exact import blas, wide
from expunge.exact.gram import CrossSum, Digits, GramSum, digits_of, is_gram_of, largest_of, product

Float = NDArray[np.float64]
Matrix = list[list[int]]

MOST = {1: (1 << 20) - 1, 2: (1 << 41) - 1}


def product_of(left: Float, right: Float) -> Matrix:
    """left.T @ right by Python's integers."""
    one, other = left.astype(object), right.astype(object)
    return [
        [sum(int(a) * int(b) for a, b in zip(x, y, strict=True)) for y in other.T] for x in one.T
    ]


def upper_of(matrix: Matrix) -> list[int]:
    return [matrix[row][column] for row in range(len(matrix)) for column in range(row, len(matrix))]


def gram_of(rows: Float) -> list[int]:
    return upper_of(product_of(rows, rows))


def summed(*signed: tuple[int, list[int]]) -> list[int]:
    return [
        sum(sign * value for (sign, _), value in zip(signed, values, strict=True))
        for values in zip(*(part for _, part in signed), strict=True)
    ]


def flat(matrix: Matrix) -> list[int]:
    return [value for row in matrix for value in row]


# -- digits ----------------------------------------------------------------------------------------


@given(
    st.lists(
        st.one_of(st.integers(-MOST[2], MOST[2]), st.integers(-(1 << 21), 1 << 21)), max_size=20
    ),
    st.sampled_from([1, 2]),
)
def test_digits_reconstruct_within_their_bounds(values: list[int], count: int) -> None:
    kept = [value for value in values if abs(value) <= MOST[count]]
    integers = np.array(kept, dtype=np.float64).reshape(-1, 1)
    digits = digits_of(integers, count)
    totals = [
        sum(int(part[row, 0]) << (21 * place) for place, part in enumerate(digits.parts))
        for row in range(len(kept))
    ]
    assert totals == kept
    assert len(digits) == len(kept)
    for part, bound in zip(digits.parts, digits.bounds, strict=True):
        assert largest_of(part) <= bound <= 1 << 20
    if len(digits.parts) == 1:
        assert count == 1 or largest_of(integers) <= 1 << 20


@pytest.mark.parametrize(
    "value", [(1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3 << 20, (3 << 20) - 1, (3 << 20) + 1, MOST[2]]
)
@pytest.mark.parametrize("sign", [1, -1])
def test_digits_at_half_way_points(value: int, sign: int) -> None:
    digits = digits_of(np.array([[float(sign * value)]]), 2)
    assert (
        sum(int(part[0, 0]) << (21 * place) for place, part in enumerate(digits.parts))
        == sign * value
    )
    assert all(abs(part[0, 0]) <= 1 << 20 for part in digits.parts)
    assert len(digits.parts) == (1 if value <= 1 << 20 else 2)


def test_digits_in_given_memory_and_across_internal_blocks() -> None:
    random = np.random.default_rng(1)
    integers = random.integers(-MOST[2], MOST[2], (3000, 20)).astype(np.float64)
    memory = [np.full((3500, 20), np.nan) for _ in range(3)]
    digits = digits_of(integers, 2, float(MOST[2]), memory)
    assert digits.total is not None
    assert all(
        np.shares_memory(part, space)
        for part, space in zip([*digits.parts, digits.total], memory, strict=True)
    )
    assert np.array_equal(digits.total, digits.parts[0] + digits.parts[1])
    assert np.array_equal(digits.parts[1] * 2.0**21 + digits.parts[0], integers)
    for part, other in zip(digits.parts, digits_of(integers, 2).parts, strict=True):
        assert np.array_equal(part, other)


def test_a_slice_of_digits_is_the_digits_of_the_slice() -> None:
    integers = np.array([[1.0], [float(1 << 30)], [-5.0]])
    part = digits_of(integers, 2)[1:]
    assert len(part) == 2
    assert [
        int(high) * (1 << 21) + int(low)
        for low, high in zip(part.parts[0][:, 0], part.parts[1][:, 0], strict=True)
    ] == [
        1 << 30,
        -5,
    ]


def test_largest_of() -> None:
    assert largest_of(np.array([[3.0, -7.0]])) == 7.0
    assert largest_of(np.array([[3.0, 7.0]])) == 7.0
    assert largest_of(np.zeros((0, 4))) == 0.0


# -- the Gram --------------------------------------------------------------------------------------


def rows_of(kind: str, count: int, width: int, digits: int, seed: int = 0) -> Float:
    """Integer rows of a nasty kind."""
    random = np.random.default_rng(seed)
    most = MOST[digits]
    if kind == "largest":
        return np.full((count, width), float(most))
    if kind == "largest, mixed signs":
        return np.where(random.random((count, width)) < 0.5, -1.0, 1.0) * most
    if (
        kind == "largest digits"
    ):  # of one sign, so that q1 + q0 is close to 2^21; of any parity, so that a lost bit shows
        low, high = ((1 << 20) - random.integers(1, 9, (count, width)) for _ in range(2))
        return (low if digits == 1 else high * (1 << 21) + low).astype(np.float64)
    if kind == "odd":
        return (random.integers(-(most // 2), most // 2, (count, width)) * 2 + 1).astype(np.float64)
    return random.integers(-3, 4, (count, width)).astype(np.float64)


KINDS = ["largest", "largest, mixed signs", "largest digits", "odd", "small"]


@pytest.mark.parametrize("digits", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_gram_beyond_the_guard_drains_midway(kind: str, digits: int) -> None:
    guard = {1: 8192, 2: 2048}[digits]
    rows = rows_of(kind, 2 * guard + 37, 2, digits)
    target, total = wide.zeros((3,)), GramSum(2)
    total.add(digits_of(rows, digits), target)
    if kind != "small":
        assert target.any(), "something had to be drained on the way"
    total.drain(target)
    assert wide.to_ints(target) == gram_of(rows)
    total.drain(target)
    assert wide.to_ints(target) == gram_of(rows), "a second drain adds nothing"


@pytest.mark.parametrize("count", [2047, 2048, 2049])
def test_gram_exactly_at_the_guard(count: int) -> None:
    # |q0 + q1| = 2^21 is reached with q = 2^41 + 2^20, which the grid's own limit forbids but the
    # guard must survive.
    rows = np.full((count, 1), float((1 << 20) * (1 << 21) + (1 << 20)))
    digits = Digits(
        [np.full((count, 1), 2.0**20), np.full((count, 1), 2.0**20)], [2.0**20, 2.0**20]
    )
    target, total = wide.zeros((1,)), GramSum(1)
    total.add(digits, target)
    assert target.any() == (count > 2048)
    total.drain(target)
    assert wide.to_ints(target) == gram_of(rows)


@pytest.mark.parametrize("digits", [1, 2])
def test_deleting_rows_is_the_inverse_of_adding_them(digits: int) -> None:
    rows, others = (
        rows_of("odd", 900, 3, digits, 1),
        rows_of("largest, mixed signs", 3000, 3, digits, 2),
    )
    target, total = wide.zeros((6,)), GramSum(3)
    total.add(digits_of(others, digits), target, -1)
    total.add(digits_of(rows, digits), target)
    total.add(digits_of(others, digits), target)
    total.add(digits_of(rows, digits), target, -1)
    total.drain(target)
    assert not target.any()


@given(
    st.lists(
        st.tuples(
            st.sampled_from(KINDS),
            st.sampled_from([1, 2]),
            st.integers(0, 40),
            st.sampled_from([1, -1]),
            st.booleans(),
        ),
        max_size=7,
    )
)
def test_gram_of_any_mixture_of_digits_signs_and_drains(
    steps: list[tuple[str, int, int, int, bool]],
) -> None:
    target, total = wide.zeros((6,)), GramSum(3)
    expected = [0] * 6
    for index, (kind, digits, count, sign, drain) in enumerate(steps):
        rows = rows_of(kind, count, 3, digits, index)
        total.add(digits_of(rows, 2), target, sign)
        expected = summed((1, expected), (sign, gram_of(rows)))
        if drain:
            total.drain(target)
            assert wide.to_ints(target) == expected
    total.drain(target)
    assert wide.to_ints(target) == expected


@pytest.mark.parametrize("first", [1, 2])
def test_one_digit_and_two_digits_mix_in_either_order(first: int) -> None:
    rows = {1: np.array([[3.0, -5.0]]), 2: np.array([[float(1 << 30), float(-(1 << 35) + 7)]])}
    target, total = wide.zeros((3,)), GramSum(2)
    for digits in (first, 3 - first):
        total.add(digits_of(rows[digits], 2), target)
    total.drain(target)
    assert wide.to_ints(target) == summed((1, gram_of(rows[1])), (1, gram_of(rows[2])))


@settings(max_examples=25)
@given(st.integers(1, 70), st.integers(0, 60), st.integers(0, 2**32 - 1))
def test_gram_for_any_shape(width: int, count: int, seed: int) -> None:
    rows = rows_of("odd", count, width, 2, seed)
    target, total = wide.zeros((blas.packed_length(width),)), GramSum(width)
    total.add(digits_of(rows, 2), target)
    total.drain(target)
    exact = rows.astype(np.int64).astype(object)
    expected = exact.T.dot(exact) if count else np.zeros((width, width), dtype=object)
    assert wide.to_ints(target) == expected[np.triu_indices(width)].tolist()


def test_zeros_and_no_rows_cost_and_change_nothing() -> None:
    target, total = wide.zeros((3,)), GramSum(2)
    for rows in (np.zeros((0, 2)), np.zeros((5, 2))):
        total.add(digits_of(rows, 2), target)
    total.drain(target)
    assert not target.any()


def test_sums_of_many_grams_need_more_than_64_bits() -> None:
    rows = rows_of("largest", 2048, 1, 2)
    target, total = wide.zeros((1,)), GramSum(1)
    for _ in range(5):
        total.add(digits_of(rows, 2), target)
    total.drain(target)
    assert wide.to_ints(target) == [5 * 2048 * MOST[2] ** 2]
    assert wide.to_ints(target)[0] > 1 << 94


# -- cross products --------------------------------------------------------------------------------


@pytest.mark.parametrize("left_digits", [1, 2])
@pytest.mark.parametrize("right_digits", [1, 2])
@pytest.mark.parametrize("kind", ["largest", "largest, mixed signs", "largest digits", "odd"])
def test_cross_product_beyond_the_guard_drains_midway(
    kind: str, left_digits: int, right_digits: int
) -> None:
    count = 8192 * 2 + 11
    left, right = rows_of(kind, count, 1, left_digits, 1), rows_of(kind, count, 2, right_digits, 2)
    target, total = wide.zeros((1, 2)), CrossSum(1, 2)
    total.add(digits_of(left, left_digits), digits_of(right, right_digits), target)
    assert target.any(), "something had to be drained on the way"
    total.drain(target)
    assert wide.to_ints(target) == flat(product_of(left, right))
    total.drain(target)
    assert wide.to_ints(target) == flat(product_of(left, right))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(KINDS),
            st.sampled_from([1, 2]),
            st.sampled_from([1, 2]),
            st.integers(0, 30),
            st.sampled_from([1, -1]),
            st.booleans(),
        ),
        max_size=7,
    )
)
def test_cross_products_of_any_mixture_of_digits_signs_and_drains(
    steps: list[tuple[str, int, int, int, int, bool]],
) -> None:
    target, total = wide.zeros((2, 3)), CrossSum(2, 3)
    expected = [0] * 6
    for index, (kind, left_digits, right_digits, count, sign, drain) in enumerate(steps):
        left, right = (
            rows_of(kind, count, 2, left_digits, index),
            rows_of(kind, count, 3, right_digits, 99 + index),
        )
        total.add(digits_of(left, 2), digits_of(right, 2), target, sign)
        expected = summed((1, expected), (sign, flat(product_of(left, right))))
        if drain:
            total.drain(target)
            assert wide.to_ints(target) == expected
    total.drain(target)
    assert wide.to_ints(target) == expected


def test_cross_product_with_zeros_changes_nothing() -> None:
    target, total = wide.zeros((2, 1)), CrossSum(2, 1)
    total.add(digits_of(np.ones((4, 2)), 2), digits_of(np.zeros((4, 1)), 2), target)
    total.add(digits_of(np.zeros((0, 2)), 2), digits_of(np.zeros((0, 1)), 2), target)
    total.drain(target)
    assert not target.any()


# -- products of a few rows ------------------------------------------------------------------------

# On either side of what 64 bits and float64 can tell alone
ENTRIES = st.one_of(
    st.integers(-MOST[2], MOST[2]),
    st.integers(-3, 3),
    st.sampled_from([MOST[2], -MOST[2], 1 << 32, (1 << 32) - 1, -(1 << 31)]),
)


@given(
    st.lists(st.lists(ENTRIES, min_size=3, max_size=3), min_size=1, max_size=6),
    st.integers(0, 5),
    st.integers(0, 127),
)
def test_the_gram_of_a_few_rows_is_told_from_any_other(
    rows: list[list[int]], place: int, bit: int
) -> None:
    integers = np.array(rows, dtype=np.int64)
    expected = gram_of(integers.astype(np.float64))
    packed = wide.from_ints(expected)
    assert is_gram_of(packed, integers)
    packed[bit // 64, place] ^= np.uint64(1 << (bit % 64))
    assert not is_gram_of(packed, integers)


def test_a_gram_is_told_from_another_in_every_panel() -> None:
    width = 131
    integers = np.random.default_rng(4).integers(-MOST[2], MOST[2], (2, width))
    packed = wide.from_ints(gram_of(integers.astype(np.float64)))
    assert is_gram_of(packed, integers)
    for place in (0, 64 * width - 2016, packed.shape[1] - 1):
        other = packed.copy()
        other[1, place] += np.uint64(1)
        assert not is_gram_of(other, integers)


@given(
    st.lists(st.tuples(ENTRIES, ENTRIES, ENTRIES), min_size=1, max_size=5),
    st.sampled_from([1, 2]),
)
def test_the_product_of_two_matrices_is_exact(rows: list[tuple[int, int, int]], count: int) -> None:
    integers = np.array(rows, dtype=np.float64)
    integers = integers if count == 2 else np.clip(integers, -MOST[1], MOST[1])
    left, right = np.ascontiguousarray(integers[:, :2]), np.ascontiguousarray(integers[:, 2:])
    found = product(digits_of(left, count), digits_of(right, count))
    assert wide.to_ints(found) == flat(product_of(left, right))
