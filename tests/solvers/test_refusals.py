"""Heads and changes that are refused: for reasons that do not depend on the path, with remedies
that work, without a trace.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from expunge import CholeskySolver, Grid, Head, Spec, Statistics, WoodburySolver, solve
from expunge.errors import (
    ExpungeError,
    GridRangeError,
    IllConditionedError,
    InputError,
    LostColumnError,
    NotAGramError,
    NotFiniteError,
    PublicationRangeError,
    ShapeError,
    SpecError,
    SpecMismatchError,
    UndecidableTieError,
    UnknownLabelError,
)
from expunge.solvers.base import ExactSolver
from support.oracle import of_samples

Array = NDArray[Any]
Path = Callable[[Spec, Any, Any], Head]

VARIANTS = [CholeskySolver, WoodburySolver]


def retrained(spec: Spec, features: Any, labels: Any) -> Head:
    return solve(Statistics.of(spec, features, labels))


def row_by_row(variant: type[ExactSolver]) -> Path:
    def path(spec: Spec, features: Any, labels: Any) -> Head:
        solver = variant(spec)
        array, targets = np.asarray(features, dtype=np.float64), np.asarray(labels)
        for index in range(len(array)):
            solver.add(array[[index]], targets[[index]], lost_columns="accept")
        return solver.head()

    return path


def amended(variant: type[ExactSolver]) -> Path:
    """Everything is added and solved under another gamma and another publication grid first."""

    def path(spec: Spec, features: Any, labels: Any) -> Head:
        solver = variant(spec.with_gamma(2.0**100).with_publication_bits(-60))
        solver.add(features, labels)
        solver.head()
        solver.amend(spec)
        return solver.head()

    return path


PATHS: list[Path] = [
    retrained,
    *(make(variant) for make in (row_by_row, amended) for variant in VARIANTS),
]
each_path = pytest.mark.parametrize(
    "path", PATHS, ids=["retrained", "rows A", "rows B", "amended A", "amended B"]
)


# -- the conditioning rule -------------------------------------------------------------------------


def squares_that_sum_to(total: int) -> list[float]:
    """Integers whose squares add up to `total`, greedily."""
    parts = []
    while total:
        parts.append(math.isqrt(total))
        total -= parts[-1] ** 2
    return [float(part) for part in parts]


@each_path
def test_the_conditioning_rule_is_exact_at_its_limit(path: Path) -> None:
    """In one dimension the rule is trace(S) <= gamma * (2^47 - 1): equality passes, one unit more
    does not.
    """
    spec = Spec(dim=1, outputs=1, gamma=1.0, intercept=False, grid=Grid(2, 0))
    features = np.array(squares_that_sum_to(2**47 - 1)).reshape(-1, 1)
    targets = np.ones(len(features))
    head = path(spec, features, targets)
    np.testing.assert_array_equal(head.integers, of_samples(spec, features, targets).integers)
    with pytest.raises(IllConditionedError, match="smallest gamma"):
        path(spec, np.vstack([features, [[1.0]]]), np.append(targets, 1.0))


def named_gamma(refusal: Exception) -> float:
    found = re.search(r"smallest gamma that will do is (\S+)", str(refusal))
    assert found is not None
    return float(found[1])


@settings(max_examples=60)
@given(st.integers(1, 4), st.integers(0, 2**32), st.floats(1e-3, 60.0))
def test_the_named_gamma_is_the_smallest_that_works(dim: int, seed: int, scale: float) -> None:
    generator = np.random.default_rng(seed)
    features, targets = generator.uniform(-scale, scale, (3, dim)), generator.standard_normal(3)
    statistics = Statistics.of(
        Spec(dim=dim, outputs=1, gamma=1e-20, publication_bits=0), features, targets
    )
    with pytest.raises(IllConditionedError) as refused:
        solve(statistics)
    smallest = named_gamma(refused.value)
    spec = statistics.spec.with_gamma(smallest)
    np.testing.assert_array_equal(
        solve(statistics.under(spec)).integers, of_samples(spec, features, targets).integers
    )
    with pytest.raises(IllConditionedError) as again:
        solve(statistics.under(spec.with_gamma(math.nextafter(smallest, 0.0))))
    assert named_gamma(again.value) == smallest


def test_a_gamma_is_named_only_if_there_can_be_such_a_spec() -> None:
    spec = Spec(dim=1, outputs=1, gamma=1.0, intercept=False, grid=Grid(2, -60))
    with pytest.raises(IllConditionedError) as refused:
        solve(Statistics.of(spec, [[2.0**100]], [1.0]))
    if "smallest gamma" in str(refused.value):
        spec.with_gamma(named_gamma(refused.value))
    assert "scale the features" in str(refused.value)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_solver_goes_on_after_a_refused_head(variant: type[ExactSolver]) -> None:
    spec = Spec(dim=2, outputs=1, gamma=1e-9)
    features, targets = np.array([[1.0, 2.0], [3.0, -1.0], [60.0, 60.0]]), np.array([1.0, 2.0, 3.0])
    solver = variant(spec)
    solver.add(features[:2], targets[:2])
    expected = solver.head().digest
    solver.add(np.repeat(features[2:], 16, axis=0), np.repeat(targets[2:], 16))
    for _ in range(2):
        with pytest.raises(IllConditionedError):
            solver.head()
    solver.delete(np.repeat(features[2:], 16, axis=0), np.repeat(targets[2:], 16))
    assert solver.head().digest == expected


# -- ties ------------------------------------------------------------------------------------------


@each_path
@pytest.mark.parametrize("bits", [-3, 0, 10, 40])
@pytest.mark.parametrize("whole", [0, 1, -1, -4, 7])
def test_an_exact_tie_is_refused_and_one_more_bit_publishes_it(
    path: Path, bits: int, whole: int
) -> None:
    """One sample of feature 1 with gamma = 1: W* is half of its target, and a half can be made of
    anything.
    """
    spec = Spec(
        dim=1,
        outputs=2,
        gamma=1.0,
        intercept=False,
        grid=Grid(1, 10),
        label_grid=Grid(2, max(bits, 0)),
        publication_bits=bits,
    )
    target = math.ldexp(2 * whole + 1, -bits)
    with pytest.raises(UndecidableTieError, match=re.escape("feature 0 for output 1")) as refused:
        path(spec, [[1.0]], [[0.0, target]])
    found = re.search(r"publication_bits=(-?\d+)", str(refused.value))
    assert found is not None
    assert int(found[1]) == bits + 1
    head = path(spec.with_publication_bits(bits + 1), [[1.0]], [[0.0, target]])
    assert head.weights.tolist() == [[0.0, target / 2]]
    assert head.integers.tolist() == [[0, 2 * whole + 1]]


@each_path
@pytest.mark.parametrize("bits", [20, 24, 28, 32, 36, 40])
def test_what_is_almost_a_tie_is_decided(path: Path, bits: int) -> None:
    """x = 2^-10, y = 2^-11 (1 + 2^-b), gamma = 2^-(20+b): W* = 1/2.

    The next gamma moves it by 2^-(b+53), and that is enough.
    """
    tie = 2.0 ** -(20 + bits)
    spec = Spec(
        dim=1,
        outputs=1,
        gamma=tie,
        intercept=False,
        grid=Grid(2, 30),
        label_grid=Grid(2, 51),
        publication_bits=0,
    )
    features, targets = [[2.0**-10]], [2.0**-11 * (1 + 2.0**-bits)]
    with pytest.raises(UndecidableTieError):
        path(spec, features, targets)
    for gamma, rounded in ((math.nextafter(tie, 1.0), 0), (math.nextafter(tie, 0.0), 1)):
        near = spec.with_gamma(gamma)
        distance = abs(of_samples(near, features, targets).weights[0][0] - Fraction(1, 2))
        assert 0 < distance < Fraction(1, 2 ** (bits + 52))
        assert path(near, features, targets).integers.tolist() == [[rounded]]


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_tie_is_refused_each_time_and_does_not_hold_up_what_follows(
    variant: type[ExactSolver],
) -> None:
    spec = Spec(dim=1, outputs=1, gamma=1.0, intercept=False, publication_bits=0)
    solver = variant(spec)
    solver.add([[1.0]], [1.0])
    for _ in range(2):
        with pytest.raises(UndecidableTieError):
            solver.head()
    solver.add([[0.5]], [0.5])
    assert solver.head().digest == retrained(spec, [[1.0], [0.5]], [1.0, 0.5]).digest
    solver.delete([[0.5]], [0.5])
    with pytest.raises(UndecidableTieError):
        solver.head()
    solver.amend(spec.with_publication_bits(1))
    assert solver.head().weights.tolist() == [[0.5]]


def test_the_tie_is_named_by_label_and_intercept() -> None:
    spec = Spec(dim=1, labels=("cat", "dog"), gamma=1.0, publication_bits=0)
    with pytest.raises(UndecidableTieError, match="the intercept for label 'dog'"):
        solve(Statistics.of(spec, [[0.0]], ["dog"]))


# -- the publication range -------------------------------------------------------------------------


@each_path
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_weights_up_to_two_to_the_53_are_published_and_none_beyond(path: Path, sign: float) -> None:
    spec = Spec(
        dim=1, outputs=1, gamma=1.0, intercept=False, label_grid=Grid(2, 0), publication_bits=14
    )
    target = sign * 2.0**40  # W* = target / 2, so W* 2^14 = 2^53
    assert path(spec, [[1.0]], [target]).integers.tolist() == [[int(sign) << 53]]
    with pytest.raises(PublicationRangeError, match="feature 0 for output 0") as refused:
        path(spec.with_publication_bits(15), [[1.0]], [target + sign])
    found = re.search(r"publication_bits=(-?\d+) will do", str(refused.value))
    assert found is not None
    remedy = spec.with_publication_bits(int(found[1]))
    np.testing.assert_array_equal(
        path(remedy, [[1.0]], [target + sign]).integers,
        of_samples(remedy, [[1.0]], [target + sign]).integers,
    )


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(45, 200))
def test_the_named_publication_bits_are_within_range(seed: int, bits: int) -> None:
    generator = np.random.default_rng(seed)
    features, targets = (
        generator.standard_normal((4, 3)),
        generator.standard_normal((4, 2)) * 2.0 ** generator.integers(0, 5),
    )
    statistics = Statistics.of(
        Spec(dim=3, outputs=2, gamma=0.1, publication_bits=bits), features, targets
    )
    exact = of_samples(statistics.spec, features, targets)
    if exact.in_range:
        np.testing.assert_array_equal(solve(statistics).integers, exact.integers)
        return
    with pytest.raises(PublicationRangeError) as refused:
        solve(statistics)
    found = re.search(r"publication_bits=(-?\d+) will do", str(refused.value))
    assert found is not None
    spec = statistics.spec.with_publication_bits(int(found[1]))
    np.testing.assert_array_equal(
        solve(statistics.under(spec)).integers, of_samples(spec, features, targets).integers
    )


# -- statistics and samples that a solver cannot take ----------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_statistics_of_another_spec_are_refused(variant: type[ExactSolver]) -> None:
    spec = Spec(dim=2, labels=("cat", "dog"))
    solver = variant(spec, Statistics.of(spec, [[1.0, 2.0]], ["dog"]))
    before = solver.head().digest
    others = [
        Spec(dim=3, labels=("cat", "dog")),
        Spec(dim=2, labels=("dog", "cat")),
        Spec(dim=2, labels=("cat", "dog", "owl")),
        Spec(dim=2, outputs=2),
        Spec(dim=2, labels=("cat", "dog"), intercept=False),
        Spec(dim=2, labels=("cat", "dog"), grid=Grid(2, 34)),
        Spec(dim=2, labels=("cat", "dog"), label_grid=Grid(1, 10)),
        Spec(dim=2, labels=("cat", "dog"), backbone="another"),
    ]
    for other in others:
        foreign = Statistics.zero(other)
        for change in (solver.add_statistics, solver.delete_statistics):
            with pytest.raises(SpecMismatchError):
                change(foreign)
        if not other.grows_from(spec):
            with pytest.raises(SpecMismatchError, match="differ"):
                solver.amend(other)
    assert solver.spec == spec
    assert solver.head().digest == before
    assert solver.count == 1


@pytest.mark.parametrize("variant", VARIANTS)
def test_statistics_made_before_labels_were_appended_are_taken(variant: type[ExactSolver]) -> None:
    old = Spec(dim=2, labels=("cat", "dog"), gamma=3.0)
    new = old.with_labels("owl").with_gamma(2.0)
    solver = variant(new, Statistics.of(old, [[1.0, 2.0], [3.0, 4.0]], ["cat", "dog"]))
    solver.add([[5.0, 6.0]], ["owl"])
    solver.delete_statistics(Statistics.of(old, [[1.0, 2.0]], ["cat"]))
    assert solver.head().digest == retrained(new, [[3.0, 4.0], [5.0, 6.0]], ["dog", "owl"]).digest


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    "gone", [[[1.0, -1.0]], [[3.0, 3.0]], [[1.0, 1.0]] * 3], ids=["minor", "diagonal", "count"]
)
def test_statistics_that_retraining_refuses_get_no_head_from_a_solver_either(
    variant: type[ExactSolver], gone: list[list[float]]
) -> None:
    """Added as one net message, they are the same statistics as ever: what `solve` says of them,
    `head` must say.
    """
    spec = Spec(dim=2, outputs=1, gamma=100.0, intercept=False)
    net = Statistics.of(spec, [[1.0, 1.0], [1.0, 1.0]], [1.0, 1.0]) - Statistics.of(
        spec, gone, np.ones(len(gone))
    )
    with pytest.raises(NotAGramError):
        solve(net)
    with pytest.raises(ExpungeError):
        variant(spec, net).head()


@pytest.mark.parametrize("variant", VARIANTS)
def test_statistics_with_two_faults_are_refused_for_the_same_one(
    variant: type[ExactSolver],
) -> None:
    spec = Spec(dim=2, outputs=1, gamma=1e-20, intercept=False)
    net = Statistics.of(spec, [[1.0, 1.0], [1.0, 1.0]], [1.0, 1.0]) - Statistics.of(
        spec, [[1.0, -1.0]], [1.0]
    )
    with pytest.raises(ExpungeError) as retraining:
        solve(net)
    with pytest.raises(type(retraining.value)):
        variant(spec, net).head()


BAD: dict[str, tuple[Any, Any, type[InputError]]] = {
    "not a number": ([[1.0, math.nan]], [0], NotFiniteError),
    "infinite": ([[math.inf, 1.0]], [0], NotFiniteError),
    "beyond the grid": ([[1.0, 64.0]], [0], GridRangeError),
    "wrong width": ([[1.0, 2.0, 3.0]], [0], ShapeError),
    "one-dimensional": ([1.0, 2.0], [0], ShapeError),
    "too few labels": ([[1.0, 2.0]], [], ShapeError),
    "unknown index": ([[1.0, 2.0]], [2], UnknownLabelError),
    "unknown name": ([[1.0, 2.0]], ["owl"], UnknownLabelError),
    "soft labels of another width": ([[1.0, 2.0]], [[0.1, 0.2, 0.7]], ShapeError),
    "soft labels that are not numbers": ([[1.0, 2.0]], [[0.5, math.nan]], NotFiniteError),
}


def behind_good_samples(count: int, features: Array, labels: Array) -> tuple[Array, Array]:
    """The same bad sample as the last of many good ones; too few labels stay too few."""
    good = np.full(
        (count, *labels.shape[1:]), "cat" if labels.dtype.kind == "U" else 0, dtype=labels.dtype
    )
    return np.vstack([np.zeros((count, features.shape[1])), features]), np.concatenate(
        [good, labels]
    )


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("batch", [1, 40])
@pytest.mark.parametrize("case", BAD)
def test_bad_samples_are_neither_added_nor_deleted(
    variant: type[ExactSolver], batch: int, case: str
) -> None:
    features, labels, error = BAD[case]
    if batch > 1 and np.ndim(features) == 2:
        features, labels = behind_good_samples(batch - 1, np.asarray(features), np.asarray(labels))
    spec = Spec(dim=2, labels=("cat", "dog"))
    solver = variant(spec)
    solver.add([[1.0, 2.0], [3.0, 4.0]], ["cat", "dog"])
    before, head = solver.statistics, solver.head()
    for change in (solver.add, solver.delete):
        with pytest.raises(error):
            change(features, labels)
        assert solver.statistics == before
        assert solver.head() == head


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("batch", [1, 40])
def test_a_column_lost_to_the_grid_is_refused_unless_it_lives_elsewhere(
    variant: type[ExactSolver], batch: int
) -> None:
    spec = Spec(dim=2, outputs=1)
    features, targets = np.tile([1.0, 1e-13], (batch, 1)), np.ones(batch)
    solver = variant(spec)
    with pytest.raises(LostColumnError, match="column 1"):
        solver.add(features, targets)
    assert solver.count == 0
    solver.add([[1.0, 1.0]], [1.0])
    solver.add(features, targets)  # the column is alive in what is retained
    assert solver.count == batch + 1


@pytest.mark.parametrize("batch", [1, 40])
def test_an_unknown_treatment_of_lost_columns_is_refused(batch: int) -> None:
    solver = CholeskySolver(Spec(dim=2, outputs=1))
    with pytest.raises((InputError, SpecError), match="lost_columns"):
        solver.add(np.ones((batch, 2)), np.ones(batch), lost_columns="ignore")
    assert solver.count == 0
