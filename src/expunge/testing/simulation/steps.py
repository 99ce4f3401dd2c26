"""The steps of a simulation: what people, machines and the network do, as chance says."""

from __future__ import annotations

from collections.abc import Sequence

from expunge.testing.simulation.client import ClientParty
from expunge.testing.simulation.disputes import judge_disputes
from expunge.testing.simulation.federation import SimulatedFederation
from expunge.testing.simulation.homes import Home
from expunge.testing.simulation.machine import Trouble
from expunge.testing.simulation.office import OfficeParty
from expunge.testing.simulation.parties import Party
from expunge.wire.schema import time_text

_LONGEST = 40  # operations of a disk before trouble
_RECONNECTED = 0.05  # how likely, in a step, whoever is cut off is so no longer
_DAYS = (30, 90)  # that orders have
_HAPPENS = (
    "wait",
    "wait long",
    "late messages",
    "cut off",
    "set a clock",
    "restore the server",
)
_AT_THE_ROOT = ("amend", "judge")
_OF_OFFICERS = ("order", "close an order", "audit", "fold")


class Steps:
    """Takes steps in a federation."""

    def __init__(self) -> None:
        self._is_meanwhile = False

    def take(self, federation: SimulatedFederation) -> None:
        """One step, of whichever kind; then, now and then, nobody is cut off any more."""
        self._take(federation)
        if federation.world.chance.random() < _RECONNECTED:
            _cut_off(federation, set())

    def _take(self, federation: SimulatedFederation) -> None:
        world, scenario = federation.world, federation.scenario
        chance = world.chance
        federation.wait(chance.choice((0.0, 0.1, 1.0, 3.0)))
        kinds = list(scenario.weights)
        (kind,) = chance.choices(kinds, [scenario.weights[kind] for kind in kinds])
        if scenario.troubles and chance.random() < scenario.trouble:
            victim = chance.choice(federation.parties)
            victim.machine.trouble = Trouble(
                chance.choice(scenario.troubles), chance.randrange(_LONGEST)
            )
        world.count(f"step: {kind}")
        if kind in ("add", "forget", "forget a subject", "correct", "sync"):
            client = chance.choice(federation.clients)
            if _is_ready(federation, client):
                _act(federation, client, kind)
        elif kind == "forward":
            aggregator = chance.choice(federation.aggregators)
            if _is_ready(federation, aggregator):
                _is_ready(federation, federation.root.server)
                aggregator.forward()
        elif kind in ("stop", "kill"):
            _stop(chance.choice(federation.parties), kind)
        elif kind in ("copy a client", "put an old copy back"):
            _copy(chance.choice(federation.clients), kind)
        elif kind in _HAPPENS:
            _happen(federation, kind)
        else:
            _command(federation, kind)

    def take_meanwhile(self, federation: SimulatedFederation) -> None:
        """While a message is on its way, somebody else acts."""
        if self._is_meanwhile:
            return
        self._is_meanwhile = True
        try:
            client = federation.world.chance.choice(federation.clients)
            if _is_ready(federation, client):
                kind = federation.world.chance.choice(("add", "forget", "sync", "sync"))
                _act(federation, client, kind)
        finally:
            self._is_meanwhile = False


def _is_ready(federation: SimulatedFederation, party: Party) -> bool:
    """Start a party if it is down; one whose disk fails is mended, sooner or later."""
    if party.machine.has_trouble and federation.world.chance.random() < 0.3:
        party.machine.mend()
    if not party.is_up and not party.is_busy:
        party.attempt("start", party.start)
    return party.is_up and not party.is_busy


def _act(federation: SimulatedFederation, client: ClientParty, kind: str) -> None:
    chance = federation.world.chance
    held = sorted(client.held)
    if kind == "add":
        client.add(chance.choice((1, 1, 2, 5)))
    elif kind == "sync":
        _is_ready(federation, client.home.server)
        federation.sync(client)
    elif held and kind == "forget":
        client.forget(chance.sample(held, min(len(held), chance.choice((1, 1, 3)))))
    elif held and kind == "forget a subject":
        client.forget_subject(client.held[chance.choice(held)].subject)
    elif held and kind == "correct":
        client.correct(chance.choice(held))
    if kind != "sync" and client.is_up and chance.random() < federation.scenario.pushes:
        _is_ready(federation, client.home.server)
        federation.push(client)


def _stop(party: Party, kind: str) -> None:
    if party.is_busy:
        return
    party.world.tell(party.name, kind)
    if kind == "kill":
        party.crash(power=party.world.chance.random() < 0.5)
    elif party.is_up:
        party.attempt("stop", party.stop)


def _happen(federation: SimulatedFederation, kind: str) -> None:
    """What nobody does."""
    chance = federation.world.chance
    if kind in ("wait", "wait long"):
        short = kind == "wait"
        federation.wait(chance.uniform(1, 20) if short else chance.uniform(100, 10_000))
    elif kind == "late messages":
        for home in federation.homes:
            home.network.deliver_late()
    elif kind == "cut off":
        names = [each.name for each in (*federation.clients, *federation.aggregators)]
        _cut_off(federation, set(chance.sample(names, chance.randint(0, len(names)))))
    elif kind == "set a clock":
        party = chance.choice(federation.parties)
        party.clock.ahead = chance.choice((-3600.0, 0.0, 5.0, 86400.0))
    else:
        home = chance.choice(federation.homes)
        federation.restore_server(home, with_vault=chance.random() < 0.5)


def _cut_off(federation: SimulatedFederation, names: set[str]) -> None:
    for home in federation.homes:
        home.network.cut_off = names


def _copy(client: ClientParty, kind: str) -> None:
    if client.is_busy or client.machine.has_trouble:
        return
    if kind == "copy a client":
        client.keep_copy()
    elif client.copy is not None:
        client.put_copy_back()


def _command(federation: SimulatedFederation, kind: str) -> None:
    home = federation.world.chance.choice(federation.homes)
    if kind in _AT_THE_ROOT:
        home = federation.root
    office = home.office
    if home is federation.root and kind in _OF_OFFICERS and federation.world.chance.random() < 0.5:
        office = federation.officer
    if _is_ready(federation, office):
        _is_ready(federation, home.server)
        if kind in _OF_OFFICERS:
            _file(federation, home, office, kind)
        else:
            _operate(federation, home, kind)


def _file(federation: SimulatedFederation, home: Home, office: OfficeParty, kind: str) -> None:
    """What officers and operators do."""
    chance = federation.world.chance
    if kind == "order":
        order_about_anybody(federation, home, office, federation.clients_of(home))
    elif kind == "close an order" and home.orders:
        order = chance.choice(sorted(home.orders))
        if office.do("close-order", {"order": order}) is not None:
            del home.orders[order]
    elif kind == "audit":
        audit = office.do("audit", {})
        if audit is not None:
            home.audits.append(audit["audit"])
    elif kind == "fold":
        office.do("fold", {})


def _operate(federation: SimulatedFederation, home: Home, kind: str) -> None:
    """What operators do."""
    office = home.office
    if kind == "rotate the key":
        office.do("rotate-key", {})
    elif kind == "correct the clock":
        office.do("correct-clock", {"time": time_text(office.clock.wall())})
    elif kind == "judge":
        judge_disputes(federation)
    elif kind == "back up":
        name = f"backup-{federation.world.step}"
        if office.do("backup", {"name": name}) is not None:
            home.save(name)
    elif kind == "amend":
        office.do("amend", {"gamma": federation.world.chance.choice((0.5, 1.0, 2.0)).hex()})


def order_about_anybody(
    federation: SimulatedFederation,
    home: Home,
    office: OfficeParty,
    clients: Sequence[ClientParty],
) -> None:
    """File an order about somebody of whom these clients hold something, or about nobody."""
    chance = federation.world.chance
    held = (client.held.values() for client in clients)
    subjects = sorted({sample.subject for samples in held for sample in samples})
    subject, days = chance.choice([*subjects, "nobody"]), chance.choice(_DAYS)
    federation.ordered.add(subject)
    order = office.do("order", {"subject": subject, "days": days})
    if order is not None:
        home.orders[order["order"]] = subject
