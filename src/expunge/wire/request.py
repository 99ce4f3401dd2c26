"""Requests of clients: a signed header, and a body that the header's digest covers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from expunge.crypto import canonical
from expunge.crypto.envelope import SignedFormat, SignedHeader, require_body
from expunge.crypto.keys import SigningKey
from expunge.errors import FormatError
from expunge.frame import Bytes, Reader
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
FORMAT = SignedFormat("request", "a request", b"expunge\x00request\x00")
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

    def content(self) -> dict[str, Any]:
        """The JSON of the header, but for the digest of the body."""
        return {
            "added": self.added,
            "audits": [
                {"audit": one.audit, "count": one.count, "digest": one.digest}
                for one in self.audits
            ],
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
class Preamble:
    """Who claims to send something under which number; `signed` says whether it is true.

    Whether the body is the one that was signed is open.
    """

    federation: str
    client: str
    sequence: int
    signed: SignedHeader


@dataclass(frozen=True)
class Request:
    """A request as it was received: header, commitments and message bytes; `signed` says who signed
    it.
    """

    header: Header
    signed: SignedHeader
    added: tuple[bytes, ...]
    deleted: tuple[bytes, ...]
    message: memoryview

    @property
    def digest(self) -> str:
        """SHA-256 of the header, which covers nonce and body."""
        return self.signed.digest


def write(
    header: Header, added: list[bytes], deleted: list[bytes], message: bytes, key: SigningKey
) -> bytes:
    """The bytes of a request. Law: the same arguments give the same bytes."""
    if (len(added), len(deleted)) != header.commitments:
        raise FormatError(
            f"{header.commitments} commitments are needed, got {len(added), len(deleted)}"
        )
    body = b"".join([*added, *deleted, message])
    return FORMAT.sign(header.content(), body, key)


def read_preamble(data: Bytes) -> Preamble:
    """Who claims to ask, from the first bytes of a request; FormatError if they do not say."""
    signed, _ = FORMAT.read_signed(data)
    header = _header(_content(signed))
    return Preamble(header.federation, header.client, header.sequence, signed)


def read(data: bytes | memoryview) -> Request:
    """The request of these bytes; FormatError for what is truncated, altered or malformed."""
    signed, body = FORMAT.read_signed(data)
    content = _content(signed)
    header = _header(content)
    require_body(content, body, "the request")
    reader = Reader(body, "the body of the request")
    added, deleted = (
        tuple(reader.pieces(count, COMMITMENT_BYTES, "the commitments"))
        for count in header.commitments
    )
    return Request(header, signed, added, deleted, reader.rest())


def _content(signed: SignedHeader) -> dict[str, Any]:
    return canonical.decode_object(signed.data, "the header of the request", _KEYS)


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
