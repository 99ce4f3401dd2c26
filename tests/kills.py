"""Kills a server, its clients and its operator with signal 9, again and again, while they work.

Run as a program: `kills.py KILLS`, or `make kills KILLS=1000`. All are processes of their own, over
HTTPS on this machine. After some kills each, everybody is killed, and once all are back: nothing is
lost or applied twice, the log continues what it was, receipts verify and are in the log, orders are
complete, an audit is equal, and the head is that of a retrain on what was written down outside
Expunge. EXPUNGE_SEED says what is drawn; when which process is killed depends on the machine, too.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from expunge import Spec, Statistics, solve
from expunge.client import Agent, ClientStore, enrol
from expunge.client.scrub import scrub_client
from expunge.crypto import Envelope, SigningKey, canonical
from expunge.evidence import Receipt, published_head
from expunge.evidence.log import read_entry
from expunge.office import Office
from expunge.server.backup import found
from expunge.server.http.tls import make_tls
from expunge.server.scrub import scrub_server
from expunge.transport.local import LocalCarrier
from support import seeds
from support.killable_parties import (
    CLIENTS,
    OPERATOR,
    Director,
    Site,
    Worker,
    be_server,
    stored,
)
from support.operations import DIM, LABELS, Operations, Story, filed, ordered, read, sample
from support.serving import free_port

SPEC = Spec(dim=DIM, labels=LABELS, gamma=1.0, messages=("rows", "gram"))
PARTIES = ("server", *CLIENTS, OPERATOR)
EPISODE = 40  # kills, after which everything is compared
_SHOWN = 10  # kills
_EARLY = 0.2  # how often a process is killed before it is up
_PATIENCE = 60.0  # seconds until a process must be up
_SYNCS = 20  # until everything must have settled


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Process:
    """One party at work: a process that is forked, so that it starts quickly."""

    def __init__(self, site: Site, name: str, work: Callable[[], None]) -> None:
        self.site, self.name = site, name
        self._begun = self._ups()
        self._log = site.folder / f"{name}.log"
        self.number = os.fork()
        if not self.number:
            code = 1
            try:
                output = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                os.dup2(output, 1)
                os.dup2(output, 2)
                work()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)

    def _ups(self) -> int:
        return sum(line["what"] == "up" for line in read(self.site.notes(self.name)))

    def wait_until_up(self) -> None:
        end = time.monotonic() + _PATIENCE
        while self._ups() == self._begun:
            self.require_running()
            if time.monotonic() > end:
                raise AssertionError(f"{self.name} is not up after {_PATIENCE:.0f} s")
            time.sleep(0.01)

    def require_running(self) -> None:
        """Nobody ends by itself."""
        if os.waitpid(self.number, os.WNOHANG)[0]:
            raise AssertionError(f"{self.name} has ended by itself:\n{self._log.read_text()}")

    def end(self, number: int) -> int:
        """Its exit code, once this signal has ended it."""
        self.require_running()
        os.kill(self.number, number)
        return os.waitstatus_to_exitcode(os.waitpid(self.number, 0)[1])


@dataclass
class Kills:
    """A federation whose processes are killed."""

    site: Site
    chance: Any
    processes: dict[str, Process] = field(default_factory=dict)
    killed: Counter[str] = field(default_factory=Counter)
    compared: Counter[str] = field(default_factory=Counter)

    @classmethod
    def found(cls, folder: Path) -> Kills:
        """Found a federation and enrol everybody."""
        site = Site(folder, free_port())
        operator, key = (SigningKey(secrets.token_bytes(32)) for _ in range(2))
        make_tls(site.tls, ["127.0.0.1"])
        found(folder / "server", SPEC, operator.public, key=key)
        carrier = LocalCarrier.open(folder / "server")
        office = Office.create(
            folder / OPERATOR,
            name=OPERATOR,
            role="operator",
            federation=carrier.state.federation,
            server=key.public,
            address="",
            key=operator,
            carrier=carrier,
        )
        for name in CLIENTS:
            enrol(folder / name, office.token(name, "client", ())[0], carrier).close()
        office.close()
        carrier.close()
        return cls(site, seeds.chance("kills"))

    def start(self, name: str) -> Process:
        """Start one of them."""
        site, seed = self.site, self.chance.randrange(2**32)

        def work() -> None:
            if name == "server":
                be_server(site)
            else:
                (Director(site, seed) if name == OPERATOR else Worker(site, name, seed)).work()

        self.processes[name] = Process(site, name, work)
        return self.processes[name]

    def kill(self, name: str) -> None:
        """Kill one of them."""
        code = self.processes.pop(name).end(signal.SIGKILL)
        if code != -signal.SIGKILL:
            raise AssertionError(f"{name} had ended with {code}")
        self.killed[name] += 1

    def episode(self, kills: int) -> None:
        """So many kills at random, then of all; and once all are back, everything holds."""
        for name in PARTIES:
            self.start(name).wait_until_up()
        for _ in range(max(0, kills - len(PARTIES))):
            time.sleep(self.chance.uniform(0.0, 0.4))
            name = self.chance.choice(PARTIES)
            self.kill(name)
            process = self.start(name)
            if self.chance.random() > _EARLY:
                process.wait_until_up()
            if self.killed.total() % _SHOWN == 0:
                say(f"{self.killed.total():6} kills: {_listed(self.killed)}")
        for name in self.chance.sample(PARTIES, len(PARTIES)):
            self.kill(name)
        self.compare()

    def compare(self) -> None:
        """In a process of its own, for it needs threads; and the server ends in good order then."""
        self.start("server").wait_until_up()
        comparison = Process(self.site, "comparison", lambda: Comparison(self.site).make())
        _, status = os.waitpid(comparison.number, 0)
        if status:
            log = (self.site.folder / "comparison.log").read_text()
            raise AssertionError(f"what holds always does not hold:\n{log}")
        code = self.processes.pop("server").end(signal.SIGTERM)
        if code:
            raise AssertionError(f"the server ended with {code}")
        damage = scrub_server(self.site.folder / "server").findings
        damage += [
            each for name in CLIENTS for each in scrub_client(self.site.folder / name).findings
        ]
        if damage:
            raise AssertionError(f"scrubs have found {damage}")
        lines = list(read(self.site.notes("comparison")))
        self.compared = Counter(lines[-1]["counts"])
        self.compared["comparisons"] = len(lines)

    def end(self) -> None:
        """Nobody is left behind."""
        for process in self.processes.values():
            os.kill(process.number, signal.SIGKILL)
            os.waitpid(process.number, 0)


class Comparison:
    """Everybody comes to an end, over HTTPS; then everything is compared with the oracle."""

    def __init__(self, site: Site) -> None:
        self.site, self.carrier = site, site.carrier()
        self.office = Office.open(site.folder / OPERATOR, self.carrier)
        self.stores = {name: ClientStore.open(site.folder / name) for name in CLIENTS}
        self.about = ordered(site.notes(OPERATOR))
        self.stories = {name: Story.read(site.notes(name)) for name in CLIENTS}
        self.counts: Counter[str] = Counter()

    def make(self) -> None:
        """AssertionError if anything does not hold."""
        audit = self.office.do("audit", {})["audit"]
        self.settle()
        self.office.do("fold", {})
        end = time.monotonic() + _PATIENCE
        while (shown := self.office.ask("show-audit", {"audit": audit}))["result"] == "under way":
            if time.monotonic() > end:
                break
            time.sleep(0.1)  # the server ends it when it erases at rest
        if (shown["result"], shown["different"]) != ("equal", []):
            raise AssertionError(f"the audit: {shown}")
        self.compare_head()
        self.compare_log()
        for order in self.office.filed:
            if self.office.ask("show-order", {"order": order})["state"] != "complete":
                raise AssertionError(f"order {order} is not complete")
        for name, store in self.stores.items():
            held = self.stories[name].held
            lines = [[id_, *each] for id_, each in held.items()]
            Operations(self.site.notes(name)).note("held", samples=lines)
            store.close()
        self.office.close()
        Operations(self.site.notes("comparison")).note("compared", counts=self.counts)

    def settle(self) -> None:
        """All sync until nothing is left to do; and each holds what it must."""
        for _ in range(_SYNCS):
            for store in self.stores.values():
                Agent(store, self.carrier).sync()
            left = [store.status() for store in self.stores.values()]
            if not any(each.adding or each.deleting or each.orders for each in left):
                break
        else:
            raise AssertionError(f"not settled: {left}")
        taken = filed(self.site.notes(OPERATOR))
        for name, store in self.stores.items():
            story = self.stories[name]
            story.held, story.attempted = story.explained(stored(store), set(self.about)), None
            for id_, (_, subject) in story.held.items():
                if taken.get(subject, 0.0) > story.added[id_]:
                    raise AssertionError(f"{name} holds {id_} about {subject}, who was to go")

    def compare_head(self) -> None:
        """The head is that of a retrain on the oracle's samples."""
        content = self.office.federation_content()
        spec = Spec.from_dict(content["spec"])
        rows = [
            sample(id_, version)
            for story in self.stories.values()
            for id_, (version, _) in story.held.items()
        ]
        expected = Statistics.of(spec, [row[0] for row in rows], [row[1] for row in rows])
        if sum(store.statistics() for store in self.stores.values()).digest != expected.digest:
            raise AssertionError("the stores' statistics are not those of the oracle")
        data = self.carrier.head()
        if data is None:
            raise AssertionError("there is no head")
        head, certificate = published_head.read(data, self.office.chain)
        if head.digest != solve(expected).digest or certificate.count != len(rows):
            raise AssertionError("the head is not that of a retrain")
        self.counts["samples"] = len(rows)

    def compare_log(self) -> None:
        """The log continues what it was, has every request and command once, and each receipt's
        entry.
        """
        entries: list[bytes] = []
        checkpoint = Envelope.from_bytes(self.carrier.checkpoint(), "checkpoint").unverified()
        while len(entries) < checkpoint["size"]:
            entries += self.carrier.entries(len(entries), checkpoint["size"])
        seen = self.site.folder / "log.seen"
        before = seen.read_bytes().split(b"\n")[:-1] if seen.exists() else []
        if [entry.hex().encode() for entry in entries[: len(before)]] != before:
            raise AssertionError("the log does not continue what it was")
        seen.write_bytes(b"".join(entry.hex().encode() + b"\n" for entry in entries))
        content = [read_entry(entry) for entry in entries]
        for kind, who in (("changed", "client"), ("commanded", "actor")):
            numbers: dict[str, list[int]] = {}
            for each in content:
                if each["kind"] == kind:
                    numbers.setdefault(each[who], []).append(each["sequence"])
            for name, given in numbers.items():
                if given != list(range(1, len(given) + 1)):
                    raise AssertionError(f"{name} has {kind} {given}")
        self.counts.update(each["kind"] for each in content)
        actions = (each["action"] for each in content if each["kind"] == "commanded")
        self.counts.update(f"command: {action}" for action in actions)
        for name, store in self.stores.items():
            for data in store.documents("receipt").values():
                receipt = Receipt.read(Envelope.from_bytes(data, "receipt"), self.office.chain)
                entry = canonical.encode(receipt.logged.entry)
                if receipt.client != name or entries[receipt.logged.index] != entry:
                    raise AssertionError(f"a receipt of {name} is not in the log")
                self.counts["receipts"] += 1


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{what} {number:,}" for what, number in counts.most_common())


def main(kills: int) -> int:
    setting = f"{seeds.VARIABLE}={seeds.seed()}"
    say(f"{kills} kills, {setting}")
    folder = Path(tempfile.mkdtemp(prefix="expunge-kills-"))
    begun, federation = time.monotonic(), Kills.found(folder)
    try:
        while (left := kills - federation.killed.total()) > 0:
            federation.episode(max(len(PARTIES), min(left, EPISODE)))
            say(f"{federation.killed.total():6} kills: everything holds")
    except AssertionError as problem:
        say(f"{problem}\nFailed with {setting}; everything is left in {folder}")
        return 1
    finally:
        federation.end()
    stories = [Story.read(federation.site.notes(name)) for name in CLIENTS]
    done: Counter[str] = sum((story.counts for story in stories), Counter())
    rows = {
        "kills": f"{federation.killed.total():,}: {_listed(federation.killed)}",
        "done by clients": _listed(Counter({k: v for k, v in done.items() if k != "up"})),
        "in the log": _listed(federation.compared),
        "seconds": f"{time.monotonic() - begun:,.0f}",
        "broken": "nothing",
    }
    for what, text in rows.items():
        say(f"| {what} | {text} |")
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    seeds.settle()
    sys.exit(main(int(sys.argv[1])))
