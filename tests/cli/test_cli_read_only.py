"""Commands that only look: beside a process that works on the store, with what they print working
as it stands.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from threading import Timer

import pytest

from expunge.client import ClientStore
from expunge.errors import ShreddedError
from support.cli import ROWS_A, ROWS_B, Federation, run, set_waits, value

LABEL = "another process is writing to this store"
HOLDING = """
import sys
from pathlib import Path
from expunge.client import ClientStore
with ClientStore.open(Path(sys.argv[1])) as store:
    def pause(done):
        print(done, flush=True)
        sys.stdin.readline()
    store.add(["new"], [[1.0, 1.0, 1.0]], ["cat"], now=0, progress=pause)
"""


@pytest.fixture
def place(tmp_path: Path) -> Federation:
    return Federation.found(tmp_path / "my files")


def test_status_while_another_process_adds(place: Federation) -> None:
    folder = place.client("clinic-a", ROWS_A)
    before = value("client", "status", "--dir", folder)
    assert before["busy"] is False
    with subprocess.Popen(  # noqa: S603 - our own program
        [sys.executable, "-c", HOLDING, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdin is not None
        writer.stdout.readline()  # it is in the middle of its transaction
        assert value("client", "status", "--dir", folder) == before | {"busy": True}
        shown = run("client", "status", "--dir", folder)
        assert LABEL in shown.stderr
        assert "Client clinic-a is active" in shown.stdout
        writer.stdin.write("\n")
        writer.stdin.flush()
    assert writer.returncode == 0
    assert value("client", "status", "--dir", folder) == before | {
        "adding": 1,
        "labels": {"cat": 3, "dog": 1},
    }


def test_every_command_that_only_looks_works_beside_another_process(
    place: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_waits(monkeypatch, moment=0.0)
    folder = place.client("clinic-a", ROWS_A)
    commands = [
        ["client", "status", "--dir", folder],
        ["client", "list", "--dir", folder],
        ["client", "list", "--subject", "p1", "--dir", folder],
        ["client", "receipts", "--dir", folder],
        ["client", "export", "--all", "--dry-run", "--dir", folder],
        ["head", "--dir", folder],
        ["predict", place.file("b.csv", ROWS_B), "--dir", folder],
        ["key", folder],
    ]
    alone = [value(*command) for command in commands]
    with ClientStore.open(folder):
        beside = [value(*command) for command in commands]
        for command in commands:
            assert LABEL in run(*command).stderr
    assert [one | {"busy": True} if "busy" in one else one for one in alone] == beside


def test_a_command_that_is_soon_done_is_waited_for(place: Federation) -> None:
    folder = place.client("clinic-a", ROWS_A)
    store = ClientStore.open(folder)
    ending = Timer(0.1, store.close)
    ending.start()
    shown = run("client", "status", "--dir", folder)
    ending.join()
    assert shown.stderr == ""


def test_what_goes_while_one_looks_makes_one_look_again(
    place: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_waits(monkeypatch, moment=0.0)
    folder = place.client("clinic-a", ROWS_A)
    real, looks = ClientStore.listed, []

    def listed(store: ClientStore, *arguments: object) -> object:
        looks.append(store)
        if len(looks) < 3:
            raise ShreddedError("slot 1 is empty")
        return real(store, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(ClientStore, "listed", listed)
    with ClientStore.open(folder):
        assert len(value("client", "list", "--dir", folder)["samples"]) == 3
        looks.clear()
        set_waits(monkeypatch, looks=2)
        assert (
            "changes faster than it can be read"
            in run("client", "list", "--dir", folder, code=5).stderr
        )


# -- commands that are printed ---------------------------------------------------------------------


def printed(shown: str) -> list[list[str]]:
    """The commands that a command says to type next, as a shell would take them apart."""
    lines = [line.strip() for line in shown.splitlines() if line.startswith("  expunge ")]
    assert lines
    return [shlex.split(line)[1:] for line in lines]


@pytest.mark.parametrize("below", [True, False])
def test_the_printed_commands_work_when_pasted(
    place: Federation, monkeypatch: pytest.MonkeyPatch, below: bool
) -> None:
    folder = place.client("clinic-a", ROWS_A)
    other = place.path.parent / "elsewhere"
    other.mkdir()
    monkeypatch.chdir(place.path if below else other)
    features = place.file("more rows.csv", ROWS_B)
    for command in (
        ["client", "receipts", "-o", "all receipts", "--dir", folder],
        ["client", "receipts", 1, "-o", "a receipt.json", "--dir", folder],
        ["head", "-o", "a head", "--dir", folder],
        ["head", "-o", "its head", "--office", place.office],
    ):
        for next_one in printed(run(*command).stdout):
            run(*(features if part == "FILE" else part for part in next_one))


def test_a_receipt_of_a_server_that_was_lost_is_verified_by_the_clients_folder_too(
    place: Federation,
) -> None:
    folder, receipt = place.client("clinic-a", ROWS_A), place.path / "old.json"
    shutil.rmtree(place.folder)
    run("audit", "--rebuild", place.path / "new", "--client-dir", folder)
    for number in (1, 2):
        (command,) = printed(
            run("client", "receipts", number, "-o", receipt, "--dir", folder).stdout
        )
        assert value(*command)["holds"] is True
    stranger = Federation.found(place.path / "stranger").enrol("clinic-b")
    assert "failed verification" in run("verify", receipt, "--trust", stranger, code=3).stderr


def test_a_published_head_is_trusted_by_a_key_or_by_a_folder_that_knows_it(
    place: Federation,
) -> None:
    folder, rows = place.client("clinic-a", ROWS_A), place.file("b.csv", ROWS_B)
    head = place.path / "head.expunge"
    run("head", "-o", head, "--dir", folder)
    by_key = value("predict", rows, "--head", head, "--key", place.key)
    assert value("predict", rows, "--head", head, "--trust", folder) == by_key
    assert value("predict", rows, "--head", head, "--trust", place.office) == by_key
    assert (
        "or a folder that knows it (--trust)" in run("predict", rows, "--head", head, code=1).stderr
    )
    assert (
        "give either --key"
        in run(
            "predict", rows, "--head", head, "--key", place.key, "--trust", folder, code=2
        ).stderr
    )
