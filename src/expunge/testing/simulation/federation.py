"""The simulated federation: its servers, their operators, the clients, and the networks between
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from expunge.client import SyncResult
from expunge.errors import ExpungeError
from expunge.server.state import Settings
from expunge.server.storage.folder import OpenStorage
from expunge.testing.simulation.aggregator import AggregatorParty
from expunge.testing.simulation.client import ClientParty
from expunge.testing.simulation.homes import Home
from expunge.testing.simulation.network import Network
from expunge.testing.simulation.office import OfficeParty
from expunge.testing.simulation.parties import Party
from expunge.testing.simulation.scenario import Scenario
from expunge.testing.simulation.server import ServerParty
from expunge.testing.simulation.world import LawBrokenError, World
from expunge.wire.carrier import Carrier

ERASE_WITHIN = 60
_ROOM = 1 << 17  # bytes that a step of a deletion may take
_SETTINGS = Settings(erase_within=ERASE_WITHIN, room=_ROOM)
_PIECE = 15.0  # seconds after which the servers look what is due


class SimulatedFederation:
    """All parties, each on a machine of its own: a server, or a root with aggregators below it."""

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
        mirrored = scenario.mirrored
        root = ServerParty(world, "server", world.path, _SETTINGS, storage, mirrored=mirrored)

        def home(server: ServerParty, operator: str) -> Home:
            network = Network(world, server, scenario.fates, meanwhile, is_calm=True)
            return Home(server, network, operator, carrier)

        self.root = home(root, "operator")
        self.aggregators = [
            AggregatorParty(
                world,
                name,
                world.path,
                _SETTINGS,
                storage,
                mirrored=mirrored,
                line=self.root.line(name),
            )
            for name in (f"group{number}" for number in range(scenario.groups))
        ]
        self.groups = [home(each, f"operator-{each.name}") for each in self.aggregators]
        self.officer = OfficeParty(world, "officer", world.path, self.root.line("officer"))
        last = scenario.clients - 1
        self.clients = [
            self._client(name, self._home(number), lies=scenario.has_liar and number == last)
            for number, name in enumerate(scenario.names)
        ]

    def _home(self, number: int) -> Home:
        """That of a client: a group, or (where groups are not masked) the root in its turn."""
        homes = self.groups or [self.root]
        if self.groups and self.scenario.within is None:
            homes = [*self.groups, self.root]
        return homes[number % len(homes)]

    def _client(self, name: str, home: Home, *, lies: bool = False) -> ClientParty:
        return ClientParty(
            self.world,
            name,
            self.world.path,
            home,
            self.ordered,
            mirrored=self.scenario.mirrored,
            lies=lies,
        )

    @property
    def homes(self) -> list[Home]:
        """Every server with those who deal with it."""
        return [self.root, *self.groups]

    @property
    def parties(self) -> list[Party]:
        """Everybody who takes part."""
        of_groups = [party for home in self.groups for party in (home.server, home.office)]
        return [self.root.server, self.root.office, self.officer, *of_groups, *self.clients]

    def clients_of(self, home: Home) -> list[ClientParty]:
        """Those of one server; of the root, those of the groups, too."""
        if home is self.root:
            return self.clients
        return [client for client in self.clients if client.home is home]

    def found(self) -> None:
        """Found the federation and enrol everybody, while nothing fails."""
        self.root.found(self.scenario.spec)
        self.officer.enrol(self.root.token("officer", "officer"))
        for home, aggregator in zip(self.groups, self.aggregators, strict=True):
            home.found(self.scenario.group_spec)
            aggregator.enrol(home.token("aggregator", "operator"), self.root.token(aggregator.name))
        for client in self.clients:
            client.enrol(client.home.token(client.name))

    def end(self) -> None:
        """Release everything."""
        for party in [*self.parties, *self.gone]:
            party.end()

    # -- time and calm -----------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        """Time passes; the servers do what is due."""
        while seconds > 0.0:
            promised = any(home.server.promises for home in self.homes)
            piece = min(seconds, _PIECE) if promised else seconds
            self.world.wait(piece)
            self.tick()
            seconds -= piece

    def tick(self) -> None:
        """The servers do what is due."""
        for home in self.homes:
            home.server.tick()

    @contextmanager
    def calm(self) -> Iterator[None]:
        """Meanwhile nothing fails, and everybody is there."""
        networks = [home.network for home in self.homes]
        before = [(network.is_calm, network.cut_off) for network in networks]
        for network in networks:
            network.is_calm, network.cut_off = True, set()
        for party in self.parties:
            party.machine.mend()
            self.begin_again(party)
        try:
            yield
        finally:
            for network, (is_calm, cut_off) in zip(networks, before, strict=True):
                network.is_calm, network.cut_off = is_calm, cut_off

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

    def restore_server(self, home: Home, *, with_vault: bool) -> None:
        """A server is lost, and restored from the last backup."""
        server = home.server
        if home.saved is None or server.is_busy or not server.can_be_restored(home.saved):
            return
        amendments = server.gammas[home.saved.amendments :] if home is self.root else []
        home.network.late.clear()  # what was on its way to the lost machine is lost with it
        server.restore(home.saved, with_vault=with_vault)
        self.world.count(f"{server.name.rstrip('0123456789')}: restored")
        orders, audits, forgotten = home.known
        home.orders = dict(orders) if with_vault else {}
        home.audits = list(audits)
        below: list[ClientParty | AggregatorParty] = [
            client for client in self.clients if client.home is home
        ]
        for each in (*below, *(self.aggregators if home is self.root else ())):
            each.accepts_restored = True
        with self.calm():
            for gamma in amendments:
                home.office.require("amend", {"gamma": gamma.hex()})
            for name in home.forgotten[forgotten:]:
                home.office.require("forget-client", {"client": name})
            if isinstance(server, AggregatorParty) and server.forward() is None:
                raise LawBrokenError(
                    "everything settles", f"{server.name} cannot forward: {server.problem}"
                )  # which amends its spec as the root's was amended

    def enrol_more(self, home: Home, count: int) -> None:
        """More clients take part."""
        with self.calm():
            for number in range(count):
                client = self._client(f"client{len(self.clients)}-more{number}", home)
                client.enrol(home.token(client.name))
                self.clients.append(client)
        self.world.count("more clients")

    def replace(self, client: ClientParty) -> None:
        """A client whose store is an old copy is forgotten; another one takes its place."""
        name, home = f"{client.name}-anew{self.world.step}", client.home
        with self.calm():
            if not client.is_told_unknown:
                home.office.require("forget-client", {"client": client.name})
                home.forgotten.append(client.name)
            client.end()
            fresh = self._client(name, home)
            fresh.accepts_restored = client.accepts_restored
            fresh.enrol(home.token(name))
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
        if result is None:
            self._replace_if_told(client)
        elif result.status == "gone":
            if not client.lies:
                raise LawBrokenError(
                    "only liars are named", f"{client.name} is gone, and is honest"
                )
            self.clients.remove(client)
            self.gone.append(client)
            self.world.count("a liar is gone")
        return result

    def push(self, client: ClientParty) -> None:
        """Have a client bring what it has changed."""
        client.push()
        self._replace_if_told(client)

    def _replace_if_told(self, client: ClientParty) -> None:
        if client.is_told_old or client.is_told_unknown:
            self.replace(client)
