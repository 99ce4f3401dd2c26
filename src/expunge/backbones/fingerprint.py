"""Fingerprints of backbones: what a spec pins.

Law: equal fingerprints mean equal bytes of weights and equal settings of preprocessing and output.
The other direction is not promised: the same network saved to a file of another layout has another
fingerprint.

Library versions, processor, number of threads and size of batches are not covered, though each may
change the last bits of a feature. They change how the function is rounded, not which function it
is: two clients on different machines compute comparable features, and a fingerprint that no second
machine can have would pin nothing but that machine. `Backbone.describe` records them beside the
fingerprint, and a client that recomputes features compares bits with the sample's commitment.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from expunge.crypto import canonical
from expunge.errors import BackboneError

Setting = str | int | bool | float | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]

_DOMAIN = b"expunge/backbone/1\n"


def fingerprint_of(
    kind: str, *, weights: Mapping[str, str], settings: Mapping[str, Setting]
) -> str:
    """`sha256:` and the digest over kind, digests of weights by name, and settings."""
    content = {
        "kind": kind,
        "settings": {name: _plain(value) for name, value in settings.items()},
        "weights": dict(weights),
    }
    return f"sha256:{hashlib.sha256(_DOMAIN + canonical.encode(content)).hexdigest()}"


def digest_of_file(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as problem:
        raise BackboneError(
            f"the weights file {os.fspath(path)} cannot be read: {problem.strerror}; check the path"
        ) from problem


@contextmanager
def unchanged(paths: Iterable[Path]) -> Iterator[None]:
    """Refuse if one of these files is replaced within the block: what was hashed would not be what
    was loaded.
    """
    before = {path: _identity(path) for path in paths}
    yield
    for path, identity in before.items():
        if _identity(path) != identity:
            raise BackboneError(
                f"{path} changed while the backbone was being loaded; load it again when it is "
                "complete"
            )


def _identity(path: Path) -> tuple[int, ...] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _plain(value: Setting) -> object:
    """Floats as hexadecimal text, which is exact and the same everywhere."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value.hex() if isinstance(value, float) else value
