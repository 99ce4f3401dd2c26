"""The version of a database: what was read stays true as long as it is the same number."""

from __future__ import annotations

from pathlib import Path

import pytest

from expunge.errors import StoreError
from expunge.storage.sqlite import Database, Snapshot

MIGRATIONS = ("CREATE TABLE numbers (value INTEGER)",)


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "some.db", MIGRATIONS)


def test_it_is_another_one_after_each_transaction(database: Database) -> None:
    seen = [database.version]
    for value in range(3):
        with database.transaction() as changes:
            changes.run("INSERT INTO numbers VALUES (?)", (value,))
        seen.append(database.version)
    with pytest.raises(ZeroDivisionError), database.transaction():
        _ = 1 / 0
    seen.append(database.version)
    assert None not in seen
    assert len(set(seen)) == len(seen)
    assert database.rows("SELECT count(*) FROM numbers") == [(3,)]
    assert database.version == seen[-1]
    database.close()


def test_there_is_none_while_something_may_change_nor_when_nothing_can_be_read(
    database: Database,
) -> None:
    with database.transaction():
        assert database.version is None
    beside = Snapshot(database.path, MIGRATIONS)
    assert beside.version is None
    beside.close()
    database.close()
    assert database.version is None
    with pytest.raises(StoreError, match="was closed"):
        database.rows("SELECT value FROM numbers")
