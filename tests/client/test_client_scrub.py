"""A scrub of a client's store finds every damaged bit that matters, and puts right what it can."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from expunge.client import ClientStore, Selection
from expunge.client.scrub import scrub_client
from expunge.errors import StoreBusyError, StoreDamagedError, StoreError
from expunge.storage.scrub import ScrubResult
from support import seeds
from support.agents import Home, add
from support.client_files import change_behind, rows_of

SUBJECTS = ["ann", "ben", "ann", None, "ann"]


@pytest.fixture
def store(home: Home) -> ClientStore:
    """Five samples that the server counts, and two that are pending."""
    add(home.store, 5, subjects=SUBJECTS)
    home.agent.sync()
    add(home.store, 2, prefix="later")
    return home.store


def held(path: Path) -> list[Any]:
    with ClientStore.open_read_only(path) as store:
        return [
            (stored.names, stored.label, opened.commitment, opened.content.salt)
            for stored, opened in store.opened(Selection(everything=True))
        ]


def texts(result: ScrubResult) -> str:
    return "\n".join(f"{finding.what}: {finding.text}" for finding in result.findings)


def test_a_whole_store_has_nothing_to_find_and_everything_is_read(store: ClientStore) -> None:
    seen: list[tuple[str, int, int | None]] = []
    before = (store.path / "client.db").read_bytes()
    result = scrub_client(store.path, progress=lambda *what: seen.append(what))
    assert (result.is_whole, result.findings) == (True, [])
    assert result.read == {
        "database": 1, "samples": 7, "notes": 5, "receipts": 1, "head": 1, "vault": 8
    }  # fmt: skip
    assert ("samples", 7, 7) in seen
    assert (store.path / "client.db").read_bytes() == before
    with pytest.raises(StoreBusyError):
        scrub_client(store.path, repair=True)
    store.close()
    assert scrub_client(store.path, repair=True).findings == []


@pytest.mark.parametrize("column", ["id_tag", "subject_tag", "commitment", "names", "content"])
def test_a_flipped_bit_of_a_sample_is_found_and_put_right(store: ClientStore, column: str) -> None:
    store.close()
    before, chance = held(store.path), seeds.chance(column)
    ((value,),) = rows_of(store, f"SELECT {column} FROM samples WHERE slot = 1")  # noqa: S608
    for place in chance.sample(range(8 * len(value)), 12):
        damaged = bytearray(value)
        damaged[place // 8] ^= 1 << place % 8
        change_behind(
            store,
            f"UPDATE samples SET {column} = x'{damaged.hex()}' WHERE slot = 1",  # noqa: S608
        )
        (finding,) = scrub_client(store.path).findings
        assert (finding.what, finding.repaired) == ("samples", False)
        assert finding.remedy
        result = scrub_client(store.path, repair=True)
        assert result.is_whole
        assert [finding.repaired for finding in result.findings] == [True]
        assert held(store.path) == before
        assert scrub_client(store.path).findings == []


def test_what_cannot_be_put_right_is_named_with_what_to_do(store: ClientStore) -> None:
    change_behind(
        store,
        "UPDATE samples SET content = zeroblob(200) WHERE slot = 2",
        "UPDATE samples SET label = 1 WHERE slot = 1",
        "UPDATE documents SET content = CAST(replace(content, 'a', 'b') AS BLOB)",
    )
    (store.path / "head").write_bytes(b"damaged")
    store.close()
    result = scrub_client(store.path, repair=True)
    assert not result.is_whole
    by_text = {finding.text: finding for finding in result.findings}
    assert by_text["the sample in slot 2 cannot be opened"].remedy.startswith("put the store back")
    assert by_text["label of the sample in slot 1 was not what was sealed"].repaired
    assert sum(finding.what == "receipts" for finding in result.findings) == 1
    assert [finding.repaired for finding in result.findings if finding.what == "head"] == [True]
    assert not (store.path / "head").exists()
    assert "sample-" not in texts(result)
    assert "ann" not in texts(result).replace("cannot", "")
    assert [finding.what for finding in scrub_client(store.path).findings] == [
        "samples",
        "receipts",
    ]


def test_a_damaged_index_is_made_anew_from_its_table(store: ClientStore) -> None:
    store.close()
    before, path = held(store.path), store.path / "client.db"
    data = bytearray(path.read_bytes())
    (tag,) = rows_of(store, "SELECT id_tag FROM samples WHERE slot = 3")[0]
    page = 8192
    rows = {data.index(tag, 0) // page}
    places = [at for at in range(len(data)) if data.startswith(tag, at)]
    (names,) = rows_of(store, "SELECT names FROM samples WHERE slot = 3")[0]
    table = data.index(names) // page
    at = next(at for at in places if at // page != table)
    assert rows
    data[at] ^= 1
    path.write_bytes(data)
    assert "index samples_" in texts(scrub_client(store.path))
    result = scrub_client(store.path, repair=True)
    assert result.is_whole
    assert result.findings
    assert (held(store.path), scrub_client(store.path).findings) == (before, [])


def test_a_damaged_mark_is_made_anew_but_lost_changes_are_not_hidden(store: ClientStore) -> None:
    store.close()
    mark, path = store.path / "client.mark", store.path
    whole = mark.read_bytes()
    mark.write_bytes(bytes(1024))
    with pytest.raises(StoreDamagedError, match="scrub --repair"):
        ClientStore.open(path)
    assert [finding.what for finding in scrub_client(path, repair=True).findings] == ["mark"]
    ClientStore.open(path).close()
    mark.write_bytes(whole)
    change_behind(store, "UPDATE settings SET value = '3' WHERE name = 'changes'")
    for repair in (False, True):
        with pytest.raises(StoreDamagedError, match="lost its last changes"):
            scrub_client(path, repair=repair)


def test_no_store_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is missing"):
        scrub_client(tmp_path)


@pytest.mark.parametrize("index", ["samples_by_time", "samples_by_state", "samples_by_label"])
def test_a_damaged_index_costs_no_key_when_the_store_is_opened(
    store: ClientStore, tmp_path: Path, index: str
) -> None:
    """The slots that an index names may be any; those of the table hold the keys."""
    store.close()
    before = held(store.path)
    (root,) = rows_of(store, "SELECT rootpage FROM sqlite_master WHERE name = ?", (index,))[0]
    page, data = 8192, (store.path / "client.db").read_bytes()
    chance = seeds.chance(index)
    for place in chance.sample(range(8 * page), 150):
        path = tmp_path / "copy"
        shutil.copytree(store.path, path)
        damaged = bytearray(data)
        damaged[(root - 1) * page + place // 8] ^= 1 << place % 8
        (path / "client.db").write_bytes(damaged)
        with suppress(StoreDamagedError):
            ClientStore.open(path).close()
        (path / "client.db").write_bytes(data)
        assert held(path) == before
        shutil.rmtree(path)
