"""The application: routes, how refusals and errors are reported, and the OpenAPI description of it
all as docs/openapi.json keeps it.
"""

from __future__ import annotations

import json
from pathlib import Path

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from expunge._version import __version__
from expunge.errors import RefusedError
from expunge.server.http import bodies
from expunge.server.http.gateway import Gateway
from expunge.server.http.logs import Note
from expunge.server.http.routes import router
from expunge.wire.refusals import MEDIA_TYPE, body_of, headers_of, status_of

_DESCRIPTION = """\
Exact, checkable unlearning: clients add and delete samples, the server answers with signed
receipts.

Every body is signed; the bytes are those of docs/protocol.md, whatever carries them, and the
content type of what is sent is not looked at. A refusal is JSON with `code`, `reason` and
`details`, and has changed nothing. Any other answer than those described here (such as one of a
proxy) leaves open whether a request took effect: offer the same bytes again.
"""
_TAGS = [
    {"name": "actors", "description": "Clients, officers and operators."},
    {"name": "evidence", "description": "For anyone: heads, certificates and the audit log."},
    {"name": "operation", "description": "For whoever looks after the server."},
]
_LATE = 408


def make_app(gateway: Gateway | None = None) -> FastAPI:
    """The application for a gateway; without one it can only be described."""
    app = FastAPI(
        title="Expunge",
        version=__version__,
        description=_DESCRIPTION,
        openapi_tags=_TAGS,
        openapi_url="/v1/openapi.json",
        docs_url=None,  # these pages load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.gateway = gateway
    app.include_router(router)
    app.add_exception_handler(RefusedError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _unroutable)
    return app


def _answer(
    request: Request, refusal: RefusedError, status: int, headers: dict[str, str] | None = None
) -> Response:
    note = getattr(request.state, "note", None)
    if isinstance(note, Note):
        note.code = refusal.code
    return Response(
        body_of(refusal), status, {**headers_of(refusal), **(headers or {})}, MEDIA_TYPE
    )


def _refused(request: Request, problem: Exception) -> Response:
    if not isinstance(problem, RefusedError):
        raise problem
    status = _LATE if bodies.LATE in problem.details else status_of(problem.code)
    return _answer(request, problem, status)


def _invalid(request: Request, problem: Exception) -> Response:
    """Parameters that are missing or no numbers; said without quoting them."""
    errors = problem.errors() if isinstance(problem, RequestValidationError) else []
    reasons = "; ".join(f"{error['loc'][-1]}: {error['msg']}" for error in errors)
    return _answer(
        request,
        RefusedError("malformed", f"the parameters of this path are not well formed: {reasons}"),
        400,
    )


def _unroutable(request: Request, problem: Exception) -> Response:
    """Paths and methods that are not there."""
    status, given = 404, None
    if isinstance(problem, HTTPException):
        status, given = problem.status_code, problem.headers
    reason = (
        "there is nothing at this path: see /v1/openapi.json"
        if status == 404
        else "this path does not take this method"
    )
    return _answer(
        request,
        RefusedError("not-found" if status == 404 else "malformed", reason),
        status,
        dict(given or {}),
    )


RENEW = 'python -c "from expunge.server.http.app import write; write()"'


def text() -> str:
    """The description as the application gives it, with sorted keys."""
    return json.dumps(make_app().openapi(), indent=1, sort_keys=True) + "\n"


def write(path: str = "docs/openapi.json") -> None:
    """Renew the file."""
    Path(path).write_text(text(), encoding="ascii")
