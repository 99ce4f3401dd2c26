"""Refusal codes: what each says about earlier attempts, and how HTTP tells it.

A refusal says that this attempt changed nothing. Whether an earlier one did, whose answer was lost,
it says only if it was given after the number of the request was looked up: an applied request would
have been answered by its receipt.

Over HTTP, every code of docs/protocol.md has a status, and the body is JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from expunge.errors import ExpungeError, RefusedError

PASSING = ("storage", "too-many")  # later
OUT_OF_STEP = ("sequence-gap", "sequence-reused")
KEPT = (
    "unknown-actor",
    "bad-signature",
    "wrong-federation",
    "gone",
    *OUT_OF_STEP,
)  # nothing in the request could be mended
JUDGED = (  # given only after the number was looked up
    *("wrong-counts", "not-live", "already-live", "not-opened", "impossible"),
    *("unknown-order", "unknown-audit", "must-rejoin"),
)
BY_SPEC = (
    "wrong-spec",
    "not-allowed",
)  # given before that too, but from then on no attempt can take effect


STATUSES = {
    "malformed": 400,
    "bad-signature": 403,
    "unknown-actor": 403,
    "bad-token": 403,
    "not-allowed": 403,
    "not-found": 404,
    "sequence-gap": 409,
    "sequence-reused": 409,
    "name-taken": 409,
    "must-rejoin": 409,
    "gone": 410,
    "too-large": 413,
    "too-many": 429,
    "storage": 503,
}
_OTHER = 422  # understood, and refused for what it says
_RETRY_LATER = {429, 503}
MEDIA_TYPE = "application/json"


def status_of(code: str) -> int:
    """The HTTP status of a refusal."""
    return STATUSES.get(code, _OTHER)


def codes_by_status(codes: Iterable[str]) -> dict[int, list[str]]:
    """Codes gathered by their status, for descriptions."""
    found: dict[int, list[str]] = {}
    for code in sorted(codes):
        found.setdefault(status_of(code), []).append(code)
    return dict(sorted(found.items()))


def body_of(refusal: RefusedError) -> bytes:
    """The JSON that `refusal_of` reads."""
    return json.dumps(
        {"code": refusal.code, "details": refusal.details, "reason": refusal.reason}
    ).encode("ascii")


def headers_of(refusal: RefusedError) -> dict[str, str]:
    """What else a refusal says: when to come back."""
    headers = {"cache-control": "no-store"}
    if status_of(refusal.code) in _RETRY_LATER:
        wait = refusal.details.get("retry_after", 1)
        headers["retry-after"] = str(
            max(1, math.ceil(wait)) if isinstance(wait, (int, float)) else 1
        )
    return headers


@contextmanager
def malformed() -> Iterator[None]:
    """Whatever cannot be read within is refused as malformed."""
    try:
        yield
    except RefusedError:
        raise
    except ExpungeError as problem:
        raise RefusedError("malformed", str(problem)) from problem


def too_many(what: str, seconds: float) -> RefusedError:
    """Come back later."""
    wait = max(1, math.ceil(seconds))
    return RefusedError(
        "too-many", f"{what}: try again in {wait} seconds. Nothing was changed", retry_after=wait
    )
