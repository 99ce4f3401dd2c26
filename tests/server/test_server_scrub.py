"""A scrub of a server's store finds what is damaged, and puts right what others tell."""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from expunge.errors import StoreBusyError
from expunge.server.http.metrics import Metrics
from expunge.server.maintenance import StoppedError
from expunge.server.scrub import ServerScrub, scrub_server
from expunge.storage.scrub import ScrubResult
from support import seeds
from support.federation import Federation


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    """A server with three clients, an order, a rotation, folded files and a journal; stopped."""
    federation = Federation(tmp_path_factory.mktemp("made") / "server")
    for name, kind in (("clinic", "rows"), ("lab", "gram"), ("ward", "rows")):
        client = federation.enrol(name)
        client.send(federation.draw(4), kind=kind)
        client.send(federation.draw(1), client.retained[:1], kind=kind)
    federation.operator.command("order", subject="somebody")
    federation.operator.command("rotate-key")
    federation.fold()
    for client in federation.clients.values():
        client.send(federation.draw(2))
    federation.close()
    return federation


@pytest.fixture
def federation(made: Federation, tmp_path: Path) -> Iterator[Federation]:
    twin = made.twin(tmp_path / "server")
    twin.service.close()
    yield twin
    shutil.rmtree(twin.path)


def change(federation: Federation, *statements: str) -> None:
    with closing(sqlite3.connect(federation.path / "server.db")) as database, database:
        for statement in statements:
            database.execute(statement)


def scrubbed(federation: Federation, *, repair: bool = False) -> ScrubResult:
    return scrub_server(federation.path, repair=repair)


def check_whole(federation: Federation) -> None:
    """It opens, is right, and nothing is found."""
    assert scrubbed(federation).findings == []
    federation.service = federation.opened()
    federation.check()
    federation.service.close()


def test_a_whole_server_has_nothing_to_find(federation: Federation) -> None:
    seen: list[str] = []
    result = scrub_server(federation.path, progress=lambda what, *_: seen.append(what))
    assert (result.findings, result.is_whole) == ([], True)
    assert {"log", "shares", "receipts", "commitments", "orders", "mark"} <= set(result.read)
    assert result.read["commitments"] == sum(
        len(client.retained) for client in federation.clients.values()
    )
    assert result.read["shares"] == 4
    assert "log" in seen
    check_whole(federation)


def test_a_running_server_is_left_alone(federation: Federation) -> None:
    federation.service = federation.opened()
    with pytest.raises(StoreBusyError):
        scrubbed(federation)
    federation.service.close()


def flipped(federation: Federation, table: str, column: str, where: str, place: int) -> None:
    with closing(sqlite3.connect(federation.path / "server.db")) as database, database:
        query = f"SELECT {column} FROM {table} WHERE {where}"  # noqa: S608
        ((value,),) = database.execute(query).fetchall()
        data = bytearray(value)
        place %= 8 * len(data)
        data[place // 8] ^= 1 << place % 8
        database.execute(
            f"UPDATE {table} SET {column} = ? WHERE {where}",  # noqa: S608
            (bytes(data),),
        )


@pytest.mark.parametrize(
    ("table", "column", "where"),
    [
        ("log", "entry", "position = 3"),
        ("log", "entry", "position = 9"),
        ("nodes", "hash", "level = 0 AND position = 4"),
        ("nodes", "hash", "level = 1 AND position = 2"),
        ("nodes", "hash", "level = 2 AND position = 0"),
    ],
)
def test_entries_and_hashes_of_the_log_are_put_right(
    federation: Federation, table: str, column: str, where: str
) -> None:
    before = (federation.path / "server.db").read_bytes()
    for place in seeds.chance(where).sample(range(8 * 32), 5):
        flipped(federation, table, column, where, place)
        findings = scrubbed(federation).findings
        assert "log" in {finding.what for finding in findings}
        assert not any(finding.repaired for finding in findings)
        result = scrubbed(federation, repair=True)
        assert result.is_whole, result.findings
        check_whole(federation)
        (federation.path / "server.db").write_bytes(before)


def _damage_file(federation: Federation, table: str) -> None:
    with closing(sqlite3.connect(federation.path / "server.db")) as database:
        query = f"SELECT file FROM {table} ORDER BY 1"  # noqa: S608 - our own words
        name = database.execute(query).fetchall()[0][0]
    path = federation.path / "sealed" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize("table", ["ledger", "subledgers"])
def test_one_file_that_is_lost_is_made_anew_from_the_others(
    federation: Federation, table: str
) -> None:
    _damage_file(federation, table)
    (finding,) = [each for each in scrubbed(federation).findings if each.what == "ledger"]
    assert "(--repair)" in finding.remedy
    result = scrubbed(federation, repair=True)
    assert result.is_whole, result.findings
    check_whole(federation)


def test_two_that_are_lost_are_not_made_up(federation: Federation) -> None:
    for table in ("ledger", "subledgers"):
        _damage_file(federation, table)
    result = scrubbed(federation, repair=True)
    assert not result.is_whole
    assert any(
        "cannot be opened, nor the file of the ledger" in each.text for each in result.findings
    )


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("DELETE FROM commitments WHERE rowid_of = 1", "commitments"),
        ("UPDATE orders SET sealed = zeroblob(80)", "orders"),
        ("UPDATE answers SET answer = CAST(replace(answer, 'a', 'b') AS BLOB)", "receipts"),
        ("UPDATE journal SET sealed = zeroblob(90) WHERE client = 'lab'", "ledger"),
        ("UPDATE actors SET sequence = 'one' WHERE name = 'lab'", "database"),
    ],
)
def test_what_cannot_be_put_right_is_named_with_what_to_do(
    federation: Federation, statement: str, what: str
) -> None:
    if what == "commitments":
        statement = (
            "DELETE FROM commitments WHERE commitment = (SELECT min(commitment) FROM commitments)"
        )
    change(federation, statement)
    result = scrubbed(federation)
    assert what in {finding.what for finding in result.findings}
    assert not result.is_whole
    assert all(finding.remedy for finding in result.findings)


def test_a_damaged_mark_is_made_anew(federation: Federation) -> None:
    (federation.path / "server.mark").write_bytes(bytes(1024))
    assert [each.what for each in scrubbed(federation).findings] == ["mark"]
    assert [each.repaired for each in scrubbed(federation, repair=True).findings] == [True]
    check_whole(federation)


def test_a_lost_log_is_not_repaired_away(federation: Federation) -> None:
    change(federation, "DELETE FROM log WHERE position = (SELECT max(position) FROM log)")
    for repair in (False, True, True):
        texts = [each.text for each in scrubbed(federation, repair=repair).findings]
        assert any("the rest is lost" in text for text in texts)


def test_a_server_at_work_is_scrubbed_beside_its_requests(federation: Federation) -> None:
    federation.service = service = federation.opened()
    client = federation.clients["clinic"]

    def progress(what: str, *_: object) -> None:
        client.send(federation.draw(1), client.retained[:1])  # requests do not wait

    scrub = ServerScrub(service.state.folder, progress=progress, still=service.upkeep.working)
    assert scrub.run().findings == []
    federation.check()
    service.close()


# -- on a schedule ---------------------------------------------------------------------------------


def test_a_running_server_scrubs_itself_and_says_what_it_found(federation: Federation) -> None:
    reports: list[str] = []
    metrics = lambda: Metrics(federation.service, lambda: 0.0).text().decode()  # noqa: E731
    federation.service = service = federation.opened(report=lambda text, _: reports.append(text))
    assert "expunge_scrub_damaged -1.0" in metrics()
    assert (service.upkeep.scrub(), reports) == (0, ["scrub finished: nothing damaged"])
    assert "expunge_scrub_damaged 0.0" in metrics()
    assert "expunge_seconds_since_scrub" in metrics()
    change(federation, "UPDATE nodes SET hash = zeroblob(32) WHERE level = 1 AND position = 1")
    assert service.upkeep.scrub() == 1
    assert "hashes of the log are not what they were" in reports[-2]
    assert "expunge_scrub_damaged 1.0" in metrics()
    service.close()


def test_scrubs_come_again_and_again_until_the_server_stops(federation: Federation) -> None:
    federation.settings, federation.upkeep = replace(federation.settings, scrub_every=0.05), True
    reports: list[str] = []
    federation.service = service = federation.opened(report=lambda text, _: reports.append(text))
    deadline = time.monotonic() + 20.0
    while len(reports) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    service.close()
    count = len(reports)
    assert set(reports) == {"scrub finished: nothing damaged"}
    assert count >= 3
    time.sleep(0.2)
    assert len(reports) == count


def test_a_scrub_does_not_keep_a_server_from_stopping(federation: Federation) -> None:
    federation.service = service = federation.opened()
    service.upkeep.stop()
    with pytest.raises(StoppedError):
        service.upkeep.scrub()
    service.close()
