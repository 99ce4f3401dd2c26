"""Contributions as vectors: a homomorphism with an inverse, which refuses counts that contradict
one another.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge import Spec, Statistics
from expunge.errors import FormatError, ShapeError
from expunge.exact import wide
from expunge.secagg import Contribution, length
from support.samples import SPEC, draw, statistics_of

OUTPUTS = Spec(dim=3, outputs=2, intercept=False)


def contribution(spec: Spec, added: int, deleted: int, seed: int) -> Contribution:
    rng = np.random.default_rng(seed)
    plus, minus = (
        statistics_of(spec, draw(rng, count, spec)) if count else None for count in (added, deleted)
    )
    return Contribution.of(plus, minus, spec)


def same(left: Contribution, right: Contribution) -> bool:
    return (
        left.statistics == right.statistics
        and left.statistics.digest == right.statistics.digest
        and (left.added, left.deleted) == (right.added, right.deleted)
        and np.array_equal(left.added_classes, right.added_classes)
        and np.array_equal(left.deleted_classes, right.deleted_classes)
    )


def combined(left: Contribution, right: Contribution) -> Contribution:
    return Contribution(
        left.statistics + right.statistics,
        left.added + right.added,
        left.deleted + right.deleted,
        left.added_classes + right.added_classes,
        left.deleted_classes + right.deleted_classes,
    )


counts = st.integers(0, 4)


@given(
    st.sampled_from([SPEC, OUTPUTS]),
    st.tuples(counts, counts),
    st.tuples(counts, counts),
    st.integers(0, 2**32),
)
def test_vectors_are_a_homomorphism_with_an_inverse(
    spec: Spec, a: tuple[int, int], b: tuple[int, int], seed: int
) -> None:
    left, right = contribution(spec, *a, seed), contribution(spec, *b, seed + 1)
    assert left.vector().shape == (2, length(spec))
    assert same(Contribution.from_vector(spec, left.vector()), left)
    total = Contribution.from_vector(spec, wide.add(left.vector(), right.vector()))
    assert same(total, combined(left, right))
    assert left.statistics.count == a[0] - a[1]


def test_soft_labels_are_of_no_class() -> None:
    soft = Statistics.of(SPEC, np.ones((3, 4)), np.full((3, 3), 0.25))
    found = Contribution.from_vector(SPEC, Contribution.of(soft, None, SPEC).vector())
    assert (found.added, found.added_classes.tolist()) == (3, [0, 0, 0])


def test_five_added_and_five_deleted_do_not_look_like_nothing() -> None:
    same_samples = statistics_of(SPEC, draw(np.random.default_rng(1), 5))
    found = Contribution.of(same_samples, same_samples, SPEC)
    assert found.statistics == Statistics.zero(SPEC)
    assert (found.added, found.deleted) == (5, 5)
    assert found.vector().any()


def test_labels_appended_since_are_empty_classes() -> None:
    grown = SPEC.with_labels("fox")
    found = Contribution.of(statistics_of(SPEC, draw(np.random.default_rng(1), 5)), None, grown)
    assert found.vector().shape == (2, length(grown))
    assert found.added_classes[-1] == 0


COUNTS_AT = length(SPEC) - 3 - 9  # net, added, deleted; then by class


@pytest.mark.parametrize(
    ("place", "change", "problem"),
    [
        (0, 1, "net count of 2"),
        (1, 1, "contradict"),
        (1, -10, "samples added cannot be"),
        (2, -10, "samples deleted cannot be"),
        (1, 2**60, "samples added cannot be"),
        (3, 1, "class 0"),
        (6, 1, "class 0"),
        (9, -100, "class 0"),
    ],
)
def test_counts_that_contradict_one_another_are_refused(
    place: int, change: int, problem: str
) -> None:
    vector = contribution(SPEC, 3, 2, 0).vector()
    values = wide.to_ints(vector[:, COUNTS_AT + place : COUNTS_AT + place + 1])
    vector[:, COUNTS_AT + place : COUNTS_AT + place + 1] = wide.from_ints([values[0] + change])
    with pytest.raises(FormatError, match=problem):
        Contribution.from_vector(SPEC, vector)


def test_classes_cannot_have_more_than_there_is() -> None:
    vector = contribution(SPEC, 3, 2, 0).vector()
    for place in (3, 6):
        at = slice(COUNTS_AT + place, COUNTS_AT + place + 1)
        vector[:, at] = wide.from_ints([wide.to_ints(vector[:, at])[0] + 1])
    with pytest.raises(FormatError, match="the classes have 4 samples added, but all together 3"):
        Contribution.from_vector(SPEC, vector)


@pytest.mark.parametrize(
    "vector",
    [wide.zeros((5,)), np.zeros((2, length(SPEC)), np.int64), wide.zeros((length(SPEC),), 3)],
)
def test_vectors_of_another_shape_are_refused(vector: wide.Wide) -> None:
    with pytest.raises(FormatError, match="is expected under this spec"):
        Contribution.from_vector(SPEC, vector)


def test_class_counts_must_fit_the_spec() -> None:
    zero = Statistics.zero(SPEC)
    with pytest.raises(ShapeError, match="by class"):
        Contribution(zero, 0, 0, np.zeros(2, np.int64), np.zeros(3, np.int64))
