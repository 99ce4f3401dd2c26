"""A server, clients and an operator at work, made to be killed at any time: each goes on where it
was killed, and none does anything that it does not write down first (`support.operations`).
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from expunge.client import Agent, ClientStore, Selection
from expunge.crypto import SigningKey
from expunge.errors import CarrierError, RefusedError
from expunge.office import Office
from expunge.server.http.run import serve
from expunge.server.http.tls import CERTIFICATE, KEY
from expunge.server.service import Service
from expunge.server.state import Settings
from expunge.transport.http import HttpCarrier
from support.operations import Operations, Story, ordered, read, sample

CLIENTS = ("north", "south", "west")
OPERATOR = "operator"
_ENOUGH, _SUBJECTS = 30, 12
_PAUSE = 0.02  # seconds
_WORK = {"add": 8, "forget": 4, "correct": 3, "choose": 1, "sync": 12}
_COMMANDS = {"order": 6, "close": 4, "audit": 3, "fold": 3, "amend": 1, "rotate": 1, "backup": 1}


@dataclass(frozen=True)
class Site:
    """Where everything is: a folder for each party, and what each has written down."""

    folder: Path
    port: int

    def notes(self, name: str) -> Path:
        """The file of a party."""
        return self.folder / f"{name}.operations"

    @property
    def tls(self) -> Path:
        """Certificates."""
        return self.folder / "tls"

    def carrier(self) -> HttpCarrier:
        """The way to the server."""
        ca = (self.tls / "ca.pem").read_text(encoding="ascii")
        return HttpCarrier(f"https://127.0.0.1:{self.port}", ca=ca)

    def server_key(self) -> SigningKey:
        """That the server signs with now."""
        return SigningKey.from_pem((self.folder / "server" / "server.key").read_bytes())


def be_server(site: Site) -> None:
    """Serve until something ends it."""
    notes = Operations(site.notes("server"))
    settings = Settings(erase_within=2)
    service = Service.open(site.folder / "server", settings=settings, timeout=20.0)
    files = {"certificate": site.tls / CERTIFICATE, "key": site.tls / KEY}
    serve(service, port=site.port, ready=lambda _: notes.note("up"), **files)


def stored(store: ClientStore) -> dict[str, tuple[Any, ...]]:
    """What a store holds: feature, label and subject by id."""
    labels = store.spec.labels or ()
    return {
        listed.names.id: (
            tuple(map(float, unsealed.content.feature)),
            labels[unsealed.content.target],
            listed.names.subject,
        )
        for listed, unsealed in store.opened(Selection(everything=True))
        if listed.state in ("adding", "live")
    }


class Worker:
    """A client that adds, corrects and forgets samples, and syncs."""

    def __init__(self, site: Site, name: str, seed: int) -> None:
        self.site, self.name = site, name
        self.chance = random.Random(seed)  # noqa: S311 - nothing secret is drawn here
        self.store = ClientStore.open(site.folder / name, timeout=20.0)
        self.agent = Agent(self.store, site.carrier(), attempts=1)
        self.story = Story.read(site.notes(name))
        self.notes = Operations(site.notes(name))
        self.compare()
        self.notes.note("up")

    def compare(self) -> None:
        """What the store holds is what was done, or attempted; from now on, that is what counts."""
        held = self.story.explained(stored(self.store), set(ordered(self.site.notes(OPERATOR))))
        if held != self.story.held or self.story.attempted is not None:
            self.note("held", samples=[[id_, *each] for id_, each in held.items()])

    def note(self, what: str, **content: Any) -> None:
        self.notes.note(what, **content)
        self.story.follow({"what": what, "at": 0.0, **content})

    def work(self) -> None:
        """For ever."""
        while True:
            time.sleep(_PAUSE)
            (kind,) = self.chance.choices(list(_WORK), list(_WORK.values()))
            if kind == "sync":
                self.sync()
            elif kind == "choose":
                self.store.choose(self.chance.choice(("rows", "gram")))
            elif kind == "add":
                self.add()
            elif self.story.held:
                getattr(self, kind)()

    def add(self) -> None:
        about = ordered(self.site.notes(OPERATOR))
        free = [f"person {n}" for n in range(len(about) + _SUBJECTS) if f"person {n}" not in about]
        count = self.chance.randrange(1, 4) if len(self.story.held) < _ENOUGH else 1
        ids = [f"{self.name}-{self.chance.randrange(2**60):x}" for _ in range(count)]
        subjects = [self.chance.choice(free) for _ in ids]
        self.note("add", ids=ids, subjects=subjects)
        samples = [sample(id_, 0) for id_ in ids]
        features, labels = [each[0] for each in samples], [each[1] for each in samples]
        self.store.add(ids, features, labels, subjects=subjects, now=time.time())
        self.note("done", of="add")

    def forget(self) -> None:
        ids = self.chance.sample(sorted(self.story.held), 1 + (len(self.story.held) > _ENOUGH))
        self.note("forget", ids=ids)
        self.store.forget(Selection(ids=tuple(ids)), now=time.time())
        self.note("done", of="forget")

    def correct(self) -> None:
        id_ = self.chance.choice(sorted(self.story.held))
        version = self.chance.randrange(1, 2**40)
        self.note("correct", id=id_, version=version)
        feature, label = sample(id_, version)
        self.store.correct(id_, feature=feature, label=label, now=time.time())
        self.note("done", of="correct")

    def sync(self) -> None:
        try:
            result = self.agent.sync()
        except (CarrierError, RefusedError) as problem:
            if isinstance(problem, RefusedError) and problem.code != "storage":
                raise
            self.compare()  # an order may have been carried out before the answer was lost
        else:
            self.note("synced", receipts=len(result.receipts))
            if result.orders:
                self.compare()


class Director:
    """The operator: orders, audits, amendments, rotations of the key, backups."""

    def __init__(self, site: Site, seed: int) -> None:
        self.site = site
        self.chance = random.Random(seed)  # noqa: S311 - nothing secret is drawn here
        self.office = Office.open(site.folder / OPERATOR, site.carrier(), timeout=20.0)
        self.notes = Operations(site.notes(OPERATOR))
        self.notes.note("up")
        self._backups = sum(line["what"] == "backup" for line in read(site.notes(OPERATOR)))

    def work(self) -> None:
        """For ever."""
        while True:
            time.sleep(10 * _PAUSE * self.chance.random())
            (kind,) = self.chance.choices(list(_COMMANDS), list(_COMMANDS.values()))
            try:
                getattr(self, kind)()
            except CarrierError:
                time.sleep(_PAUSE)
            except RefusedError as problem:  # as a second audit, or what was done before a kill
                self.notes.note("refused", code=problem.code)

    def do(self, action: str, arguments: dict[str, Any], **noted: Any) -> None:
        self.notes.note(action, **noted)
        self.office.do(action, arguments)
        self.notes.note("done", of=action)

    def order(self) -> None:
        subject = f"person {len(ordered(self.site.notes(OPERATOR))) + self.chance.randrange(4)}"
        self.do("order", {"subject": subject, "subjects": {}, "days": 30}, subject=subject)

    def close(self) -> None:
        for order in self.office.filed:
            shown = self.office.ask("show-order", {"order": order})
            if shown["state"] == "complete":
                self.do("close-order", {"order": order})
                return

    def audit(self) -> None:
        self.do("audit", {})

    def fold(self) -> None:
        self.do("fold", {})

    def amend(self) -> None:
        self.do("amend", {"gamma": self.chance.choice((0.5, 1.0, 2.0)).hex()})

    def rotate(self) -> None:
        self.do("rotate-key", {})

    def backup(self) -> None:
        self._backups += 1
        self.do("backup", {"name": f"backup-{self._backups}"})
