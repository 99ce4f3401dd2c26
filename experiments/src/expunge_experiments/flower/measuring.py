"""measure: a job done on Flower, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from expunge.errors import InputError, MissingExtraError, ProtocolError
from expunge_experiments.flower.job import Diary, Job, JobOutcome, SharedPool
from expunge_experiments.flower.runtime import project, simulate
from expunge_experiments.systems.base import UnsupportedError
from expunge_experiments.systems.catalogue import entry_of

Report = Callable[[str, int, int | None], None]

_PROJECT = project(
    "expunge-experiment",
    "One compared system, trained and asked to forget",
    apps="expunge_experiment.apps",
    config={"experiment-folder": "", "experiment-actors": "1"},
)
_APPS = '''"""The apps of a measurement."""

from expunge_experiments.flower import apps

client = apps.client
server = apps.server
'''


def measure(
    job: Job,
    *,
    folder: Path,
    clients: int,
    actors: int = 2,
    simulated: bool = True,
    seconds: float = 3600.0,
    report: Report = lambda *_: None,
) -> JobOutcome:
    """Train a system on Flower and ask of it what the job says, on the shared pool that is laid out
    in `folder`.

    Simulated, Flower's own runtime carries messages to `clients` nodes, which `actors` processes of
    Ray work for; it may be installed in an environment of its own (`runtime.programs`). Otherwise
    all is done in this process, on the in-process grid. What is found is the same, but for the
    times. The shared pool is left as it was, and nothing else stays behind.
    """
    _require_possible(job, folder, clients, actors)
    began = time.perf_counter()
    total = len(job.requests) + 1
    with TemporaryDirectory(prefix="job-", dir=folder) as directory:
        here = Path(directory).resolve()  # the apps run elsewhere
        (here / "shared-pool").symlink_to(
            (folder / "shared-pool").resolve(), target_is_directory=True
        )
        job.write(here)

        def watch() -> None:
            report(f"{entry_of(job.system).title} on Flower", len(Diary.read(here).costs), total)

        (_simulated if simulated else _in_process)(here, clients, actors, seconds, watch)
        diary = Diary.read(here)
    if diary.problem:
        raise ProtocolError(f"{job.system} could not do its job on Flower: {diary.problem}")
    return diary.outcome(time.perf_counter() - began)


def _require_possible(job: Job, folder: Path, clients: int, actors: int) -> None:
    """Refuse, before anything is started, what cannot be."""
    entry = entry_of(job.system)
    if entry.centralized:
        raise UnsupportedError(
            f"{entry.title} is centralized: it has no clients, and nothing of it would run on "
            "Flower"
        )
    missing = sorted(
        {request.operation for request in job.requests} - entry.find("system").supports
    )
    if missing:
        raise UnsupportedError(f"{entry.title} has no operation {', '.join(missing)}")
    if actors < 1:
        raise InputError(f"there must be at least one actor, not {actors}")
    if (there := SharedPool.read(folder).pool.clients) != clients:
        raise InputError(
            f"the pool in {folder} is of {there} clients, and {clients} were asked for"
        )


def _config(here: Path, actors: int) -> dict[str, str]:
    return {"experiment-folder": str(here), "experiment-actors": str(actors)}


def _simulated(
    here: Path, clients: int, actors: int, seconds: float, watch: Callable[[], None]
) -> None:
    app = here / "app"
    (app / "expunge_experiment").mkdir(parents=True)
    (app / "pyproject.toml").write_text(_PROJECT, encoding="utf-8")
    (app / "LICENSE").write_text("Apache-2.0\n", encoding="utf-8")
    (app / "expunge_experiment" / "__init__.py").write_text('"""Apps."""\n', encoding="utf-8")
    (app / "expunge_experiment" / "apps.py").write_text(_APPS, encoding="utf-8")
    output = simulate(
        app, _config(here, actors), nodes=clients, actors=actors, seconds=seconds, watch=watch
    )
    if (
        not (diary := Diary.read(here)).problem
        and len(diary.costs) != len(Job.read(here).requests) + 1
    ):
        last = "\n".join(output.splitlines()[-25:])
        raise ProtocolError(f"the run on Flower has ended early; it said last:\n{last}")


def _in_process(
    here: Path, clients: int, actors: int, seconds: float, watch: Callable[[], None]
) -> None:
    del actors, seconds  # clients work one after another, and nothing is waited for
    if find_spec("flwr") is None:
        raise MissingExtraError("Flower is not installed here: install expunge[flower]")
    from expunge.transport.flower.inprocess import InProcessGrid  # noqa: PLC0415 - flwr is an extra
    from expunge_experiments.flower.apps import client, server  # noqa: PLC0415 - the same

    nodes = {
        1000 + number: {"partition-id": number, "num-partitions": clients}
        for number in range(clients)
    }
    InProcessGrid(client, nodes, _config(here, 1)).run_server(server)
    watch()
