"""Integer rows given to a solver as they are: the same, bit for bit, as the samples behind them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from expunge import CholeskySolver, Grid, Spec, Statistics, WoodburySolver
from expunge.errors import ExpungeError, InputError, ShapeError
from expunge.ridge import sums
from expunge.ridge.encoding import Rows, integer_rows
from expunge.solvers.base import ExactSolver

Array = NDArray[Any]

VARIANTS = [CholeskySolver, WoodburySolver]
GRID = Grid(2, 10)
SPECS = [
    Spec(dim=3, labels=("a", "b"), gamma=0.5, grid=GRID),
    Spec(dim=2, labels=("a", "b"), gamma=1e-3, grid=GRID, intercept=False),
    Spec(dim=2, outputs=2, gamma=1.0, grid=GRID),
    Spec(dim=1, labels=("a", "b", "c"), gamma=1.0, grid=Grid(1, 4)),
]
# On either side of a second digit, and large enough to make the system ill-conditioned
VALUES = st.one_of(
    st.floats(-100, 100, width=32), st.sampled_from([0.0, 2.0**-11, 1024.0, -1025.0, 2.0**29])
)


def outcome(ask: Any) -> tuple[str, str]:
    """What came of it: a digest, or the whole refusal."""
    try:
        answer = ask()
    except ExpungeError as refusal:
        return type(refusal).__name__, str(refusal)
    return "done", getattr(answer, "digest", "")


@st.composite
def drawn(draw: st.DrawFn, spec: Spec, most: int) -> tuple[Array, Array]:
    """Samples with hard, soft or real labels."""
    largest = st.floats(-100, 100) if spec.grid.digits == 1 else VALUES
    count = draw(st.integers(0, most))
    features = draw(
        st.lists(
            st.lists(largest, min_size=spec.dim, max_size=spec.dim), min_size=count, max_size=count
        )
    )
    soft = not spec.is_classification or draw(st.booleans())
    label: Any = st.integers(0, spec.columns - 1)
    if soft:
        label = st.lists(
            st.sampled_from([0.0, 1.0, 0.25, -0.5]), min_size=spec.columns, max_size=spec.columns
        )
    labels = draw(st.lists(label, min_size=count, max_size=count))
    return (
        np.array(features, dtype=np.float64).reshape(count, spec.dim),
        np.array(labels, dtype=np.float64).reshape(count, spec.columns)
        if soft
        else np.array(labels, dtype=np.int64),
    )


def cut(spec: Spec, features: Array, labels: Array, place: int) -> Rows:
    """The samples' integers, made in two parts and joined as the ledger joins those of clients."""
    parts = [slice(0, place), slice(place, len(features))]
    return Rows.joined([integer_rows(spec, features[part], labels[part]) for part in parts])


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("spec", SPECS)
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_a_stream_of_rows_leads_where_the_same_samples_lead(
    variant: type[ExactSolver], spec: Spec, data: st.DataObject
) -> None:
    by_samples, by_rows = variant(spec), variant(spec)
    added: list[tuple[Array, Array]] = []
    for _ in range(data.draw(st.integers(1, 6))):
        adds = not added or data.draw(st.booleans())
        if adds or data.draw(st.sampled_from([False, False, True])):  # or never added: refused
            batch = data.draw(drawn(spec, 24))  # the solver follows 16, and adds up more
        else:
            batch = added.pop(data.draw(st.integers(0, len(added) - 1)))
        rows = cut(spec, *batch, data.draw(st.integers(0, len(batch[0]))))
        if adds:
            seen = outcome(lambda: by_samples.add(*batch, lost_columns="accept"))  # noqa: B023 - called at once
            assert outcome(lambda: by_rows.add_rows(rows)) == seen  # noqa: B023 - called at once
            added.append(batch)
        else:
            seen = outcome(lambda: by_samples.delete(*batch))  # noqa: B023 - called at once
            assert outcome(lambda: by_rows.delete_rows(rows)) == seen  # noqa: B023 - called at once
        assert by_rows.statistics == by_samples.statistics
        assert by_rows.statistics.digest == by_samples.statistics.digest
        if data.draw(st.booleans()):
            assert outcome(by_rows.head) == outcome(by_samples.head)
    assert outcome(by_rows.head) == outcome(by_samples.head)
    assert by_rows.factorisations == by_samples.factorisations


@pytest.mark.parametrize("workers", [1, 3])
def test_statistics_of_rows_are_those_of_the_samples_however_many_share_the_work(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(5)
    features, labels = rng.normal(size=(1300, 3)) * 3000, rng.integers(2, size=1300)
    if workers > 1:
        monkeypatch.setattr(sums, "WORTH_SHARING", 1)
    monkeypatch.setattr(sums.threads, "cores", lambda: workers)
    found = Statistics.of_rows(SPECS[0], integer_rows(SPECS[0], features, labels))
    assert found == Statistics.of(SPECS[0], features, labels)
    assert found.class_counts.tolist() == np.bincount(labels).tolist()


def test_rows_are_only_read() -> None:
    rows = integer_rows(SPECS[0], np.full((5, 3), 0.5), [0, 1, 0, 1, 1])
    for array in (rows.integers, rows.targets.integers, rows.targets.class_counts):
        array.flags.writeable = False
    for variant in VARIANTS:
        solver = variant(SPECS[0])
        solver.add_rows(rows)
        solver.head()
        solver.add_rows(rows)
        solver.delete_rows(rows)
        assert solver.statistics == Statistics.of(SPECS[0], np.full((5, 3), 0.5), [0, 1, 0, 1, 1])


@pytest.mark.parametrize("method", ["add_rows", "delete_rows"])
def test_rows_of_another_spec_are_refused_and_change_nothing(method: str) -> None:
    solver = CholeskySolver(SPECS[0])
    solver.add(np.eye(3), [0, 1, 1])
    before = solver.statistics
    for spec in (SPECS[1], SPECS[3]):  # of another width; with more labels
        other = integer_rows(spec, np.ones((1, spec.dim)), [0])
        with pytest.raises(ShapeError, match="Make them under the solver's spec"):
            getattr(solver, method)(other)
    more = SPECS[0].with_labels("c")
    with pytest.raises(ShapeError, match=r"targets of shape \(1, 3\)"):
        getattr(solver, method)(integer_rows(more, np.ones((1, 3)), [0]))
    with pytest.raises(InputError, match="takes Rows, got ndarray"):
        getattr(solver, method)(np.eye(3))
    assert solver.statistics == before
