"""Databases of earlier versions become those of this version when they are opened; newer ones are
refused.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from expunge.errors import StoreError
from expunge.server.storage.schema import MIGRATIONS
from expunge.server.storage.sqlite import SqliteStorage
from expunge.storage.sqlite import Database


@pytest.mark.parametrize("version", range(1, len(MIGRATIONS)))
def test_every_earlier_version_is_brought_up_to_date(tmp_path: Path, version: int) -> None:
    Database(tmp_path / "old.db", MIGRATIONS[:version]).close()
    Database(tmp_path / "old.db", MIGRATIONS).close()
    Database(tmp_path / "new.db", MIGRATIONS).close()
    tables = []
    for name in ("old.db", "new.db"):
        connection = sqlite3.connect(tmp_path / name)
        rows = connection.execute(
            "SELECT m.name, c.name, c.type FROM sqlite_master m, pragma_table_info(m.name) c "
            "ORDER BY 1, 2"
        )
        tables.append((rows.fetchall(), connection.execute("PRAGMA user_version").fetchone()))
        connection.close()
    assert tables[0] == tables[1]
    assert tables[0][1] == (len(MIGRATIONS),)


def test_orders_and_answers_of_before_are_found_and_kept_as_those_of_now(tmp_path: Path) -> None:
    """Orders by their place in the log, and what is evidence of one that is not closed stays."""
    (before,) = [
        number
        for number, script in enumerate(MIGRATIONS)
        if "ALTER TABLE orders ADD COLUMN position" in script
    ]
    path = tmp_path / "old.db"
    old = Database(path, MIGRATIONS[:before])
    with old.transaction() as changes:
        changes.run_many(
            "INSERT INTO orders (id, filed, deadline, closed, slot) VALUES (?, 1, 9, ?, 5)",
            [("0c", None), ("0a", None), ("0b", 7)],  # all of one second
        )
        changes.run_many(
            "INSERT INTO order_entries (order_id, position) VALUES (?, ?)",
            [("0c", 4), ("0a", 5), ("0b", 3), ("0b", 8), ("0c", 9)],
        )
        changes.run_many(
            "INSERT INTO order_clients (order_id, client, found, sequence) VALUES (?, ?, ?, ?)",
            [
                *(("0c", "ada", None, None), ("0a", "ada", None, None), ("0b", "ada", 1, 2)),
                *(("0c", "bob", 0, 3), ("0a", "bob", 0, 3)),
            ],
        )
        changes.run_many(
            "INSERT INTO answers (actor, sequence, request, answer) VALUES (?, ?, 'r', x'00')",
            [("ada", 1), ("ada", 2), ("bob", 2), ("bob", 3), ("bob", 4)],
        )
    old.close()
    storage = SqliteStorage(path)
    assert [order.id for order in storage.orders.all()] == ["0b", "0c", "0a"]
    waiting = storage.orders.unanswered("ada", limit=9)
    assert [(order.id, order.position) for order in waiting] == [("0c", 4), ("0a", 5)]
    with storage.transaction():
        for name in ("ada", "bob"):
            storage.answers.prune(name, 9)
    kept = storage.answers.get("bob", 3)
    assert kept is not None
    assert kept.orders == 2
    rows = storage.database.rows("SELECT actor, sequence FROM answers")
    assert rows == [("bob", 3)]
    storage.close()


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    Database(tmp_path / "new.db", [*MIGRATIONS, "CREATE TABLE later (x)"]).close()
    with pytest.raises(StoreError, match="update expunge"):
        Database(tmp_path / "new.db", MIGRATIONS)
