"""A published head in one file: its certificate, then its weights.

The file is `expunge`, NUL, `published`, NUL, a version byte, the certificate's length as uint32,
the certificate (an envelope), and the integers weights * 2^publication_bits as int64 by rows, all
little-endian. The certificate holds the spec and the head's digest, so that no byte can be altered
unseen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from expunge.crypto import Envelope, PublicKey
from expunge.evidence.certificate import Certificate
from expunge.evidence.rotation import KeyChain, chain_for
from expunge.frame import HeaderFormat, Reader

if TYPE_CHECKING:
    from expunge.ridge.head import Head

MAGIC = b"expunge\x00published\x00"
_FORMAT = HeaderFormat("a published head", MAGIC)


def write(certificate: Envelope, head: Head) -> bytes:
    """The file of a head and the certificate that is of it."""
    return _FORMAT.write(certificate.to_bytes(), head.integers.astype("<i8").tobytes())


def split(data: bytes) -> tuple[Envelope, Reader]:
    """The certificate and a reader of the weights, with nothing verified."""
    certificate, reader = _FORMAT.read(data)
    return Envelope.from_bytes(certificate, "certificate"), reader


def read_by_any(data: bytes, chains: Sequence[KeyChain]) -> tuple[Head, Certificate]:
    """As `read`, by the chain that knows who signed the certificate."""
    return read(data, chain_for(split(data)[0], chains))


def read(data: bytes, keys: KeyChain | PublicKey) -> tuple[Head, Certificate]:
    """Head and certificate, if the server's key signed the certificate and it is of exactly these
    weights.
    """
    envelope, reader = split(data)
    certificate = Certificate.read(envelope, keys)
    spec = certificate.spec
    reader.require(8 * spec.width * spec.columns)
    # Other evidence, which is verified by the same modules, has no weights and needs no arithmetic.
    import numpy as np  # noqa: PLC0415

    from expunge.ridge.head import Head  # noqa: PLC0415

    integers = reader.array("<i8", (spec.width, spec.columns), "the weights").astype(np.int64)
    head = Head(
        spec, integers, certificate.bound if certificate.bound is not None else float("inf")
    )
    certificate.verify_head(head)
    return head, certificate
