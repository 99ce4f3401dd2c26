"""Requests of clients: a signed header, and a body that the header's digest covers."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import Any

from expunge.crypto import canonical
from expunge.crypto.envelope import payload_type, preauthentication
from expunge.crypto.keys import SIGNATURE_BYTES, PublicKey, SigningKey
from expunge.errors import FormatError
from expunge.wire.commitment import COMMITMENT_BYTES
from expunge.wire.schema import (
    DIGEST_DIGITS,
    FEDERATION_DIGITS,
    checked_digest,
    checked_flag,
    checked_hex,
    checked_integer,
    checked_name,
)
from expunge.wire.schema import found as checked_found

KINDS = ("gram", "rows", "factor", "group", "none")
_MAGIC = b"expunge\x00request\x00"
_VERSION = 1
_FRAME = struct.Struct(f"<{len(_MAGIC)}sBI")
_MOST_HEADER = 1 << 20
_KEYS = frozenset(
    {
        "added",
        "audits",
        "body",
        "client",
        "deleted",
        "federation",
        "leave",
        "message",
        "nonce",
        "orders",
        "reset",
        "sequence",
        "spec",
    }
)


@dataclass(frozen=True)
class OrderAnswer:
    """What a client found for an erasure order, and deletes by this request: perhaps nothing;
    perhaps not disclosed.
    """

    order: str
    found: int


@dataclass(frozen=True)
class AuditAnswer:
    """What a client's store says of itself: a salted digest of statistics recomputed from its
    samples, and their number.
    """

    audit: str
    digest: str
    count: int


@dataclass(frozen=True, kw_only=True)
class Header:
    """What a client asks, without the samples themselves.

    `nonce` keeps the request's digest from saying anything.
    """

    federation: str
    client: str
    sequence: int
    nonce: str
    data_digest: str
    labels_digest: str
    message: str
    added: int = 0
    deleted: int = 0
    orders: tuple[OrderAnswer, ...] = ()
    audits: tuple[AuditAnswer, ...] = ()
    leave: bool = False
    reset: bool = False

    @property
    def commitments(self) -> tuple[int, int]:
        """How many commitments of samples the body begins with: an aggregator knows none."""
        return (0, 0) if self.message == "group" else (self.added, self.deleted)

    def content(self, body: bytes | memoryview) -> dict[str, Any]:
        """The JSON of the header for this body."""
        return {
            "added": self.added,
            "audits": [
                {"audit": one.audit, "count": one.count, "digest": one.digest}
                for one in self.audits
            ],
            "body": hashlib.sha256(body).hexdigest(),
            "client": self.client,
            "deleted": self.deleted,
            "federation": self.federation,
            "leave": self.leave,
            "message": self.message,
            "nonce": self.nonce,
            "orders": [{"found": one.found, "order": one.order} for one in self.orders],
            "reset": self.reset,
            "sequence": self.sequence,
            "spec": {"data": self.data_digest, "labels": self.labels_digest},
        }


@dataclass(frozen=True)
class Request:
    """A request as it was received: header, commitments and message bytes; `verify` says who signed
    it.
    """

    header: Header
    header_bytes: bytes
    signature: bytes
    added: tuple[bytes, ...]
    deleted: tuple[bytes, ...]
    message: memoryview

    @property
    def digest(self) -> str:
        """SHA-256 of the header, which covers nonce and body."""
        return hashlib.sha256(self.header_bytes).hexdigest()

    def verify(self, key: PublicKey) -> None:
        """Raise EvidenceError unless `key` signed this request."""
        key.verify(self.signature, preauthentication(payload_type("request"), self.header_bytes))


def write(
    header: Header, added: list[bytes], deleted: list[bytes], message: bytes, key: SigningKey
) -> bytes:
    """The bytes of a request. Law: the same arguments give the same bytes."""
    if (len(added), len(deleted)) != header.commitments:
        raise FormatError(
            f"{header.commitments} commitments are needed, got {len(added), len(deleted)}"
        )
    body = b"".join([*added, *deleted, message])
    head = canonical.encode(header.content(body))
    signature = key.sign(preauthentication(payload_type("request"), head))
    return b"".join([_FRAME.pack(_MAGIC, _VERSION, len(head)), head, signature, body])


def read(data: bytes | memoryview) -> Request:
    """The request of these bytes; FormatError for what is truncated, altered or malformed."""
    view = memoryview(data)
    if len(view) < _FRAME.size or bytes(view[: len(_MAGIC)]) != _MAGIC:
        raise FormatError("this is no request: it does not begin as one")
    _, version, size = _FRAME.unpack(view[: _FRAME.size])
    if version != _VERSION:
        raise FormatError(
            f"a request of version {version} is unknown here; this side speaks version {_VERSION}"
        )
    if size > _MOST_HEADER:
        raise FormatError(f"a header of {size} bytes is more than the {_MOST_HEADER} allowed")
    start = _FRAME.size + size
    if len(view) < start + SIGNATURE_BYTES:
        raise FormatError("the request is truncated: offer it again")
    header_bytes, signature = (
        bytes(view[_FRAME.size : start]),
        bytes(view[start : start + SIGNATURE_BYTES]),
    )
    body = view[start + SIGNATURE_BYTES :]
    content = canonical.decode_object(header_bytes, "the header of the request", _KEYS)
    header = _header(content)
    first, second = header.commitments
    numbers = COMMITMENT_BYTES * (first + second)
    if len(body) < numbers or hashlib.sha256(body).hexdigest() != content["body"]:
        raise FormatError("the body of the request is truncated or altered: offer it again")
    found = [bytes(body[at : at + COMMITMENT_BYTES]) for at in range(0, numbers, COMMITMENT_BYTES)]
    return Request(
        header, header_bytes, signature, tuple(found[:first]), tuple(found[first:]), body[numbers:]
    )


def _header(content: dict[str, Any]) -> Header:
    checked_digest(content["body"], "the body's digest")
    spec = canonical.require_keys(
        content["spec"], "the request's spec", frozenset({"data", "labels"})
    )
    if content["message"] not in KINDS:
        raise FormatError(
            f"the message must be one of {', '.join(KINDS)}, got {content['message']!r:.40}"
        )
    if not isinstance(content["orders"], list) or not isinstance(content["audits"], list):
        raise FormatError("orders and audits must be lists")
    return Header(
        federation=checked_hex(content["federation"], FEDERATION_DIGITS, "the federation"),
        client=checked_name(content["client"]),
        sequence=checked_integer(content["sequence"], "the sequence number", 1),
        nonce=checked_hex(content["nonce"], DIGEST_DIGITS, "the nonce"),
        data_digest=checked_digest(spec["data"], "the data digest"),
        labels_digest=checked_digest(spec["labels"], "the labels digest"),
        message=content["message"],
        added=checked_integer(content["added"], "the number of samples added"),
        deleted=checked_integer(content["deleted"], "the number of samples deleted"),
        orders=tuple(_order(item) for item in content["orders"]),
        audits=tuple(_audit(item) for item in content["audits"]),
        leave=checked_flag(content["leave"], "leave"),
        reset=checked_flag(content["reset"], "reset"),
    )


def _order(value: object) -> OrderAnswer:
    fields = canonical.require_keys(value, "an answer to an order", frozenset({"found", "order"}))
    return OrderAnswer(
        checked_hex(fields["order"], 32, "an order"),
        int(checked_found(fields["found"], "the number found")),
    )


def _audit(value: object) -> AuditAnswer:
    fields = canonical.require_keys(
        value, "an answer to an audit", frozenset({"audit", "count", "digest"})
    )
    return AuditAnswer(
        checked_hex(fields["audit"], 32, "an audit"),
        checked_digest(fields["digest"], "the digest of an audit's answer"),
        checked_integer(fields["count"], "the number of samples in an audit's answer"),
    )
