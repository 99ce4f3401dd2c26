"""Communication-efficient updates: Gram messages of low rank, each with a proven bound, and a
ledger that adds the bounds up.

A ledger of this package is a type of its own. It holds no exact S, so it has no digest, and no
certificate can be of its heads. `METHODS` has, for each method's name, the function that makes a
factor of it from rows, a rank and a random generator.
"""

from expunge._lazy import public_dir
from expunge.approximate.bounds import Bounds, Interval
from expunge.approximate.ledger import ApproximateHead, ApproximateLedger, Traffic
from expunge.approximate.lowrank import (
    METHODS,
    FrequentDirections,
    allowed_error,
    compress,
    rank_for,
)
from expunge.approximate.message import ApproximateMessage, Batch

__all__ = [
    "METHODS",
    "ApproximateHead",
    "ApproximateLedger",
    "ApproximateMessage",
    "Batch",
    "Bounds",
    "FrequentDirections",
    "Interval",
    "Traffic",
    "allowed_error",
    "compress",
    "rank_for",
]
__dir__ = public_dir(__name__)
