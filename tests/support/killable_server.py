"""A server and clients in processes of their own, made to be killed. Run as a program:

killable_server.py serve FOLDER PORT         serves FOLDER/server by the certificate in FOLDER/tls
killable_server.py work STORE URL CA SEED    adds, corrects and forgets samples at random
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import numpy as np

from expunge.client import Agent, ClientStore, Selection
from expunge.errors import ProtocolError
from expunge.server.http.run import serve
from expunge.server.http.tls import CERTIFICATE, KEY
from expunge.server.service import Service
from expunge.server.state import Settings
from expunge.transport.http import HttpCarrier


def serving(folder: Path, port: int) -> None:
    service = Service.open(folder / "server", settings=Settings(erase_within=1), timeout=20.0)
    serve(service, port=port, certificate=folder / "tls" / CERTIFICATE, key=folder / "tls" / KEY)


def working(path: Path, url: str, ca: str, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - nothing secret is drawn here
    store = ClientStore.open(path, timeout=20.0)
    agent = Agent(store, HttpCarrier(url, ca=ca), sleep=lambda _: time.sleep(0.05), attempts=1000)
    while True:
        ids = list(store.preview(Selection(everything=True)).ids)
        drawn = (
            np.random.default_rng(chance.randrange(2**32))
            .standard_normal((2, 3))
            .astype(np.float32)
        )
        if len(ids) < 6 or chance.random() < 0.5:
            names = [f"{seed}-{chance.randrange(2**60)}" for _ in drawn]
            store.add(names, drawn, [0, 1], subjects=[None, "somebody"], now=time.time())
        elif chance.random() < 0.3:
            store.correct(chance.choice(ids), feature=drawn[0], label=chance.randrange(2))
        else:
            store.forget(Selection(ids=chance.sample(ids, chance.randrange(1, 4))))
        store.choose(chance.choice(["rows", "gram"]))
        try:
            agent.push()
        except ProtocolError:  # while the server is down
            time.sleep(0.05)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serving(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        working(Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4]).read_text(), int(sys.argv[5]))
