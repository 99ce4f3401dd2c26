"""Wide matrices in panels: the same integers as in one piece."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from expunge import CholeskySolver, Spec, Statistics, WoodburySolver, solve
from expunge.exact import blas, wide
from expunge.exact import gram as panels_module
from expunge.exact.gram import PanelGramSum, digits_of, panels, unpacked
from expunge.exact.symmetric import SymmetricWords
from expunge.ridge import sums as sums_module
from expunge.solvers import system as system_module

Float = NDArray[np.float64]
LARGEST = 2**41 - 1


@pytest.fixture(autouse=True, scope="module")
def small_panels() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(panels_module, "PANEL_ROWS", 3)
        patch.setattr(panels_module, "MOST_WAITING", 5)
        yield


def gram_of(rows: Float) -> list[int]:
    exact = rows.astype(np.int64).astype(object)
    width = rows.shape[1]
    total = exact.T.dot(exact) if len(rows) else np.zeros((width, width), dtype=object)
    return list(total[np.triu_indices(width)])


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 9])
def test_panels_cover_the_packed_triangle_in_order(size: int) -> None:
    full = np.arange(float(size * size)).reshape(size, size)
    packed = full[np.triu_indices(size)]
    put = np.zeros((size, size))
    end = 0
    for rows, place in panels(size):
        assert place.start == end
        end = place.stop
        put[rows, rows.start :] = unpacked(packed[place], rows.stop - rows.start)
    assert end == len(packed)
    assert np.array_equal(put, np.triu(full))


@settings(max_examples=60)
@given(
    st.integers(1, 8),
    st.lists(
        st.tuples(
            st.integers(0, 12),
            st.sampled_from([3, LARGEST]),
            st.sampled_from([1, -1]),
            st.booleans(),
        ),
        max_size=5,
    ),
    st.integers(0, 2**32 - 1),
)
def test_the_gram_of_any_mixture_of_digits_signs_and_drains(
    width: int, steps: list[tuple[int, int, int, bool]], seed: int
) -> None:
    random = np.random.default_rng(seed)
    target, total = wide.zeros((blas.packed_length(width),)), PanelGramSum(width)
    expected = [0] * blas.packed_length(width)
    for count, largest, sign, drain in steps:
        rows = random.integers(-largest, largest, (count, width), endpoint=True).astype(np.float64)
        total.add(digits_of(rows, 2), target, sign)
        expected = [one + sign * other for one, other in zip(expected, gram_of(rows), strict=True)]
        if drain:
            total.drain(target)
            assert wide.to_ints(target) == expected
    total.drain(target)
    assert wide.to_ints(target) == expected


@pytest.mark.parametrize("count", [2047, 2048, 2049, 5000])
def test_sums_as_large_as_the_guard_allows_stay_exact(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(panels_module, "MOST_WAITING", 1 << 20)
    rows = np.full((count, 2), float(LARGEST))
    rows[:, 1] -= np.arange(count) % 7
    target, total = wide.zeros((3,)), PanelGramSum(2)
    for start in range(0, count, 900):
        total.add(digits_of(rows[start : start + 900], 2), target)
    assert target.any() == (count > 2048)
    total.drain(target)
    assert wide.to_ints(target) == gram_of(rows)


def test_a_panel_product_refuses_arrays_it_would_misread() -> None:
    left = np.ones((3, 2))
    whole = np.arange(12.0).reshape(3, 4)
    assert np.array_equal(blas.multiply_panel(left, whole[:, 1:]), left.T @ whole[:, 1:])
    for bad in (whole[:, ::2], whole[::-1], whole.astype(np.float32), whole[:2]):
        with pytest.raises(TypeError, match="this product takes"):
            blas.multiply_panel(left, bad)


@pytest.mark.parametrize("bits", [90, 120])  # entries of three and of four words
def test_copied_words_do_not_see_later_changes(bits: int) -> None:
    random = np.random.default_rng(bits)
    size = 7
    packed = wide.from_ints(
        [
            int(value) << (bits - 62)
            for value in random.integers(-(2**62), 2**62, blas.packed_length(size))
        ]
    )
    digits = [random.integers(-1000, 1000, (size, 2)).astype(np.float64)]
    expected, found = wide.zeros((size, 2), 3), wide.zeros((size, 2), 3)
    SymmetricWords(packed, size, keep=True).subtract_product(expected, digits, 5)
    words = SymmetricWords(packed, size, keep=False, copied=True)
    packed[:] = 0
    words.subtract_product(found, digits, 5)
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("variant", [CholeskySolver, WoodburySolver])
def test_wide_solvers_publish_the_same_heads(
    variant: type[CholeskySolver | WoodburySolver], monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(4)
    features, labels = (
        random.standard_normal((40, 11)).astype(np.float32),
        random.integers(0, 3, 40),
    )
    spec = Spec(dim=11, labels=(0, 1, 2), gamma=0.5)
    retrained = solve(Statistics.of(spec, features[6:], labels[6:]))
    monkeypatch.setattr(sums_module, "PANEL_WIDTH", 0)
    monkeypatch.setattr(system_module, "KEPT_WIDTH", 0)
    monkeypatch.setattr(system_module, "KEPT_ONCE", 0)
    statistics = Statistics.of(spec, features, labels)
    solver = variant(spec, statistics)
    solver.head()
    for start, stop in ((0, 1), (1, 5)):
        solver.delete(features[start:stop], labels[start:stop])
        solver.head()
    solver.delete_statistics(Statistics.of(spec, features[5:6], labels[5:6]))
    assert solver.head().digest == retrained.digest
    assert solve(solver.statistics).digest == retrained.digest
