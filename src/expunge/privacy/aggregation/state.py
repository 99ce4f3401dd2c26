"""What a participant keeps between messages: secret, and whole.

Law: `State.from_bytes(state.to_bytes()) == state`; any altered byte is refused. Once shares are revealed, nothing secret is
left in it.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import Any

from expunge import canonical
from expunge.aggregation import Aggregation
from expunge.errors import FormatError
from expunge.privacy.aggregation.keys import Secrets
from expunge.privacy.aggregation.opening import Opening
from expunge.protocol.names import checked_integer, checked_name

PHASES = ("joined", "shared", "masked", "revealed")

_MAGIC = b"expunge\x00participant\x00"
_VERSION = 1
_FRAME = struct.Struct(f"<{len(_MAGIC)}sBI")
_CHECKSUM = hashlib.sha256().digest_size
_TEXTS = ("deliveries", "join", "key", "masked", "phase", "survivors")
_PARTS = ("roster", "shares", "held", "reveal")
_KEYS = frozenset({*_TEXTS, "included", "name", "opening", "parts", "peers", "rules", "secrets", "sequence"})


@dataclass(frozen=True, repr=False)
class State:
    """A participant's state: what it is, its secrets, and what it has heard and said so far."""

    opening: Opening
    rules: Aggregation
    name: str
    sequence: int
    key: str  # id of its identity key
    join: str = ""  # digest of its message of joining
    phase: str = "joined"
    secrets: Secrets | None = None
    roster: bytes = b""
    shares: bytes = b""  # its message of shares
    deliveries: str = ""  # digest
    peers: tuple[str, ...] = ()  # neighbours whose shares arrived
    held: bytes = b""  # their shares, in their order
    masked: str = ""  # digest of its masked message
    survivors: str = ""  # digest
    reveal: bytes = b""  # its message of revealed shares
    included: tuple[tuple[str, int], ...] | None = None

    def to_bytes(self) -> bytes:
        """The whole state: to be kept from all others."""
        content = {name: getattr(self, name) for name in _TEXTS}
        content |= {
            "included": None if self.included is None else [list(pair) for pair in self.included],
            "name": self.name,
            "opening": self.opening.to_json(),
            "parts": [len(getattr(self, name)) for name in _PARTS],
            "peers": list(self.peers),
            "rules": self.rules.to_dict(),
            "secrets": None if self.secrets is None else self.secrets.to_bytes().hex(),
            "sequence": self.sequence,
        }
        head = canonical.encode(content)
        data = b"".join([_FRAME.pack(_MAGIC, _VERSION, len(head)), head, *(getattr(self, name) for name in _PARTS)])
        return data + hashlib.sha256(data).digest()

    @classmethod
    def from_bytes(cls, data: bytes) -> State:
        """The inverse of `to_bytes`."""
        if len(data) < _FRAME.size + _CHECKSUM or data[: len(_MAGIC)] != _MAGIC:
            raise FormatError("this is no state of a participant: it does not begin as one")
        _, version, size = _FRAME.unpack_from(data)
        if version != _VERSION:
            raise FormatError(
                f"a participant's state of version {version} is unknown here; this release reads version {_VERSION}"
            )
        if hashlib.sha256(data[:-_CHECKSUM]).digest() != data[-_CHECKSUM:]:
            raise FormatError("the state of a participant is damaged: leave this round and wait for the next")
        start = _FRAME.size + size
        content = canonical.decode_object(data[_FRAME.size : start], "the state of a participant", _KEYS)
        parts: dict[str, Any] = {}
        for name, length in zip(_PARTS, content["parts"], strict=True):
            parts[name], start = data[start : start + length], start + length
        secrets, included = content["secrets"], content["included"]
        return cls(
            opening=Opening.from_json(content["opening"]),
            rules=Aggregation.from_dict(content["rules"]),
            name=checked_name(content["name"]),
            sequence=checked_integer(content["sequence"], "the sequence number"),
            secrets=None if secrets is None else Secrets.from_bytes(bytes.fromhex(secrets)),
            peers=tuple(content["peers"]),
            included=None if included is None else tuple((name, sequence) for name, sequence in included),
            **{name: content[name] for name in _TEXTS},
            **parts,
        )
