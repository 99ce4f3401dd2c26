"""What is said in a round of secure aggregation, byte for byte.

Integers are little-endian; a header is canonical JSON; digests, keys and commitments in headers are
lower-case hexadecimal.

*Said* by a client: `expunge`, NUL, `said`, NUL; version 2 (one byte); the length of the header
(uint32); the header; an Ed25519 signature of 64 bytes over the PAE of
`application/vnd.expunge.aggregation.v2+json` and the header; the body. *Told* by the server:
`expunge`, NUL, `told`, NUL, version, length, header, body; the server signs the answer that
contains it. Every header has `kind`, `federation`, `round` and `body` (SHA-256 of the body); the
said ones have `client` and `sequence`; all but join and roster have `roster`, the SHA-256 of the
bytes of the roster.

- said `join`: `purpose`, `spec` (`data`, `labels`), `rules`, `cipher` and `mask` (public X25519
  keys); and `exposed`, true, by a client whose part hides nobody any more (unmasking.py), and by no
  other. No body.
- told `roster`: `purpose`, `spec`, `rules`, `clients` (list of `[name, sequence]`, sorted by name);
  and `exposed`, the names of those whose join says so, sorted, if there are any. Body: for each
  client its cipher key, its mask key and the signature of its join, 128 bytes. A join is not
  repeated whole: its header follows from the roster's and these bytes, and its signature must fit.
- said `shares`: `seed` (commitment to the self seed), `own` (digest of the client's own share of
  it). Body: for each neighbour, by name, a parcel.
- told `deliveries`: `client` (to whom), `senders` (neighbours whose shares arrived, sorted); and
  `justified`, those of them that answered the client's complaint, sorted, if it complained. Body:
  for each sender its parcel; then for each that answered the two shares of its justification.
- said `masked`: `deliveries` (SHA-256 of their bytes), `length`. Body: the masked vector, 16 bytes
  an entry.
- told `survivors`: `clients` (whose masked vectors arrived, sorted). No body.
- said `agreed`: `survivors` (SHA-256 of their bytes). No body.
- told `agreements`: `survivors`, `clients` (survivors that agreed, sorted). Body: for each of them
  the signature of its `agreed`, whose header follows from the roster and the survivors, 64 bytes.
- said `reveal`: `survivors` (SHA-256 of their bytes). Body: for itself and each sender of the
  deliveries, sorted by name, a share of 33 bytes: of the self seed of a survivor, of the mask key
  of another.

- said `complaint`, before `masked`: `dealers`, whose parcels cannot be used, sorted. Body: for each
  of them the parcel, as it was delivered. The server passes the message on to each dealer.
- said `justification`, by a dealer: `holder`, who complained of it. Body: the holder's shares of
  the dealer's self seed and mask key, 33 bytes each.
- said `opening`: to the arbiter, of a round whose sum was false (arbitration.py): `version`, 2.
  Body: an X25519 public key of 32 bytes, and sealed with it (ChaCha20-Poly1305 with a nonce of
  zeros, and that key as associated data): mask key, self seed and dealing seed, 32 bytes each;
  then, each after its length (8 bytes), the keys that seal the client's parcels (32 bytes for each
  neighbour, by name), the statistics that it adds and those that it deletes, 0 for none.

A *parcel* from a dealer to a holder has 146 bytes: 82 sealed ones (the holder's shares of the self
seed and of the mask key, 33 bytes each, by ChaCha20-Poly1305 with a nonce of zeros under a key for
this parcel alone, with both digests as associated data), and the digests of both shares (32 each).

Keys are HKDF-SHA256 without salt, 32 bytes; digests of secrets are SHA-256. Both are bound by a
*context*: `expunge`, NUL, `aggregation`, NUL, 0x02 and the canonical JSON of `[use, federation,
round, roster, names...]`, which is HKDF's info, and precedes the content of a digest. Uses and
names:

- `parcel`, dealer and holder: key from X25519 of their cipher keys; seals a parcel.
- `pair mask`, both sorted: key from X25519 of their mask keys; the mask that the first adds and the
  second subtracts.
- `self mask`, client: key from the self seed; the mask that the client adds.
- `opening`, client: key from X25519 of the opening's key and the arbiter's; seals an opening.
- `opening key`, client and digest of the content: the private key of an opening; other parties
  cannot tell how it was made.
- `dealing seed`, `dealing mask`, client: keys of the streams from which the coefficients of
  polynomials are drawn; other parties cannot tell how.
- `seed`, client: digest that commits a client to its self seed.
- `seed share`, `mask share`, dealer and holder: digest of a share.

The holders of a client's shares are the client and its neighbours, sorted by name and numbered from
1 (shamir.py). The ring of neighbours (roster.py) has the seed SHA-256 of the context with use
`ring` and no names; degree, threshold and quorum are those of plan.py.

Version 1 had no agreement and a lower threshold: a server that lied could open a client's vector.
Its messages are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from expunge.crypto import canonical
from expunge.crypto.envelope import (
    SignedFormat,
    SignedHeader,
    header_bytes,
    require_body,
)
from expunge.crypto.keys import SigningKey
from expunge.errors import FormatError, SpecError
from expunge.frame import Bytes, HeaderFormat, Reader
from expunge.ridge.spec import Aggregation
from expunge.secagg.plan import Opening
from expunge.wire import request, schema

VERSION = 2
_RETIRED = (
    "a server that lies could open a client's vector in rounds of that version. Update Expunge "
    "where the older version runs"
)
SAID = SignedFormat(
    "aggregation",
    "a message of a round",
    b"expunge\x00said\x00",
    version=VERSION,
    retired=_RETIRED,
)
_TOLD = HeaderFormat(
    "a message of a round",
    b"expunge\x00told\x00",
    1 << 24,  # a roster of a hundred thousand clients has some megabytes of names
    version=VERSION,
    remedy="ask again",
    retired=_RETIRED,
)
OPENING_VERSION = 2  # version 1 did not show what its client had dealt
ClientKind = Literal[
    "join", "shares", "complaint", "justification", "masked", "agreed", "reveal", "opening"
]
ServerKind = Literal["roster", "deliveries", "survivors", "agreements"]


def _opening_version(value: Any, what: str) -> Any:
    if schema.count(value, what) != OPENING_VERSION:
        raise FormatError(
            f"{what} must be {OPENING_VERSION}, got {value}: update Expunge where the other "
            "version runs"
        )
    return value


def _exposed(value: Any, what: str) -> Any:
    """Said by those whose part is exposed; others do not speak of it."""
    if value is not True:
        raise FormatError(f"{what} must be true, or missing, got {value!r:.40}")
    return value


_FIELDS: dict[str, schema.Check] = {
    "body": schema.digest,
    "cipher": schema.digest,
    "client": schema.name,
    "clients": schema.anything,
    "dealers": schema.anything,
    "deliveries": schema.digest,
    "federation": schema.federation,
    "holder": schema.name,
    "kind": schema.string,
    "length": schema.positive,
    "mask": schema.digest,
    "own": schema.digest,
    "purpose": schema.anything,
    "roster": schema.digest,
    "round": schema.drawn_id,
    "rules": schema.anything,
    "seed": schema.digest,
    "senders": schema.anything,
    "sequence": schema.count,
    "spec": schema.anything,
    "survivors": schema.digest,
    "version": _opening_version,
}


def _header(*names: str, **optional: schema.Check) -> schema.Check:
    always = ("body", "federation", "kind", "round")
    return schema.objects({name: _FIELDS[name] for name in (*always, *names)}, optional=optional)


CLIENT_MESSAGES: dict[ClientKind, schema.Check] = {
    "join": _header(
        "cipher", "client", "mask", "purpose", "rules", "sequence", "spec", exposed=_exposed
    ),
    "shares": _header("client", "own", "roster", "seed", "sequence"),
    "complaint": _header("client", "dealers", "roster", "sequence"),
    "justification": _header("client", "holder", "roster", "sequence"),
    "masked": _header("client", "deliveries", "length", "roster", "sequence"),
    "agreed": _header("client", "roster", "sequence", "survivors"),
    "reveal": _header("client", "roster", "sequence", "survivors"),
    "opening": _header("client", "roster", "sequence", "version"),
}
SERVER_MESSAGES: dict[ServerKind, schema.Check] = {
    "roster": _header("clients", "purpose", "rules", "spec", exposed=schema.anything),
    "deliveries": _header("client", "roster", "senders", justified=schema.anything),
    "survivors": _header("clients", "roster"),
    "agreements": _header("clients", "roster", "survivors"),
}


@dataclass(frozen=True)
class ClientMessage:
    """A client's message as it was received; `signed` says whether the client signed it."""

    header: dict[str, Any]
    signed: SignedHeader
    body: memoryview

    @property
    def kind(self) -> ClientKind:
        """What it says."""
        kind: ClientKind = self.header["kind"]
        return kind

    @property
    def client(self) -> str:
        """Who claims to have said it."""
        return str(self.header["client"])

    @property
    def data(self) -> bytes:
        """Its bytes, for whoever is to check the signature, too."""
        return SAID.write(self.signed.data, self.signed.signature, self.body)


def sign(header: dict[str, Any], body: Bytes, key: SigningKey) -> bytes:
    """The bytes of a client's message. Law: the same arguments give the same bytes."""
    return SAID.sign(header, body, key)


def is_said(data: Bytes) -> bool:
    """Whether these are the bytes of a client's message, which the server passes on, and not of one
    of its own.
    """
    return bytes(data[: len(SAID.magic)]) == SAID.magic


def write_server_message(header: dict[str, Any], body: bytes = b"") -> bytes:
    """The bytes of what the server tells. Law: the same arguments give the same bytes."""
    return _TOLD.write(header_bytes(header, body), body)


def read_client_message(data: bytes | memoryview) -> ClientMessage:
    """A client's message of any kind; FormatError for what is truncated, altered or malformed."""
    signed, body = SAID.read_signed(data)
    header = _checked(signed.data, CLIENT_MESSAGES)
    require_body(header, body, f"the {header['kind']}")
    return ClientMessage(header, signed, body)


@dataclass(frozen=True)
class MessagePreamble(request.Preamble):
    """Who claims to say what in which round."""

    round: str
    kind: ClientKind


def read_preamble(data: Bytes) -> MessagePreamble:
    """How a client's message introduces itself, which tells its round; else FormatError."""
    signed, _ = SAID.read_signed(data)
    header = _checked(signed.data, CLIENT_MESSAGES)
    claims = {name: header[name] for name in ("federation", "round", "client", "sequence", "kind")}
    return MessagePreamble(**claims, signed=signed)


def read_server_message(
    kind: ServerKind, data: bytes | memoryview
) -> tuple[dict[str, Any], memoryview]:
    """Header and body of what the server tells, of this kind; FormatError for anything else."""
    head, reader = _TOLD.read(data)
    header, body = _checked(head, {kind: SERVER_MESSAGES[kind]}), reader.rest()
    require_body(header, body, f"the {kind}")
    return header, body


def _checked(head: bytes, kinds: Mapping[Any, schema.Check]) -> dict[str, Any]:
    value = canonical.decode(head, "a header of a round")
    kind = value.get("kind") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in kinds:
        raise FormatError(f"{' or '.join(kinds)} was expected, got {kind!r:.40}")
    header: dict[str, Any] = kinds[kind](value, f"the header of the {kind}")
    return header


def opening_of(header: dict[str, Any]) -> Opening:
    """The round that a join or a roster names."""
    spec = canonical.require_keys(
        header["spec"], f"the spec of the {header['kind']}", frozenset({"data", "labels"})
    )
    return Opening(
        header["federation"], header["round"], header["purpose"], spec["data"], spec["labels"]
    )


def rules_of(header: dict[str, Any]) -> Aggregation:
    """The rules that a join or a roster names."""
    try:
        return Aggregation.from_dict(header["rules"])
    except SpecError as problem:
        raise FormatError(f"the rules of the {header['kind']} cannot be: {problem}") from problem


def about(opening: Opening, rules: Aggregation) -> dict[str, Any]:
    """The fields that joins and rosters have in common."""
    return {
        "federation": opening.federation,
        "purpose": opening.purpose,
        "round": opening.round,
        "rules": rules.to_dict(),
        "spec": {"data": opening.data_digest, "labels": opening.labels_digest},
    }


def pieces(body: memoryview, count: int, size: int, what: str) -> list[bytes]:
    """The body as exactly `count` pieces of `size` bytes."""
    reader = Reader(body, what, "whoever made them must make them anew")
    parts = reader.pieces(count, size, "the body")
    reader.end()
    return parts


def names(value: object, what: str) -> tuple[str, ...]:
    """A list of names in order, none twice."""
    if not isinstance(value, list):
        raise FormatError(f"{what} must be a list of names, got {type(value).__name__}")
    checked_names = tuple(schema.name(name, f"a name in {what}") for name in value)
    if any(left >= right for left, right in pairwise(checked_names)):
        raise FormatError(f"{what} must be sorted by name, and name nobody twice")
    return checked_names
