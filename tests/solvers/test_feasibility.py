"""Deletions that are proved impossible, for whatever reason and on whatever way, are refused and
leave no trace.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from expunge import CholeskySolver, Grid, Spec, Statistics, WoodburySolver, solve
from expunge.errors import ExpungeError, ImpossibleDeletionError, SolveError
from expunge.ridge.encoding import integer_rows
from expunge.solvers.base import Change, ExactSolver
from expunge.solvers.factor import CholeskyFactor, Downdate, downdate, low_rank
from expunge.solvers.minors import minors_are_safe
from expunge.solvers.system import RidgeSystem
from support.oracle import gram_of, is_positive_semidefinite, of_statistics

Array = NDArray[Any]
Delete = Callable[[ExactSolver, Any, Any], None]

VARIANTS = [CholeskySolver, WoodburySolver]


def by_rows(solver: ExactSolver, features: Any, labels: Any) -> None:
    solver.delete(features, labels)


def by_statistics(solver: ExactSolver, features: Any, labels: Any) -> None:
    solver.delete_statistics(Statistics.of(solver.spec, features, labels, lost_columns="accept"))


def in_a_large_batch(solver: ExactSolver, features: Any, labels: Any) -> None:
    """The same rows with 40 more that were never in doubt: too many to follow row by row."""
    array, targets = np.asarray(features, dtype=np.float64), np.asarray(labels)
    more = np.zeros((40, array.shape[1]))
    kind = np.zeros((40, *targets.shape[1:]), dtype=targets.dtype)
    solver.add(more, kind)
    try:
        solver.delete(np.vstack([array, more]), np.concatenate([targets, kind]))
    except ImpossibleDeletionError:
        solver.delete(more, kind)  # of zeros only, and thus possible
        raise


WAYS = [by_rows, by_statistics, in_a_large_batch]


def require_refused_without_a_trace(
    solver: ExactSolver, delete: Delete, features: Any, labels: Any, match: str
) -> None:
    """ImpossibleDeletionError; then statistics, head and all further work are as if nothing had
    been asked.
    """
    before = solver.statistics
    twin = type(solver)(solver.spec, before)
    with pytest.raises(ImpossibleDeletionError, match=match) as caught:
        delete(solver, features, labels)
    assert "nothing was deleted" in str(caught.value)
    assert solver.statistics == before
    assert solver.count == before.count
    assert solver.head().digest == solve(before).digest
    more, targets = np.full((1, solver.spec.dim), 0.25), np.zeros((1, solver.spec.columns))
    for each in (solver, twin):
        each.add(more, targets)
    assert solver.head().digest == twin.head().digest == solve(solver.statistics).digest
    solver.delete(more, targets)
    assert solver.statistics == before
    assert solver.head().digest == solve(before).digest


def plain(dim: int, gamma: float) -> Spec:
    return Spec(dim=dim, outputs=1, gamma=gamma, intercept=False)


PETS = Spec(dim=2, labels=("cat", "dog"), gamma=100.0)
FOUR = [[1.0, 2.0], [3.0, 1.0], [2.0, 5.0], [1.0, 7.0]]
SOFT = [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.5, 0.5]]
BALL = [[1.5, 0.0, 0.0], [0.0, 1.5, 0.0], [0.0, 0.0, 1.5], [0.0, 0.0, 0.0]]
HUGE = 2.0**40  # a gamma under which float64 sees nothing
STEP = 2.0**-35  # of the grids

# name: (spec, what is added, its labels, what is deleted, its labels, what the refusal says)
IMPOSSIBLE: dict[str, tuple[Spec, Any, Any, Any, Any, str]] = {
    "more than there are": (
        plain(2, 1.0),
        [[1.0, 2.0]],
        [1.0],
        [[1.0, 2.0]] * 2,
        [1.0] * 2,
        "-1 samples",
    ),
    "more of a label than there are": (
        PETS,
        FOUR[:2],
        [0, 1],
        FOUR[:1] * 2,
        [0, 0],
        "-1 samples of label 'cat'",
    ),
    "a soft label where all are hard": (
        PETS,
        FOUR[:2],
        SOFT[:2],
        FOUR[:1],
        SOFT[3:],
        "2 hard labels on 1 samples",
    ),
    "a soft label that was another": (
        PETS,
        FOUR,
        SOFT,
        FOUR[3:],
        [[0.25, 0.75]],
        "would contradict",
    ),
    "the last of its label, but another sample": (
        PETS,
        FOUR,
        [0, 1, 0, 0],
        [[3.0, 1.5]],
        [1],
        "label 'dog' would have no samples",
    ),
    "the diagonal": (
        plain(2, 100.0),
        FOUR[:2],
        [1.0, 1.0],
        [[0.0, 2.25]],
        [1.0],
        "feature 1 would be negative",
    ),
    "the diagonal by one unit": (
        plain(1, HUGE),
        [[5.0], [0.0]],
        [1.0, 1.0],
        [[5.0], [STEP]],
        [1.0, 1.0],
        "would",
    ),
    "a 2x2 minor": (
        plain(2, 10.0),
        [[1.0, 1.0]] * 2,
        [1.0, 1.0],
        [[1.0, -1.0]],
        [1.0],
        "features 0 and 1 would be correlated",
    ),
    "a 2x2 minor with the constant feature": (
        Spec(dim=1, outputs=1, gamma=100.0),
        [[1.0]] * 3,
        [1.0] * 3,
        [[0.5]],
        [1.0],
        "features 0 and 1 would be correlated",
    ),
    "a 2x2 minor by one unit": (
        plain(2, HUGE),
        [[5.0, 5.0], [0.0, 0.0]],
        [1.0, 1.0],
        [[STEP, 0.0]],
        [0.0],
        "features 0 and 1 would be correlated",
    ),
    "a dead feature": (
        plain(2, HUGE),
        [[5.0, 0.0], [3.0, 0.0]],
        [1.0, 1.0],
        [[3.0, STEP]],
        [1.0],
        "feature 1 would be negative",
    ),
    "the factorisation": (
        plain(3, 0.25),
        BALL,
        [1.0, 0.0, 1.0, 0.0],
        [[1.0, 1.0, 1.0]],
        [1.0],
        "positive definite",
    ),
    "all samples, but others": (
        plain(2, HUGE),
        FOUR[:1],
        [1.0],
        FOUR[:1],
        [1.0 + STEP],
        "statistics would not be zero",
    ),
    "all samples, but less": (
        plain(2, HUGE),
        FOUR[:1],
        [1.0],
        [[1.0, 2.0 - STEP]],
        [1.0],
        "statistics would not be zero",
    ),
    "all samples, but zeros": (
        plain(2, 1.0),
        [[0.0, 0.0]],
        [1.0],
        [[0.0, 0.0]],
        [2.0],
        "statistics would not be zero",
    ),
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("warm", [False, True], ids=["before the first head", "after it"])
@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_an_impossible_deletion_is_refused_and_leaves_no_trace(
    case: str, warm: bool, way: Delete, variant: type[ExactSolver]
) -> None:
    spec, features, labels, gone, gone_labels, match = IMPOSSIBLE[case]
    if way is in_a_large_batch and case.startswith("all samples"):
        match = "would"  # the zeros that go with them leave something to compare
    solver = variant(spec)
    solver.add(features, labels)
    if warm:
        solver.head()
    require_refused_without_a_trace(solver, way, gone, gone_labels, match)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("way", WAYS)
def test_what_the_minors_just_allow_is_allowed(way: Delete, variant: type[ExactSolver]) -> None:
    """A minor of exactly zero, and a diagonal entry of exactly zero, are those of samples."""
    spec = Spec(dim=2, outputs=1, gamma=0.1, intercept=False)
    solver = variant(spec)
    solver.add([[5.0, 5.0], [2.0**-35, 0.0], [0.0, 0.0]], [1.0, 2.0, 0.0])
    solver.head()
    way(solver, [[2.0**-35, 0.0]], [2.0])
    way(solver, [[5.0, 5.0]], [1.0])
    assert not any(solver.statistics.diagonal())
    assert solver.head().digest == solve(Statistics.of(spec, [[0.0, 0.0]], [0.0])).digest


@pytest.mark.parametrize("variant", VARIANTS)
def test_minors_of_a_feature_that_the_float_copy_lost_are_still_checked(
    variant: type[ExactSolver],
) -> None:
    """Deleting 2^40 leaves a 1 that float64 cannot see; a minor that involves it must be decided by
    integers all the same.
    """
    spec = Spec(dim=2, outputs=1, gamma=2.0**36, intercept=False, grid=Grid(2, 0))
    solver = variant(spec)
    solver.add([[2.0**25, 1.0], [2.0**24, 0.0], [0.0, 2.0**40], [0.0, 0.0]], [1.0] * 4)
    solver.delete([[0.0, 2.0**40]], [1.0])
    before = solver.statistics
    with pytest.raises(ImpossibleDeletionError, match="correlated"):
        solver.delete([[2.0**24 + 1024.0, 0.0]], [1.0])
    assert solver.statistics == before


# -- one judgement, whatever the way ---------------------------------------------------------------


@st.composite
def attempts(draw: st.DrawFn) -> tuple[Spec, Array, Array, Array, Array]:
    """Samples to add and samples to delete, some of them the same, under a gamma that may or may
    not hide the difference.
    """
    dim, intercept = draw(st.integers(1, 4)), draw(st.booleans())
    gamma = draw(st.one_of(st.sampled_from([0.1, 1.0, 4.0, 1e6]), st.floats(0.01, 100.0)))
    spec = Spec(dim=dim, outputs=1, gamma=gamma, intercept=intercept, grid=Grid(1, 3))
    row = st.lists(st.integers(-16, 16), min_size=dim + 1, max_size=dim + 1)
    added = draw(st.lists(row, min_size=1, max_size=6))
    gone = draw(st.lists(st.one_of(st.sampled_from(added), row), min_size=1, max_size=3))
    one, other = (np.array(rows, dtype=np.float64) / 8.0 for rows in (added, gone))
    return spec, one[:, :dim], one[:, dim], other[:, :dim], other[:, dim]


def outcome(solver: ExactSolver, delete: Delete, features: Array, labels: Array) -> str:
    try:
        delete(solver, features, labels)
    except ImpossibleDeletionError:
        return "refused"
    return solver.head().digest


@settings(max_examples=120)
@given(attempts(), st.booleans())
def test_what_is_left_decides_and_not_the_way(
    attempt: tuple[Spec, Array, Array, Array, Array], warm: bool
) -> None:
    """A Gram is always accepted, an impossible count never; in between, what is accepted is solved
    rightly.
    """
    spec, added, labels, gone, gone_labels = attempt
    left = Statistics.of(spec, added, labels) - Statistics.of(spec, gone, gone_labels)
    possible = left.count > 0 and is_positive_semidefinite(gram_of(left))
    nothing = left == Statistics.zero(spec)
    expected = of_statistics(left).integers.tolist() if possible or nothing else None
    for variant in VARIANTS:
        for way in (by_rows, by_statistics):
            solver = variant(spec)
            solver.add(added, labels)
            if warm:
                solver.head()
            try:
                way(solver, gone, gone_labels)
            except ImpossibleDeletionError:
                assert expected is None, (variant.__name__, way.__name__)
                assert solver.statistics == Statistics.of(spec, added, labels)
                continue
            assert left.count > 0 or nothing
            expected = expected or of_statistics(left).integers.tolist()
            assert solver.head().integers.tolist() == expected, (variant.__name__, way.__name__)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("way", WAYS)
def test_a_deletion_that_only_gamma_would_cover_is_judged_as_retraining_judges_it(
    way: Delete, variant: type[ExactSolver]
) -> None:
    """S = 1.6 I - 0.8 * 11' has positive minors, but an eigenvalue of -0.8; with gamma = 1 all of H
    is positive.
    """
    spec = Spec(dim=3, outputs=1, gamma=1.0, intercept=False)
    solver = variant(spec)
    features = np.vstack([np.eye(3) * math.sqrt(1.61), np.zeros((1, 3))])
    solver.add(features, np.ones(4))
    gone = np.full((1, 3), math.sqrt(0.8))
    left = solver.statistics - Statistics.of(spec, gone, np.ones(1))
    try:
        expected = solve(left).digest
    except SolveError:
        expected = "refused"
    assert outcome(solver, way, gone, np.ones(1)) == expected


# -- the lemma -------------------------------------------------------------------------------------


def lowered(system_gram: list[list[int]], spec: Spec, by: Fraction) -> list[list[Fraction]]:
    """H - by * I in fractions."""
    unit = Fraction(4) ** -spec.grid.fraction_bits
    matrix = [[value * unit for value in row] for row in system_gram]
    for index in range(spec.width):
        matrix[index][index] += spec.exact_gamma - by
    return matrix


@settings(max_examples=120)
@given(attempts(), st.floats(0.0, 1.5))
def test_a_carried_bound_is_true_and_impossible_means_impossible(
    attempt: tuple[Spec, Array, Array, Array, Array], staleness: float
) -> None:
    """With a preconditioner that is as wrong as a stale one can be."""
    spec, added, labels, gone, gone_labels = attempt
    whole = Statistics.of(spec, added, labels)
    left = gram_of(whole - Statistics.of(spec, gone, gone_labels))
    system = RidgeSystem(spec, whole.gram)
    factor = CholeskyFactor(system)
    values = Change(spec, integer_rows(spec, gone, gone_labels)).values
    found = downdate(
        system,
        lambda right: factor.solve(right) * (1.0 + staleness),
        spec.gamma,
        values,
        spec.gamma / 16.0,
    )
    if found is Downdate.IMPOSSIBLE:
        assert not is_positive_semidefinite(left)
    elif isinstance(found, float):
        assert spec.gamma / 16.0 <= found <= spec.gamma
        assert is_positive_semidefinite(lowered(left, spec, Fraction(found)))


@settings(max_examples=120)
@given(attempts(), st.integers(0, 18))
def test_minors_called_safe_are_safe(
    attempt: tuple[Spec, Array, Array, Array, Array], spread: int
) -> None:
    """Features of very different magnitudes, and a float copy that has followed the rows."""
    spec, added, labels, gone, gone_labels = attempt
    wide = Spec(dim=spec.dim, outputs=1, gamma=2.0**60, intercept=False, grid=Grid(2, 3))
    scale = 2.0 ** (np.arange(spec.dim) * spread % 33)
    whole = Statistics.of(wide, added * scale, labels)
    system, change = (
        RidgeSystem(wide, whole.gram),
        Change(wide, integer_rows(wide, gone * scale, gone_labels)),
    )
    system.change(change.digits, change.values, -1)
    assume(minors_are_safe(system))
    gram = gram_of(whole - Statistics.of(wide, gone * scale, gone_labels))
    for row in range(wide.width):
        assert gram[row][row] >= 0
        for column in range(row):
            assert gram[row][column] ** 2 <= gram[row][row] * gram[column][column]


def test_a_feature_that_float64_lost_is_not_called_safe() -> None:
    """As above, in the float copy itself: its diagonal says 0 where a 1 is left, and a minor with
    it has turned negative.
    """
    spec = Spec(dim=2, outputs=1, gamma=2.0**36, intercept=False, grid=Grid(2, 0))
    system = RidgeSystem(
        spec, Statistics.of(spec, [[2.0**25, 1.0], [2.0**24, 0.0], [0.0, 2.0**40]], [1.0] * 3).gram
    )
    for row in ([0.0, 2.0**40], [2.0**24 + 1024.0, 0.0]):
        change = Change(spec, integer_rows(spec, [row], [1.0]))
        system.change(change.digits, change.values, -1)
    assert system.gram[1, 1] == 0.0
    assert not minors_are_safe(system)


# -- honest deletions must not be accused ----------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_refused_deletion_does_not_poison_the_float_copy(variant: type[ExactSolver]) -> None:
    """The refused row is so large that taking it out of float64 and putting it back leaves nothing
    of the rest.
    """
    spec = Spec(dim=1, outputs=1, gamma=1.0, intercept=False, grid=Grid(2, 10))
    solver = variant(spec)
    solver.add([[1.0]], [1.0])
    solver.head()
    solver.add_statistics(
        Statistics.of(spec, [[8.0]], [1.0])
    )  # the preconditioner is stale from here on
    require_refused_without_a_trace(solver, by_rows, [[2.0**31 - 1.0]], [1.0], "would")


@pytest.mark.parametrize("variant", VARIANTS)
def test_honest_samples_close_to_the_conditioning_limit_come_and_go(
    variant: type[ExactSolver],
) -> None:
    spec = Spec(dim=1, outputs=1, gamma=1.0, intercept=False, grid=Grid(2, 10))
    solver = variant(spec)
    solver.add([[1.0], [2.0]], [1.0, 1.0])
    expected = solver.head().digest
    large = [[float(int(2.0**23.45))]]
    for _ in range(20):
        solver.add(large, [1.0])
        solver.head()
        solver.delete(large, [1.0])
        assert solver.head().digest == expected


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("gamma", [2.0**20, 2.0**40, 2.0**58])
def test_a_dominating_sample_that_left_under_a_large_gamma_is_no_burden_under_a_small_one(
    variant: type[ExactSolver], gamma: float
) -> None:
    """It takes with it all that float64 knew of the others; the larger gamma, the less that
    matters, until gamma is small.
    """
    generator = np.random.default_rng(0)
    spec = Spec(dim=3, outputs=1, gamma=1e-6, intercept=False, grid=Grid(2, 10))
    features, targets = generator.standard_normal((6, 3)), generator.standard_normal(6)
    solver = variant(spec)
    solver.add(features, targets)
    expected = solver.head().digest
    solver.amend(spec.with_gamma(gamma))
    for _ in range(2):
        dominating = generator.uniform(2.0**28, 2.0**29, (1, 3))
        solver.add(dominating, [1.0])
        solver.head()
        solver.delete(dominating, [1.0])
    solver.amend(spec)
    assert solver.head().digest == expected


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("way", WAYS)
def test_an_honest_deletion_is_taken_even_where_no_head_can_be_solved(
    way: Delete, variant: type[ExactSolver]
) -> None:
    """Gamma is far too small for the dominating sample: there is no head until it is gone, but gone
    it can be.
    """
    spec = Spec(dim=2, outputs=1, gamma=1e-12)
    solver = variant(spec)
    solver.add([[0.1, 0.2], [0.3, -0.1], [60.0, 50.0]], [1.0, 2.0, 3.0])
    with pytest.raises(ExpungeError, match="ill-conditioned"):
        solver.head()
    way(solver, [[60.0, 50.0]], [3.0])
    assert solver.statistics == Statistics.of(spec, [[0.1, 0.2], [0.3, -0.1]], [1.0, 2.0])
    solver.amend(spec.with_gamma(0.1))
    assert solver.head().digest == solve(solver.statistics).digest


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), rank=st.integers(1, 5))
def test_rows_of_low_rank_are_as_close_as_their_bound_says(seed: int, rank: int) -> None:
    """By rational arithmetic, for matrices of that rank, of a higher one and of none; a low rank is
    found.
    """
    draw = np.random.default_rng(seed)
    width, actual = 6, int(draw.integers(0, 5))
    rows = draw.standard_normal((actual, width)) * 2.0 ** draw.integers(-20, 20)
    matrix = rows.T @ rows
    if draw.integers(2):
        matrix = matrix + 1e-3 * draw.standard_normal((width, width))
    matrix = np.triu(matrix) + np.triu(matrix, 1).T
    found, bound = low_rank(np.triu(matrix), rank)
    assert len(found) <= rank
    exact = [[Fraction(value) for value in row] for row in found.tolist()]
    total = sum(
        (Fraction(matrix[i, j]) - sum((row[i] * row[j] for row in exact), Fraction(0))) ** 2
        for i in range(width)
        for j in range(width)
    )
    assert total <= Fraction(bound) ** 2
    if actual <= rank and np.array_equal(matrix, rows.T @ rows):
        assert bound <= 2.0**-40 * float(np.abs(matrix).max(initial=0.0)) * width
