"""Both variants against retraining: one digest, whatever the order, the split, the messages and the
moments of asking.
"""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from expunge import CholeskySolver, Grid, Head, Spec, Statistics, WoodburySolver, solve
from expunge.errors import ImpossibleDeletionError, SolveError
from expunge.solvers.base import ExactSolver
from support.oracle import of_samples

Array = NDArray[Any]
Sample = tuple[tuple[float, ...], int]

VARIANTS = [CholeskySolver, WoodburySolver]
each_variant = pytest.mark.parametrize("variant", VARIANTS)


def stacked(spec: Spec, samples: list[Sample]) -> tuple[Array, Array]:
    features = np.array([list(row) for row, _ in samples], dtype=np.float64).reshape(
        len(samples), spec.dim
    )
    return features, np.array([label for _, label in samples], dtype=np.int64)


def outcome(ask: Any) -> tuple[str, Any]:
    """The digest, or the kind of refusal: both must not depend on the path."""
    try:
        head: Head = ask()
    except SolveError as refusal:
        return type(refusal).__name__, None
    return "published", head.digest


# -- the state machine -----------------------------------------------------------------------------

# Integers on a grid with 10 fraction bits: ordinary ones, those at the edge of the second digit,
# and dominating ones.
INTEGERS = st.one_of(
    st.integers(-4096, 4096),
    st.sampled_from(
        [0, 0, 1, -1, 2**20, 2**20 + 1, -(2**20) - 1, 2**21, 2**26 + 3, -(2**30) + 1, 2**33]
    ),
)
GAMMAS = st.sampled_from([2.0**-10, 0.1, 1.0, math.pi, 1e3, 1e6, 1e12])


class Federation(RuleBasedStateMachine):
    """Variant A and Variant B fed with one stream of requests; the model is the list of samples
    that are retained.
    """

    def __init__(self) -> None:
        super().__init__()
        self.retained: list[Sample] = []
        self.solvers: list[ExactSolver] = []

    @initialize(
        dim=st.integers(1, 4),
        intercept=st.booleans(),
        gamma=GAMMAS,
        bits=st.sampled_from([0, 10, 30]),
    )
    def begin(self, dim: int, intercept: bool, gamma: float, bits: int) -> None:
        self.spec = Spec(
            dim=dim,
            labels=("a", "b"),
            intercept=intercept,
            gamma=gamma,
            grid=Grid(2, 10),
            publication_bits=bits,
        )
        self.solvers = [variant(self.spec) for variant in VARIANTS]

    def drawn(self, data: st.DataObject, most: int) -> list[Sample]:
        row = st.tuples(*[INTEGERS] * self.spec.dim)
        pairs = data.draw(
            st.lists(
                st.tuples(row, st.integers(0, self.spec.columns - 1)), min_size=1, max_size=most
            )
        )
        return [(tuple(value / 1024.0 for value in values), label) for values, label in pairs]

    def picked(self, data: st.DataObject, most: int) -> list[Sample]:
        places = data.draw(
            st.lists(st.integers(0, len(self.retained) - 1), min_size=1, max_size=most, unique=True)
        )
        return [self.retained[place] for place in places]

    def statistics_of(self, samples: list[Sample]) -> Statistics:
        return Statistics.of(self.spec, *stacked(self.spec, samples), lost_columns="accept")

    @rule(data=st.data())
    def add_rows(self, data: st.DataObject) -> None:
        samples = self.drawn(data, 3)
        for solver in self.solvers:
            solver.add(*stacked(self.spec, samples), lost_columns="accept")
        self.retained += samples

    @rule(data=st.data(), repeats=st.integers(1, 30))
    def add_by_statistics(self, data: st.DataObject, repeats: int) -> None:
        samples = self.drawn(data, 2) * repeats
        for solver in self.solvers:
            solver.add_statistics(self.statistics_of(samples))
        self.retained += samples

    @rule(data=st.data(), repeats=st.integers(9, 12))
    def add_a_large_batch(self, data: st.DataObject, repeats: int) -> None:
        samples = self.drawn(data, 2) * repeats
        for solver in self.solvers:
            solver.add(*stacked(self.spec, samples), lost_columns="accept")
        self.retained += samples

    @precondition(lambda self: self.retained)
    @rule(data=st.data())
    def delete_rows(self, data: st.DataObject) -> None:
        samples = self.picked(data, 4)
        for solver in self.solvers:
            solver.delete(*stacked(self.spec, samples))
        for sample in samples:
            self.retained.remove(sample)

    @precondition(lambda self: self.retained)
    @rule(data=st.data())
    def delete_by_statistics(self, data: st.DataObject) -> None:
        samples = self.picked(data, 20)
        for solver in self.solvers:
            solver.delete_statistics(self.statistics_of(samples))
        for sample in samples:
            self.retained.remove(sample)

    @precondition(lambda self: self.retained)
    @rule(data=st.data())
    def delete_and_add_back(self, data: st.DataObject) -> None:
        features, labels = stacked(self.spec, self.picked(data, 3))
        for solver in self.solvers:
            solver.delete(features, labels)
            solver.add(features, labels, lost_columns="accept")

    @rule(label=st.integers(0, 1), rows=st.booleans())
    def delete_more_than_there_are(self, label: int, rows: bool) -> None:
        count = 1 + sum(1 for _, each in self.retained if each == label)
        features, labels = np.zeros((count, self.spec.dim)), np.full(count, label)
        for solver in self.solvers:
            delete = partial(solver.delete, features, labels)
            if not rows:
                delete = partial(
                    solver.delete_statistics, Statistics.of(self.spec, features, labels)
                )
            with pytest.raises(ImpossibleDeletionError):
                delete()

    @precondition(lambda self: len(self.retained) > 1)
    @rule(data=st.data(), scale=st.sampled_from([1.0 + 2.0**-12, 4.0, 2.0**20]))
    def delete_what_is_too_large(self, data: st.DataObject, scale: float) -> None:
        """A sample larger than all that is retained together, in one feature: the diagonal proves
        that it was never added.
        """
        (_, label), place = self.picked(data, 1)[0], data.draw(st.integers(0, self.spec.dim - 1))
        root = math.sqrt(sum(row[place] ** 2 for row, _ in self.retained))
        features = np.zeros((1, self.spec.dim))
        features[0, place] = min(root * scale + 2.0**-9, self.spec.grid.limit - 1.0)
        if features[0, place] <= root:
            return
        for solver in self.solvers:
            with pytest.raises(ImpossibleDeletionError):
                solver.delete(features, [label])

    @rule(gamma=GAMMAS)
    def amend_gamma(self, gamma: float) -> None:
        self.amend(self.spec.with_gamma(gamma))

    @rule(bits=st.sampled_from([-4, 0, 12, 30, 40]))
    def amend_publication(self, bits: int) -> None:
        self.amend(self.spec.with_publication_bits(bits))

    @precondition(lambda self: self.spec.columns < 4)
    @rule()
    def amend_labels(self) -> None:
        self.amend(self.spec.with_labels("cd"[self.spec.columns - 2]))

    def amend(self, spec: Spec) -> None:
        self.spec = spec
        for solver in self.solvers:
            solver.amend(spec)

    @rule(which=st.integers(0, 1))
    def ask_one_of_them(self, which: int) -> None:
        """Only one: the other keeps whatever its caches were."""
        expected = outcome(lambda: solve(self.statistics_of(self.retained)))
        assert outcome(self.solvers[which].head) == expected

    @invariant()
    def statistics_are_those_of_what_is_retained(self) -> None:
        if not self.solvers:
            return
        expected = self.statistics_of(self.retained)
        for solver in self.solvers:
            assert solver.statistics == expected
            assert solver.count == len(self.retained)

    def teardown(self) -> None:
        for which in range(len(self.solvers)):
            self.ask_one_of_them(which)


TestFederation = Federation.TestCase
TestFederation.settings = settings(max_examples=40, stateful_step_count=50)


# -- laws, one by one ------------------------------------------------------------------------------


def federation(seed: int, count: int, dim: int, columns: int) -> tuple[Spec, Array, Array]:
    generator = np.random.default_rng(seed)
    features = generator.standard_normal((count, dim)) * 2.0 ** generator.integers(-6, 4, dim)
    spec = Spec(dim=dim, labels=tuple(range(columns)), gamma=0.1)
    return spec, features, generator.integers(0, columns, count)


@each_variant
@settings(max_examples=15)
@given(
    order=st.permutations(range(14)),
    cuts=st.lists(st.integers(0, 14), max_size=4),
    asked=st.integers(0, 2**10),
)
def test_permutation_and_split_do_not_matter(
    variant: type[ExactSolver], order: list[int], cuts: list[int], asked: int
) -> None:
    spec, features, labels = federation(1, 14, 5, 3)
    solver = variant(spec)
    bounds = sorted({0, 14, *cuts})
    for place, (start, stop) in enumerate(pairwise(bounds)):
        client = order[start:stop]
        solver.add(features[client], labels[client])
        if asked >> place & 1:
            solver.head()
    assert solver.head().digest == solve(Statistics.of(spec, features, labels)).digest
    assert solver.statistics.digest == Statistics.of(spec, features, labels).digest


@each_variant
def test_a_long_stream_of_small_requests_equals_retraining(variant: type[ExactSolver]) -> None:
    """240 requests on 24 features; checked now and then by digest, and at the end against
    fractions.
    """
    spec, features, labels = federation(2, 300, 24, 3)
    generator = np.random.default_rng(3)
    solver = variant(spec, Statistics.of(spec, features[:150], labels[:150]))
    retained, waiting = list(range(150)), list(range(150, 300))
    for step in range(240):
        add = generator.random() < 0.5
        source, target = (waiting, retained) if add else (retained, waiting)
        moved = [
            source.pop(int(generator.integers(len(source))))
            for _ in range(int(generator.integers(1, 4)))
        ]
        (solver.add if add else solver.delete)(features[moved], labels[moved])
        target.extend(moved)
        if step % 3 == 0:
            solver.head()
        if step % 40 == 39:
            expected = Statistics.of(spec, features[retained], labels[retained])
            assert solver.statistics == expected
            assert solver.head().digest == solve(expected).digest
    np.testing.assert_array_equal(
        solver.head().integers, of_samples(spec, features[retained], labels[retained]).integers
    )


@each_variant
def test_one_and_two_blas_threads_agree_along_a_stream(variant: type[ExactSolver]) -> None:
    spec, features, labels = federation(4, 200, 96, 3)
    digests = []
    for threads in (1, 2):
        with threadpool_limits(limits=threads, user_api="blas"):
            solver = variant(spec, Statistics.of(spec, features, labels))
            solver.head()
            for start in range(0, 20, 2):
                solver.delete(features[start : start + 2], labels[start : start + 2])
            digests.append(solver.head().digest)
    assert digests[0] == digests[1] == solve(Statistics.of(spec, features[20:], labels[20:])).digest


@each_variant
def test_deleting_everything_one_by_one_leaves_the_head_of_nothing(
    variant: type[ExactSolver],
) -> None:
    spec, features, labels = federation(5, 9, 3, 3)
    solver = variant(spec)
    solver.add(features, labels)
    for index in range(9):
        solver.delete(features[[index]], labels[[index]])
        solver.head()
    assert solver.statistics == Statistics.zero(spec)
    assert not solver.head().integers.any()
    assert (
        solver.head().digest == solve(Statistics.zero(spec)).digest == variant(spec).head().digest
    )


@each_variant
@pytest.mark.parametrize("gamma", [2.0**-20, 1e-3])
def test_a_dominating_sample_is_deleted_and_the_rest_comes_out_exactly(
    variant: type[ExactSolver], gamma: float
) -> None:
    """A sample 10^6 times larger than the others takes their digits with it in float64; the head
    must not notice.
    """
    generator = np.random.default_rng(6)
    spec = Spec(dim=4, outputs=1, gamma=gamma, intercept=False)
    features, targets = generator.uniform(-5e-5, 5e-5, (9, 4)), generator.uniform(-1e-3, 1e-3, 9)
    dominating, target = generator.uniform(25.0, 50.0, (1, 4)), [0.5]
    solver = variant(spec)
    solver.add(features, targets)
    expected = solver.head().digest
    for _ in range(6):
        solver.add(dominating, target)
        solver.head()
        solver.delete(dominating, target)
        head = solver.head()
        assert head.digest == expected
    np.testing.assert_array_equal(head.integers, of_samples(spec, features, targets).integers)


def test_an_infeasible_downdate_resets_the_tracked_inverse() -> None:
    """Without the sample H is 2^25 times smaller in its direction: too much for a float64 downdate,
    which must be noticed.
    """
    spec = Spec(dim=2, outputs=1, gamma=2.0**-14, intercept=False)
    solver = WoodburySolver(spec)
    solver.add([[48.0, 0.0], [0.0, 0.01]], [1.0, 1.0])
    solver.head()
    assert solver.resets == 0
    solver.delete([[48.0, 0.0]], [1.0])
    head = solver.head()
    assert solver.resets == 1
    assert head.diagnostics is not None
    assert head.diagnostics.resets == 1
    assert head.diagnostics.factorisations == solver.factorisations == 2
    np.testing.assert_array_equal(head.integers, of_samples(spec, [[0.0, 0.01]], [1.0]).integers)


def test_a_stale_inverse_is_renewed_when_refinement_with_it_is_slow() -> None:
    spec, features, labels = federation(7, 60, 6, 2)
    solver = WoodburySolver(spec)
    solver.add(features[:4], labels[:4])
    solver.head()
    solver.add_statistics(Statistics.of(spec, features[4:], labels[4:]))
    head = solver.head()
    assert solver.resets == 1
    assert head.digest == solve(Statistics.of(spec, features, labels)).digest


def test_variant_b_follows_rows_without_factoring_anew() -> None:
    spec, features, labels = federation(8, 120, 24, 2)
    solver = WoodburySolver(spec, Statistics.of(spec, features[:100], labels[:100]))
    solver.head()
    for index in range(100, 120):
        solver.add(features[[index]], labels[[index]])
        solver.delete(features[[index - 50]], labels[[index - 50]])
        diagnostics = solver.head().diagnostics
    assert solver.factorisations == 1
    assert solver.resets == 0
    assert diagnostics is not None
    assert (diagnostics.method, diagnostics.factorisations, diagnostics.resets) == (
        "woodbury",
        1,
        0,
    )
    assert diagnostics.contraction == 0.0  # moved row by row, in the end


@each_variant
def test_a_head_is_kept_until_something_changes(variant: type[ExactSolver]) -> None:
    spec, features, labels = federation(9, 12, 3, 2)
    solver = variant(spec)
    solver.add(features, labels)
    head = solver.head()
    assert solver.head() is head
    solver.add(features[:0], labels[:0])
    solver.delete(features[:0], labels[:0])
    assert solver.head() == head
    changes: list[Any] = [
        lambda: solver.add(features[:1], labels[:1]),
        lambda: solver.delete(features[1:2], labels[1:2]),
        lambda: solver.add_statistics(Statistics.of(spec, features[:2], labels[:2])),
        lambda: solver.delete_statistics(Statistics.of(spec, features[2:3], labels[2:3])),
        lambda: solver.amend(spec.with_gamma(0.2)),
        lambda: solver.amend(spec.with_gamma(0.2).with_publication_bits(20)),
        lambda: solver.amend(spec.with_gamma(0.2).with_publication_bits(20).with_labels(2)),
    ]
    seen = {head.digest}
    for change in changes:
        change()
        head = solver.head()
        assert head.digest == solve(solver.statistics).digest
        assert head.spec == solver.spec
        seen.add(head.digest)
    assert len(seen) == len(changes) + 1


@each_variant
def test_statistics_taken_earlier_do_not_change_later(variant: type[ExactSolver]) -> None:
    spec, features, labels = federation(10, 12, 3, 2)
    solver = variant(spec)
    solver.add(features[:6], labels[:6])
    early, digest = solver.statistics, solver.statistics.digest
    head = solver.head()
    published = head.integers.copy()
    solver.add(features[6:], labels[6:])
    solver.delete(features[:2], labels[:2])
    solver.head()
    assert Statistics.from_bytes(spec, early.to_bytes()).digest == digest
    assert early == Statistics.of(spec, features[:6], labels[:6])
    np.testing.assert_array_equal(head.integers, published)


@pytest.mark.parametrize("lost_columns", ["accept", "refuse"])
@each_variant
def test_small_and_large_integers_in_turns(variant: type[ExactSolver], lost_columns: str) -> None:
    """One digit, then two, then one again, with nothing in between that would settle the sums."""
    spec = Spec(dim=2, outputs=1, gamma=1.0, intercept=False, grid=Grid(2, 0))
    rows = [[3.0, 1.0], [2.0**21, 5.0], [7.0, 2.0], [1.0, 2.0**22]]
    solver = variant(spec)
    for row in rows:
        solver.add([row], [1.0], lost_columns=lost_columns)
    assert solver.statistics == sum(Statistics.of(spec, [row], [1.0]) for row in rows)
    assert solver.statistics.diagonal() == [9 + 2**42 + 49 + 1, 1 + 25 + 4 + 2**44]
