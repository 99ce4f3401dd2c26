"""Whatever byte of a database is damaged: every step ends with the right content, or with an error
of ours that says what to do.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from expunge.client import Agent, ClientStore, Selection, enrol
from expunge.client.scrub import scrub_client
from expunge.errors import ExpungeError
from expunge.federation import Federation
from expunge.office import Office
from expunge.server.scrub import scrub_server
from expunge.transport.local import LocalCarrier
from support import seeds
from support.clients import features, ids
from support.federation import SPEC

CLIENT, SERVER = "north/client.db", "federation/server/server.db"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation of one client, with a bit of everything that is stored."""
    path = tmp_path_factory.mktemp("whole")
    with Federation.found(path / "federation", SPEC) as federation:
        store = enrol(path / "north", federation.token("north"), federation.carrier)
        agent = Agent(store, federation.carrier)
        labels = np.arange(8) % 3
        store.add(ids(8), features(8), labels, subjects=list("abcdabcd"), now=0.0)
        agent.sync()
        federation.order("a")
        agent.sync()
        federation.office.do("rotate-key", {})
        agent.sync()
        federation.order("b")
        store.add(ids(2, "late"), features(2, 5), [0, 1], now=0.0)
        store.outbox.compose()
        store.close()
    return path


class Steps:
    """What people do with a federation in a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_found = True  # or not known

    def scrubs(self) -> None:
        server = scrub_server(self.path / "federation" / "server")
        client = scrub_client(self.path / "north")
        self.is_found = bool([*server.findings, *client.findings])

    def status(self) -> None:
        with ClientStore.open_read_only(self.path / "north") as store:
            store.status()

    def samples(self) -> set[Any]:
        with ClientStore.open_read_only(self.path / "north") as store:
            return {
                (stored.names.id, stored.names.subject, opened.content.salt)
                for stored, opened in store.opened(Selection(everything=True))
            }

    def receipts(self) -> None:
        with ClientStore.open_read_only(self.path / "north") as store:
            store.chains()
            store.documents("receipt")
            store.head()

    def _carrier(self) -> LocalCarrier:
        return LocalCarrier.open(self.path / "federation" / "server", timeout=0.0)

    def sync(self) -> None:
        """After a sync, the ledger is of the samples that are left. None of them is about b, unless
        the order or that it waits was damaged: then a scrub says so.
        """
        with closing(self._carrier()) as carrier, ClientStore.open(self.path / "north") as store:
            Agent(store, carrier, sleep=lambda _: None, attempts=2).sync()
            assert carrier.state.ledger.solver.statistics == store.statistics()
            left = store.listed(Selection(everything=True))
            assert "b" not in {sample.names.subject for sample in left} or self.is_found

    def office(self) -> None:
        with (
            closing(self._carrier()) as carrier,
            Office.open(self.path / "federation" / "operator", carrier) as office,
        ):
            for question in ("status", "clients", "orders"):
                office.ask(question, {})
            office.do("backup", {"name": "monday"})
            carrier.upkeep.fold()


def flip(file: Path, chance: random.Random) -> str:
    """Change one byte that is not zero."""
    data = bytearray(file.read_bytes())
    at = chance.choice([place for place in range(len(data)) if data[place]])
    data[at] ^= 1 << chance.randrange(8) if chance.random() < 0.7 else chance.randrange(1, 256)
    file.write_bytes(data)
    return f"byte {at}"


def change(file: Path, chance: random.Random) -> str:
    """Change one value into another of its type."""
    with closing(sqlite3.connect(file)) as database, database:
        query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
        tables = [name for (name,) in database.execute(query)]
        table = chance.choice([name for name in tables if _rows(database, "*", name)])
        column = chance.choice([row[1] for row in database.execute(f"PRAGMA table_info({table})")])
        value = chance.choice(_rows(database, column, table))[0]
        other = _changed(value, chance)
        database.execute(
            f"UPDATE OR IGNORE {table} SET {column} = ? WHERE {column} IS ?",  # noqa: S608
            (other, value),
        )
    return f"{table}.{column}"


def _rows(database: sqlite3.Connection, column: str, table: str) -> list[Any]:
    return database.execute(f"SELECT {column} FROM {table}").fetchall()  # noqa: S608 - our own


def _changed(value: Any, chance: random.Random) -> Any:
    if value is None:
        return chance.choice([0, "x", b"x"])
    if isinstance(value, int):
        return chance.choice([value ^ 1 << chance.randrange(62), value + 1, -value - 1])
    data = bytearray(value.encode() if isinstance(value, str) else value)
    if data:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(7)
    return data.decode("latin-1") if isinstance(value, str) else bytes(data)


@pytest.mark.long
@pytest.mark.parametrize("part", range(5))
@pytest.mark.parametrize("damage", [flip, change])
def test_every_step_ends_right_or_with_an_error_of_ours(
    whole: Path, tmp_path: Path, part: int, damage: Callable[[Path, random.Random], str]
) -> None:
    chance = seeds.chance(f"{damage.__name__} {part}")
    samples = Steps(whole).samples()
    for _ in range(40):
        path = tmp_path / "damaged"
        shutil.copytree(whole, path)
        file = chance.choice([CLIENT, SERVER])
        where = f"{file}, {damage(path / file, chance)}"
        steps = Steps(path)
        for step in (
            *(steps.scrubs, steps.status, steps.receipts),
            *(steps.samples, steps.sync, steps.office, steps.sync),
        ):
            try:
                result = step()
            except ExpungeError:
                continue
            except Exception as problem:
                raise AssertionError(f"{where}: {step.__name__}: {problem!r}") from problem
            assert result is None or result == samples, where
        shutil.rmtree(path)
