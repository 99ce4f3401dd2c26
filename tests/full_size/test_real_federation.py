"""A whole federation on the real digits: a writer is forgotten at all clients by an order, with
evidence (make test-data).
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from expunge import Spec, Statistics, solve
from expunge.client.enrolment import enrol
from expunge.client.store import ClientStore
from expunge.client.sync import Agent
from expunge.crypto import Envelope, SigningKey
from expunge.evidence import published_head, render_bundle, verify
from expunge.ridge.encoding import integer_rows
from expunge.server.backup import found
from expunge.transport.local import LocalCarrier
from expunge.wire.token import Token
from support import real_features
from support.offices import create_office

pytestmark = pytest.mark.data

FILE = "digits_by_writer_efficientnet_lite0.npz"
CLIENTS = 5


def digits() -> tuple[Any, Any, Any]:
    data = real_features.load(FILE)
    return data["train_features"], data["train_labels"], data["train_writers"]


def bytes_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_writer_is_forgotten_by_an_order(tmp_path: Path) -> None:
    features, labels, writers = digits()
    spec = Spec(dim=features.shape[1], labels=tuple(range(10)), gamma=10.0)
    key, operator = SigningKey(secrets.token_bytes(32)), SigningKey(secrets.token_bytes(32))
    found(tmp_path / "server", spec, operator.public, key=key)
    carrier = LocalCarrier.open(tmp_path / "server")
    federation = carrier.state.federation
    office = create_office(tmp_path / "office", operator, key, carrier)
    stores: list[ClientStore] = []
    for place in range(CLIENTS):  # every writer has digits at every client
        token = Token(
            federation, f"client-{place}", "client", secrets.token_hex(32), key.public, ()
        )
        office.do("token", {"name": token.name, "role": "client", "secret": token.secret_digest})
        store = enrol(
            tmp_path / token.name, token, carrier, message="gram" if place % 2 else "rows"
        )
        own = np.arange(place, len(labels), CLIENTS)
        subjects = [f"writer {writers[index]}" for index in own]
        store.add(
            [f"digit {index}" for index in own],
            features[own],
            labels[own],
            subjects=subjects,
            now=1_800_000_000,
        )
        Agent(store, carrier).sync()
        stores.append(store)
    trained = solve(Statistics.of(spec, features, labels))
    assert carrier.head_digest() == trained.digest

    gone = writers == writers[0]
    order = office.do("order", {"subject": f"writer {writers[0]}", "subjects": {}, "days": 30})[
        "order"
    ]
    for store in stores:
        assert Agent(store, carrier).sync().status == "active"
    shown = office.ask("show-order", {"order": order})
    assert shown["state"] == "complete"
    assert sum(answer["found"] for answer in shown["answers"]) == int(gone.sum())
    carrier.upkeep.fold()

    retrained = solve(Statistics.of(spec, features[~gone], labels[~gone]))
    data = carrier.head()
    assert data is not None
    head, _ = published_head.read(data, key.public)
    assert head.digest == retrained.digest

    bundle = render_bundle(Envelope.from_json(office.ask("bundle", {"order": order}), "bundle"))
    assert verify(bundle, key.public).proved

    audit = office.do("audit", {})["audit"]
    for store in stores:
        Agent(store, carrier).sync()
    carrier.upkeep.run_due()
    assert office.ask("show-audit", {"audit": audit})["result"] == "equal"

    for store in stores:
        store.close()
    office.close()
    carrier.close()
    integers = (
        integer_rows(spec, features[gone][:3], labels[gone][:3]).integers[:, :-1].astype("<i8")
    )
    floats = features[gone][:3]
    ids = [f"digit {index}".encode() for index in np.flatnonzero(gone)[:3]]
    for path, content in bytes_of(tmp_path).items():
        for index in range(3):
            used = np.flatnonzero(floats[index])[:40]
            assert floats[index].tobytes() not in content, path
            assert floats[index, used[:4]].tobytes() not in content or len(used) < 4, path
            assert integers[index].tobytes() not in content, path
            assert ids[index] not in content, path
