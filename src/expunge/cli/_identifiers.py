"""How orders, audits and receipts are named on the command line: one rule for every command that
takes an id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from expunge.errors import InputError, UnknownSampleError

LAST = "last"
_SHORT = 8  # characters of an id that tell it from others
_SHOWN = 8  # ids in a message


@dataclass(frozen=True)
class Identifier:
    """The id of an order, audit or receipt, with the reference that its owner gave it, if any."""

    id: str
    reference: str = ""

    def __str__(self) -> str:
        short = self.id[:_SHORT]
        return f"{short} ({self.reference})" if self.reference else short


def resolve(
    given: str, identifiers: Sequence[Identifier], noun: str, *, abbreviated: bool = True
) -> str:
    """The id that `given` names among those known, which are listed oldest first.

    `last` is the newest. Everything else is a whole id, a whole reference or, where ids may be
    abbreviated, the beginning of an id; whatever fits more than one is refused, since some commands
    cannot be undone.
    """
    if given == LAST and identifiers:
        return identifiers[-1].id
    wanted = given.lower()
    whole = [identifier for identifier in identifiers if identifier.id == wanted]
    matches = whole or [
        identifier
        for identifier in identifiers
        if identifier.reference == given != "" or (abbreviated and identifier.id.startswith(wanted))
    ]
    if len(matches) == 1:
        return matches[0].id
    if matches:
        raise InputError(
            f"{given!r:.80} names {len(matches)} {noun}s: {_listed(matches)}. Give more of the id"
        )
    raise UnknownSampleError(f"there is no {noun} {given!r:.80}; there {_known(identifiers, noun)}")


def _known(identifiers: Sequence[Identifier], noun: str) -> str:
    if not identifiers:
        return f"are no {noun}s yet"
    return f"{'is' if len(identifiers) == 1 else 'are'} {_listed(identifiers)}"


def _listed(identifiers: Sequence[Identifier]) -> str:
    """The newest few."""
    dropped = ", ..." if len(identifiers) > _SHOWN else ""
    return ", ".join(str(identifier) for identifier in reversed(identifiers[-_SHOWN:])) + dropped
