"""Looking at a store beside the process that works on it: whole changes only, nothing changed,
nobody kept out.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from threading import Timer

import pytest

from expunge.client import ClientStore, Selection
from expunge.client.folder import ClientFolder
from expunge.client.schema import MIGRATIONS
from expunge.crypto.vault import ReadOnlyVault
from expunge.errors import ShreddedError, StoreBusyError, StoreError
from expunge.storage import sqlite
from expunge.storage.sqlite import Snapshot
from support.client_files import files_of, live_slots
from support.clients import NOW, SERVER, SPEC, Server, deliver, features, ids, make_store

EVERYTHING = Selection(everything=True)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ClientStore]:
    """At work: two samples live, one of them about to be deleted, and one pending."""
    with make_store(tmp_path) as store:
        store.add(ids(2), features(2), [0, 1], subjects=["ann", None], now=NOW)
        deliver(store, Server())
        store.put_head(b"a head", "0" * 64)
        store.forget(Selection(ids=["sample-1"]))
        store.add(["later"], features(1), [2], now=NOW + 1)
        yield store


def contents(folder: Path) -> dict[str, bytes]:
    return {
        file.name: file.read_bytes() for file in folder.iterdir() if file.name != "client.db-shm"
    }


def test_a_glance_sees_what_the_store_says(store: ClientStore) -> None:
    with ClientStore.open_read_only(store.path) as glance:
        assert glance.status() == store.status()
        assert glance.listed(EVERYTHING) == store.listed(EVERYTHING)
        assert glance.listed(Selection(subject="ann")) == store.listed(Selection(subject="ann"))
        assert glance.documents("receipt") == store.documents("receipt")
        assert (glance.head(), glance.spec, glance.server) == (b"a head", SPEC, SERVER.public)
        assert glance.statistics() == store.statistics()
        pairs = zip(glance.opened(EVERYTHING), store.opened(EVERYTHING), strict=True)
        for (found, one), (same, other) in pairs:
            assert (found, one.names, one.commitment) == (same, other.names, other.commitment)
            assert one.content.to_bytes() == other.content.to_bytes()


def test_a_change_is_seen_whole_or_not_at_all(store: ClientStore) -> None:
    seen: list[int] = []

    def look(_: int) -> None:
        with ClientStore.open_read_only(store.path) as glance:
            seen.append(glance.status().adding)

    look(0)
    with ClientStore.open_read_only(store.path) as early:
        store.add(ids(1200, "new"), features(1200), [0] * 1200, now=NOW, progress=look)
        assert early.status().adding == 1  # still: nothing changes under a glance
        assert len(early.listed(EVERYTHING)) == 3
    look(0)
    assert seen == [1, 1, 1, 1, 1201]


def test_nothing_can_be_changed_by_a_glance(store: ClientStore) -> None:
    before = contents(store.path)
    with ClientStore.open_read_only(store.path) as glance, files_of(store) as files:
        changes: list[Callable[[], object]] = [
            lambda: glance.add(["x"], features(1), [0], now=NOW),
            lambda: glance.correct("sample-0", label=1),
            lambda: glance.forget(EVERYTHING),
            lambda: glance.forget(Selection(subject="nobody"), order="1" * 32),
            lambda: glance.drop_orders([]),
            glance.leave,
            glance.outbox.compose,
            glance.outbox.release,
            lambda: glance.choose("gram"),
            lambda: glance.remember({"gone": "1"}),
            lambda: glance.amend(SPEC.with_gamma(2.0)),
            lambda: glance.move(federation="1" * 32, server=SERVER.public, address="", ca=""),
            lambda: glance.keep("rotation", b"x"),
            lambda: glance.put_head(b"x", "1" * 64),
            glance.drop_head,
            lambda: files.vault.shred([1]),
            lambda: files.vault.add_mirror(store.path / "mirror"),
            lambda: files.erase([1]),
            lambda: files.database.run("DELETE FROM samples"),
        ]
        for change in changes:
            refused(change)
        assert glance.status() == store.status()
    assert contents(store.path) == before


def test_the_request_under_way_cannot_be_changed_by_a_glance(store: ClientStore) -> None:
    composition = store.outbox.compose()
    assert composition is not None
    before = contents(store.path)
    with ClientStore.open_read_only(store.path) as glance:
        assert glance.outbox.composed() == composition
        refused(lambda: glance.outbox.doubt(2))
        refused(lambda: glance.outbox.settle(2, b"receipt"))
        refused(lambda: glance.outbox.abandon(2, "no"))
    assert contents(store.path) == before


def refused(change: Callable[[], object]) -> None:
    with pytest.raises((StoreError, sqlite3.OperationalError), match=r"reading only|readonly"):
        change()


def test_a_glance_lets_others_work_and_two_agents_are_kept_apart_as_before(
    store: ClientStore,
) -> None:
    with ClientStore.open_read_only(store.path), ClientStore.open_read_only(store.path):
        with pytest.raises(StoreBusyError, match="is in use by process"):
            ClientStore.open(store.path)
        store.add(["one-more"], features(1), [0], now=NOW)
    store.close()
    with ClientStore.open_read_only(
        store.path
    ) as glance:  # nobody works on it any more: that is fine too
        assert glance.status().adding == 2
    with ClientStore.open(store.path) as after:
        assert after.status().adding == 2


def test_an_erasure_waits_for_a_glance_to_end(store: ClientStore) -> None:
    glance = ClientStore.open_read_only(store.path)
    ending = Timer(0.1, glance.close)
    ending.start()
    store.forget(Selection(ids=["later"]))
    ending.join()
    assert (store.path / "client.db-wal").stat().st_size == 0


def test_what_was_deleted_while_one_looked_is_not_shown(store: ClientStore) -> None:
    """Between the moments at which database and vault are read, a sample can go, and its slot be
    given to another.
    """
    store.close()
    folder = ClientFolder.open(store.path)
    folder.database.rows("PRAGMA busy_timeout=0")
    store = ClientStore(folder)
    database = Snapshot(store.path / "client.db", MIGRATIONS)
    with pytest.raises(StoreError, match="could not be cut"):
        store.forget(
            Selection(ids=["later"])
        )  # it never left home: gone at once, but for the log, which comes later
    for refill in (False, True):
        if refill:
            store.add(["another"], features(1), [0], now=NOW)
        glance = ClientStore(
            ClientFolder(
                store.path, None, database, ReadOnlyVault(store.path / "client.vault"), store.key
            )
        )
        assert glance.status().adding == 1
        with pytest.raises(ShreddedError):
            glance.listed(EVERYTHING)
    database.close()
    store.forget(Selection(ids=["another"]))
    assert (
        store.path / "client.db-wal"
    ).stat().st_size == 0  # what could not be done then is done now
    with ClientStore.open_read_only(store.path) as now:
        assert [one.names.id for one in now.listed(EVERYTHING)] == ["sample-0", "sample-1"]
    store.close()


def test_what_cannot_be_read_beside_its_process_is_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "SNAPSHOT_PATIENCE", 0.0)
    make_store(tmp_path).close()
    path = tmp_path / "store"
    with closing(sqlite3.connect(path / "client.db", isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode=EXCLUSIVE")  # as earlier versions did
        other.execute("UPDATE settings SET value = 'x' WHERE name = 'refusal'")
        with pytest.raises(StoreBusyError, match="cannot be read beside it"):
            ClientStore.open_read_only(path)
    with closing(sqlite3.connect(path / "client.db", isolation_level=None)) as other:
        other.execute("PRAGMA user_version=99")
    with pytest.raises(StoreBusyError, match="of version 99"):
        ClientStore.open_read_only(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "truncated"),
        (b"expunge\0vault\0", "truncated"),
        (b"another\0vault\0\x01" + bytes(49), "not a vault"),
        (b"expunge\0vault\0\x05" + bytes(49), "of version 5"),
        (b"expunge\0vault\0\x02" + bytes(49), "header is damaged"),
        (b"expunge\0vault\0\x02" + bytes(34), "truncated"),
        (b"expunge\0vault\0\x01" + bytes(8), "truncated"),
        (b"expunge\0vault\0\x01" + bytes(16) + b"\x02" + bytes(48), "truncated"),
    ],
)
def test_a_damaged_vault_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "client.vault").write_bytes(content)
    with pytest.raises(StoreError, match=message):
        ReadOnlyVault(tmp_path / "client.vault")
    with pytest.raises(StoreError, match="cannot be opened"):
        ReadOnlyVault(tmp_path / "nothing")


def test_a_growth_of_the_vault_that_is_under_way_is_not_disturbed(store: ClientStore) -> None:
    vault, live = store.path / "client.vault", live_slots(store)
    whole = vault.read_bytes() + bytes(4096)  # as it is before the header says so
    vault.write_bytes(whole)
    with ClientStore.open_read_only(store.path) as glance:
        assert len(glance.listed(EVERYTHING)) == 3
    assert live_slots(store) == live
    assert vault.read_bytes() == whole
