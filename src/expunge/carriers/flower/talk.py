"""What a server's message and a node's reply say, and their form.

A message has a *turn*, drawn by the server, and names the turn before it in the same conversation (`after`; empty for an
opening). A reply names the turn that it answers. A node uses the answers of a message only if it follows the last turn that the
node has seen: so messages that are late, repeated or of a conversation that was given up do no harm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from expunge import canonical
from expunge.carriers.flower.calls import Call, Reply
from expunge.carriers.flower.parcel import Parcel, Parts, packed, unpacked
from expunge.errors import FormatError, RefusedError
from expunge.evidence import fields

VERSION = 1
_MESSAGE = frozenset({"after", "replies", "turn", "version"})
_ANSWER = frozenset({"calls", "client", "done", "head", "problem", "size", "turn", "version", "waiting"})
_REFUSAL = frozenset({"code", "details", "reason"})
_TAKEN = frozenset({"code", "reason", "self"})  # no names of details


@dataclass(frozen=True)
class ServerSays:
    """A message to a node: answers to the calls of its last reply, and to those that it will likely make next."""

    turn: str
    after: str = ""
    replies: tuple[Reply, ...] = ()

    def to_parcel(self) -> Parcel:
        """The parcel that travels."""
        parts = Parts()
        replies = [_reply(one, parts) for one in self.replies]
        note = {"after": self.after, "replies": replies, "turn": self.turn, "version": VERSION}
        return Parcel(canonical.encode(note), tuple(parts.found))

    @classmethod
    def read(cls, parcel: Parcel) -> ServerSays:
        """The inverse of `to_parcel`."""
        what = "a message of the server"
        note = parcel.content(what, _MESSAGE)
        _require_version(note, what)
        for name, check in (("turn", fields.text), ("after", fields.text), ("replies", _listed)):
            check(note[name], f"{name!r} of {what}")
        return cls(note["turn"], note["after"], tuple(_read_reply(one, parcel) for one in note["replies"]))


@dataclass(frozen=True)
class NodeSays:
    """A node's reply: the calls that its agent made without an answer, in order, and what the client knows.

    `size` of the log as last seen and `head`, the digest of the head in hand, let the server foresee the next calls. `done` says
    that nothing more is to be said for now; then `problem` tells why, if it was not for want of anything to do, and `waiting`
    what other clients must do first.
    """

    turn: str
    client: str
    calls: tuple[Call, ...] = ()
    size: int = 0
    head: str = ""
    done: bool = False
    problem: str = ""
    waiting: str = ""

    def to_parcel(self) -> Parcel:
        """The parcel that travels."""
        parts = Parts()
        calls = [{"arguments": [packed(one, parts) for one in call.arguments], "name": call.name} for call in self.calls]
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
        return Parcel(canonical.encode(note), tuple(parts.found))

    @classmethod
    def read(cls, parcel: Parcel) -> NodeSays:
        """The inverse of `to_parcel`."""
        what = "a node's reply"
        note = parcel.content(what, _ANSWER)
        _require_version(note, what)
        checks = dict.fromkeys(("turn", "client", "head", "problem", "waiting"), fields.text)
        checks |= {"size": fields.count, "done": fields.boolean, "calls": _listed}
        for name, check in checks.items():
            check(note[name], f"{name!r} of {what}")
        calls = tuple(_read_call(one, parcel) for one in note["calls"])
        told = {name: note[name] for name in ("turn", "client", "size", "head", "done", "problem", "waiting")}
        return cls(calls=calls, **told)


def _listed(value: object, what: str) -> object:
    if not isinstance(value, list):
        raise FormatError(f"{what} must be a list, got {value!r:.80}")
    return value


def _require_version(note: dict[str, Any], what: str) -> None:
    if note["version"] != VERSION:
        raise FormatError(f"{what} is of version {note['version']!r:.20}, this is version {VERSION}: install the same Expunge")


def _reply(reply: Reply, parts: Parts) -> dict[str, Any]:
    told: dict[str, Any] = {"call": reply.call, "name": reply.name}
    if reply.refusal is None:
        return told | {"value": packed(reply.value, parts)}
    refusal = reply.refusal
    return told | {"refusal": {"code": refusal.code, "details": refusal.details, "reason": refusal.reason}}


def _read_reply(value: Any, parcel: Parcel) -> Reply:
    match value:
        case {"call": str(call), "name": str(name), "value": found} if len(value) == 3:
            return Reply(call, name, unpacked(found, parcel.parts))
        case {"call": str(call), "name": str(name), "refusal": refusal} if len(value) == 3:
            told = canonical.require_keys(refusal, "a refusal", _REFUSAL)
            code, reason, details = told["code"], told["reason"], told["details"]
            if isinstance(code, str) and isinstance(reason, str) and isinstance(details, dict) and not _TAKEN & set(details):
                return Reply(call, name, refusal=RefusedError(code, reason, **details))
    raise FormatError(f"{value!r:.80} is no answer of a server: it was altered, or is of another version")


def _read_call(value: Any, parcel: Parcel) -> Call:
    match value:
        case {"arguments": list(arguments), "name": str(name)} if len(value) == 2:
            return Call(name, tuple(unpacked(one, parcel.parts) for one in arguments))
    raise FormatError(f"{value!r:.80} is no call: it was altered, or is of another version")
