"""Calls to a server as values: what a client's agent calls and what the server answers, to be carried at different times.

Law: a call has one digest, however its arguments are given, and two different calls have different ones. The calls are the
methods of `Carrier`, whatever they are, but for `close`.
"""

from __future__ import annotations

import hashlib
import inspect
from dataclasses import dataclass
from typing import Any, get_type_hints

from expunge import canonical
from expunge.carriers.flower.parcel import Parts, packed
from expunge.errors import RefusedError
from expunge.protocol.carrier import Carrier

CALLS = tuple(name for name, value in vars(Carrier).items() if inspect.isfunction(value) and name[0] != "_" and name != "close")


@dataclass(frozen=True)
class Call:
    """A method of `Carrier` by name, with all its arguments in order."""

    name: str
    arguments: tuple[Any, ...]

    @classmethod
    def of(cls, name: str, /, *arguments: Any, **named: Any) -> Call:
        """A call as it is written: arguments left out have their usual values."""
        bound = inspect.signature(getattr(Carrier, name)).bind(None, *arguments, **named)
        bound.apply_defaults()
        return cls(name, bound.args[1:])

    @property
    def digest(self) -> str:
        """What an answer refers to."""
        parts = Parts()
        note = canonical.encode([self.name, [packed(value, parts) for value in self.arguments]])
        digests = [hashlib.sha256(part).digest() for part in parts.found]
        return hashlib.sha256(b"".join([hashlib.sha256(note).digest(), *digests])).hexdigest()

    def ask(self, carrier: Carrier) -> Any:
        """Make the call. What nobody could have written in a program is refused, as are calls that this carrier lacks."""
        self.require_sound()
        if not hasattr(carrier, self.name):
            raise RefusedError("malformed", f"this server has no {self.name!r}: it is of an older version")
        return getattr(carrier, self.name)(*self.arguments)

    def require_sound(self) -> None:
        """Raise RefusedError unless this is a call of `Carrier` with arguments of its types."""
        if self.name not in CALLS:
            raise RefusedError("malformed", f"there is no call {self.name!r:.80}; there are {', '.join(CALLS)}")
        hints = get_type_hints(getattr(Carrier, self.name))
        hints.pop("return", None)
        fit = len(hints) == len(self.arguments) and all(
            isinstance(value, hint) and not isinstance(value, bool)
            for value, hint in zip(self.arguments, hints.values(), strict=True)
        )
        if not fit:
            kinds = ", ".join(type(value).__name__ for value in self.arguments)
            raise RefusedError("malformed", f"the call {self.name!r} takes {', '.join(hints)}, and not ({kinds:.80})")


@dataclass(frozen=True)
class Reply:
    """What the server says to the call with this digest: a value, or a refusal."""

    call: str
    name: str
    value: Any = None
    refusal: RefusedError | None = None

    def result(self) -> Any:
        """The value; a refusal is raised."""
        if self.refusal is not None:
            raise RefusedError(self.refusal.code, self.refusal.reason, **self.refusal.details)
        return self.value
