"""A server of a simulated federation with those who deal with it: the root, or a group's."""

from __future__ import annotations

from collections.abc import Callable

from expunge.crypto import SigningKey
from expunge.ridge.spec import Spec
from expunge.testing.simulation.network import Network
from expunge.testing.simulation.office import OfficeParty
from expunge.testing.simulation.server import Saved, ServerParty
from expunge.wire.carrier import Carrier
from expunge.wire.token import Token


class Home:
    """A server, the network to it, its operator, and what is known of it."""

    def __init__(
        self,
        server: ServerParty,
        network: Network,
        operator: str,
        carrier: Callable[[Carrier], Carrier],
    ) -> None:
        """`operator` is the name of its operator's machine."""
        self.server = server
        self.network = network
        self._carrier = carrier
        world = server.world
        self.office = OfficeParty(world, operator, world.path, self.line(operator))
        self.orders: dict[str, str] = {}  # filed, and not closed: whom they are about
        self.audits: list[str] = []
        self.saved: Saved | None = None  # the last backup, elsewhere
        # Orders, audits and who had been forgotten when it was made.
        self.known: tuple[dict[str, str], list[str], int] = {}, [], 0
        self.forgotten: list[str] = []

    def line(self, name: str) -> Carrier:
        """The way of somebody to the server."""
        return self._carrier(self.network.carrier(name))

    def found(self, spec: Spec) -> None:
        """Found the server and its operator's office."""
        operator = SigningKey(self.office.machine.random(32))
        key = self.server.found(spec, operator.public)
        self.server.start()
        self.office.create(operator, self.server.running.state.federation, key)

    def token(self, name: str, role: str = "client") -> Token:
        """By which somebody enrols."""
        token, _ = self.office.running.token(name, role, ())  # type: ignore[arg-type]
        return token

    def save(self, name: str) -> None:
        """Keep a backup elsewhere that has just been made."""
        self.saved = self.server.save(name)
        self.known = dict(self.orders), list(self.audits), len(self.forgotten)
