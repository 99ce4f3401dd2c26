"""`expunge client`: add, forget, correct, sync, status, leave, receipts; each with its exit codes
and its JSON.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from expunge import Spec, Statistics, solve
from expunge.cli._output import typed
from expunge.client import ClientStore, enrol
from expunge.transport.local import LocalCarrier
from expunge.wire.token import Token
from support import seeds
from support.cli import ROWS_A, ROWS_B, Federation, features_of, run, set_waits, value

SPEC = Spec(dim=3, labels=("cat", "dog"))


@pytest.fixture
def place(tmp_path: Path) -> Federation:
    return Federation.found(tmp_path)


def retrained(*texts: str, without: tuple[str, ...] = ()) -> str:
    rows = [
        row for text in texts for row in text.splitlines()[1:] if row.split(",")[0] not in without
    ]
    return solve(Statistics.of(SPEC, *features_of("\n".join(["header", *rows])))).digest


def test_the_head_is_that_of_retraining_after_every_command(place: Federation) -> None:
    a = place.client("clinic-a", ROWS_A)
    b = place.client("clinic-b", ROWS_B)
    assert value("client", "sync", "--dir", a)["head"] == retrained(ROWS_A, ROWS_B)
    gone = value("client", "forget", "--subject", "p1", "--yes", "--dir", a)
    assert (gone["count"], gone["ids"], gone["pending"]) == (2, ["a1", "a2"], False)
    assert gone["sync"]["head"] == retrained(ROWS_A, ROWS_B, without=("a1", "a2"))
    corrected = value(
        "client", "correct", "b2", "--label", "cat", "--feature", "1,2,0.5", "--dir", b
    )
    head = corrected["sync"]["head"]
    assert head == retrained(
        ROWS_A, ROWS_B.replace("b2,p3,dog,2,0,0.25", "b2,p3,cat,1,2,0.5"), without=("a1", "a2")
    )
    receipt = corrected["sync"]["receipts"][0]
    assert (receipt["added"], receipt["deleted"]) == (1, 1)
    assert value("client", "status", "--dir", b)["head"] == head


def test_a_dry_run_and_a_no_change_nothing(place: Federation) -> None:
    folder = place.client("clinic-a", ROWS_A)
    before = value("client", "status", "--dir", folder)
    shown = run("client", "forget", "--label", "cat", "--dry-run", "--dir", folder).stdout
    assert "This would be forgotten; nothing was changed" in shown
    assert "a1, a3" in shown
    assert value("client", "forget", "--all", "--dry-run", "--dir", folder)["count"] == 3
    refused = run("client", "forget", "--all", "--dir", folder, code=1, given="n\n")
    assert "Forget 3 samples? This cannot be undone" in refused.stderr
    assert "not confirmed: nothing was changed" in refused.stderr
    assert (
        "give --yes" in run("client", "forget", "--all", "--dir", folder, code=1, given="").stderr
    )
    assert (
        "--yes" in value("client", "forget", "--all", "--dir", folder, code=1)["error"]["message"]
    )
    assert value("client", "status", "--dir", folder) == before
    assert place.samples() == 3
    assert run("client", "forget", "--all", "--dir", folder, given="y\n").exit_code == 0
    assert place.samples() == 0


@pytest.mark.parametrize(
    ("conditions", "going"),
    [
        (["--id", "a1", "--id", "a3"], ["a1", "a3"]),
        (["--subject", "p1"], ["a1", "a2"]),
        (["--label", "cat"], ["a1", "a3"]),
        (["--label", "cat", "--subject", "p1"], ["a1"]),
        (["--until", "2000-01-01"], []),
        (["--since", "2000-01-01T00:00:00Z"], ["a1", "a2", "a3"]),
        (["--all"], ["a1", "a2", "a3"]),
        (["--subject", "nobody"], []),
    ],
)
def test_what_is_selected(place: Federation, conditions: list[str], going: list[str]) -> None:
    folder = place.enrol("clinic-a")
    run("client", "add", place.file("a.csv", ROWS_A), "--no-sync", "--dir", folder)
    told = value(
        "client", "forget", *conditions, "--dry-run", "--dir", folder, code=0 if going else 6
    )
    assert told["ids"] == going
    assert told["dry_run"] is True


def test_ids_from_a_file_and_a_subject_from_standard_input(place: Federation) -> None:
    folder = place.enrol("clinic-a")
    run("client", "add", place.file("a.csv", ROWS_A), "--no-sync", "--dir", folder)
    ids = place.file("ids.txt", "a1\na2\n")
    assert value("client", "forget", "--ids-from", ids, "--dry-run", "--dir", folder)["ids"] == [
        "a1",
        "a2",
    ]
    assert value("client", "forget", "--subject", "-", "--dry-run", "--dir", folder, given="p2\n")[
        "ids"
    ] == ["a3"]


def test_mistakes_are_named_with_their_remedy(place: Federation) -> None:
    folder = place.client("clinic-a", ROWS_A)
    assert (
        "the id is not in the store"
        in run("client", "forget", "--id", "a9", "--yes", "--dir", folder, code=1).stderr
    )
    assert "selection is empty" in run("client", "forget", "--yes", "--dir", folder, code=1).stderr
    assert (
        "must be a time in UTC"
        in run("client", "forget", "--since", "soon", "--dir", folder, code=1).stderr
    )
    assert "there is no file" in run("client", "add", "nothing.csv", "--dir", folder, code=1).stderr
    assert (
        "rows 0, 1, 2 (counted from 0)"
        in run("client", "add", place.file("again.csv", ROWS_A), "--dir", folder, code=1).stderr
    )
    assert (
        "is not a client's folder" in run("client", "status", "--dir", place.folder, code=1).stderr
    )
    assert (
        "give what is to be corrected"
        in run("client", "correct", "a1", "--dir", folder, code=2).stderr
    )
    assert "--dir" in run("client", "status", code=2).stderr
    assert (
        value("client", "forget", "--id", "a9", "--yes", "--dir", folder, code=1)["error"]["kind"]
        == "unknown-sample"
    )
    assert value("client", "correct", "a1", "--dir", folder, code=2)["error"]["kind"] == "usage"
    assert place.samples() == 3


def test_what_is_not_synced_is_pending_until_the_next_sync(place: Federation) -> None:
    folder = place.enrol("clinic-a")
    told = value("client", "add", place.file("a.csv", ROWS_A), "--no-sync", "--dir", folder)
    assert (told["added"], told["pending"], told["sync"]) == (3, True, None)
    assert place.samples() == 0
    assert (
        value("client", "forget", "--id", "a3", "--yes", "--dir", folder)["sync"] is None
    )  # it never left home
    synced = value("client", "sync", "--dir", folder)
    assert [one["added"] for one in synced["receipts"]] == [2]
    assert (synced["status"], synced["new_head"]) == ("active", True)
    assert value("client", "sync", "--dir", folder)["receipts"] == []
    assert place.samples() == 2


def test_arrays_and_tables_of_all_kinds_can_be_added(place: Federation) -> None:
    folder = place.enrol("clinic-a")
    features = np.arange(12.0).reshape(4, 3) / 4
    np.savez(
        place.path / "one.npz",
        features=features,
        labels=np.array([0, 1, 0, 1]),
        ids=np.array(["n1", "n2", "n3", "n4"]),
    )
    np.save(place.path / "two.npy", features)
    np.save(place.path / "labels.npy", np.array([0, 1, 1, 1]))
    np.save(place.path / "three.npy", np.hstack([features, [[0], [1], [0], [0]]]))
    options = ["--label-indices", "--no-sync", "--dir", folder]
    run("client", "add", place.path / "one.npz", *options)
    run("client", "add", place.path / "two.npy", "--labels", place.path / "labels.npy", *options)
    run("client", "add", place.path / "three.npy", "--last-columns", "1", *options)
    table = place.file("four.csv", "name,who,kind,u,v,w\nf1,p9,dog,1,2,3\n")
    columns = ["--id-column", "name", "--subject-column", "who", "--label-column", "kind"]
    run("client", "add", table, *columns, "--dir", folder)
    status = value("client", "status", "--dir", folder)
    assert status["live"] == 13
    assert status["labels"] == {"cat": 6, "dog": 7}
    assert value("client", "forget", "--subject", "p9", "--dry-run", "--dir", folder)["ids"] == [
        "f1"
    ]


def test_a_client_can_leave_and_keeps_the_proof(place: Federation) -> None:
    a, b = place.client("clinic-a", ROWS_A), place.client("clinic-b", ROWS_B)
    assert "not confirmed" in run("client", "leave", "--dir", a, code=1, given="n\n").stderr
    told = value("client", "leave", "--yes", "--dir", a)
    assert (told["left"], told["count"]) == (True, 3)
    assert value("client", "sync", "--dir", b)["head"] == retrained(ROWS_B)
    receipts = value("client", "receipts", "--dir", a)["receipts"]
    assert receipts[-1]["leave"] is True
    assert "has left the federation" in run("client", "status", "--dir", a).stdout
    assert value("client", "sync", "--dir", a)["status"] == "gone"


def test_receipts_are_listed_and_written(place: Federation) -> None:
    folder = place.enrol("clinic-a")
    assert value("client", "receipts", "--dir", folder, code=6)["receipts"] == []
    run("client", "add", place.file("a.csv", ROWS_A), "--dir", folder)
    run("client", "forget", "--id", "a1", "--yes", "--dir", folder)
    told = value("client", "receipts", "-o", place.path / "receipts", "--dir", folder)
    assert [one["deleted"] for one in told["receipts"]] == [0, 1]
    for file in told["files"]:
        run("verify", file, "--key", place.key)
    run("client", "receipts", 2, "-o", place.path / "two.json", "--dir", folder)
    assert (place.path / "two.json").read_bytes() == Path(told["files"][1]).read_bytes()
    run("client", "receipts", "last", "-o", place.path / "last.json", "--dir", folder)
    assert (place.path / "last.json").read_bytes() == (place.path / "two.json").read_bytes()
    assert (
        "there is no receipt '7'; there are 2, 1"
        in run("client", "receipts", 7, "--dir", folder, code=1).stderr
    )


def test_a_store_in_use_is_waited_for_and_then_said_to_be_busy(
    place: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = place.client("clinic-a", ROWS_A)
    set_waits(monkeypatch, patience=0.1)
    with ClientStore.open(folder):
        assert (
            "is in use by process"
            in run("client", "leave", "--yes", "--dir", folder, code=5).stderr
        )
        assert value("client", "sync", "--dir", folder, code=5)["error"]["kind"] == "store-busy"


def test_without_a_server_everything_stays_pending_and_nothing_is_lost(
    place: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_waits(monkeypatch, attempts=1)
    folder = place.client("clinic-a", ROWS_A)
    refused = run(
        "client",
        "forget",
        "--id",
        "a1",
        "--yes",
        "--dir",
        folder,
        "--at",
        "http://127.0.0.1:9",
        code=4,
    )
    assert (
        "The change is safe in the client's folder, pending: expunge client sync" in refused.stderr
    )
    assert value("client", "status", "--dir", folder)["deleting"] == 1
    again = value("client", "forget", "--id", "a1", "--yes", "--dir", folder)
    assert (again["count"], again["sync"]["receipts"][0]["deleted"]) == (0, 1)
    run("client", "forget", "--id", "a1", "--yes", "--dir", folder, code=1)
    assert (
        "Nothing is lost"
        in run("client", "sync", "--dir", folder, "--at", "http://127.0.0.1:9", code=4).stderr
    )


def test_remedies_say_where_the_server_is_if_the_folder_does_not_remember_it(
    place: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_waits(monkeypatch, attempts=1)
    folder = place.path / "clinic-a"
    run("server", "token", "clinic-a", "-o", place.path / "token", "--office", place.office)
    token = replace(Token.from_text((place.path / "token").read_text().strip()), urls=())
    carrier = LocalCarrier.open(place.folder / "server")
    enrol(folder, token, carrier).close()
    carrier.close()
    rows, nowhere = place.file("a.csv", ROWS_A), "http://127.0.0.1:9"
    sync = f"expunge client sync --dir {typed(folder)} --at "
    assert sync + "URL" in run("head", "--dir", folder, code=1).stderr
    assert sync + "URL" in run("predict", rows, "--dir", folder, code=1).stderr
    assert sync + "URL" in run("client", "status", "--dir", folder).stdout
    refused = run("client", "add", rows, "--dir", folder, code=1).stderr
    assert "it is not known where the server is: give --at URL" in refused
    assert sync + "URL" in refused
    refused = run("client", "add", rows, "--dir", folder, "--at", nowhere, code=4).stderr
    assert sync + nowhere in refused
    assert value("client", "sync", "--dir", folder, "--at", place.folder)["receipts"]
    # An address that is remembered need not be typed again, nor one that is none.
    other = place.client("clinic-b", ROWS_B)
    sync = f"expunge client sync --dir {typed(other)}"
    forget = ("client", "forget", "--id", "b1", "--yes", "--dir", other)
    shown = run(*forget, "--no-sync", "--at", place.folder).stdout
    assert sync in shown
    assert "--at" not in shown
    refused = run(*forget, "--at", place.path / "none", code=1).stderr
    assert f"{sync} sends it" in refused


def test_killed_at_any_moment_a_forget_is_finished_by_the_same_command(place: Federation) -> None:
    folder = place.client("clinic-a", ROWS_A)
    command = [
        sys.executable,
        "-c",
        "from expunge.cli.main import main; main()",
        "client",
        "forget",
        "--subject",
        "p1",
        "--yes",
    ]
    delay = seeds.chance().uniform(0.5, 1.0)  # about when it writes
    process = subprocess.Popen(  # noqa: S603 - our own program
        [*command, "--dir", str(folder)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    time.sleep(delay)
    process.kill()
    process.wait()
    again = run("client", "forget", "--subject", "p1", "--yes", "--dir", folder, code=None)
    assert again.exit_code in (0, 6), f"killed after {delay} s: {again.output}"
    assert place.samples() == 1, f"killed after {delay} s"
    status = value("client", "status", "--dir", folder)
    assert (status["live"], status["deleting"], status["adding"]) == (1, 0, 0), (
        f"killed after {delay} s"
    )


def test_files_with_other_columns_are_refused_by_name(place: Federation, tmp_path: Path) -> None:
    """Columns in another order were taken as they came, receipted, and in the head."""
    folder = place.client("clinic-a", ROWS_A)
    before = value("client", "status", "--dir", folder)
    file = tmp_path / "more.csv"
    row = "n1,p9,cat,5,6,7\n"
    for header, named in (
        ("id,subject,label,y,x,z", "another order .*: 0 is column 'y', and was column 'x'"),
        ("id,subject,label,x,y,u", "lacks column 'z', and the first table had no column 'u'"),
    ):
        file.write_text(f"{header}\n{row}")
        for arguments in (("client", "add", file), ("predict", file)):
            refusal = value(*arguments, "--dir", folder, code=1)["error"]
            assert refusal["kind"] == "shape"
            assert re.search(named, refusal["message"])
            assert "--feature-column" in refusal["message"]
            assert str(file) in refusal["message"]
        assert value("client", "status", "--dir", folder) == before
    file.write_text(f"id,subject,label,y,x,z\n{row}")
    order = [item for name in "xyz" for item in ("--feature-column", name)]
    added = value("client", "add", file, *order, "--dir", folder)
    more = "header\nn1,p9,cat,6,5,7"
    assert (
        added["sync"]["head"]
        == solve(sum(Statistics.of(SPEC, *features_of(text)) for text in (ROWS_A, more))).digest
    )
    assert len(value("predict", file, *order, "--dir", folder)["predictions"]) == 1
