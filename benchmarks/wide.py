"""Wide heads: single deletions, each with a certified head, on thousands of random features, against
scipy's Cholesky solve of the same system; one BLAS thread on every side.

`python -m benchmarks.wide 4096 B 100` measures one width and variant, in a process of its own, so
that peak memory means something.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

import expunge
from benchmarks.data import Data, load
from benchmarks.measure import Row, progress, seconds
from expunge.exact.threads import one_blas_thread
from expunge.solvers.base import ExactSolver
from expunge.solvers.system import KEPT_WIDTH

_LABELS = tuple(range(10))
_SAMPLES = 10_000
_FEW = 4  # deletions before anything is measured: a stream begins after some
_TURNS = 5  # solves by scipy
# Width, variant, deletions. Beyond KEPT_WIDTH there are no streams: a few heads tell
_CASES = ((4096, "A", 150), (4096, "B", 150), (8192, "A", 5))


@dataclass(frozen=True)
class Figures:
    """What one process measured: seconds, the share of heads that a stream left undecided, MiB."""

    load: float
    gram: float
    median: float
    slow: float
    scipy: float
    undecided: float
    peak: float
    ledger: float


def random_features(data: Data, width: int) -> NDArray[np.float32]:
    """cos(x'w + b) for random w and b: random Fourier features of the real ones."""
    draw = np.random.default_rng(0)
    rows = data.features[:_SAMPLES] - data.features[:_SAMPLES].mean(axis=0)
    rows /= np.linalg.norm(rows, axis=1).mean()
    waves = draw.standard_normal((rows.shape[1], width), dtype=np.float32)
    shifts = draw.uniform(0.0, 2.0 * np.pi, width).astype(np.float32)
    features: NDArray[np.float32] = np.cos(rows @ waves + shifts)
    return features


def measured(width: int, name: str, count: int) -> Figures:
    """Load and delete one by one; afterwards, with the peak noted, what float64 does."""
    data = load()
    features, labels = random_features(data, width - 1), data.labels[:_SAMPLES]
    spec = expunge.Spec(dim=width - 1, labels=_LABELS)
    start = time.perf_counter()
    ledger = expunge.Statistics.of(spec, features, labels)
    load_seconds = time.perf_counter() - start
    size = sum(part.nbytes for part in (ledger.gram, ledger.moment, ledger.label_gram))
    solver = {"A": expunge.CholeskySolver, "B": expunge.WoodburySolver}[name](spec, ledger)
    del ledger
    times, undecided = _deletions(solver, features, labels, count)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    rows = np.concatenate([features.astype(np.float64), np.ones((_SAMPLES, 1))], axis=1)
    return Figures(
        load=load_seconds,
        gram=seconds(partial(np.matmul, rows.T, rows)),
        median=statistics.median(times),
        slow=sorted(times)[int(0.99 * count)],
        scipy=_solve_seconds(solver.statistics),
        undecided=undecided / count,
        peak=peak,
        ledger=size / 2**20,
    )


def _deletions(
    solver: ExactSolver, features: NDArray[np.float32], labels: NDArray[np.int64], count: int
) -> tuple[list[float], int]:
    """The seconds of so many deletions with a head each, and how many of these took a step of
    refinement.
    """
    heads = [solver.head()]

    def delete(place: int) -> None:
        solver.delete(features[place : place + 1], labels[place : place + 1])
        heads[:] = [solver.head()]

    for place in range(_FEW):
        delete(place)
    times, undecided = [], 0
    for place in range(_FEW, _FEW + count):
        times.append(seconds(partial(delete, place)))
        diagnostics = heads[0].diagnostics
        undecided += diagnostics is not None and diagnostics.refinement_steps > 0
    return times, undecided


def _solve_seconds(ledger: expunge.Statistics) -> float:
    """What scipy takes for the same system."""
    gram, moment = ledger.gram_float(), ledger.moment_float()

    def cholesky() -> object:
        shifted = gram.copy()
        shifted.flat[:: len(gram) + 1] += 1.0
        return linalg.cho_solve(linalg.cho_factor(shifted, overwrite_a=True), moment)

    return statistics.median(seconds(cholesky) for _ in range(_TURNS))


def _in_its_own_process(width: int, name: str, count: int) -> Figures:
    command = [sys.executable, "-m", "benchmarks.wide", str(width), name, str(count)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - ours
    return Figures(**json.loads(done.stdout))


def _rows(width: int, name: str, count: int, figures: Figures) -> list[Row]:
    what = f"one deletion and certified head ({name}), d = {width:,}"
    scipy = ("scipy cho_factor + cho_solve", 1e3 * figures.scipy)

    def informative(what: str, against: str, ours: float, theirs: float, unit: str) -> Row:
        return Row(what, against, ours, theirs, "(for information)", holds=True, unit=unit)

    return [
        Row(
            what,
            scipy[0],
            1e3 * figures.median,
            scipy[1],
            "at least 2x faster",
            holds=figures.scipy >= 2.0 * figures.median,
            faster=True,
        ),
        informative(
            f"the slowest of a hundred, of {count}",
            "the median of them",
            1e3 * figures.slow,
            1e3 * figures.median,
            "ms",
        ),
        informative(
            f"loading {_SAMPLES:,} samples",
            "numpy float64 Gram",
            figures.load,
            figures.gram,
            "s",
        ),
        informative("peak memory", "the ledger itself", figures.peak, figures.ledger, "MiB"),
    ]


def report(_: Data) -> tuple[str, list[Row]]:
    """What `make bench` prints."""
    rows: list[Row] = []
    undecided = []
    for width, name, count in _CASES:
        progress(f"wide heads, {width:,} ({name})")
        figures = _in_its_own_process(width, name, count)
        rows += _rows(width, name, count, figures)
        if width <= KEPT_WIDTH:
            undecided.append(f"{figures.undecided:.0%} of {count} ({name})")
    text = (
        "`python -m benchmarks wide`: random Fourier features cos(x'w + b) of the same features, "
        f"unscaled, gamma = 1, {_SAMPLES:,} samples, ten classes; one BLAS thread on every side, a "
        "process for each width and variant, and peak memory that of the process with its data; "
        "scipy comes last in it, not in turns, so that the peak is ours alone. "
        f"Up to {KEPT_WIDTH:,} features, heads of single changes are moved row by row; the moves left "
        f"undecided {', '.join(undecided)}. Beyond, every head is refined, which needs less memory."
    )
    return f"## Wide heads\n\n{text}\n", rows


if __name__ == "__main__":
    with one_blas_thread():
        json.dump(asdict(measured(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))), sys.stdout)
