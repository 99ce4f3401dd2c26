"""Streams of single changes: heads, refusals and acceptance are those of retraining, also where a
solver moves its head row by row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from expunge import CholeskySolver, Grid, Spec, Statistics, WoodburySolver, solve
from expunge.errors import ExpungeError, ImpossibleDeletionError, InterruptedChangeError
from expunge.exact import wide
from expunge.exact.gram import GramSum
from expunge.ridge.encoding import integer_rows
from expunge.solvers.base import ExactSolver
from expunge.solvers.change import Change
from expunge.solvers.minors import MinorScreen
from expunge.solvers.tracking import TrackedHead
from expunge.solvers.truncated import TruncatedSystem
from support.oracle import of_samples

VARIANTS = [CholeskySolver, WoodburySolver]
each_variant = pytest.mark.parametrize("variant", VARIANTS)
Array = NDArray[Any]

# What a data set may be like, by name.
SPECTRA = ["plain", "duplicates", "twin features", "rare features", "dead features", "close"]


def drawn(spec: Spec, spectrum: str, count: int, draw: np.random.Generator) -> tuple[Array, Array]:
    features = draw.standard_normal((count, spec.dim))
    if spectrum == "duplicates":
        features = np.repeat(features[: count // 4 + 1], 5, axis=0)[:count]
    if spectrum == "twin features":
        features[:, 1] = features[:, 0]
    if spectrum == "rare features":
        features *= draw.random(features.shape) < 0.1
    if spectrum == "dead features":
        features[:, ::2] = 0.0
    if spectrum == "close":
        features[:, 0] *= 1e-3
        features[:, 1] = features[:, 2] + 1e-4 * features[:, 1]
    if spec.labels is None:
        return features, draw.standard_normal((count, spec.columns))
    if draw.integers(3) == 0:
        return features, draw.dirichlet(np.ones(spec.columns), count)
    return features, draw.integers(0, spec.columns, count)


def outcome(ask: Any) -> str:
    """The digest, or the kind of refusal."""
    try:
        return str(ask().digest)
    except ExpungeError as refusal:
        return type(refusal).__name__


def streaming(variant: type[ExactSolver], spec: Spec, features: Array, labels: Array) -> Any:
    """A solver of these samples that moves its head row by row."""
    solver = variant(spec, Statistics.of(spec, features, labels, lost_columns="accept"))
    solver.head()
    for _ in range(3):
        solver.delete(features[:1], labels[:1])
        solver.head()
        solver.add(features[:1], labels[:1], lost_columns="accept")
        solver.head()
    assert is_moved(solver)
    return solver


def is_moved(solver: ExactSolver) -> bool:
    """Whether its head was moved row by row, and not refined."""
    diagnostics = solver.head().diagnostics
    return diagnostics is not None and diagnostics.contraction == 0.0


@each_variant
@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32 - 1),
    spectrum=st.sampled_from(SPECTRA),
    dim=st.sampled_from([3, 6, 20, 50]),
    gamma=st.sampled_from([1.0, 0.1, 1e-3, 10.0, 2.0**-9]),
    bits=st.sampled_from([0, 20, 40, 45]),
    columns=st.integers(0, 4),
)
def test_every_head_of_a_stream_is_that_of_retraining(
    variant: type[ExactSolver],
    *,
    seed: int,
    spectrum: str,
    dim: int,
    gamma: float,
    bits: int,
    columns: int,
) -> None:
    """Columns of 0: classes."""
    common: dict[str, Any] = {"dim": dim, "gamma": gamma, "publication_bits": bits}
    spec = (
        Spec(outputs=columns, label_grid=Grid(2, 30), intercept=False, **common)
        if columns
        else Spec(labels=("a", "b", "c"), **common)
    )
    draw = np.random.default_rng(seed)
    features, labels = drawn(spec, spectrum, 90, draw)
    solver = variant(spec, Statistics.of(spec, features[:40], labels[:40], lost_columns="accept"))
    live, fresh = list(range(40)), list(range(40, 90))
    for _ in range(24):
        size = int(draw.choice([1, 1, 1, 3]))
        if draw.random() < 0.6 and len(live) >= size:
            chosen = [live.pop(int(draw.integers(len(live)))) for _ in range(size)]
            solver.delete(features[chosen], labels[chosen])
        elif len(fresh) >= size:
            chosen = [fresh.pop() for _ in range(size)]
            live += chosen
            solver.add(features[chosen], labels[chosen], lost_columns="accept")
        if draw.random() < 0.1:
            continue
        retained = Statistics.of(spec, features[live], labels[live], lost_columns="accept")
        assert outcome(solver.head) == outcome(lambda: solve(retained))  # noqa: B023 - at once


@each_variant
def test_a_long_stream_is_moved_and_equals_the_rational_solution(
    variant: type[ExactSolver],
) -> None:
    draw = np.random.default_rng(3)
    spec = Spec(dim=9, labels=("a", "b", "c"), gamma=0.3)
    features, labels = drawn(spec, "plain", 120, draw)
    solver, moved = streaming(variant, spec, features, labels), 0
    for place in range(100):
        solver.delete(features[place : place + 1], labels[place : place + 1])
        moved += is_moved(solver)
        if place % 10 == 9:
            exact = of_samples(spec, features[place + 1 :], labels[place + 1 :])
            np.testing.assert_array_equal(solver.head().integers, exact.integers)
    assert moved > 90
    assert solver.head().error_bound < 2.0**-41


@each_variant
@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    spectrum=st.sampled_from(SPECTRA),
    scale=st.sampled_from([0.05, 0.3, 1.0, 4.0]),
)
def test_what_a_stream_refuses_is_what_statistics_refuse(
    variant: type[ExactSolver], seed: int, spectrum: str, scale: float
) -> None:
    """Samples that were never added: accepted or refused on every path alike; a refusal changes
    nothing.
    """
    draw = np.random.default_rng(seed)
    spec = Spec(dim=4, labels=("a", "b"), gamma=float(draw.choice([0.01, 1.0])))
    features, labels = drawn(spec, spectrum, 12, draw)
    solver = variant(spec, Statistics.of(spec, features, labels, lost_columns="accept"))
    for _ in range(4):
        solver.head()
        solver.delete(features[:1], labels[:1])
        solver.head()
        solver.add(features[:1], labels[:1], lost_columns="accept")
    before = solver.head().digest
    foreign = scale * draw.standard_normal((1, 4))
    if draw.integers(2):
        foreign = features[1:2] * float(draw.choice([1.0, 1.0 + 2.0**-20, 0.999, 1.2]))
    retained = Statistics.of(spec, features, labels, lost_columns="accept")
    gone = Statistics.of(spec, foreign, labels[:1], lost_columns="accept")

    def verdict(deleted: Any) -> bool:
        try:
            deleted()
        except ImpossibleDeletionError:
            return False
        return True

    other = CholeskySolver(spec, retained)
    taken = verdict(lambda: solver.delete(foreign, labels[:1]))
    assert taken == verdict(lambda: other.delete_statistics(gone))
    assert taken == (outcome(lambda: solve(retained - gone)) != "NotAGramError")
    assert outcome(solver.head) == outcome(other.head)
    if not taken:
        assert solver.head().digest == before
        assert solver.statistics == retained
        solver.delete(features[:1], labels[:1])
        rest = Statistics.of(spec, features[1:], labels[1:], lost_columns="accept")
        assert outcome(solver.head) == outcome(lambda: solve(rest))


@each_variant
def test_a_group_that_is_refused_in_the_middle_leaves_the_stream_as_it_was(
    variant: type[ExactSolver],
) -> None:
    draw = np.random.default_rng(8)
    spec = Spec(dim=40, labels=("a", "b"))
    features, labels = drawn(spec, "plain", 90, draw)
    labels = np.arange(90) % 2
    solver = streaming(variant, spec, features, labels)
    before = solver.head().digest
    group = np.concatenate([features[:3], 20.0 + features[3:4]])
    with pytest.raises(ImpossibleDeletionError):
        solver.delete(group, labels[:4])
    assert solver.head().digest == before
    solver.delete(features[:3], labels[:3])
    assert is_moved(solver)
    assert solver.head().digest == solve(Statistics.of(spec, features[3:], labels[3:])).digest


@each_variant
def test_a_stream_ends_with_other_changes_and_begins_anew(variant: type[ExactSolver]) -> None:
    draw = np.random.default_rng(9)
    spec = Spec(dim=16, labels=("a", "b"))
    features, labels = drawn(spec, "plain", 200, draw)
    labels = np.arange(200) % 2
    solver = streaming(variant, spec, features[:100], labels[:100])
    solver.add(features[100:], labels[100:])
    assert not is_moved(solver)
    assert solver.head().digest == solve(Statistics.of(spec, features, labels)).digest
    solver.amend(spec.with_gamma(2.0))
    wanted = Statistics.of(spec.with_gamma(2.0), features, labels)
    assert solver.head().digest == solve(wanted).digest
    for place in range(5):
        solver.delete(features[place : place + 1], labels[place : place + 1])
        solver.head()
    assert is_moved(solver)
    rest = Statistics.of(spec.with_gamma(2.0), features[5:], labels[5:])
    assert solver.head().digest == solve(rest).digest
    solver.delete_statistics(Statistics.of(spec.with_gamma(2.0), features[5:6], labels[5:6]))
    rest = Statistics.of(spec.with_gamma(2.0), features[6:], labels[6:])
    assert solver.head().digest == solve(rest).digest


@each_variant
def test_a_stream_takes_one_large_group_and_makes_way_for_several(
    variant: type[ExactSolver],
) -> None:
    draw = np.random.default_rng(11)
    spec = Spec(dim=127, labels=("a", "b"))
    features, labels = drawn(spec, "plain", 400, draw)
    labels = np.arange(400) % 2
    solver = streaming(variant, spec, features, labels)
    first, moved = 0, []
    for size in (12, 1, 12, 12, 3, 12, 1, 1, 1, 1):
        chosen = slice(first, first + size)
        solver.delete(features[chosen], labels[chosen])
        first += size
        rest = Statistics.of(spec, features[first:], labels[first:])
        assert solver.head().digest == solve(rest).digest
        moved.append(is_moved(solver))
    assert moved == [True, True, True, False, False, False, False, False, True, True]


@each_variant
@pytest.mark.parametrize("labels", ["hard", "soft"])
def test_statistics_of_few_samples_are_followed_like_rows(
    variant: type[ExactSolver], labels: str
) -> None:
    """By those of one sample, and of one of each of some classes."""
    draw = np.random.default_rng(11)
    spec = Spec(dim=24, labels=("a", "b", "c"))
    features, targets = draw.standard_normal((90, 24)), np.arange(90) % 3
    if labels == "soft":
        targets = draw.dirichlet(np.ones(3), 90)
    count = 3 if labels == "hard" else 1
    solver = streaming(variant, spec, features, targets)
    kept = np.ones(90, dtype=bool)

    def wanted() -> Statistics:
        return Statistics.of(spec, features[kept], targets[kept])

    for start in range(0, 24, count):
        part = slice(start, start + count)
        solver.delete_statistics(Statistics.of(spec, features[part], targets[part]))
        kept[part] = False
        assert solver.head().digest == solve(wanted()).digest
        assert is_moved(solver)
    solver.add_statistics(Statistics.of(spec, features[:count], targets[:count]))
    kept[:count] = True
    assert solver.head().digest == solve(wanted()).digest
    assert is_moved(solver)
    assert solver.statistics == wanted()


@each_variant
@settings(max_examples=20)
@given(
    seed=st.integers(0, 2**32 - 1),
    spectrum=st.sampled_from(SPECTRA),
    scale=st.sampled_from([1.0, 1.0, 1.0 + 2.0**-20, 0.9, 1.5, 30.0]),
)
def test_statistics_of_few_samples_of_a_class_are_judged_as_by_a_proof(
    variant: type[ExactSolver], seed: int, spectrum: str, scale: float
) -> None:
    """Samples that were added, and others: accepted or refused as `solve` does, with its heads."""
    draw = np.random.default_rng(seed)
    gamma = float(draw.choice([0.01, 1.0]))
    spec = Spec(dim=int(draw.integers(3, 20)), labels=("a", "b"), gamma=gamma)
    features, labels = drawn(spec, spectrum, 40, draw)
    ledger = Statistics.of(spec, features, labels, lost_columns="accept")
    solver = variant(spec, ledger)
    solver.head()
    for start in range(0, 12, 3):
        part = slice(start, start + 3)
        foreign = (features[part] * (scale if start == 6 else 1.0)).clip(-60.0, 60.0)  # the grid's
        gone = Statistics.of(spec, foreign, labels[part], lost_columns="accept")
        refused = outcome(lambda left=ledger - gone: solve(left)) == "NotAGramError"  # type: ignore[misc]
        try:
            solver.delete_statistics(gone)
        except ImpossibleDeletionError:
            assert refused
        else:
            assert not refused
            ledger = ledger - gone
        assert solver.statistics == ledger
        assert outcome(solver.head) == outcome(lambda left=ledger: solve(left))  # type: ignore[misc]


@each_variant
def test_a_deletion_by_statistics_is_judged_by_what_is_left(variant: type[ExactSolver]) -> None:
    """Not by what is there, which may be the statistics of no samples."""
    draw = np.random.default_rng(14)
    spec = Spec(dim=5, labels=("a", "b"))
    features, labels = draw.standard_normal((30, 5)), np.arange(30) % 2
    for count in (1, 4):
        missing = Statistics.of(spec, 9.0 * features[:count], labels[:count])
        solver = variant(spec, Statistics.of(spec, features, labels))
        solver.head()
        solver.add_statistics(-missing - missing)
        solver.add_statistics(missing)
        with pytest.raises(ImpossibleDeletionError):
            solver.delete_statistics(Statistics.of(spec, features[:count], labels[:count]))
        solver.add_statistics(missing)
        assert solver.head().digest == solve(Statistics.of(spec, features, labels)).digest


@each_variant
@pytest.mark.parametrize("count", [1, 4])
def test_statistics_of_few_samples_where_no_head_can_be_certified(
    variant: type[ExactSolver], count: int
) -> None:
    """Beyond the conditioning rule, deletions are judged by integers alone."""
    spec = Spec(dim=3, labels=("a", "b"), gamma=1e-3, grid=Grid(2, 20))
    draw = np.random.default_rng(15)
    small, labels = 1e-3 * draw.standard_normal((20, 3)), np.arange(20) % 2
    solver = variant(spec, Statistics.of(spec, small, labels))
    solver.head()
    large = 2.0**19 * draw.standard_normal((count, 3)).clip(-1, 1)
    solver.add(large, np.zeros(count, dtype=int))
    solver.add(2.0**19 * np.ones((3, 3)), [0, 0, 0])
    gone = Statistics.of(spec, large, np.zeros(count, dtype=int))
    solver.delete_statistics(gone)
    rest = np.concatenate([small, 2.0**19 * np.ones((3, 3))])
    wanted = Statistics.of(spec, rest, np.concatenate([labels, [0, 0, 0]]))
    assert solver.statistics == wanted
    assert outcome(solver.head) == outcome(lambda: solve(wanted)) == "IllConditionedError"


@each_variant
def test_statistics_of_few_samples_cost_no_factorisation(variant: type[ExactSolver]) -> None:
    draw = np.random.default_rng(13)
    spec = Spec(dim=60, labels=("a", "b"))
    features, labels = draw.standard_normal((400, 60)), np.arange(400) % 2
    solver = variant(spec, Statistics.of(spec, features, labels))
    solver.head()
    for start in (0, 3):
        gone = Statistics.of(spec, features[start : start + 3], labels[start : start + 3])
        solver.delete_statistics(gone)
        rest = Statistics.of(spec, features[start + 3 :], labels[start + 3 :])
        assert solver.head().digest == solve(rest).digest
    assert solver.factorisations == 1


@each_variant
def test_what_rows_refuse_statistics_refuse_by_their_own_reason(
    variant: type[ExactSolver],
) -> None:
    draw = np.random.default_rng(12)
    spec = Spec(dim=8, labels=("a", "b"))
    features, labels = draw.standard_normal((40, 8)), np.arange(40) % 2
    solver = streaming(variant, spec, features, labels)
    before, retained = solver.head().digest, solver.statistics
    gone = Statistics.of(spec, 30.0 * features[:1], labels[:1])
    with pytest.raises(ImpossibleDeletionError, match="squares of feature"):
        solver.delete_statistics(gone)
    assert solver.head().digest == before
    assert solver.statistics == retained


@each_variant
def test_the_last_sample_of_a_class_goes_by_integers(variant: type[ExactSolver]) -> None:
    draw = np.random.default_rng(10)
    spec = Spec(dim=6, labels=("a", "b", "c"))
    features, labels = drawn(spec, "plain", 40, draw)
    labels = np.arange(40) % 2
    labels[5] = 2
    solver = streaming(variant, spec, features, labels)
    before = solver.head().digest
    with pytest.raises(ImpossibleDeletionError):  # what is left of the class is no sample's
        solver.delete(0.9 * features[5:6], labels[5:6])
    assert solver.head().digest == before
    solver.delete(features[5:6], labels[5:6])
    assert is_moved(solver)
    kept = np.arange(40) != 5
    wanted = solve(Statistics.of(spec, features[kept], labels[kept]))
    assert solver.head().digest == wanted.digest


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), spectrum=st.sampled_from(SPECTRA))
def test_minors_called_safe_are_not_negative(seed: int, spectrum: str) -> None:
    """By integers, for deletions of samples that are there and of others."""
    draw = np.random.default_rng(seed)
    spec = Spec(dim=5, outputs=1, intercept=bool(draw.integers(2)), grid=Grid(2, 20))
    features, labels = drawn(spec, spectrum, 9, draw)
    whole = Statistics.of(spec, features[:7], labels[:7], lost_columns="accept")
    system = TruncatedSystem(spec, whole.gram, 4)
    screen, stack = MinorScreen(system), system.rows
    left = whole
    for place, sign in ((7, 1), (int(draw.integers(0, 9)), -1)):
        row = features[place : place + 1] * float(draw.choice([1.0, 1.0, 0.5, 1.01]))
        change = Change(spec, integer_rows(spec, row, labels[place : place + 1]))
        stack.append(change.digits, change.values[0], sign)
        one = Statistics.of(spec, row, labels[place : place + 1], lost_columns="accept")
        left = left + one if sign > 0 else left - one
    if not screen.is_safe(stack):
        return
    exact = np.zeros((spec.width, spec.width), dtype=object)
    exact[np.triu_indices(spec.width)] = wide.to_ints(left.gram)
    for first in range(spec.width):
        assert exact[first, first] >= 0
        for second in range(first + 1, spec.width):
            pair = exact[first, first] * exact[second, second]
            assert pair >= exact[first, second] ** 2


def test_the_screen_is_of_use() -> None:
    """It lets ordinary deletions pass without a look at integers."""
    draw = np.random.default_rng(12)
    spec = Spec(dim=30, labels=("a", "b"))
    features, labels = drawn(spec, "rare features", 2000, draw)
    labels = np.arange(2000) % 2
    statistics = Statistics.of(spec, features, labels)
    system = TruncatedSystem(spec, statistics.gram, 20)
    screen, stack = MinorScreen(system), system.rows
    safe = 0
    for place in range(20):
        rows = integer_rows(spec, features[place : place + 1], labels[place : place + 1])
        change = Change(spec, rows)
        stack.append(change.digits, change.values[0], -1)
        safe += screen.is_safe(stack)
    assert safe == 20


@each_variant
@pytest.mark.parametrize("size", [2.0**20, 2.0**40])
def test_a_row_that_dwarfs_the_others_comes_and_goes(
    variant: type[ExactSolver], size: float
) -> None:
    """H^-1 u has no bits below one in the end: the stream gives it up, and nothing is lost."""
    spec = Spec(dim=2, outputs=1, intercept=False, gamma=0.1, grid=Grid(2, 0))
    features, labels = np.array([[1.0, 0.0], [3.0, 0.0], [5.0, 0.0]]), np.array([1.0, 2.0, 3.0])
    solver = streaming(variant, spec, features, labels)
    before, huge = solver.head().digest, [[0.0, size]]
    solver.add(huge, [1.0])
    whole = Statistics.of(spec, [*features, *huge], [*labels, 1.0])
    assert outcome(solver.head) == outcome(lambda: solve(whole))
    solver.delete(huge, [1.0])
    assert solver.head().digest == before


@each_variant
def test_additions_beyond_the_conditioning_rule_are_taken(variant: type[ExactSolver]) -> None:
    """A stream is not what refuses them: only heads are refused, until the samples are gone."""
    draw = np.random.default_rng(21)
    spec = Spec(dim=20, labels=("a", "b"), gamma=1e-15, intercept=False, publication_bits=20)
    features, labels = drawn(spec, "plain", 6, draw)
    features, labels = 3e-5 * features, np.arange(6) % 2
    solver = streaming(variant, spec, features, labels)
    before = solver.head().digest
    huge = np.repeat(draw.uniform(-60.0, 60.0, (2, 20)), 10, axis=0)
    for place in range(len(huge)):
        solver.add(huge[[place]], ["a"])
        assert outcome(solver.head) == "IllConditionedError"
    for place in range(len(huge)):
        solver.delete(huge[[place]], ["a"])
    assert solver.head().digest == before


# -- interrupts ------------------------------------------------------------------------------------


@each_variant
@pytest.mark.parametrize("change", ["add", "delete"])
def test_a_step_that_was_interrupted_makes_the_solver_unusable(
    variant: type[ExactSolver], change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = np.random.default_rng(13)
    spec = Spec(dim=6, labels=("a", "b", "c"))
    features, labels = drawn(spec, "plain", 40, draw)
    solver = streaming(variant, spec, features, labels)
    with monkeypatch.context() as patch:
        patch.setattr(TrackedHead, "move", lambda *_, **__: (_ for _ in ()).throw(MemoryError))
        with pytest.raises(MemoryError):
            getattr(solver, change)(features[:1], labels[:1])
    with pytest.raises(InterruptedChangeError, match="make a new one"):
        solver.head()


def test_sums_that_were_interrupted_while_a_head_was_made_are_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = Spec(dim=3, outputs=1)
    solver = CholeskySolver(spec)
    solver.add(np.eye(3), [1.0, 2.0, 3.0])
    with monkeypatch.context() as patch:
        patch.setattr(GramSum, "added_to", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            solver.head()
    assert solver.statistics == Statistics.of(spec, np.eye(3), [1.0, 2.0, 3.0])
