"""The BLAS calls against integers, and the self-test against a BLAS that is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from expunge.errors import ExpungeError, PlatformError
from expunge.exact import blas, wide
from expunge.exact.gram import CrossSum, GramSum
from expunge.exact.symmetric import SymmetricWords

Float = NDArray[np.float64]

SIZES = st.integers(1, 9)


def integers(shape: tuple[int, int], seed: int) -> Float:
    return np.random.default_rng(seed).integers(-100, 100, shape).astype(np.float64)


def same(left: NDArray[Any], right: NDArray[Any]) -> bool:
    """Whether two matrices hold the same integers."""
    return left.shape == right.shape and bool((left == right).all())


@given(st.integers(0, 9), st.integers(0, 9), SIZES, st.integers(0, 2**32 - 1))
def test_general_products(rows: int, inner: int, columns: int, seed: int) -> None:
    left, right = integers((rows, inner), seed), integers((inner, columns), seed + 1)
    exact = left.astype(np.int64) @ right.astype(np.int64)
    assert same(blas.multiply(left, right), exact)
    flipped = np.ascontiguousarray(left.T)
    assert same(blas.multiply_transposed(flipped, right), exact)
    total = integers((rows, columns), seed + 2)
    start = total.copy()
    blas.add_product(flipped, right, total, -2.0)
    assert same(total, start - 2 * exact)


@given(st.integers(0, 9), SIZES, st.integers(0, 2**32 - 1), st.sampled_from([1, -1, 3]))
def test_add_gram_adds_to_the_upper_triangle_only(
    rows: int, width: int, seed: int, factor: int
) -> None:
    matrix, total = integers((rows, width), seed), integers((width, width), seed + 1)
    start = total.copy()
    blas.add_gram(matrix, total, factor)
    exact = factor * (matrix.astype(np.int64).T @ matrix.astype(np.int64))
    assert same(total, start + np.triu(exact))


@given(SIZES, SIZES, st.integers(0, 2**32 - 1))
def test_symmetric_multiply_never_reads_below_the_diagonal(
    size: int, columns: int, seed: int
) -> None:
    upper, right = np.triu(integers((size, size), seed)), integers((size, columns), seed + 1)
    full = upper + np.triu(upper, 1).T
    upper[np.tril_indices(size, -1)] = np.nan
    result = blas.symmetric_multiply(upper, right)
    assert same(result, full.astype(np.int64) @ right.astype(np.int64))


@given(st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_packing_and_unpacking_are_inverses(size: int, seed: int) -> None:
    full = integers((size, size), seed)
    packed = blas.packed_from_upper(full)
    assert packed.tolist() == full[np.triu_indices(size)].tolist(), "the upper triangle, row by row"
    assert len(packed) == blas.packed_length(size)
    assert same(np.triu(blas.upper_from_packed(size, packed)), np.triu(full))
    assert packed[blas.packed_diagonal(size)].tolist() == full.diagonal().tolist()


def test_norms() -> None:
    array = np.array([[3.0, 5.0], [4.0, 12.0]])
    assert blas.norm(np.array([[3.0], [4.0]])) == 5.0
    assert blas.norm(np.zeros((0, 2))) == 0.0
    assert blas.column_norms(array).tolist() == [5.0, 13.0]


def test_smallest_eigenvalue_of_a_known_matrix() -> None:
    assert blas.smallest_eigenvalue(np.diag([4.0, -2.0, 7.0])) == pytest.approx(-2.0)
    assert blas.smallest_eigenvalue(np.array([[2.0, 1.0], [1.0, 2.0]])) == pytest.approx(1.0)


def test_products_in_place_refuse_arrays_they_would_misread() -> None:
    good, total = np.ones((3, 2)), np.zeros((2, 2))
    bads: list[NDArray[Any]] = [
        np.ones((2, 3)).T,
        np.ones((3, 4))[:, ::2],
        np.ones((3, 2), dtype=np.float32),
    ]
    for bad in bads:
        with pytest.raises(TypeError, match="contiguous row-major float64"):
            blas.add_gram(bad, total)
        with pytest.raises(TypeError, match="contiguous row-major float64"):
            blas.add_product(good, bad, total)
    assert not total.any()


# -- the self-test ---------------------------------------------------------------------------------


def test_this_machine_is_exact() -> None:
    blas.require_exact.__wrapped__()


def one_off(result: Float) -> Float:
    wrong = result.copy()
    wrong[0, -1] += 1.0
    return wrong


def last_bit_lost(result: Float) -> Float:
    """What a result with one bit less would be: only an odd sum shows it."""
    return np.rint(result / 2) * 2


def assert_refused() -> None:
    with pytest.raises(
        PlatformError, match=r"BLAS does not multiply small integers exactly.*Install scipy"
    ) as caught:
        blas.require_exact.__wrapped__()
    assert isinstance(caught.value, ExpungeError)


@pytest.mark.parametrize("fault", [one_off, last_bit_lost])
@pytest.mark.parametrize("name", ["multiply", "multiply_transposed", "symmetric_multiply"])
@pytest.mark.parametrize("single", [False, True])
def test_a_wrong_product_is_refused(
    name: str,
    fault: Callable[[Float], Float],
    single: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of one column, for which there are routines of its own, or of several."""
    honest = getattr(blas, name)

    def wrong(left: Float, right: Float) -> Float:
        result = honest(left, right)
        return fault(result) if (right.shape[1] == 1) == single else result

    monkeypatch.setattr(blas, name, wrong)
    assert_refused()


@pytest.mark.parametrize("fault", [one_off, last_bit_lost])
def test_a_wrong_product_with_a_packed_matrix_is_refused(
    fault: Callable[[Float], Float], monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = blas.packed_multiply
    monkeypatch.setattr(blas, "packed_multiply", lambda *sides: fault(honest(*sides)))
    assert_refused()


@pytest.mark.parametrize("fault", [one_off, last_bit_lost])
def test_a_wrong_gram_is_refused(
    fault: Callable[[Float], Float], monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = blas.add_gram

    def wrong(rows: Float, total: Float, factor: float = 1.0) -> None:
        honest(rows, total, factor)
        total[:] = fault(total)

    monkeypatch.setattr(blas, "add_gram", wrong)
    assert_refused()


def strassen(left: Float, right: Float) -> Float:
    """One level of Strassen's multiplication, which forms sums of blocks first; a single column has
    no blocks.
    """
    if right.shape[1] == 1:
        return left @ right
    rows, inner, columns = left.shape[0] // 2, left.shape[1] // 2, right.shape[1] // 2
    a, b, c, d = left[:rows, :inner], left[:rows, inner:], left[rows:, :inner], left[rows:, inner:]
    e, f, g, h = (
        right[:inner, :columns],
        right[:inner, columns:],
        right[inner:, :columns],
        right[inner:, columns:],
    )
    p1, p2, p3, p4 = a @ (f - h), (a + b) @ h, (c + d) @ e, d @ (g - e)
    p5, p6, p7 = (a + d) @ (e + h), (b - d) @ (g + h), (a - c) @ (e + f)
    return np.block([[p5 + p4 - p2 + p6, p1 + p2], [p3 + p4, p1 + p5 - p3 - p7]])


def in_single_precision(left: Float, right: Float) -> Float:
    """Two slices of float32 for each factor, summed in float32: a cheap emulation of fp64."""
    high, other = left.astype(np.float32), right.astype(np.float32)
    low = (left - high).astype(np.float32)
    return (high @ other + low @ other).astype(np.float64)


@pytest.mark.parametrize("method", [strassen, in_single_precision])
def test_a_blas_that_is_not_plain_is_refused(
    method: Callable[[Float, Float], Float], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = integers((4, 6), 1), integers((6, 4), 2)
    assert same(method(*small), small[0] @ small[1]), "the method is right where numbers are small"
    monkeypatch.setattr(blas, "multiply_transposed", lambda left, right: method(left.T, right))
    assert_refused()


def test_sums_cannot_be_made_on_a_machine_that_is_not_exact(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing() -> None:
        raise PlatformError("not exact")

    monkeypatch.setattr(blas, "require_exact", failing)
    for make in (
        lambda: GramSum(1),
        lambda: CrossSum(1, 1),
        lambda: SymmetricWords(wide.zeros((1,)), 1, keep=False),
    ):
        with pytest.raises(PlatformError):
            make()
