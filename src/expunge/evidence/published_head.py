"""A published head in one file: its certificate, then its weights.

The file is `expunge`, NUL, `published`, NUL, a version byte, the certificate's length as uint32,
the certificate (an envelope), and the integers weights * 2^publication_bits as int64 by rows, all
little-endian. The certificate holds the spec and the head's digest, so that any altered byte is
detected.
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
    """Write the file of a head and its certificate.

    Parameters
    ----------
    certificate : Envelope
        The certificate of this head.
    head : Head
        The head.

    Returns
    -------
    bytes
        The content of the file.
    """
    return _FORMAT.write(certificate.to_bytes(), head.integers.astype("<i8").tobytes())


def split(data: bytes) -> tuple[Envelope, Reader]:
    """The certificate and a reader of the weights, with nothing verified.

    Parameters
    ----------
    data : bytes
        The content of the file.

    Returns
    -------
    tuple of (Envelope, Reader)
        The envelope of the certificate, and a reader of the weights.

    Raises
    ------
    FormatError
        The data is not a published head; TruncatedError if it ends too early.
    """
    certificate, reader = _FORMAT.read(data)
    return Envelope.from_bytes(certificate, "certificate"), reader


def read_by_any(data: bytes, chains: Sequence[KeyChain]) -> tuple[Head, Certificate]:
    """The head and its certificate, verified by the chain that knows the key which signed.

    Parameters
    ----------
    data : bytes
        The content of the file.
    chains : sequence of KeyChain
        The keys of several servers; at least one.

    Returns
    -------
    tuple of (Head, Certificate)
        As from `read`.
    """
    return read(data, chain_for(split(data)[0], chains))


def read(data: bytes, keys: KeyChain | PublicKey) -> tuple[Head, Certificate]:
    """The head and its certificate, if the server signed the certificate and it is of exactly these
    weights.

    Parameters
    ----------
    data : bytes
        The content of the file, as `Carrier.head` and `ClientStore.head` give it.
    keys : KeyChain or PublicKey
        The server's key, or the keys that rotations link to it.

    Returns
    -------
    tuple of (Head, Certificate)
        The head, ready to predict, and its verified certificate.

    Raises
    ------
    EvidenceError
        The signature does not hold, or the weights are not those of the certificate.
    FormatError
        The data is not a published head; TruncatedError if it ends too early.

    Examples
    --------
    >>> import tempfile
    >>> from expunge import Spec
    >>> from expunge.evidence import published_head
    >>> from expunge.federation import Federation
    >>> folder = tempfile.TemporaryDirectory()
    >>> spec = Spec(dim=2, labels=("cat", "dog"), gamma=1.0)
    >>> federation = Federation.found(f"{folder.name}/federation", spec)
    >>> receipts = federation.client("north").add(["a"], [[1.0, 0.5]], ["cat"])
    >>> data = federation.carrier.head()
    >>> head, certificate = published_head.read(data, federation.office.server)
    >>> head.digest == certificate.head
    True
    >>> head.predict([[1.0, 0.5]])
    array(['cat'], dtype='<U3')
    >>> federation.close()
    >>> folder.cleanup()
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
