"""compress: a batch of samples as an approximate message, by any of the methods, with its error proven."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.approximation.batch import Batch
from expunge.approximation.lowrank import randomized, truncated
from expunge.approximation.message import PRECISIONS, ApproximateMessage
from expunge.approximation.proof import UNIT, residual_enclosure
from expunge.approximation.sketches import frequent_directions, gaussian, sparse_sign
from expunge.errors import InputError
from expunge.exact import blas

Float = NDArray[np.float64]
Method = Callable[[Float, int, np.random.Generator], Float]

METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "truncated": truncated,
        "randomized": randomized,
        "frequent_directions": frequent_directions,
        "gaussian": gaussian,
        "sparse_sign": sparse_sign,
    }
)


def compress(batch: Batch, method: str, rank: int, *, seed: int = 0, precision: str = "float32") -> ApproximateMessage:
    """The message of a batch at this rank; equal arguments give equal messages.

    `seed` matters to the methods that draw. The factor is rounded to `precision` first, and its error is proven afterwards, so
    the rounding is inside the bound. A batch with fewer samples than `rank` gets a factor with as many rows as it needs.
    """
    if method not in METHODS:
        raise InputError(f"{method!r} is no method; there are {', '.join(METHODS)}")
    if isinstance(rank, bool) or not isinstance(rank, (int, np.integer)) or rank < 1:
        raise InputError(f"a rank is a whole number from 1, not {rank!r}")
    if precision not in PRECISIONS:
        raise InputError(f"a factor is sent as {' or '.join(PRECISIONS)}, not as {precision!r}")
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise InputError(f"a seed is a whole number from 0, not {seed!r}")
    rows = batch.features
    draw = np.random.default_rng([int(seed), len(rows), int(rank)])
    exact = METHODS[method](rows, int(rank), draw) if len(rows) else np.zeros((0, rows.shape[1]))
    with np.errstate(over="ignore"):  # what overflows is refused just below
        factor: NDArray[Any] = np.ascontiguousarray(exact.astype(precision))
    if not np.isfinite(factor).all():
        raise InputError("the factor of this batch is too large for float32: choose precision='float64'")
    sent = factor.astype(np.float64)
    rounding = 2.0 * float(np.finfo(factor.dtype).eps) * float(np.square(sent).sum())
    error = residual_enclosure(rows, sent, rounding)
    moment = blas.multiply_transposed(np.ascontiguousarray(rows), np.ascontiguousarray(batch.targets))
    lengths = blas.norm(rows) * blas.norm(batch.targets)
    moment_error = (len(rows) + 2) * UNIT * lengths * 1.25
    return ApproximateMessage(batch.spec, method, factor, moment, len(rows), batch.class_counts.copy(), error, moment_error)
