"""How long commands take that compute nothing, as processes, against a Python that imports click
and does nothing else.

Bytecode is kept, as it is where Expunge is installed. `order list` asks a server over HTTPS:
urllib3, a handshake and the server's answer are in its time, too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.data import Data
from benchmarks.measure import Row, at_most, in_turns, progress
from benchmarks.modules import served
from expunge import Spec
from expunge.federation import Federation

_TURNS = 15
_TEXT = """## Starting up

Commands that compute nothing, as processes. The last one also waits for urllib3, a TLS handshake
and the server's answer.
"""
_EXPUNGE = (sys.executable, "-m", "expunge")
_BARE = (sys.executable, "-c", "import click")


class Place:
    """A small federation in a folder: a client with samples and a receipt, and an order."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "federation"
        self.client = self.folder / "clients" / "clinic"
        self.receipt = folder / "receipt.json"
        self._environment = os.environ | {"PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
        self._environment.pop("PYTHONDONTWRITEBYTECODE", None)
        with Federation.found(self.folder, Spec(dim=8, labels=("cat", "dog"))) as federation:
            store = federation.client("clinic").store
            features = np.arange(32.0).reshape(4, 8)
            store.add(list("abcd"), features, ["cat", "dog", "cat", "dog"], now=0)
            federation.sync()
            self.receipt.write_bytes(store.documents("receipt")[1])

    def run(self, command: tuple[str, ...]) -> None:
        """A process, until its end."""
        subprocess.run(  # noqa: S603 - our own program
            command, env=self._environment, stdout=subprocess.DEVNULL, check=True
        )


def _row(place: Place, name: str, limit: float, *arguments: str) -> Row:
    progress(f"starting up: {name}")
    ours, theirs = (partial(place.run, command) for command in ((*_EXPUNGE, *arguments), _BARE))
    return at_most(name, 'python -c "import click"', limit, in_turns(ours, theirs, _TURNS))


def report(data: Data) -> tuple[str, list[Row]]:
    """What is measured, in words, and the claims."""
    del data  # nothing is computed
    with tempfile.TemporaryDirectory() as folder:
        progress("starting up: founding a federation")
        place = Place(Path(folder))
        key, office = str(place.folder / "server.pub"), str(place.folder / "operator")
        rows = [
            _row(place, "expunge --version", 2.5, "--version"),
            _row(place, "expunge --help", 2.5, "--help"),
            _row(
                place, "expunge client status", 3.5, "client", "status", "--dir", str(place.client)
            ),
            _row(place, "expunge verify RECEIPT", 3.5, "verify", str(place.receipt), "--key", key),
        ]
        with served(place.folder) as url:
            asked = ("order", "list", "--office", office, "--at", url)
            rows.append(_row(place, "expunge order list, over HTTPS", 3.5, *asked))
    return _TEXT, rows
