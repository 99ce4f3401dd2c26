"""Arbitration: whose part of a false sum was false.

Under masks nobody sees a single client's part. When a sum turns out to be that of no samples, or
would leave no head, or cannot be unmasked by the shares that a client dealt, its clients open their
parts to the *arbiter*, whose public keys are in the spec, and to nobody else. The arbiter knows
then what each client added and deleted, and by its secrets of the round which shares it must have
dealt and what it must have sent; and compares that with what the client signed to have dealt and
sent.

Law: a client that dealt its shares and sent the sums of samples that it has, and opens them, is
never found false. Whoever is found false has dealt or sent something else than it opened, or what
are no sums of samples. What an arbiter cannot find: a part that is true to some samples, which the
client never had.

`Arbiter` has the two private keys; `Opened` is what an opening holds; `RoundRecords` what the
server holds of a round; a `Dispute` is both, as the arbiter gets them; `examine` compares them; a
`Verdict` is what it signs. Nothing here has a clock, I/O or randomness of its own.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from expunge import kinds
from expunge.crypto import Envelope, PublicKey, SigningKey, canonical
from expunge.crypto.envelope import SignedHeader
from expunge.errors import EvidenceError, ExpungeError, FormatError, SpecError
from expunge.exact import blas, wide
from expunge.frame import Reader, pack
from expunge.ridge.plausibility import problem_with
from expunge.ridge.spec import Spec
from expunge.ridge.statistics import Statistics
from expunge.secagg import messages
from expunge.secagg.keys import KEY_BYTES, Private, checked_public, seal, unseal
from expunge.secagg.masks import Contribution, MaskedVector
from expunge.secagg.parcels import Dealing
from expunge.secagg.roster import Roster
from expunge.secagg.unmasking import Part
from expunge.wire import schema

VERSION = 2  # of disputes; one of version 1 does not show what was dealt
_UNIT = 2.0**-53


class Arbiter:
    """Both private keys of an arbiter: one opens what clients seal for it, one signs verdicts."""

    def __init__(self, secret: bytes) -> None:
        if len(secret) != 2 * KEY_BYTES:
            raise FormatError(
                f"an arbiter has two keys of {KEY_BYTES} bytes, got {len(secret)} bytes"
            )
        self._cipher = Private(secret[:KEY_BYTES])
        self._key = SigningKey(secret[KEY_BYTES:])
        self.secret = secret

    @property
    def public(self) -> str:
        """Its public keys, as the rules of aggregation name it."""
        return (self._cipher.public + self._key.public.raw).hex()

    def open(self, roster: Roster, client: str, body: memoryview) -> Opened:
        """What a client sealed for this arbiter; EvidenceError for anything else."""
        sealed = bytes(body)
        public = sealed[:KEY_BYTES]
        key = roster.context.key(self._cipher.agreed(public, client), "opening", client)
        return Opened.from_bytes(unseal(key, sealed[KEY_BYTES:], public, client))

    def sign(self, verdict: Verdict) -> Envelope:
        """The verdict, signed."""
        return Envelope.signed("verdict", verdict.to_json(), self._key)


def require_public(arbiter: str) -> None:
    """Raise SpecError unless these are public keys for which an arbiter can have the private
    ones.
    """
    try:
        checked_public(bytes.fromhex(arbiter)[:KEY_BYTES], "the arbiter's key")
        signing_key_of(arbiter)
    except FormatError as problem:
        raise SpecError(
            f"arbiter={arbiter[:16]}… of the aggregation cannot be: {problem}. Use the arbiter.pub "
            "that `expunge arbiter create` wrote"
        ) from problem


def signing_key_of(arbiter: str) -> PublicKey:
    """The key that signs an arbiter's verdicts, of its public keys."""
    return PublicKey(bytes.fromhex(arbiter)[KEY_BYTES:])


@dataclass(frozen=True, repr=False)
class Opened:
    """What an opening holds: what the client's shares and masks of one round follow from, and what
    it adds and deletes.
    """

    dealing: Dealing
    added: bytes  # canonical statistics, or nothing
    deleted: bytes

    @classmethod
    def of(cls, dealing: Dealing, added: Statistics | None, deleted: Statistics | None) -> Opened:
        """These secrets and statistics."""
        parts = (b"" if part is None else part.to_bytes() for part in (added, deleted))
        return cls(dealing, *parts)

    def to_bytes(self) -> bytes:
        """All of it. Keep secret."""
        dealing = self.dealing
        parts = (b"".join(dealing.keys), self.added, self.deleted)
        prefixed = (piece for part in parts for piece in (pack("Q", len(part)), part))
        return b"".join((dealing.mask, dealing.seed, dealing.dealing, *prefixed))

    @classmethod
    def from_bytes(cls, data: bytes) -> Opened:
        """The inverse of `to_bytes`."""
        remedy = "the client must open its part again"
        reader = Reader(data, "an opening", remedy)
        mask, seed, dealing = reader.pieces(3, KEY_BYTES, "the secrets")
        sealing, added, deleted = (
            bytes(reader.prefixed(part, "Q"))
            for part in ("the keys of parcels", "what is added", "what is deleted")
        )
        reader.end()
        keys = Reader(sealing, "the keys of parcels", remedy)
        pieces = keys.pieces(len(sealing) // KEY_BYTES, KEY_BYTES, "the keys of parcels")
        keys.end()
        return cls(Dealing(mask, seed, dealing, tuple(pieces)), added, deleted)

    def contribution(self, spec: Spec) -> tuple[Contribution, list[Statistics]]:
        """What it comes to, and both statistics as far as there are any; FormatError or
        SpecMismatchError if they cannot be read.
        """
        added, deleted = (
            Statistics.from_bytes(spec, part) if part else None
            for part in (self.added, self.deleted)
        )
        parts = [part for part in (added, deleted) if part is not None]
        return Contribution.of(added, deleted, spec), parts


def seal_opening(roster: Roster, name: str, opened: Opened) -> bytes:
    """The body of an opening, which the arbiter of the rules alone can read.

    Law: the same arguments give the same bytes.
    """
    context, content = roster.context, opened.to_bytes()
    digest = hashlib.sha256(content).hexdigest()  # so that no key ever seals two contents
    ephemeral = Private(context.key(opened.dealing.dealing, "opening key", name, digest))
    arbiter = bytes.fromhex(roster.rules.arbiter)[:KEY_BYTES]
    key = context.key(ephemeral.agreed(arbiter, "the arbiter"), "opening", name)
    return ephemeral.public + seal(key, content, ephemeral.public)


def spec_of_round(spec: Spec, labels_digest: str) -> Spec:
    """The spec as it was in a round, to which labels may have been appended since."""
    if spec.labels is None or labels_digest not in spec.lineage:
        return spec
    return replace(spec, labels=spec.labels[: spec.lineage.index(labels_digest)])


@dataclass(frozen=True)
class RoundRecords:
    """What the server holds of a round: the roster, and by client the signed headers of its shares
    and of its masked vector, and what it was sent in between.
    """

    roster: bytes
    shares: Mapping[str, SignedHeader]
    masked: Mapping[str, SignedHeader]
    deliveries: Mapping[str, bytes]

    @property
    def digest(self) -> str:
        """SHA-256 of the roster."""
        return hashlib.sha256(self.roster).hexdigest()

    @property
    def names(self) -> tuple[str, ...]:
        """Everybody in the roster."""
        return Roster.read(self.roster).names

    @property
    def exposed(self) -> frozenset[str]:
        """Those of them that said in their join that their part hides nobody."""
        return frozenset(name for name, _ in Roster.read(self.roster).exposed)

    @property
    def labels_digest(self) -> str:
        """Of the spec that the round was opened with."""
        return Roster.read(self.roster).opening.labels_digest

    def to_json(self) -> dict[str, Any]:
        """A JSON value; `from_json` is its inverse."""
        return {
            "deliveries": {name: _text(data) for name, data in self.deliveries.items()},
            "masked": signed_json(self.masked),
            "roster": _text(self.roster),
            "shares": signed_json(self.shares),
        }

    @classmethod
    def from_json(cls, value: object) -> RoundRecords:
        """The inverse of `to_json`; FormatError for anything else."""
        content = _RECORDS(value, "the records of a round")
        return cls(
            _bytes(content["roster"]),
            _signed_of(content["shares"]),
            _signed_of(content["masked"]),
            {name: _bytes(text) for name, text in content["deliveries"].items()},
        )


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _bytes(text: str) -> bytes:
    return canonical.binary(text, "a part of a dispute")


def signed_json(headers: Mapping[str, SignedHeader]) -> dict[str, list[str]]:
    """Signed headers by client, as a JSON value: header and signature in Base64."""
    return {name: [_text(signed.data), _text(signed.signature)] for name, signed in headers.items()}


def _signed_of(value: Mapping[str, list[str]]) -> dict[str, SignedHeader]:
    if any(len(pair) != 2 for pair in value.values()):
        raise FormatError("a signed header of a round must be a header and a signature, got others")
    return {
        name: messages.SAID.signed(*(_bytes(text) for text in pair)) for name, pair in value.items()
    }


def verify_masked(
    value: Mapping[str, list[str]], verdict: Verdict, keys: Mapping[str, PublicKey]
) -> None:
    """Raise EvidenceError unless these clients have signed to have sent masked vectors in the round
    and roster of a verdict, under the numbers that it names.
    """
    sequences = dict(verdict.parts)
    for name, signed in _signed_of(value).items():
        content = canonical.decode(signed.data, f"the header of the masked vector of {name}")
        header = messages.CLIENT_MESSAGES["masked"](content, "the header of a masked vector")
        about = (verdict.federation, verdict.aggregation, verdict.roster, sequences.get(name))
        if name not in keys or (header["kind"], header["client"]) != ("masked", name):
            raise EvidenceError(f"the log shows no masked vector of {name} with a verdict about it")
        if about != tuple(header[key] for key in ("federation", "round", "roster", "sequence")):
            raise EvidenceError(f"the log shows what {name} sent in another round than the verdict")
        signed.verify(keys[name])


_BY_NAME = schema.mapping(schema.name, schema.string)
_HEADERS = schema.mapping(schema.name, schema.lists(schema.string))
_PARTS = schema.lists(schema.objects({"client": schema.name, "sequence": schema.count}))
_RECORDS = schema.objects(
    {
        "deliveries": _BY_NAME,
        "masked": _HEADERS,
        "roster": schema.string,
        "shares": _HEADERS,
    }
)
_DISPUTE = schema.objects(
    {
        "clients": _PARTS,
        "federation": schema.federation,
        "keys": schema.mapping(schema.name, schema.key_text),
        "reason": schema.one_of(*kinds.VOID_REASONS),
        "records": schema.anything,
        "spec": schema.anything,
        "version": schema.count,
    }
)
_VERDICT = schema.objects(
    {
        "aggregation": schema.drawn_id,
        "clients": _PARTS,
        "false": schema.mapping(schema.name, schema.string),
        "federation": schema.federation,
        "roster": schema.digest,
        "time": schema.time,
    }
)


def parts_json(parts: Collection[Part]) -> list[dict[str, Any]]:
    """Parts as a JSON value, by name."""
    return [{"client": client, "sequence": sequence} for client, sequence in sorted(parts)]


def parts_of(value: list[dict[str, Any]]) -> frozenset[Part]:
    """The parts that entries, disputes and verdicts list."""
    return frozenset((member["client"], member["sequence"]) for member in value)


@dataclass(frozen=True)
class Dispute:
    """A false sum, as the arbiter gets it: whose, what the server holds of its round, and the
    openings that have arrived.
    """

    spec: Spec
    federation: str
    reason: kinds.VoidReason
    parts: frozenset[Part]
    records: RoundRecords
    keys: Mapping[str, str]  # of the clients, as the server knows them
    openings: Mapping[str, bytes] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """A JSON value without the openings, which are files of their own."""
        return {
            "clients": parts_json(self.parts),
            "federation": self.federation,
            "keys": dict(self.keys),
            "reason": self.reason,
            "records": self.records.to_json(),
            "spec": self.spec.to_dict(),
            "version": VERSION,
        }

    @classmethod
    def from_json(cls, value: object, openings: Mapping[str, bytes]) -> Dispute:
        """The inverse of `to_json`, with these openings; FormatError for anything else."""
        content = _DISPUTE(value, "a dispute")
        if content["version"] != VERSION:
            raise FormatError(
                f"the dispute has version {content['version']}, this is version {VERSION}: use "
                "the same version of Expunge as the server"
            )
        return cls(
            Spec.from_dict(content["spec"]),
            content["federation"],
            content["reason"],
            parts_of(content["clients"]),
            RoundRecords.from_json(content["records"]),
            content["keys"],
            dict(openings),
        )


@dataclass(frozen=True)
class Examined:
    """What has come out: for each client with an opening what it added and deleted, and why its
    part is false ("" if it is not); and who has not opened its part.
    """

    found: Mapping[str, str]
    counts: Mapping[str, tuple[int, int]]
    missing: tuple[str, ...]

    @property
    def false(self) -> dict[str, str]:
        """Those found false, each with the reason."""
        return {name: reason for name, reason in self.found.items() if reason}


@dataclass(frozen=True)
class Verdict:
    """Whose part of a sum was false, each with the reason; nobody's, if it may be applied."""

    federation: str
    aggregation: str
    roster: str  # digest: clients believe a verdict about the roster that they know
    parts: frozenset[Part]
    false: Mapping[str, str]
    time: str

    def to_json(self) -> dict[str, Any]:
        """A JSON value; `read` is its inverse."""
        return {
            "aggregation": self.aggregation,
            "clients": parts_json(self.parts),
            "false": dict(self.false),
            "federation": self.federation,
            "roster": self.roster,
            "time": self.time,
        }

    @classmethod
    def read(cls, envelope: Envelope, arbiter: str) -> Verdict:
        """The verdict in an envelope that this arbiter has signed; EvidenceError otherwise."""
        if not arbiter:
            raise EvidenceError("a verdict was given, but the spec names no arbiter")
        content = _VERDICT(envelope.verify(signing_key_of(arbiter)), "a verdict")
        parts = parts_of(content["clients"])
        strangers = sorted(set(content["false"]) - {client for client, _ in parts})
        if strangers:
            raise EvidenceError(
                f"the verdict is about {', '.join(strangers[:5])}, which had no part in the sum"
            )
        return cls(
            content["federation"],
            content["aggregation"],
            content["roster"],
            parts,
            content["false"],
            content["time"],
        )


def examine(dispute: Dispute, arbiter: Arbiter) -> Examined:
    """Compare what clients opened with what they dealt and sent.

    EvidenceError if the server's records contradict themselves: then it says nothing about any
    client.
    """
    roster = Roster.read(dispute.records.roster)
    _require_records(dispute, roster, arbiter)
    found, counts = dict[str, str](), dict[str, tuple[int, int]]()
    for name in sorted(dispute.openings):
        found[name], counts[name] = _examined(dispute, roster, arbiter, name)
    missing = tuple(sorted({name for name, _ in dispute.parts} - set(found)))
    return Examined(found, counts, missing)


def _require_records(dispute: Dispute, roster: Roster, arbiter: Arbiter) -> None:
    names = {name for name, _ in dispute.parts}
    if roster.rules != dispute.spec.aggregation or roster.rules.arbiter != arbiter.public:
        raise EvidenceError(
            "the dispute is not for this arbiter: the rules of its round name another, or nobody"
        )
    opening, spec = roster.opening, dispute.spec
    if (opening.federation, opening.data_digest, opening.labels_digest) != (
        dispute.federation,
        spec.data_digest,
        spec.labels_digest,
    ):
        raise EvidenceError("the roster is of another federation or spec than the dispute")
    if not names <= set(roster.names) or dispute.parts != set(roster.sequences(sorted(names))):
        raise EvidenceError("the sum has clients or numbers that are not in the roster")
    strangers = sorted(set(dispute.openings) - names)
    if strangers:
        raise EvidenceError(f"{', '.join(strangers[:5])} opened a part and had none in the sum")
    roster.verify({name: PublicKey.from_text(key) for name, key in dispute.keys.items()})
    for name in sorted(names):
        _header(dispute, roster, "shares", name)
    senders = {name: _senders(dispute, roster, name) for name in sorted(names)}
    dealers = names.union(*senders.values())
    if any(told != dealers.intersection(roster.neighbours(name)) for name, told in senders.items()):
        raise EvidenceError(
            "the server told its clients of different dealers of shares, so their masks do not "
            "cancel: it has made the sum false itself"
        )


def _senders(dispute: Dispute, roster: Roster, name: str) -> set[str]:
    """Whose shares a client was sent, which it signed."""
    header = _header(dispute, roster, "masked", name)
    deliveries = dispute.records.deliveries.get(name, b"")
    if hashlib.sha256(deliveries).hexdigest() != header["deliveries"]:
        raise EvidenceError(
            f"the server does not show what {name} was sent before it masked its part"
        )
    told, _ = messages.read_server_message("deliveries", deliveries)
    return set(messages.names(told["senders"], "the senders of deliveries"))


def _header(
    dispute: Dispute, roster: Roster, kind: Literal["shares", "masked"], name: str
) -> dict[str, Any]:
    """The header of a client's shares or masked vector, signed by the key that signed its join."""
    headers = {"shares": dispute.records.shares, "masked": dispute.records.masked}
    what = {"shares": "message of shares", "masked": "masked vector"}[kind]
    signed = headers[kind].get(name)
    if signed is None:
        raise EvidenceError(f"the server does not show the header of the {what} of {name}")
    signed.verify(PublicKey.from_text(dispute.keys[name]))
    content = canonical.decode(signed.data, f"the header of the {what} of {name}")
    header: dict[str, Any] = messages.CLIENT_MESSAGES[kind](content, f"the header of a {what}")
    if (header["kind"], header["client"], header["roster"]) != (kind, name, roster.digest):
        raise EvidenceError(f"the server shows another message of {name} than its {what}")
    return header


def _examined(
    dispute: Dispute, roster: Roster, arbiter: Arbiter, name: str
) -> tuple[str, tuple[int, int]]:
    """Why a client's part is false, or "", with how many samples it says that it adds and
    deletes.
    """
    message = messages.read_client_message(dispute.openings[name])
    message.signed.verify(PublicKey.from_text(dispute.keys[name]))
    claims = (message.kind, message.client, message.header["roster"])
    if claims != ("opening", name, roster.digest):
        raise EvidenceError(f"the server shows another message of {name} than its opening")
    try:
        opened = arbiter.open(roster, name, message.body)
        contribution, parts = opened.contribution(dispute.spec)
        dealt = opened.dealing.dealt(roster, name)
        sent = _sent(dispute, roster, name, opened.dealing, contribution)
    except ExpungeError as problem:
        return f"its opening cannot be read: {problem}", (0, 0)
    counts = (contribution.added, contribution.deleted)
    signed = _header(dispute, roster, "shares", name)
    if signed != signed | dealt.header | {"body": hashlib.sha256(dealt.body).hexdigest()}:
        return "it has dealt other shares than those of the keys that it opened", counts
    if sent != _header(dispute, roster, "masked", name)["body"]:
        return "it has sent another vector than the one it opened", counts
    why = next(filter(None, map(_problem_with, parts)), "")
    return f"what it sent is the sum of no samples: {why}" if why else "", counts


def _sent(
    dispute: Dispute, roster: Roster, name: str, opened: Dealing, contribution: Contribution
) -> str:
    """SHA-256 of the masked vector that follows from an opening; EvidenceError unless its mask key
    is that of the client's join.
    """
    private, context = Private(opened.mask), roster.context
    if private.public != roster.join(name).mask:
        raise EvidenceError("the mask key is not the one that it joined with")
    plus, minus = [context.self_key(opened.seed, name)], list[bytes]()
    for peer in sorted(_senders(dispute, roster, name)):
        key = context.pair_key(private, roster.join(peer).mask, name, peer)
        (plus if name < peer else minus).append(key)
    return hashlib.sha256(MaskedVector.of(contribution.vector(), plus, minus).view).hexdigest()


def _problem_with(statistics: Statistics) -> str | None:
    """Why statistics are those of no samples; None if they may be.

    Beyond what exact integers decide, [[S, G], [G', Y'Y]] scaled to a unit diagonal must not have
    an eigenvalue below what rounding explains, so that true statistics always pass.
    """
    problem = problem_with(statistics)
    if problem is not None:
        return problem
    spec = statistics.spec
    squares = wide.to_ints(statistics.gram[:, blas.packed_diagonal(spec.width)])
    labels = [
        wide.to_ints(statistics.label_gram[:, column, column : column + 1])[0]
        for column in range(spec.columns)
    ]
    if min(labels) < 0:
        return "the sum of squares of a column of targets would be negative"
    products = wide.to_ints(statistics.label_gram.reshape(2, -1))
    for index, product in enumerate(products):
        row, column = divmod(index, spec.columns)
        if product * product > labels[row] * labels[column]:
            return f"columns {row} and {column} of targets would be correlated by more than 1"
    for column, moments in enumerate(np.moveaxis(statistics.moment, 2, 0)):
        for row, moment in enumerate(wide.to_ints(moments)):
            if moment * moment > squares[row] * labels[column]:
                return f"feature {row} and column {column} would be correlated by more than 1"
    from scipy.linalg import eigvalsh  # noqa: PLC0415 - slow to load, and for the arbiter alone

    size = spec.width + spec.columns
    scaled = _scaled(statistics, size)
    least = float(eigvalsh(scaled, subset_by_index=(0, 0))[0])
    if least < -16.0 * size * size * _UNIT:
        return "their products are those of no vectors"
    return None


def _scaled(statistics: Statistics, size: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """[[S, G], [G', Y'Y]] with a unit diagonal, where it is not zero."""
    width = statistics.spec.width
    matrix = np.zeros((size, size))
    rows, columns = np.triu_indices(width)
    matrix[rows, columns] = wide.to_float(statistics.gram)
    matrix[columns, rows] = matrix[rows, columns]
    matrix[:width, width:] = wide.to_float(statistics.moment)
    matrix[width:, :width] = matrix[:width, width:].T
    matrix[width:, width:] = wide.to_float(statistics.label_gram)
    roots = np.sqrt(matrix.diagonal())
    inverse = np.divide(1.0, roots, out=np.zeros(size), where=roots > 0.0)
    return matrix * inverse[:, None] * inverse[None, :]
