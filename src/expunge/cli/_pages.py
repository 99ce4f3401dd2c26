"""Long lists of the server, shown in part: asked for a page at a time."""

from __future__ import annotations

from typing import Any

import click

from expunge.cli._connect import OfficeConnection
from expunge.cli._options import Function
from expunge.cli._output import Screen, count
from expunge.errors import ProtocolError

_SHOWN = 50
_PAGE = 100  # asked for at once


def limit_options(function: Function) -> Function:
    """--limit and --all."""
    everything = click.option("--all", "everything", is_flag=True, help="All of them.")
    limit = click.option(
        "--limit",
        type=click.IntRange(1),
        default=_SHOWN,
        show_default=True,
        help="At most so many.",
    )
    return limit(everything(function))


def pages(
    connection: OfficeConnection, question: str, most: int | None, after: str, key: str, **more: Any
) -> tuple[list[dict[str, Any]], int]:
    """The first so many entries of a list, and how many it has. The argument `after` of the
    question is the `key` of the entry that the next ones come after.
    """
    found: list[dict[str, Any]] = []
    while True:
        limit = _PAGE if most is None else min(_PAGE, most - len(found))
        arguments = {after: found[-1][key] if found else "", "limit": limit}
        page = connection.office.ask(question, arguments | more)
        if isinstance(page, list):
            raise ProtocolError(
                "the server is of a version that does not give long lists in part: upgrade it, or "
                "use the version of expunge that it has"
            )
        found += page[question]
        if not page[question] or len(found) in (most, page["total"]):
            return found, page["total"]


def note_rest(total: int, shown: int, noun: str) -> None:
    """Say how many are not shown, if there are any."""
    if total > shown:
        rest = count(total - shown, f"more {noun}")
        Screen.current().note(f"{rest}: --limit {total}, or --all, shows them, too")
