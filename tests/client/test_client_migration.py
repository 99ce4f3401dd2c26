"""A store that was made by an earlier version goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from client_cases import NOW, Server, deliver, features, ids, make_store

from expunge.client import ClientStore, Selection, folder
from expunge.client.schema import MIGRATIONS
from expunge.protocol.request import OrderAnswer

ORDER = "ab" * 16


def test_a_store_of_the_first_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(folder, "MIGRATIONS", MIGRATIONS[:1])
        with make_store(tmp_path) as store:
            store.add(ids(3), features(3), [0, 1, 2], subjects=["ann", "ann", None], now=NOW)
            run = store._database.rows
            run("UPDATE samples SET state = 'deleting', held = 1, order_id = ? WHERE label < 2", (ORDER,))
            run("UPDATE samples SET state = 'adding', sequence = NULL WHERE label = 2")
            run("INSERT INTO orders (id) VALUES (?)", (ORDER,))
            commitments = {row[0] for row in run("SELECT commitment FROM samples WHERE label < 2")}
            store.keep("lost-log", b'{"root":"","size":0}', b"an answer that names alice")
    with ClientStore.open(tmp_path / "store") as store:
        assert store.documents("lost-log") == {0: b'{"root":"","size":0}'}
        assert b"alice" not in b"".join(file.read_bytes() for file in store.path.iterdir())
        composition = store.compose(most=1)
        assert composition is not None
        assert (composition.deleted, composition.orders, len(commitments)) == (2, (OrderAnswer(ORDER, 2),), 2)
        store.abandon(1, "no")


def test_a_request_composed_by_the_first_version_is_in_doubt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compose = "INSERT INTO compositions (sequence, slot, sealed, spec, kind, leave, reset) SELECT sequence, slot, sealed, spec,"
    server = Server()
    with make_store(tmp_path) as store:
        store.add(ids(3), features(3), [0, 1, 2], now=NOW)
        composition = store.compose()
        assert composition is not None
        assert not composition.doubtful
        store._database.rows("CREATE TABLE kept AS SELECT * FROM compositions")
        store._database.rows("PRAGMA foreign_keys=OFF")
        store._database.rows("DELETE FROM compositions")
        store._database.rows(f"{compose} kind, leave, reset FROM kept")
        again = store.composed()
        assert again is not None
        assert again.doubtful
        deliver(store, server)
        assert store.forget(Selection(ids=["sample-0"])).count == 1
