"""Raw samples: images and texts, read or refused."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import numpy as np

from expunge.backbones.base import named
from expunge.backbones.optional import needed
from expunge.errors import BackboneError

# Modes whose pixels have 8 bits or fewer; Pillow clips the others when it converts them, and clipping would be silent.
_CONVERTIBLE = frozenset({"1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV", "LAB"})
_UNREADABLE = (OSError, SyntaxError, ValueError, EOFError, struct.error)  # what Pillow raises for damaged files


def read_image(sample: object, position: int, *, extra: str, mode: str = "RGB") -> Any:
    """A Pillow image of the mode, from a path, a Pillow image, or a uint8 array (height, width) or (height, width, 3).

    The first frame is taken; transparency is dropped; the orientation tag of a camera is not applied, as backbones are
    trained without it.
    """
    pillow = needed("PIL.Image", extra)
    if isinstance(sample, (str, os.PathLike)):
        return _from_file(pillow, sample, position, mode)
    if isinstance(sample, np.ndarray):
        if sample.dtype != np.uint8 or not (sample.ndim == 2 or (sample.ndim == 3 and sample.shape[2] == 3)) or not sample.size:
            raise BackboneError(
                f"{named(position, sample)} is an array of {sample.dtype} and shape {sample.shape}; an image is uint8 and "
                "(height, width) or (height, width, 3)"
            )
        return pillow.fromarray(sample).convert(mode)
    if isinstance(sample, pillow.Image):
        return _converted(sample, position, sample, mode)
    raise BackboneError(f"{named(position, sample)} is a {type(sample).__name__}; give a path, a Pillow image or a uint8 array")


def read_text(sample: object, position: int) -> str:
    """A text: a str is the text itself, a Path is a file in UTF-8."""
    if isinstance(sample, str):
        return sample
    if isinstance(sample, os.PathLike):
        try:
            return Path(sample).read_text(encoding="utf-8")
        except OSError as problem:
            raise BackboneError(f"{named(position, sample)} cannot be read: {problem.strerror}; check the path") from problem
        except UnicodeDecodeError as problem:
            raise BackboneError(f"{named(position, sample)} is not UTF-8; convert it") from problem
    raise BackboneError(f"{named(position, sample)} is a {type(sample).__name__}; give a str (the text) or a Path (a text file)")


def _from_file(pillow: Any, path: str | os.PathLike[str], position: int, mode: str) -> Any:
    try:
        with pillow.open(path) as image:
            return _converted(image, position, path, mode)
    except (*_UNREADABLE, pillow.DecompressionBombError) as problem:
        if isinstance(problem, BackboneError):
            raise
        reason = f": {problem}" if isinstance(path, os.PathLike) else ""  # a str may be a text that was taken for a path
        raise BackboneError(
            f"{named(position, path)} cannot be read as an image{reason}; leave it out or replace it"
        ) from problem


def _converted(image: Any, position: int, sample: object, mode: str) -> Any:
    if image.mode not in _CONVERTIBLE:
        raise BackboneError(
            f"{named(position, sample)} has pixels of mode {image.mode}, which would be clipped to 8 bits; "
            "convert it to 8 bits in the way that suits the data"
        )
    return image.convert(mode)
