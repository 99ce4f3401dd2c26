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
from expunge.frame import HeaderFormat

Array = NDArray[Any]
_FORMAT = HeaderFormat("a message", b"")


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
        return _FORMAT.write(head, *(array.tobytes() for array in arrays.values()))

    @classmethod
    def from_bytes(cls, data: bytes) -> ArrayMessage:
        """The inverse of `to_bytes`; refuses anything else.

        Arrays are views of the bytes and cannot be written to.
        """
        head, reader = _FORMAT.read(data)
        arrays: dict[str, Array] = {}
        try:
            task, settings, listed = json.loads(head)
            for name, kind, shape in listed:
                arrays[name] = reader.array(kind, tuple(shape), f"the array {name}")
        except FormatError:
            raise
        except (KeyError, TypeError, ValueError) as problem:
            raise FormatError(f"this is no message: {problem}") from problem
        reader.end()
        return cls(task, settings, arrays)
