"""Exact products with 128-bit matrices against Python's integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from expunge.exact import blas, symmetric, wide
from expunge.exact import gram as gram_module
from expunge.exact.gram import digits_of
from expunge.exact.symmetric import SymmetricWords, add_transposed_product, rows_times

Objects = NDArray[np.object_]  # matrices of Python's integers


def reduced(values: list[int], limbs: int) -> list[int]:
    modulus = 1 << (64 * limbs)
    return [(value + modulus // 2) % modulus - modulus // 2 for value in values]


def matrix(
    draw: Callable[[st.SearchStrategy[list[int]]], list[int]], rows: int, columns: int, bits: int
) -> Objects:
    most = (1 << bits) - 1
    entries = st.one_of(
        st.integers(-most - 1, most), st.sampled_from([0, 1, -1, most, -most - 1, most - 1])
    )
    values = draw(st.lists(entries, min_size=rows * columns, max_size=rows * columns))
    result = np.empty(rows * columns, dtype=object)
    result[:] = values
    return result.reshape(rows, columns)


def as_wide(values: Objects, limbs: int) -> wide.Wide:
    return wide.from_ints(values.ravel().tolist(), limbs).reshape(limbs, *values.shape)


def product(left: Objects, right: Objects) -> Objects:
    """left @ right; also for empty sums, which numpy's product of objects does not know."""
    result = np.zeros((left.shape[0], right.shape[1]), dtype=object)
    for index in range(left.shape[1]):
        result = result + np.multiply.outer(left[:, index], right[index])
    return result


@st.composite
def systems(draw: st.DrawFn) -> tuple[Objects, Objects, int, int, bool]:
    size = draw(st.integers(1, 7))
    bits = draw(st.sampled_from([20, 62, 63, 64, 90, 94, 95, 96, 126, 127]))
    full = matrix(draw, size, size, bits)
    rows, columns = np.triu_indices(size)
    full[columns, rows] = full[rows, columns]
    right = matrix(
        draw, size, draw(st.integers(1, 3)), draw(st.sampled_from([1, 30, 61, 100, 126]))
    )
    return (
        full,
        right,
        draw(st.sampled_from([0, 1, 31, 64, 100])),
        draw(st.integers(3, 6)),
        draw(st.booleans()),
    )


@given(systems(), st.data())
def test_subtract_product_is_exact(
    case: tuple[Objects, Objects, int, int, bool], data: st.DataObject
) -> None:
    full, right, shift, limbs, keep = case
    size = len(full)
    words = SymmetricWords(wide.from_ints(full[np.triu_indices(size)].tolist()), size, keep=keep)
    start = matrix(data.draw, size, right.shape[1], 64 * limbs - 2)
    target = as_wide(start, limbs)
    words.subtract_product(target, wide.balanced_digits(as_wide(right, 2), words.digit_bits), shift)
    expected = (start - product(full, right) * (1 << shift)).ravel().tolist()
    assert wide.to_ints(target) == reduced(expected, limbs)


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("size", [1, 2, 127, 128, 129])
@pytest.mark.parametrize("columns", [1, 2])
def test_subtract_product_at_its_guard(size: int, columns: int, keep: bool) -> None:
    # Words of 2^32 - 1 times digits of -2^(bits - 1), with one sign throughout: the largest sums
    # there can be.
    entry = (1 << 127) - 1
    words = SymmetricWords(wide.from_ints([entry] * blas.packed_length(size)), size, keep=keep)
    assert size * (2**32 - 1) * 2 ** (words.digit_bits - 1) <= 2**53
    digits = [np.full((size, columns), -(2.0 ** (words.digit_bits - 1))) for _ in range(2)]
    digits[1][0] += 1.0  # an odd digit, so that a lost bit shows
    target = wide.zeros((size, columns), 5)
    words.subtract_product(target, digits, 0)
    value = -(1 << (words.digit_bits - 1)) * (1 + (1 << words.digit_bits))
    expected = -entry * (value * size + (1 << words.digit_bits))
    assert wide.to_ints(target) == [expected] * (size * columns)


def test_kept_words_are_a_cache() -> None:
    random = np.random.default_rng(3)
    size = 5
    packed = random.integers(0, 1 << 64, (2, blas.packed_length(size)), dtype=np.uint64)
    digits = [random.integers(-1000, 1000, (size, 2)).astype(np.float64)]
    results = []
    for keep in (True, False):
        words, target = SymmetricWords(packed, size, keep=keep), wide.zeros((size, 2), 3)
        for shift in (0, 40):
            words.subtract_product(target, digits, shift)
        results.append(target)
    assert np.array_equal(results[0], results[1])


def test_no_digits_mean_a_product_of_zero() -> None:
    words, target = (
        SymmetricWords(wide.from_ints([5]), 1, keep=True),
        wide.from_ints([9]).reshape(2, 1, 1),
    )
    words.subtract_product(target, [], 3)
    assert wide.to_ints(target) == [9]


@st.composite
def integer_rows(draw: st.DrawFn, least: int) -> Objects:
    bits = draw(st.sampled_from([1, 20, 41]))
    return matrix(
        draw, draw(st.integers(least, 6)), draw(st.integers(1, 6)), bits - 1 if bits == 1 else bits
    )


def digits_for(rows: Objects) -> NDArray[np.float64]:
    return np.clip(rows.astype(np.float64), -(2.0**41 - 1), 2.0**41 - 1)


@settings(max_examples=40)
@given(integer_rows(1), st.sampled_from([1, 62, 100, 126, 190]), st.integers(1, 5), st.data())
def test_rows_times_is_exact(raw: Objects, bits: int, limbs: int, data: st.DataObject) -> None:
    rows = digits_for(raw)
    right = matrix(data.draw, rows.shape[1], data.draw(st.integers(1, 3)), bits)
    result = rows_times(digits_of(rows, 2), as_wide(right, 3), limbs)
    exact = rows.astype(np.int64).astype(object)
    assert result.shape == (limbs, len(rows), right.shape[1])
    assert wide.to_ints(result) == reduced(product(exact, right).ravel().tolist(), limbs)


@settings(max_examples=40)
@given(
    integer_rows(1),
    st.sampled_from([1, 62, 100, 126, 190]),
    st.sampled_from([1, -1]),
    st.integers(0, 130),
    st.data(),
)
def test_add_transposed_product_is_exact(
    raw: Objects, bits: int, sign: int, shift: int, data: st.DataObject
) -> None:
    rows = digits_for(raw)
    limbs, columns = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 3))
    right = matrix(data.draw, len(rows), columns, bits)
    start = matrix(data.draw, rows.shape[1], columns, 64 * limbs - 1)
    target = as_wide(start, limbs)
    add_transposed_product(target, digits_of(rows, 2), as_wide(right, 3), shift, sign)
    exact = rows.astype(np.int64).astype(object)
    expected = start + sign * product(exact.T, right) * (1 << shift)
    assert wide.to_ints(target) == reduced(expected.ravel().tolist(), limbs)


@pytest.mark.parametrize("length", [1, 127, 255, 256])
@pytest.mark.parametrize("bits", range(18, 36))
def test_products_with_rows_at_their_guard(length: int, bits: int) -> None:
    """Whatever the radix is, one of these has all digits close to their largest, of one sign and of
    any parity.
    """
    random = np.random.default_rng(bits)

    def large(size: int, digit_bits: int, digits: int) -> list[int]:
        parts = (1 << (digit_bits - 1)) - random.integers(1, 9, (size, digits))
        return [
            sum(int(part) << (digit_bits * place) for place, part in enumerate(row))
            for row in parts
        ]

    rows = np.array(large(length, 21, 2), dtype=np.float64)
    values = large(length, bits, 120 // bits)
    right = wide.from_ints(values).reshape(2, length, 1)
    expected = [sum(int(row) * value for row, value in zip(rows, values, strict=True))]
    assert wide.to_ints(rows_times(digits_of(rows[None], 2), right, 4)) == expected
    target = wide.zeros((1, 1), 4)
    add_transposed_product(target, digits_of(rows[:, None], 2), right, 0, 1)
    assert wide.to_ints(target) == expected


@pytest.mark.parametrize("sign", [1, -1])
def test_zero_factors_give_zero(sign: int) -> None:
    right = wide.zeros((3, 2), 3)
    rows = digits_of(np.ones((4, 3)), 2)
    assert not rows_times(rows, right, 2).any()
    target = wide.from_ints([5] * 6).reshape(2, 3, 2)
    add_transposed_product(target, rows, wide.zeros((4, 2), 3), 7, sign)
    assert wide.to_ints(target) == [5] * 6


@pytest.mark.parametrize("widest", [symmetric.WIDE, 0])
@pytest.mark.parametrize("columns", [1, 4, 5, 12])
def test_products_with_a_packed_matrix_are_those_of_integers(
    columns: int, widest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Column by column, whole or by panels."""
    monkeypatch.setattr(symmetric, "WIDE", widest)
    monkeypatch.setattr(gram_module, "PANEL_ROWS", 3)
    draw = np.random.default_rng(columns)
    whole = draw.integers(-(2**24), 2**24, (8, 8))
    whole = np.triu(whole) + np.triu(whole, 1).T
    right = draw.integers(-(2**24), 2**24, (8, columns))
    packed = blas.packed_from_upper(whole.astype(np.float64))
    found = symmetric.packed_times(packed, right.astype(np.float64))
    assert np.array_equal(found, whole @ right)
