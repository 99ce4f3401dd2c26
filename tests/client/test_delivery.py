"""The delivery of requests: nothing of secure aggregation is loaded where it is not used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.cli import Federation, run
from support.serving import Server

LIFE = """
import sys
from pathlib import Path
import numpy as np
from expunge.client import Agent, ClientStore, Selection
from expunge.transport.http import HttpCarrier

with ClientStore.open(Path(sys.argv[1])) as store:
    agent = Agent(store, HttpCarrier(sys.argv[2], ca=store.ca))
    store.add(["new"], np.ones((1, store.spec.dim)), ["cat"], subjects=["p9"], now=0)
    assert len(agent.sync().receipts) == 1
    store.forget(Selection(subject="p9"))
    assert len(agent.sync().receipts) == 1
print(*sorted(name for name in sys.modules if "secagg" in name))
"""


@pytest.mark.parametrize(
    ("options", "loaded"),
    [
        ((), False),
        # The test can fail: a round is waited for here, so the first sync has no receipt.
        (("--secure-aggregation",), True),
    ],
)
def test_a_plain_federation_loads_nothing_of_secure_aggregation(
    tmp_path: Path, options: tuple[str, ...], loaded: bool
) -> None:
    place = Federation.found(
        tmp_path, "--dim", 3, "--labels", "cat,dog", "--host", "localhost", *options
    )
    server = Server(place.folder)
    try:
        token = place.path / "a.token"
        run("server", "token", "a", "-o", token, "--office", place.office, "--at", server.url)
        run("enroll", token, "--dir", place.path / "a", "--at", server.url)
        life = LIFE.replace("== 1", "== 0") if loaded else LIFE
        made = subprocess.run(  # noqa: S603 - our own program
            [sys.executable, "-c", life, str(place.path / "a"), server.url],
            capture_output=True,
            text=True,
            check=True,
        )
    finally:
        server.stop()
    names = made.stdout.split()
    assert ("expunge.secagg" in names, "expunge.client.secagg" in names) == (loaded, loaded)
