"""The office's folder.

office.key       the Ed25519 key that signs commands (PEM). Truth; may not be lost: a new key needs a new enrolment
office.json      who this is, the server's pinned key, where the server is, the number of the last command answered
command          the command that is under way; absent if none is
orders           the ids of the orders that this office has filed and not closed; not whom they are about
lock             held by the process at work
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from expunge import canonical
from expunge.errors import StoreError
from expunge.files import FolderLock, erase, erase_drafts, sync_folder, write_whole
from expunge.protocol.names import FEDERATION_DIGITS, checked_flag, checked_hex, checked_integer, checked_name, checked_role
from expunge.signing import Envelope, PublicKey, SigningKey

_KEY, _STATE, _COMMAND, _ORDERS = "office.key", "office.json", "command", "orders"
_VERSION = 1
_ORDER_DIGITS = 32
_FIELDS = frozenset({"version", "name", "role", "federation", "server", "rotations", "address", "ca", "sequence", "enrolled"})


@dataclass(frozen=True)
class State:
    """What an office knows. `sequence` is the number of the last command whose result is here."""

    name: str
    role: str
    federation: str
    server: PublicKey
    address: str
    ca: str = ""
    rotations: Sequence[Envelope] = field(default=())
    sequence: int = 0
    enrolled: bool = True

    def to_bytes(self) -> bytes:
        """Canonical bytes."""
        return canonical.encode(
            {
                "version": _VERSION,
                "name": self.name,
                "role": self.role,
                "federation": self.federation,
                "server": self.server.text,
                "rotations": [envelope.to_json() for envelope in self.rotations],
                "address": self.address,
                "ca": self.ca,
                "sequence": self.sequence,
                "enrolled": self.enrolled,
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes, what: str) -> State:
        """The inverse of `to_bytes`."""
        parts: dict[str, Any] = canonical.decode_object(data, what, _FIELDS)
        if parts["version"] != _VERSION:
            raise StoreError(
                f"{what} is of version {parts['version']!r:.20}; this program reads version {_VERSION}: update expunge"
            )
        return cls(
            checked_name(parts["name"]),
            checked_role(parts["role"]),
            checked_hex(parts["federation"], FEDERATION_DIGITS, "the federation"),
            PublicKey.from_text(parts["server"]),
            str(parts["address"]),
            str(parts["ca"]),
            tuple(Envelope.from_json(value, "rotation") for value in parts["rotations"]),
            checked_integer(parts["sequence"], "the sequence number"),
            checked_flag(parts["enrolled"], "enrolled"),
        )


class Folder:
    """Whoever holds one is alone with these files."""

    def __init__(self, path: Path, lock: FolderLock) -> None:
        self.path = path
        self._lock = lock
        self.key = SigningKey.from_pem((path / _KEY).read_bytes())
        self.state = State.from_bytes((path / _STATE).read_bytes(), str(path / _STATE))

    @classmethod
    def create(cls, path: Path, state: State, key: SigningKey) -> Folder:
        """A new folder, which appears whole or not at all; one that holds anything already is refused."""
        path = path.absolute()
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise StoreError(f"{path} is not empty: choose another folder for the office")
        draft = path.with_name(path.name + ".new")
        draft.mkdir(mode=0o700, parents=True, exist_ok=True)  # one that was left by an interrupted creation is written over
        write_whole(draft / _KEY, key.pem)
        write_whole(draft / _STATE, state.to_bytes())
        os.replace(draft, path)
        sync_folder(path.parent)
        return cls.open(path)

    @classmethod
    def exists(cls, path: Path) -> bool:
        """Whether there is an office in a folder."""
        return (path / _STATE).exists()

    @classmethod
    def open(cls, path: Path, timeout: float = 0.0) -> Folder:
        """The folder of an office that was created before."""
        path = path.absolute()
        for name in (_KEY, _STATE):
            if not (path / name).exists():
                raise StoreError(f"{path / name} is missing: this is no office of an operator or officer, or a damaged one")
        lock = FolderLock(path, timeout)
        try:
            erase_drafts(path)
            return cls(path, lock)
        except BaseException:
            lock.release()
            raise

    def write(self, state: State) -> None:
        """Replace what the office knows, durably."""
        write_whole(self.path / _STATE, state.to_bytes())
        self.state = state

    def command(self) -> bytes | None:
        """The command that is under way, if there is one."""
        place = self.path / _COMMAND
        return place.read_bytes() if place.exists() else None

    def write_command(self, data: bytes) -> None:
        """Make a command durable, before it is offered for the first time."""
        write_whole(self.path / _COMMAND, data)

    def drop_command(self) -> None:
        """The command has come to its end; it may have named a subject."""
        erase(self.path / _COMMAND)

    def orders(self) -> list[str]:
        """The ids of the orders that were filed from here and not closed, the oldest first."""
        place = self.path / _ORDERS
        if not place.exists():
            return []
        found = canonical.decode(place.read_bytes(), str(place))
        if not isinstance(found, list):
            raise StoreError(f"{place} must be a list of orders: remove it, and the office forgets what it has filed")
        return [checked_hex(one, _ORDER_DIGITS, "an order") for one in found]

    def write_orders(self, orders: Sequence[str]) -> None:
        """Replace the ids of the orders that were filed from here."""
        write_whole(self.path / _ORDERS, canonical.encode(list(orders)))

    def remove(self) -> None:
        """Remove the whole folder: of an office that was never enrolled."""
        for name in (_COMMAND, _ORDERS, _STATE, _KEY, "lock"):
            erase(self.path / name)
        self._lock.release()
        self.path.rmdir()

    def close(self) -> None:
        """Let others in."""
        self._lock.release()
