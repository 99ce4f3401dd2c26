"""Expunge on Flower's runtimes against Flower alone: messages as many and as large with which
nothing is done, in turns in one run, on a simulation (Ray) and on a deployment of processes.

Flower has an environment of its own (`make .venv/flower/.installed`); without it nothing is
measured. The apps are `benchmarks.flower_app`.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.carriers import Place
from benchmarks.data import Data
from benchmarks.measure import Row, progress
from expunge_experiments.flower.runtime import VARIABLE, deploy, project, simulate

_FLOWER = Path(sys.prefix) / "flower" / "bin" / "python"
_APP = project(
    "flower-bench",
    "Expunge on Flower, and Flower alone",
    apps="flower_bench",
    config={
        "expunge-clients": "",
        "bench-clients": "",
        "bench-server": "",
        "bench-output": "",
        "bench-nodes": 1,
        "bench-requests": 1,
        "bench-rounds": 1,
    },
)
_SIMULATED, _DEPLOYED = 10, 2  # nodes
_SECONDS = 300.0
_MISSING = """## Flower

Flower's environment is missing (`make .venv/flower/.installed` sets it up): not measured.
"""


def _app(folder: Path) -> Path:
    """The folder of the app that `flwr run` takes."""
    here, app = Path(__file__).parent, folder / "app"
    (app / "flower_bench").mkdir(parents=True)
    (app / "pyproject.toml").write_text(_APP, encoding="utf-8")
    shutil.copy(here.parent / "LICENSE", app / "LICENSE")
    shutil.copy(here / "flower_app.py", app / "flower_bench" / "__init__.py")
    return app


def _measured(folder: Path, data: Data, runtime: str) -> dict[str, Any]:
    """Milliseconds of Expunge and of Flower alone, for each request and each round."""
    nodes = _SIMULATED if runtime == "simulation" else _DEPLOYED
    place = Place(folder / "federation", data, nodes, masked=False)
    clients, output = place.folder / "clients", folder / "figures.json"
    config: dict[str, str | int] = {
        "expunge-clients": f"{clients}/*",
        "bench-clients": str(clients),
        "bench-server": str(place.folder / "server"),
        "bench-output": str(output),
        "bench-nodes": nodes,
        "bench-requests": 7 if runtime == "simulation" else 3,
        "bench-rounds": 5 if runtime == "simulation" else 2,
    }
    if runtime == "simulation":
        simulate(_app(folder), config, nodes=nodes, actors=2, seconds=_SECONDS)
    else:
        each = [{"expunge-client": str(clients / name)} for name in place.names]
        deploy(_app(folder), config, nodes=each, seconds=_SECONDS)
    found: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    return found


def report(data: Data) -> tuple[str, list[Row]]:
    """What is measured, in words, and the claims."""
    if VARIABLE not in os.environ and not _FLOWER.exists():
        progress(f"no Flower: {_FLOWER} is missing")
        return _MISSING, []
    os.environ.setdefault(VARIABLE, str(_FLOWER))
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    rows, lines = [], []
    for runtime, nodes in (("simulation", _SIMULATED), ("deployment", _DEPLOYED)):
        progress(f"flower: {runtime}")
        begun = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            found = _measured(Path(folder), data, runtime)
        progress(f"flower: {runtime} took {time.perf_counter() - begun:.0f} s")
        single, whole = found["exchanges"][0], found["exchanges"][-1]
        lines.append(f"- {runtime}: {single} and {whole} exchanges, ")
        lines[-1] += f"{found['bytes'][0] / 1e6:.3g} and {found['bytes'][-1] / 1e6:.3g} MB."
        for what, name in (
            ("request", "one deletion, receipted"),
            ("round", f"a round of {nodes} clients"),
        ):
            ours, theirs = (
                statistics.median(side) / 1e3 for side in zip(*found[what], strict=True)
            )
            against = "Flower alone, messages as large"
            title = f"{name}, Flower, {runtime}"
            rows.append(
                Row(title, against, ours, theirs, "(for information)", holds=True, unit="s")
            )
    return _TEXT + "\n".join(lines) + "\n", rows


_TEXT = """## Flower

d = 768, messages of 4.7 MB (gram), everything signed and durable, a certified head after every
round. A request: one deletion until its receipt is verified and the sample erased. A round: every
client deletes a sample. Each is followed, in the same run, by as many messages of as many bytes
between the same processes, with which nothing is done: what is above that is the work of clients
and server, which on Ray share the cores, and their durable writes. Simulation: Ray, two nodes at a time.
Deployment: SuperLink and SuperNodes as processes on the loopback interface. A request and a round
take, in messages with their replies:

"""
