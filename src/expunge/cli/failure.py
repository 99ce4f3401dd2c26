"""What an error means to whoever called: a message with its remedy, and an exit code that a script can act on."""

from __future__ import annotations

import re
from typing import Any

from expunge.errors import CarrierError, EvidenceError, ExpungeError, RefusedError, StoreBusyError

DONE, FAILED, USAGE, EVIDENCE, NO_ANSWER, BUSY, NOTHING, NOT_YET = range(8)
INTERRUPTED = 130

EXIT_CODES = {
    DONE: "done",
    FAILED: "refused or failed; the message says why, and nothing was changed",
    USAGE: "the command line was not understood",
    EVIDENCE: "evidence does not hold: a signature, proof, digest or audit",
    NO_ANSWER: "no answer from the server; the same command again is safe",
    BUSY: "another process is at work on the same folder",
    NOTHING: "there was nothing to do",
    NOT_YET: "not complete yet: somebody has yet to answer",
    INTERRUPTED: "interrupted; the same command again is safe",
}
_TRY_AGAIN = ("too-many", "storage")  # refusals that a later try may not meet


# What is written in Python is typed otherwise.
_TYPED = {
    "accept_restored=True": "--accept-restored",
    "restored=True": "--old-copy",
    "insecure=True": "--insecure-http",
    "everything=True": "--all",
    "recompute=": "--backbone",
    "(message=)": "(expunge client sync --message)",
    "name them by label_keys": "name them by --label-column",
}


def exit_code(problem: BaseException) -> int:
    """The exit code of an error."""
    if isinstance(problem, EvidenceError):
        return EVIDENCE
    if isinstance(problem, CarrierError) or (isinstance(problem, RefusedError) and problem.code in _TRY_AGAIN):
        return NO_ANSWER
    return BUSY if isinstance(problem, StoreBusyError) else FAILED


def error_value(problem: BaseException) -> dict[str, Any]:
    """An error as programs see it: its kind (the class, in small letters with hyphens) and its message."""
    name = type(problem).__name__ if isinstance(problem, ExpungeError) else "FailedError"
    kind = re.sub(r"(?<!^)(?=[A-Z])", "-", name.removesuffix("Error")).lower()
    value: dict[str, Any] = {"kind": kind, "message": message(problem)}
    if isinstance(problem, RefusedError):
        value |= {"code": problem.code, "details": problem.details}
    return {"error": value}


def message(problem: BaseException) -> str:
    """What to tell people."""
    if isinstance(problem, OSError) and not isinstance(problem, ExpungeError):
        where = f"{problem.filename}: " if problem.filename else ""
        return f"{where}{problem.strerror or problem}"
    notes = list(getattr(problem, "__notes__", []))
    if isinstance(problem, CarrierError) and not notes:
        notes = ["Nothing is lost: the same command again finishes what has begun"]
    text = ". ".join([str(problem), *notes])
    for written, typed in _TYPED.items():
        text = text.replace(written, typed)
    return text
