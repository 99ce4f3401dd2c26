"""The keys of a vault as they are at one moment, read beside the process that works on it.

Law: no file is ever written. A key that was being written at that moment is as good as destroyed:
what is sealed under it is not opened wrongly, but not at all.
"""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

from expunge.crypto.vault import KEY_BYTES, Vault
from expunge.errors import StoreError

# The layout is that of `expunge.crypto.vault`: magic, version, identity, number of slots, number of
# changes; slots from byte 64.
_MAGIC, _VERSION, _START = b"expunge\0vault\0", 1, 64
_SLOTS = slice(31, 39)


class Keys(Vault):
    """What `unseal`, `mac` and `live` need; `new` and `shred` are refused."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            content = path.read_bytes()
        except OSError as problem:
            raise StoreError(f"the vault {path} cannot be read: {problem.strerror}") from problem
        if content[: len(_MAGIC) + 1] != _MAGIC + bytes([_VERSION]):
            raise StoreError(f"{path} is not a vault, or one of another version than {_VERSION}")
        end = _START + KEY_BYTES * int.from_bytes(
            content[_SLOTS], "little"
        )  # behind it may be a growth that is under way
        if len(content) < max(end, _START):
            raise StoreError(
                f"the vault {path} is truncated: it should have {end} bytes, it has {len(content)}"
            )
        super().__init__([], bytearray(content[_START:end]))

    def __repr__(self) -> str:
        return f"<Keys of {self._path}, {len(self.live())} of them>"

    def add_mirror(self, path: Path) -> NoReturn:  # noqa: ARG002 - as a vault has it
        """Refused."""
        self._refuse()

    def _write(self, slots: int, changed: list[int], keys: bytes) -> NoReturn:  # noqa: ARG002 - as a vault has it
        self._refuse()

    def _require_open(self) -> None:
        if self._closed:
            raise StoreError(f"the vault {self._path} is closed")

    def _refuse(self) -> NoReturn:
        raise StoreError(
            f"the vault {self._path} is open for reading only, beside the process that works on it"
        )
