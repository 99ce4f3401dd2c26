"""A server and a client under secure aggregation in processes of their own, which kill themselves
with signal 9. As a program:

killable_round.py serve FOLDER PORT PHASE     serves FOLDER/server until a round is at this phase
killable_round.py sync STORE URL CA KIND      syncs until its message of this kind is sent
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from expunge.client import Agent, ClientStore
from expunge.secagg import read_preamble
from expunge.server.http.run import serve
from expunge.server.http.tls import CERTIFICATE, KEY
from expunge.server.secagg import RoundStatus
from expunge.server.service import Service
from expunge.server.state import Settings
from expunge.transport.http import HttpCarrier
from expunge.wire import payloads


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def serving(folder: Path, port: int, phase: str) -> None:
    settings = Settings(erase_within=3600, gather_for=0.3, phase_for=30.0)
    service = Service.open(folder / "server", settings=settings, timeout=20.0)
    turn = service.turn

    def mortal(data: bytes | memoryview) -> RoundStatus:
        standing = turn(data)
        told = payloads.open_unverified("standing", standing.data)[1]
        if told["phase"] == phase and (phase != "joining" or told["joined"] == 2):
            die()
        return standing

    service.turn = mortal  # type: ignore[method-assign]
    serve(service, port=port, certificate=folder / "tls" / CERTIFICATE, key=folder / "tls" / KEY)


def syncing(path: Path, url: str, ca: str, kind: str) -> None:
    carrier = HttpCarrier(url, ca=ca)
    aggregate = carrier.aggregate

    def mortal(data: bytes) -> bytes:
        answer = aggregate(data)
        if data[:1] != b"{" and read_preamble(data).kind == kind:
            die()
        return answer

    carrier.aggregate = mortal  # type: ignore[method-assign]
    Agent(ClientStore.open(path, timeout=20.0), carrier, patience=60.0).sync()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serving(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    else:
        syncing(Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4]).read_text(), sys.argv[5])
