"""What integers prove: every check refuses what no samples have, by one unit in the last place, and
never what samples have.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from expunge import Grid, Spec, Statistics
from expunge.exact import wide
from expunge.ridge.encoding import integer_rows
from expunge.ridge.plausibility import count_problem, problem_with, rows_behind
from expunge.ridge.sums import Sums
from support.oracle import gram_of

Array = NDArray[Any]

REGRESSION = Spec(dim=3, outputs=1, intercept=False, grid=Grid(2, 0), label_grid=Grid(2, 0))
CLASSES = Spec(dim=2, labels=("cat", "dog"), grid=Grid(2, 4), label_grid=Grid(2, 4))


def edited(statistics: Statistics, **changes: list[tuple[Any, int]]) -> Sums:
    """Settled sums like `statistics`, with integers added at places of the named arrays."""
    sums = Sums(statistics.spec)
    sums.merge(statistics)
    for name, places in changes.items():
        array = getattr(sums, name)
        for place, by in places:
            index = (slice(None), *place) if isinstance(place, tuple) else (slice(None), place)
            part = array[index].reshape(2, 1).copy()
            wide.add_into(part, wide.from_ints([by]))
            array[index] = part.reshape(array[index].shape)
    return sums


# -- counts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "class_counts", "problem"),
    [
        (0, [0, 0], None),
        (2, [1, 1], None),
        (3, [1, 1], None),  # one soft label
        (-1, [0, 0], "-1 samples"),
        (1, [2, -1], "-1 samples of label 'dog'"),
        (1, [1, 1], "2 hard labels on 1 samples"),
    ],
)
def test_counts(count: int, class_counts: list[int], problem: str | None) -> None:
    found = count_problem(CLASSES, count, class_counts)
    assert (found is None) == (problem is None)
    assert problem is None or problem in str(found)


def test_counts_of_regression_have_no_classes() -> None:
    assert count_problem(REGRESSION, 3, []) is None
    assert count_problem(REGRESSION, -3, []) == "there would be -3 samples"


def test_no_samples_have_no_statistics() -> None:
    zero = Statistics.zero(CLASSES)
    assert problem_with(zero) is None
    for name, place in (("gram", 0), ("gram", 5), ("moment", (0, 1)), ("label_gram", (1, 1))):
        for unit in (1, -1):
            assert "no samples" in str(problem_with(edited(zero, **{name: [(place, unit)]})))


# -- samples are always plausible ------------------------------------------------------------------


@st.composite
def statistics(draw: st.DrawFn) -> list[Statistics]:
    """The statistics of two sets of samples under one spec; features may be of very different
    magnitudes, or all alike.
    """
    digits, dim, intercept = (
        draw(st.sampled_from([1, 2])),
        draw(st.integers(1, 4)),
        draw(st.booleans()),
    )
    grid = Grid(
        digits, draw(st.integers(0, 21 * digits - 2)) if intercept else draw(st.integers(-20, 60))
    )
    spec = Spec(dim=dim, labels=("a", "b", "c"), intercept=intercept, grid=grid)
    sizes = draw(st.lists(st.integers(0, grid.bits), min_size=dim, max_size=dim))
    row = st.tuples(*(st.integers(-(1 << size) + 1, (1 << size) - 1) for size in sizes))
    same = draw(row) if draw(st.booleans()) else None  # then every minor is zero
    parts = []
    for _ in range(2):
        indices = draw(st.lists(st.integers(0, 2), max_size=5))
        rows = [same or draw(row) for _ in indices]
        features = np.ldexp(np.array(rows, dtype=np.float64).reshape(-1, dim), -grid.fraction_bits)
        labels = np.eye(3)[indices] if indices else np.zeros((0, 3))
        if draw(st.booleans()):
            labels[: len(indices) // 2] = [0.25, 0.5, 0.25]
        parts.append(Statistics.of(spec, features, labels))
    return parts


@settings(max_examples=100)
@given(statistics())
def test_samples_are_plausible_and_so_is_what_is_left_of_them(parts: list[Statistics]) -> None:
    one, other = parts
    for plausible in (one, other, one + other, one + other - other, one + other - one - other):
        assert problem_with(plausible) is None


@settings(max_examples=100)
@given(statistics(), st.data())
def test_a_minor_below_zero_is_always_found(parts: list[Statistics], data: st.DataObject) -> None:
    """Whatever is done to an entry of S off the diagonal: a problem is found exactly if a minor
    says so.
    """
    whole = parts[0] + parts[1]
    width = whole.spec.width
    assume(whole.count > 0 and width > 1)
    row, column = data.draw(st.sampled_from(list(itertools.combinations(range(width), 2))))
    place = row * width - row * (row - 1) // 2 + column - row
    size = data.draw(st.integers(0, 84))
    by = data.draw(st.integers(-(1 << size), 1 << size))
    changed = edited(whole, gram=[(place, by)])
    gram = gram_of(whole)
    negative = (gram[row][column] + by) ** 2 > gram[row][row] * gram[column][column]
    found = problem_with(changed)
    assert (found is not None) == negative
    if found is not None:
        assert found == f"features {row} and {column} would be correlated by more than 1"


# -- by one unit in the last place -----------------------------------------------------------------

LARGE = float(2**40)


@pytest.mark.parametrize("size", [1.0, 3.0, LARGE, 2.0**41 - 1.0])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_minor_of_zero_passes_and_one_unit_less_does_not(size: float, sign: float) -> None:
    whole = Statistics.of(REGRESSION, [[size, 0.0, sign * size]], [1.0])
    assert problem_with(whole) is None
    assert "features 0 and 2" in str(problem_with(edited(whole, gram=[(2, int(sign))])))
    assert "features 0 and 2" in str(problem_with(edited(whole, gram=[(0, -1)])))
    assert "features 0 and 2" in str(problem_with(edited(whole, gram=[(5, -1)])))
    assert problem_with(edited(whole, gram=[(0, 1)])) is None


def test_a_minor_is_decided_by_integers_even_at_128_bits() -> None:
    whole = Statistics.of(REGRESSION, [[2.0**41 - 1.0, 0.0, 2.0**41 - 1.0]], [1.0])
    for _ in range(43):
        whole = whole + whole
    assert problem_with(whole) is None
    assert "features 0 and 2" in str(problem_with(edited(whole, gram=[(2, 1)])))


def test_a_dead_feature_has_no_products() -> None:
    whole = Statistics.of(REGRESSION, [[5.0, 0.0, 1.0], [1.0, 0.0, 2.0]], [1.0, 1.0])
    assert problem_with(whole) is None
    for place, pair in ((1, "features 0 and 1"), (4, "features 1 and 2")):
        for unit in (1, -1):
            assert pair in str(problem_with(edited(whole, gram=[(place, unit)])))
    assert "feature 1 would be negative" in str(problem_with(edited(whole, gram=[(3, -1)])))
    assert problem_with(edited(whole, gram=[(3, 1)])) is None


@pytest.mark.parametrize("place", [0, 3, 5])
def test_the_diagonal(place: int) -> None:
    whole = Statistics.of(REGRESSION, [[0.0, 0.0, 0.0]], [1.0])
    feature = {0: 0, 3: 1, 5: 2}[place]
    assert f"feature {feature} would be negative" in str(
        problem_with(edited(whole, gram=[(place, -1)]))
    )


def test_the_constant_feature_holds_the_count() -> None:
    whole = Statistics.of(CLASSES, [[1.0, 2.0], [3.0, -1.0], [2.0, 2.0]], [0, 1, 0])
    assert problem_with(whole) is None
    for unit in (1, -1):
        assert "constant feature" in str(problem_with(edited(whole, gram=[(5, unit)])))


def test_the_constant_feature_holds_the_class_counts_where_all_labels_are_hard() -> None:
    features = [[1.0, 2.0], [3.0, -1.0], [2.0, 2.0]]
    hard = Statistics.of(CLASSES, features, [0, 1, 0])
    soft = Statistics.of(CLASSES, features, np.array([[1.0, 0.0], [0.5, 0.5], [1.0, 0.0]]))
    assert problem_with(hard) is None
    assert problem_with(soft) is None
    for label in (0, 1):
        for unit in (1, -1):
            change: dict[str, Any] = {"moment": [((2, label), unit)]}
            assert f"label {CLASSES.labels[label]!r}" in str(problem_with(edited(hard, **change)))  # type: ignore[index]
            assert problem_with(edited(soft, **change)) is None  # soft labels may sum to anything


@pytest.mark.parametrize("intercept", [True, False])
def test_hard_labels_have_the_products_of_hard_labels(intercept: bool) -> None:
    spec = Spec(
        dim=2,
        labels=("cat", "dog", "owl"),
        intercept=intercept,
        grid=Grid(2, 4),
        label_grid=Grid(2, 4),
    )
    hard = Statistics.of(spec, [[1.0, 2.0], [3.0, -1.0]], [0, 1])
    assert problem_with(hard) is None
    for place in ((0, 0), (1, 1), (2, 2), (0, 1), (1, 2)):
        assert "labels' own products" in str(problem_with(edited(hard, label_gram=[(place, 1)])))
    assert "'owl' would have no samples" in str(problem_with(edited(hard, moment=[((0, 2), 1)])))


def test_many_dead_features_are_quickly_judged() -> None:
    """Nothing has to be decided about a feature that is zero throughout: no integer is looked at
    for each pair of them.
    """
    spec = Spec(dim=700, outputs=1, intercept=False)
    features = np.zeros((2, 700))
    features[:, :3] = [[1.0, 2.0, 3.0], [2.0, 1.0, -1.0]]
    calls = 0
    original = wide.to_ints

    def counted(value: wide.Wide) -> list[int]:
        nonlocal calls
        calls += 1
        return original(value)

    whole = Statistics.of(spec, features, [1.0, 1.0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wide, "to_ints", counted)
        assert problem_with(whole) is None
    assert calls < 5000


# -- rows behind statistics ------------------------------------------------------------------------

BEHIND = [
    Spec(dim=3, labels=("a", "b", "c"), grid=Grid(2, 10)),
    Spec(dim=3, labels=("a", "b", "c"), intercept=False, grid=Grid(2, 10)),
    Spec(dim=2, outputs=2, intercept=False, grid=Grid(1, 4)),
]


@given(data=st.data(), spec=st.sampled_from(BEHIND), soft=st.booleans())
def test_rows_that_are_found_have_these_statistics(data: Any, spec: Spec, soft: bool) -> None:
    """One sample is always found, unless all its features are zero; some of different classes too;
    and of others nothing, or rows with the same sums.
    """
    count = data.draw(st.integers(1, 4))
    values = st.one_of(st.sampled_from([0.0, 1.0, -1.0]), st.floats(-500, 500, width=32))
    shape = st.lists(values, min_size=spec.dim, max_size=spec.dim)
    features = np.array(data.draw(st.lists(shape, min_size=count, max_size=count)))
    soft = soft or not spec.is_classification
    one = st.integers(0, spec.columns - 1)
    parts = st.sampled_from([0.0, 0.5, -1.0, 1.0])
    some = st.lists(parts, min_size=spec.columns, max_size=spec.columns)
    labels = np.array(data.draw(st.lists(some if soft else one, min_size=count, max_size=count)))
    statistics = Statistics.of(spec, features, labels, lost_columns="accept")
    rows = rows_behind(statistics)
    if rows is not None:
        assert Statistics.of_rows(spec, rows) == statistics
    known = integer_rows(spec, features, labels)
    is_told = count == 1 or (not soft and len(set(labels.tolist())) == count)
    if is_told and known.integers.any(axis=1).all():
        assert rows is not None


@pytest.mark.parametrize("spec", BEHIND)
@pytest.mark.parametrize("count", [1, 2])
def test_statistics_with_one_unit_more_or_less_have_no_rows(spec: Spec, count: int) -> None:
    features = np.array([[3.0, 2.0, 1.5], [-1.0, 4.0, 0.5]])[:count, : spec.dim]
    labels: Any = [1, 0][:count]
    if not spec.is_classification:
        labels = np.array([[0.5, 2.0], [1.0, -1.0]])[:count]
    whole = Statistics.of(spec, features, labels)
    assert (rows_behind(whole) is None) == (count == 2 and not spec.is_classification)
    for name, places in (
        ("gram", range(whole.gram.shape[1])),
        ("moment", np.ndindex(whole.moment.shape[1:])),
        ("label_gram", np.ndindex(whole.label_gram.shape[1:])),
    ):
        for place, by in itertools.product(places, (1, -1)):
            other = edited(whole, **{name: [(place, by)]})
            assert rows_behind(Statistics.snapshot(other)) is None


def test_rows_beyond_the_grid_are_not_rows_of_the_spec() -> None:
    coarse, fine = Grid(2, 0), Grid(1, 0)
    spec = Spec(dim=1, outputs=1, intercept=False, grid=coarse)
    large = Statistics.of(spec, [[2.0**30]], [1.0])
    assert rows_behind(large) is not None
    narrow = Spec(dim=1, outputs=1, intercept=False, grid=fine)
    sums = Sums(narrow)
    sums.gram[:], sums.moment[:], sums.label_gram[:] = large.gram, large.moment, large.label_gram
    sums.count = 1
    assert rows_behind(Statistics.snapshot(sums)) is None
