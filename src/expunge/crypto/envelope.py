"""Signed data: envelopes, which are JSON in the form of DSSE (Dead Simple Signing Envelope, version
1), and frames, whose signed header is followed by a body of any bytes.

The signature covers type and payload (`preauthentication`), so that no payload can pass for one of
another type. The text of an envelope is canonical: `Envelope.from_bytes(data).to_bytes() == data`,
and any altered byte is refused.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from typing import Any

from expunge.crypto import canonical
from expunge.crypto.keys import SIGNATURE_BYTES, PublicKey, SigningKey
from expunge.errors import EvidenceError, FormatError
from expunge.frame import Bytes, HeaderFormat

_TYPE = "application/vnd.expunge.{}.v{}+json"
_MOST_HEADER = 1 << 20
_KEY_ID = re.compile("[0-9a-f]{64}")


def short_id(key_id: str) -> str:
    """The first 16 digits of a key's id; of anything else, a safe rendering."""
    return f"{key_id[:16]}…" if _KEY_ID.fullmatch(key_id) else f"{key_id[:16]!r}"


def preauthentication(payload_type: str, payload: bytes) -> bytes:
    """What is signed: DSSE's PAE of type and payload."""
    kind = payload_type.encode("utf-8")
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def payload_type(kind: str, version: int = 1) -> str:
    """The media type of one kind of payload, such as "receipt"."""
    return _TYPE.format(kind, version)


@dataclass(frozen=True)
class Envelope:
    """Signed JSON of one kind.

    Most envelopes have one signature. A rotation of a server's key has two: that of the old key and
    that of the new one. The signature covers kind and payload, so that an envelope of one kind
    cannot pass for one of another.

    Attributes
    ----------
    kind : str
        What the payload is, such as `"receipt"` or `"certificate"`.
    payload : bytes
        The content as canonical JSON.
    signatures : tuple of (str, bytes)
        Id of each signing key and its signature of 64 bytes, in the order of signing.

    See Also
    --------
    expunge.evidence.verify : Verifies a whole file of evidence, not only its signature.

    Notes
    -----
    A valid signature proves that a holder of the key signed this content. It does not prove that
    the content is true.

    Examples
    --------
    >>> from expunge.crypto import Envelope, SigningKey
    >>> key = SigningKey(bytes(32))  # use secrets.token_bytes(32)
    >>> envelope = Envelope.signed("note", {"count": 3}, key)
    >>> envelope.verify(key.public)
    {'count': 3}
    >>> Envelope.from_bytes(envelope.to_bytes(), "note") == envelope
    True
    >>> envelope.verify(SigningKey(bytes(31) + b"!").public)
    Traceback (most recent call last):
    ...
    expunge.errors.EvidenceError: the note is signed by key ..., not by ...
    """

    kind: str
    payload: bytes
    signatures: tuple[tuple[str, bytes], ...]  # key id and signature

    @classmethod
    def signed(cls, kind: str, content: object, *keys: SigningKey) -> Envelope:
        """Sign content with one or more keys; the same content and keys give the same bytes.

        Parameters
        ----------
        kind : str
            What the content is, such as `"receipt"`.
        content : object
            A JSON value without floats; integers are within ±2^53.
        *keys : SigningKey
            The keys to sign with, in the order of their signatures.

        Returns
        -------
        Envelope
            The signed envelope.

        Raises
        ------
        FormatError
            No key is given, or the content is not such a JSON value.
        """
        if not keys:
            raise FormatError(f"a {kind} must be signed by a key")
        payload = canonical.encode(content)
        covered = preauthentication(payload_type(kind), payload)
        return cls(kind, payload, tuple((key.public.id, key.sign(covered)) for key in keys))

    def verify(self, *keys: PublicKey) -> Any:
        """The content, if exactly these keys signed it.

        Parameters
        ----------
        *keys : PublicKey
            The keys of all signatures, in their order.

        Returns
        -------
        object
            The content as a JSON value.

        Raises
        ------
        EvidenceError
            The signatures are of other keys, more or fewer keys, or do not hold.
        FormatError
            The payload is not canonical JSON.
        """
        if not keys or [key_id for key_id, _ in self.signatures] != [key.id for key in keys]:
            names = ", ".join(short_id(key_id) for key_id, _ in self.signatures) or "(none)"
            raise EvidenceError(
                f"the {self.kind} is signed by key {names}, not by "
                f"{', '.join(f'{key.id[:16]}…' for key in keys)}"
            )
        covered = preauthentication(payload_type(self.kind), self.payload)
        for key, (_, signature) in zip(keys, self.signatures, strict=True):
            key.verify(signature, covered)
        return self.unverified()

    def unverified(self) -> Any:
        """The content, with no signature checked: to find out which key to verify with.

        Returns
        -------
        object
            The content as a JSON value.

        Raises
        ------
        FormatError
            The payload is not canonical JSON.
        """
        return canonical.decode(self.payload, f"the payload of the {self.kind}")

    def to_json(self) -> dict[str, Any]:
        """The envelope as a JSON value, to be embedded in another file; `from_json` is the inverse.

        Returns
        -------
        dict
            `payload` and the signatures in base64, with the type that `docs/protocol.md` gives.
        """
        return {
            "payload": base64.b64encode(self.payload).decode("ascii"),
            "payloadType": payload_type(self.kind),
            "signatures": [
                {"keyid": key_id, "sig": base64.b64encode(signature).decode("ascii")}
                for key_id, signature in self.signatures
            ],
        }

    def to_bytes(self) -> bytes:
        """The envelope as canonical bytes; `from_bytes` is the inverse.

        Returns
        -------
        bytes
            Canonical JSON without a newline at its end.
        """
        return canonical.encode(self.to_json())

    @classmethod
    def from_json(cls, value: object, kind: str) -> Envelope:
        """Read an envelope of one kind from its JSON value; no signature is checked.

        Parameters
        ----------
        value : object
            What `to_json` returned.
        kind : str
            The kind that is expected.

        Returns
        -------
        Envelope
            The envelope.

        Raises
        ------
        FormatError
            The value is not an envelope, or one of another kind.
        """
        what = f"the envelope of a {kind}"
        fields = canonical.require_keys(
            value, what, frozenset({"payload", "payloadType", "signatures"})
        )
        if fields["payloadType"] != payload_type(kind):
            raise FormatError(f"{what} was expected, but its type is {fields['payloadType']!r:.80}")
        if not isinstance(fields["signatures"], list) or not fields["signatures"]:
            raise FormatError(f"{what} has no signatures")
        signatures = []
        for entry in fields["signatures"]:
            parts = canonical.require_keys(
                entry, f"a signature of {what}", frozenset({"keyid", "sig"})
            )
            signature = canonical.binary(parts["sig"], f"a signature of {what}")
            if not isinstance(parts["keyid"], str) or len(signature) != SIGNATURE_BYTES:
                raise FormatError(f"a signature of {what} is malformed")
            signatures.append((parts["keyid"], signature))
        return cls(
            kind, canonical.binary(fields["payload"], f"the payload of {what}"), tuple(signatures)
        )

    @classmethod
    def from_bytes(cls, data: bytes, kind: str) -> Envelope:
        """Read an envelope of one kind from its canonical bytes; no signature is checked.

        Parameters
        ----------
        data : bytes
            What `to_bytes` returned.
        kind : str
            The kind that is expected.

        Returns
        -------
        Envelope
            The envelope.

        Raises
        ------
        FormatError
            The bytes are not canonical JSON, or not an envelope of this kind.
        """
        return cls.from_json(canonical.decode(data, f"the envelope of a {kind}"), kind)


@dataclass(frozen=True)
class SignedHeader:
    """The header of a signed frame with its signature; `verify` checks whose it is."""

    kind: str
    data: bytes
    signature: bytes
    version: int = 1

    @property
    def digest(self) -> str:
        """SHA-256 of the header, which covers the body."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def covered(self) -> bytes:
        """What the signature covers."""
        return preauthentication(payload_type(self.kind, self.version), self.data)

    def verify(self, key: PublicKey) -> None:
        """Raise EvidenceError unless `key` signed this header."""
        key.verify(self.signature, self.covered)


class SignedFormat(HeaderFormat):
    """Frames of a header in canonical JSON, the signature of it, and a body, whose SHA-256 the
    header gives as `body`.
    """

    def __init__(
        self, kind: str, what: str, magic: bytes, *, version: int = 1, retired: str = ""
    ) -> None:
        super().__init__(
            what, magic, _MOST_HEADER, version=version, remedy="offer it again", retired=retired
        )
        self._kind = kind

    def sign(self, header: dict[str, Any], body: Bytes, key: SigningKey) -> bytes:
        """The bytes of a frame. Law: the same arguments give the same bytes."""
        data = header_bytes(header, body)
        return self.write(data, key.sign(self.signed(data, b"").covered), body)

    def signed(self, header: bytes, signature: bytes) -> SignedHeader:
        """The header of a frame with a signature, which is not checked."""
        return SignedHeader(self._kind, header, signature, self.version)

    def read_signed(self, data: Bytes) -> tuple[SignedHeader, memoryview]:
        """Header and body, with nothing said about who signed the one, nor whether the other is
        its.
        """
        header, reader = self.read(data)
        signature = bytes(reader.take(SIGNATURE_BYTES, "the signature"))
        return self.signed(header, signature), reader.rest()

    def signature_end(self, start: Bytes) -> int:
        """Where the signature ends, as far as these first bytes tell: as many bytes say who
        speaks.
        """
        return self.header_end(start) + SIGNATURE_BYTES


def header_bytes(header: dict[str, Any], body: Bytes) -> bytes:
    """The header of a frame with this body."""
    return canonical.encode(header | {"body": hashlib.sha256(body).hexdigest()})


def require_body(header: dict[str, Any], body: memoryview, what: str) -> None:
    """Raise FormatError unless the header is that of a frame with this body."""
    if hashlib.sha256(body).hexdigest() != header["body"]:
        raise FormatError(f"the body of {what} is truncated or altered: offer it again")
