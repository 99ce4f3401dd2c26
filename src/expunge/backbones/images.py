"""Images and texts, read or refused, and what is done to an image before a network sees it.

`ImagePreprocessing` is every step from a picture to the array that a network sees, as one value.
"""

from __future__ import annotations

import math
import os
import struct
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from expunge.backbones.base import Options, Setting, named, needed, positive
from expunge.errors import BackboneError

# Modes whose pixels have 8 bits or fewer; Pillow clips the others when it converts them, and
# clipping would be silent.
_CONVERTIBLE = frozenset(
    {"1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV", "LAB"}
)
_UNREADABLE = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    struct.error,
)  # what Pillow raises for damaged files


def read_image(sample: object, position: int, *, extra: str, mode: str = "RGB") -> Any:
    """A Pillow image of the mode, from a path, a Pillow image, or a uint8 array (height, width) or
    (height, width, 3).

    The first frame is taken; transparency is dropped; the orientation tag of a camera is not
    applied, as backbones are trained without it.
    """
    pillow = needed("PIL.Image", extra)
    if isinstance(sample, (str, os.PathLike)):
        return _from_file(pillow, sample, position, mode)
    if isinstance(sample, np.ndarray):
        if (
            sample.dtype != np.uint8
            or not (sample.ndim == 2 or (sample.ndim == 3 and sample.shape[2] == 3))
            or not sample.size
        ):
            raise BackboneError(
                f"{named(position, sample)} is an array of {sample.dtype} and shape "
                f"{sample.shape}; an image is uint8 and (height, width) or (height, width, 3)"
            )
        return pillow.fromarray(sample).convert(mode)
    if isinstance(sample, pillow.Image):
        return _converted(sample, position, sample, mode)
    raise BackboneError(
        f"{named(position, sample)} is a {type(sample).__name__}; give a path, a Pillow image or "
        "a uint8 array"
    )


def read_text(sample: object, position: int) -> str:
    """A text: a str is the text itself, a Path is a file in UTF-8."""
    if isinstance(sample, str):
        return sample
    if isinstance(sample, os.PathLike):
        try:
            return Path(sample).read_text(encoding="utf-8")
        except OSError as problem:
            raise BackboneError(
                f"{named(position, sample)} cannot be read: {problem.strerror}; check the path"
            ) from problem
        except UnicodeDecodeError as problem:
            raise BackboneError(f"{named(position, sample)} is not UTF-8; convert it") from problem
    raise BackboneError(
        f"{named(position, sample)} is a {type(sample).__name__}; give a str (the text) or a Path "
        "(a text file)"
    )


def _from_file(pillow: Any, path: str | os.PathLike[str], position: int, mode: str) -> Any:
    try:
        with pillow.open(path) as image:
            return _converted(image, position, path, mode)
    except (*_UNREADABLE, pillow.DecompressionBombError) as problem:
        if isinstance(problem, BackboneError):
            raise
        # a str may be a text that was taken for a path
        reason = f": {problem}" if isinstance(path, os.PathLike) else ""
        raise BackboneError(
            f"{named(position, path)} cannot be read as an image{reason}; leave it out or replace "
            "it"
        ) from problem


def _converted(image: Any, position: int, sample: object, mode: str) -> Any:
    if image.mode not in _CONVERTIBLE:
        raise BackboneError(
            f"{named(position, sample)} has pixels of mode {image.mode}, which would be clipped to "
            "8 bits; convert it to 8 bits in the way that suits the data"
        )
    return image.convert(mode)


_CHOICES = {
    "resize": ("shortest", "stretch", "none"),
    "interpolation": ("nearest", "bilinear", "bicubic", "lanczos"),
    "channels": ("RGB", "BGR", "L"),
    "layout": ("NCHW", "NHWC"),
}


@dataclass(frozen=True, kw_only=True)
class ImagePreprocessing:
    """Every step from a picture to the float32 array that a network sees.

    The picture is resized, its centre is cropped to `size`, and pixels are divided by 255; then
    `mean` is subtracted, and the result is divided by `std`.

    Parameters
    ----------
    size : tuple of two ints
        Height and width of what the network sees, in pixels.
    resize : {"shortest", "stretch", "none"}, default "shortest"
        "shortest" scales the shorter edge to `resize_to` and keeps the ratio; "stretch" scales both
        edges; "none" takes pictures as they are, which must not be smaller than `size`.
    resize_to : int, optional
        The shorter (or each) edge after scaling, in pixels, at least the longer edge of `size`. By
        default the longer edge of `size` for "shortest", and `size` itself for "stretch".
    interpolation : {"bicubic", "bilinear", "nearest", "lanczos"}, default "bicubic"
        Pillow's filter for scaling.
    mean : tuple of floats, default (0.485, 0.456, 0.406)
        One for each channel, in the order of `channels`.
    std : tuple of floats, default (0.229, 0.224, 0.225)
        One for each channel, positive.
    channels : {"RGB", "BGR", "L"}, default "RGB"
        "L" is one channel of grey; it needs one `mean` and one `std`.
    layout : {"NCHW", "NHWC"}, default "NCHW"
        Channels first or last.

    Raises
    ------
    BackboneError
        If a value is something else, or values contradict each other.

    See Also
    --------
    OnnxBackbone : takes one as `preprocessing`.

    Examples
    --------
    >>> import numpy as np
    >>> from expunge.backbones import ImagePreprocessing
    >>> steps = ImagePreprocessing(size=(2, 2), mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    >>> steps.shape
    (3, 2, 2)
    >>> white = np.full((4, 6, 3), 255, np.uint8)
    >>> steps(white, 0, extra="onnx").ravel().tolist() == [1.0] * 12
    True
    """

    size: tuple[int, int]
    resize: str = "shortest"
    resize_to: int | None = None
    interpolation: str = "bicubic"
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    channels: str = "RGB"
    layout: str = "NCHW"

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise BackboneError(
                    f"{name}={getattr(self, name)!r} must be one of {', '.join(choices)}"
                )
        if not isinstance(self.size, tuple) or len(self.size) != 2:
            raise BackboneError(f"size={self.size!r} must be (height, width)")
        height, width = (positive("size", edge) for edge in self.size)
        object.__setattr__(self, "size", (height, width))
        if self.resize == "none" and self.resize_to is not None:
            raise BackboneError("resize_to has no meaning with resize='none'; leave it out")
        if self.resize == "shortest" and self.resize_to is None:
            object.__setattr__(self, "resize_to", max(self.size))
        if self.resize_to is not None and positive("resize_to", self.resize_to) < max(self.size):
            raise BackboneError(
                f"resize_to={self.resize_to} is smaller than size={self.size}: there is nothing "
                "to crop from"
            )
        self._check_numbers()

    def _check_numbers(self) -> None:
        for name in ("mean", "std"):
            values = tuple(float(value) for value in getattr(self, name))
            if len(values) != len(self.channels) or not all(
                math.isfinite(value) for value in values
            ):
                raise BackboneError(
                    f"{name}={values} must be {len(self.channels)} finite numbers, one for each "
                    f"of {self.channels}"
                )
            object.__setattr__(self, name, values)
        if min(self.std) <= 0:
            raise BackboneError(f"std={self.std} must be positive")

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of one array: (channels, height, width), or channels last with "NHWC"."""
        return (
            (len(self.channels), *self.size)
            if self.layout == "NCHW"
            else (*self.size, len(self.channels))
        )

    @property
    def settings(self) -> dict[str, Setting]:
        """The values that enter a fingerprint; -1 means None."""
        return {name: -1 if value is None else value for name, value in asdict(self).items()}

    @property
    def options(self) -> dict[str, str]:
        """The values as options of a description; `from_options` is the inverse."""
        written = {
            name: _joined(value) for name, value in asdict(self).items() if value is not None
        }
        if self.resize == "shortest" and self.resize_to == max(self.size):
            del written["resize_to"]
        return written

    @classmethod
    def from_options(cls, options: Options) -> Self | None:
        """The preprocessing that a description gives, if it gives a size.

        Parameters
        ----------
        options : Options
            Of the description; those of images are taken from it.

        Returns
        -------
        ImagePreprocessing or None
            None if there is no size: samples are arrays then.

        Raises
        ------
        BackboneError
            If there are other options of images and no size, or a value cannot be.
        """
        size = options.numbers("size")
        given: dict[str, Any] = {name: options.text(name) for name in _CHOICES}
        given |= {
            "mean": options.numbers("mean"),
            "std": options.numbers("std"),
            "resize_to": options.integer("resize_to"),
        }
        given = {name: value for name, value in given.items() if value is not None}
        if size is None:
            if given:
                raise BackboneError(
                    f"the options {', '.join(sorted(given))} prepare images and need "
                    "size=HEIGHT,WIDTH as well"
                )
            return None
        if not all(edge.is_integer() for edge in size):
            raise BackboneError(
                f"size={_joined(size)} must be HEIGHT,WIDTH or one integer for both"
            )
        edges = tuple(int(edge) for edge in size)
        return cls(size=(edges * 2 if len(edges) == 1 else edges), **given)  # type: ignore[arg-type]  # checked by the class

    def __call__(self, sample: object, position: int, *, extra: str) -> NDArray[np.float32]:
        """The array of one sample.

        Parameters
        ----------
        sample : path, Pillow image, or uint8 ndarray of shape (height, width) or (height, width, 3)
            The picture. The first frame is taken, and transparency is dropped.
        position : int
            The number that messages give to the sample.
        extra : str
            The extra that a message names if Pillow is not installed.

        Returns
        -------
        float32 ndarray of shape `shape`
            What the network sees.

        Raises
        ------
        BackboneError
            If the sample cannot be read, is smaller than `size` where nothing is scaled, or has
            pixels of more than 8 bits.
        MissingExtraError
            If Pillow is not installed.
        """
        sample = Path(sample) if isinstance(sample, str) else sample
        image = self._resized(
            read_image(sample, position, extra=extra, mode="L" if self.channels == "L" else "RGB"),
            extra,
        )
        width, height = image.size
        if height < self.size[0] or width < self.size[1]:
            raise BackboneError(
                f"{named(position, sample)} has {height} x {width} pixels, fewer than "
                f"{self.size}; choose another resize"
            )
        # Python's rounding of halves to even is that of torchvision's CenterCrop, so that both cut
        # out the same pixels.
        top, left = round((height - self.size[0]) / 2), round((width - self.size[1]) / 2)
        pixels = np.asarray(image)[top : top + self.size[0], left : left + self.size[1]]
        pixels = pixels.reshape(*self.size, len(self.channels))
        if self.channels == "BGR":
            pixels = pixels[:, :, ::-1]
        scaled = pixels.astype(np.float32) / np.float32(255)
        array = (scaled - np.array(self.mean, np.float32)) / np.array(self.std, np.float32)
        return np.ascontiguousarray(array.transpose(2, 0, 1) if self.layout == "NCHW" else array)

    def _resized(self, image: Any, extra: str) -> Any:
        if self.resize == "none":
            return image
        width, height = image.size
        edge = self.resize_to
        if edge is None:
            target = (self.size[1], self.size[0])
        elif self.resize == "stretch":
            target = (edge, edge)
        else:
            # as torchvision's Resize computes it
            longer = int(edge * max(width, height) / min(width, height))
            target = (edge, longer) if width <= height else (longer, edge)
        if target == image.size:
            return image
        return image.resize(
            target, getattr(needed("PIL.Image", extra).Resampling, self.interpolation.upper())
        )


def _joined(value: object) -> str:
    return ",".join(repr(part) for part in value) if isinstance(value, tuple) else str(value)
