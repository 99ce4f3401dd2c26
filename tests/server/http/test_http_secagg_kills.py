"""Rounds over HTTPS whose server, or one of whose clients, is killed with signal 9: nothing is
lost, nothing applied twice.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from test_http_secagg import online

from expunge.client import Agent, ClientStore
from expunge.server.http.tls import make_tls
from expunge.transport.http import HttpCarrier
from support import killable_round
from support.federation import scratch
from support.masked_round import Circle
from support.serving import free_port

RUNNER = Path(killable_round.__file__)
PHASES = ("joining", "sharing", "masking", "revealing", "done")


def start(*arguments: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(RUNNER), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603 - our own program


@pytest.mark.long
def test_a_server_that_is_killed_in_every_phase_of_a_round() -> None:
    path = scratch()
    circle = Circle(path, 3)
    circle.everybody_adds()
    circle.federation.close()
    tls, port, receipts = (
        make_tls(path / "tls", ["127.0.0.1"]),
        free_port(),
        dict.fromkeys(circle.names, 0),
    )
    problems: list[BaseException] = []

    def work(name: str) -> None:
        carrier = HttpCarrier(f"https://127.0.0.1:{port}", ca=tls.ca_text)
        agent = Agent(
            circle.stores[name],
            carrier,
            sleep=lambda _: time.sleep(0.05),
            attempts=2000,
            patience=60.0,
        )
        try:
            while not receipts[name]:
                receipts[name] += len(agent.sync().receipts)
        except BaseException as problem:  # told to the test
            problems.append(problem)
        finally:
            carrier.close()

    threads = [threading.Thread(target=work, args=(name,), daemon=True) for name in circle.names]
    for name in circle.names:
        circle.offered[name, 1] = dict(circle.held[name])
    server = start("serve", path, port, PHASES[0])
    try:
        for thread in threads:
            thread.start()
        for phase in (*PHASES[1:], "never"):
            assert server.wait(60) == -signal.SIGKILL
            server = start("serve", path, port, phase)
        for thread in threads:
            thread.join(60)
    finally:
        server.kill()
        server.wait()
    assert problems == []
    circle.federation.service = circle.federation.opened()
    circle.check_whole()
    assert len(circle.entries("aggregated")) == 1
    assert receipts == dict.fromkeys(circle.names, 1)
    circle.close()
    shutil.rmtree(path)


@pytest.mark.parametrize("kind", ["masked"])
def test_a_client_that_is_killed_after_its_masked_message_learns_that_it_was_included(
    kind: str,
) -> None:
    with online(4, phase_for=2.0) as place:
        circle = place.circle
        circle.everybody_adds()
        store = circle.stores["c3"]
        circle.offered["c3", 1] = dict(circle.held["c3"])
        store.close()
        ca = place.tls.ca
        process = start("sync", circle.path / "c3", place.url, ca, kind)
        try:
            while not circle.service.rounds.pulse()[0]:  # until it has joined
                time.sleep(0.01)
            place.in_threads(["c0", "c1", "c2"], lambda agent: agent.sync())
            assert process.wait(60) == -signal.SIGKILL
        finally:
            process.kill()
            process.wait()
        (entry,) = circle.entries("aggregated")
        assert [member["client"] for member in entry["clients"]] == circle.names
        circle.stores["c3"] = ClientStore.open(circle.path / "c3")
        circle.add("c3")
        done = place.agent("c3").sync()
        assert [receipt.logged.entry["aggregation"] for receipt in done.receipts] == [
            entry["aggregation"]
        ]
        assert "waits for 2 more clients" in done.waiting  # only then it offers what came since
        circle.check()
        circle.everybody_adds("c0", "c1")
        place.in_threads(circle.names, lambda agent: agent.sync())
        circle.check_whole()
