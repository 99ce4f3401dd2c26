"""Wide integers against Python's integers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from expunge.exact import wide

LIMBS = st.integers(1, 5)


def signed(value: int, limbs: int) -> int:
    """`value` modulo 2^(64 limbs), read as two's complement."""
    modulus = 1 << (64 * limbs)
    rest = value % modulus
    return rest - modulus if rest >= modulus // 2 else rest


def extremes(limbs: int) -> list[int]:
    """Values at which carries, borrows and signs go wrong first."""
    top = 1 << (64 * limbs - 1)
    edges = [1 << (64 * limb) for limb in range(limbs)] + [
        1 << (64 * limb + 63) for limb in range(limbs)
    ]
    near = [sign * edge + step for edge in edges for sign in (1, -1) for step in (-1, 0, 1)]
    return sorted({signed(value, limbs) for value in [0, 1, -1, top - 1, -top, -top + 1, *near]})


def integers(limbs: int) -> st.SearchStrategy[int]:
    top = 1 << (64 * limbs - 1)
    # Patterns of whole limbs reach long carries, which uniform numbers never do.
    limb = st.sampled_from([0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, (1 << 64) - 2])
    patterns = st.lists(limb, min_size=limbs, max_size=limbs).map(
        lambda parts: signed(sum(part << (64 * place) for place, part in enumerate(parts)), limbs)
    )
    return st.one_of(
        st.integers(-top, top - 1), patterns, st.integers(-3, 3), st.sampled_from(extremes(limbs))
    )


@st.composite
def pairs(draw: st.DrawFn) -> tuple[int, list[int], list[int]]:
    limbs = draw(LIMBS)
    size = draw(st.integers(0, 6))
    values = st.lists(integers(limbs), min_size=size, max_size=size)
    return limbs, draw(values), draw(values)


@st.composite
def arrays(draw: st.DrawFn) -> tuple[int, list[int]]:
    limbs, values, _ = draw(pairs())
    return limbs, values


@given(arrays())
def test_from_ints_and_to_ints_are_inverses(case: tuple[int, list[int]]) -> None:
    limbs, values = case
    array = wide.from_ints(values, limbs)
    assert array.shape == (limbs, len(values))
    assert array.dtype == np.uint64
    assert wide.to_ints(array) == values


@given(pairs())
def test_add_subtract_and_negate_are_those_of_integers(
    case: tuple[int, list[int], list[int]],
) -> None:
    limbs, left, right = case
    one, other = wide.from_ints(left, limbs), wide.from_ints(right, limbs)
    assert wide.to_ints(wide.add(one, other)) == [
        signed(a + b, limbs) for a, b in zip(left, right, strict=True)
    ]
    assert wide.to_ints(wide.subtract(one, other)) == [
        signed(a - b, limbs) for a, b in zip(left, right, strict=True)
    ]
    assert wide.to_ints(wide.negated(one)) == [signed(-a, limbs) for a in left]
    assert (wide.to_ints(one), wide.to_ints(other)) == (left, right), "operands are left alone"


@pytest.mark.parametrize("limbs", [1, 2, 3, 4, 5])
def test_add_and_subtract_for_every_pair_of_extremes(limbs: int) -> None:
    values = extremes(limbs)
    left = [a for a in values for _ in values]
    right = [b for _ in values for b in values]
    one, other = wide.from_ints(left, limbs), wide.from_ints(right, limbs)
    assert wide.to_ints(wide.add(one, other)) == [
        signed(a + b, limbs) for a, b in zip(left, right, strict=True)
    ]
    assert wide.to_ints(wide.subtract(one, other)) == [
        signed(a - b, limbs) for a, b in zip(left, right, strict=True)
    ]


@pytest.mark.parametrize("limbs", [1, 2, 3, 4, 5])
def test_a_carry_and_a_borrow_run_through_all_limbs(limbs: int) -> None:
    ones = wide.from_ints([-1], limbs)
    assert (ones == np.uint64((1 << 64) - 1)).all()
    wide.add_into(ones, wide.from_ints([1], limbs))
    assert not ones.any()
    wide.subtract_into(ones, wide.from_ints([1], limbs))
    assert wide.to_ints(ones) == [-1]


@given(pairs())
def test_subtracting_undoes_adding(case: tuple[int, list[int], list[int]]) -> None:
    limbs, left, right = case
    target, other = wide.from_ints(left, limbs), wide.from_ints(right, limbs)
    wide.add_into(target, other)
    wide.subtract_into(target, other)
    assert wide.to_ints(target) == left


INT64 = st.one_of(
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.sampled_from([0, 1, -1, (1 << 63) - 1, -(1 << 63), 1 << 62, -(1 << 62)]),
)


@given(arrays(), st.integers(0, 400), st.data())
def test_add_shifted(case: tuple[int, list[int]], shift: int, data: st.DataObject) -> None:
    limbs, start = case
    values = data.draw(st.lists(INT64, min_size=len(start), max_size=len(start)))
    target = wide.from_ints(start, limbs)
    wide.add_shifted(target, np.array(values, dtype=np.int64), shift)
    assert wide.to_ints(target) == [
        signed(a + (b << shift), limbs) for a, b in zip(start, values, strict=True)
    ]


@pytest.mark.parametrize("limbs", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("shift", [0, 1, 21, 63, 64, 65, 127, 128, 191, 255, 319, 320, 1000])
def test_add_shifted_carries_through_every_limb(limbs: int, shift: int) -> None:
    values = [1, -1, (1 << 63) - 1, -(1 << 63)]
    starts = extremes(limbs)
    target = wide.from_ints([start for start in starts for _ in values], limbs)
    wide.add_shifted(target, np.array(values * len(starts), dtype=np.int64), shift)
    assert wide.to_ints(target) == [
        signed(start + (value << shift), limbs) for start in starts for value in values
    ]


@given(arrays(), st.integers(0, 400), st.integers(1, 7))
def test_shifted_left_multiplies(case: tuple[int, list[int]], bits: int, result_limbs: int) -> None:
    limbs, values = case
    array = wide.from_ints(values, limbs)
    assert wide.to_ints(wide.shifted_left(array, bits)) == [
        signed(value << bits, limbs) for value in values
    ]
    moved = wide.shifted_left(array, bits, result_limbs)
    assert wide.to_ints(moved) == [signed(value << bits, result_limbs) for value in values]
    assert wide.to_ints(array) == values


@given(arrays(), st.integers(0, 400))
def test_shifted_right_is_the_floor(case: tuple[int, list[int]], bits: int) -> None:
    limbs, values = case
    array = wide.from_ints(values, limbs)
    moved = wide.shifted_right(array, bits)
    assert wide.to_ints(moved) == [value >> bits for value in values]
    moved += np.uint64(1)
    assert wide.to_ints(array) == values, "the result is a copy"


@given(arrays(), st.integers(1, 7))
def test_extended_keeps_values_and_narrowing_keeps_them_modulo(
    case: tuple[int, list[int]], more: int
) -> None:
    limbs, values = case
    assert wide.to_ints(wide.extended(wide.from_ints(values, limbs), more)) == [
        signed(value, more) for value in values
    ]


@given(arrays(), st.data())
def test_low_bits_is_the_remainder(case: tuple[int, list[int]], data: st.DataObject) -> None:
    limbs, values = case
    bits = data.draw(st.integers(0, 64 * limbs - 1))
    array = wide.from_ints(values, limbs)
    assert wide.to_ints(wide.low_bits(array, bits)) == [value % (1 << bits) for value in values]
    assert wide.to_ints(array) == values


@given(st.lists(INT64, max_size=5), LIMBS)
def test_to_int64_is_the_value_where_it_fits(values: list[int], limbs: int) -> None:
    assert wide.to_int64(wide.from_ints(values, limbs)).tolist() == values


def below_the_top(values: list[int], limbs: int, bits: int) -> list[int]:
    """The values that are at least 2^bits smaller than the largest; those beyond have a test of
    their own.
    """
    return [value for value in values if value < (1 << (64 * limbs - 1)) - (1 << bits)]


def assert_close_floats(values: list[int], floats: NDArray[np.float64], exponent: int) -> None:
    for value, approximate in zip(values, floats.tolist(), strict=True):
        exact = Fraction(value) * Fraction(2) ** exponent
        assert abs(Fraction(approximate) - exact) <= abs(exact) / (1 << 51), (value, approximate)


@given(arrays(), st.integers(-150, 150))
def test_to_float_is_within_one_part_in_two_to_the_51(
    case: tuple[int, list[int]], exponent: int
) -> None:
    limbs, everything = case
    values = below_the_top(everything, limbs, 64 * limbs - 64)
    assert_close_floats(values, wide.to_float(wide.from_ints(values, limbs), exponent), exponent)


@pytest.mark.parametrize("limbs", [1, 2, 3, 4, 5])
def test_to_float_at_the_extremes(limbs: int) -> None:
    values = below_the_top(extremes(limbs), limbs, 64 * limbs - 64)
    assert_close_floats(values, wide.to_float(wide.from_ints(values, limbs)), 0)


def test_to_float_of_the_largest_values_is_positive() -> None:
    for limbs in (1, 2, 3, 5):
        top = 1 << (64 * limbs - 1)
        values = [top - 1, top - 2, top - (1 << (64 * limbs - 65)) if limbs > 1 else 1]
        assert_close_floats(values, wide.to_float(wide.from_ints(values, limbs)), 0)


def test_to_float_is_exact_for_small_integers_and_keeps_shapes() -> None:
    values = [0, 1, -1, (1 << 53), -(1 << 53), 3 << 90]
    array = wide.from_ints(values).reshape(2, 2, 3)
    floats = wide.to_float(array)
    assert floats.shape == (2, 3)
    assert [int(value) for value in floats.ravel()] == values
    assert wide.to_float(wide.zeros((0,))).shape == (0,)


def test_to_float_agrees_across_its_internal_blocks() -> None:
    values = [(index * index) << 70 for index in range(20_000)]
    assert wide.to_float(wide.from_ints(values)).tolist() == [float(value) for value in values]


@given(arrays())
def test_bytes_are_little_endian_twos_complement(case: tuple[int, list[int]]) -> None:
    limbs, values = case
    array = wide.from_ints(values, limbs)
    data = wide.to_bytes(array)
    assert data == b"".join(value.to_bytes(8 * limbs, "little", signed=True) for value in values)
    assert np.array_equal(wide.from_bytes(data, (len(values),), limbs), array)
    assert np.array_equal(wide.from_bytes(memoryview(data), (len(values),), limbs), array)


def test_bytes_are_row_major() -> None:
    values = [1, -2, 3, -4, 5, -(1 << 127)]
    array = wide.from_ints(values).reshape(2, 2, 3)
    data = wide.to_bytes(array)
    assert data == b"".join(value.to_bytes(16, "little", signed=True) for value in values)
    assert np.array_equal(wide.from_bytes(data, (2, 3)), array)
    flipped = np.ascontiguousarray(array.transpose(0, 2, 1)).transpose(0, 2, 1)
    assert wide.to_bytes(flipped) == data, "memory order does not matter"


@settings(max_examples=60)
@given(arrays(), st.integers(2, 52))
def test_balanced_digits_reconstruct(case: tuple[int, list[int]], bits: int) -> None:
    limbs, everything = case
    values = below_the_top(everything, limbs, bits)
    array = wide.from_ints(values, limbs)
    digits = wide.balanced_digits(array, bits)
    assert wide.to_ints(array) == values, "the value is left alone"
    half = 1 << (bits - 1)
    columns = [[int(digit[index]) for digit in digits] for index in range(len(values))]
    assert all(-half <= digit <= half for column in columns for digit in column)
    totals = [
        sum(digit << (bits * place) for place, digit in enumerate(column)) for column in columns
    ]
    assert totals == values


@pytest.mark.parametrize("bits", [2, 15, 21, 22, 31])
@pytest.mark.parametrize("limbs", [1, 2, 3, 4, 5])
def test_balanced_digits_at_the_extremes(limbs: int, bits: int) -> None:
    for value in below_the_top(extremes(limbs), limbs, bits):
        digits = wide.balanced_digits(wide.from_ints([value], limbs), bits)
        assert sum(int(digit[0]) << (bits * place) for place, digit in enumerate(digits)) == value


def test_balanced_digits_reconstruct_the_largest_values() -> None:
    for limbs in (1, 2, 3, 5):
        value = (1 << (64 * limbs - 1)) - 1
        digits = wide.balanced_digits(wide.from_ints([value], limbs), 21)
        assert sum(int(digit[0]) << (21 * place) for place, digit in enumerate(digits)) == value


def test_balanced_digits_are_as_many_as_needed() -> None:
    assert wide.balanced_digits(wide.zeros((3, 2)), 21) == []
    assert wide.balanced_digits(wide.zeros((0, 2)), 21) == []
    for value, expected in [
        (1, 1),
        (-1, 1),
        ((1 << 20) - 1, 1),
        (-(1 << 20), 1),
        (1 << 20, 2),
        (1 << 41, 3),
        (1 << 100, 5),
    ]:
        assert len(wide.balanced_digits(wide.from_ints([0, value, 1]), 21)) == expected, value


@given(arrays())
def test_largest_bits_is_the_least_exponent_or_one_more(case: tuple[int, list[int]]) -> None:
    limbs, values = case
    least = max((abs(value).bit_length() for value in values), default=0)
    assert wide.largest_bits(wide.from_ints(values, limbs)) in (least, least + 1)


@pytest.mark.parametrize("limbs", [1, 2, 3, 4, 5])
def test_largest_bits_never_understates_at_the_extremes(limbs: int) -> None:
    for value in extremes(limbs):
        least = abs(value).bit_length()
        assert wide.largest_bits(wide.from_ints([value], limbs)) in (least, least + 1), value


@pytest.mark.parametrize("bits", [1, 7, 21, 32, 41, 53])
@pytest.mark.parametrize("limbs", [1, 2, 3, 5])
def test_unsigned_digits_reconstruct_the_values(bits: int, limbs: int) -> None:
    most = 1 << (64 * limbs - 1)
    values = [
        0,
        1,
        -1,
        most - 1,
        -most,
        most // 3,
        -(most // 3),
        (1 << bits) - 1,
        -(1 << min(bits, 64 * limbs - 1)),
        12345,
        -54321,
    ]
    for chosen in (values, [0, 0], [1], [-1], [3, -4]):
        parts = wide.digits(wide.from_ints(chosen, limbs), bits)
        assert [
            sum(int(part[place]) << (bits * index) for index, part in enumerate(parts))
            for place in range(len(chosen))
        ] == chosen
        assert all(part.min() >= 0 and part.max() < 2.0**bits for part in parts[:-1])
        assert all(abs(part).max() <= 2.0**bits for part in parts)
