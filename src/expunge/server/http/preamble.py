"""Who speaks, as the first bytes of a message say: to check it before the rest is taken in, and to
write it in the log.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from expunge.crypto import canonical
from expunge.crypto.envelope import payload_type, preauthentication
from expunge.crypto.keys import SIGNATURE_BYTES
from expunge.errors import EvidenceError, ExpungeError, FormatError, RefusedError
from expunge.server.state import ServerState
from expunge.wire import payloads
from expunge.wire.schema import checked_hex, checked_integer, checked_name

_FRAMES = {  # of docs/protocol.md: magic, version, length of the header; and what is signed
    "request": struct.Struct("<16sBI"),
    "said": struct.Struct("<13sBI"),
}
_SIGNED = {"request": "request", "said": "aggregation"}
_VERSION = 1
_MOST_HEADER = 1 << 20
_FEDERATION_DIGITS = 32


@dataclass(frozen=True)
class Preamble:
    """What the header of a request, or of a message of a round, claims, and the signature that must
    prove it.
    """

    kind: str
    federation: str
    actor: str
    sequence: int
    header: bytes
    signature: bytes

    def verify(self, core: ServerState) -> None:
        """Refuse it, as the service would, unless an enrolled client of this federation signed
        it.
        """
        if self.federation != core.federation:
            raise RefusedError(
                "wrong-federation",
                f"the request is for federation {self.federation}, this is {core.federation}",
            )
        key = core.actor(self.actor, "client").key
        try:
            key.verify(
                self.signature, preauthentication(payload_type(_SIGNED[self.kind]), self.header)
            )
        except EvidenceError as problem:
            raise RefusedError(
                "bad-signature", f"the request is not signed by the key that {self.actor} enrolled"
            ) from problem


def size_of(kind: str, start: bytes | bytearray) -> int:
    """How many bytes of a request (or of what is "said" in a round) hold its frame, header and
    signature.
    """
    frame = _FRAMES[kind]
    if len(start) < frame.size:
        return frame.size
    magic, version, size = frame.unpack_from(start)
    if magic != f"expunge\0{kind}\0".encode() or version != _VERSION or size > _MOST_HEADER:
        raise RefusedError(
            "malformed", f"this is no request of version {_VERSION}: it does not begin as one"
        )
    return int(frame.size + size + SIGNATURE_BYTES)


def of_message(kind: str, start: bytes | bytearray | memoryview) -> Preamble:
    """The introduction in the first bytes of a request, or of what is "said" in a round of secure
    aggregation.
    """
    view, frame = memoryview(start), _FRAMES[kind]
    size = size_of(kind, bytes(view[: frame.size]))
    if len(view) < max(size, frame.size + SIGNATURE_BYTES):
        raise RefusedError("malformed", "the request is truncated: offer it again")
    header = bytes(view[frame.size : size - SIGNATURE_BYTES])
    try:
        content = canonical.decode(header, "the header of the request")
        if not isinstance(content, dict):
            raise FormatError("the header of the request must be an object")
        return Preamble(
            kind,
            checked_hex(content.get("federation"), _FEDERATION_DIGITS, "the federation"),
            checked_name(content.get("client")),
            checked_integer(
                content.get("sequence"), "the sequence number", 1 if kind == "request" else 0
            ),
            header,
            bytes(view[size - SIGNATURE_BYTES : size]),
        )
    except ExpungeError as problem:
        raise RefusedError("malformed", str(problem)) from problem


def of_envelope(kind: str, data: bytes) -> tuple[str, int]:
    """Actor and sequence number that a question or command claims; those of an enrolment are its
    name and 0.
    """
    try:
        _, content = payloads.open_unverified(kind, data)
    except ExpungeError as problem:
        raise RefusedError("malformed", str(problem)) from problem
    return (content["name"], 0) if kind == "enrolment" else (content["actor"], content["sequence"])
