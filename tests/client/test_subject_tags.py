"""Erasure orders find their samples by sealed names: a damaged tag hides none of them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from expunge.client import ClientStore, Selection
from expunge.client.samples import SampleTable
from expunge.errors import StoreDamagedError
from support.agents import Home, add
from support.client_files import change_behind, files_of, rows_of
from support.clients import NOW, Server, features, ids, make_store

ORDER = "ab" * 16
SUBJECTS = ["ann", "ben", "ann", None, "ann"]


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Server]:
    """A store whose five samples the server counts."""
    folder, server = tmp_path_factory.mktemp("sent"), Server()
    with make_store(folder) as store:
        store.add(ids(5), features(5), np.arange(5) % 3, subjects=SUBJECTS, now=NOW)
        _deliver(store, server)
    return folder / "store", server


def _deliver(store: ClientStore, server: Server) -> None:
    composition = store.outbox.compose()
    assert composition is not None
    receipt = server.offer(store.outbox.encode(composition))
    store.outbox.settle(composition.sequence, receipt)


def _places(path: Path) -> dict[str, int]:
    """Where in its database the tag of the first sample about ann is: in the row, and in the index,
    whose entries have nothing but tags and slots.
    """
    with ClientStore.open(path) as store, files_of(store) as files:
        tag = files.subject_tag("ann")
        names = files.database.value("SELECT names FROM samples ORDER BY slot")
    data = (path / "client.db").read_bytes()
    places = [at for at in range(len(data)) if data.startswith(tag, at)]
    assert len(places) == 2 * SUBJECTS.count("ann")
    row = data.index(names)
    page = 8192
    in_index = next(at for at in places if at // page != row // page)
    return {"row": max(at for at in places if at < row), "index": in_index}


@pytest.mark.long
@pytest.mark.parametrize("where", ["row", "index"])
def test_no_bit_of_a_tag_hides_a_sample_from_an_order(
    sent: tuple[Path, Server], tmp_path: Path, where: str
) -> None:
    whole, server = sent
    at = _places(whole)[where]
    for bit in range(8 * 32):
        path = tmp_path / "store"
        shutil.copytree(whole, path)
        data = bytearray((path / "client.db").read_bytes())
        data[at + bit // 8] ^= 1 << bit % 8
        (path / "client.db").write_bytes(data)
        with ClientStore.open(path) as store:
            done, problem = store.carry_out([(ORDER, "ann", NOW)])
            assert problem is None
            assert done[ORDER].ids == ("sample-0", "sample-2", "sample-4")
            composition = store.outbox.compose()
            assert composition is not None
            assert [answer.found for answer in composition.orders] == [3]
            store.outbox.settle(composition.sequence, b"a receipt")
            left = store.listed(Selection(everything=True))
            assert [sample.names.subject for sample in left] == ["ben", None]
            assert rows_of(store, "PRAGMA integrity_check") == [("ok",)]
        shutil.rmtree(path)
    assert server.sequence == 1


def _exchange_tags(store: ClientStore) -> None:
    """One of ann's samples has ben's tag, in row and index alike."""
    with files_of(store) as files:
        first, ben = (files.database.rows("SELECT slot, subject_tag FROM samples"))[:2]
    change_behind(
        store,
        f"UPDATE samples SET subject_tag = x'{ben[1].hex()}' WHERE slot = {first[0]}",  # noqa: S608
    )


def test_the_order_and_the_audit_after_it_miss_nothing(home: Home) -> None:
    add(home.store, 5, subjects=SUBJECTS)
    home.agent.sync()
    _exchange_tags(home.store)
    officer = home.federation.officer()
    order = officer.command("order", subject="ann")["order"]
    audit = officer.command("audit")["audit"]
    assert [(name, found.count) for name, found in home.agent.sync().orders] == [(order, 3)]
    home.agent.sync()
    home.federation.finish_audits()
    shown = officer.ask("show-order", order=order)
    assert (shown["state"], shown["answers"][0]["found"]) == ("complete", 3)
    assert officer.ask("show-audit", audit=audit)["result"] == "equal"
    assert [sample.names.subject for sample in home.store.listed(Selection(everything=True))] == [
        "ben",
        None,
    ]


@pytest.mark.parametrize("by", ["forget", "preview", "opened"])
def test_who_forgets_looks_or_exports_by_subject_misses_nothing(tmp_path: Path, by: str) -> None:
    with make_store(tmp_path) as store:
        add(store, 5, subjects=SUBJECTS)
        _exchange_tags(store)
        if by == "opened":
            assert len(store.opened(Selection(subject="ann"))) == 3
        else:
            found = getattr(store, by)(Selection(subject="ann", label="cat"))
            assert found.ids == ("sample-0",)
            assert getattr(store, by)(Selection(subject="ben")).ids == ("sample-1",)


def test_an_order_is_not_answered_while_the_names_of_a_sample_cannot_be_read(home: Home) -> None:
    add(home.store, 5, subjects=SUBJECTS)
    home.agent.sync()
    change_behind(home.store, "UPDATE samples SET id_tag = x'00' WHERE slot = 1")
    officer = home.federation.officer()
    order = officer.command("order", subject="ann")["order"]
    add(home.store, 2, prefix="later")
    with pytest.raises(StoreDamagedError, match="expunge client scrub --repair --dir") as caught:
        home.agent.sync()
    assert "1 samples in" in str(caught.value)
    assert "sample-" not in str(caught.value)
    assert home.store.status().adding == 0  # it holds up nothing else
    assert officer.ask("show-order", order=order)["state"] == "open"
    with pytest.raises(StoreDamagedError):
        home.store.forget(Selection(subject="ann"))


def test_the_samples_of_several_orders_are_found_at_once(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(home.store, 5, subjects=SUBJECTS)
    officer = home.federation.officer()
    orders = [
        officer.command("order", subject=subject)["order"] for subject in ("ann", "ben", "ann")
    ]
    scans: list[Sequence[str]] = []
    about = SampleTable.about
    monkeypatch.setattr(
        SampleTable,
        "about",
        lambda table, subjects: scans.append(sorted(subjects)) or about(table, subjects),
    )
    done = dict(home.agent.sync().orders)
    assert scans == [["ann", "ben"]]
    assert sorted(done[order].count for order in orders) == [0, 1, 3]
    assert all(officer.ask("show-order", order=order)["state"] == "complete" for order in orders)
