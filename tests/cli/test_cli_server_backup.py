"""Keys, backups and restored servers: what an operator finds in the folder afterwards, and what is
said about it.
"""

from __future__ import annotations

import json
import shutil
import stat
from pathlib import Path

import pytest

from expunge.crypto import PublicKey
from expunge.federation.layout import Layout
from expunge.server.service import Service
from expunge.storage.files import FolderLock
from expunge.wire.token import Token
from support.cli import ROWS_A, ROWS_B, Federation, run, set_waits, value
from support.printed import WIDE


@pytest.fixture
def place(tmp_path: Path) -> Federation:
    return Federation.found(tmp_path)


# -- rotations -------------------------------------------------------------------------------------


def test_each_rotation_is_written_beside_the_public_key_which_is_the_newest(
    place: Federation,
) -> None:
    folder, pinned = (
        place.client("clinic-a", ROWS_A),
        place.file("pinned.pub", place.key.read_text()),
    )
    shown = run("server", "rotate-key", "--yes", "--office", place.office).stdout
    assert str(place.folder / "server" / "server.key") in shown
    told = value("server", "rotate-key", "--yes", "--office", place.office)
    assert told["file"] == str(place.folder / "rotation-2.json")
    assert PublicKey.from_pem(place.key.read_bytes()).text == told["key"]
    receipt = place.path / "receipt.json"
    run("client", "forget", "--id", "a1", "--yes", "--dir", folder)
    run("client", "receipts", 2, "-o", receipt, "--dir", folder)
    steps = [
        "--rotation",
        place.folder / "rotation-1.json",
        "--rotation",
        place.folder / "rotation-2.json",
    ]
    run("verify", receipt, "--key", pinned, *steps)
    run("verify", receipt, "--key", pinned, *steps[:2], code=3)
    run("verify", receipt, "--key", place.key)


def test_the_folder_of_a_running_server_knows_its_rotations(place: Federation) -> None:
    folder, receipt = place.client("clinic-a", ROWS_A), place.path / "receipt.json"
    run("client", "receipts", 1, "-o", receipt, "--dir", folder)
    run("server", "rotate-key", "--yes", "--office", place.office)
    service = Service.open(place.folder / "server")
    try:
        run("verify", receipt, "--trust", place.folder)
    finally:
        service.close()


# -- restored servers ------------------------------------------------------------------------------


def served(tmp_path: Path) -> Federation:
    options = (
        "--dim",
        3,
        "--labels",
        "cat,dog",
        "--host",
        "a.example.org",
        "--host",
        "::1",
        "--port",
        9000,
    )
    place = Federation.found(tmp_path, *options)
    run("server", "backup", "monday", "--office", place.office)
    return place


def test_a_restored_folder_keeps_addresses_and_certificates_of_the_old_one(tmp_path: Path) -> None:
    place, new = served(tmp_path), tmp_path / "new"
    key = place.folder / "server" / "server.key"
    told = value(
        "server", "restore", new, "--backup", "monday", "--key", key, "--from", place.folder
    )
    assert told["urls"] == ["https://a.example.org:9000", "https://[::1]:9000"]
    assert (told["new_authority"], Layout.at(new).urls) == (False, tuple(told["urls"]))
    for name in ("ca.pem", "ca.key", "tls.pem", "tls.key"):
        assert (new / "tls" / name).read_bytes() == (place.folder / "tls" / name).read_bytes()
    assert [
        stat.S_IMODE(path.stat().st_mode) for path in (new, new / "tls", new / "tls" / "tls.key")
    ] == [0o700, 0o700, 0o600]
    assert (new / "server.pub").read_bytes() == place.key.read_bytes()


def test_without_the_old_folder_hosts_are_given_and_certificates_brought_or_made(
    tmp_path: Path,
) -> None:
    place = served(tmp_path)
    backup, key = (
        place.folder / "server" / "backups" / "monday",
        place.folder / "server" / "server.key",
    )
    given = ["--backup", backup, "--key", key, "--host", "b.example.org", "--port", 9001]
    told = value("server", "restore", tmp_path / "one", *given, "--tls", place.folder / "tls")
    assert (told["urls"], told["new_authority"]) == (["https://b.example.org:9001"], False)
    assert Layout.at(tmp_path / "one").ca == Layout.at(place.folder).ca
    assert "a new authority" in run("server", "restore", tmp_path / "two", *given).stdout
    assert Layout.at(tmp_path / "two").ca not in ("", Layout.at(place.folder).ca)
    token = value(
        "server", "token", "clinic-a", "--office", place.office, "--at", tmp_path / "two"
    )["token"]
    assert Token.from_text(token).ca == Layout.at(tmp_path / "two").ca


def test_a_backup_or_certificates_that_are_not_there_leave_nothing_behind(tmp_path: Path) -> None:
    place, new = served(tmp_path), tmp_path / "new"
    key = ["--key", place.folder / "server" / "server.key"]
    refused = run("server", "restore", new, "--backup", "monday", *key, code=1)
    assert "DIR/server/backups/NAME" in refused.stderr
    assert (
        "there is no backup"
        in run(
            "server", "restore", new, "--backup", "x", *key, "--from", place.folder, code=1
        ).stderr
    )
    backup = ["--backup", place.folder / "server" / "backups" / "monday"]
    run("server", "rotate-key", "--yes", "--office", place.office)
    assert (
        "is not the one" in run("server", "restore", new, *backup, *key, code=1).stderr
    )  # earlier backups need the old key
    assert (
        "has no ca.pem"
        in run("server", "restore", new, *backup, *key, "--tls", place.office, code=1).stderr
    )
    assert not new.exists()


def test_rotations_are_in_a_restored_folder_too(place: Federation) -> None:
    run("server", "rotate-key", "--yes", "--office", place.office)
    run("server", "backup", "monday", "--office", place.office)
    key, new = place.folder / "server" / "server.key", place.path / "new"
    run("server", "restore", new, "--backup", "monday", "--from", place.folder, "--key", key)
    for name in ("server.pub", "rotation-1.json"):
        assert (new / name).read_bytes() == (place.folder / name).read_bytes()


def test_a_backup_older_than_a_rotation_is_restored_with_the_newest_key(place: Federation) -> None:
    """Clients that follow the rotation accept the server, and one that does not know it, too; with
    the retired key alone they do not, and are told what can be done.
    """
    a, b = place.client("clinic-a", ROWS_A), place.client("clinic-b", ROWS_B)
    run("server", "backup", "monday", "--office", place.office)
    old_key = place.path / "old.key"
    old_key.write_bytes((place.folder / "server" / "server.key").read_bytes())
    told = value("server", "rotate-key", "--yes", "--office", place.office)
    assert (place.folder / "server" / "backups" / told["backup"]).is_file()
    run("client", "sync", "--dir", a)
    backup = ("--backup", "monday", "--from", place.folder)
    run("server", "restore", place.path / "retired", *backup, "--key", old_key)
    retired = ("--at", place.path / "retired", "--accept-restored")
    refused = run("client", "sync", "--dir", a, *retired, code=3).stderr
    assert "expunge server restore --key NEWEST --rotation FILE" in " ".join(refused.split())
    assert "expunge audit --rebuild" in " ".join(refused.split())
    written = place.path / "receipts"
    run("client", "receipts", "-o", written, "--dir", a)
    proof = ("--rotation", written / "rotation-1.json")
    key, new = place.folder / "server" / "server.key", place.path / "new"
    run("server", "restore", new, *backup, "--key", key, *proof)
    run("server", "restore", place.path / "x", *backup, "--key", old_key, *proof, code=1)
    for folder in (a, b):
        run("client", "sync", "--dir", folder, "--accept-restored", "--at", new)
    office = ("--office", place.office, "--at", new)
    assert value("server", "status", *office)["samples"] == 5
    run("server", "rotate-key", "--yes", *office)  # whose entry stands before that of the first
    run("client", "sync", "--dir", a, "--at", new)
    assert value("server", "status", *office)["clients"]["active"] == 2


# -- orders that a restored server does not know ---------------------------------------------------


def restored(place: Federation) -> Path:
    key = place.folder / "server" / "server.key"
    run(
        "server",
        "restore",
        place.path / "new",
        "--backup",
        "monday",
        "--from",
        place.folder,
        "--key",
        key,
    )
    return place.path / "new"


def test_a_complete_order_is_not_closed_by_a_restore_and_says_what_is_left(
    place: Federation,
) -> None:
    a = place.client("clinic-a", ROWS_A)
    officer = ["--office", place.enrol("privacy", role="officer")]
    order = value("order", "file", "patient-seventeen", *officer)["order"]
    run("client", "sync", "--dir", a)
    run("server", "backup", "monday", "--office", place.office)
    at = ["--at", restored(place)]
    told = run("order", "bundle", order, "-o", place.path / "x.html", *officer, *at, code=1).stderr
    assert "is complete" in told
    assert "closed" not in told
    assert "expunge client receipts NUMBER" in " ".join(told.split())
    shown = value("order", "show", order, *officer, *at)
    assert (shown["state"], shown["subject_lost"]) == ("complete", True)
    assert "receipts NUMBER" in " ".join(run("order", "show", order, *officer, *at).stdout.split())
    assert "without evidence" in run("order", "list", *officer, *at).stderr
    number = shown["answers"][0]["sequence"]
    receipt = place.path / "receipt.json"
    run("client", "receipts", number, "-o", receipt, "--dir", a)
    assert f"It answers erasure order {order}" in " ".join(
        run("verify", receipt, "--key", place.key).stdout.split()
    )
    run("order", "close", order, "--yes", *officer, *at)
    shown = value("order", "show", order, *officer, *at)
    assert (shown["state"], shown["subject_lost"]) == ("closed", False)


def test_an_order_filed_after_the_backup_is_missed_by_the_office_that_filed_it(
    place: Federation,
) -> None:
    place.client("clinic-a", ROWS_A)
    officer = ["--office", place.enrol("privacy", role="officer")]
    run("server", "backup", "monday", "--office", place.office)
    order = value("order", "file", "patient-seventeen", *officer)["order"]
    assert value("order", "list", *officer)["unknown"] == []
    at = ["--at", restored(place)]
    assert value("order", "list", *officer, *at)["unknown"] == [order]
    listed = run("order", "list", "--overdue", *officer, *at, code=7)
    assert (
        f"order {order[:8]}, filed from this office, is unknown to the restored server: file "
        "it again"
    ) in listed.stderr
    assert "file it again" in run("order", "show", order[:8], *officer, *at, code=1).stderr
    again = value("order", "file", "patient-seventeen", *officer, *at)["order"]
    assert value("order", "close", order[:8], "--yes", *officer, *at) == {"order": order}
    assert value("order", "list", *officer, *at)["unknown"] == []
    assert value("order", "show", "last", *officer, *at)["order"] == again
    assert not any(b"patient-seventeen" in file.read_bytes() for file in officer[1].iterdir())


def test_an_order_whose_subject_is_lost_is_shown_as_lost(place: Federation) -> None:
    place.client("clinic-a", ROWS_A)
    order = value("order", "file", "p1", "--office", place.office)["order"]
    run("server", "backup", "monday", "--office", place.office)
    at = ["--office", place.office, "--at", restored(place)]  # without the vault
    assert value("order", "list", "--overdue", *at, code=7)["orders"][0]["state"] == "lost"
    assert f"order {order[:8]} is lost" in run("order", "list", *at).stderr
    assert "file it again" in run("order", "show", order, *at).stdout


def test_a_client_that_was_forgotten_is_not_said_to_have_answered(place: Federation) -> None:
    a = place.client("clinic-a", ROWS_A)
    place.client("clinic-b", ROWS_B)
    run("order", "file", "p1", "--office", place.office)
    page = place.path / "order.html"
    early = run("order", "bundle", "last", "-o", page, "--office", place.office, code=7).stdout
    assert "order close" not in early
    assert "order show" in early
    run("client", "sync", "--dir", a)
    run("server", "forget-client", "clinic-b", "--yes", "--office", place.office)
    assert "1 of 2, 1 gone" in run("order", "list", "--office", place.office, env=WIDE).stdout
    shown = run("order", "show", "last", "--office", place.office, env=WIDE).stdout
    assert [line.split()[1] for line in shown.splitlines() if "clinic-" in line] == ["2", "gone"]
    assert (
        "order close" in run("order", "bundle", "last", "-o", page, "--office", place.office).stdout
    )


# -- what is said before and after -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--messages", "rows,factor"], "computes in float64"),
        (["--gamma", "1e-30"], "gamma 1e-30 is below 1e-12"),
        ([], ""),
    ],
)
def test_init_warns_of_what_costs_exactness(tmp_path: Path, options: list[str], words: str) -> None:
    told = run("init", tmp_path / "f", "--dim", 3, "--labels", "a", *options).stderr
    assert (words in told) if words else told == ""


def test_labels_are_neither_empty_nor_comments(tmp_path: Path) -> None:
    assert (
        "an empty label"
        in run("init", tmp_path / "f", "--dim", 3, "--labels", "a,,b", code=1).stderr
    )
    (tmp_path / "labels").write_text("# our labels\na\n#1\n#\n")
    assert value("init", tmp_path / "f", "--dim", 3, "--labels", f"@{tmp_path / 'labels'}")["spec"][
        "labels"
    ] == ["a", "#1"]
    assert "1 label, gamma" in run("init", tmp_path / "g", "--dim", 3, "--labels", "a").stdout


def test_amend_shows_both_values_and_whom_it_stops(place: Federation) -> None:
    place.client("clinic-a", ROWS_A)
    asked = run(
        "server", "amend", "--gamma", "1e-25", "--office", place.office, given="n\n", code=1
    ).stderr
    assert "gamma from 1 to 1e-25" in asked
    assert "below 1e-12" in asked
    stopped = run(
        "server", "amend", "--messages", "rows", "--office", place.office, given="n\n", code=1
    ).stderr
    assert "Clients that send gram messages can send nothing" in stopped
    assert "expunge client sync --message rows" in stopped
    eased = run(
        "server", "amend", "--messages", "gram", "--office", place.office, given="n\n", code=1
    ).stderr
    assert "Clients that send rows messages will send gram messages" in eased
    shown = run("server", "amend", "--add-label", "fox", "--yes", "--office", place.office).stdout
    assert "labels from cat, dog to cat, dog, fox" in shown


def test_amend_says_why_there_is_no_head(place: Federation) -> None:
    place.client("clinic-a", ROWS_A)
    told = value("server", "amend", "--gamma", "1e-30", "--yes", "--office", place.office)
    assert told["head"] == ""
    assert told["headless"] == value("server", "status", "--office", place.office)["headless"] != ""
    shown = run("server", "amend", "--gamma", "2e-30", "--yes", "--office", place.office).stdout
    assert f"none: {told['headless']}"[:40] in shown


def test_a_token_file_is_never_written_over(place: Federation) -> None:
    file = place.file("t", "keep")
    assert (
        "exists already"
        in run("server", "token", "clinic-a", "-o", file, "--office", place.office, code=1).stderr
    )
    assert file.read_text() == "keep"


def test_tokens_of_a_rebuilt_server_lead_back_to_it(place: Federation) -> None:
    a, new = place.client("clinic-a", ROWS_A), place.path / "new"
    assert "--rejoin" not in run("server", "token", "clinic-z", "--office", place.office).stdout
    shutil.rmtree(place.folder)
    run("audit", "--rebuild", new, "--client-dir", a)
    shown = run("server", "token", "clinic-b", "--office", new).stdout
    assert "expunge enroll TOKEN --dir clinic-b --rejoin" in shown
    again = run("audit", "--rebuild", new).stdout
    assert "asks all its clients to send again" in again
    assert "clinic-a" in again
    assert "Samples" not in again
    assert json.loads((new / "federation.json").read_text())["rebuilt"] is True


def test_two_rebuild_one_server_after_another(
    place: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What looks like an interrupted restoration may be one that is under way."""
    a, new = place.client("clinic-a", ROWS_A), place.path / "new"
    run("audit", "--rebuild", new, "--client-dir", a)
    vault = new / "server.new" / "server.vault"
    vault.parent.mkdir()
    vault.write_bytes(b"keys")
    set_waits(monkeypatch, patience=0.1)
    other = FolderLock(new)
    assert "in use by process" in run("audit", "--rebuild", new, code=5).stderr
    assert vault.read_bytes() == b"keys"
    other.release()
    run("audit", "--rebuild", new, "--client-dir", a)
    assert not vault.exists()


def test_a_rebuilt_server_is_compared_with_the_newest_head_of_one_second(
    place: Federation,
) -> None:
    """A deletion makes a later head of fewer samples, often within the same second."""
    a, b = place.client("clinic-a", ROWS_A), place.client("clinic-b", ROWS_B)
    run("client", "sync", "--dir", a)
    samples = value("server", "status", "--office", place.office)["samples"]
    run("client", "forget", "--id", "b1", "--yes", "--dir", b)
    rebuilt = value("audit", "--rebuild", place.path / "new", "--client-dir", a, "--client-dir", b)
    assert (rebuilt["samples"], rebuilt["old_samples"]) == (samples - 1, samples - 1)
    assert rebuilt["verdict"] == "equal"


def test_a_server_whose_key_was_rotated_is_rebuilt_too(place: Federation) -> None:
    a = place.client("clinic-a", ROWS_A)
    run("client", "receipts", "1", "-o", place.path / "before.json", "--dir", a)
    run("server", "rotate-key", "--yes", "--office", place.office)
    run("client", "sync", "--dir", a)
    run("audit", "--rebuild", place.path / "new", "--client-dir", a)
    run("client", "sync", "--dir", a)
    assert (
        "1" in run("client", "receipts", "--dir", a).stdout
    )  # what the lost server signed still holds


def test_one_bad_folder_does_not_keep_the_others_from_answering(place: Federation) -> None:
    a = place.client("clinic-a", ROWS_A)
    audited = run(
        "audit", "--client-dir", place.path / "bad", "--client-dir", a, "--office", place.office
    )
    assert "bad has not answered" in audited.stderr
    assert "equal" in audited.stdout
