"""What the files of a client's store hold, read beside the store that works on them; and changes
behind its back.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from expunge.client import ClientStore
from expunge.client.folder import STORE_SLOT, ClientFolder

_REFERRED = (
    "SELECT slot FROM samples UNION SELECT slot FROM compositions UNION SELECT slot FROM kept"
)


@contextmanager
def files_of(store: ClientStore) -> Iterator[ClientFolder]:
    """Database and vault as they are at this moment."""
    with closing(ClientFolder.open_read_only(store.path)) as files:
        yield files


def rows_of(store: ClientStore, query: str, arguments: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """What the database answers."""
    with files_of(store) as files:
        return files.database.rows(query, arguments)


def live_slots(store: ClientStore) -> set[int]:
    """The slots of the vault that hold a key."""
    with files_of(store) as files:
        return files.vault.live()


def referred_slots(store: ClientStore) -> set[int]:
    """The slots that should hold one: the store's own, and those that the database refers to."""
    return {STORE_SLOT, *(slot for (slot,) in rows_of(store, _REFERRED))}


def change_behind(store: ClientStore, *statements: str) -> None:
    """Change the database without the store's knowledge."""
    with closing(sqlite3.connect(store.path / "client.db")) as database, database:
        for statement in statements:
            database.execute(statement)
