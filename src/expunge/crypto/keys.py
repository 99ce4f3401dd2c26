"""Ed25519 keys for signing and verifying, and their forms in files and in JSON."""

from __future__ import annotations

import base64
import binascii
import hashlib
from functools import cached_property, lru_cache

from cryptography.exceptions import InternalError, InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from expunge.crypto import canonical
from expunge.errors import EvidenceError, FormatError

KEY_BYTES = 32
SIGNATURE_BYTES = 64
# RFC 8410: a key in DER is one of these, then its 32 raw bytes. Keys in this form, which is ours
# and OpenSSL's, are read and written here; other forms need cryptography's serialization, which is
# slow to import.
_PUBLIC_DER = bytes.fromhex("302a300506032b6570032100")
_PRIVATE_DER = bytes.fromhex("302e020100300506032b657004220420")
# The points of small order, as integers without the sign bit: anybody can sign for such a "key".
_PRIME = 2**255 - 19
_ORDER_8 = int.from_bytes(
    bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little"
)
_SMALL_ORDER = frozenset({0, 1, _ORDER_8, _PRIME - _ORDER_8, _PRIME - 1, _PRIME, _PRIME + 1})


def _to_pem(label: str, prefix: bytes, raw: bytes) -> bytes:
    """The PEM file of a key: its DER fits into one line."""
    text = base64.b64encode(prefix + raw).decode("ascii")
    return f"-----BEGIN {label}-----\n{text}\n-----END {label}-----\n".encode("ascii")


def _from_pem(label: str, prefix: bytes, data: bytes) -> bytes | None:
    """The raw bytes of a key in a PEM file, if the file is just what `_to_pem` makes of them."""
    lines = data.splitlines()
    try:
        raw = base64.b64decode(lines[1], validate=True)[len(prefix) :] if len(lines) == 3 else b""
    except binascii.Error:
        return None
    whole = len(raw) == KEY_BYTES and _to_pem(label, prefix, raw).splitlines() == lines
    return raw if whole else None


class PublicKey:
    """An Ed25519 key that verifies signatures.

    Keys are equal if their raw bytes are, and hashable. Points of small order are refused: anybody
    could sign for such a key.

    Parameters
    ----------
    raw : bytes
        The 32 raw bytes of the key (RFC 8032).

    Attributes
    ----------
    raw : bytes
        The 32 raw bytes.

    Raises
    ------
    FormatError
        The bytes are not 32, or are a point of small order.

    Examples
    --------
    >>> from expunge.crypto import PublicKey, SigningKey
    >>> key = SigningKey(bytes(32))  # use secrets.token_bytes(32)
    >>> public = PublicKey.from_pem(key.public.pem)
    >>> public == key.public
    True
    >>> public.id[:16]
    '139e3940e64b5491'
    >>> public.verify(key.sign(b"data"), b"data")
    >>> public.verify(key.sign(b"data"), b"other data")
    Traceback (most recent call last):
    ...
    expunge.errors.EvidenceError: the signature is not by key ..., or what it signs was altered
    """

    def __init__(self, raw: bytes) -> None:
        if len(raw) != KEY_BYTES:
            raise FormatError(f"an Ed25519 public key has {KEY_BYTES} bytes, got {len(raw)}")
        self.raw = bytes(raw)
        if int.from_bytes(self.raw, "little") & (2**255 - 1) in _SMALL_ORDER:
            raise FormatError(
                "this is no Ed25519 key that only its owner can sign with: it is a point of small "
                "order"
            )
        self._key = Ed25519PublicKey.from_public_bytes(self.raw)

    @classmethod
    def from_text(cls, text: object) -> PublicKey:
        """Read a key from base64, as `text` gives it and JSON files hold it.

        Parameters
        ----------
        text : object
            The raw bytes in base64; any other value is refused.

        Returns
        -------
        PublicKey
            The key.

        Raises
        ------
        FormatError
            It is not canonical base64, or not a key.
        """
        if not isinstance(text, str):
            raise FormatError(f"a public key must be base64, got {type(text).__name__}")
        return _of_text(text)

    @classmethod
    def from_pem(cls, data: bytes) -> PublicKey:
        """Read a key from a PEM file, as `openssl pkey -pubout` writes it.

        Parameters
        ----------
        data : bytes
            The content of the file.

        Returns
        -------
        PublicKey
            The key.

        Raises
        ------
        FormatError
            It is not the PEM file of an Ed25519 public key.
        """
        if (raw := _from_pem("PUBLIC KEY", _PUBLIC_DER, data)) is not None:
            return cls(raw)
        from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - slow, rarely needed

        try:
            key = serialization.load_pem_public_key(data)
        except InternalError as problem:  # of OpenSSL, about which it says nothing for people
            raise FormatError("this is no PEM file of a public key: it is damaged") from problem
        except (ValueError, UnsupportedAlgorithm) as problem:
            raise FormatError(f"this is no PEM file of a public key: {problem}") from problem
        if not isinstance(key, Ed25519PublicKey):
            raise FormatError("the public key in this PEM file is not an Ed25519 key")
        return cls(key.public_bytes_raw())

    @property
    def text(self) -> str:
        """The raw bytes in base64, as a string."""
        return base64.b64encode(self.raw).decode("ascii")

    @cached_property
    def id(self) -> str:
        """The key's id: the SHA-256 of the raw bytes, 64 lower-case hexadecimal digits."""
        return hashlib.sha256(self.raw).hexdigest()

    @property
    def pem(self) -> bytes:
        """The PEM file (SubjectPublicKeyInfo), as bytes."""
        return _to_pem("PUBLIC KEY", _PUBLIC_DER, self.raw)

    def verify(self, signature: bytes, data: bytes) -> None:
        """Return if this key signed the data; raise otherwise.

        Parameters
        ----------
        signature : bytes
            The signature of 64 bytes.
        data : bytes
            The bytes that were signed.

        Raises
        ------
        EvidenceError
            The signature is not by this key, or the data was altered.
        """
        try:
            self._key.verify(signature, data)
        except InvalidSignature as problem:
            raise EvidenceError(
                f"the signature is not by key {self.id[:16]}…, or what it signs was altered"
            ) from problem

    def __eq__(self, other: object) -> bool:
        return self.raw == other.raw if isinstance(other, PublicKey) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.raw)

    def __repr__(self) -> str:
        return f"<PublicKey {self.id[:16]}…>"


@lru_cache(maxsize=1024)  # the same few keys are read again and again
def _of_text(text: str) -> PublicKey:
    return PublicKey(canonical.binary(text, "a public key"))


class SigningKey:
    """An Ed25519 key that signs. Its `repr` does not show the secret.

    Parameters
    ----------
    raw : bytes
        The 32 raw bytes of the private key; draw them with `secrets.token_bytes(32)`.

    Attributes
    ----------
    public : PublicKey
        The key that verifies what this one signs.

    Raises
    ------
    FormatError
        The bytes are not 32.

    Examples
    --------
    >>> import secrets
    >>> from expunge.crypto import SigningKey
    >>> key = SigningKey(secrets.token_bytes(32))
    >>> len(key.sign(b"data"))
    64
    >>> key.sign(b"data") == SigningKey.from_pem(key.pem).sign(b"data")
    True
    """

    def __init__(self, raw: bytes) -> None:
        if len(raw) != KEY_BYTES:
            raise FormatError(f"an Ed25519 private key has {KEY_BYTES} bytes, got {len(raw)}")
        self._key = Ed25519PrivateKey.from_private_bytes(bytes(raw))
        self.public = PublicKey(self._key.public_key().public_bytes_raw())

    @classmethod
    def from_pem(cls, data: bytes) -> SigningKey:
        """Read a key from an unencrypted PEM file, as `openssl genpkey -algorithm ed25519` writes
        it.

        Parameters
        ----------
        data : bytes
            The content of the file.

        Returns
        -------
        SigningKey
            The key.

        Raises
        ------
        FormatError
            It is not the unencrypted PEM file of an Ed25519 private key.
        """
        if (raw := _from_pem("PRIVATE KEY", _PRIVATE_DER, data)) is not None:
            return cls(raw)
        from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - slow, rarely needed

        try:
            key = serialization.load_pem_private_key(data, password=None)
        except InternalError as problem:
            raise FormatError(
                "this is no unencrypted PEM file of a private key: it is damaged"
            ) from problem
        except (TypeError, ValueError, UnsupportedAlgorithm) as problem:
            raise FormatError(
                f"this is no unencrypted PEM file of a private key: {problem}"
            ) from problem
        if not isinstance(key, Ed25519PrivateKey):
            raise FormatError("the private key in this PEM file is not an Ed25519 key")
        return cls(key.private_bytes_raw())

    @property
    def pem(self) -> bytes:
        """The PEM file (PKCS 8, unencrypted), as bytes: a secret."""
        return _to_pem("PRIVATE KEY", _PRIVATE_DER, self._key.private_bytes_raw())

    def sign(self, data: bytes) -> bytes:
        """Sign data; the same key and data always give the same signature.

        Parameters
        ----------
        data : bytes
            The bytes to sign.

        Returns
        -------
        bytes
            The signature of 64 bytes.
        """
        return self._key.sign(data)

    def __repr__(self) -> str:
        return f"<SigningKey {self.public.id[:16]}…>"
