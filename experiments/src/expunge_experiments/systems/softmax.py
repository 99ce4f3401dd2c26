"""Softmax regression by stochastic gradient descent, as fast as BLAS allows: the clients' work in every gradient system.

A head is (dim + 1, classes) in float32 and its last row the intercept, so features come with their constant column
(`with_constant`). Laws: `descend` is a function of its arguments, bit for bit on one machine, and changes none of them;
scores that differ by a constant in all classes give the same step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas

from expunge.errors import InputError
from expunge.exact.parallel import one_blas_thread
from expunge_experiments.letter import Array

Float32 = NDArray[np.float32]

_ROWS = 64  # rows looked at together: 64 x 1281 float32 stay in the cache between the two products that read them
_NOTHING = np.float32(1e-30)  # shares below count as 0: on subnormal numbers products would take many times as long


def with_constant(features: Array) -> Float32:
    """Features (n, dim) in float32 with a last column of ones, contiguous."""
    rows = np.empty((len(features), features.shape[1] + 1), dtype=np.float32)
    rows[:, :-1] = features
    rows[:, -1] = 1.0
    return rows


def zero_head(dim: int, classes: int) -> Float32:
    """The head that knows nothing: where training starts, and what an emptied federation has."""
    return np.zeros((dim + 1, classes), dtype=np.float32)


def predicted(weights: Array, features: Array) -> NDArray[np.int64]:
    """The class of the highest score for each row of features without the constant column; the first, where two are equal."""
    scores = np.asarray(features, dtype=np.float32) @ weights[:-1] + weights[-1]
    best: NDArray[np.int64] = np.argmax(scores, axis=1).astype(np.int64)
    return best


def descend(
    weights: Array, features: Float32, labels: Array, *, epochs: int, batch: int, rate: float, draw: np.random.Generator
) -> Float32:
    """The head after `epochs` passes of minibatch SGD on the mean cross-entropy, from `weights`.

    Each pass goes through the rows in a fresh order that `draw` makes, `batch` at a time (the last batch may be smaller). With
    `batch` below 1, or not below the number of rows, a pass is one step on all rows and draws nothing.
    """
    whole = batch <= 0 or batch >= len(labels)
    batches = repeat(None, epochs) if whole else cut(len(labels), epochs=epochs, batch=batch, draw=draw)
    return follow(weights, features, labels, batches, rate)


def cut(count: int, *, epochs: int, batch: int, draw: np.random.Generator) -> Iterator[Array]:
    """The batches of some passes over `count` places: each pass in a fresh order, `batch` places at a time (0: all of them)."""
    for _ in range(epochs):
        order = draw.permutation(count)
        yield from (order[start : start + batch] for start in range(0, count, batch)) if batch > 0 else (order,)


def follow(weights: Array, features: Float32, labels: Array, batches: Iterable[Array | None], rate: float) -> Float32:
    """The head after one step of SGD on the mean cross-entropy of each batch of rows in turn (None: of all rows).

    A batch without rows is passed over.
    """
    if features.ndim != 2 or features.shape[1] != len(weights) or labels.shape != (len(features),):
        raise InputError(
            f"a head of {len(weights)} rows cannot learn from features of shape {features.shape} with {len(labels)} labels: "
            "give features with their constant column, and one label for each row"
        )
    turned = np.array(weights.T, dtype=np.float32, order="C")  # (classes, dim + 1): products along the long side are fast
    gathered = np.empty((min(_ROWS, len(labels)), features.shape[1]), dtype=np.float32)
    with one_blas_thread():
        for rows in batches:
            if len(labels if rows is None else rows):
                _step(turned, features, labels, rows, rate=rate, gathered=gathered)
    return np.ascontiguousarray(turned.T)


def _step(turned: Float32, features: Float32, labels: Array, rows: Array | None, *, rate: float, gathered: Float32) -> None:
    """One step on these rows (on all of them: None), in place. `gathered` is room for a few rows."""
    count = len(labels) if rows is None else len(rows)
    few = count <= _ROWS
    change = turned if few else np.zeros_like(turned)
    for start in range(0, count, _ROWS):
        if rows is None:
            part, wanted = features[start : start + _ROWS], labels[start : start + _ROWS]
        else:
            chosen = rows[start : start + _ROWS]
            part = np.take(features, chosen, axis=0, out=gathered[: len(chosen)], mode="clip")  # "raise" would copy twice
            wanted = labels[chosen]
        scores = blas.sgemm(1.0, part.T, turned.T, trans_a=1).T
        scores -= scores.max(axis=0)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=0)
        scores *= scores > _NOTHING
        scores[wanted, np.arange(len(wanted))] -= 1.0
        blas.sgemm(-rate / count, part.T, scores.T, beta=1.0, c=change.T, overwrite_c=1)
    if not few:
        turned += change
