"""A server in a process of its own, for benchmarks: prints its address when it listens, and runs
until it is stopped.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from expunge.server.http.run import Listening, serve
from expunge.server.http.tls import CERTIFICATE, KEY
from expunge.server.service import Service
from expunge.server.state import Settings


def main() -> None:
    """Serve a folder over TLS on a free port of this machine."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--no-group-commit", action="store_true")
    parser.add_argument("--erase-within", type=int, default=Settings.erase_within)
    given = parser.parse_args()
    settings = Settings(
        group_commit=not given.no_group_commit,
        erase_within=given.erase_within,
        requests_per_minute=1_000_000,
    )
    service = Service.open(given.folder, settings=settings, timeout=30.0)
    tls = given.folder / "tls"
    serve(service, port=0, certificate=tls / CERTIFICATE, key=tls / KEY, ready=_ready)


def _ready(listening: Listening) -> None:
    sys.stdout.write(f"{listening.urls[0]}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
