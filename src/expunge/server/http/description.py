"""The OpenAPI description of the routes, as docs/openapi.json keeps it."""

from __future__ import annotations

import json
from pathlib import Path

from expunge.server.http.app import make_app

RENEW = 'python -c "from expunge.server.http.description import write; write()"'


def text() -> str:
    """The description as the application gives it, with sorted keys."""
    return json.dumps(make_app().openapi(), indent=1, sort_keys=True) + "\n"


def write(path: str = "docs/openapi.json") -> None:
    """Renew the file."""
    Path(path).write_text(text(), encoding="ascii")
