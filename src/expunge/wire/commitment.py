"""Sample commitments: a client binds itself to each sample without showing it.

Law: a commitment determines features and target (SHA-256); without its salt, which only the client
holds and erases with the sample, it says nothing about them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from expunge.frame import pack
from expunge.ridge.encoding import Rows
from expunge.ridge.spec import Spec

Float = NDArray[np.float64]

COMMITMENT_BYTES = 32
SALT_BYTES = 32
_TAG = b"expunge\x00sample\x00\x01"
_HARD, _REAL = b"\x00", b"\x01"


def commitment(spec: Spec, salt: bytes, features: Float, target: Float) -> bytes:
    """Of one sample, given by its integers: `dim` or more features (the constant one is left out)
    and its target row.
    """
    content = hashlib.sha256(_TAG)
    content.update(salt)
    content.update(bytes.fromhex(spec.data_digest))
    content.update(features[: spec.dim].astype("<i8").tobytes())
    content.update(_target_bytes(spec, target))
    return content.digest()


def commitments(spec: Spec, salts: Sequence[bytes], rows: Rows) -> list[bytes]:
    """Of each of some rows."""
    pairs = zip(salts, rows.integers, rows.targets.integers, strict=True)
    return [commitment(spec, salt, features, target) for salt, features, target in pairs]


def _target_bytes(spec: Spec, target: Float) -> bytes:
    """A hard label by its index, any other target by its integers without trailing zeros: appended
    labels change neither.
    """
    used = np.flatnonzero(target)
    unit = 2.0**spec.label_grid.fraction_bits
    if spec.is_classification and len(used) == 1 and target[used[0]] == unit:
        return _HARD + pack("I", int(used[0]))
    length = int(used[-1]) + 1 if len(used) else 0
    return _REAL + pack("I", length) + target[:length].astype("<i8").tobytes()
