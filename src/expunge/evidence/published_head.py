"""A published head in one file: its certificate, then its weights.

The file is `expunge`, NUL, `published`, NUL, a version byte, the certificate's length as uint32,
the certificate (an envelope), and the integers weights * 2^publication_bits as int64 by rows, all
little-endian. The certificate holds the spec and the head's digest, so that no byte can be altered
unseen.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

from expunge.crypto import Envelope, PublicKey
from expunge.errors import FormatError, TruncatedError
from expunge.evidence.certificate import Certificate
from expunge.evidence.rotation import KeyChain, chain_for

if TYPE_CHECKING:
    from expunge.ridge.head import Head

MAGIC = b"expunge\x00published\x00"
_VERSION = 1
_FRAME = struct.Struct(f"<{len(MAGIC)}sBI")


def write(certificate: Envelope, head: Head) -> bytes:
    """The file of a head and the certificate that is of it."""
    data = certificate.to_bytes()
    weights = head.integers.astype("<i8").tobytes()
    return _FRAME.pack(MAGIC, _VERSION, len(data)) + data + weights


def split(data: bytes) -> tuple[Envelope, bytes]:
    """The certificate and the bytes of the weights, with nothing verified."""
    if not data.startswith(MAGIC[: len(data)]):
        raise FormatError("this is no published head: fetch it again")
    if len(data) < _FRAME.size:
        raise TruncatedError("the published head is truncated: fetch it again")
    _, version, size = _FRAME.unpack_from(data)
    if version != _VERSION:
        raise FormatError(
            f"a published head of version {version} is unknown here; this side reads version "
            f"{_VERSION}"
        )
    end = _FRAME.size + size
    if len(data) < end:
        raise TruncatedError("the published head is truncated: fetch it again")
    return Envelope.from_bytes(data[_FRAME.size : end], "certificate"), data[end:]


def read_by_any(data: bytes, chains: Sequence[KeyChain]) -> tuple[Head, Certificate]:
    """As `read`, by the chain that knows who signed the certificate."""
    return read(data, chain_for(split(data)[0], chains))


def read(data: bytes, keys: KeyChain | PublicKey) -> tuple[Head, Certificate]:
    """Head and certificate, if the server's key signed the certificate and it is of exactly these
    weights.
    """
    envelope, weights = split(data)
    certificate = Certificate.read(envelope, keys)
    spec = certificate.spec
    size = 8 * spec.width * spec.columns
    if len(weights) != size:
        problem = TruncatedError if len(weights) < size else FormatError
        raise problem(
            f"the published head has {len(weights)} bytes of weights, not those of its spec: "
            "fetch it again"
        )
    # Other evidence, which is verified by the same modules, has no weights and needs no arithmetic.
    import numpy as np  # noqa: PLC0415

    from expunge.ridge.head import Head  # noqa: PLC0415

    integers = (
        np.frombuffer(weights, dtype="<i8").astype(np.int64).reshape(spec.width, spec.columns)
    )
    head = Head(
        spec, integers, certificate.bound if certificate.bound is not None else float("inf")
    )
    certificate.verify_head(head)
    return head, certificate
