"""Exact statistics against numpy's float64 Gram, and changes that arrive as statistics against
float64 Variant A with the same message; one core and one BLAS thread on every side.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import cycle

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

import expunge
from benchmarks.data import Data
from benchmarks.measure import Row, at_most, in_turns, progress
from expunge.exact.threads import one_blas_thread

Float = NDArray[np.float64]

_LABELS = tuple(range(10))
_DIM = 1280
_MESSAGES = 24
_WARM = 4  # changes before anything is measured: single ones are followed from the third on


@contextmanager
def one_core() -> Iterator[None]:
    """Keep to one core and one BLAS thread, with the threads that are started meanwhile."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        with one_blas_thread():
            yield
    finally:
        os.sched_setaffinity(0, cores)


def statistics(data: Data) -> Iterator[Row]:
    """Exact statistics against numpy's float64 Gram of the same rows (and the moment of one
    output).
    """
    for count, width, limits in ((50_000, 1281, (1.3, 3.5)), (15_000, 768, (1.5, 3.9))):
        rows = np.concatenate(
            [data.features[:count, : width - 1].astype(np.float64), np.ones((count, 1))], axis=1
        )
        target = data.labels[:count].astype(np.float64)
        for digits, bits, limit in ((1, 16, limits[0]), (2, 35, limits[1])):
            spec = expunge.Spec(
                dim=width, outputs=1, intercept=False, grid=expunge.Grid(digits, bits)
            )
            progress(f"exact statistics, {digits} digit(s), {count:,} x {width:,}, one core")
            yield at_most(
                f"exact statistics, {digits} digit{'s' * (digits - 1)}, {count:,} x {width:,}",
                "numpy float64 Gram",
                limit,
                in_turns(
                    partial(expunge.Statistics.of, spec, rows, target),
                    partial(_float_statistics, rows, target),
                    7,
                ),
            )


def _float_statistics(rows: Float, target: Float) -> object:
    return rows.T @ rows, rows.T @ target


def _groups(data: Data, kind: str, size: int) -> list[NDArray[np.int64]]:
    """Samples for each message: of different classes, or as they come."""
    if kind != "different":
        return [np.arange(size) + size * number for number in range(_MESSAGES)]
    by_class = [np.flatnonzero(data.labels == label) for label in range(size)]
    return [np.array([places[number] for places in by_class]) for number in range(_MESSAGES)]


def messages(data: Data) -> Iterator[Row]:
    """Deletions by statistics, each with a certified head, at 50,000 x 1,281 with ten classes."""
    spec = expunge.Spec(dim=_DIM, labels=_LABELS)
    progress("the ledger of all samples")
    ledger = expunge.Statistics.of(spec, data.features, data.labels)
    for what, kind, size, limit in (
        ("one sample", "single", 1, 3.0),
        ("five samples of different classes", "different", 5, 3.0),
        ("16 samples", "any", 16, 3.0),
        ("100 samples", "any", 100, None),
    ):
        parts = [
            expunge.Statistics.of(spec, data.features[group], data.labels[group])
            for group in _groups(data, kind, size)
        ]
        for variant, name in ((expunge.CholeskySolver, "A"), (expunge.WoodburySolver, "B")):
            progress(f"gram messages of {what} ({name})")
            delete = partial(next, _deletions(variant(spec, ledger), parts))
            for _ in range(_WARM):
                delete()
            theirs = partial(next, _float_deletions(ledger, parts))
            row = at_most(
                f"gram message of {what} deleted, certified head ({name}), 50,000 x 1,281",
                "float64 Variant A: subtract, cho_factor, cho_solve",
                limit or 3.0,
                in_turns(delete, theirs, 6, 3),
            )
            yield row if limit else _informative(row)


def _informative(row: Row) -> Row:
    return Row(row.what, row.against, row.ours, row.theirs, "(for information)", holds=True)


def _deletions(
    solver: expunge.CholeskySolver | expunge.WoodburySolver, parts: list[expunge.Statistics]
) -> Iterator[expunge.Head]:
    solver.head()
    for part in parts:
        solver.delete_statistics(part)
        yield solver.head()


def _float_deletions(
    ledger: expunge.Statistics, parts: list[expunge.Statistics]
) -> Iterator[object]:
    gram, moment = ledger.gram_float(), ledger.moment_float()
    floats = [(part.gram_float(), part.moment_float()) for part in parts]
    for part_gram, part_moment in cycle(floats):
        gram -= part_gram
        moment -= part_moment
        shifted = gram.copy()
        shifted.flat[:: len(gram) + 1] += 1.0
        yield linalg.cho_solve(linalg.cho_factor(shifted, overwrite_a=True), moment)


def report(data: Data) -> tuple[str, list[Row]]:
    """What `make bench` prints."""
    with one_core():
        rows = [*statistics(data), *messages(data)]
    text = (
        "`python -m benchmarks grams`: one core and one BLAS thread on every side. A gram message "
        "holds S and G of the samples to be deleted; the float64 side subtracts the same matrices "
        "and solves once, without any guarantee."
    )
    return f"## Statistics and gram messages\n\n{text}\n", rows
