"""Databases of earlier versions become those of this version when they are opened; newer ones are
refused.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from expunge.errors import StoreError
from expunge.server.storage.schema import MIGRATIONS
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


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    Database(tmp_path / "new.db", [*MIGRATIONS, "CREATE TABLE later (x)"]).close()
    with pytest.raises(StoreError, match="update expunge"):
        Database(tmp_path / "new.db", MIGRATIONS)
