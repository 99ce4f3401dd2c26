"""Peers: the keys of the other clients, as the audit log shows them to everybody, or as they were pinned by hand.

A server that could give each client other keys could put itself in the middle of a round of secure aggregation. So a client takes
keys from the log only: it reads every entry, and its own reckoning of the root must be that of the checkpoint that it follows,
which receipts, certificates and other clients' checkpoints are compared with. A name has one key for ever.

Pins are stronger: keys compared out of band. Where there are pins, nobody else is accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from expunge import canonical
from expunge.errors import EvidenceError, InputError
from expunge.evidence import fields, read_entry
from expunge.evidence.frontier import Frontier
from expunge.signing import PublicKey

_ACTIVE, _AWAY, _GONE = "active", "away", "gone"
_AT_ONCE = 1000  # entries
_CHECK = fields.objects(
    {
        "frontier": lambda value, _: value,
        "keys": fields.mapping(fields.name, fields.key_text),
        "states": fields.mapping(fields.name, fields.one_of(_ACTIVE, _AWAY, _GONE)),
    }
)

Entries = Callable[[int, int], list[bytes]]


@dataclass(frozen=True)
class Peers:
    """Every client that the log has enrolled, up to a place in it."""

    frontier: Frontier = Frontier()  # noqa: RUF009 - a frozen value
    keys: Mapping[str, str] = field(default_factory=dict)  # name to public key
    states: Mapping[str, str] = field(default_factory=dict)

    @property
    def active(self) -> frozenset[str]:
        """The clients that take part now."""
        return frozenset(name for name, state in self.states.items() if state == _ACTIVE)

    @property
    def gone(self) -> frozenset[str]:
        """The clients that have left, or were forgotten."""
        return frozenset(name for name, state in self.states.items() if state == _GONE)

    def read_on(self, entries: Entries, size: int, root: bytes) -> Peers:
        """The peers in the log of this size and root, whose entries are asked for; EvidenceError if they are not that log."""
        peers = self._extended(entries, size) if size >= self.frontier.size else Peers()
        if peers.frontier.root != root:  # a log that was lost in part, and whose loss has been accepted: read it anew
            peers = Peers()._extended(entries, size)
        if peers.frontier.root != root:
            raise EvidenceError("the entries that the server shows are not those of its log: its root is another")
        for name, key in self.keys.items():
            if peers.keys.get(name, key) != key:
                raise EvidenceError(f"the log no longer shows the key that {name} enrolled: keep away from this server")
        return peers

    def _extended(self, entries: Entries, size: int) -> Peers:
        peers = self
        while peers.frontier.size < size:
            start = peers.frontier.size
            found = entries(start, min(size, start + _AT_ONCE))
            if not found or start + len(found) > size:
                raise EvidenceError(f"the server does not show the entries of its log from number {start} on")
            peers = peers._after(found)
        return peers

    def _after(self, entries: list[bytes]) -> Peers:
        keys, states = dict(self.keys), dict(self.states)
        for data in entries:
            entry = read_entry(data)
            _learn(entry, keys, states)
        return Peers(self.frontier.extended(entries), keys, states)

    def to_text(self) -> str:
        """For the store."""
        content = {"frontier": self.frontier.to_json(), "keys": dict(self.keys), "states": dict(self.states)}
        return canonical.encode(content).decode("ascii")

    @classmethod
    def from_text(cls, text: str | None) -> Peers:
        """The inverse of `to_text`; nobody, if nothing was stored."""
        if not text:
            return cls()
        parts = _CHECK(canonical.decode(text.encode("ascii"), "the peers of this client"), "the peers of this client")
        return replace(cls(), frontier=Frontier.from_json(parts["frontier"]), keys=parts["keys"], states=parts["states"])


def _learn(entry: dict[str, Any], keys: dict[str, str], states: dict[str, str]) -> None:
    kind = entry["kind"]
    if kind == "enrolled" and entry["role"] == "client":
        name = entry["name"]
        if keys.get(name, entry["key"]) != entry["key"]:
            raise EvidenceError(f"the log enrols {name} twice, with two keys: the server may be putting itself in its place")
        keys[name], states[name] = entry["key"], _ACTIVE
    elif kind == "changed":
        states[entry["client"]] = _GONE if entry["leave"] else _ACTIVE
    elif kind == "aggregated":
        states |= {member["client"]: _ACTIVE for member in entry["clients"]}
    elif kind == "forgotten":
        states[entry["client"]] = _GONE
    elif kind == "commanded" and entry["action"] == "forget-client":
        states[str(entry["summary"].get("client"))] = _GONE
    elif kind == "restored":
        states |= {name: _AWAY for name, state in states.items() if state == _ACTIVE}


def trusted(peers: Peers, pins: Mapping[str, str]) -> dict[str, PublicKey]:
    """The keys that a roster is held against: the pins, where there are any, which must agree with the log."""
    for name, key in pins.items():
        if peers.keys.get(name, key) != key:
            raise EvidenceError(f"the log shows another key for {name} than the one pinned here: take no part, and ask {name}")
    return {name: PublicKey.from_text(key) for name, key in (pins or peers.keys).items()}


def read_pins(text: str | None) -> dict[str, str]:
    """Pins as a JSON object of names and public keys; none, if there is nothing."""
    if not text:
        return {}
    found: dict[str, str] = fields.mapping(fields.name, fields.key_text)(
        canonical.decode(text.encode("ascii"), "the pins"), "the pins"
    )
    return found


def pins_text(pins: Mapping[str, str]) -> str:
    """The inverse of `read_pins`."""
    for name, key in pins.items():
        fields.name(name, "the name of a pin")
        try:
            PublicKey.from_text(key)
        except Exception as problem:
            raise InputError(f"the key pinned for {name} is no public key: {problem}") from problem
    return canonical.encode(dict(pins)).decode("ascii") if pins else ""
