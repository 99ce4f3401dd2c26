"""A simulated office, of an operator or an officer: orders, audits, rotations, backups."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from expunge.crypto import PublicKey, SigningKey
from expunge.office import Office
from expunge.storage.files import sync_folder
from expunge.testing.simulation.parties import Party
from expunge.testing.simulation.world import LawBrokenError, World
from expunge.wire.carrier import Carrier
from expunge.wire.token import Token


class OfficeParty(Party):
    """The operator, or an officer."""

    def __init__(self, world: World, name: str, path: Path, carrier: Carrier) -> None:
        super().__init__(world, name, path)
        self.folder = self.path / "office"
        self.office: Office | None = None
        self._carrier = carrier

    @property
    def is_up(self) -> bool:
        """Whether the office is open."""
        return self.office is not None

    def create(self, key: SigningKey, federation: str, server: PublicKey) -> None:
        """Make the office of the first operator."""
        self.office = Office.create(
            self.folder,
            name="operator",
            role="operator",
            federation=federation,
            server=server,
            address="simulated",
            key=key,
            carrier=self._carrier,
        )

    def enrol(self, token: Token) -> None:
        """Make the office of somebody whom the operator lets in."""
        self.office = Office.enrol(self.folder, token, self._carrier, address="simulated")
        sync_folder(self.path)

    def start(self) -> None:
        """Open the office."""
        if self.office is None:
            self.office = Office.open(self.folder, self._carrier)

    def stop(self) -> None:
        """Close it."""
        office, self.office = self.office, None
        if office is not None:
            office.close()

    def abandon(self) -> None:
        """It was killed."""
        self.office = None

    @property
    def running(self) -> Office:
        """The office, which must be open."""
        if self.office is None:
            raise LawBrokenError("simulation", f"{self.name} is not running")
        return self.office

    def do(self, action: str, arguments: Mapping[str, Any]) -> Any:
        """Have a command carried out; None if that failed."""
        office = self.running
        self.world.tell(self.name, f"{action} {dict(arguments)}")
        return self.attempt(action, lambda: office.do(action, arguments))

    def require(self, action: str, arguments: Mapping[str, Any]) -> None:
        """Have a command carried out that nothing keeps from it."""
        if self.do(action, arguments) is None:
            raise LawBrokenError("commands", f"{action} is not carried out: {self.problem}")

    def ask(self, question: str, arguments: Mapping[str, Any]) -> Any:
        """Ask the server; None if that failed."""
        office = self.running
        return self.attempt(question, lambda: office.ask(question, arguments))
