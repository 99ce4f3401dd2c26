"""Bars: what an agent has sent and recomputed, shown where somebody is watching, and nowhere
else.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from expunge.cli._agent import RECOMPUTING, SENDING, recomputed, with_progress
from expunge.cli._connect import carrier_to
from expunge.client import Agent, ClientStore, Selection
from expunge.errors import CarrierError
from support.cli import ROWS_A, Federation, run, value

WATCHED = {
    "FORCE_COLOR": "1",
    "NO_COLOR": None,
    "TERM": "xterm",
    "COLUMNS": "80",
}  # as on a terminal
HEADER = ROWS_A.splitlines()[0]
NINE = "\n".join([HEADER, *(f"s{number},p{number},cat,{number},1,2" for number in range(9))]) + "\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A client with nine samples to send, four at a time."""
    place = Federation.found(tmp_path)
    folder = place.enrol("clinic-a")
    run("client", "add", place.file("nine.csv", NINE), "--no-sync", "--dir", folder)
    with ClientStore.open(folder) as store:
        store.remember({"largest_request": "1000"})
    return folder


def sent(store: ClientStore) -> list[tuple[str, int, int | None]]:
    """What is shown while an agent syncs."""
    told: list[tuple[str, int, int | None]] = []

    def show(what: str, done: int, total: int | None) -> None:
        told.append((what, done, total))

    with carrier_to(store.address) as carrier:
        Agent(
            store, with_progress(store, carrier, show), progress=recomputed(store, show), attempts=1
        ).sync()
    return told


def test_what_is_sent_is_counted_request_by_request(folder: Path) -> None:
    with ClientStore.open(folder) as store:
        told = sent(store)
        assert told == [(SENDING, done, 9) for done in (0, 4, 4, 8, 8, 9)]
        assert sent(store) == []
        store.forget(Selection(ids=["s1", "s2"]))
        assert sent(store) == [(SENDING, 0, 2), (SENDING, 2, 2)]


def test_a_request_without_an_answer_is_not_counted_as_sent(folder: Path) -> None:
    class Lost:
        def request(self, _: bytes) -> bytes:
            raise CarrierError("no answer came")

    told: list[int] = []
    with ClientStore.open(folder) as store:
        store.outbox.compose()
        way = with_progress(store, Lost(), lambda _, done, __: told.append(done))  # type: ignore[arg-type]
        for _ in range(2):
            with pytest.raises(CarrierError):
                way.request(b"")
    assert told == [0, 0]


def test_an_audit_counts_the_samples_that_are_recomputed(folder: Path) -> None:
    run("client", "sync", "--dir", folder)
    run("audit", "--office", folder.parent / "federation", code=7)
    with ClientStore.open(folder) as store:
        assert sent(store) == [(RECOMPUTING, 9, 9)]


def plain(shown: str) -> str:
    return " ".join(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown).split())


def test_bars_are_for_people_who_watch(folder: Path) -> None:
    shown = run("client", "sync", "--dir", folder, env=WATCHED)
    assert re.search(r"Sending samples .* 9 of 9", plain(shown.stderr))
    run("audit", "--office", folder.parent / "federation", code=7)
    assert re.search(
        r"Recomputing for the audit .* 9 of 9",
        plain(run("client", "sync", "--dir", folder, env=WATCHED).stderr),
    )
    audited = run(
        "audit", "--client-dir", folder, "--office", folder.parent / "federation", env=WATCHED
    )
    assert "Recomputing for the audit" in plain(audited.stderr)


def test_programs_and_files_see_none(folder: Path) -> None:
    assert run("client", "sync", "--json", "--dir", folder, env=WATCHED).stderr == ""
    run("audit", "--office", folder.parent / "federation", code=7)
    assert run("client", "sync", "--dir", folder).stderr == ""
    assert value("client", "status", "--dir", folder)["live"] == 9
