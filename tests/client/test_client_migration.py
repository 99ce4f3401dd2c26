"""A store that was made by an earlier version goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from expunge.client import ClientStore, folder
from expunge.client.schema import MIGRATIONS
from expunge.client.settings import spec_text
from expunge.crypto import canonical
from expunge.wire.request import OrderAnswer
from support.clients import NOW, SPEC, features, ids, make_store

ORDER = "ab" * 16


def test_a_store_of_the_first_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(folder, "MIGRATIONS", MIGRATIONS[:1])
        patch.setattr(
            folder.ClientFolder, "_referred", lambda self: self.vault.live()
        )  # later tables are not there yet
        with make_store(tmp_path) as store:
            store.add(ids(3), features(3), [0, 1, 2], subjects=["ann", "ann", None], now=NOW)
            run, vault = store._database.rows, store._folder.vault
            (slot,) = vault.new()
            content = canonical.encode({"audits": [], "nonce": "00" * 32})
            run(
                "INSERT INTO compositions (sequence, slot, sealed, spec, kind, leave, reset) "
                "VALUES (1, ?, ?, ?, 'rows', 0, 0)",
                (slot, vault.seal(slot, content, b"composition:1"), spec_text(SPEC)),
            )
            run(
                "UPDATE samples SET state = 'deleting', held = 1, order_id = ? WHERE label < 2",
                (ORDER,),
            )
            run("UPDATE samples SET sequence = 1 WHERE label = 2")
            run("INSERT INTO orders (id) VALUES (?)", (ORDER,))
            store.keep("lost-log", b'{"root":"","size":0}', b"an answer that names alice")
    with ClientStore.open(tmp_path / "store") as store:
        assert store.documents("lost-log") == {0: b'{"root":"","size":0}'}
        assert b"alice" not in b"".join(file.read_bytes() for file in store.path.iterdir())
        composition = store.outbox.composed()
        assert composition is not None
        assert (composition.added, composition.doubtful) == (1, True)
        store.outbox.settle(1, b"receipt")
        composition = store.outbox.compose(most=1)
        assert composition is not None
        assert (composition.deleted, composition.doubtful, composition.orders) == (
            2,
            False,
            (OrderAnswer(ORDER, 2),),
        )
