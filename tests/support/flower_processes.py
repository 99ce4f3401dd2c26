"""Flower's own processes, with a home, ports and credentials of their own; whatever they start is
found, ended and reaped.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from expunge.server.http.tls import make_tls

HOST = "127.0.0.1"
BIN = Path(sys.executable).parent
APP = Path(__file__).parents[2] / "packaging" / "flower-app"
_MARK = "EXPUNGE_TEST_OF_FLOWER"
_SUBREAPER = (
    36  # PR_SET_CHILD_SUBREAPER of Linux: orphans become our children, so that they can be reaped
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def until(condition: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {seconds} seconds"
        time.sleep(0.02)


@dataclass
class Flower:
    """A home of Flower's, and the processes that were started with it."""

    home: Path
    # For Ray, whose sockets need a short path, and which would join a cluster that others have left
    # in theirs
    scratch: Path
    mark: str = field(default_factory=lambda: secrets.token_hex(8))
    started: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    processes: list[subprocess.Popen[bytes]] = field(
        default_factory=list
    )  # all of them, those of the same name too
    others: frozenset[int] = field(default_factory=lambda: frozenset(_children()))

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {
            "FLWR_HOME": str(self.home),
            "RAY_TMPDIR": str(self.scratch),
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "OPENBLAS_NUM_THREADS": "1",
            _MARK: self.mark,
        }

    def log(self, name: str) -> str:
        return (self.home / f"{name}.log").read_text(errors="replace")

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """Start a process; what it says goes to its log."""
        with (self.home / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(  # noqa: S603 - Flower's own programs
                [str(BIN / command[0]), *command[1:]],
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.started[name] = process
        self.processes.append(process)
        return process

    def flwr(self, *arguments: str, seconds: float = 120.0) -> str:
        """Run Flower's command to its end."""
        done = subprocess.run(  # noqa: S603 - Flower's own program
            [str(BIN / "flwr"), *arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds,
            check=False,
        )
        said = done.stdout.decode(errors="replace")
        assert done.returncode == 0, said
        return said

    def found(self, program: str = "") -> list[int]:
        """The living processes that come from here, and have this in their command line."""
        numbers = []
        for place in Path("/proc").iterdir():
            if not place.name.isdigit() or int(place.name) == os.getpid():
                continue
            with suppress(OSError):
                ours = f"{_MARK}={self.mark}".encode() in (place / "environ").read_bytes()
                if ours and program.encode() in (place / "cmdline").read_bytes():
                    numbers.append(int(place.name))
        return numbers

    def kill(self, program: str) -> None:
        """Kill these processes, as a failure of power does, and wait until they are gone with their
        sockets and locks.
        """
        numbers = self.found(program)
        assert numbers, f"there is no {program} to kill"
        for number in numbers:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)

        def gone() -> bool:
            self.reap()
            return not set(numbers) & set(self.found())

        until(gone, f"{program} is still there", 20.0)

    def reap(self) -> None:
        """Take leave of the dead."""
        known = {process.pid for process in self.processes if process.poll() is None}
        for number in set(_children()) - known - self.others:
            with suppress(ChildProcessError):
                os.waitpid(number, os.WNOHANG)

    def end(self) -> None:
        """End whatever is left, and wait until it is gone."""

        def gone() -> bool:
            for number in self.found():
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
            self.reap()
            return not self.found() and self.others.issuperset(_children())

        until(gone, "processes are still there", 20.0)


def _children() -> list[int]:
    """The children of this process, dead ones among them."""
    text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return [int(number) for number in text.split()]


@contextmanager
def flower(home: Path) -> Iterator[Flower]:
    """A home of Flower's, which leaves no process behind."""
    home.mkdir(parents=True)
    library = ctypes.CDLL(None, use_errno=True)
    library.prctl(_SUBREAPER, 1, 0, 0, 0)
    with TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as scratch:
        found = Flower(home, Path(scratch))
        try:
            yield found
        finally:
            found.end()
            library.prctl(_SUBREAPER, 0, 0, 0, 0)


def connection(found: Flower, port: int, ca: Path | None) -> None:
    """Let `flwr` speak to the SuperLink on this port."""
    trust = "insecure = true" if ca is None else f'root-certificates = "{ca}"'
    text = (
        f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "{HOST}:{port}"\n{trust}\n'
    )
    (found.home / "config.toml").write_text(text)


def start_superlink(found: Flower, *command: str) -> None:
    """Start a SuperLink, and wait until it listens.

    Its port tells nothing: what it has started before may still hold that.
    """
    ready = "Uvicorn running"
    before = found.log("superlink").count(ready) if "superlink" in found.started else 0
    found.start("superlink", *command)
    until(lambda: found.log("superlink").count(ready) > before, "the SuperLink listens")


def simulate(found: Flower, nodes: int, config: str, *, seconds: float = 120.0) -> str:
    """What `flwr run` says of a simulation of the app with so many nodes."""
    port = free_port()
    connection(found, port, None)
    command = ("flower-superlink", "--insecure", "--simulation")
    start_superlink(found, *command, "--host", HOST, "--port", str(port))
    resources = f"num-supernodes={nodes} client-resources-num-cpus=1"
    settings = ("--run-config", config, "--federation-config", resources)
    return found.flwr("run", str(APP), "here", "--stream", *settings, seconds=seconds)


def node_key(folder: Path, name: str) -> Path:
    """A SuperNode's key pair, as OpenSSH writes them."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = folder / f"{name}.key"
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.OpenSSH,
            serialization.NoEncryption(),
        )
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    private.with_suffix(".pub").write_bytes(public + b"\n")
    return private


@dataclass
class Deployment:
    """A SuperLink with TLS and node authentication, and SuperNodes with a key each."""

    flower: Flower
    nodes: dict[str, Path]  # names, and the folders of their clients

    def __post_init__(self) -> None:
        self.port = free_port()
        self.ports = {name: free_port() for name in self.nodes}
        self.tls = make_tls(self.flower.home / "tls", [HOST, "localhost"])
        connection(self.flower, self.port, self.tls.ca)
        self.keys = {name: node_key(self.flower.home, name) for name in self.nodes}

    def start_superlink(self) -> None:
        command = [
            "flower-superlink",
            "--host",
            HOST,
            "--port",
            str(self.port),
            "--enable-supernode-auth",
        ]
        command += [
            "--ssl-ca-certfile",
            str(self.tls.ca),
            "--ssl-certfile",
            str(self.tls.certificate),
        ]
        command += [
            "--ssl-keyfile",
            str(self.tls.key),
            "--database",
            str(self.flower.home / "state.db"),
        ]
        start_superlink(self.flower, *command, "--disable-runtime-dependency-installation")

    def register(self) -> None:
        for key in self.keys.values():
            self.flower.flwr("supernode", "register", str(key.with_suffix(".pub")), "here")

    def start_node(self, name: str) -> None:
        command = [
            "flower-supernode",
            "--superlink",
            f"{HOST}:{self.port}",
            "--root-certificates",
            str(self.tls.ca),
        ]
        command += [
            "--auth-supernode-private-key",
            str(self.keys[name]),
            "--host",
            HOST,
            "--port",
            str(self.ports[name]),
        ]
        self.flower.start(name, *command, "--node-config", f'expunge-client="{self.nodes[name]}"')

    def keep_node(self, name: str) -> None:
        """What a supervisor does: a SuperNode that was killed is refused until the SuperLink has
        noticed, so it tries again.
        """
        if self.flower.started[name].poll() is not None:
            self.start_node(name)
