"""A whole federation in one thread: server, operator and clients, each on a machine of its own,
over a network; with faults of disks, machines, network and clocks, and the laws that hold
nevertheless.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from expunge.crypto import SigningKey
from expunge.errors import ExpungeError
from expunge.ridge.statistics import Statistics
from expunge.server.backup import found
from expunge.server.state import Settings
from expunge.solvers.certify import solve
from expunge.storage.files import sync_folder
from expunge.testing.simulation.client import ClientParty
from expunge.testing.simulation.database import draw_salts_from
from expunge.testing.simulation.machine import Trouble
from expunge.testing.simulation.network import Network
from expunge.testing.simulation.office import OfficeParty
from expunge.testing.simulation.parties import Party, ServerParty
from expunge.testing.simulation.plan import Plan
from expunge.testing.simulation.world import LawBrokenError, World

# Syncs of everybody after which everything must be settled, once nothing fails any more; masked, a
# round alone takes six.
SETTLING, MASKED_SETTLING = 12, 60
_ERASE_WITHIN = 60
_LONGEST = 40  # operations of a disk before trouble


@dataclass(frozen=True)
class Outcome:
    """What a simulation has come to."""

    plan: Plan
    broken: LawBrokenError | None
    requests: int
    coverage: Counter[str]
    digest: str
    journal: list[str] = field(repr=False)


def simulate(plan: Plan, path: Path) -> Outcome:
    """Run a plan in a folder, which is emptied."""
    shutil.rmtree(path, ignore_errors=True)
    simulation = Simulation(plan, path)
    broken = None
    try:
        simulation.run()
    except LawBrokenError as problem:
        broken = problem
        simulation.world.tell("law", str(problem))
    finally:
        simulation.end()
        shutil.rmtree(path, ignore_errors=True)
    world = simulation.world
    return Outcome(
        plan, broken, world.requests, world.coverage, world.digest, world.journal
    )


class Simulation:
    """One run of a plan."""

    def __init__(self, plan: Plan, path: Path) -> None:
        self.plan = plan
        self.world = world = World(plan.seed, path)
        self.ordered: set[str] = set()
        self._labels = 0
        self._depth = 0
        draw_salts_from(lambda count: self.server.machine.random(count))
        self.server = ServerParty(world, "server", path, Settings(erase_within=_ERASE_WITHIN))
        self.network = Network(world, self.server, plan.fates, self._meanwhile, is_calm=True)
        self.office = OfficeParty(world, "operator", path, self.network.carrier("operator"))
        self.clients = [
            ClientParty(world, name, path, self.network.carrier(name), self.ordered)
            for name in plan.names
        ]
        self.parties: list[Party] = [self.server, self.office, *self.clients]

    def run(self) -> None:
        """Found the federation, take the steps, and look whether everything settles."""
        self._found()
        self.network.is_calm = False
        for step in self.plan.steps:
            self.world.begin(step)
            self.step()
            self._look()
        self.world.begin(0)
        self.settle()

    def end(self) -> None:
        """Release everything."""
        for party in self.parties:
            party.end()

    def _found(self) -> None:
        server, office = self.server, self.office
        key, operator = (SigningKey(server.machine.random(32)) for _ in range(2))
        found(
            server.folder, self.plan.spec, operator.public, key=key, clock=server.clock.wall
        )
        sync_folder(server.path)
        server.start()
        federation = self._service().state.federation
        office.create(operator, federation, key.public)
        for client in self.clients:
            if office.office is None:
                raise LawBrokenError("simulation", "the operator's office is closed")
            token, _ = office.office.token(client.name, "client", ())
            client.enrol(token)

    def _service(self) -> Any:
        if self.server.service is None:
            raise LawBrokenError("simulation", "the server is not running")
        return self.server.service

    # -- steps -------------------------------------------------------------------------------------

    def step(self) -> None:
        """Whatever chance says."""
        world, chance = self.world, self.world.chance
        world.wait(chance.choice((0.0, 0.1, 1.0, 3.0)))
        kinds = list(self.plan.weights)
        (kind,) = chance.choices(kinds, [self.plan.weights[kind] for kind in kinds])
        if self.plan.troubles and chance.random() < self.plan.trouble:
            victim = chance.choice(self.parties)
            victim.machine.trouble = Trouble(
                chance.choice(self.plan.troubles), chance.randrange(_LONGEST)
            )
        world.count(f"step: {kind}")
        if kind in ("add", "forget", "forget a subject", "correct", "sync"):
            client = chance.choice(self.clients)
            if self._is_ready(client):
                self._act(client, kind)
        elif kind in ("restart", "kill"):
            self._stop(chance.choice(self.parties), kind)
        elif kind in ("wait", "wait long"):
            world.wait(chance.uniform(1, 20) if kind == "wait" else chance.uniform(100, 10_000))
        elif kind == "late messages":
            self.network.deliver_late()
        elif kind == "cut off":
            names = [client.name for client in self.clients]
            self.network.cut_off = set(chance.sample(names, chance.randint(0, len(names))))
        elif kind == "set a clock":
            chance.choice(self.parties).clock.ahead = chance.choice((-3600.0, 0.0, 5.0, 86400.0))
        elif self._is_ready(self.office):
            self._command(kind)

    def _is_ready(self, party: Party) -> bool:
        """Start a party if it is down; one whose disk fails is mended, sooner or later."""
        if party.machine.has_trouble and self.world.chance.random() < 0.3:
            party.machine.mend()
        if not party.is_up and not party.is_busy:
            with self._starting(party):
                party.attempt("start", party.start)
        return party.is_up and not party.is_busy

    @contextmanager
    def _starting(self, party: Party) -> Iterator[None]:
        yield
        if party is self.server and self.server.is_up:
            self._compare_log()

    def _act(self, client: ClientParty, kind: str) -> None:
        chance = self.world.chance
        held = sorted(client.held)
        if kind == "add":
            client.add(chance.choice((1, 1, 2, 5)))
        elif kind == "sync":
            self._is_ready(self.server)
            client.sync()
        elif held and kind == "forget":
            client.forget(chance.sample(held, min(len(held), chance.choice((1, 1, 3)))))
        elif held and kind == "forget a subject":
            client.forget_subject(client.held[chance.choice(held)].subject)
        elif held and kind == "correct":
            client.correct(chance.choice(held))

    def _stop(self, party: Party, kind: str) -> None:
        if party.is_busy:
            return
        self.world.tell(party.name, kind)
        if kind == "kill":
            party.crash(power=self.world.chance.random() < 0.5)
        elif party.is_up:
            party.attempt("stop", party.stop)

    def _command(self, kind: str) -> None:
        chance, office = self.world.chance, self.office
        self._is_ready(self.server)
        if kind == "order":
            held = sorted({sample.subject for client in self.clients for sample in client.held.values()})
            subject = chance.choice([*held, "nobody"])
            self.ordered.add(subject)
            order = office.do("order", {"subject": subject, "days": 30})
            if order is not None:
                office.orders[order["order"]] = subject
        elif kind == "close an order" and office.orders:
            order = chance.choice(sorted(office.orders))
            if office.do("close-order", {"order": order}) is not None:
                del office.orders[order]
        elif kind == "audit":
            audit = office.do("audit", {})
            if audit is not None:
                office.audits.append(audit["audit"])
        elif kind == "fold":
            office.do("fold", {})
        elif kind == "rotate the key":
            office.do("rotate-key", {})
        elif kind == "back up":
            office.do("backup", {"name": f"backup-{self.world.step}"})
        elif kind == "amend":
            office.do("amend", {"gamma": chance.choice((0.5, 1.0, 2.0)).hex()})

    def _meanwhile(self) -> None:
        """While a message is on its way, somebody else acts."""
        if self._depth:
            return
        self._depth += 1
        try:
            client = self.world.chance.choice(self.clients)
            if self._is_ready(client):
                self._act(client, self.world.chance.choice(("add", "forget", "sync", "sync")))
        finally:
            self._depth -= 1

    # -- laws after every step ---------------------------------------------------------------------

    def _look(self) -> None:
        self.server.tick()
        self._follow_log()
        for party in self.parties:
            party.note_keys()

    def _follow_log(self) -> None:
        """What has been answered is in the log from now on."""
        service = self.server.service
        if service is not None:
            size = service.state.log.size
            self.server.log += service.entries(len(self.server.log), size)

    def _compare_log(self) -> None:
        """After a start: the log continues what anybody has seen."""
        service, before = self._service(), self.server.log
        size = service.state.log.size
        if size < len(before) or service.entries(0, len(before)) != before:
            raise LawBrokenError(
                "the log grows",
                f"it had {len(before)} entries that were answered, and has {size}, or others",
            )

    # -- laws when everything is quiet ------------------------------------------------------------

    def settle(self) -> None:
        """Once nothing fails any more, everything settles, and is what it should be."""
        self.network.is_calm, self.network.cut_off = True, set()
        for party in self.parties:
            party.machine.mend()
            party.clock.ahead = 0.0
            self._begin_again(party)
        self.network.deliver_late()
        for _ in range(MASKED_SETTLING if self.plan.masked else SETTLING):
            if self._sync_all():
                break
        else:
            raise LawBrokenError("everything settles", self._unsettled())
        self._compare_ledger()
        self._compare_evidence()
        self._compare_keys()

    def _begin_again(self, party: Party) -> None:
        """Start a party that is down; nothing keeps it from that."""
        if not party.is_up:
            try:
                with self._starting(party):
                    party.start()
            except (ExpungeError, OSError) as problem:
                raise LawBrokenError(
                    "everything starts", f"{party.name} cannot be started: {problem}"
                ) from problem

    def _sync_all(self) -> bool:
        """Whether nothing is left to do."""
        settled = True
        for client in self.clients:
            result = client.sync()
            if result is None:
                raise LawBrokenError("everything settles", f"{client.name} cannot sync")
            client.compare()
            status = client.open_store.status()
            settled &= not (status.adding or status.deleting or status.orders or result.waiting)
            self.world.wait(1.0)
        self.world.wait(2.0 if settled else 10.0)
        self.server.tick()
        return settled

    def _unsettled(self) -> str:
        return "; ".join(
            f"{client.name} has {client.open_store.status()} and waits: {client.last.waiting!r}"
            for client in self.clients
        )

    def _compare_ledger(self) -> None:
        """The head is that of a retrain on what the clients hold."""
        service = self._service()
        spec = service.state.spec
        held = [sample for client in self.clients for sample in client.held.values()]
        count = service.status()["samples"]
        if count != len(held):
            raise LawBrokenError("ledger", f"it has {count} samples, the clients {len(held)}")
        if held:
            features = [list(sample.features) for sample in held]
            labels = [sample.label for sample in held]
            retrained = solve(Statistics.of(spec, features, labels))
            if service.head_digest() != retrained.digest:
                raise LawBrokenError("ledger", "the head is not that of a retrain")
        self.world.count("law: ledger")

    def _compare_evidence(self) -> None:
        """Orders are complete, audits equal, and what the log says continues."""
        self._follow_log()
        self._compare_log()
        for order, subject in self.office.orders.items():
            shown = self.office.ask("show-order", {"order": order})
            if shown is None or shown["state"] not in ("complete", "closed"):
                raise LawBrokenError("orders complete", f"order {order}: {shown}")
            if any(
                sample.subject == subject
                for client in self.clients
                for sample in client.held.values()
            ):
                raise LawBrokenError("orders complete", f"{subject} is still held")
            self.world.count("law: order")
        for audit in self.office.audits:
            shown = self.office.ask("show-audit", {"audit": audit})
            if shown is None or shown["result"] not in ("equal", "abandoned"):
                raise LawBrokenError("audits equal", f"audit {audit}: {shown}")
            self.world.count("law: audit")

    def _compare_keys(self) -> None:
        """What has been erased is nowhere: no byte of any disk has the keys."""
        self.world.wait(_ERASE_WITHIN)
        self.server.tick()
        for party in self.parties:
            now = party.note_keys()
            gone = sorted(party.keys - now)
            found = party.disk.finds(gone)
            if found:
                raise LawBrokenError(
                    "erased", f"{len(found)} of {len(gone)} destroyed keys of {party.name}"
                )
            self.world.coverage["law: destroyed keys"] += len(gone)
            self.world.trace(party.disk.digest())
