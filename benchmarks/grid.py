"""Flower's carrier by its in-process grid, run by an interpreter that has flwr: the real apps and
serialisation, in one process.

`python -m benchmarks.grid SERVER CLIENTS FIRST SINGLE ROUNDS` has clients forget sample number
FIRST and add others, and prints JSON: milliseconds of single deletions, of polls of one client with
nothing to say, and of rounds in which all clients add a sample; messages of each round.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import seconds
from expunge.client import ClientStore, Selection

os.environ |= {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
}  # flwr reads them when it is first imported


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("server", type=Path)
    parser.add_argument("clients", type=Path)
    for name in ("first", "single", "rounds"):
        parser.add_argument(name, type=int)
    given = parser.parse_args()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what flwr's own imports warn of
        sys.stdout.write(
            json.dumps(
                measured(given.server, given.clients, given.first, given.single, given.rounds)
            )
        )


def measured(server: Path, clients: Path, first: int, single: int, rounds: int) -> dict[str, Any]:
    """Milliseconds; the journal is not folded in meanwhile."""
    from expunge.server.state import Settings  # noqa: PLC0415
    from expunge.transport.flower.client_app import client_app  # noqa: PLC0415 - the environment is set first
    from expunge.transport.flower.config import RunConfig  # noqa: PLC0415
    from expunge.transport.flower.inprocess import InProcessGrid  # noqa: PLC0415
    from expunge.transport.flower.server import CallHandler  # noqa: PLC0415
    from expunge.transport.flower.server_app import poll_nodes  # noqa: PLC0415
    from expunge.transport.local import LocalCarrier  # noqa: PLC0415

    logging.getLogger("flwr").setLevel(logging.ERROR)
    folders = sorted(path for path in clients.iterdir() if (path / "client.db").exists())
    carrier = LocalCarrier.open(server, settings=Settings(erase_within=3600))
    found: dict[str, Any] = {"request": [], "idle": [], "round": [], "messages": []}

    def poll(folders: list[Path]) -> tuple[float, int]:
        nodes = {
            1000 + place: {"expunge-client": str(folder)} for place, folder in enumerate(folders)
        }
        handler = CallHandler(carrier, _report)
        grid = InProcessGrid(client_app(), nodes, {})
        return 1e3 * seconds(lambda: poll_nodes(grid, handler, RunConfig(server=server))), int(
            grid.sent + grid.received
        )

    try:
        poll(folders[:1])  # so that everything is imported
        for turn in range(single):
            folder = folders[turn]
            with ClientStore.open(folder) as store:
                store.forget(Selection(ids=(f"image-{first}",)))
            found["request"].append(poll([folder])[0])
            found["idle"].append(poll([folder])[0])
        for turn in range(rounds):
            for folder in folders:
                with ClientStore.open(folder) as store:
                    add_one(store, f"grid-{turn}")
            taken, messages = poll(folders)
            found["round"].append(taken)
            found["messages"].append(messages)
    finally:
        carrier.close()
    return found


def _report(what: str, problem: BaseException) -> None:
    sys.stderr.write(f"{what}: {problem!r}\n")


def add_one(store: ClientStore, name: str) -> None:
    """A client has one sample more, pending until it syncs."""
    draw = np.random.default_rng([*name.encode(), *store.name.encode()])
    features = draw.standard_normal((1, store.spec.dim), dtype=np.float32)
    store.add([name], features, draw.integers(0, store.spec.columns, 1), now=0)


if __name__ == "__main__":
    main()
