"""Changes of many samples that are interrupted: afterwards the solver is as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from expunge import CholeskySolver, Grid, Spec, Statistics, WoodburySolver, solve
from expunge.errors import ImpossibleDeletionError, InterruptedChangeError
from expunge.exact import blas, wide
from expunge.ridge import sums
from expunge.ridge.encoding import integer_rows
from expunge.solvers.base import ExactSolver

Array = NDArray[Any]

VARIANTS = [CholeskySolver, WoodburySolver]
SPEC = Spec(dim=6, labels=("a", "b"))
DRAW = np.random.default_rng(21)
FEATURES, LABELS = DRAW.standard_normal((90, 6)), np.arange(90) % 2
HELD, MANY = slice(0, 60), slice(20, 60)
ROUTINES = [  # whatever adds up products, or factors
    (blas, "add_gram"),
    (blas, "add_product"),
    (blas, "multiply"),
    (blas, "multiply_panel"),
    (blas, "multiply_transposed"),
    (blas, "symmetric_multiply"),
    (blas, "factor_in_place"),
    (wide, "add_into"),
    (wide, "add_shifted"),
    (wide, "subtract_into"),
]


class Calls:
    """Counts the calls of the routines, and interrupts before or after one of them."""

    def __init__(self, last: int, failure: type[BaseException], *, after: bool) -> None:
        self.count, self._last, self._failure, self._after = 0, last, failure, after

    def wrapped(self, routine: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            if self.count == self._last and not self._after:
                raise self._failure
            result = routine(*args, **kwargs)
            if self.count == self._last:
                raise self._failure
            return result

        return guarded


@contextmanager
def interrupted_at(
    last: int, failure: type[BaseException] = KeyboardInterrupt, *, after: bool = False
) -> Iterator[Calls]:
    calls = Calls(last, failure, after=after)
    with pytest.MonkeyPatch.context() as patch:
        for module, name in ROUTINES:
            patch.setattr(module, name, calls.wrapped(getattr(module, name)))
        yield calls


def changes() -> dict[str, Callable[[ExactSolver], None]]:
    """Changes of many samples, and what they are made of."""
    new, old = slice(60, 90), MANY
    rows = {part: integer_rows(SPEC, FEATURES[one], LABELS[one]) for part, one in PARTS.items()}
    return {
        "add": lambda solver: solver.add(FEATURES[new], LABELS[new]),
        "add_rows": lambda solver: solver.add_rows(rows["new"]),
        "delete": lambda solver: solver.delete(FEATURES[old], LABELS[old]),
        "delete_rows": lambda solver: solver.delete_rows(rows["old"]),
        "add_statistics": lambda solver: solver.add_statistics(statistics_of(new)),
        "delete_statistics": lambda solver: solver.delete_statistics(statistics_of(old)),
    }


PARTS = {"new": slice(60, 90), "old": MANY}
CHANGES = sorted(changes())


def statistics_of(*parts: slice) -> Statistics:
    return sum(Statistics.of(SPEC, FEATURES[part], LABELS[part]) for part in parts)  # type: ignore[return-value]


def with_rows_waiting(variant: type[ExactSolver]) -> ExactSolver:
    """Samples 0 to 59: some settled, some as products, some as rows that wait."""
    solver = variant(SPEC, statistics_of(slice(0, 20)))
    solver.add(FEATURES[20:58], LABELS[20:58])
    solver.add(FEATURES[58:59], LABELS[58:59])
    solver.head()
    solver.add(FEATURES[59:60], LABELS[59:60])
    return solver


def in_a_stream(variant: type[ExactSolver]) -> ExactSolver:
    """The same samples, in the middle of a stream."""
    solver = variant(SPEC, statistics_of(HELD))
    for place in (60, 61, 62):
        solver.add(FEATURES[place : place + 1], LABELS[place : place + 1])
        solver.head()
    for place in (60, 61, 62):
        solver.delete(FEATURES[place : place + 1], LABELS[place : place + 1])
    return solver


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("made", [with_rows_waiting, in_a_stream])
@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("panels", [False, True])
def test_an_interrupted_change_of_many_samples_has_changed_nothing(
    variant: type[ExactSolver],
    made: Callable[[type[ExactSolver]], ExactSolver],
    name: str,
    panels: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At every product, before it and after it; then the same change is made whole."""
    if panels:
        monkeypatch.setattr(sums, "PANEL_WIDTH", 1)
    change = changes()[name]
    whole = statistics_of(HELD, PARTS["new"]) if "add" in name else statistics_of(slice(0, 20))
    held = statistics_of(HELD)
    digests = solve(held).digest, solve(whole).digest
    last, reached = 0, True
    while reached:
        last += 1
        failure, after = (KeyboardInterrupt, MemoryError)[last % 2], bool(last // 2 % 2)
        solver = made(variant)
        with interrupted_at(last, failure, after=after) as calls:
            try:
                change(solver)
            except failure:
                pass
            else:
                reached = False
        assert (calls.count >= last) == reached
        if reached:
            assert solver.count == 60
            if last % 3 == 0:  # the head at once, or after the sums were settled, or neither
                assert solver.head().digest == digests[0]
            elif last % 3 == 1:
                assert solver.statistics == held
            change(solver)
        assert solver.statistics == whole
        assert solver.head().digest == digests[1]
    assert last > 5


def outcome(solver: ExactSolver) -> tuple[str, str]:
    """The digest of the head of samples 0 to 59; or what the solver says is to be done."""
    try:
        digest = solver.head().digest
        return ("as it was" if solver.statistics == statistics_of(HELD) else "other sums"), digest
    except InterruptedChangeError as refusal:
        return ("make a new one" if "make a new one" in str(refusal) else str(refusal)), ""


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("made", [with_rows_waiting, in_a_stream])
@pytest.mark.parametrize("name", ["add_rows", "delete_rows"])
def test_an_interrupted_change_of_few_samples_is_never_half_made(
    variant: type[ExactSolver], made: Callable[[type[ExactSolver]], ExactSolver], name: str
) -> None:
    """The solver is as it was, or says that a new one is to be made."""
    wanted = solve(statistics_of(HELD)).digest
    part = slice(60, 72) if name == "add_rows" else slice(20, 32)
    rows = integer_rows(SPEC, FEATURES[part], LABELS[part])
    last, reached = 0, True
    while reached:
        last += 1
        solver = made(variant)
        with interrupted_at(last, after=bool(last % 2)) as calls:
            try:
                getattr(solver, name)(rows)
            except KeyboardInterrupt:
                pass
            else:
                break
        reached = calls.count >= last
        assert outcome(solver) in (("as it was", wanted), ("make a new one", ""))
    assert last > 2


@pytest.mark.parametrize("variant", VARIANTS)
def test_threads_that_share_the_rows_leave_nothing_behind(
    variant: type[ExactSolver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sums, "WORTH_SHARING", 1)
    monkeypatch.setattr(sums.threads, "cores", lambda: 3)
    solver = with_rows_waiting(variant)
    rows = integer_rows(SPEC, FEATURES[60:], LABELS[60:])
    for last in range(1, 8):
        with interrupted_at(last, MemoryError), pytest.raises(MemoryError):
            solver.add_rows(rows)
        assert solver.statistics == statistics_of(HELD)
    solver.add_rows(rows)
    assert solver.statistics == statistics_of(slice(0, 90))


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_refused_deletion_of_many_samples_leaves_what_waits(variant: type[ExactSolver]) -> None:
    spec = Spec(dim=6, labels=("a", "b"), grid=Grid(2, 30))
    solver = variant(spec, Statistics.of(spec, FEATURES[:30], LABELS[:30]))
    solver.head()
    solver.add(FEATURES[30:31], LABELS[30:31])
    for _ in range(2):
        with pytest.raises(ImpossibleDeletionError, match="nothing was deleted"):
            solver.delete(9.0 * FEATURES[:20], LABELS[:20])
    assert solver.statistics == Statistics.of(spec, FEATURES[:31], LABELS[:31])
