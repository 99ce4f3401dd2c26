"""Retraining against rational arithmetic: the published head must be right in every entry, or be
refused for a true reason.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from expunge import Grid, Head, Spec, Statistics, solve
from expunge.errors import (
    IllConditionedError,
    NotAGramError,
    PublicationRangeError,
    UndecidableTieError,
)
from expunge.exact import blas, wide
from expunge.solvers import system as system_module
from expunge.solvers.system import RidgeSystem
from support.oracle import (
    Exact,
    gram_of,
    is_positive_semidefinite,
    moment_of,
    of_samples,
    of_statistics,
    solved,
)

Array = NDArray[Any]

GAMMAS = [1e-6, 1e-3, 0.1, 1.0, math.pi, 1e3, 1e6]


def require_right(head: Head, exact: Exact) -> None:
    """Every entry correctly rounded, and what the head says about itself consistent with that."""
    spec = head.spec
    np.testing.assert_array_equal(head.integers, exact.integers)
    half = Fraction(2) ** -(spec.publication_bits + 1)
    for weights, truth in zip(head.weights.tolist(), exact.weights, strict=True):
        assert all(
            abs(Fraction(weight) - true) <= half
            for weight, true in zip(weights, truth, strict=True)
        )
    assert (
        0.0
        <= head.error_bound
        <= 2.0 ** -(spec.publication_bits + 1) * math.sqrt(spec.columns) * (1 + 2.0**-19)
    )
    found = head.diagnostics
    assert found is not None
    assert found.condition >= 1.0 - 2.0**-20
    assert 0.0 <= found.contraction <= 0.5
    assert found.refinement_steps >= 0
    assert found.digits >= found.refinement_steps
    assert found.factorisations == 1
    assert found.resets == 0


def breaks_the_rule(spec: Spec, gram: list[list[int]]) -> bool:
    """The conditioning rule in fractions: width * 2^-53 * trace(H) / gamma > 2^-6."""
    trace = (
        sum(row[index] for index, row in enumerate(gram)) / Fraction(4) ** spec.grid.fraction_bits
    )
    return Fraction(spec.width, 2**53) * (
        trace + spec.width * spec.exact_gamma
    ) / spec.exact_gamma > Fraction(1, 64)


def require_right_or_truly_refused(statistics: Statistics, exact: Exact) -> None:
    """The head is right, or one of the three refusals is shown by fractions to be true."""
    refused: type[Exception] | None = None
    try:
        head = solve(statistics)
    except (IllConditionedError, PublicationRangeError, UndecidableTieError) as refusal:
        refused = type(refusal)
    assert (refused is IllConditionedError) == breaks_the_rule(statistics.spec, gram_of(statistics))
    if refused is None:
        require_right(head, exact)
    elif refused is PublicationRangeError:
        assert not exact.in_range
    elif refused is UndecidableTieError:
        assert exact.ties


# -- random and nasty, by Hypothesis ---------------------------------------------------------------


@dataclass
class Problem:
    spec: Spec
    features: Array
    labels: Array


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    digits, intercept = draw(st.sampled_from([1, 2])), draw(st.booleans())
    bits = 21 * digits - 1
    fraction = draw(
        st.integers(0, bits - 1)
        if intercept
        else st.one_of(st.integers(-100, 100), st.integers(0, bits))
    )
    label_digits = draw(st.sampled_from([1, 2]))
    columns = draw(st.integers(1, 3))
    targets: dict[str, Any]
    if draw(st.booleans()):
        targets = {"labels": tuple(range(columns))}
        label_fraction = draw(st.integers(0, 21 * label_digits - 2))
    else:
        targets = {"outputs": columns}
        label_fraction = draw(st.one_of(st.integers(-100, 100), st.integers(0, 41)))
    return Spec(
        dim=draw(st.integers(1, 5)),
        intercept=intercept,
        grid=Grid(digits, fraction),
        label_grid=Grid(label_digits, label_fraction),
        publication_bits=draw(
            st.one_of(st.sampled_from([0, 10, 40, 60, 120, -7]), st.integers(-200, 200))
        ),
        **targets,
    )


def integers_below(bits: int) -> st.SearchStrategy[int]:
    """Integers of a grid with these bits; sizes as likely to be tiny as to be huge."""
    return st.integers(0, bits).flatmap(lambda size: st.integers(-(1 << size) + 1, (1 << size) - 1))


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """A spec, samples that are integers on its grids, and a gamma that is near them in magnitude,
    or not.
    """
    spec = draw(specs())
    count = draw(st.integers(0, 7))
    rows = st.lists(integers_below(spec.grid.bits), min_size=spec.dim, max_size=spec.dim)
    drawn = draw(st.lists(rows, min_size=count, max_size=count))
    if count > 2 and draw(st.booleans()):  # duplicates and a dead feature
        drawn[1] = drawn[0]
        drawn = [[0, *row[1:]] for row in drawn]
    features = np.ldexp(
        np.array(drawn, dtype=np.float64).reshape(count, spec.dim), -spec.grid.fraction_bits
    )
    labels: Array
    if spec.is_classification and draw(st.booleans()):
        labels = np.array(
            draw(st.lists(st.integers(0, spec.columns - 1), min_size=count, max_size=count)),
            dtype=np.int64,
        )
    else:
        entries = st.lists(
            integers_below(spec.label_grid.bits), min_size=spec.columns, max_size=spec.columns
        )
        values = np.array(draw(st.lists(entries, min_size=count, max_size=count)), dtype=np.float64)
        labels = np.ldexp(values.reshape(count, spec.columns), -spec.label_grid.fraction_bits)
    trace = float(np.square(features).sum()) + spec.intercept * count or 1.0
    relative = math.log2(trace) - draw(st.integers(-20, 47)) + draw(st.floats(0, 1))
    exponent = draw(st.sampled_from([relative, math.log2(draw(st.sampled_from(GAMMAS)))]))
    return Problem(spec.with_gamma(2.0 ** min(max(exponent, -100.0), 100.0)), features, labels)


@settings(max_examples=250)
@given(problems())
def test_every_entry_is_correctly_rounded_or_refused_for_a_true_reason(problem: Problem) -> None:
    statistics = Statistics.of(problem.spec, problem.features, problem.labels)
    exact = of_samples(problem.spec, problem.features, problem.labels)
    require_right_or_truly_refused(statistics, exact)
    # Read back from bytes nothing says that S is a Gram: the bound then rests on a proof, and the
    # head is the same.
    if not breaks_the_rule(problem.spec, gram_of(statistics)) and exact.in_range and not exact.ties:
        foreign = Statistics.from_bytes(problem.spec, statistics.to_bytes())
        assert not foreign.gram_by_construction
        assert solve(foreign).digest == solve(statistics).digest


# -- nasty, by name --------------------------------------------------------------------------------


def samples(seed: int, count: int, dim: int, columns: int) -> tuple[Array, Array]:
    generator = np.random.default_rng(seed)
    return generator.standard_normal((count, dim)), generator.integers(0, columns, size=count)


def rank_deficient() -> Array:
    generator = np.random.default_rng(1)
    return np.asarray(
        generator.integers(-8, 8, (12, 2)) @ generator.integers(-3, 4, (2, 6)), dtype=np.float64
    )


def one_huge_feature() -> Array:
    features, _ = samples(2, 12, 6, 3)
    return features * np.array([60.0 / 3.5, 1e-8, 1e-8, 1e-9, 1e-7, 1e-8])


def one_dead_feature() -> Array:
    features, _ = samples(3, 12, 6, 3)
    features[:, 2] = 0.0
    return features


NASTY = {
    "random": samples(0, 12, 6, 3)[0],
    "rank deficient": rank_deficient(),
    "duplicates": np.repeat(samples(4, 2, 6, 3)[0], 6, axis=0),
    "one huge feature": one_huge_feature(),
    "dead feature": one_dead_feature(),
    "fewer samples than features": samples(5, 3, 6, 3)[0],
    "one sample": samples(6, 1, 6, 3)[0],
    "one feature": samples(7, 12, 1, 3)[0],
    "no samples": np.zeros((0, 6)),
    "all zero": np.zeros((4, 6)),
    "at the grid's limit": np.full((3, 6), 64.0 - 2.0**-35) * np.array([[1.0], [-1.0], [1.0]]),
    "at the grid's step": np.full((3, 6), 2.0**-35) * np.arange(1, 7),
}


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("case", NASTY)
def test_nasty_features_at_every_gamma(case: str, gamma: float) -> None:
    features = NASTY[case]
    labels = np.arange(len(features)) % 2  # the third label has no samples
    spec = Spec(dim=features.shape[1], labels=("a", "b", "none"), gamma=gamma)
    head = solve(Statistics.of(spec, features, labels))
    require_right(head, of_samples(spec, features, labels))
    assert not head.integers[:, 2].any()
    assert not np.signbit(head.weights[:, 2]).any()


@pytest.mark.parametrize("bits", [-30, -1, 0, 10, 40, 49, 60, 120])
def test_publication_grids(bits: int) -> None:
    features, labels = samples(8, 9, 4, 2)
    gamma = 2.0 ** max(0, bits - 40) * math.pi  # the larger, the smaller are the weights
    spec = Spec(dim=4, labels=(0, 1), gamma=gamma, publication_bits=bits)
    require_right(solve(Statistics.of(spec, features, labels)), of_samples(spec, features, labels))


@pytest.mark.parametrize(("fraction", "label_fraction"), [(10, 40), (40, 0), (0, 40), (20, 20)])
def test_label_grids_finer_and_coarser_than_the_feature_grid(
    fraction: int, label_fraction: int
) -> None:
    generator = np.random.default_rng(9)
    features = np.rint(np.ldexp(generator.uniform(-1, 1, (7, 3)), fraction)) * 2.0**-fraction
    targets = (
        np.rint(np.ldexp(generator.uniform(-1, 1, (7, 2)), label_fraction)) * 2.0**-label_fraction
    )
    spec = Spec(
        dim=3, outputs=2, gamma=0.1, grid=Grid(2, fraction), label_grid=Grid(2, label_fraction)
    )
    require_right(
        solve(Statistics.of(spec, features, targets)), of_samples(spec, features, targets)
    )


@pytest.mark.parametrize("fraction", [-100, -30, -3])
@pytest.mark.parametrize("label_fraction", [-100, -5, 50])
def test_grids_of_large_numbers(fraction: int, label_fraction: int) -> None:
    generator = np.random.default_rng(10)
    features = np.ldexp(generator.integers(-9, 10, (6, 3)).astype(np.float64), -fraction)
    targets = np.ldexp(generator.integers(-9, 10, (6, 2)).astype(np.float64), -label_fraction)
    gamma = min(0.1 * 2.0 ** (-2 * fraction), 2.0**100)
    spec = Spec(
        dim=3,
        outputs=2,
        gamma=gamma,
        intercept=False,
        grid=Grid(1, fraction),
        label_grid=Grid(2, label_fraction),
        publication_bits=label_fraction - fraction + 30,
    )
    statistics, exact = Statistics.of(spec, features, targets), of_samples(spec, features, targets)
    require_right_or_truly_refused(statistics, exact)
    assert breaks_the_rule(spec, gram_of(statistics)) == (fraction == -100)


@pytest.mark.parametrize("mantissa", [1.0, 0.1, math.pi, 1.0 + 2.0**-52])
def test_a_gamma_far_finer_than_the_grid_needs_guard_bits(mantissa: float) -> None:
    spec = Spec(
        dim=2,
        outputs=1,
        gamma=mantissa * 2.0**-55,
        intercept=False,
        grid=Grid(1, 10),
        publication_bits=20,
    )
    features, targets = np.array([[3.0, -5.0], [7.0, 1.0]]) / 1024.0, np.array([0.25, -0.5])
    statistics = Statistics.of(spec, features, targets)
    assert RidgeSystem(spec, statistics.gram).guard_bits >= 35
    require_right(solve(statistics), of_samples(spec, features, targets))


def test_soft_labels() -> None:
    generator = np.random.default_rng(11)
    features, soft = generator.standard_normal((9, 4)), generator.dirichlet(np.ones(3), size=9)
    soft[0] = [0.0, 1.0, 0.0]
    spec = Spec(dim=4, labels=("a", "b", "c"), gamma=0.1)
    statistics = Statistics.of(spec, features, soft)
    assert statistics.class_counts.tolist() == [0, 1, 0]
    require_right(solve(statistics), of_samples(spec, features, soft))


@pytest.mark.parametrize("doublings", [20, 40, 42])
def test_counts_so_large_that_entries_need_all_128_bits(doublings: int) -> None:
    generator = np.random.default_rng(12)
    features, targets = generator.uniform(-60, 60, (4, 3)), generator.standard_normal((4, 2))
    gamma = 1e3 * 2.0**doublings
    spec = Spec(dim=3, outputs=2, gamma=gamma)
    statistics = Statistics.of(spec, features, targets)
    for _ in range(doublings):
        statistics = statistics + statistics
    assert statistics.count == 4 << doublings
    once = of_samples(
        spec.with_gamma(1e3), features, targets
    )  # scaling S, G and gamma alike leaves the solution as it is
    require_right(solve(statistics), Exact(spec, once.weights))


def test_systems_too_wide_to_keep_their_words_give_the_same_head(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    features, labels = samples(13, 9, 5, 2)
    statistics = Statistics.of(Spec(dim=5, labels=(0, 1), gamma=0.1), features, labels)
    head = solve(statistics)
    monkeypatch.setattr(system_module, "KEPT_ONCE", 0)
    assert solve(statistics).digest == head.digest


def test_one_and_two_blas_threads_agree() -> None:
    features, labels = samples(14, 300, 96, 4)
    spec = Spec(dim=96, labels=(0, 1, 2, 3), gamma=1e-3)
    digests = set()
    for threads in (1, 2):
        with threadpool_limits(limits=threads, user_api="blas"):
            statistics = Statistics.of(spec, features, labels)
            digests.add((statistics.digest, solve(statistics).digest))
    assert len(digests) == 1


def test_batches_with_and_without_a_second_digit_add_up() -> None:
    """Blocks of 512 rows: the first holds integers of one digit only, the second of two."""
    spec = Spec(dim=2, outputs=1, intercept=False, grid=Grid(2, 0))
    features = np.full((1024, 2), 3.0)
    features[512:, 0] = 2.0**21
    statistics = Statistics.of(spec, features, np.ones(1024))
    assert statistics.diagonal() == [512 * (9 + 2**42), 1024 * 9]
    require_right_or_truly_refused(statistics, of_samples(spec, features, np.ones(1024)))


# -- statistics that may not be Grams --------------------------------------------------------------


@st.composite
def differences(draw: st.DrawFn) -> Statistics:
    """of(a) - of(b) for small integer samples, with any gamma: often a Gram minus what it cannot
    spare.
    """
    dim, intercept = draw(st.integers(1, 4)), draw(st.booleans())
    gamma = draw(st.one_of(st.sampled_from([0.1, 1.0, 3.0, 10.0, 100.0]), st.floats(1e-3, 1e3)))
    spec = Spec(dim=dim, outputs=2, gamma=gamma, intercept=intercept, grid=Grid(1, 4))
    row = st.lists(st.integers(-20, 20), min_size=dim + 2, max_size=dim + 2)
    parts = []
    for rows in (draw(st.lists(row, min_size=1, max_size=6)), draw(st.lists(row, max_size=2))):
        array = np.array(rows, dtype=np.float64).reshape(-1, dim + 2) / 16.0
        parts.append(Statistics.of(spec, array[:, :dim], array[:, dim:]))
    return parts[0] - parts[1]


@settings(max_examples=150)
@given(differences())
def test_a_difference_is_solved_rightly_or_refused_as_no_gram(statistics: Statistics) -> None:
    gram = gram_of(statistics)
    try:
        head = solve(statistics)
    except NotAGramError:
        assert statistics.count <= 0 or not is_positive_semidefinite(gram)
        return
    require_right(head, solved(statistics.spec, gram, moment_of(statistics)))


@pytest.mark.parametrize("gamma", [1.0, 1.5, 3.0])
@pytest.mark.parametrize("dim", [3, 4])
def test_an_indefinite_gram_whose_minors_pass_gets_no_free_bound(dim: int, gamma: float) -> None:
    """S = 2.25 I - 11': every 2x2 minor is positive, the smallest eigenvalue is 2.25 - dim."""
    spec = Spec(dim=dim, outputs=1, gamma=gamma, intercept=False)
    targets = np.linspace(-1.0, 1.0, dim)
    whole = Statistics.of(spec, np.eye(dim) * 1.5, targets)
    statistics = (
        whole
        - Statistics.of(spec, np.ones((1, dim)), [0.5])
        + Statistics.of(spec, np.zeros((1, dim)), [0.0])
    )
    smallest = 2.25 - dim + gamma
    try:
        head = solve(statistics)
    except NotAGramError:
        assert smallest < gamma
        return
    assert smallest > 0.0
    require_right(head, of_statistics(statistics))
    assert head.diagnostics is not None
    assert head.diagnostics.condition >= (dim * 1.25 + dim * gamma) / smallest / (1 + 2.0**-20)


def test_the_case_in_which_the_free_bound_would_lie_is_refused() -> None:
    """S = -0.999 with gamma = 1: the free bound would claim 1/2000 where the truth is 1/2."""
    spec = Spec(dim=1, outputs=1, gamma=1.0, intercept=False, grid=Grid(2, 30))
    whole = Statistics.of(spec, [[0.0], [0.0]], [0.0, 0.0])
    with pytest.raises(NotAGramError, match="feature 0"):
        solve(whole - Statistics.of(spec, [[math.sqrt(0.999)]], [1.0]))


def test_statistics_of_fewer_than_no_samples_are_refused() -> None:
    spec = Spec(dim=2, labels=("a", "b"))
    with pytest.raises(NotAGramError, match="-1 samples"):
        solve(-Statistics.of(spec, [[1.0, 2.0]], [0]))


def test_a_head_does_not_change_the_statistics_it_was_solved_from() -> None:
    features, labels = samples(15, 9, 4, 2)
    statistics = Statistics.of(Spec(dim=4, labels=(0, 1)), features, labels)
    before = statistics.digest
    solve(statistics)
    fresh = Statistics.from_bytes(statistics.spec, statistics.to_bytes())
    assert fresh.digest == before
    assert wide.to_ints(statistics.gram[:, blas.packed_diagonal(5)]) == statistics.diagonal()
