"""Arrays out of .npz files, and 8-bit features decoded. Python objects are never read, as reading them would run code."""

from __future__ import annotations

import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.errors import FormatError, InputError, NotFiniteError, ShapeError

Array = NDArray[Any]
_DAMAGED = (  # what numpy lets through where a file is damaged
    ValueError,
    EOFError,
    OSError,
    OverflowError,
    MemoryError,
    NotImplementedError,
    RuntimeError,
    SyntaxError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
_BLOCK = 4096  # rows looked at in one go


class Arrays:
    """The arrays of one open .npz file, each read when it is asked for."""

    def __init__(self, path: Path, content: Any) -> None:
        self.path = path
        self._content = content
        self.names = frozenset(content.files)

    def __getitem__(self, name: str) -> Array:
        if name not in self.names:
            raise InputError(
                f"{self.path} has no array {name!r}; it has {', '.join(sorted(self.names)) or 'none'}. Needed are "
                "train_features, train_labels, test_features and test_labels"
            )
        try:
            array = np.asarray(self._content[name])
        except _DAMAGED as problem:
            raise _damaged(self.path, problem, f"the array {name!r} of ") from problem
        return array

    def text(self, name: str) -> str | None:
        """An array that is a single text, or None if there is none of that name."""
        return str(self[name]) if name in self.names else None


@contextmanager
def opened(path: Path) -> Iterator[Arrays]:
    """An .npz file, or FormatError that names it."""
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    with path.open("rb") as file:  # numpy would leave a damaged file open
        try:
            content = np.load(file, allow_pickle=False)
        except _DAMAGED as problem:
            raise _damaged(path, problem) from problem
        if not isinstance(content, np.lib.npyio.NpzFile):
            raise FormatError(f"{path} holds a single array, not the several of an .npz file: save it with numpy.savez")
        with content:
            yield Arrays(path, content)


def decoded(path: Path, name: str, raw: Array, scale: Array | None) -> NDArray[np.float32]:
    """Features in float32: 8-bit ones times their column's scale, others as they are."""
    if raw.ndim != 2 or not raw.shape[1]:
        raise ShapeError(f"{path}: {name} must be a matrix (n, dim), and has the shape {raw.shape}")
    if raw.dtype in (np.uint8, np.int8):
        if scale is None:
            raise InputError(f"{path}: {name} has 8 bits a value, and there is no array 'scale' to decode it with")
        return np.multiply(raw, _checked_scale(path, scale, raw.shape[1]), dtype=np.float32)
    if raw.dtype.kind != "f":
        raise InputError(f"{path}: {name} holds {raw.dtype}; features are floats, or uint8 with an array 'scale'")
    if scale is not None:
        raise InputError(f"{path}: {name} holds {raw.dtype}, and 'scale' is for features of 8 bits; leave it out")
    with np.errstate(over="ignore"):  # an overflow becomes infinity and is refused below
        features = raw.astype(np.float32, copy=False)
    require_finite(path, name, features)
    return features


def _checked_scale(path: Path, scale: Array, dim: int) -> NDArray[np.float32]:
    if scale.dtype.kind != "f" or scale.shape != (dim,):
        raise ShapeError(
            f"{path}: 'scale' must have one float for each of {dim} columns, and is {scale.dtype} of shape {scale.shape}"
        )
    with np.errstate(over="ignore"):
        scale = scale.astype(np.float32)
    if not (np.isfinite(scale).all() and (scale > 0).all()):
        raise NotFiniteError(f"{path}: 'scale' must be positive and finite in every column")
    return scale


def require_finite(path: Path, name: str, features: NDArray[np.float32]) -> None:
    """Raise NotFiniteError for the first row with NaN or infinity."""
    for start in range(0, len(features), _BLOCK):
        bad = np.flatnonzero(~np.isfinite(features[start : start + _BLOCK]).all(axis=1))
        if bad.size:
            raise NotFiniteError(f"{path}: row {start + bad[0]} of {name} has NaN, infinity or a value beyond float32; drop it")


def _damaged(path: Path, problem: BaseException, part: str = "") -> FormatError:
    if "pickle" in str(problem):
        return FormatError(
            f"{part}{path} cannot be read: it is no .npz file, or holds Python objects, which are never read because reading "
            "them runs code. Save numbers and texts with numpy.savez"
        )
    return FormatError(f"{part}{path} cannot be read ({problem or type(problem).__name__}): it is damaged; get or make it again")
