"""`make bench`: every speed claim, in a table and in docs/benchmarks.md; `python -m benchmarks
service` measures a part.
"""

from __future__ import annotations

import os
import platform
import sys
import tracemalloc
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy import linalg

import expunge
from benchmarks import (
    aggregation,
    carriers,
    deletions,
    disputes,
    flower,
    grams,
    growth,
    service,
    startup,
    streams,
    systems,
    tree,
    wide,
)
from benchmarks.data import Data, load
from benchmarks.measure import Row, at_least, at_most, in_turns, progress, table, wrapped
from expunge.solvers.float64 import FloatWoodburySolver

Float = NDArray[np.float64]

_LABELS = tuple(range(10))
_PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"


def augmented(features: NDArray[np.float32], dim: int) -> Float:
    """The first `dim` features and a constant one, in float64."""
    return np.concatenate(
        [features[:, :dim].astype(np.float64), np.ones((len(features), 1))], axis=1
    )


def widened(data: Data, dim: int) -> NDArray[np.float32]:
    """`dim` features: the real ones, and products of them where more are asked for."""
    if dim <= data.features.shape[1]:
        return np.ascontiguousarray(data.features[:, :dim])
    more = dim - data.features.shape[1]
    return np.concatenate(
        [data.features, data.features[:, :more] * data.features[:, 1 : more + 1]], axis=1
    )


def heads(data: Data) -> Iterator[Row]:
    """A certified head against scipy's Cholesky solve, cold and with little changed."""
    dim = 767
    features = np.ascontiguousarray(data.features[:, :dim])
    spec = expunge.Spec(dim=dim, labels=_LABELS)
    statistics = expunge.Statistics.of(spec, features, data.labels)
    gram, moment = statistics.gram_float(), statistics.moment_float()

    def theirs() -> object:
        shifted = gram.copy()
        shifted.flat[:: dim + 2] += 1.0
        return linalg.cho_solve(linalg.cho_factor(shifted, overwrite_a=True), moment)

    progress("certified heads, width 768")
    yield at_most(
        "certified head, cold, d = 768, c = 10",
        "scipy cho_factor + cho_solve",
        4.0,
        in_turns(lambda: expunge.solve(statistics), theirs, 7, 7),
    )

    solver = expunge.CholeskySolver(spec, statistics)
    solver.head()

    def other_gamma() -> None:
        solver.amend(solver.spec.with_gamma(solver.spec.gamma * 1.01))
        solver.head()

    yield at_most(
        "certified head after a change of gamma (A)",
        "the same",
        2.0,
        in_turns(other_gamma, theirs, 7, 7),
    )
    for variant in (expunge.CholeskySolver, expunge.WoodburySolver):
        stream = _stream(variant(spec, statistics), features, data.labels)
        name = (
            f"one deletion and certified head ({'A' if variant is expunge.CholeskySolver else 'B'})"
        )
        yield at_most(name, "the same", 2.0, in_turns(partial(next, stream), theirs, 7, 7))


def _stream(
    solver: expunge.CholeskySolver | expunge.WoodburySolver,
    features: NDArray[np.float32],
    labels: NDArray[np.int64],
) -> Iterator[expunge.Head]:
    """Delete one sample after another, with a certified head each."""
    solver.head()
    for index in range(len(features)):
        solver.delete(features[index : index + 1], labels[index : index + 1])
        yield solver.head()


def float_woodbury(data: Data) -> Iterator[Row]:
    """Float Variant B, one row at a time, against its formula in plain numpy."""
    dim = 767
    features = np.ascontiguousarray(data.features[:, :dim])
    spec = expunge.Spec(dim=dim, labels=_LABELS)
    solver = FloatWoodburySolver(spec)
    solver.add(features[:5000], data.labels[:5000])
    rows = augmented(features[:5000], dim)
    inverse = np.linalg.inv(rows.T @ rows + np.eye(dim + 1))
    weights = np.array(solver.weights)
    order = iter(range(5000))

    def ours() -> None:
        index = next(order)
        solver.delete(features[index : index + 1], data.labels[index : index + 1])

    def theirs() -> object:
        row, label = rows[:1], np.eye(10)[data.labels[:1]]
        small = np.linalg.inv(np.eye(1) - row @ inverse @ row.T)
        after = inverse + inverse @ row.T @ small @ row @ inverse
        return after, weights + after @ row.T @ (row @ weights) - after @ (row.T @ label)

    progress("float Variant B, rank 1")
    yield at_least(
        "float64 Variant B, delete one row, d = 768",
        "the formula in numpy",
        20.0,
        in_turns(ours, theirs, 7, 9),
    )


def variants(data: Data) -> Iterator[Row]:
    """Certified Variant B against cold certified Variant A."""
    for dim in (1023, 1280, 2047):
        progress(f"certified B against cold A, width {dim + 1}")
        features = widened(data, dim)
        spec = expunge.Spec(dim=dim, labels=_LABELS)
        statistics = expunge.Statistics.of(spec, features, data.labels)
        stream = _stream(expunge.WoodburySolver(spec, statistics), features, data.labels)
        timings = in_turns(partial(next, stream), partial(expunge.solve, statistics), 5, 5)
        yield at_least(
            f"one deletion and certified head (B), d = {dim + 1}",
            "certified solve (A), cold",
            2.0,
            timings,
        )


def memory(data: Data) -> Iterator[Row]:
    """The peak memory of a solve against what the ledger itself takes."""
    for dim in (767, 1280):
        progress(f"peak memory of a solve, width {dim + 1}")
        spec = expunge.Spec(dim=dim, labels=_LABELS)
        statistics = expunge.Statistics.of(spec, data.features[:5000, :dim], data.labels[:5000])
        ledger = sum(
            array.nbytes for array in (statistics.gram, statistics.moment, statistics.label_gram)
        )
        tracemalloc.start()
        expunge.solve(statistics)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        yield Row(
            f"peak memory of a certified solve, d = {dim + 1}",
            "the ledger itself",
            peak / 2**20,
            ledger / 2**20,
            "(for information)",
            holds=True,
            unit="MiB",
        )


def core(data: Data) -> tuple[str, list[Row]]:
    """Statistics, heads and deletions in one process."""
    rows: list[Row] = []
    for group in (heads, float_woodbury, variants, memory):
        rows += group(data)
    return "", rows


PARTS = {
    "core": core,
    "grams": grams.report,
    "deletions": deletions.report,
    "wide": wide.report,
    "streams": streams.report,
    "service": service.report,
    "growth": growth.report,
    "aggregation": aggregation.report,
    "disputes": disputes.report,
    "tree": tree.report,
    "carriers": carriers.report,
    "flower": flower.report,
    "systems": systems.report,
    "startup": startup.report,
}


def main() -> int:
    """Measure everything (or the parts named), print and keep the tables; exits with 1 if a figure
    is missed.
    """
    wanted = sys.argv[1:] or list(PARTS)
    data = load()
    sections, rows = [], []
    for name in wanted:
        text, found = PARTS[name](data)
        sections.append("\n".join([*([text] if text else []), *([table(found)] if found else [])]))
        rows += found
    body = "\n".join(sections)
    page = (
        "# Benchmarks\n\n"
        "Made by `make bench`: medians, both sides in turns in one run, so that only the ratios "
        "mean something.\n\n"
        f"- Features: {data.source}.\n"
        f"- Machine: {platform.machine()}, {os.cpu_count()} cores; Python "
        f"{platform.python_version()}, numpy {np.__version__}, "
        f"scipy {scipy.__version__}.\n\n{body}"
    )
    if data.real and wanted == list(
        PARTS
    ):  # a whole page of figures on real features is not overwritten by others
        _PAGE.write_text(wrapped(page), encoding="utf-8")
    sys.stdout.write(page)
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
