"""Names, times, nonces and digests as they stand in what is signed."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from expunge.errors import FormatError
from expunge.evidence import fields

ROLES = ("client", "officer", "operator")

_HEX = re.compile(r"[0-9a-f]*")
_TIME = "%Y-%m-%dT%H:%M:%SZ"
FEDERATION_DIGITS = 32
DIGEST_DIGITS = 64
AGGREGATION_DIGITS = 32


def checked_name(value: object) -> str:
    """A name of an actor: of an institution or an office, for it is written to the log."""
    return str(fields.name(value, "the name"))


def checked_role(role: object) -> str:
    """One of the three roles."""
    if role not in ROLES:
        raise FormatError(f"the role {role!r:.40} must be one of {', '.join(ROLES)}")
    return str(role)


def checked_hex(value: object, digits: int, what: str) -> str:
    """A string of so many hexadecimal digits in lower case."""
    if not isinstance(value, str) or len(value) != digits or not _HEX.fullmatch(value):
        raise FormatError(f"{what} must be {digits} hexadecimal digits in lower case, got {value!r:.80}")
    return value


def checked_digest(value: object, what: str) -> str:
    """A SHA-256 in hexadecimal."""
    return str(fields.digest(value, what))


def checked_integer(value: object, what: str, least: int = 0) -> int:
    """An integer that is not a boolean, and not below `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise FormatError(f"{what} must be an integer, {least} or more, got {value!r:.40}")
    return value


def checked_flag(value: object, what: str) -> bool:
    """True or False."""
    return bool(fields.boolean(value, what))


def time_text(seconds: float) -> str:
    """A time in seconds since 1970 as text, to the second below."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime(_TIME)


def time_seconds(text: object) -> int:
    """The inverse of `time_text`."""
    return int(datetime.strptime(fields.time(text, "a time"), _TIME).replace(tzinfo=UTC).timestamp())
