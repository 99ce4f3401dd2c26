"""Pickles that hold numpy arrays and plain values, read without running anything that they ask for.

Law: a pickle that names anything but numpy's own way to write an array is refused, and nothing of
it is called. Not even numpy's constructors are: the few names that an array needs are bound to
stand-ins, from which arrays of numbers are made.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from expunge.errors import FormatError

_NDARRAY = object()  # placeholder for the class numpy.ndarray; cannot be called or changed
_REMEMBERS = ("PUT", "BINPUT", "LONG_BINPUT")
_BROKEN = (
    pickle.UnpicklingError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    EOFError,
    OverflowError,
    MemoryError,
    SyntaxError,  # numpy's, of a dtype that is none
)


def read_pickle(data: bytes, where: object) -> Any:
    """The value in a pickle of Python 2 or 3; texts of Python 2 come as bytes.

    FormatError if it is damaged or not plain.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "error", "invalid (octal )?escape"
            )  # of texts that no Python has written
            _require_small_numbers(data)
            return _plain(_Reader(io.BytesIO(data), encoding="bytes").load())
    except (*_BROKEN, RecursionError, UnicodeError, Warning) as problem:
        raise FormatError(
            f"{where} cannot be read ({problem or type(problem).__name__}): it is damaged, or "
            "holds more than arrays and plain "
            "values; nothing in it was run. Get the official file again"
        ) from problem


def _require_small_numbers(data: bytes) -> None:
    """Python makes room for as many remembered values as the highest number that a pickle gives
    one; no honest one is so high.
    """
    for operation, argument, _ in pickletools.genops(data):
        if operation.name in _REMEMBERS and int(argument or 0) > len(data):
            raise pickle.UnpicklingError(f"it numbers a value {argument}")


class _StandIn:
    """A name that a pickle may call, bound to a function of ours.

    It has no state that a pickle could set.
    """

    __slots__ = ("_make",)

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make

    def __call__(self, *arguments: Any) -> Any:
        return self._make(*arguments)

    def __setstate__(self, state: object) -> NoReturn:
        raise pickle.UnpicklingError("it sets the state of a function")


class _Kind:
    """An array's kind of number, as `dtype('u1')` and its state say it."""

    def __init__(self, *arguments: Any) -> None:
        if not arguments:
            raise pickle.UnpicklingError("it has a kind of array without a name")
        self._name, self._order = _text(arguments[0]), "="

    def __setstate__(self, state: Any) -> None:
        self._order = _text(state[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        """In numpy's terms; numbers only."""
        dtype = np.dtype(self._name)
        if dtype.kind not in "biuf" or self._order not in ("|", "=", "<", ">"):
            raise pickle.UnpicklingError(
                f"it has an array of {dtype} in the byte order {self._order!r:.9}"
            )
        return dtype if self._order == "|" else dtype.newbyteorder(self._order)  # type: ignore[arg-type]  # checked above


class _Array:
    """An array that is not filled yet."""

    def __init__(self, kind: object, *_: Any) -> None:
        if kind is not _NDARRAY:
            raise pickle.UnpicklingError("it makes an array of another class than numpy's own")
        self._state: tuple[Any, ...] = ()

    def __setstate__(self, state: Any) -> None:
        self._state = tuple(state)

    @property
    def array(self) -> NDArray[Any]:
        """What it holds: shape, kind, order in memory and bytes, which must agree."""
        _, shape, kind, by_columns, data = self._state
        lengths = tuple(int(length) for length in shape)
        if (
            not isinstance(kind, _Kind)
            or not isinstance(data, bytes)
            or min(lengths, default=0) < 0
        ):
            raise pickle.UnpicklingError("it has an array that is not made of numbers")
        if len(data) != math.prod(lengths) * kind.dtype.itemsize:
            raise pickle.UnpicklingError(
                f"it has an array of shape {lengths} with {len(data)} bytes"
            )
        return np.frombuffer(data, dtype=kind.dtype).reshape(
            lengths, order="F" if by_columns else "C"
        )


def _latin(text: str, encoding: object) -> bytes:
    """How Python 3 writes bytes into the older kinds of pickle."""
    if encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError(f"it asks for the encoding {encoding!r:.40}")
    return text.encode("latin-1")


_NAMES: dict[tuple[str, str], object] = {
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _StandIn(_Kind),
    ("numpy.core.multiarray", "_reconstruct"): _StandIn(_Array),
    ("numpy._core.multiarray", "_reconstruct"): _StandIn(_Array),
    ("_codecs", "encode"): _StandIn(_latin),
}


class _Reader(pickle.Unpickler):
    """Knows the names above and no others."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """A stand-in, or a refusal."""
        try:
            return _NAMES[module_name, global_name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module_name}.{global_name}"[:80]) from None


def _text(value: object) -> str:
    return value.decode("ascii") if isinstance(value, bytes) else str(value)


def _plain(value: Any) -> Any:
    """Replace placeholders by arrays, one level into dictionaries and lists."""
    if isinstance(value, dict):
        return {key: _plain_array(item) for key, item in value.items()}
    return _plain_array(value)


def _plain_array(value: Any) -> Any:
    return value.array if isinstance(value, _Array) else value
