"""What a refusal says about a request that may have been offered before.

A refusal says that this attempt changed nothing. Whether an earlier one did, whose answer was lost, it says only if it was given
after the number of the request was looked up: an applied request would have been answered by its receipt.
"""

from __future__ import annotations

PASSING = ("storage", "too-many")  # later
OUT_OF_STEP = ("sequence-gap", "sequence-reused")
KEPT = ("unknown-actor", "bad-signature", "wrong-federation", "gone", *OUT_OF_STEP)  # nothing in the request could be mended
JUDGED = (  # given only after the number was looked up
    *("wrong-counts", "not-live", "already-live", "not-opened", "impossible"),
    *("unknown-order", "unknown-audit", "must-rejoin"),
)
BY_SPEC = ("wrong-spec", "not-allowed")  # given before that too, but from then on no attempt can take effect
