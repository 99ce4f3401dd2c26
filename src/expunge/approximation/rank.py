"""rank_for: the smallest rank that keeps an error within what is wanted."""

from __future__ import annotations

import math

import numpy as np

from expunge.approximation.batch import Batch
from expunge.approximation.compress import compress
from expunge.approximation.message import ApproximateMessage
from expunge.errors import InputError


def allowed_error(deviation: float, gamma: float, norm: float, *, sign: int = 1) -> float:
    """How large a message's error may be for one update of an exact ledger to keep the head within `deviation`.

    `norm` is the norm of the current weights (spectral or Frobenius, as is the deviation's). For an addition (sign 1) whose
    error lies between 0 and eps, the head moves by at most eps / sqrt(gamma (gamma + eps)) * norm; for a deletion by eps / gamma
    * norm. The head after the update has a norm of its own, so this is a choice made beforehand: the ledger says what holds.
    """
    if not all(math.isfinite(value) and value > 0.0 for value in (deviation, gamma, norm)):
        raise InputError(f"deviation, gamma and norm must be positive, not {deviation}, {gamma} and {norm}")
    share = deviation / norm
    if sign < 0:
        return gamma * share
    return gamma * share * (share + math.sqrt(share * share + 4.0)) / 2.0


def rank_for(batch: Batch, method: str, wanted: float, *, seed: int = 0, precision: str = "float32") -> ApproximateMessage:
    """The message of the smallest rank whose proven error is at most `wanted`; see `allowed_error` for a wanted head.

    The rank is found by bisection, so it is the smallest where more rows never make a method worse: truncation (up to the
    hundredth part by which proofs are loose), and in practice the others but the random projections.
    """
    if not (math.isfinite(wanted) and wanted > 0.0):
        raise InputError(f"the wanted error must be positive, not {wanted}")
    most = max(1, min(batch.features.shape))
    best = compress(batch, method, most, seed=seed, precision=precision)
    if best.error.norm > wanted:
        coarse = precision == "float32" and best.error.norm <= 2.0**-20 * float(np.square(batch.features).sum())
        raise InputError(
            f"no rank up to {most} brings the error of {method} to {wanted:g}: at {most} it is {best.error.norm:g}. "
            + (
                "That is the rounding of float32: choose precision='float64'"
                if coarse
                else "Ask for less, or send exact statistics"
            )
        )
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        message = compress(batch, method, middle, seed=seed, precision=precision)
        if message.error.norm <= wanted:
            best, high = message, middle
        else:
            low = middle
    return best
