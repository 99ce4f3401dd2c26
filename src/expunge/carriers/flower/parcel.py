"""Parcel: what one Flower message holds, as a note in canonical JSON and the bytes that it refers to by number.

Law: `unpacked(packed(value))` is the value, for bytes, texts, integers, None and lists of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from expunge import canonical
from expunge.errors import FormatError


@dataclass
class Parts:
    """Bytes in the order in which they were found."""

    found: list[bytes] = field(default_factory=list)

    def add(self, data: bytes) -> int:
        """The number of these bytes."""
        self.found.append(bytes(data))
        return len(self.found) - 1


@dataclass(frozen=True)
class Parcel:
    """A note (an object, in canonical JSON) and the bytes that it refers to."""

    note: bytes
    parts: tuple[bytes, ...] = ()

    def content(self, what: str, keys: frozenset[str]) -> dict[str, Any]:
        """The note, if it is an object with exactly these keys."""
        return canonical.decode_object(self.note, what, keys)


def packed(value: Any, parts: Parts) -> dict[str, Any]:
    """A value as JSON, with its bytes among the parts."""
    if isinstance(value, bytes | bytearray | memoryview):
        return {"bytes": parts.add(bytes(value))}
    if isinstance(value, list | tuple):
        return {"list": [packed(one, parts) for one in value]}
    return {"value": value}


def unpacked(value: Any, parts: Sequence[bytes]) -> Any:
    """The inverse of `packed`."""
    match value:
        case {"bytes": int(number)} if len(value) == 1 and not isinstance(number, bool) and 0 <= number < len(parts):
            return parts[number]
        case {"list": list(values)} if len(value) == 1:
            return [unpacked(one, parts) for one in values]
        case {"value": None | str() | int()} if len(value) == 1:
            return value["value"]
    raise FormatError(f"{value!r:.80} is no value of a message: it was altered, or is of another version")
