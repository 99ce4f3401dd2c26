"""One JSON text for one value: what is signed or hashed has a single form.

Law: `decode(encode(value)) == value`, and `encode(decode(data)) == data` for every `data` that
`decode` takes. Values are made of strings, integers, booleans, None, lists and objects; there are
no floats, whose text differs between languages.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any, NoReturn

from expunge.errors import FormatError

_MOST_INTEGER = 1 << 53  # beyond this, a reader that knows only float64 would see another number
_DEEPEST = 32
_ENCODER = json.JSONEncoder(
    sort_keys=True,
    separators=(",", ":"),
    allow_nan=False,
    check_circular=False,  # a circle is nested too deep
)


def encode(value: object) -> bytes:
    """The canonical bytes: keys sorted, no spaces, ASCII only."""
    _check(value, 0)
    return _ENCODER.encode(value).encode("ascii")


def decode(data: bytes, what: str = "this JSON") -> Any:
    """The value of canonical bytes; any other bytes, however close, are refused."""
    try:
        value = _DECODER.decode(str(data, "utf-8"))
        same = encode(value) == bytes(data)
    except (ValueError, RecursionError) as problem:
        raise FormatError(f"{what} cannot be read: {problem}") from problem
    if not same:
        raise FormatError(
            f"{what} is not in canonical form (sorted keys, no spaces, ASCII): it was altered"
        )
    return value


def binary(text: object, what: str) -> bytes:
    """The bytes that a text is the base64 of, in its one form."""
    if not isinstance(text, str):
        raise FormatError(f"{what} must be base64, got {type(text).__name__}")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as problem:
        raise FormatError(f"{what} is not base64: {problem}") from problem
    if base64.b64encode(data).decode("ascii") != text:
        raise FormatError(f"{what} is not in its canonical base64 form")
    return data


def decode_object(data: bytes, what: str, keys: frozenset[str]) -> dict[str, Any]:
    """The canonical object with exactly these keys."""
    return require_keys(decode(data, what), what, keys)


def require_keys(value: object, what: str, keys: frozenset[str]) -> dict[str, Any]:
    """`value`, if it is an object with exactly these keys."""
    if not isinstance(value, dict):
        raise FormatError(f"{what} must be an object, got {type(value).__name__}")
    if set(value) != keys:
        missing, unknown = sorted(keys - set(value)), sorted(set(value) - keys)
        raise FormatError(f"{what} has the wrong keys; missing: {missing}, unknown: {unknown}")
    return value


def _no_float(text: str) -> NoReturn:
    raise FormatError(f"{text} is not an integer, and there are no floats here")


_DECODER = json.JSONDecoder(parse_float=_no_float, parse_constant=_no_float)


def _check(value: object, depth: int) -> None:
    if depth > _DEEPEST:
        raise FormatError(f"the value is nested more than {_DEEPEST} deep")
    if isinstance(value, str):
        _check_text(value)
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise FormatError(f"the key {key!r} must be a string")
            if depth < _DEEPEST and isinstance(item, str) and key.isascii() and item.isascii():
                continue  # most are such
            _check_text(key)
            _check(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            _check(item, depth + 1)
    elif value is None or isinstance(value, bool):
        return
    elif isinstance(value, int):
        if abs(value) > _MOST_INTEGER:
            raise FormatError(f"the integer {value} is beyond 2^53: write it as a string")
    else:
        raise FormatError(f"a value of type {type(value).__name__} has no canonical form")


def _check_text(text: str) -> None:
    """Half of a surrogate pair is not a character: other programs could not write it."""
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise FormatError(
            f"a text of {len(text)} characters is not Unicode: it has half of a surrogate pair"
        )
