"""A server and clients in processes of their own, over HTTPS; all of them killed with signal 9 at
random times, again and again.

Law: whatever was killed when, once all are back the head is that of retraining on what the clients
hold, and an audit finds every client's own samples equal to what the server holds of it.
"""

from __future__ import annotations

import secrets
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from expunge import Spec, solve
from expunge.client import Agent, ClientStore, enrol
from expunge.crypto import SigningKey
from expunge.office import Office
from expunge.server.backup import found
from expunge.server.http.tls import make_tls
from expunge.server.service import Service
from expunge.transport.local import LocalCarrier
from expunge.wire.token import Token
from support import killable_server, seeds
from support.offices import create_office

SPEC = Spec(dim=3, labels=("no", "yes"))
RUNNER = Path(killable_server.__file__)
SECONDS = 5.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def seconds_until_listening(port: int) -> float:
    begun = time.monotonic()
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return time.monotonic() - begun
        assert time.monotonic() < begun + 30.0, "the server does not come up"
        time.sleep(0.02)


def start(*arguments: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(RUNNER), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603 - our own program


@pytest.mark.long
def test_everything_is_killed_again_and_again(tmp_path: Path) -> None:
    chance = seeds.chance()
    operator, key = SigningKey(secrets.token_bytes(32)), SigningKey(secrets.token_bytes(32))
    found(tmp_path / "server", SPEC, operator.public, key=key)
    ca = make_tls(tmp_path / "tls", ["127.0.0.1"]).ca
    enrolled(tmp_path, operator, key)
    port = free_port()
    url = f"https://127.0.0.1:{port}"
    makers = [lambda: start("serve", tmp_path, port)]
    makers += [
        lambda name=name: start("work", tmp_path / name, url, ca, chance.randrange(2**32))
        for name in ("north", "south")
    ]
    processes = [make() for make in makers]
    try:
        pace = max(
            1.0, seconds_until_listening(port)
        )  # a busy machine takes longer to start what is killed
        end = time.monotonic() + SECONDS * pace
        while time.monotonic() < end:
            time.sleep(chance.uniform(0.4, 1.2) * pace)
            which = chance.randrange(3)
            processes[which].kill()
            processes[which].wait()
            processes[which] = makers[which]()
    finally:
        for process in processes:
            process.kill()
            process.wait()
    check(tmp_path, operator, key)


def enrolled(folder: Path, operator: SigningKey, key: SigningKey) -> None:
    carrier = LocalCarrier.open(folder / "server")
    office = office_of(folder, operator, key, carrier)
    for name in ("north", "south"):
        token = Token(office.federation, name, "client", secrets.token_hex(32), key.public, ())
        office.do("token", {"name": name, "role": "client", "secret": token.secret_digest})
        enrol(folder / name, token, carrier).close()
    office.close()
    carrier.close()


def office_of(folder: Path, operator: SigningKey, key: SigningKey, carrier: Service) -> Office:
    if (folder / "office").exists():
        return Office.open(folder / "office", carrier)
    return create_office(folder / "office", operator, key, carrier)


def check(folder: Path, operator: SigningKey, key: SigningKey) -> None:
    service = Service.open(folder / "server", timeout=20.0)
    assert (
        service.status()["round"] > 0
    )  # over the network, before anybody was asked to come to an end
    office = office_of(folder, operator, key, service)
    stores = [ClientStore.open(folder / name, timeout=20.0) for name in ("north", "south")]
    for store in stores:
        Agent(store, service).sync()
    audit = office.do("audit", {})["audit"]
    for store in stores:
        Agent(store, service).sync()
    service.upkeep.finish_audits()
    retained = sum(store.statistics() for store in stores)
    told = office.ask("show-audit", {"audit": audit})
    assert (told["result"], told["different"]) == ("equal", [])
    assert retained.count > 0
    assert service.head_digest() == solve(retained).digest
    for store in stores:
        store.close()
    office.close()
    service.close(fold=True)
