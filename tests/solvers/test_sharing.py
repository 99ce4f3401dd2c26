"""Solvers shared by threads, sent to other processes, and given the wrong things."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array

from expunge import CholeskySolver, Spec, Statistics, WoodburySolver, solve
from expunge.errors import FormatError, InputError, ShapeError, UnknownLabelError
from expunge.solvers.base import ExactSolver

VARIANTS = [CholeskySolver, WoodburySolver]
SPEC = Spec(dim=40, labels=("a", "b", "c"))
DRAW = np.random.default_rng(5)
FEATURES, LABELS = DRAW.standard_normal((120, 40)), DRAW.integers(0, 3, 120)


def pickled(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))  # noqa: S301 - our own bytes


@pytest.mark.parametrize("variant", VARIANTS)
def test_threads_that_share_a_solver_take_turns(variant: type[ExactSolver]) -> None:
    solver = variant(SPEC, Statistics.of(SPEC, FEATURES[:40], LABELS[:40]))

    def work(worker: int) -> None:
        for row in range(40 + worker, 120, 2):
            solver.add(FEATURES[row : row + 1], LABELS[row : row + 1])
            if row % 8 == worker:
                solver.head()
                solver.delete(FEATURES[row : row + 1], LABELS[row : row + 1])
                solver.add(FEATURES[row : row + 1], LABELS[row : row + 1])

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, range(2)))
    assert solver.statistics == Statistics.of(SPEC, FEATURES, LABELS)
    assert solver.head().digest == solve(solver.statistics).digest


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("copied", [copy.deepcopy, pickled], ids=["copy", "pickle"])
def test_a_copied_solver_goes_on_by_itself(
    variant: type[ExactSolver], copied: Callable[[ExactSolver], ExactSolver]
) -> None:
    solver = variant(SPEC)
    solver.add(FEATURES[:100], LABELS[:100])
    solver.head()
    solver.delete(FEATURES[:1], LABELS[:1])
    other = copied(solver)
    assert other.head().digest == solver.head().digest
    other.delete(FEATURES[1:2], LABELS[1:2])
    assert solver.statistics == Statistics.of(SPEC, FEATURES[1:100], LABELS[1:100])
    assert other.statistics == Statistics.of(SPEC, FEATURES[2:100], LABELS[2:100])
    assert "98 samples" in repr(other)


def test_a_pickled_head_is_as_immutable_as_the_first() -> None:
    head = solve(Statistics.of(SPEC, FEATURES, LABELS))
    assert not head.weights.flags.writeable
    again = pickled(head)
    assert again == head
    assert not again.weights.flags.writeable
    assert again.diagnostics == head.diagnostics


def test_things_of_the_wrong_kind_are_refused_by_name() -> None:
    whole = Statistics.of(SPEC, FEATURES, LABELS)
    with pytest.raises(
        InputError, match=r"got int; those of no samples at all are Statistics\.zero"
    ):
        solve(sum([]))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="takes a Spec first"):
        CholeskySolver(whole)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="takes a Spec first"):
        Statistics.of(FEATURES, LABELS)  # type: ignore[arg-type]
    with pytest.raises(FormatError, match="got str"):
        Statistics.from_bytes(SPEC, "text")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="takes Statistics, got list"):
        WoodburySolver(SPEC).add_statistics([whole])  # type: ignore[arg-type]


def test_masked_arrays_and_sparse_labels_are_refused_by_name() -> None:
    masked = np.ma.array(FEATURES, mask=np.zeros(FEATURES.shape, dtype=bool))
    assert Statistics.of(SPEC, masked, LABELS).count == 120  # nothing is masked
    masked.mask[3, 4] = True
    with pytest.raises(ShapeError, match="features have masked values"):
        Statistics.of(SPEC, masked, LABELS)
    with pytest.raises(ShapeError, match="labels have masked values"):
        Statistics.of(SPEC, FEATURES, np.ma.array(LABELS, mask=LABELS == 1))
    with pytest.raises(ShapeError, match=r"the labels are sparse \(csr_array\)"):
        Statistics.of(SPEC, FEATURES, csr_array(LABELS[None]))


def test_integer_labels_may_come_as_objects_and_rows_are_counted_over_batches() -> None:
    assert Statistics.of(SPEC, FEATURES, LABELS.astype(object)) == Statistics.of(
        SPEC, FEATURES, LABELS
    )
    batches = [
        (FEATURES[:10], LABELS[:10]),
        (FEATURES[10:20], np.array([*LABELS[10:15], 7, *LABELS[16:20]])),
    ]
    with pytest.raises(UnknownLabelError, match=r"the label of row 15 .*solver\.amend"):
        Statistics.of(SPEC, batches)
    with pytest.raises(UnknownLabelError, match="Mend or drop"):
        Statistics.of(SPEC, FEATURES[:1], [-1])
