"""Cases that a review by counterexample found; each of them once gave a wrong head, a wrong sum, or
a wrong refusal.
"""

from __future__ import annotations

import numpy as np
import pytest

from expunge import CholeskySolver, Grid, Spec, Statistics, WoodburySolver, solve
from expunge.errors import (
    ImpossibleDeletionError,
    InputError,
    InterruptedChangeError,
    NotAGramError,
)
from expunge.exact import wide
from expunge.ridge.sums import Sums
from expunge.solvers.base import ExactSolver
from expunge.solvers.float64 import FloatWoodburySolver
from expunge.solvers.refinement import Refinement
from expunge.solvers.system import RidgeSystem
from support.oracle import of_statistics

VARIANTS = [CholeskySolver, WoodburySolver]


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_bound_of_half_a_cell_does_not_decide_the_cell(variant: type[ExactSolver]) -> None:
    """A weight of -0.6 with no publication bits: a stale factor's correction and its bound together
    reach over a whole cell.
    """
    spec = Spec(dim=2, outputs=2, intercept=False, gamma=1.0, publication_bits=0)
    solver = variant(spec)
    solver.add([[40.0, 0.0]], [[0.2 * 1601 / 40, 0.0]])
    solver.add([[0.0, 0.1]], [[0.0, -6.06]])
    gone = np.zeros((32, 2))
    gone[:, 1] = np.sqrt(2 / 32)
    solver.add(gone, np.zeros((32, 2)))
    solver.head()
    solver.delete(gone, np.zeros((32, 2)))
    np.testing.assert_array_equal(solver.head().integers, of_statistics(solver.statistics).integers)


def test_the_guard_is_not_rounded_itself() -> None:
    """2^53 + 1 in float64 is 2^53: the sum that fills the budget to the brim must be drained before
    one more is added.
    """
    spec = Spec(dim=1, outputs=1, intercept=False, grid=Grid(2, 20), label_grid=Grid(2, 20))
    ones, tiny = np.ones((8192, 1)), np.full((1000, 1), 2.0**-20)
    batches = [(ones, ones[:, 0]), *((tiny[:1], tiny[:1, 0]) for _ in range(1000))]
    for whole in (
        Statistics.of(spec, np.concatenate([ones, tiny]), np.concatenate([ones, tiny])),
        Statistics.of(spec, batches),
        Statistics.of(spec, ones, ones) + Statistics.of(spec, tiny, tiny),
    ):
        for sums in (whole.gram, whole.moment, whole.label_gram):
            assert wide.to_ints(sums) == [2**53 + 1000]


@pytest.mark.parametrize("width", [3, 16, 32, 64, 128])
def test_variant_b_publishes_whatever_retraining_does_at_the_conditioning_limit(width: int) -> None:
    for seed in range(6):
        draw = np.random.default_rng(seed)
        rows = np.clip(
            draw.standard_normal((3, width)) * 16 * 2.0 ** -draw.integers(0, 20, (1, width)),
            -63,
            63,
        )
        features = np.concatenate([rows, draw.choice([-1, 1], (1, width)) * 1e-7])
        gamma = width * float(np.square(features).sum()) / 2**47 * 1.01
        spec = Spec(dim=width, outputs=1, intercept=False, gamma=gamma, publication_bits=20)
        whole = Statistics.of(spec, features, [0.0, 0.0, 0.0, 50.0], lost_columns="accept")
        assert WoodburySolver(spec, whole).head().digest == solve(whole).digest


def test_a_broken_factor_is_seen_even_where_the_residual_is_zero() -> None:
    solver = CholeskySolver(Spec(dim=1, outputs=1, intercept=False, gamma=1.0, grid=Grid(2, 0)))
    solver.head()
    huge = [[2.0**40], [2.0**40]]
    solver.add(huge, [0.0, 0.0])
    solver.delete(huge, [0.0, 0.0])
    assert solver.head().weights.tolist() == [[0.0]]


def test_more_samples_than_sums_can_hold_are_refused() -> None:
    spec = Spec(dim=1, outputs=1, intercept=False)
    many = Statistics.of(spec, [[1.0]], [1.0])
    for _ in range(44):
        many = many + many
    assert many.count == 2**44
    with pytest.raises(InputError, match=r"2\^44"):
        _ = many + many
    solver = CholeskySolver(spec, many)
    with pytest.raises(InputError, match=r"2\^44"):
        solver.add_statistics(many)
    assert solver.count == 2**44


def test_a_refused_float_deletion_changes_nothing() -> None:
    solver = FloatWoodburySolver(Spec(dim=2, outputs=1, intercept=False))
    solver.add([[1.0, 0.0]], [1.0])
    before = solver.weights.copy()
    with pytest.raises(NotAGramError):
        solver.delete([[5.0, 0.0]], [3.0])
    np.testing.assert_array_equal(solver.weights, before)
    solver.add([[5.0, 0.0]], [3.0])
    solver.delete([[5.0, 0.0]], [3.0])
    np.testing.assert_allclose(solver.weights, before, atol=1e-12)


# -- interrupts ------------------------------------------------------------------------------------

SPEC = Spec(dim=6, labels=("a", "b"))
DRAW = np.random.default_rng(8)
FEATURES, LABELS = DRAW.standard_normal((40, 6)), DRAW.integers(0, 2, 40)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_head_that_was_interrupted_is_asked_for_again(
    variant: type[ExactSolver], monkeypatch: pytest.MonkeyPatch
) -> None:
    solver = variant(SPEC, Statistics.of(SPEC, FEATURES, LABELS))

    def interrupted(self: RidgeSystem, *rest: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(
            RidgeSystem, "subtract_product", interrupted
        )  # the iterate has moved, the residual has not
        with pytest.raises(KeyboardInterrupt):
            solver.head()
    assert solver.head().digest == solve(solver.statistics).digest


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("owner", "name"), [(Sums, "change"), (Refinement, "change"), (RidgeSystem, "change")]
)
@pytest.mark.parametrize("change", ["add", "delete"])
def test_a_change_that_was_interrupted_makes_the_solver_unusable(
    variant: type[ExactSolver],
    owner: object,
    name: str,
    change: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    solver = variant(SPEC, Statistics.of(SPEC, FEATURES, LABELS))
    solver.head()
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, lambda *_: (_ for _ in ()).throw(MemoryError))
        with pytest.raises(MemoryError):
            getattr(solver, change)(FEATURES[:1], LABELS[:1])
    for ask in (
        solver.head,
        lambda: solver.statistics,
        lambda: solver.add(FEATURES[:1], LABELS[:1]),
    ):
        with pytest.raises(InterruptedChangeError, match="make a new one"):
            ask()


def test_a_refusal_is_no_interrupt() -> None:
    solver = CholeskySolver(SPEC, Statistics.of(SPEC, FEATURES, LABELS))
    with pytest.raises(ImpossibleDeletionError):
        solver.delete(100.0 * FEATURES[:1] / np.abs(FEATURES[:1]).max() / 2, LABELS[:1])
    assert solver.head().digest == solve(solver.statistics).digest


def test_adding_a_row_does_not_settle_the_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    solver = CholeskySolver(SPEC, Statistics.of(SPEC, FEATURES, LABELS))
    monkeypatch.setattr(Sums, "settle", lambda _: pytest.fail("settled for one row"))
    solver.add(FEATURES[:1], LABELS[:1])
