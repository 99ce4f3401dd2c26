"""Checks of fields: names, times, nonces, digests, and objects made of them.

A check takes a value and its description, and returns the value or raises FormatError naming the
field. Signed data has one form only, so these checks are the same for messages, for evidence and
for stored files.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

from expunge.crypto import PublicKey, canonical
from expunge.errors import FormatError
from expunge.kinds import ROLES

Check = Callable[[Any, str], Any]
Text = Callable[[Any, str], str]
Object = Callable[[Any, str], dict[str, Any]]
Choice = TypeVar("Choice", bound=str)

_DIGEST = re.compile(r"[0-9a-f]{64}")
_ID = re.compile(r"[0-9a-f]{32}")
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
_IDENTIFIER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
_TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
_NUMBER = re.compile("[0-9]+")
_LONGEST_TEXT = 1000


def _matching(pattern: re.Pattern[str], meaning: str) -> Text:
    def check(value: Any, what: str) -> str:
        if not isinstance(value, str) or pattern.fullmatch(value) is None:
            raise FormatError(f"{what} must be {meaning}, got {value!r:.80}")
        return value

    return check


digest = _matching(_DIGEST, "a digest: 64 lower-case hexadecimal digits")
signature = _matching(re.compile("[0-9a-f]{128}"), "a signature: 128 lower-case hexadecimal digits")
nonce = _matching(_DIGEST, "64 lower-case hexadecimal digits")
federation = _matching(_ID, "the id of a federation: 32 lower-case hexadecimal digits")
drawn_id = _matching(_ID, "an id: 32 lower-case hexadecimal digits")  # of a round, order or audit
name = _matching(_NAME, "a name: 1 to 64 of a-z 0-9 - _ ., beginning with a letter or digit")
identifier = _matching(_IDENTIFIER, "an identifier: 1 to 128 of A-Z a-z 0-9 - _ . :")
_timely = _matching(_TIME, "a time in UTC such as 2026-11-15T09:30:00Z")


def time(value: Any, what: str) -> str:
    """A time in UTC to the second. Times of this form are ordered as their texts are."""
    text = _timely(value, what)
    try:
        _calendar(text)
    except ValueError as problem:
        raise FormatError(f"{what} is no time of the calendar: {value!r}") from problem
    return text


def _calendar(text: str) -> datetime:
    """The time that a text of the right form names; ValueError if the calendar has none.

    By hand, since `strptime` is slow to be imported and to be run.
    """
    year, month, day, hour, minute, second = (int(number) for number in _NUMBER.findall(text))
    return datetime(year, month, day, hour, minute, second, tzinfo=UTC)


def string(value: Any, what: str) -> str:
    """A string of any length."""
    if not isinstance(value, str):
        raise FormatError(f"{what} must be a string, got {type(value).__name__}")
    return value


def text(value: Any, what: str) -> str:
    """A string that is not absurdly long."""
    if not isinstance(value, str) or len(value) > _LONGEST_TEXT:
        raise FormatError(f"{what} must be a string of at most {_LONGEST_TEXT} characters")
    return value


def _integer(least: int, meaning: str) -> Callable[[Any, str], int]:
    def check(value: Any, what: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise FormatError(f"{what} must be an integer, {meaning}, got {value!r:.80}")
        return value

    return check


count = _integer(0, "not negative")
positive = _integer(1, "1 or more")
_MOST_AT_ONCE = 1000


def page(value: Any, what: str) -> int:
    """How many of a long list are asked for at once."""
    if positive(value, what) > _MOST_AT_ONCE:
        raise FormatError(f"{what} must be at most {_MOST_AT_ONCE:,}, got {value!r:.40}")
    return int(value)


# What a client says it found under secure aggregation, where counts of single clients stay hidden
UNDISCLOSED = -1


def found(value: Any, what: str) -> int:
    """How many samples a client found for an order: a count, or that it is not disclosed."""
    return value if value == UNDISCLOSED and not isinstance(value, bool) else count(value, what)


def boolean(value: Any, what: str) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise FormatError(f"{what} must be true or false, got {value!r:.80}")
    return value


def key_text(value: Any, what: str) -> str:
    """A public key in base64."""
    try:
        return PublicKey.from_text(value).text
    except FormatError as problem:
        raise FormatError(f"{what} must be a public key in base64: {problem}") from problem


def anything(value: Any, what: str) -> Any:  # noqa: ARG001 - as every check
    """Any value: checked by its reader."""
    return value


def or_empty(check: Check) -> Check:
    """What `check` takes, or the empty string."""
    return lambda value, what: value if isinstance(value, str) and not value else check(value, what)


def or_null(check: Check) -> Check:
    """What `check` takes, or None."""
    return lambda value, what: None if value is None else check(value, what)


def one_of(*choices: Choice) -> Callable[[Any, str], Choice]:
    """One of these strings."""

    def check(value: Any, what: str) -> Choice:
        for choice in choices:
            if value == choice:
                return choice
        raise FormatError(
            f"{what} must be one of {', '.join(map(repr, choices))}, got {value!r:.80}"
        )

    return check


role = one_of(*ROLES)


def lists(check: Check) -> Check:
    """A list of what `check` takes."""

    def check_all(value: Any, what: str) -> Any:
        if not isinstance(value, list):
            raise FormatError(f"{what} must be a list, got {value!r:.80}")
        for index, item in enumerate(value):
            check(item, f"item {index} of {what}")
        return value

    return check_all


def objects(checks: dict[str, Check], *, optional: dict[str, Check] | None = None) -> Object:
    """An object with exactly these keys, each as its check takes it, and perhaps optional ones."""
    more, known = optional or {}, checks | (optional or {})

    def check(value: Any, what: str) -> dict[str, Any]:
        present = more.keys() & value if isinstance(value, dict) else set()
        keys = frozenset(checks) | present
        for key, item in canonical.require_keys(value, what, keys).items():
            known[key](item, f"{key!r} of {what}")
        content: dict[str, Any] = value
        return content

    return check


def mapping(check_key: Check, check_value: Check) -> Check:
    """An object with any keys that `check_key` takes."""

    def check(value: Any, what: str) -> Any:
        if not isinstance(value, dict):
            raise FormatError(f"{what} must be an object, got {value!r:.80}")
        for key, item in value.items():
            check_key(key, f"a key of {what}")
            check_value(item, f"{key!r:.80} of {what}")
        return value

    return check


def envelope_json(value: Any, what: str) -> Any:
    """The JSON value of an envelope; its kind and signatures are checked by the reader."""
    return canonical.require_keys(value, what, frozenset({"payload", "payloadType", "signatures"}))


def versions(*known: int) -> Check:
    """One of these versions."""
    choices = " or ".join(map(str, known))

    def check(value: Any, what: str) -> Any:
        if isinstance(value, bool) or value not in known:
            raise FormatError(
                f"{what} must be {choices}, got {value!r:.80}: written by a newer Expunge, or "
                "altered"
            )
        return value

    return check


version = versions(1)


spec_digests = objects(dict.fromkeys(("data", "labels", "head", "policy"), digest))
data_digests = objects(dict.fromkeys(("data", "labels"), digest))  # what samples are encoded by


# -- times -----------------------------------------------------------------------------------------


def time_text(seconds: float) -> str:
    """A time in seconds since 1970 as text, to the second below; FormatError if it has no date."""
    try:
        return datetime.fromtimestamp(int(seconds), UTC).strftime(_TIME_FORMAT)
    except (ValueError, OverflowError, OSError) as problem:
        raise FormatError(f"{int(seconds)} seconds after 1970 is no time: {problem}") from problem


def time_seconds(text: object) -> int:
    """The inverse of `time_text`."""
    return int(_calendar(time(text, "a time")).timestamp())
