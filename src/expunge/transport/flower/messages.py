"""The content and form of a server's message and a node's reply.

A message has a *turn*, drawn by the server, and names the turn before it in the same conversation
(`after`; empty for an opening). A reply names the turn that it answers. A node uses the answers of
a message only if it follows the last turn that the node has seen: messages that are late, repeated
or of an abandoned conversation therefore do no harm.

A `Call` is a call of a client's agent, a `Reply` the server's answer: values, to be carried at
different times. Law: a call has one digest, however its arguments are given, and two different
calls have different ones. The calls are the methods of `Carrier` except `close`.

A `Payload` is what one Flower message holds: a note in canonical JSON, and the bytes that it refers
to by number. Law: `unpacked(packed(value))` is the value, for bytes, texts, integers, None and
lists of these.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from expunge.crypto import canonical
from expunge.errors import FormatError, RefusedError
from expunge.wire import schema
from expunge.wire.carrier import Carrier
from expunge.wire.refusals import from_json, to_json


@dataclass
class PayloadParts:
    """Bytes in the order in which they were found."""

    chunks: list[bytes] = field(default_factory=list)

    def add(self, data: bytes) -> int:
        """The number of these bytes."""
        self.chunks.append(bytes(data))
        return len(self.chunks) - 1


@dataclass(frozen=True)
class Payload:
    """A note (an object, in canonical JSON) and the bytes that it refers to."""

    note: bytes
    parts: tuple[bytes, ...] = ()

    def content(self, what: str, checks: dict[str, schema.Check]) -> dict[str, Any]:
        """The note, if it is an object of this version with these fields."""
        note = canonical.decode_object(self.note, what, frozenset(checks))
        if note["version"] != VERSION:
            raise FormatError(
                f"{what} is of version {note['version']!r:.20}, this is version {VERSION}: install "
                "the same Expunge"
            )
        return schema.objects(checks)(note, what)


def packed(value: Any, parts: PayloadParts) -> dict[str, Any]:
    """A value as JSON, with its bytes among the parts."""
    if isinstance(value, bytes | bytearray | memoryview):
        return {"bytes": parts.add(bytes(value))}
    if isinstance(value, list | tuple):
        return {"list": [packed(item, parts) for item in value]}
    return {"value": value}


def unpacked(value: Any, parts: Sequence[bytes]) -> Any:
    """The inverse of `packed`."""
    match value:
        case {"bytes": int(number)} if (
            len(value) == 1 and not isinstance(number, bool) and 0 <= number < len(parts)
        ):
            return parts[number]
        case {"list": list(values)} if len(value) == 1:
            return [unpacked(item, parts) for item in values]
        case {"value": None | str() | int()} if len(value) == 1:
            return value["value"]
    raise FormatError(
        f"{value!r:.80} is no value of a message: it was altered, or is of another version"
    )


CALLS = tuple(
    name
    for name, value in vars(Carrier).items()
    if inspect.isfunction(value) and name[0] != "_" and name != "close"
)


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
        parts = PayloadParts()
        note = canonical.encode([self.name, [packed(value, parts) for value in self.arguments]])
        digests = [hashlib.sha256(part).digest() for part in parts.chunks]
        return hashlib.sha256(b"".join([hashlib.sha256(note).digest(), *digests])).hexdigest()

    def ask(self, carrier: Carrier) -> Any:
        """Make the call.

        What no program could have written is refused, as are calls that this carrier lacks.
        """
        self.require_sound()
        if not hasattr(carrier, self.name):
            raise RefusedError(
                "malformed", f"this server has no {self.name!r}: it is of an older version"
            )
        return getattr(carrier, self.name)(*self.arguments)

    def require_sound(self) -> None:
        """Raise RefusedError unless this is a call of `Carrier` with arguments of its types."""
        if self.name not in CALLS:
            raise RefusedError(
                "malformed", f"there is no call {self.name!r:.80}; there are {', '.join(CALLS)}"
            )
        hints = get_type_hints(getattr(Carrier, self.name))
        hints.pop("return", None)
        fit = len(hints) == len(self.arguments) and all(
            isinstance(value, hint) and not isinstance(value, bool)
            for value, hint in zip(self.arguments, hints.values(), strict=True)
        )
        if not fit:
            kinds = ", ".join(type(value).__name__ for value in self.arguments)
            raise RefusedError(
                "malformed",
                f"the call {self.name!r} takes {', '.join(hints)}, and not ({kinds:.80})",
            )


@dataclass(frozen=True)
class Reply:
    """The server's answer to the call with this digest: a value, or a refusal."""

    call: str
    name: str
    value: Any = None
    refusal: RefusedError | None = None

    def result(self) -> Any:
        """The value; a refusal is raised."""
        if self.refusal is not None:
            raise copy(self.refusal)
        return self.value


VERSION = 1
_MESSAGE: dict[str, schema.Check] = {
    "after": schema.text,
    "replies": schema.lists(schema.anything),
    "turn": schema.text,
    "version": schema.anything,
}
_ANSWER: dict[str, schema.Check] = {
    "calls": schema.lists(schema.anything),
    "client": schema.text,
    "done": schema.boolean,
    "head": schema.text,
    "problem": schema.text,
    "size": schema.count,
    "turn": schema.text,
    "version": schema.anything,
    "waiting": schema.text,
}


@dataclass(frozen=True)
class ServerMessage:
    """A message to a node: answers to the calls of its last reply, and to those that it will likely
    make next.
    """

    turn: str
    after: str = ""
    replies: tuple[Reply, ...] = ()

    def to_parcel(self) -> Payload:
        """The parcel that travels."""
        parts = PayloadParts()
        replies = [_reply(reply, parts) for reply in self.replies]
        note = {"after": self.after, "replies": replies, "turn": self.turn, "version": VERSION}
        return Payload(canonical.encode(note), tuple(parts.chunks))

    @classmethod
    def read(cls, parcel: Payload) -> ServerMessage:
        """The inverse of `to_parcel`."""
        what = "a message of the server"
        note = parcel.content(what, _MESSAGE)
        return cls(
            note["turn"],
            note["after"],
            tuple(_read_reply(reply, parcel) for reply in note["replies"]),
        )


@dataclass(frozen=True)
class NodeMessage:
    """A node's reply: the calls that its agent made without an answer, in order, and what the
    client knows.

    `size` of the log as last seen and `head`, the digest of the newest head in the store, let the
    server foresee the next calls. `done` says that the conversation is over for now; then `problem`
    tells why, unless nothing was left to do, and `waiting` what other clients must do first.
    """

    turn: str
    client: str
    calls: tuple[Call, ...] = ()
    size: int = 0
    head: str = ""
    done: bool = False
    problem: str = ""
    waiting: str = ""

    def to_parcel(self) -> Payload:
        """The parcel that travels."""
        parts = PayloadParts()
        calls = [
            {
                "arguments": [packed(argument, parts) for argument in call.arguments],
                "name": call.name,
            }
            for call in self.calls
        ]
        note = {
            "calls": calls,
            "client": self.client,
            "done": self.done,
            "head": self.head,
            "problem": self.problem,
            "size": self.size,
            "turn": self.turn,
            "version": VERSION,
            "waiting": self.waiting,
        }
        return Payload(canonical.encode(note), tuple(parts.chunks))

    @classmethod
    def read(cls, parcel: Payload) -> NodeMessage:
        """The inverse of `to_parcel`."""
        what = "a node's reply"
        note = parcel.content(what, _ANSWER)
        calls = tuple(_read_call(call, parcel) for call in note["calls"])
        fields = {
            name: note[name]
            for name in ("turn", "client", "size", "head", "done", "problem", "waiting")
        }
        return cls(calls=calls, **fields)


def _reply(reply: Reply, parts: PayloadParts) -> dict[str, Any]:
    content: dict[str, Any] = {"call": reply.call, "name": reply.name}
    if reply.refusal is None:
        return content | {"value": packed(reply.value, parts)}
    return content | {"refusal": to_json(reply.refusal)}


def _read_reply(value: Any, parcel: Payload) -> Reply:
    match value:
        case {"call": str(call), "name": str(name), "value": content} if len(value) == 3:
            return Reply(call, name, unpacked(content, parcel.parts))
        case {"call": str(call), "name": str(name), "refusal": refusal} if len(value) == 3:
            return Reply(call, name, refusal=from_json(refusal))
    raise FormatError(
        f"{value!r:.80} is no answer of a server: it was altered, or is of another version"
    )


def _read_call(value: Any, parcel: Payload) -> Call:
    match value:
        case {"arguments": list(arguments), "name": str(name)} if len(value) == 2:
            return Call(name, tuple(unpacked(argument, parcel.parts) for argument in arguments))
    raise FormatError(f"{value!r:.80} is no call: it was altered, or is of another version")
