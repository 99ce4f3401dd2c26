"""Folds that a thread makes ahead: heads, refusals and sums are the same whenever it is ready, and
whatever happens meanwhile.
"""

from __future__ import annotations

import copy
import gc
import multiprocessing
import pickle
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expunge import CholeskySolver, Spec, Statistics, WoodburySolver, solve
from expunge.errors import ExpungeError, ImpossibleDeletionError
from expunge.exact.threads import Background
from expunge.ridge import sums as sums_module
from expunge.ridge.encoding import integer_rows
from expunge.ridge.sums import Sums
from expunge.solvers import stream
from expunge.solvers.base import ExactSolver

VARIANTS = [CholeskySolver, WoodburySolver]
each_variant = pytest.mark.parametrize("variant", VARIANTS)
SPEC = Spec(dim=127, labels=("a", "b", "c"), gamma=0.5)
COUNT = 240


class AtOnce:
    """Made before the next change."""

    def __init__(self, work: Callable[[], Any]) -> None:
        made = work()
        self.result = lambda: made


class WhenAsked:
    """Made when the stream changes over to it, and no earlier."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.result = work


class Held:
    """A real thread, which begins its work when it is let go."""

    def __init__(self, work: Callable[[], Any]) -> None:
        gate, main = gates[-1], threading.current_thread()

        def held() -> Any:
            if threading.current_thread() is not main:
                gate.wait(60)
            return work()

        self.result = Background(held).result


gates: list[threading.Event] = []


@pytest.fixture(autouse=True)
def folds_ahead(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Narrow streams fold in the background as well; no thread outlives its test."""
    monkeypatch.setattr(stream, "BACKGROUND_WIDTH", 1)
    gates[:] = [threading.Event()]
    yield
    for gate in gates:
        gate.set()
    for thread in threading.enumerate():
        if thread.name == "expunge background":
            thread.join()


def samples(seed: int = 0) -> tuple[Any, Any]:
    draw = np.random.default_rng(seed)
    features = draw.standard_normal((COUNT, SPEC.dim))
    features[:, 3] *= draw.random(COUNT) < 0.05
    return features, np.arange(COUNT) % 3


def statistics_of(features: Any, labels: Any) -> Statistics:
    return Statistics.of(SPEC, features, labels, lost_columns="accept")


def delete_all(solver: Any, features: Any, labels: Any) -> None:
    """One after another, with a head each."""
    for place in range(len(features)):
        solver.delete(features[place : place + 1], labels[place : place + 1])
        solver.head()


def streaming(variant: type[ExactSolver], features: Any, labels: Any) -> Any:
    """A solver of these samples that moves its head row by row."""
    solver = variant(SPEC, statistics_of(features, labels))
    solver.head()
    for _ in range(3):
        solver.delete(features[:1], labels[:1])
        solver.head()
        solver.add(features[:1], labels[:1], lost_columns="accept")
        solver.head()
    return solver


def in_the_middle(
    variant: type[ExactSolver], monkeypatch: pytest.MonkeyPatch, features: Any, labels: Any
) -> tuple[Any, int]:
    """A solver whose fold is under way in a thread that waits, and how many rows it has deleted."""
    monkeypatch.setattr(stream, "Background", Held)
    solver, place = streaming(variant, features, labels), 0
    while not is_waiting():
        solver.delete(features[place : place + 1], labels[place : place + 1])
        place += 1
    return solver, place


def is_waiting() -> bool:
    return any(thread.name == "expunge background" for thread in threading.enumerate())


def outcome(ask: Callable[[], Any]) -> str:
    try:
        found = ask()
    except ExpungeError as refusal:
        return type(refusal).__name__
    return "" if found is None else str(found.digest)


@each_variant
@settings(max_examples=5)
@given(seed=st.integers(0, 2**32 - 1), dim=st.sampled_from([6, 40]))
def test_heads_and_refusals_do_not_depend_on_when_a_fold_is_ready(
    variant: type[ExactSolver], seed: int, dim: int
) -> None:
    """Four solvers at once: folds at once, when asked for, in threads, and never ahead."""
    draw = np.random.default_rng(seed)
    spec = Spec(dim=dim, labels=("a", "b"), gamma=float(draw.choice([0.01, 1.0])))
    features, labels = draw.standard_normal((90, dim)), np.arange(90) % 2
    if draw.integers(2):
        features *= draw.random(features.shape) < 0.2
    ledger = Statistics.of(spec, features[:60], labels[:60], lost_columns="accept")
    solvers = [variant(spec, ledger) for _ in range(4)]
    settings_of = [(AtOnce, 1), (WhenAsked, 1), (Background, 1), (Background, 1000)]
    with pytest.MonkeyPatch.context() as patch:
        for step in range(28):
            chosen = draw.integers(0, 90, int(draw.choice([1, 1, 1, 4])))
            change, sign = (("add", 1), ("delete", -1))[int(draw.random() < 0.6)]
            found = []
            for solver, (background, width) in zip(solvers, settings_of, strict=True):
                patch.setattr(stream, "Background", background)
                patch.setattr(stream, "BACKGROUND_WIDTH", width)
                rows = integer_rows(spec, features[chosen], labels[chosen])
                verdict = outcome(partial(getattr(solver, f"{change}_rows"), rows))
                found.append((verdict, outcome(solver.head)))
            assert len(set(found)) == 1
            part = Statistics.of(spec, features[chosen], labels[chosen], lost_columns="accept")
            if not found[0][0]:
                ledger = ledger + part if sign > 0 else ledger - part
            assert found[0][0] in ("", "ImpossibleDeletionError")
            if step % 4 == 0:
                assert found[0][1] == outcome(partial(solve, ledger))
        counted = {solver.factorisations for solver in solvers[:3]}
        assert len(counted) == 1  # folds are finished at the same rows
        assert all(solver.statistics == ledger for solver in solvers)


@each_variant
def test_a_stream_goes_on_while_a_fold_is_under_way(
    variant: type[ExactSolver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither statistics, nor a refusal, nor a head waits for it."""
    features, labels = samples()
    solver, place = in_the_middle(variant, monkeypatch, features, labels)
    kept = statistics_of(features[place:], labels[place:])
    assert solver.head().digest == solve(kept).digest
    assert solver.head().diagnostics.contraction == 0.0
    with pytest.raises(ImpossibleDeletionError):
        solver.delete(50.0 + features[place : place + 1], labels[place : place + 1])
    assert solver.head().digest == solve(kept).digest
    assert solver.statistics == kept
    assert is_waiting()
    gates[-1].set()
    for row in range(place, place + 40):
        solver.delete(features[row : row + 1], labels[row : row + 1])
        kept = statistics_of(features[row + 1 :], labels[row + 1 :])
        assert solver.head().digest == solve(kept).digest
    assert solver.statistics == kept


@each_variant
def test_copies_and_pickles_have_no_thread(
    variant: type[ExactSolver], monkeypatch: pytest.MonkeyPatch
) -> None:
    features, labels = samples()
    solver, place = in_the_middle(variant, monkeypatch, features, labels)
    wanted = solve(statistics_of(features[place:], labels[place:])).digest
    for twin in (copy.deepcopy(solver), copy.copy(solver), pickle.loads(pickle.dumps(solver))):  # noqa: S301
        assert twin.head().digest == wanted
        twin.delete(features[place : place + 1], labels[place : place + 1])
    assert solver.head().digest == wanted


def delete_rest(solver: Any, features: Any, labels: Any, wanted: str) -> None:
    gates[-1].set()  # for folds that begin here
    delete_all(solver, features[:20], labels[:20])
    sys.exit(0 if solver.head().digest == wanted else 1)


@each_variant
def test_a_forked_process_makes_the_fold_itself(
    variant: type[ExactSolver], monkeypatch: pytest.MonkeyPatch
) -> None:
    features, labels = samples()
    solver, place = in_the_middle(variant, monkeypatch, features, labels)
    left = features[place:], labels[place:]
    wanted = solve(statistics_of(left[0][20:], left[1][20:])).digest
    context = multiprocessing.get_context("fork")
    child = context.Process(target=delete_rest, args=(solver, *left, wanted))
    child.start()
    child.join(30)
    assert child.exitcode == 0


def test_a_solver_that_is_dropped_is_not_kept_by_its_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    solver, _ = in_the_middle(WoodburySolver, monkeypatch, *samples())
    alive = weakref.ref(solver)
    del solver
    gc.collect()
    assert alive() is None
    assert is_waiting()


class Failing:
    """Waiting for it fails in this way."""

    failure: type[BaseException] = KeyboardInterrupt

    def __init__(self, _: Callable[[], Any]) -> None:
        pass

    def result(self) -> Any:
        raise self.failure


@each_variant
@pytest.mark.parametrize("failure", [KeyboardInterrupt, MemoryError])
def test_an_interrupt_while_waiting_changes_nothing(
    variant: type[ExactSolver], failure: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change was not made; the solver goes on without what it had cached."""
    features, labels = samples()
    solver = streaming(variant, features, labels)
    monkeypatch.setattr(Failing, "failure", failure)
    monkeypatch.setattr(stream, "Background", Failing)
    with pytest.raises(failure):
        delete_all(solver, features, labels)
    place = COUNT - solver.count
    monkeypatch.setattr(stream, "Background", Background)
    kept = statistics_of(features[place:], labels[place:])
    assert solver.head().digest == solve(kept).digest
    assert solver.statistics == kept
    delete_all(solver, features[place : place + 20], labels[place : place + 20])
    rest = statistics_of(features[place + 20 :], labels[place + 20 :])
    assert solver.head().digest == solve(rest).digest


def test_a_process_ends_with_a_fold_under_way() -> None:
    program = (
        "import threading, numpy as np, expunge\n"
        "from expunge.solvers import stream\n"
        "stream.BACKGROUND_WIDTH = 1\n"
        "draw = np.random.default_rng(0)\n"
        "features, labels = draw.standard_normal((90, 60)), np.arange(90) % 2\n"
        "spec = expunge.Spec(dim=60, labels=(0, 1))\n"
        "solver = expunge.CholeskySolver(spec, expunge.Statistics.of(spec, features, labels))\n"
        "class Slow(stream.Background):\n"
        "    def __init__(self, work):\n"
        "        super().__init__(lambda: (threading.Event().wait(0.5), work()))\n"
        "stream.Background = Slow\n"
        "solver.head()\n"
        "place = 0\n"
        "while threading.active_count() == 1:\n"
        "    solver.delete(features[place:place + 1], labels[place:place + 1])\n"
        "    solver.head()\n"
        "    place += 1\n"
        "print('ends')\n"
    )
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ends\n", "")


@settings(max_examples=20)
@given(
    seed=st.integers(0, 2**32 - 1),
    panels=st.booleans(),
    settled=st.booleans(),
    most=st.sampled_from([1, 5, 32, 40]),
)
def test_lent_sums_are_the_same_sums(seed: int, *, panels: bool, settled: bool, most: int) -> None:
    """Whatever is added between `lend` and `take`, and whether they were settled meanwhile."""
    draw = np.random.default_rng(seed)
    spec = Spec(dim=5, labels=("a", "b"))

    def rows() -> Any:
        count = int(draw.integers(1, most + 1))
        scale = float(draw.choice([1e-5, 1.0, 20.0]))
        features = scale * draw.standard_normal((count, 5)).clip(-3, 3)
        return integer_rows(spec, features, draw.integers(0, 2, count))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sums_module, "PANEL_WIDTH", 1 if panels else 2048)
        sums = Sums(spec)
    plain = Sums(spec)

    def change() -> None:
        for _ in range(int(draw.integers(0, 10))):
            block, sign = rows(), int(draw.choice([1, -1]))
            sums.change(block, sign)
            plain.change(block, sign)

    for _ in range(4):
        change()
        lent = sums.lend()
        before = lent.gram.copy(), lent.settled()
        change()
        if settled and draw.integers(2):
            sums.settle()
        assert np.array_equal(lent.gram, before[0])
        assert np.array_equal(lent.settled(), before[1])
        sums.take(lent, lent.settled())
    sums.settle()
    plain.settle()
    assert np.array_equal(sums.gram, plain.gram)
    assert np.array_equal(sums.moment, plain.moment)


@each_variant
def test_a_bound_that_was_raised_ahead_is_true(variant: type[ExactSolver]) -> None:
    """Deletions wear the bound on the smallest eigenvalue, and folds raise it again."""
    features, labels = samples(5)
    solver = streaming(variant, features, labels)
    raised, before = 0, 0.0
    for place in range(COUNT - 1, COUNT - 101, -1):
        solver.delete(features[place : place + 1], labels[place : place + 1])
        condition = solver.head().diagnostics.condition
        rows = np.concatenate([features[:place], np.ones((place, 1))], axis=1)
        system = rows.T @ rows + SPEC.gamma * np.eye(SPEC.width)
        floor = float(np.trace(system)) / condition
        assert floor <= float(np.linalg.eigvalsh(system)[0]) * (1 + 1e-9)
        raised += before > 0.0 and floor > before * (1 + 1e-9)
        before = floor
    assert raised
