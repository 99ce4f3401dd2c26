"""A store that was made by an earlier version goes on."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from expunge.client import Backlog, ClientStore
from expunge.client.schema import MIGRATIONS
from expunge.client.settings import spec_text
from expunge.crypto import canonical
from expunge.crypto.vault import Vault
from expunge.wire.request import OrderAnswer
from support.clients import NOW, SPEC, features, ids, make_store

ORDER = "ab" * 16


def columns(database: sqlite3.Connection) -> set[tuple[str, str]]:
    """Every table with every column of it."""
    query = "SELECT m.name, c.name FROM sqlite_master m, pragma_table_info(m.name) c"
    return set(database.execute(f"{query} WHERE m.type = 'table'"))


def take_back(database: sqlite3.Connection) -> None:
    """Bring a database back to the first version, by undoing what later ones made."""
    database.executescript(
        "DROP TABLE kept; DROP TABLE order_samples; "
        "ALTER TABLE samples DROP COLUMN due; ALTER TABLE orders DROP COLUMN due; "
        "ALTER TABLE compositions DROP COLUMN doubtful; PRAGMA user_version = 1"
    )
    with closing(sqlite3.connect(":memory:")) as first:
        first.executescript(MIGRATIONS[0])
        assert columns(database) == columns(first)


def test_a_store_of_the_first_version(tmp_path: Path) -> None:
    with make_store(tmp_path) as store:
        store.add(ids(3), features(3), [0, 1, 2], subjects=["ann", "ann", None], now=NOW)
        store.keep("lost-log", b'{"root":"","size":0}', b"an answer that names alice")
    with Vault.open(tmp_path / "store" / "client.vault") as vault:
        (slot,) = vault.new()
        content = canonical.encode({"audits": [], "nonce": "00" * 32})
        sealed = vault.seal(slot, content, b"composition:1")
    with closing(sqlite3.connect(tmp_path / "store" / "client.db")) as database:
        take_back(database)
        database.execute(
            "INSERT INTO compositions (sequence, slot, sealed, spec, kind, leave, reset) "
            "VALUES (1, ?, ?, ?, 'rows', 0, 0)",
            (slot, sealed, spec_text(SPEC)),
        )
        database.execute(
            "UPDATE samples SET state = 'deleting', held = 1, order_id = ? WHERE label < 2",
            (ORDER,),
        )
        database.execute("UPDATE samples SET sequence = 1 WHERE label = 2")
        database.execute("INSERT INTO orders (id) VALUES (?)", (ORDER,))
        database.commit()
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


def test_deletions_of_before_due_times_wait_no_longer(tmp_path: Path) -> None:
    """Nobody knows since when they have been pending."""
    gram = replace(SPEC, messages=("gram",), fewest_samples=10)
    with make_store(tmp_path, gram, message="gram") as store:
        store.add(ids(3), features(3), [0, 1, 2], now=NOW)
    with closing(sqlite3.connect(tmp_path / "store" / "client.db")) as database:
        take_back(database)
        database.execute("UPDATE samples SET state = 'deleting', held = 1 WHERE label = 0")
        database.commit()
    with ClientStore.open(tmp_path / "store") as store:
        assert store.backlog(now=0.0) is None
        store.outbox.compose()
        store.outbox.settle(1, b"receipt")
        store.add(["late"], features(1), [0], now=NOW)
        assert store.backlog(now=NOW) == Backlog(samples=1, fewest=10, due=None)
