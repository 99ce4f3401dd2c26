"""How long commands take as processes, against a Python that imports click and does nothing else.

Commands that compute nothing are timed by the clock; `order list` asks a server over HTTPS, so that
urllib3, a handshake and the server's answer are in its time, too. Commands that open or compute
something are timed by the processors that they use: what `client add` waits for, its disk and the
server, is no start-up. Bytecode is kept, as it is where Expunge is installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np

from benchmarks.data import Data
from benchmarks.measure import Row, at_most, cpu_seconds, in_turns, progress
from benchmarks.modules import served
from expunge import Spec
from expunge.federation import Federation

_TURNS, _CPU_TURNS = 15, 9
_TEXT = """## Starting up

Commands as processes. Those that compute nothing are timed by the clock; the last of them also
waits for urllib3, a TLS handshake and the server's answer. The others ("CPU") open samples or
compute something, and are timed by the processors that they use, one BLAS thread each: they wait
for disks and servers, too. The libraries alone are click, rich, sqlite3, numpy and cryptography;
over HTTPS also urllib3 and ssl, which leave little below 5 times.
"""
_EXPUNGE = (sys.executable, "-m", "expunge")
_BARE = (sys.executable, "-c", "import click")
_AGAINST = 'python -c "import click"'
_LIBRARIES = (
    "import gc; gc.disable(); import click, rich.console, sqlite3, numpy, "
    "cryptography.hazmat.primitives.asymmetric.ed25519, "
    "cryptography.hazmat.primitives.ciphers.aead"
)
_HTTPS = ", urllib3, ssl"
_ROWS = "id,subject,label,a,b,c,d,e,f,g,h\n"


class Place:
    """A small federation in a folder: a client with samples and a receipt, an order, an audit."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "federation"
        self.client = self.folder / "clients" / "clinic"
        self.receipt, self.samples = folder / "receipt.json", folder / "samples.csv"
        self.spec, self.shard = folder / "spec.json", folder / "shard.npz"
        self._numbers = count()
        self._environment = os.environ | {
            "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
            "OPENBLAS_NUM_THREADS": "1",
        }
        self._environment.pop("PYTHONDONTWRITEBYTECODE", None)
        spec = Spec(dim=8, labels=("cat", "dog"))
        features, labels = np.arange(32.0).reshape(4, 8), ["cat", "dog", "cat", "dog"]
        with Federation.found(self.folder, spec) as federation:
            store = federation.client("clinic").store
            store.choose("gram")
            store.add(list("abcd"), features, labels, now=0)
            federation.sync()
            federation.audit()
            self.receipt.write_bytes(store.documents("receipt")[1])
        np.savez(self.shard, feature=features, label=np.array(labels))
        self.spec.write_text(json.dumps(spec.to_dict()))

    def new_sample(self) -> str:
        """The id of a sample that was not there before; the file of samples has it."""
        name = f"new-{next(self._numbers)}"
        self.samples.write_text(f"{_ROWS}{name},p,cat,{','.join('12345678')}\n")
        return name

    def run(self, command: tuple[str, ...]) -> None:
        """A process, until its end."""
        subprocess.run(  # noqa: S603 - our own program
            command, env=self._environment, stdout=subprocess.DEVNULL, check=True
        )

    def expunge(self, *arguments: str) -> None:
        """A command, until its end."""
        self.run((*_EXPUNGE, *arguments))


_Act = Callable[[], object]


def _row(place: Place, name: str, limit: float, act: _Act) -> Row:
    progress(f"starting up: {name}")
    return at_most(name, _AGAINST, limit, in_turns(act, partial(place.run, _BARE), _TURNS))


def _cpu_row(place: Place, name: str, act: _Act, limit: float | None = None) -> Row:
    progress(f"starting up: {name}")
    bare = partial(place.run, _BARE)
    timings = in_turns(act, bare, _CPU_TURNS, timed=cpu_seconds)
    if limit is not None:
        return at_most(f"CPU: {name}", _AGAINST, limit, timings)
    return Row(f"CPU: {name}", _AGAINST, *timings, "(for information)", holds=True)


def _libraries(place: Place, more: str = "") -> _Act:
    return partial(place.run, (sys.executable, "-c", _LIBRARIES + more))


def _idle(place: Place) -> Iterator[Row]:
    """Commands that compute nothing, without a server."""
    client, key = str(place.client), str(place.folder / "server.pub")
    for name, limit, arguments in (
        ("expunge --version", 2.5, ("--version",)),
        ("expunge --help", 2.5, ("--help",)),
        ("expunge client status", 3.5, ("client", "status", "--dir", client)),
        ("expunge verify RECEIPT", 3.5, ("verify", str(place.receipt), "--key", key)),
    ):
        yield _row(place, name, limit, partial(place.expunge, *arguments))


def _offline(place: Place) -> Iterator[Row]:
    """Commands that open samples or compute, without a server."""
    yield _cpu_row(place, "the libraries alone", _libraries(place))
    client = ("--dir", str(place.client))
    place.new_sample()
    for name, *arguments in (
        ("expunge client list", "client", "list", *client),
        ("expunge client export --dry-run", "client", "export", "--all", "--dry-run", *client),
        ("expunge client forget --dry-run", "client", "forget", "--id", "a", "--dry-run", *client),
        ("expunge predict FILE", "predict", str(place.samples), *client),
        ("expunge statistics FILE", "statistics", str(place.shard), "--spec", str(place.spec)),
    ):
        yield _cpu_row(place, name, partial(place.expunge, *arguments), 5.0)


def _online(place: Place, url: str) -> Iterator[Row]:
    """Commands that ask a server over HTTPS."""
    office = ("--office", str(place.folder / "operator"), "--at", url)
    # the federation's folder says where it is served
    client = ("--dir", str(place.client), "--at", str(place.folder))
    added: list[str] = []

    def add() -> None:
        added.append(place.new_sample())
        place.expunge("client", "add", str(place.samples), *client)

    def forget() -> None:
        place.expunge("client", "forget", "--id", added.pop(), "--yes", *client)

    orders = partial(place.expunge, "order", "list", *office)
    audit = partial(place.expunge, "audit", "--show", "last", *office)
    sync = partial(place.expunge, "client", "sync", *client)
    yield _row(place, "expunge order list, over HTTPS", 3.5, orders)
    yield _cpu_row(place, "the libraries alone, HTTPS", _libraries(place, _HTTPS))
    yield _cpu_row(place, "expunge audit --show, HTTPS", audit, 5.0)
    yield _cpu_row(place, "expunge client sync, HTTPS", sync)
    yield _cpu_row(place, "expunge client add (gram), HTTPS", add)
    yield _cpu_row(place, "expunge client forget (gram), HTTPS", forget)


def report(data: Data) -> tuple[str, list[Row]]:
    """What is measured, in words, and the claims."""
    del data  # the samples here are few and small
    with tempfile.TemporaryDirectory() as folder:
        progress("starting up: founding a federation")
        place = Place(Path(folder))
        rows = [*_idle(place), *_offline(place)]
        with served(place.folder) as url:
            rows += _online(place, url)
    return _TEXT, rows
