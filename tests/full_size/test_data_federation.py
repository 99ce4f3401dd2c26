"""A hundred clients with the real CIFAR-10 features, split by Dirichlet(0.5): whatever carries
their messages, plain or masked, and whoever drops out, the ledger is that of retraining centrally
on what the clients included retain (make test-data).
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from expunge import Aggregation
from expunge.client import Agent, ClientStore, Selection
from expunge.evidence import Receipt
from expunge.federation import Federation
from expunge.federation.founding import found_federation
from expunge.server.service import Service
from expunge.server.state import Settings
from expunge.transport.http import HttpCarrier
from support.cifar import CLIENTS, NAMES, Cifar, enrolled, spec_of

pytestmark = pytest.mark.data

AT_ONCE = 8  # clients that speak at the same time
# Seconds of a phase, by a clock that the test turns on: nobody drops out because this machine is
# busy
PHASE_FOR = 100_000.0


@pytest.fixture
def cifar() -> Cifar:
    return Cifar()


@pytest.fixture
def folder() -> Iterator[Path]:
    """Removed at once: a hundred sub-ledgers take more than a gigabyte."""
    with tempfile.TemporaryDirectory() as place:
        yield Path(place) / "federation"


def test_the_split_is_uneven_and_whole(cifar: Cifar) -> None:
    sizes = [len(own) for own in cifar.owned.values()]
    assert sorted(np.concatenate(list(cifar.owned.values())).tolist()) == list(range(50_000))
    assert min(sizes) >= 3  # every client has something for each of three rounds
    assert max(sizes) > 4 * min(sizes)
    classes = [
        np.bincount(cifar.labels[own], minlength=10) / len(own) for own in cifar.owned.values()
    ]
    assert np.median([share.max() for share in classes]) > 0.25  # evenly, it would be 0.1


# -- plain messages --------------------------------------------------------------------------------


def together(agents: list[Agent]) -> list[Receipt]:
    """Some at a time, everybody brings what is pending."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [receipt for receipts in pool.map(Agent.push, agents) for receipt in receipts]


def test_local(cifar: Cifar, folder: Path) -> None:
    spec = spec_of(cifar)
    with Federation.found(folder, spec, settings=Settings(erase_within=3600)) as federation:
        enrolled(federation, cifar)
        receipts = together([federation.client(name).agent for name in NAMES])
        assert {receipt.client for receipt in receipts} == set(NAMES)
        cifar.retained[:] = True
        cifar.check(federation, spec)
        for name in NAMES[::10]:
            gone = cifar.owned[name][::2]
            federation.client(name).forget(ids=tuple(f"image-{index}" for index in gone))
            cifar.retained[gone] = False
        cifar.check(federation, spec)


def test_http(cifar: Cifar, folder: Path) -> None:
    spec = spec_of(cifar)
    with Federation.found(folder, spec) as federation:
        enrolled(federation, cifar)
        ca = federation.layout.ca
    stores = [ClientStore.open(folder / "clients" / name) for name in NAMES]
    with serving(folder) as url:
        carrier = HttpCarrier(url, ca=ca)
        agents = [Agent(store, carrier) for store in stores]
        assert len({receipt.client for receipt in together(agents)}) == CLIENTS
        heads = {agent.sync().head for agent in agents[:3]}
        carrier.close()
    for store in stores:
        store.close()
    cifar.retained[:] = True
    with Federation.open(folder) as federation:
        cifar.check(federation, spec)
        assert heads == {federation.published()[0].digest}


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """`expunge serve`, with TLS, in a process of its own: its address."""
    code = "from expunge.cli.main import main; main()"
    command = [sys.executable, "-c", code, "serve", str(folder), "--port", "0", "--json"]
    with subprocess.Popen(  # noqa: S603
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["urls"][0]
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(600) == 0  # on a busy machine the last fold takes a while


# -- secure aggregation ----------------------------------------------------------------------------


class Clock:
    """The time, and what has been turned on."""

    def __init__(self) -> None:
        self.more = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.more


class Masked:
    """A hundred client stores and the service on the local carrier; drop-outs are clients that do
    not sync any more.
    """

    def __init__(self, federation: Federation, cifar: Cifar, clock: Clock) -> None:
        self.federation, self.cifar, self.clock = federation, cifar, clock
        self.pending: dict[str, list[Any]] = {name: [] for name in NAMES}
        for name in NAMES:
            federation.client(name)

    def add(self, part: int) -> None:
        """Every client adds a third of its samples."""
        for name in NAMES:
            which = np.array_split(self.cifar.owned[name], 3)[part]
            self.cifar.add(self.federation.client(name).store, which)
            self.pending[name].append((which, True))

    def forget(self) -> None:
        """Every client forgets one of the samples that it has retained since the first round."""
        for name in NAMES:
            gone = self.cifar.owned[name][:1]
            self.federation.client(name).store.forget(Selection(ids=(f"image-{gone[0]}",)))
            self.pending[name].append((gone, False))

    def step(self, *without: list[str], deadline: bool = False) -> dict[str, Any]:
        """One sync of each client, but for those that have dropped out; then the phase's time may
        be up.
        """
        gone = {name for names in without for name in names}
        done = {name: self.federation.client(name).sync() for name in NAMES if name not in gone}
        self.clock.more += 2 * PHASE_FOR if deadline else 0.0
        return done

    def run(self, before: list[str], after: list[str]) -> None:
        """A round in which some drop out before their masked message, and some after it: these are
        included.
        """
        dropping = bool(before or after)
        self.step()  # joins
        self.step()  # shares
        self.step(before, deadline=bool(before))  # masked vectors
        self.step(before, after, deadline=dropping)  # agreements
        last = self.step(before, after, deadline=dropping)  # revealed shares
        done = {
            name: last[name].followed_by(one) if name in last else one
            for name, one in self.step().items()
        }
        included = [name for name in NAMES if name not in before]
        changes = [change for name in included for change in self.pending[name]]
        for name in included:
            (receipt,) = done[name].receipts
            assert [member["client"] for member in receipt.logged.entry["clients"]] == included
            assert receipt.logged.entry["added"] == sum(
                len(which) for which, kept in changes if kept
            )
            assert receipt.logged.entry["deleted"] == sum(
                len(which) for which, kept in changes if not kept
            )
            self.pending[name] = []
        assert all(done[name].waiting and not done[name].receipts for name in before)
        for which, kept in changes:
            self.cifar.retained[which] = kept


def test_secure_aggregation_with_0_10_and_30_drop_outs(cifar: Cifar, folder: Path) -> None:
    """Three rounds in a row; who is left out of one comes back in the next with all that is
    pending.
    """
    spec = spec_of(cifar, messages=("masked",), aggregation=Aggregation())
    # The last to speak in a phase hears of the next one at once, and goes on: the last few stay to
    # the end.
    dropping = np.random.default_rng(21).permutation(NAMES[:-5]).tolist()
    layout, clock = found_federation(folder, spec), Clock()
    settings = Settings(phase_for=PHASE_FOR, erase_within=3600)
    with (
        closing(Service.open(layout.server, settings=settings, seconds=clock)) as service,
        Federation(layout, service=service) as federation,
    ):
        masked = Masked(federation, cifar, clock)
        masked.add(0)
        masked.run([], [])
        cifar.check(federation, spec)
        masked.add(1)
        masked.forget()
        masked.run(dropping[:5], dropping[5:10])
        cifar.check(federation, spec)
        masked.add(2)
        masked.run(dropping[20:35], dropping[35:50])
        cifar.check(federation, spec)
