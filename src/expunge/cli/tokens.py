"""One-time tokens, made by an operator's office."""

from __future__ import annotations

import secrets

from expunge.cli.evidence import newest
from expunge.cli.reach import Reached
from expunge.protocol.token import Token

_SECRET_BYTES = 32


def new_token(reached: Reached, name: str, role: str, urls: tuple[str, ...], days: int = 7, *, ca: str = "") -> tuple[Token, str]:
    """A token that the server knows of, and when it expires; `ca` is its authority, where that is nearer than the office's."""
    office = reached.office
    made = Token(
        office.federation, name, role, secrets.token_hex(_SECRET_BYTES), newest(office.chain), urls, _ca(ca or office.ca, urls)
    )
    told = office.do("token", {"name": name, "role": role, "secret": made.secret_digest, "days": days})
    return made, str(told["expires"])


def _ca(known: str, urls: tuple[str, ...]) -> str:
    return known if any(url.startswith("https://") for url in urls) else ""
