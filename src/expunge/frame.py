"""Frames: bytes that say what they are, and are read to the last one.

Whatever Expunge writes in binary is little-endian: a magic and a version byte, then fields of fixed
size, or a header whose length comes first, then parts whose sizes follow from those.

Laws: what a format wrote, it reads back. A `Reader` gives out only bytes that are there, each once,
and `end` refuses what is left over: so bytes that are truncated, extended or have another length
than they state are refused. Bytes that end too early and are all right so far are a TruncatedError,
any others a FormatError; both name what was being read and what to do about it.
"""

from __future__ import annotations

import hashlib
import io
import math
import struct
from binascii import crc32
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from expunge.errors import FormatError, TruncatedError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Bytes = bytes | bytearray | memoryview
Piece = TypeVar("Piece", bytes, bytearray, memoryview)

CHECKSUM_BYTES = hashlib.sha256().digest_size


def pack(codes: str, *values: Any) -> bytes:
    """Values one after another, by the codes of `struct`, little-endian and without gaps."""
    return struct.pack(f"<{codes}", *values)


def prefixed(data: bytes, code: str = "I") -> bytes:
    """The length of these bytes, then the bytes."""
    return pack(code, len(data)) + data


def pieces(data: Piece, size: int) -> list[Piece]:
    """The bytes cut into pieces of this size."""
    return [data[start : start + size] for start in range(0, len(data), size)]


def with_checksum(parts: Iterable[Bytes]) -> bytes:
    """The parts, then the SHA-256 of them all. A part need be good only until the next one."""
    content, data = hashlib.sha256(), io.BytesIO()
    for part in parts:
        content.update(part)
        data.write(part)
    data.write(content.digest())
    return data.getvalue()


def with_crc(data: bytes) -> bytes:
    """The bytes, then their CRC-32: for few bytes, of which one bit may be put right."""
    return data + pack("I", crc32(data))


def is_whole(checked: bytes) -> bool:
    """Whether bytes end as `with_crc` ends them."""
    return pack("I", crc32(checked[:-4])) == checked[-4:]


def mended(checked: bytes) -> bytes | None:
    """What ends as `with_crc` ends it and differs by one bit at most; None if nothing does.

    Of bytes as few as those of a sector, no two that end so differ by fewer than four bits: what is
    found is what was written, unless two bits or more have flipped.
    """
    if is_whole(checked):
        return checked
    for place in range(8 * len(checked)):
        flipped = bytearray(checked)
        flipped[place // 8] ^= 1 << place % 8
        if is_whole(bytes(flipped)):
            return bytes(flipped)
    return None


class Reader:
    """Takes bytes apart from the first to the last; `what` they are is named by every error."""

    def __init__(self, data: Bytes, what: str, remedy: str = "fetch it again") -> None:
        self._data = memoryview(data).cast("B")
        self._position = 0
        self._what, self._remedy = what, remedy

    @property
    def left(self) -> int:
        """How many bytes have not been taken yet."""
        return len(self._data) - self._position

    def take(self, size: int, part: str) -> memoryview:
        """The next bytes, so many of them; no copy."""
        if size < 0 or size > self.left:
            raise TruncatedError(
                f"the bytes of {self._what} are truncated: {part} must have {size} bytes, "
                f"{self.left} are left; {self._remedy}"
            )
        self._position += size
        return self._data[self._position - size : self._position]

    def fields(self, codes: str, part: str) -> tuple[Any, ...]:
        """The values that `pack` wrote by the same codes."""
        return struct.unpack(f"<{codes}", self.take(struct.calcsize(f"<{codes}"), part))

    def prefixed(self, part: str, code: str = "I") -> memoryview:
        """What `prefixed` wrote by the same code; no copy."""
        (size,) = self.fields(code, f"the length of {part}")
        return self.take(size, part)

    def pieces(self, count: int, size: int, part: str) -> list[bytes]:
        """So many pieces of this size."""
        return pieces(bytes(self.take(count * size, part)), size)

    def array(self, dtype: str, shape: tuple[int, ...], part: str) -> NDArray[np.generic]:
        """Numbers of this shape, by rows; read-only, no copy."""
        # Evidence without numbers is read by the same code, and loads no arithmetic.
        import numpy as np  # noqa: PLC0415

        kind = np.dtype(dtype)
        return np.frombuffer(self.take(kind.itemsize * math.prod(shape), part), dtype=kind).reshape(
            shape
        )

    def rest(self) -> memoryview:
        """All that is left; no copy."""
        return self.take(self.left, "the rest")

    def require(self, size: int) -> None:
        """Refuse the bytes unless exactly so many are left."""
        if self.left < size:
            raise TruncatedError(
                f"the bytes of {self._what} are truncated: {len(self._data)} where "
                f"{self._position + size} are expected; {self._remedy}"
            )
        if self.left > size:
            raise FormatError(
                f"the bytes of {self._what} are too many: {len(self._data)} where "
                f"{self._position + size} are expected; {self._remedy}"
            )

    def end(self) -> None:
        """Refuse the bytes if any are left."""
        self.require(0)

    def require_checksum(self) -> None:
        """Refuse the bytes unless they end as `with_checksum` ends them; what is left is without
        the checksum from then on.
        """
        if self.left < CHECKSUM_BYTES:
            self.take(CHECKSUM_BYTES, "the checksum")
        body, checksum = self._data[:-CHECKSUM_BYTES], self._data[-CHECKSUM_BYTES:]
        if hashlib.sha256(body).digest() != checksum:
            raise FormatError(
                f"the bytes of {self._what} have been altered: their checksum does not match; "
                f"{self._remedy}"
            )
        self._data = body


class Format:
    """How the bytes of one kind of thing begin: magic, version byte, and fields by the codes of
    `struct`.
    """

    def __init__(
        self,
        what: str,
        magic: bytes,
        fields: str = "",
        *,
        version: int = 1,
        remedy: str = "fetch it again",
        retired: str = "",
    ) -> None:
        self.what, self.magic, self.version, self.remedy = what, magic, version, remedy
        self._fields, self._retired = fields, retired  # why earlier versions are refused
        self.size = struct.calcsize(f"<{len(magic)}sB{fields}")  # of all this

    def begin(self, *fields: Any) -> bytes:
        """The beginning."""
        return self.magic + pack(f"B{self._fields}", self.version, *fields)

    def open(self, data: Bytes) -> tuple[tuple[Any, ...], Reader]:
        """The fields, and a reader of what comes after them."""
        reader = Reader(data, self.what, self.remedy)
        start = reader.take(min(len(self.magic), reader.left), "the magic")
        if not self.magic.startswith(bytes(start)):
            raise FormatError(f"these bytes are not {self.what}: they do not begin as such")
        version, *fields = reader.fields(f"B{self._fields}", "the beginning")
        if version < self.version and self._retired:
            raise FormatError(f"{self.what} of version {version} is refused: {self._retired}")
        if version != self.version:
            raise FormatError(
                f"{self.what} of version {version} cannot be read; this release reads version "
                f"{self.version}"
            )
        return tuple(fields), reader


class HeaderFormat(Format):
    """Bytes that begin with a header of at most `most` bytes, whose length comes first."""

    def __init__(
        self,
        what: str,
        magic: bytes,
        most: int = 0xFFFFFFFF,
        *,
        version: int = 1,
        remedy: str = "fetch it again",
        retired: str = "",
    ) -> None:
        super().__init__(what, magic, "I", version=version, remedy=remedy, retired=retired)
        self._most = most

    def write(self, header: bytes, *parts: Bytes) -> bytes:
        """The header, and whatever comes after it."""
        return b"".join([self.begin(len(header)), header, *parts])

    def read(self, data: Bytes) -> tuple[bytes, Reader]:
        """The header, and a reader of what comes after it."""
        size, reader = self._size(data)
        return bytes(reader.take(size, "the header")), reader

    def header_end(self, start: Bytes) -> int:
        """Where the header ends; as long as its length has not come, where the length does."""
        return self.size if len(start) < self.size else self.size + self._size(start)[0]

    def _size(self, data: Bytes) -> tuple[int, Reader]:
        (size,), reader = self.open(data)
        if size > self._most:
            raise FormatError(
                f"the header of {self.what} has {size} bytes, more than the {self._most} allowed"
            )
        return size, reader
