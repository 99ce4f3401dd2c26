"""Flower's runtimes as processes of our own: a SuperLink, SuperNodes in a deployment, one run of an
app on them, and nothing left afterwards.

Flower may be installed in an environment apart from this one (it wants older versions of some
libraries): only its programs are called, and what they import is the Expunge of their own
environment.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from expunge.errors import MissingExtraError, ProtocolError

VARIABLE = "EXPUNGE_FLOWER_PYTHON"  # a Python that has Flower, if it is not this one
_HOST = "127.0.0.1"
_MARK = "EXPUNGE_FLOWER_RUN"
_READY = "Uvicorn running"
_START_SECONDS, _END_SECONDS = 90.0, 20.0
_PAUSE = 0.1
_LINES_TOLD = 25
_PROJECT = """[project]
name = "{name}"
version = "1.0.0"
description = "{description}"
license = {{ file = "LICENSE" }}
dependencies = ["flwr[simulation]>=1.41.0"]

[tool.flwr.app]
publisher = "expunge"
fab-format-version = 1
flwr-version-target = "1.41.0"

[tool.flwr.app.components]
serverapp = "{apps}:server"
clientapp = "{apps}:client"

[tool.flwr.app.config]
{config}
"""
_OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


def programs() -> Path:
    """The folder of Flower's programs: beside the Python that EXPUNGE_FLOWER_PYTHON names, beside
    this one, or on the path.
    """
    named, on_path = os.environ.get(VARIABLE), shutil.which("flower-superlink")
    folders = [Path(named).parent] if named else [Path(sysconfig.get_path("scripts"))]
    if on_path and not named:
        folders.append(Path(on_path).parent)
    for folder in folders:
        if (folder / "flower-superlink").is_file() and (folder / "flwr").is_file():
            return folder
    raise MissingExtraError(
        f"Flower was not found in {', '.join(map(str, folders))}: install expunge[flower] here, or "
        "in an environment of its own (constraints-flower.txt has versions that are tested), and "
        f"name that environment's Python in {VARIABLE}"
    )


def project(name: str, description: str, *, apps: str, config: Mapping[str, str | int]) -> str:
    """The pyproject.toml of an app of which the module `apps` has the client and the server, and of
    which a run may set what is in `config`.
    """
    settings = "\n".join(f"{key} = {json.dumps(value)}" for key, value in config.items())
    return _PROJECT.format(name=name, description=description, apps=apps, config=settings)


def simulate(
    app: Path,
    config: Mapping[str, str | int],
    *,
    nodes: int,
    actors: int,
    seconds: float,
    watch: Callable[[], None] = lambda: None,
) -> str:
    """Run the app in this folder on simulated `nodes`, `actors` of them at a time; returns the log.

    `watch` is called repeatedly during the run. After `seconds` the run is stopped and
    ProtocolError raised.
    """
    resources = {
        "num-supernodes": nodes,
        "client-resources-num-cpus": 1,
        "init-args-num-cpus": actors,
    }
    options = " ".join(f"{name}={value}" for name, value in resources.items())
    with _home() as home:
        home.connect(home.superlink("--simulation"))
        return home.run(app, config, seconds, watch, "--federation-config", options)


def deploy(
    app: Path,
    config: Mapping[str, str | int],
    *,
    nodes: Sequence[Mapping[str, str]],
    seconds: float,
) -> str:
    """Run the app in this folder on a SuperLink and SuperNodes with these configs, on the loopback
    interface and without TLS; returns the log.

    After `seconds` the run is stopped and ProtocolError raised.
    """
    with _home() as home:
        port = home.superlink()
        home.connect(port)
        for number, node in enumerate(nodes):
            command = ["--insecure", "--superlink", f"{_HOST}:{port}", "--host", _HOST]
            command += ["--port", str(_free_port()), "--node-config", _settings(node)]
            home.start(f"node-{number}", "flower-supernode", *command)
        return home.run(app, config, seconds, lambda: None)


def _settings(values: Mapping[str, str | int]) -> str:
    """A config as Flower's programs take it."""
    return " ".join(f"{name}={json.dumps(value)}" for name, value in values.items())


class _Home:
    """A home of Flower's, and the processes that were started with it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._bin = programs()
        self._mark = secrets.token_hex(8)
        self._started: list[subprocess.Popen[bytes]] = []
        (folder / "ray").mkdir()

    def log(self, name: str) -> str:
        """What a process has said so far."""
        return (self._folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def told(self, name: str) -> str:
        """The last lines of a log, for an error."""
        return "it said last:\n" + "\n".join(self.log(name).splitlines()[-_LINES_TOLD:])

    def start(self, name: str, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start one of Flower's programs; what it says goes to its log."""
        environment = os.environ | _OFFLINE
        environment |= {
            "FLWR_HOME": str(self._folder),
            "RAY_TMPDIR": str(self._folder / "ray"),
            _MARK: self._mark,
        }
        environment["PATH"] = f"{self._bin}{os.pathsep}{environment.get('PATH', '')}"
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(  # noqa: S603 - Flower's own programs
                [str(self._bin / program), *arguments],
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def connect(self, port: int) -> None:
        """Let `flwr` speak to the SuperLink on this port."""
        text = (
            '[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = '
            f'"{_HOST}:{port}"\ninsecure = true\n'
        )
        (self._folder / "config.toml").write_text(text, encoding="utf-8")

    def superlink(self, *options: str) -> int:
        """Start a SuperLink, and wait until it listens; its port."""
        port = _free_port()
        command = ["--insecure", *options, "--host", _HOST, "--port", str(port)]
        process = self.start("superlink", "flower-superlink", *command)
        end = time.monotonic() + _START_SECONDS
        while _READY not in self.log("superlink"):
            if process.poll() is not None or time.monotonic() >= end:
                raise ProtocolError(f"Flower's SuperLink did not start; {self.told('superlink')}")
            time.sleep(_PAUSE)
        return port

    def run(
        self,
        app: Path,
        config: Mapping[str, str | int],
        seconds: float,
        watch: Callable[[], None],
        *options: str,
    ) -> str:
        """Run an app to its end; what it said."""
        command = ["run", str(app), "here", "--stream", "--run-config", _settings(config)]
        run = self.start("run", "flwr", *command, *options)
        end = time.monotonic() + seconds
        while run.poll() is None:
            watch()
            if time.monotonic() >= end:
                raise ProtocolError(
                    f"the run on Flower has not ended within {seconds:g} seconds; "
                    f"{self.told('run')}"
                )
            time.sleep(_PAUSE)
        watch()
        if run.returncode != 0:
            raise ProtocolError(f"the run on Flower has failed; {self.told('run')}")
        return self.log("run")

    def end(self) -> None:
        """End everything that was started from here, and wait for it."""
        for process in self._started:
            with suppress(ProcessLookupError):
                process.terminate()
        for process in self._started:
            with suppress(subprocess.TimeoutExpired):
                process.wait(5.0)
        end = time.monotonic() + _END_SECONDS
        while (
            left := self._left()
        ) and time.monotonic() < end:  # what is being ended may start others
            for number in left:
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
            time.sleep(_PAUSE)
        for process in self._started:
            process.kill()  # where /proc is not, at least those that are known
            process.wait()

    def _left(self) -> list[int]:
        """What lives on of all that comes from here: Flower starts processes of its own, and Ray
        does. Known where /proc is.
        """
        processes = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if f"{_MARK}={self._mark}".encode() in (entry / "environ").read_bytes():
                    processes.append(int(entry.name))
        return processes


@contextmanager
def _home() -> Iterator[_Home]:
    """A home in a folder with a short name, as Ray's sockets need it; of its own, or Ray might join
    a cluster of others.
    """
    with TemporaryDirectory(prefix="flower-", ignore_cleanup_errors=True) as folder:
        home = _Home(Path(folder))
        try:
            yield home
        finally:
            home.end()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])
