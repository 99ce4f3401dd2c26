"""Refusals: the table of their codes, and their forms in JSON and HTTP.

A refusal says that this attempt changed nothing. It says the same of an earlier attempt, whose
answer was lost, only if it was given after the number of the request was looked up: an applied
request would have been answered by its receipt.

Law: every code that a server, gateway, aggregator or Flower app answers with is in `REFUSALS`, and
in the table of docs/protocol.md.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from expunge.errors import ExpungeError, FormatError, RefusalCode, RefusedError

# Whether it helps to ask again: the same bytes, later; something else, composed again from what the
# refusal and a sync say; or not before a person has done something.
Retry = Literal["later", "anew", "no"]
# The earliest moment at which a code is given: as the bytes arrive; once they can be read; once it
# is known who signed them; once the number of the request was looked up and found to be new.
Moment = Literal["arrived", "read", "proven", "judged"]


@dataclass(frozen=True)
class RefusalMeaning:
    """What a code means: for HTTP, for a retry, and for people."""

    status: int
    moment: Moment
    retry: Retry
    meaning: str


REFUSALS: dict[RefusalCode, RefusalMeaning] = {
    "malformed": RefusalMeaning(
        400, "read", "no", "not what this page describes, truncated, altered"
    ),
    "bad-signature": RefusalMeaning(403, "read", "no", "not signed by the enrolled key"),
    "unknown-actor": RefusalMeaning(403, "read", "no", "nobody of that name is enrolled"),
    "bad-token": RefusalMeaning(403, "proven", "no", "a token that is used, expired or another's"),
    "not-allowed": RefusalMeaning(
        403, "read", "anew", "not for this role, or not by the spec as it is now"
    ),
    "not-found": RefusalMeaning(404, "proven", "no", "no such entry, proof or page"),
    "sequence-gap": RefusalMeaning(
        409, "proven", "anew", "beyond the next number, which is `details.expected`"
    ),
    "sequence-reused": RefusalMeaning(
        409,
        "proven",
        "anew",
        "the number was used for another request, or another message (`details.kind`) of a round",
    ),
    "name-taken": RefusalMeaning(
        409,
        "proven",
        "no",
        "name or key of somebody who is enrolled, or of a client that is gone",
    ),
    "must-rejoin": RefusalMeaning(409, "judged", "anew", "the server was restored, see below"),
    "gone": RefusalMeaning(
        410, "proven", "no", "the client has left or was forgotten; the order is closed"
    ),
    "too-large": RefusalMeaning(413, "arrived", "anew", "more bytes than the server takes"),
    "too-many": RefusalMeaning(
        429, "arrived", "later", "asked too often, or no room for the body at present"
    ),
    "wrong-protocol": RefusalMeaning(
        426, "arrived", "no", "no version of the protocol in common, see *Versions*"
    ),
    "wrong-federation": RefusalMeaning(422, "read", "no", "of another federation"),
    "wrong-spec": RefusalMeaning(
        422, "proven", "anew", "of another data spec, or made before labels were amended"
    ),
    "wrong-counts": RefusalMeaning(422, "judged", "no", "numbers that contradict each other"),
    "wrong-round": RefusalMeaning(
        422, "proven", "anew", "of another round, roster or list of survivors"
    ),
    "wrong-phase": RefusalMeaning(
        422, "proven", "anew", "not what this phase of the round expects"
    ),
    "wrong-share": RefusalMeaning(
        422,
        "proven",
        "no",
        "a share that is not the one dealt (`details.holder`, `details.dealer`)",
    ),
    "already-live": RefusalMeaning(422, "judged", "no", "a commitment that is added twice"),
    "not-live": RefusalMeaning(422, "judged", "no", "a commitment deleted that is not there"),
    "not-opened": RefusalMeaning(422, "judged", "no", "a row that is not the one committed to"),
    "impossible": RefusalMeaning(
        422, "judged", "no", "what would be left is the statistics of no set of samples"
    ),
    "unsolvable": RefusalMeaning(422, "proven", "anew", "no head can be published"),
    "unknown-order": RefusalMeaning(422, "judged", "anew", "no such order waits for an answer"),
    "unknown-audit": RefusalMeaning(422, "judged", "anew", "no such audit waits for an answer"),
    "unknown-action": RefusalMeaning(422, "read", "no", "no such action"),
    "no-room": RefusalMeaning(
        507, "judged", "anew", "the server's disk is full: it takes deletions, and no additions"
    ),
    "storage": RefusalMeaning(
        503,
        "arrived",
        "later",
        "the server could not write, or is stopping: offer the same again later",
    ),
}


def _codes(**wanted: str) -> frozenset[RefusalCode]:
    """The codes whose entries say this."""
    return frozenset(
        code
        for code, entry in REFUSALS.items()
        if all(getattr(entry, name) == value for name, value in wanted.items())
    )


PASSING = _codes(retry="later")
JUDGED = _codes(moment="judged")  # so no earlier attempt took effect
UNREAD = frozenset[RefusalCode]({"malformed", "too-large"})  # nothing was looked up
# Given before a signature has been checked, too: the receiver's identity is not verified.
UNPROVEN = _codes(moment="read")
ANYBODY = UNPROVEN | _codes(moment="arrived")
OUT_OF_STEP = frozenset[RefusalCode]({"sequence-gap", "sequence-reused"})
# Of a request in which nothing could be fixed: it is kept as it is.
KEPT = OUT_OF_STEP | {
    *("unknown-actor", "bad-signature", "wrong-federation", "wrong-protocol", "gone")
}
# Given before the number is looked up too, but from then on no attempt can take effect.
BY_SPEC = frozenset[RefusalCode]({"wrong-spec", "not-allowed"})
# Of an enrolment, given once it was read and looked up: this attempt has not taken effect.
NOT_ENROLLED = BY_SPEC | {"bad-token", "name-taken", "wrong-federation", "bad-signature"}
# Of a message of a round that came when the others had gone on.
LATE = frozenset[RefusalCode]({"wrong-phase", "wrong-round", "not-allowed"})
# Where there is no head to fetch.
HEADLESS = frozenset[RefusalCode]({"unsolvable", "not-found"})

_UNKNOWN = 422  # a code of another version: understood, and refused for what it says
MEDIA_TYPE = "application/json"


def cause_of(problem: BaseException) -> str:
    """Why something failed, for the other side: without paths of this machine, or what its operator
    is to do.
    """
    cause = problem.__cause__ or problem
    return (isinstance(cause, OSError) and cause.strerror) or str(cause)


def status_of(code: RefusalCode) -> int:
    """The HTTP status of a refusal."""
    entry = REFUSALS.get(code)
    return _UNKNOWN if entry is None else entry.status


def codes_by_status(codes: Iterable[RefusalCode]) -> dict[int, list[RefusalCode]]:
    """Codes gathered by their status, for descriptions."""
    by_status: dict[int, list[RefusalCode]] = {}
    for code in sorted(codes):
        by_status.setdefault(status_of(code), []).append(code)
    return dict(sorted(by_status.items()))


def to_json(refusal: RefusedError) -> dict[str, Any]:
    """A refusal as a JSON value; `from_json` is its inverse."""
    return {"code": refusal.code, "details": refusal.details, "reason": refusal.reason}


def from_json(value: Any) -> RefusedError:
    """The refusal, whose code may be a later version's; FormatError for any other value."""
    match value:
        case {"code": str(code), "details": dict(details), "reason": str(reason)} if (
            len(value) == 3
        ):
            return RefusedError.received(code, reason, details)
    raise FormatError("this is no refusal: it must have code, reason and details, and no more")


def body_of(refusal: RefusedError) -> bytes:
    """The refusal as the body of a response."""
    return json.dumps(to_json(refusal)).encode("ascii")


def headers_of(refusal: RefusedError) -> dict[str, str]:
    """What else a refusal says: when to come back."""
    headers = {"cache-control": "no-store"}
    if refusal.code in PASSING:
        wait = refusal.details.get("retry_after", 1)
        headers["retry-after"] = str(
            max(1, math.ceil(wait)) if isinstance(wait, (int, float)) else 1
        )
    return headers


@contextmanager
def malformed() -> Iterator[None]:
    """Anything unreadable inside is refused as malformed."""
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
