"""Requests of clients: a signed header, and a body that the header's digest covers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from expunge import kinds
from expunge.crypto import canonical
from expunge.crypto.envelope import SignedFormat, SignedHeader, require_body
from expunge.crypto.keys import SigningKey
from expunge.errors import FormatError
from expunge.frame import Bytes, Reader
from expunge.kinds import RequestKind
from expunge.wire import schema
from expunge.wire.commitment import COMMITMENT_BYTES

FORMAT = SignedFormat("request", "a request", b"expunge\x00request\x00")
_CHECK = schema.objects(
    {
        "added": schema.count,
        "audits": schema.lists(
            schema.objects(
                {"audit": schema.drawn_id, "count": schema.count, "digest": schema.digest}
            )
        ),
        "body": schema.digest,
        "client": schema.name,
        "deleted": schema.count,
        "federation": schema.federation,
        "leave": schema.boolean,
        "message": schema.one_of(*kinds.REQUEST_KINDS),
        "nonce": schema.nonce,
        "orders": schema.lists(schema.objects({"found": schema.found, "order": schema.drawn_id})),
        "reset": schema.boolean,
        "sequence": schema.positive,
        "spec": schema.data_digests,
    }
)


@dataclass(frozen=True)
class OrderAnswer:
    """How many samples a client found for an erasure order, and deletes by this request; perhaps
    none, perhaps not disclosed (-1).
    """

    order: str
    found: int


@dataclass(frozen=True)
class AuditAnswer:
    """A client's answer to an audit: a salted digest of the statistics recomputed from its samples,
    and their number.
    """

    audit: str
    digest: str
    count: int


@dataclass(frozen=True, kw_only=True)
class Header:
    """What a client asks for, without the samples themselves.

    `nonce` is random, so that the request's digest says nothing about its content.
    """

    federation: str
    client: str
    sequence: int
    nonce: str
    data_digest: str
    labels_digest: str
    message: RequestKind
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
                {"audit": answer.audit, "count": answer.count, "digest": answer.digest}
                for answer in self.audits
            ],
            "client": self.client,
            "deleted": self.deleted,
            "federation": self.federation,
            "leave": self.leave,
            "message": self.message,
            "nonce": self.nonce,
            "orders": [{"found": answer.found, "order": answer.order} for answer in self.orders],
            "reset": self.reset,
            "sequence": self.sequence,
            "spec": {"data": self.data_digest, "labels": self.labels_digest},
        }


@dataclass(frozen=True)
class Preamble:
    """The claimed sender of a message and its number; `signed` verifies the claim.

    Whether the body is the one that was signed is not checked yet.
    """

    federation: str
    client: str
    sequence: int
    signed: SignedHeader


@dataclass(frozen=True)
class Request:
    """A request as it was received: header, commitments and message bytes; `signed` verifies the
    sender.
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
    require_body(content, body, "the request")
    return _request(signed, content, body)


def read_own(data: bytes) -> Request:
    """The same of bytes that `write` has just given: the digest of their body is not checked."""
    signed, body = FORMAT.read_signed(data)
    return _request(signed, _content(signed), body)


def _request(signed: SignedHeader, content: dict[str, Any], body: memoryview) -> Request:
    header = _header(content)
    reader = Reader(body, "the body of the request")
    added, deleted = (
        tuple(reader.pieces(count, COMMITMENT_BYTES, "the commitments"))
        for count in header.commitments
    )
    return Request(header, signed, added, deleted, reader.rest())


def _content(signed: SignedHeader) -> dict[str, Any]:
    what = "the header of the request"
    return _CHECK(canonical.decode(signed.data, what), what)


def _header(content: dict[str, Any]) -> Header:
    same = ("federation", "client", "sequence", "nonce", "message", "added", "deleted", "leave")
    return Header(
        **{name: content[name] for name in (*same, "reset")},
        data_digest=content["spec"]["data"],
        labels_digest=content["spec"]["labels"],
        orders=tuple(OrderAnswer(answer["order"], answer["found"]) for answer in content["orders"]),
        audits=tuple(
            AuditAnswer(answer["audit"], answer["digest"], answer["count"])
            for answer in content["audits"]
        ),
    )
