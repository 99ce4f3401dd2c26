"""ArrayMessage: what server and clients of a compared system say to one another, and its bytes,
which are what is counted.

Law: `ArrayMessage.from_bytes(message.to_bytes())` is the message, bit for bit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.errors import FormatError

Array = NDArray[Any]
_VERSION = 1


@dataclass(frozen=True)
class ArrayMessage:
    """A task (what is asked, or what is answered), small settings (values of JSON) and arrays."""

    task: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, Array] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """A version byte, the length of a JSON head, the head, and the arrays one after another."""
        arrays = {name: np.asarray(array, order="C") for name, array in self.arrays.items()}
        listed = [[name, array.dtype.str, list(array.shape)] for name, array in arrays.items()]
        head = json.dumps([self.task, dict(self.settings), listed], separators=(",", ":")).encode()
        return b"".join(
            [
                bytes([_VERSION]),
                len(head).to_bytes(4, "little"),
                head,
                *(array.tobytes() for array in arrays.values()),
            ]
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> ArrayMessage:
        """The inverse of `to_bytes`; refuses anything else.

        Arrays are views of the bytes and cannot be written to.
        """
        try:
            if data[0] != _VERSION:
                raise FormatError(
                    f"this message is of version {data[0]}, and this program reads version "
                    f"{_VERSION}"
                )
            end = 5 + int.from_bytes(data[1:5], "little")
            task, settings, listed = json.loads(data[5:end])
            arrays: dict[str, Array] = {}
            for name, kind, shape in listed:
                dtype = np.dtype(kind)
                count = int(np.prod(shape, dtype=np.int64))
                arrays[name] = np.frombuffer(data, dtype, count, end).reshape(shape)
                end += count * dtype.itemsize
        except (IndexError, KeyError, TypeError, ValueError) as problem:
            if isinstance(problem, FormatError):
                raise
            raise FormatError(
                f"this is no message, or one that was cut off: {problem}"
            ) from problem
        if end != len(data):
            raise FormatError(f"this message has {len(data) - end} bytes too many: it was altered")
        return cls(task, settings, arrays)
