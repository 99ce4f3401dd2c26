"""`expunge serve` as a process of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path


def free_port() -> int:
    """One that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A server process."""

    def __init__(self, folder: Path, *options: str) -> None:
        code = "from expunge.cli.main import main; main()"
        self.process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-c", code, "serve", str(folder), "--port", "0", "--json", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        printed = self.process.stdout.readline()
        if not printed:
            self.stop()
        self.told = json.loads(printed)
        self.url = self.told["urls"][0]

    def stop(self, number: int = signal.SIGTERM) -> str:
        if self.process.poll() is None:
            os.kill(self.process.pid, number)
        _, log = self.process.communicate(timeout=30)
        return str(log)
