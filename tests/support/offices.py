"""What tests of the office share: a federation with its first operator, and a carrier that loses or
changes things as told.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from expunge import Spec
from expunge.crypto import SigningKey
from expunge.errors import CarrierError, RefusedError
from expunge.office import Office
from expunge.server.backup import found
from expunge.server.service import Service
from expunge.wire.carrier import Carrier
from expunge.wire.token import Token

SPEC = Spec(dim=3, labels=("a", "b"))


def create_office(
    folder: Path, operator: SigningKey, server: SigningKey, carrier: Any, address: str = ""
) -> Office:
    """The office of a server's first operator."""
    return Office.create(
        folder,
        name="operator",
        role="operator",
        federation=carrier.state.federation,
        server=server.public,
        address=address,
        key=operator,
        carrier=carrier,
    )


class Losing:
    """The service, which loses what it is told to: the request (`before`) or the answer
    (`after`).

    `cut` says which of the two is cut short instead: `there` or `back`.
    """

    def __init__(self, carrier: Carrier) -> None:
        self.carrier = carrier
        self.lose = ""
        self.cut = ""
        self.refuse = ""
        self.change: Callable[[bytes], bytes] = bytes
        self.offered: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.carrier, name)

    def _carry(self, data: bytes, carry: Callable[[bytes], bytes]) -> bytes:
        self.offered.append(data)
        if self.lose == "before":
            raise CarrierError("lost on the way: offer it again")
        if self.refuse:
            raise RefusedError(self.refuse, "turned away")
        answer = self.change(carry(data[: len(data) // 2] if self.cut == "there" else data))
        if self.cut == "back":
            return answer[: len(answer) // 2]
        if self.lose == "after":
            raise CarrierError("no answer came: offer it again")
        return answer

    def command(self, data: bytes) -> bytes:
        return self._carry(data, self.carrier.command)

    def enrol(self, data: bytes) -> bytes:
        return self._carry(data, self.carrier.enrol)


class Place:
    """A federation with its first operator's office."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.operator_key, self.server_key = (
            SigningKey(secrets.token_bytes(32)),
            SigningKey(secrets.token_bytes(32)),
        )
        found(path / "server", SPEC, self.operator_key.public, key=self.server_key)
        self.service = Service.open(path / "server", upkeep=False)
        self.carrier = Losing(self.service)
        keys = (self.operator_key, self.server_key)
        self.office = create_office(
            path / "operator", *keys, self.carrier, address=str(path / "server")
        )

    def token(self, name: str, role: str) -> Token:
        token = Token(
            self.office.federation,
            name,
            role,
            secrets.token_hex(32),
            self.server_key.public,
            ("somewhere",),
        )
        self.office.do("token", {"name": name, "role": role, "secret": token.secret_digest})
        return token

    def reopened(self) -> Office:
        self.office.close()
        self.office = Office.open(self.path / "operator", self.carrier)
        return self.office

    def orders(self) -> int:
        return len(self.office.ask("orders", {}))
