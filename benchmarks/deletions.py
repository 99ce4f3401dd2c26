"""A stream of single deletions, each with a certified head, against what float64 would do instead;
one BLAS thread on every side.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy import linalg
from sklearn.linear_model import Ridge

import expunge
from benchmarks.data import Data
from benchmarks.measure import Row, at_least, at_most, in_turns, progress, seconds
from expunge.exact.threads import one_blas_thread
from expunge.solvers.float64 import FloatWoodburySolver

Float = NDArray[np.float64]
Solver = expunge.CholeskySolver | expunge.WoodburySolver | FloatWoodburySolver

_LABELS = tuple(range(10))
_DIM = 1280
_LONG = 2000  # deletions, for the slowest ones; folds and undecided heads are among them
_FEW = 16  # deletions before anything is measured: a stream begins after some


def stream(solver: Solver, data: Data) -> Iterator[object]:
    """Delete one sample after another, with a head each."""
    for index in range(len(data.features)):
        solver.delete(data.features[index : index + 1], data.labels[index : index + 1])
        yield solver.weights if isinstance(solver, FloatWoodburySolver) else solver.head()


def deletions(data: Data) -> Iterator[Row]:
    """The claims about single deletions at 50,000 x 1,281 with ten classes."""
    spec = expunge.Spec(dim=_DIM, labels=_LABELS)
    ledger = expunge.Statistics.of(spec, data.features, data.labels)
    rows = np.concatenate(
        [data.features.astype(np.float64), np.ones((len(data.features), 1))], axis=1
    )
    targets = np.eye(len(_LABELS))[data.labels]
    gram, moment = ledger.gram_float(), ledger.moment_float()
    floats = FloatWoodburySolver(spec)
    progress("float64 Variant B of the same samples")
    floats.add(data.features, data.labels)

    def cholesky() -> object:
        shifted = gram.copy()
        shifted.flat[:: _DIM + 2] += 1.0
        return linalg.cho_solve(linalg.cho_factor(shifted, overwrite_a=True), moment)

    def refit() -> object:
        return Ridge(alpha=1.0, solver="cholesky", fit_intercept=False).fit(rows, targets)

    update = partial(next, stream(floats, data))
    for variant, name in ((expunge.WoodburySolver, "B"), (expunge.CholeskySolver, "A")):
        solver = variant(spec, ledger)
        solver.head()
        delete = partial(next, stream(solver, data))
        for _ in range(_FEW):
            delete()
        what = f"one deletion and certified head ({name}), 50,000 x 1,281"
        progress(f"single deletions ({name})")
        yield at_least(what, "scipy cho_factor + cho_solve", 3.0, in_turns(delete, cholesky, 9, 7))
        yield at_most(what, "float64 Variant B", 20.0, in_turns(delete, update, 9, 7))
        yield at_least(
            what,
            'Ridge(solver="cholesky") refit, float64',
            300.0,
            in_turns(delete, refit, 5, (9, 1)),
        )
        if name == "B":
            progress(f"{_LONG} deletions in a row")
            times = sorted(1e3 * seconds(delete) for _ in range(_LONG))
            median, slow = statistics.median(times), times[int(0.99 * _LONG)]
            yield at_most(
                f"the slowest of a hundred, of {_LONG:,} deletions in a row",
                "the median of them",
                4.0,
                (slow, median),
            )
            yield Row(
                "the slowest of all of them",
                "the same",
                times[-1],
                median,
                "(for information)",
                holds=True,
            )


def report(data: Data) -> tuple[str, list[Row]]:
    """What `make bench` prints."""
    with one_blas_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = list(deletions(data))
    text = (
        "One BLAS thread on every side. The float64 sides compute the same head without any "
        "guarantee; float64 Variant B is a rank-one update of inverse and weights."
    )
    return f"## Single deletions\n\n{text}\n", rows
