"""`expunge client` where things go otherwise than planned: forgotten clients, commands given twice,
files with surprises.
"""

from __future__ import annotations

import base64
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from expunge.client import ClientStore
from support.cli import ROWS_A, Federation, run, value
from support.client_files import live_slots


@pytest.fixture
def place(tmp_path: Path) -> Federation:
    return Federation.found(tmp_path)


def forgotten(place: Federation, name: str) -> None:
    run("server", "forget-client", name, "--yes", "--office", place.office)


def keys(folder: Path) -> int:
    with ClientStore.open(folder) as store:
        return len(live_slots(store)) - 1  # one makes tags


class TestAForgottenClient:
    def test_learns_of_it_and_erases_its_samples(self, place: Federation) -> None:
        folder = place.client("clinic-a", ROWS_A)
        forgotten(place, "clinic-a")
        told = run("client", "sync", "--dir", folder, code=1).stdout
        assert "clinic-a was forgotten by the operator" in told
        assert "3 samples still in this folder" in told
        assert "expunge client leave" in told
        assert value("client", "sync", "--dir", folder, code=1)["samples"] == 3
        assert "was forgotten by the operator" in run("client", "status", "--dir", folder).stdout
        status = value("client", "status", "--dir", folder)
        assert (status["gone"], status["live"], status["left"]) == (True, 3, False)
        gone = value("client", "forget", "--id", "a1", "--yes", "--dir", folder)
        assert (gone["count"], gone["pending"], gone["sync"], keys(folder)) == (1, False, None, 2)
        told_leave = value("client", "leave", "--yes", "--dir", folder)
        assert (told_leave["left"], told_leave["count"], keys(folder)) == (True, 2, 0)
        status = value("client", "status", "--dir", folder)
        assert (status["gone"], status["live"], status["deleting"], status["left"]) == (
            False,
            0,
            0,
            True,
        )
        assert value("client", "sync", "--dir", folder)["status"] == "gone"

    @pytest.mark.parametrize("command", [["forget", "--all"], ["leave"]])
    def test_erases_them_without_having_learnt_of_it_before(
        self, place: Federation, command: list[str]
    ) -> None:
        folder = place.client("clinic-a", ROWS_A)
        forgotten(place, "clinic-a")
        assert value("client", *command, "--yes", "--dir", folder)["count"] == 3
        assert keys(folder) == 0
        assert value("client", "status", "--dir", folder)["deleting"] == 0

    def test_adds_nothing(self, place: Federation) -> None:
        folder = place.client("clinic-a", ROWS_A)
        forgotten(place, "clinic-a")
        more = place.file("more.csv", "id,subject,label,x,y,z\nm1,p1,cat,1,2,3\n")
        assert "Enrol a new client" in run("client", "add", more, "--dir", folder, code=1).stderr
        late = place.file("late.csv", "id,subject,label,x,y,z\nm2,p1,cat,1,2,3\n")
        assert "Enrol a new client" in run("client", "add", late, "--dir", folder, code=1).stderr
        assert (
            value("client", "list", "--subject", "p1", "--dir", folder)["samples"][-1]["id"] == "m1"
        )


class TestAdding:
    def test_twice_while_pending_is_adding_once(self, place: Federation) -> None:
        folder, file = place.enrol("clinic-a"), place.file("a.csv", ROWS_A)
        run("client", "add", file, "--no-sync", "--dir", folder)
        other = place.file("other.csv", ROWS_A.replace("a1,p1,cat,1,2,3", "a1,p1,cat,1,2,4"))
        assert "in the store already" in run("client", "add", other, "--dir", folder, code=1).stderr
        other = place.file("other.csv", ROWS_A.replace("a1,p1", "a1,p9"))
        assert "in the store already" in run("client", "add", other, "--dir", folder, code=1).stderr
        again = run("client", "add", file, "--dir", folder)
        assert "3 samples already added and pending" in again.stderr
        assert place.samples() == 3
        assert "in the store already" in run("client", "add", file, "--dir", folder, code=1).stderr

    def test_integers_for_texts_are_refused_unless_they_are_said_to_be_indices(
        self, place: Federation
    ) -> None:
        folder = place.enrol("clinic-a")
        file = place.file("a.csv", "id,label,x,y,z\na1,1,1,2,3\n")
        assert "(--label-indices)" in run("client", "add", file, "--dir", folder, code=1).stderr
        assert value("client", "add", file, "--label-indices", "--dir", folder)["added"] == 1
        assert value("client", "status", "--dir", folder)["labels"] == {"dog": 1}
        assert (
            "the label is not in the spec"
            in run("client", "correct", "a1", "--label", "0", "--dir", folder, code=1).stderr
        )

    def test_what_is_left_out_or_made_up_is_said(self, place: Federation) -> None:
        folder = place.enrol("clinic-a")
        np.savez(
            place.path / "x.npz",
            features=np.eye(3),
            labels=["cat", "dog", "cat"],
            patients=["p1", "p2", "p3"],
        )
        told = run("client", "add", place.path / "x.npz", "--no-sync", "--dir", folder).stderr
        assert "ignored: 'patients'" in told
        assert "has no ids" in told
        assert "x.npz#0" in told
        assert "3 samples have no subject: erasure orders cannot find them" in told
        quiet = run("client", "add", place.file("a.csv", ROWS_A), "--no-sync", "--dir", folder)
        assert quiet.stderr == ""

    def test_a_file_without_samples_is_nothing_to_do(self, place: Federation) -> None:
        folder = place.enrol("clinic-a")
        file = place.file("none.csv", "id,subject,label,x,y,z\n")
        assert value("client", "add", file, "--dir", folder, code=6)["added"] == 0

    @pytest.mark.parametrize(
        ("row", "remedy"),
        [
            ("a1,p1,otter,1,2,3", "expunge server amend --add-label"),
            ("a1,p1,cat,1e9,2,3", "expunge init --grid 2,"),
            ("a1,p1,cat,nan,2,3", "column 'x' is nan"),
        ],
    )
    def test_remedies_are_commands(self, place: Federation, row: str, remedy: str) -> None:
        folder = place.enrol("clinic-a")
        file = place.file("a.csv", f"id,subject,label,x,y,z\n{row}\n")
        told = run("client", "add", file, "--dir", folder, code=1).stderr
        assert remedy in told
        assert "Grid(" not in told
        assert "spec." not in told


class TestLabelsThatAreNew:
    def test_one_that_the_client_has_not_heard_of_is_told_from_an_unknown_one(
        self, place: Federation
    ) -> None:
        folder = place.client("clinic-a", ROWS_A)
        added = place.file("b.csv", "id,subject,label,x,y,z\nb1,p4,otter,1,2,3\n")
        add = ("client", "add", added, "--dir", folder)
        correct = ("client", "correct", "a1", "--label", "otter", "--dir", folder)
        for changed in (add, correct):
            told = run(*changed, code=1).stderr
            assert "expunge server amend --add-label" in told
            assert "not known here yet" not in told
        run("server", "amend", "--add-label", "otter", "--yes", "--office", place.office)
        for changed in (add, correct):
            told = run(*changed, code=1).stderr.words
            assert "'otter' is not known here yet: run expunge client sync --dir" in told
            assert "amend --add-label" not in told
        run("client", "sync", "--dir", folder)
        run(*add)
        run(*correct)

    def test_where_the_server_is_not_asked_both_remedies_are_named(self, place: Federation) -> None:
        folder = place.client("clinic-a", ROWS_A)
        correct = ("client", "correct", "a1", "--label", "otter", "--dir", folder)
        for changed in ((*correct, "--no-sync"), (*correct, "--at", place.path / "nowhere")):
            told = run(*changed, code=1).stderr.words
            assert "expunge server amend --add-label" in told
            assert "not known here yet: run expunge client sync --dir" in told


def test_a_correction_from_a_damaged_file_is_refused(place: Federation) -> None:
    folder = place.client("clinic-a", ROWS_A)
    damaged = folder.parent / "damaged.npy"
    damaged.write_bytes(b"not an array")
    given = ("--label", "cat", "--feature", damaged, "--dir", folder)
    assert "not an .npy file" in run("client", "correct", "a1", *given, code=1).stderr


def test_a_correction_that_changes_nothing_makes_no_request(place: Federation) -> None:
    folder = place.client("clinic-a", ROWS_A)
    entries = value("server", "status", "--office", place.office)["log"]
    same = ("client", "correct", "a1", "--label", "cat", "--feature", "1,2,3", "--dir", folder)
    told = value(*same, code=6)
    assert told == {"corrected": None, "pending": False, "sync": None}
    assert "a1 has this value already; nothing was changed." in run(*same, code=6).stdout
    assert value("server", "status", "--office", place.office)["log"] == entries
    other = ("client", "correct", "a1", "--label", "dog", "--dir", folder)
    run(*other, "--no-sync")
    told = value(*other)  # so already, but not yet sent
    assert told["corrected"] is None
    assert [one["deleted"] for one in told["sync"]["receipts"]] == [1]


def test_missing_ids_can_be_passed_over(place: Federation) -> None:
    folder = place.client("clinic-a", ROWS_A)
    ids = place.file("ids.txt", "a1\na9\n")
    assert (
        "--ignore-missing"
        in run("client", "forget", "--ids-from", ids, "--yes", "--dir", folder, code=1).stderr
    )
    assert place.samples() == 3
    told = value(
        "client", "forget", "--ids-from", ids, "--ignore-missing", "--yes", "--dir", folder
    )
    assert told["ids"] == ["a1"]
    assert place.samples() == 2
    run("client", "forget", "--ids-from", ids, "--ignore-missing", "--yes", "--dir", folder, code=6)
    assert place.samples() == 2


def test_samples_are_listed(place: Federation) -> None:
    folder = place.enrol("clinic-a")
    assert value("client", "list", "--dir", folder, code=6)["samples"] == []
    run("client", "add", place.file("a.csv", ROWS_A), "--no-sync", "--dir", folder)
    found = value("client", "list", "--dir", folder)["samples"]
    assert [(one["id"], one["subject"], one["label"], one["state"]) for one in found] == [
        ("a1", "p1", "cat", "adding"),
        ("a2", "p1", "dog", "adding"),
        ("a3", "p2", "cat", "adding"),
    ]
    run("client", "sync", "--dir", folder)
    assert [
        one["state"]
        for one in value("client", "list", "--subject", "p2", "--dir", folder)["samples"]
    ] == ["live"]
    assert [
        one["id"] for one in value("client", "list", "--label", "dog", "--dir", folder)["samples"]
    ] == ["a2"]
    assert "a3" in run("client", "list", "--dir", folder).stdout
    run("client", "list", "--subject", "nobody", "--dir", folder, code=6)


def test_a_lost_vault_is_to_be_had_from_its_mirror(place: Federation) -> None:
    folder = place.enrol("clinic-a", "--mirror", place.path / "mirror")
    vault = folder / "client.vault"
    vault.write_bytes(vault.read_bytes()[:20])
    told = run("client", "status", "--dir", folder, code=1).stderr
    assert f"copy a whole one of them to {vault}" in told
    vault.unlink()
    assert "mirror" in run("client", "status", "--dir", folder, code=1).stderr
    vault.write_bytes((place.path / "mirror").read_bytes())
    run("client", "sync", "--dir", folder)


def test_a_mirror_that_is_away_is_told_and_stops_nobody(place: Federation) -> None:
    mirror = place.path / "mirror"
    folder = place.enrol("clinic-a", "--mirror", mirror)
    mirror.rename(place.path / "unmounted")
    told = run("client", "sync", "--dir", folder).stderr
    assert "is left out (No such file or directory)" in told
    assert "Put its disk back" in told
    (place.path / "unmounted").rename(mirror)
    assert "left out" not in run("client", "sync", "--dir", folder).stderr


def test_a_flipped_bit_in_a_vault_costs_nothing_and_is_told(place: Federation) -> None:
    folder = place.enrol("clinic-a")
    vault = folder / "client.vault"
    content = bytearray(vault.read_bytes())
    content[40] ^= 4
    vault.write_bytes(content)
    assert "was damaged and has been put right" in run("client", "sync", "--dir", folder).stderr
    assert "damaged" not in run("client", "sync", "--dir", folder).stderr


def test_a_damaged_token_is_said_to_be_damaged(place: Federation) -> None:
    token = value("server", "token", "clinic-a", "--office", place.office)["token"]
    prefix, encoded = token.split(".")
    content = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
    broken = content.replace(b'"ca":""', b'"ca":"-----BEGIN CERTIFICAT"')
    for other in (content[:-7], broken, content.replace(b'"role"', b'"rule"'), b"\xff" + content):
        text = f"{prefix}.{base64.urlsafe_b64encode(other).decode().rstrip('=')}"
        told = run("enroll", text, "--dir", place.path / "clinic-a", code=1).stderr
        assert "the enrolment token is damaged: copy it again, whole" in told
    run("enroll", token, "--dir", place.path / "clinic-a")


def test_the_package_is_a_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "expunge", "--version"], capture_output=True, text=True, check=True
    )
    assert "expunge" in done.stdout
