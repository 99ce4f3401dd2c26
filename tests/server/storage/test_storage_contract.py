"""The laws of `expunge.server.storage.tables`, on the store in SQLite and on the one in memory.

Whatever is done to both, both say the same, transaction by transaction, also where one is refused
or fails; and each keeps the laws by itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from expunge.errors import StoreError
from expunge.evidence.merkle import leaf_hash, new_nodes
from expunge.server.storage import tables
from expunge.server.storage.folder import OpenStorage
from expunge.server.storage.sqlite import SqliteStorage
from support.memory_storage import Content, MemoryDisk, MemoryStorage

STATE = tables.ServerRecord("f", "k", "{}", "woodbury", 0, 5, 1, b"salt", "", "")

names = st.sampled_from(["ada", "bob", "eve"])
ids = st.sampled_from(["0a", "0b", "0c"])
small = st.integers(0, 4)
maybe = st.none() | small
blobs = st.binary(max_size=3)
blob_lists = st.lists(st.binary(min_size=1, max_size=1), max_size=4, unique=True)
entries = st.builds(
    lambda kind, client, file: (
        b'{"client":"%s","kind":"%s","summary":{"file":"%s"}}'
        % (client.encode(), kind.encode(), file.encode())
    ),
    st.sampled_from(["changed", "forgotten"]),
    names,
    ids,
)
PLACES = {"0a": 3, "0b": 1, "0c": 2}  # of orders in the log, where they stay
orders = st.builds(
    tables.OrderRecord, ids, small, small, maybe, st.none() | blobs, names, maybe, maybe
).map(lambda order: replace(order, position=PLACES[order.id]))
order_replies = st.builds(tables.OrderReply, names, maybe, maybe, maybe)
audits = st.builds(
    tables.Audit,
    ids,
    small,
    maybe,
    st.none() | blobs,
    maybe,
    st.sampled_from(["equal"]) | st.none(),
)
audit_replies = st.builds(tables.AuditReply, names, st.none() | st.booleans(), maybe)
contents = st.tuples(blobs, st.none()) | st.tuples(st.none(), ids)
journal_entries = st.builds(
    lambda content, *fields: tables.JournalEntry(*fields, *content),
    contents,
    small,
    names,
    small,
    st.just("rows"),
    small,
    small,
    small,
)


def append(storage: tables.Storage, entry: bytes) -> None:
    """The next entry of the log, with the subtrees that it completes."""
    storage.log.append(entry, new_nodes(storage.log.size(), leaf_hash(entry), storage.log))


def rewrite(storage: tables.Storage, entry: bytes) -> None:
    """The first entry of the log was damaged."""
    if storage.log.size():
        storage.log.rewrite({0: entry}, {(0, 0): leaf_hash(entry)})


def finish(storage: tables.Storage, audit: str) -> None:
    """An audit comes to its end at the next position of the log."""
    known = storage.audits.get(audit)
    if known is not None and known.finished is None:
        position = storage.log.size()
        append(storage, b'{"kind":"audited"}')
        storage.audits.put(replace(known, finished=9, result="equal", position=position))


# One change each: a function of the store and of what is drawn.
CHANGES: dict[str, tuple[Callable[..., None], tuple[st.SearchStrategy[Any], ...]]] = {
    "state.put": (
        lambda s, *v: s.state.put(replace(STATE, time=v[0], salt=v[1], basis=v[1])),
        (small, blobs),
    ),
    "actors.put": (
        lambda s, *v: s.actors.put(*v[0]),
        (
            st.lists(
                st.builds(
                    tables.Actor,
                    names,
                    names,
                    ids,
                    st.sampled_from(["active", "gone"]),
                    small,
                    small,
                    ids,
                    maybe,
                ),
                max_size=3,
            ),
        ),
    ),
    "tokens.add": (
        lambda s, v: s.tokens.add(v),
        (st.builds(tables.EnrolmentToken, ids, names, names, small),),
    ),
    "tokens.remove": (lambda s, v: s.tokens.remove(v), (ids,)),
    "tokens.withdraw": (lambda s, *v: s.tokens.withdraw(*v), (names,)),
    "answers.add": (
        lambda s, v: s.answers.add(*v),
        (st.lists(st.builds(tables.AnswerRecord, names, small, ids, blobs, small), max_size=3),),
    ),
    "answers.prune": (lambda s, *v: s.answers.prune(*v), (names, small)),
    "answers.release": (lambda s, *v: s.answers.release(*v), (names, small)),
    "commitments.add": (lambda s, *v: s.commitments.add(*v), (names, blob_lists)),
    "commitments.remove": (lambda s, *v: s.commitments.remove(*v), (names, blob_lists)),
    "commitments.remove_all": (lambda s, v: s.commitments.remove_all(v), (names,)),
    "journal.append": (lambda s, v: s.journal.append(v), (journal_entries,)),
    "journal.remove": (lambda s, *v: s.journal.remove(*v), (names, small)),
    "files.put_ledger": (
        lambda s, v: s.files.put_ledger(v),
        (st.builds(tables.LedgerFile, small, small, ids),),
    ),
    "files.put_share": (
        lambda s, v: s.files.put_share(v),
        (st.builds(tables.ShareFile, names, small, ids, blobs),),
    ),
    "files.remove_share": (lambda s, v: s.files.remove_share(v), (names,)),
    "generations.begin": (lambda s, *v: s.generations.begin(*v), (small, small)),
    "generations.end": (lambda s, v: s.generations.end(v), (small,)),
    "generations.erased": (
        lambda s, v: s.generations.erased(v),
        (st.builds(tables.Erasure, small, st.integers(-1, 4)),),
    ),
    "log.append": (append, (entries,)),
    "log.rewrite": (rewrite, (entries,)),
    "amendments.add": (lambda s, v: s.amendments.add(v), (blobs,)),
    "rotations.add": (lambda s, v: s.rotations.add(v), (blobs,)),
    "orders.add": (lambda s, *v: s.orders.add(*v), (orders, st.lists(names, unique=True))),
    "orders.put": (lambda s, v: s.orders.put(v) if s.orders.get(v.id) else None, (orders,)),
    "orders.reply": (
        lambda s, *v: s.orders.reply(*v) if s.orders.get(v[0]) else None,
        (ids, order_replies),
    ),
    "orders.mention": (
        lambda s, *v: s.orders.mention(*v) if s.orders.get(v[0]) else None,
        (ids, small),
    ),
    "audits.put": (lambda s, v: s.audits.put(v), (audits,)),
    "audits.finish": (finish, (ids,)),
    "audits.reply": (
        lambda s, *v: s.audits.reply(v[0], *v[1]) if s.audits.get(v[0]) else None,
        (ids, st.lists(audit_replies, max_size=3)),
    ),
    "audits.release": (lambda s, *v: s.audits.release(*v), (ids, names)),
    "rounds.apply": (
        lambda s, *v: s.rounds.apply(*v),
        (
            st.builds(tables.Membership, small, ids),
            st.lists(st.tuples(names, small), max_size=3, unique=True),
        ),
    ),
    "rounds.await_rebuild": (lambda s, v: s.rounds.await_rebuild(v), (names,)),
    "rounds.rebuilt": (lambda s: s.rounds.rebuilt(), ()),
    "rounds.attempt": (
        lambda s, v: s.rounds.attempt(v),
        (st.lists(st.builds(tables.Attempt, ids, names, small, small, clock=small), max_size=3),),
    ),
    "rounds.set_back": (lambda s, v: s.rounds.set_back(v), (small,)),
    "rounds.drop_attempts": (lambda s, v: s.rounds.drop_attempts(v), (st.sets(ids),)),
    "rounds.dispute": (
        lambda s, v: s.rounds.dispute(v),
        (st.builds(tables.DisputeRecord, ids, st.just("impossible"), small, blobs),),
    ),
    "rounds.open": (
        lambda s, v: s.rounds.open(v),
        (st.builds(tables.OpeningRecord, ids, names, blobs),),
    ),
}
SAMPLES: dict[str, tuple[Any, ...]] = {  # one call of each method that changes something
    "state.put": (STATE,),
    "actors.put": (tables.Actor("ada", "client", "k", "active", 0, 0, ""),),
    "tokens.add": (tables.EnrolmentToken("0a", "ada", "client", 9),),
    "tokens.remove": ("0a",),
    "tokens.withdraw": ("ada",),
    "answers.add": (tables.AnswerRecord("ada", 1, "r", b"a"),),
    "answers.prune": ("ada", 2),
    "answers.release": ("ada", 1),
    "commitments.add": ("ada", [b"c"]),
    "commitments.remove": ("ada", [b"c"]),
    "commitments.remove_all": ("ada",),
    "journal.append": (tables.JournalEntry(1, "ada", 1, "rows", 1, 0, 5, b"m", None),),
    "journal.remove": ("ada", 3),
    "files.put_ledger": (tables.LedgerFile(1, 2, "f"),),
    "files.put_share": (tables.ShareFile("ada", 1, "f", b"a"),),
    "files.remove_share": ("ada",),
    "generations.begin": (3, 1),
    "generations.end": (3,),
    "generations.erased": (tables.Erasure(1, 2),),
    "log.append": (b"{}", [(0, 0, b"h")]),
    "log.rewrite": ({}, {(0, 0): b"h"}),
    "amendments.add": (b"e",),
    "rotations.add": (b"e",),
    "orders.add": (tables.OrderRecord("0a", 1, 2, None, None), ["ada"]),
    "orders.put": (tables.OrderRecord("0a", 1, 2, None, None),),
    "orders.reply": ("0a", tables.OrderReply("ada", 1, 1, 1)),
    "orders.mention": ("0a", 3),
    "audits.put": (tables.Audit("0a", 1, None, None),),
    "audits.reply": ("0a", tables.AuditReply("ada", equal=True, count=1)),
    "audits.release": ("0a", "ada"),
    "rounds.apply": (tables.Membership(3, "{}"), [("ada", 1)]),
    "rounds.await_rebuild": ("ada",),
    "rounds.rebuilt": (),
    "rounds.attempt": ([tables.Attempt("r", "ada", 1)],),
    "rounds.drop_attempts": (["r"],),
    "rounds.set_back": (3,),
    "rounds.dispute": (tables.DisputeRecord("r", "impossible", 3, b"{}"),),
    "rounds.open": (tables.OpeningRecord("r", "ada", b"s"),),
}
TABLES = tuple(tables.Storage.__annotations__)
# More commitments than one query of SQLite takes parameters.
EVERY_BYTE = [number.to_bytes(2) for number in range(900)] + [
    bytes([number]) for number in range(256)
]


def seen(storage: tables.Storage) -> dict[str, Any]:
    """All that can be read, with whatever arguments matter."""
    who, ident, numbers = ("ada", "bob", "eve"), ("0a", "0b", "0c"), range(6)
    size = storage.log.size()
    read: dict[str, Any] = {
        "state": storage.state.get(),
        "actors": [storage.actors.all(), *map(storage.actors.get, who)],
        "actors in part": [
            storage.actors.count(),
            *(storage.actors.after(name, limit) for name in ("", *who) for limit in (1, 3)),
        ],
        "keys": [*map(storage.actors.with_key, ident)],
        "tokens": [*map(storage.tokens.get, ident), *map(storage.tokens.of, who)],
        "answers": [storage.answers.get(name, number) for name in who for number in numbers],
        "commitments": [
            (
                storage.commitments.count(name),
                storage.commitments.present(name, EVERY_BYTE),
                storage.commitments.of(name),
            )
            for name in who
        ],
        "committed": storage.commitments.clients(),
        "journal": (
            [storage.journal.get(number) for number in range(40)],
            [
                storage.journal.positions(name, after=after, until=until)
                for name in (None, *who)
                for after in (0, 2)
                for until in (None, 3)
            ],
            storage.journal.last(),
            storage.journal.count(),
            storage.journal.oldest(),
            [storage.journal.holds(number) for number in numbers],
            [storage.journal.clients(number) for number in numbers],
            [storage.journal.files(name, number) for name in who for number in numbers],
        ),
        "files": (storage.files.ledger(), [*map(storage.files.share, who)]),
        "references": (storage.files.names(), storage.files.slots()),
        "generations": [*map(storage.generations.slot, numbers)],
        "erasures": [
            storage.generations.last_erasure(),
            *map(storage.generations.erasure_of, numbers),
        ],
        "log": (size, storage.log.entries(0, size), storage.log.entries(1, 3)),
        "found": [
            storage.log.search({"kind": kind, "client": name, "summary.file": "0b"})
            for kind in ("changed", "forgotten")
            for name in who
        ],
        "nodes": [storage.log.node(0, number) for number in range(size)],
        "documents": (storage.amendments.all(), storage.rotations.all()),
        "orders": (storage.orders.all(), [*map(storage.orders.get, ident)]),
        "orders in part": [
            storage.orders.newest(limit, before=before, overdue=overdue)
            for limit in (1, 3)
            for before in (None, (2, "0c"), (9, ""))
            for overdue in (None, 2)
        ],
        "orders counted": (
            [*map(storage.orders.counts, numbers)],
            [storage.orders.count(overdue=overdue) for overdue in (None, *numbers)],
        ),
        "orders named": [*map(storage.orders.named, (*who, *ident, "0", "0A", ""))],
        "orders answered": [*map(storage.orders.is_answered, ident)],
        "order replies": [
            (storage.orders.replies(order), storage.orders.reply_of(order, name))
            for order in ident
            for name in who
        ],
        "waiting": (
            [*map(storage.orders.unanswered, who)],
            [
                storage.orders.unanswered(name, after=after, limit=limit)
                for name in who
                for after in (None, 1)
                for limit in (1, 5)
            ],
            [*map(storage.audits.unanswered, who)],
        ),
        "order entries": [*map(storage.orders.entries, ident)],
        "audits": (storage.audits.all(), storage.audits.running(), storage.audits.last()),
        "audits by id": [*map(storage.audits.get, ident)],
        "audit replies": [*map(storage.audits.replies, ident)],
        "members": [storage.rounds.membership(name, number) for name in who for number in numbers],
        "rounds": (storage.rounds.rebuilds(), storage.rounds.attempts(), storage.rounds.last()),
        "disputes": (
            storage.rounds.disputes(),
            {one: storage.rounds.opened(one) for one in ident},
            {(one, name): storage.rounds.opening(one, name) for one in ident for name in who},
        ),
    }
    return read


class Unwanted(Exception):  # noqa: N818 - what a test raises
    """What ends a transaction that is to leave nothing."""


transactions = st.lists(
    st.tuples(
        st.lists(
            st.sampled_from(sorted(CHANGES)).flatmap(
                lambda name: st.tuples(st.just(name), *CHANGES[name][1])
            ),
            min_size=1,
            max_size=6,
        ),
        st.booleans(),
    ),
    max_size=8,
)


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(transactions)
def test_both_stores_say_the_same_whatever_is_done_to_them(
    story: list[tuple[list[tuple[Any, ...]], bool]],
) -> None:
    with TemporaryDirectory() as folder:
        stores = [SqliteStorage(Path(folder) / "a.db"), MemoryDisk()(Path(folder) / "b.db")]
        for changes, fails in story:
            outcomes = [done(storage, changes, fails=fails) for storage in stores]
            assert outcomes[0] == outcomes[1]
            assert seen(stores[0]) == seen(stores[1])
        for storage in stores:
            storage.close()


def done(storage: tables.Storage, changes: list[tuple[Any, ...]], *, fails: bool) -> list[Any]:
    """Whether a transaction took effect, and what was seen in its middle; one that did not has
    changed nothing.
    """
    before, within = seen(storage), []
    try:
        with storage.transaction():
            for name, *values in changes:
                CHANGES[name][0](storage, *values)
                within.append(seen(storage))
            if fails:
                raise Unwanted
    except (StoreError, Unwanted) as problem:
        assert seen(storage) == before
        return [type(problem), *within]
    return within


# -- each by itself --------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "memory"])
def opening(request: pytest.FixtureRequest) -> OpenStorage:
    return SqliteStorage if request.param == "sqlite" else MemoryDisk()


@pytest.fixture
def storage(opening: OpenStorage, tmp_path: Path) -> Iterator[tables.Storage]:
    storage = opening(tmp_path / "server.db", lambda _: None)
    yield storage
    storage.close()


def test_every_method_is_either_read_or_changed_above() -> None:
    """A method that comes is to be told of: as a change, or in `seen`."""
    source = inspect.getsource(seen)
    storage = MemoryStorage(Content(), lambda _: None)
    for name in TABLES:
        for method in (one for one in dir(getattr(storage, name)) if not one.startswith("_")):
            assert f"{name}.{method}" in SAMPLES or f"storage.{name}.{method}" in source
    assert set(SAMPLES) == set(CHANGES) - {"audits.finish"}


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_nothing_is_changed_outside_a_transaction(storage: tables.Storage, name: str) -> None:
    table, method = name.split(".")
    before = seen(storage)
    change = getattr(getattr(storage, table), method)
    with pytest.raises(StoreError, match="in transactions only"):
        change(*SAMPLES[name])
    assert seen(storage) == before
    with storage.transaction():
        change(*SAMPLES[name])


def test_no_thread_changes_anything_in_the_transaction_of_another(storage: tables.Storage) -> None:
    refused: list[str] = []

    def intrude() -> None:
        try:
            storage.state.put(STATE)
        except StoreError as problem:
            refused.append(str(problem))

    thread = Thread(target=intrude)
    with storage.transaction():
        thread.start()
        storage.amendments.add(b"e")
    thread.join()
    assert len(refused) == 1
    assert storage.state.get() is None


@pytest.mark.parametrize("when", ["before commit", "after commit"])
def test_what_fails_at_the_commit_is_whole_or_nothing(
    opening: OpenStorage, tmp_path: Path, when: str
) -> None:
    def hook(now: str) -> None:
        if now == when:
            raise OSError("made to fail")

    storage = opening(tmp_path / "server.db", hook)

    def change() -> None:
        with storage.transaction():
            storage.state.put(STATE)
            storage.amendments.add(b"e")

    with pytest.raises(OSError, match="made to fail"):
        change()
    expected = (STATE, [b"e"]) if when == "after commit" else (None, [])
    assert (storage.state.get(), storage.amendments.all()) == expected
    storage.close()
    again = opening(tmp_path / "server.db", lambda _: None)
    assert (again.state.get(), again.amendments.all()) == expected
    again.close()


def test_transactions_are_not_nested(storage: tables.Storage) -> None:
    with storage.transaction():
        storage.amendments.add(b"1")
        with pytest.raises(StoreError, match="must end first"), storage.transaction():
            pass
        storage.amendments.add(b"2")
    assert storage.amendments.all() == [b"1", b"2"]


def test_a_search_for_nothing_in_particular_finds_everything(storage: tables.Storage) -> None:
    with storage.transaction():
        append(storage, b"{}")
        append(storage, b'{"kind":"erased"}')
    assert storage.log.search({}) == [0, 1]


def test_a_position_of_the_journal_is_never_used_again(storage: tables.Storage) -> None:
    entry = SAMPLES["journal.append"][0]
    with storage.transaction():
        storage.journal.append(entry)
        storage.journal.append(entry)
        storage.journal.remove("ada", 2)
    with storage.transaction():
        storage.journal.append(entry)
    assert (storage.journal.positions(), storage.journal.last()) == ([3], 3)


def test_a_backup_holds_all_but_what_must_be_forgettable(
    opening: OpenStorage, storage: tables.Storage, tmp_path: Path
) -> None:
    kept = ("state", "actors", "answers", "erasures", "log", "documents", "orders", "audits")
    with storage.transaction():
        for name, arguments in SAMPLES.items():
            if name.split(".")[1] in ("put", "add", "append", "begin", "erased", "reply"):
                table, method = name.split(".")
                getattr(getattr(storage, table), method)(*arguments)
        storage.files.put_ledger(*SAMPLES["files.put_ledger"])
        storage.files.put_share(*SAMPLES["files.put_share"])
    storage.write_backup(tmp_path / "backup")
    backup = opening(tmp_path / "backup", lambda _: None)
    before, after = seen(storage), seen(backup)
    assert after["state"] == replace(STATE, salt=b"")
    assert {name: after[name] for name in kept[1:]} == {name: before[name] for name in kept[1:]}
    for name in ("tokens", "commitments", "journal", "files", "generations"):
        assert before[name] != after[name]
        assert after[name] == seen(MemoryStorage(Content(written=1), lambda _: None))[name]
    backup.close()


def test_a_closed_store_says_so(opening: OpenStorage, tmp_path: Path) -> None:
    storage = opening(tmp_path / "server.db", lambda _: None)
    storage.close()
    with pytest.raises(StoreError, match="closed"):
        storage.state.get()
    with pytest.raises(StoreError, match="closed"):
        storage.amendments.add(b"e")
    with pytest.raises(StoreError, match="closed"), storage.transaction():
        storage.state.put(STATE)


@pytest.mark.parametrize(
    ("order", "state"),
    [
        (tables.OrderRecord("o", 1, 10, 1, b"s"), "open"),
        (tables.OrderRecord("o", 1, 9, 1, b"s"), "overdue"),
        (tables.OrderRecord("o", 1, 9, None, None), "lost"),
        (tables.OrderRecord("o", 1, 9, 1, b"s", completed=5), "complete"),
        (tables.OrderRecord("o", 1, 9, None, None, completed=5), "complete"),
        (tables.OrderRecord("o", 1, 9, None, None, completed=5, closed=6), "closed"),
        (tables.OrderRecord("o", 1, 9, None, None, closed=6), "closed"),
    ],
)
def test_the_state_of_an_order(order: tables.OrderRecord, state: str) -> None:
    assert order.state(10) == state
