"""Logs: one line of JSON for each request, and for other events; nothing in them is personal.

A line says which route (never the address with its parameters), which outcome, how long it took,
how many bytes, and which enrolled actor asked by which sequence number, once its signature has been
checked. Bodies, subjects, commitments and tokens do not come near this module; of unexpected errors
only kind and place are logged, since their texts may quote personal data.

Every line has a level. A request is an error if the server failed (5xx), a warning if it was
refused or its connection lost, and otherwise info; so is what happens as it should. Debug adds what
uvicorn does.
"""

from __future__ import annotations

import json
import logging
import traceback
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import TextIO

LOGGER = logging.getLogger("expunge.server")
_UVICORN = "uvicorn.error"
NO_ROUTE = "none"
LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


@dataclass
class Note:
    """What is noted about a request in the course of it."""

    method: str
    peer: str
    route: str = NO_ROUTE
    status: int = 0  # 0: the connection was lost before there was an answer
    code: str = "ok"
    actor: str = ""
    sequence: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    is_proven: bool = False  # an enrolled actor signed it
    date: float | None = None  # what the clock of who asks says

    def prove(self, actor: str, sequence: int) -> None:
        """From now on it is known who asks."""
        self.actor, self.sequence, self.is_proven = actor, sequence, True


def now_text(seconds: float | None = None) -> str:
    """A time to the millisecond, in UTC."""
    when = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return when.strftime("%Y-%m-%dT%H:%M:%S.") + f"{when.microsecond // 1000:03d}Z"


def log_request(note: Note, seconds: float, *, peers: bool) -> None:
    """Write the line of a finished request."""
    level = _request_level(note.status)
    if not LOGGER.isEnabledFor(level):
        return
    line: dict[str, object] = {
        "method": note.method,
        "route": note.route,
        "status": note.status,
        "code": note.code,
        "ms": round(1000.0 * seconds, 3),
        "in": note.bytes_in,
        "out": note.bytes_out,
    }
    if note.is_proven:
        line |= {"actor": note.actor, "sequence": note.sequence}
    if peers:
        line["peer"] = note.peer
    log_event("request", level, **line)


def _request_level(status: int) -> int:
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return logging.ERROR
    return logging.WARNING if not status or status >= HTTPStatus.BAD_REQUEST else logging.INFO


def log_event(event: str, level: int = logging.INFO, **fields: object) -> None:
    """Write a line."""
    head = {"time": now_text(), "level": _level_name(level), "event": event}
    LOGGER.log(level, "%s", json.dumps(head | fields))


def _level_name(level: int) -> str:
    """The highest of our levels that is not above this one; debug for what is below all of them."""
    return next((name for name, least in reversed(LEVELS.items()) if level >= least), "debug")


def log_problem(event: str, problem: BaseException, **fields: object) -> None:
    """Write a line about an unexpected error: its kind and where it arose."""
    log_event(event, logging.ERROR, **fields, **_told(problem))


def report(message: str, problem: BaseException | None) -> None:
    """For `Service.open(report=...)`: what happens in the background."""
    if problem is None:
        log_event(message)
    else:
        log_problem(message, problem)


def _told(problem: BaseException) -> dict[str, object]:
    frames = traceback.extract_tb(problem.__traceback__)
    locations = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames[-5:]]
    return {"error": type(problem).__name__, "at": locations}


class JsonLines(logging.Formatter):
    """Our own lines as they are; those of uvicorn as JSON, without the texts of errors."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        if record.name == LOGGER.name:
            return record.getMessage()
        line: dict[str, object] = {
            "time": now_text(record.created),
            "level": _level_name(record.levelno),
            "event": record.name,
            "message": record.getMessage().strip(),
        }
        if record.exc_info and record.exc_info[1] is not None:
            line |= _told(record.exc_info[1])
        return json.dumps(line)


def write_to(stream: TextIO, level: str = "info") -> logging.Handler:
    """Send our lines of this level and above to a stream, and uvicorn's warnings and errors among
    them.

    With debug, uvicorn's info lines come too; its own debug lines never do, since they may show
    peers. Returns the handler, to be removed by `stop_writing`.
    """
    least = LEVELS[level]
    others = logging.INFO if least < logging.INFO else max(least, logging.WARNING)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    for name, wanted in ((LOGGER.name, least), (_UVICORN, others)):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(wanted)
        logger.propagate = False
    return handler


def stop_writing(handler: logging.Handler) -> None:
    """Undo `write_to`."""
    for name in (LOGGER.name, _UVICORN):
        logger = logging.getLogger(name)
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
        logger.propagate = True
