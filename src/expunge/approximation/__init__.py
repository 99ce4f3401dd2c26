"""Communication-efficient updates: Gram messages of low rank, each with a proven bound, and a ledger that adds the bounds up.

A ledger of this room is a type of its own. It holds no exact S, so it has no digest, and no certificate can be of its heads.
"""

from expunge.approximation.approximate import ApproximateHead
from expunge.approximation.batch import Batch
from expunge.approximation.bounds import Bounds
from expunge.approximation.compress import METHODS, compress
from expunge.approximation.interval import Interval
from expunge.approximation.ledger import ApproximateLedger, Traffic
from expunge.approximation.message import ApproximateMessage
from expunge.approximation.rank import allowed_error, rank_for
from expunge.approximation.sketches import FrequentDirections

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
