"""Which key to trust, from the files that people have; of folders, see `_trust`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from expunge.crypto import Envelope, PublicKey
from expunge.errors import FormatError

_PEM = b"-----BEGIN"


def key_from(path: Path) -> PublicKey:
    """The public key in a file: PEM, or the base64 of the raw bytes."""
    data = path.read_bytes()
    if data.lstrip().startswith(_PEM):
        return PublicKey.from_pem(data)
    try:
        return PublicKey.from_text(data.decode("ascii").strip())
    except (UnicodeDecodeError, FormatError) as problem:
        raise FormatError(
            f"{path} is no public key: give the PEM file that expunge key DIR -o FILE writes"
        ) from problem


def rotations_from(paths: Iterable[Path]) -> list[Envelope]:
    """The rotations in some files."""
    return [
        Envelope.from_bytes(path.read_bytes().removesuffix(b"\n"), "rotation") for path in paths
    ]
