"""The simulated federation: its server, operator and clients, and the network between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from expunge.client import SyncResult
from expunge.crypto import SigningKey
from expunge.errors import ExpungeError
from expunge.server.state import Settings
from expunge.server.storage.folder import OpenStorage
from expunge.testing.simulation.client import ClientParty
from expunge.testing.simulation.network import Network
from expunge.testing.simulation.office import OfficeParty
from expunge.testing.simulation.parties import Party
from expunge.testing.simulation.scenario import Scenario
from expunge.testing.simulation.server import Saved, ServerParty
from expunge.testing.simulation.world import LawBrokenError, World
from expunge.wire.carrier import Carrier

ERASE_WITHIN = 60
_ROOM = 1 << 17  # bytes that a step of a deletion may take
_PIECE = 15.0  # seconds after which the server looks what is due


class SimulatedFederation:
    """All parties, each on a machine of its own."""

    def __init__(
        self,
        scenario: Scenario,
        world: World,
        carrier: Callable[[Carrier], Carrier],
        storage: OpenStorage,
        meanwhile: Callable[[], None],
    ) -> None:
        self.scenario = scenario
        self.world = world
        self.ordered: set[str] = set()  # about whom somebody has tried to file an order
        self.gone: list[ClientParty] = []  # forgotten by the server
        self.saved: Saved | None = None  # the last backup, elsewhere
        # Orders, audits and who had been forgotten when it was made.
        self.known: tuple[dict[str, str], list[str], int] = {}, [], 0
        self.forgotten: list[str] = []
        self._carrier = carrier
        self.server = ServerParty(
            world,
            "server",
            world.path,
            Settings(erase_within=ERASE_WITHIN, room=_ROOM),
            storage,
            mirrored=scenario.mirrored,
        )
        self.network = Network(world, self.server, scenario.fates, meanwhile, is_calm=True)
        self.orders: dict[str, str] = {}  # filed, and not closed: whom they are about
        self.audits: list[str] = []
        self.office = OfficeParty(world, "operator", world.path, self._line("operator"))
        self.officer = OfficeParty(world, "officer", world.path, self._line("officer"))
        *honest, last = scenario.names
        self.clients = [
            *(self._client(name) for name in honest),
            self._client(last, lies=scenario.has_liar),
        ]

    def _line(self, name: str) -> Carrier:
        return self._carrier(self.network.carrier(name))

    def _client(self, name: str, *, lies: bool = False) -> ClientParty:
        return ClientParty(
            self.world,
            name,
            self.world.path,
            self._line(name),
            self.ordered,
            mirrored=self.scenario.mirrored,
            lies=lies,
        )

    @property
    def parties(self) -> list[Party]:
        """Everybody who takes part."""
        return [self.server, self.office, self.officer, *self.clients]

    def found(self) -> None:
        """Found the federation and enrol everybody, while nothing fails."""
        server, office = self.server, self.office
        operator = SigningKey(office.machine.random(32))
        key = server.found(self.scenario.spec, operator.public)
        server.start()
        office.create(operator, server.running.state.federation, key)
        token, _ = office.running.token("officer", "officer", ())
        self.officer.enrol(token)
        for client in self.clients:
            self._enrol(client)

    def _enrol(self, client: ClientParty) -> None:
        token, _ = self.office.running.token(client.name, "client", ())
        client.enrol(token)

    def end(self) -> None:
        """Release everything."""
        for party in [*self.parties, *self.gone]:
            party.end()

    # -- time and calm -----------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        """Time passes; the server does what is due."""
        while seconds > 0.0:
            piece = min(seconds, _PIECE) if self.server.promises else seconds
            self.world.wait(piece)
            self.server.tick()
            seconds -= piece

    @contextmanager
    def calm(self) -> Iterator[None]:
        """Meanwhile nothing fails, and everybody is there."""
        before = self.network.is_calm, self.network.cut_off
        self.network.is_calm, self.network.cut_off = True, set()
        for party in self.parties:
            party.machine.mend()
            self.begin_again(party)
        try:
            yield
        finally:
            self.network.is_calm, self.network.cut_off = before

    def begin_again(self, party: Party) -> None:
        """Start a party that is down; nothing keeps it from that."""
        if not party.is_up:
            try:
                party.start()
            except (ExpungeError, OSError) as problem:
                party.problem = problem if isinstance(problem, ExpungeError) else None
                raise LawBrokenError(
                    "everything starts", f"{party.name} cannot be started: {problem}"
                ) from problem

    # -- losses ------------------------------------------------------------------------------------

    def save(self, name: str) -> None:
        """Keep a backup elsewhere that has just been made."""
        self.saved = self.server.save(name)
        self.known = dict(self.orders), list(self.audits), len(self.forgotten)

    def restore_server(self, *, with_vault: bool) -> None:
        """The server is lost, and restored from the last backup."""
        if self.saved is None or not self.server.can_be_restored(self.saved):
            return
        amendments = self.server.gammas[self.saved.amendments :]
        self.network.late.clear()  # what was on its way to the lost machine is lost with it
        self.server.restore(self.saved, with_vault=with_vault)
        self.world.count("the server restored")
        orders, audits, forgotten = self.known
        self.orders = dict(orders) if with_vault else {}
        self.audits = list(audits)
        for client in self.clients:
            client.accepts_restored = True
        with self.calm():
            for gamma in amendments:
                self.office.require("amend", {"gamma": gamma.hex()})
            for name in self.forgotten[forgotten:]:
                self.office.require("forget-client", {"client": name})

    def enrol_more(self, count: int) -> None:
        """More clients take part."""
        with self.calm():
            for number in range(count):
                client = self._client(f"client{len(self.clients)}-more{number}")
                self._enrol(client)
                self.clients.append(client)
        self.world.count("more clients")

    def replace(self, client: ClientParty) -> None:
        """A client whose store is an old copy is forgotten; another one takes its place."""
        name = f"{client.name}-anew{self.world.step}"
        with self.calm():
            if not client.is_told_unknown:
                self.office.require("forget-client", {"client": client.name})
                self.forgotten.append(client.name)
            client.end()
            fresh = self._client(name)
            fresh.accepts_restored = client.accepts_restored
            self._enrol(fresh)
            fresh.add_again(
                {
                    id_: sample
                    for id_, sample in client.held.items()
                    if sample.subject not in self.ordered  # whom people have not forgotten
                }
            )
        self.clients[self.clients.index(client)] = fresh
        self.world.count("an old copy replaced")

    # -- syncing -----------------------------------------------------------------------------------

    def sync(self, client: ClientParty) -> SyncResult | None:
        """Sync a client; one that is told that it is an old copy, or that was let in after the
        backup that the server was restored from, is replaced.
        """
        result = client.sync()
        if result is None and (client.is_told_old or client.is_told_unknown):
            self.replace(client)
        elif result is not None and result.status == "gone":
            if not client.lies:
                raise LawBrokenError(
                    "only liars are named", f"{client.name} is gone, and is honest"
                )
            self.clients.remove(client)
            self.gone.append(client)
            self.world.count("a liar is gone")
        return result
