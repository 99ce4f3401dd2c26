"""Statistics are a group of exact sums: laws, ways of making them, and what is refused."""

from __future__ import annotations

import copy
import operator
import pickle
from collections.abc import Callable
from fractions import Fraction
from functools import cache, reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from expunge import Grid, Spec, Statistics
from expunge.errors import ExpungeError, GridRangeError, NotFiniteError, SpecMismatchError
from expunge.exact import threads, wide
from expunge.ridge.encoding import integer_rows
from expunge.ridge.sums import Sums

Float = NDArray[np.float64]

SPEC = Spec(dim=3, labels=("a", "b"))


def on_grid(grid: Grid, values: Float) -> NDArray[np.object_]:
    """Python's integers, rounded to nearest with ties to even."""
    result = np.empty(values.shape, dtype=object)
    for place, value in np.ndenumerate(values):
        result[place] = round(Fraction(float(value)) * Fraction(2) ** grid.fraction_bits)
    return result


def assert_exact(stats: Statistics, features: Float, targets: Float) -> None:
    """Equal to the sums by Python's integers; targets as real numbers (n, columns)."""
    spec = stats.spec
    rows = on_grid(spec.grid, features)
    if spec.intercept:
        rows = np.concatenate(
            [rows, np.full((len(rows), 1), 1 << spec.grid.fraction_bits, dtype=object)], axis=1
        )
    labels = on_grid(spec.label_grid, targets)

    def product(left: NDArray[np.object_], right: NDArray[np.object_]) -> list[list[int]]:
        return [[sum(map(operator.mul, one, other)) for other in right.T] for one in left.T]

    def flat(matrix: list[list[int]]) -> list[int]:
        return [value for row in matrix for value in row]

    gram = product(rows, rows)
    assert wide.to_ints(stats.gram) == [
        gram[i][j] for i in range(spec.width) for j in range(i, spec.width)
    ]
    assert wide.to_ints(stats.moment) == flat(product(rows, labels))
    assert wide.to_ints(stats.label_gram) == flat(product(labels, labels))
    assert stats.count == len(features)
    assert stats.diagonal() == [gram[i][i] for i in range(spec.width)]


@st.composite
def samples(draw: st.DrawFn, least: int = 0, most: int = 12) -> tuple[Spec, Float, Any, Float]:
    """A spec, features, labels in one of their forms, and the same labels as real targets."""
    dim, count = draw(st.integers(1, 4)), draw(st.integers(least, most))
    grid = draw(st.sampled_from([Grid(), Grid(2, 20), Grid(1, 15), Grid(2, 40), Grid(2, 0)]))
    label_grid = draw(st.sampled_from([Grid(), Grid(1, 10), Grid(2, 40)]))
    columns = draw(st.integers(1, 3))
    kind: dict[str, Any] = (
        {"outputs": columns} if draw(st.booleans()) else {"labels": tuple("abc"[:columns])}
    )
    spec = Spec(dim=dim, grid=grid, label_grid=label_grid, intercept=draw(st.booleans()), **kind)
    largest = grid.limit - grid.step
    value = st.one_of(
        st.floats(-largest, largest),
        st.sampled_from(
            [0.0, largest, -largest, grid.step, -grid.step, 3 * grid.step, 1.5 * grid.step]
        ),
    )
    features = np.array(draw(st.lists(value, min_size=count * dim, max_size=count * dim))).reshape(
        count, dim
    )
    if spec.is_classification:
        indices = draw(st.lists(st.integers(0, columns - 1), min_size=count, max_size=count))
        hot = np.eye(columns)[np.array(indices, dtype=int)]
        return spec, features, draw(st.sampled_from([np.array(indices, dtype=int), hot])), hot
    real = np.array(
        draw(st.lists(st.floats(-0.99, 0.99), min_size=count * columns, max_size=count * columns))
    )
    return spec, features, real.reshape(count, columns), real.reshape(count, columns)


Samples = tuple[Spec, Float, Any, Float]


def of(spec: Spec, features: Any, labels: Any = None) -> Statistics:
    return Statistics.of(spec, features, labels, lost_columns="accept")


# -- laws ------------------------------------------------------------------------------------------


@given(samples())
def test_statistics_are_the_exact_sums(case: Samples) -> None:
    spec, features, labels, targets = case
    stats = of(spec, features, labels)
    assert_exact(stats, features, targets)
    assert stats.class_counts.tolist() == (
        targets.sum(axis=0).tolist() if spec.is_classification else []
    )


@given(samples(), st.data())
def test_any_order_and_any_split_give_the_same_bytes(case: Samples, data: st.DataObject) -> None:
    spec, features, labels, _ = case
    whole = of(spec, features, labels)
    order = np.array(data.draw(st.permutations(range(len(features)))), dtype=int)
    assert of(spec, features[order], labels[order]).to_bytes() == whole.to_bytes()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(features)), max_size=4)))
    batches = [
        (features[i:j], labels[i:j])
        for i, j in zip([0, *cuts], [*cuts, len(features)], strict=True)
    ]
    assert sum(of(spec, *batch) for batch in batches) == whole
    assert of(spec, batches).digest == whole.digest
    assert of(spec, iter(batches)).digest == whole.digest
    assert (
        of(
            spec, (part for part, _ in batches).__iter__(), iter([part for _, part in batches])
        ).digest
        == whole.digest
    )
    singly = reduce(
        operator.add,
        (of(spec, features[i : i + 1], labels[i : i + 1]) for i in order),
        Statistics.zero(spec),
    )
    assert singly.to_bytes() == whole.to_bytes()


@given(samples(), st.data())
def test_any_interleaving_of_adds_and_deletes_is_the_statistics_of_what_is_retained(
    case: Samples, data: st.DataObject
) -> None:
    spec, features, labels, _ = case
    present: set[int] = set()
    sums, value = Sums(spec), Statistics.zero(spec)
    for index in data.draw(
        st.lists(st.integers(0, max(0, len(features) - 1)), max_size=20 if len(features) else 0)
    ):
        sign = -1 if index in present else 1
        part = features[index : index + 1], labels[index : index + 1]
        sums.change(integer_rows(spec, *part), sign)
        value = value + of(spec, *part) if sign > 0 else value - of(spec, *part)
        present ^= {index}
        if data.draw(st.booleans()):
            sums.settle()
    kept = sorted(present)
    retained = of(spec, features[kept], labels[kept])
    assert Statistics.snapshot(sums).to_bytes() == retained.to_bytes()
    assert value.to_bytes() == retained.to_bytes()


@given(samples(least=3))
def test_the_group_laws(case: Samples) -> None:
    spec, features, labels, _ = case
    a, b, c = (of(spec, features[start::3], labels[start::3]) for start in range(3))
    zero = Statistics.zero(spec)
    assert (a + b) + c == a + (b + c)
    assert a + b == b + a
    assert a + zero == zero + a == a - zero == a
    assert (a + b - b).to_bytes() == a.to_bytes()
    assert (a - b + b).to_bytes() == a.to_bytes()
    assert a - a == zero
    assert a + -a == zero
    opposite = -a
    assert -opposite == a
    assert zero - b == -b
    assert (-b).count == -b.count
    assert sum([a, b, c]) == sum([c, a, b], zero) == a + b + c


def test_zero_is_the_statistics_of_no_rows() -> None:
    zero = Statistics.zero(SPEC)
    for nothing in (
        Statistics.of(SPEC, np.zeros((0, 3)), []),
        Statistics.of(SPEC, np.zeros((0, 3)), np.zeros((0, 2))),
        Statistics.of(SPEC, []),
        Statistics.of(SPEC, iter([])),
        sum([], zero),
    ):
        assert nothing == zero
        assert nothing.digest == zero.digest
    assert (zero.count, zero.class_counts.tolist()) == (0, [0, 0])
    for array in (zero.gram, zero.moment, zero.label_gram):
        assert not array.any()


def test_small_rows_before_large_ones_without_an_intercept() -> None:
    """Without a constant feature small integers have one digit, and large ones two."""
    spec = Spec(dim=1, outputs=1, intercept=False)
    features, labels = np.array([[3 * 2.0**-35], [1.0]]), np.array([[1.0], [2.0]])
    stats = Statistics.of(spec, [(features[:1], labels[:1]), (features[1:], labels[1:])])
    assert_exact(stats, features, labels)


# -- ways of making them ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f2", "f4", ">f8", "i1", "i8", "u2", "?"])
def test_the_type_of_the_features_does_not_matter(dtype: str) -> None:
    features = np.array([[0, 1, 1], [1, 0, 1], [1, 1, 1], [0, 0, 1]]).astype(dtype)
    if features.dtype.kind == "f":
        features = features * np.array(-0.375, dtype=dtype)
    expected = Statistics.of(SPEC, features.astype(np.float64), [0, 1, 1, 0])
    assert Statistics.of(SPEC, features, [0, 1, 1, 0]).digest == expected.digest
    assert Statistics.of(SPEC, features.tolist(), ["a", "b", "b", "a"]).digest == expected.digest
    assert_exact(expected, features.astype(np.float64), np.eye(2)[[0, 1, 1, 0]])


def test_memory_mapped_files(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    features, labels = random.random((1500, 3)).astype(np.float32), random.integers(0, 2, 1500)
    np.save(tmp_path / "features.npy", features)
    np.save(tmp_path / "labels.npy", labels)
    mapped = [np.load(tmp_path / name, mmap_mode="r") for name in ("features.npy", "labels.npy")]
    assert isinstance(mapped[0], np.memmap)
    assert Statistics.of(SPEC, *mapped).digest == Statistics.of(SPEC, features, labels).digest


@cache
def large_arrays() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    random = np.random.default_rng(7)
    return random.standard_normal((70_000, 32), dtype=np.float32), random.integers(0, 3, 70_000)


def large_batch() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Large enough to be shared out among threads."""
    features, labels = large_arrays()
    assert features.size >= 1 << 21
    return features.copy(), labels


@cache
def digest_by_batches(spec: Spec) -> str:
    """Of the same samples, in batches too small to be shared out, from the last to the first."""
    features, labels = large_batch()
    parts = [slice(start, start + 9_000) for start in range(0, len(features), 9_000)]
    return Statistics.of(spec, [(features[part], labels[part]) for part in reversed(parts)]).digest


@pytest.mark.parametrize("cores", [2, 3])
def test_threads_give_the_same_bytes_as_batches(
    cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "cores", lambda: cores)
    features, labels = large_batch()
    spec = Spec(dim=32, labels=tuple("abc"))
    done: list[int] = []
    whole = Statistics.of(spec, features, labels, progress=done.append)
    assert done == sorted(done)
    assert done[-1] == whole.count == len(features)
    assert len(done) > 10
    assert whole.digest == digest_by_batches(spec)


@pytest.mark.parametrize(
    ("value", "error"),
    [(np.nan, NotFiniteError), (np.inf, NotFiniteError), (-64.0, GridRangeError)],
)
def test_threads_name_the_first_bad_row(
    value: float, error: type[ExpungeError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "cores", lambda: 2)
    features, labels = large_batch()
    features[69_000, 3] = value
    with pytest.raises(error, match="row 69000, column 3 of the features"):
        Statistics.of(Spec(dim=32, labels=tuple("abc")), features, labels)
    features[2, 30] = value
    with pytest.raises(error, match="row 2, column 30 of the features"):
        Statistics.of(Spec(dim=32, labels=tuple("abc")), features, labels)


def test_progress_counts_samples_over_batches() -> None:
    done: list[int] = []
    batches = [(np.ones((count, 3)), [0] * count) for count in (3, 0, 600, 1)]
    Statistics.of(SPEC, batches, progress=done.append)
    assert done == sorted(done)
    assert {3, 603, 604} <= set(done)
    assert done[-1] == 604
    assert max(done) == 604


# -- counts and labels -----------------------------------------------------------------------------


def test_soft_labels_are_counted_as_samples_but_not_by_class() -> None:
    soft = np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0], [0.0, 2.0], [0.0, 0.0]])
    stats = Statistics.of(SPEC, np.ones((5, 3)), soft)
    assert stats.count == 5
    assert stats.class_counts.tolist() == [1, 1]
    assert (-stats).class_counts.tolist() == [-1, -1]


def test_index_name_and_one_hot_give_the_same_bytes() -> None:
    features = np.arange(12.0).reshape(4, 3)
    forms: list[Any] = [
        [0, 1, 1, 0],
        ["a", "b", "b", "a"],
        np.eye(2)[[0, 1, 1, 0]],
        np.array([False, True, True, False]),
    ]
    assert len({Statistics.of(SPEC, features, form).to_bytes() for form in forms}) == 1


def test_growing_by_labels_is_an_embedding() -> None:
    features, labels = np.arange(12.0).reshape(4, 3), [0, 1, 1, 0]
    grown = SPEC.with_labels("c", "d")
    small = Statistics.of(SPEC, features, labels)
    large = Statistics.of(grown, features, labels)
    assert small != large
    assert small.under(grown).to_bytes() == large.to_bytes()
    more = Statistics.of(grown, features[:2], ["d", "c"])
    assert small + more == more + small == large + more
    assert (more - small) + small == more
    assert (small + more).spec == (more + small).spec == grown
    assert large.class_counts.tolist() == [2, 2, 0, 0]
    with pytest.raises(SpecMismatchError, match="labels is"):
        large.under(SPEC)


def test_under_another_head_spec_nothing_changes_but_the_spec() -> None:
    stats = Statistics.of(SPEC, np.ones((2, 3)), [0, 1])
    other = stats.under(SPEC.with_gamma(5.0))
    assert other == stats
    assert other.digest == stats.digest
    assert other.spec.gamma == 5.0
    assert stats.under(SPEC) is stats
    assert (
        Statistics.of(SPEC.with_gamma(5.0), np.ones((2, 3)), [0, 1]).to_bytes() == stats.to_bytes()
    )


@pytest.mark.parametrize("doing", [operator.add, operator.sub])
def test_statistics_of_different_specs_do_not_mix(doing: Callable[[Any, Any], Any]) -> None:
    stats = Statistics.of(SPEC, np.ones((2, 3)), [0, 1])
    for other in (
        Spec(dim=3, labels=("b", "a")),
        Spec(dim=3, labels=("a", "c")),
        Spec(dim=2, labels=("a", "b"), intercept=True),
        Spec(dim=3, labels=("a", "b"), grid=Grid(2, 34)),
        Spec(dim=3, labels=("a", "b"), backbone="x"),
        Spec(dim=3, outputs=2),
    ):
        with pytest.raises(
            SpecMismatchError,
            match=f"cannot {doing.__name__[:3]}.* statistics of different specs: the specs differ",
        ):
            doing(stats, Statistics.zero(other))
    with pytest.raises(SpecMismatchError, match=r"gamma is .*statistics\.under\(spec\)"):
        doing(stats, Statistics.zero(SPEC.with_gamma(2.0)))
    with pytest.raises(TypeError):
        doing(stats, 3)


# -- a value ---------------------------------------------------------------------------------------


def test_equality_and_hash() -> None:
    a, b = (Statistics.of(SPEC, np.full((2, 3), value), [0, 1]) for value in (1.0, 2.0))
    again = Statistics.of(SPEC, np.ones((2, 3)), ["a", "b"])
    assert a == again
    assert hash(a) == hash(again)
    assert a != b
    assert a != "statistics"
    assert len({a, b, again}) == 2
    assert Statistics.of(SPEC, np.ones((2, 3)), [0, 0]) != a


def test_copies_by_pickle_are_equal_and_immutable() -> None:
    stats = Statistics.of(SPEC, np.ones((2, 3)), [0, 1])
    for value in (stats, -stats):
        for again in (pickle.loads(pickle.dumps(value)), copy.deepcopy(value), copy.copy(value)):  # noqa: S301 - our own bytes
            assert again == value
            assert again.to_bytes() == value.to_bytes()
            assert again.spec == value.spec
            assert again.gram_by_construction == value.gram_by_construction
            assert not again.gram.flags.writeable


def test_statistics_are_immutable() -> None:
    stats = Statistics.of(SPEC, np.ones((2, 3)), [0, 1])
    for name in ("count", "gram", "spec", "digest", "new"):
        with pytest.raises(AttributeError):
            setattr(stats, name, 1)
    for value in (
        stats,
        stats + stats,
        -stats,
        stats.under(SPEC.with_labels("c")),
        Statistics.zero(SPEC),
    ):
        for name in ("gram", "moment", "label_gram", "class_counts"):
            with pytest.raises(ValueError, match="read-only"):
                getattr(value, name)[...] = 1
    with pytest.raises(TypeError, match=r"Statistics\.of"):
        Statistics()


def test_a_snapshot_does_not_follow_its_sums() -> None:
    sums, rows = Sums(SPEC), integer_rows(SPEC, np.ones((1, 3)), [0])
    sums.change(rows, 1)
    snapshot = Statistics.snapshot(sums)
    before = snapshot.to_bytes()
    sums.change(rows, 1)
    assert Statistics.snapshot(sums).count == 2
    assert snapshot.to_bytes() == before == Statistics.of(SPEC, np.ones((1, 3)), [0]).to_bytes()


def test_only_sums_of_samples_are_grams_by_construction() -> None:
    stats = Statistics.of(SPEC, np.ones((2, 3)), [0, 1])
    for known in (
        stats,
        stats + stats,
        Statistics.zero(SPEC),
        stats.under(SPEC.with_gamma(3.0)),
        sum([stats, stats]),
    ):
        assert isinstance(known, Statistics)
        assert known.gram_by_construction
    for unknown in (
        stats - stats,
        -stats,
        Statistics.from_bytes(SPEC, stats.to_bytes()),
        stats + (stats - stats),
    ):
        assert not unknown.gram_by_construction


@given(samples())
def test_float_views_are_within_one_part_in_two_to_the_51(case: Samples) -> None:
    spec, features, labels, _ = case
    stats = of(spec, features, labels)
    width = spec.width
    unit, label_unit = Fraction(spec.grid.step), Fraction(spec.label_grid.step)
    gram = stats.gram_float()
    assert np.array_equal(gram, gram.T)
    views = [
        (gram[np.triu_indices(width)], stats.gram, unit * unit),
        (stats.moment_float(), stats.moment, unit * label_unit),
        (stats.label_gram_float(), stats.label_gram, label_unit * label_unit),
    ]
    for floats, integers, scale in views:
        for value, exact in zip(floats.ravel().tolist(), wide.to_ints(integers), strict=True):
            assert abs(Fraction(value) - exact * scale) <= abs(exact) * scale / (1 << 51)
