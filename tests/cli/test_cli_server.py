"""`expunge init`, `enroll` and `server`: founding, letting in, looking, amending, rotating, backing
up, restoring.
"""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from expunge import Spec
from expunge.office import Office
from expunge.server.service import Service
from expunge.wire.token import Token
from support.cli import ROWS_A, ROWS_B, Federation, run, set_waits, value


@pytest.fixture
def place(tmp_path: Path) -> Federation:
    return Federation.found(tmp_path)


# -- init ------------------------------------------------------------------------------------------


def test_init_makes_everything_that_is_needed_and_says_what_comes_next(tmp_path: Path) -> None:
    shown = run(
        "init",
        tmp_path / "f",
        "--dim",
        5,
        "--labels",
        "cat, dog",
        "--host",
        "example.org",
        "--port",
        9000,
    ).stdout
    assert f"expunge serve {tmp_path / 'f'}" in shown
    assert "https://example.org:9000" in shown
    names = {path.name for path in (tmp_path / "f").iterdir()}
    assert names == {"federation.json", "operator", "server", "server.pub", "tls"}
    for secret in (
        "server/server.key",
        "operator/office.key",
        "tls/tls.key",
        "server/server.vault",
    ):
        assert stat.S_IMODE((tmp_path / "f" / secret).stat().st_mode) == 0o600, secret


def test_the_spec_is_what_was_asked_for(tmp_path: Path) -> None:
    options = [
        "--dim",
        4,
        "--outputs",
        2,
        "--gamma",
        0.5,
        "--no-intercept",
        "--grid",
        "1,10",
        "--label-grid",
        "2,30",
    ]
    told = value(
        "init",
        tmp_path / "a",
        *options,
        "--publication-bits",
        30,
        "--messages",
        "gram",
        "--fingerprint",
        "mine",
    )
    spec = Spec.from_dict(told["spec"])
    assert (spec.dim, spec.outputs, spec.gamma, spec.intercept, spec.publication_bits) == (
        4,
        2,
        0.5,
        False,
        30,
    )
    assert (spec.grid.digits, spec.grid.fraction_bits, spec.label_grid.fraction_bits) == (1, 10, 30)
    assert (spec.messages, spec.backbone) == (("gram",), "mine")
    run("server", "spec", "-o", tmp_path / "spec.json", "--office", tmp_path / "a")
    again = value("init", tmp_path / "b", "--spec", tmp_path / "spec.json")
    assert Spec.from_dict(again["spec"]) == spec
    assert again["federation"] != told["federation"]


def test_labels_from_a_file_and_the_dim_of_a_backbone(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("cat\ndog\n\nfox\n")
    described = "precomputed:features-of-2026?dim=6"
    told = value(
        "init", tmp_path / "f", "--backbone", described, "--labels", f"@{tmp_path / 'labels.txt'}"
    )
    assert (told["spec"]["dim"], told["spec"]["labels"]) == (6, ["cat", "dog", "fox"])
    assert told["spec"]["backbone"] == "features-of-2026"


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--labels", "a,b"], 2, "give --dim"),
        (["--dim", "3"], 2, "give either --labels"),
        (["--dim", "3", "--labels", "a,a"], 1, "must differ"),
        (["--dim", "3", "--labels", "a,b", "--gamma", "-1"], 1, "must be positive"),
        (["--dim", "3", "--labels", "a,b", "--grid", "fine"], 1, "DIGITS,FRACTION_BITS"),
        (["--dim", "3", "--labels", "a,b", "--host", "no such name"], 1, "neither a host name"),
        (
            ["--dim", "3", "--labels", "a", "--backbone", "precomputed:x?dim=4"],
            1,
            "contradicts the backbone",
        ),
    ],
)
def test_a_bad_beginning_leaves_nothing_behind(
    tmp_path: Path, options: list[str], code: int, message: str
) -> None:
    assert message in run("init", tmp_path / "f", *options, code=code).stderr
    assert list(tmp_path.iterdir()) == []


def test_neither_a_full_folder_nor_an_existing_mirror_is_touched(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "mine").write_text("keep")
    assert "is not empty" in run("init", tmp_path / "f", "--dim", 3, "--labels", "a", code=1).stderr
    mirror = tmp_path / "mirror"
    mirror.write_text("keep")
    assert (
        "exists already"
        in run(
            "init", tmp_path / "g", "--dim", 3, "--labels", "a", "--mirror", mirror, code=1
        ).stderr
    )
    assert mirror.read_text() == "keep"
    run("init", tmp_path / "g", "--dim", 3, "--labels", "a", "--mirror", tmp_path / "other")
    assert (tmp_path / "other").stat().st_size == (
        tmp_path / "g" / "server" / "server.vault"
    ).stat().st_size
    run("server", "status", "--office", tmp_path / "g")  # opens with its mirror


# -- tokens and enrolment --------------------------------------------------------------------------


def test_a_token_enrols_once_whatever_form_it_is_given_in(place: Federation) -> None:
    told = value("server", "token", "clinic-a", "--office", place.office)
    assert Token.from_text(told["token"]).urls == (str(place.folder),)
    run("enroll", "-", "--dir", place.path / "a", given=told["token"] + "\n")
    assert (
        "is enrolled already"
        in run("enroll", told["token"], "--dir", place.path / "b", code=1).stderr
    )
    assert not (place.path / "b").exists()
    assert (
        "name-taken"
        in value("server", "token", "clinic-a", "--office", place.office, code=1)["error"]["code"]
    )
    assert (
        "neither an enrolment token nor a file"
        in run("enroll", "nothing", "--dir", place.path / "c", code=1).stderr
    )
    assert (
        "damaged"
        in run("enroll", told["token"][:-9] + "!", "--dir", place.path / "c", code=1).stderr
    )


def test_the_next_address_is_tried_where_one_gives_no_answer(place: Federation) -> None:
    for name, role in (("clinic-a", "client"), ("privacy", "officer")):
        urls = ["--url", "http://127.0.0.1:9", "--url", place.folder]
        token = value("server", "token", name, "--role", role, *urls, "--office", place.office)[
            "token"
        ]
        result = run("enroll", token, "--dir", place.path / name)
        assert "Trying another address" in result.stderr
        if role == "client":
            assert (
                f"  expunge client status --dir {place.path / name}\n" in result.stdout
            )  # not cut, however long it is
            assert value("client", "status", "--dir", place.path / name)["address"] == str(
                place.folder
            )


def test_a_token_file_is_for_its_owner_alone_and_not_shown(place: Federation) -> None:
    file = place.path / "t"
    assert (
        "expunge-token-1"
        not in run("server", "token", "clinic-a", "-o", file, "--office", place.office).stdout
    )
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "expunge-token-1" in run("server", "token", "clinic-b", "--office", place.office).stdout
    printed = run(
        "server", "token", "clinic-c", "-o", place.path / "c", "--office", place.office, "--json"
    ).stdout
    assert "expunge-token-1" not in printed
    assert json.loads(printed)["token"] is None
    assert json.loads(printed)["file"] == str(place.path / "c")


def test_the_role_in_the_token_decides_what_is_made(place: Federation) -> None:
    client, officer = (
        place.enrol("clinic-a", "--message", "gram"),
        place.enrol("privacy", role="officer"),
    )
    assert (client / "client.db").exists()
    assert value("client", "status", "--dir", client)["message"] == "gram"
    with Office.open(officer) as office:
        assert office.role == "officer"
    token = value("server", "token", "other", "--role", "officer", "--office", place.office)[
        "token"
    ]
    refused = run("enroll", token, "--dir", place.path / "x", "--message", "gram", code=1)
    assert "has no samples: leave out --message" in refused.stderr
    assert (
        "this is for operators" in run("server", "token", "z", "--office", officer, code=1).stderr
    )


def test_next_steps_name_the_backbone_where_the_federation_pins_one(tmp_path: Path) -> None:
    described = "precomputed:agreed?dim=3"
    shown = run("init", tmp_path / "f", "--backbone", described, "--labels", "cat,dog").stdout
    assert f"enroll hospital-a.token --dir hospital-a --backbone '{described}'" in shown
    office = ["--office", tmp_path / "f" / "operator"]
    shown = run("server", "token", "a", "-o", tmp_path / "a.token", *office).stdout
    assert "--dir a --backbone DESCRIPTION" in shown
    assert "--backbone" not in run("server", "token", "o", "--role", "officer", *office).stdout
    shown = run("enroll", tmp_path / "a.token", "--dir", tmp_path / "a").stdout
    assert f"--dir {tmp_path / 'a'} --backbone DESCRIPTION" in shown
    run("server", "token", "b", "-o", tmp_path / "b.token", *office)
    shown = run(
        "enroll", tmp_path / "b.token", "--dir", tmp_path / "b", "--backbone", described
    ).stdout
    assert "client add samples.csv" in shown
    assert "--backbone" not in shown  # the client remembers it


def test_next_steps_name_no_backbone_where_none_is_pinned(tmp_path: Path) -> None:
    shown = run("init", tmp_path / "f", "--dim", 3, "--labels", "cat,dog").stdout
    office, token = ["--office", tmp_path / "f" / "operator"], tmp_path / "a.token"
    shown += run("server", "token", "a", "-o", token, *office).stdout
    shown += run("enroll", token, "--dir", tmp_path / "a").stdout
    assert shown.count("--dir") == 4
    assert "--backbone" not in shown


def test_recomputing_needs_a_backbone_and_the_right_one(tmp_path: Path) -> None:
    place = Federation.found(tmp_path, "--dim", 3, "--labels", "cat,dog", "--fingerprint", "agreed")
    token = value("server", "token", "clinic-a", "--office", place.office)["token"]
    assert (
        "--recompute needs --backbone"
        in run("enroll", token, "--recompute", "--dir", tmp_path / "a", code=1).stderr
    )
    other = run(
        "enroll", token, "--backbone", "precomputed:other?dim=3", "--dir", tmp_path / "a", code=1
    )
    assert "the spec pins agreed" in other.stderr
    assert not (tmp_path / "a").exists()
    run("enroll", token, "--backbone", "precomputed:agreed?dim=3", "--dir", tmp_path / "a")


# -- looking and changing --------------------------------------------------------------------------


def test_clients_and_status(place: Federation) -> None:
    place.client("clinic-a", ROWS_A)
    found = value("server", "clients", "--office", place.office)["clients"]
    assert [(one["name"], one["role"], one["samples"]) for one in found] == [
        ("clinic-a", "client", 3),
        ("operator", "operator", 0),
    ]
    assert (
        "clinic-a" in run("server", "clients", "--office", place.folder).stdout
    )  # the federation's folder will do
    status = value("server", "status", "--office", place.office)
    assert (status["samples"], status["clients"]["active"], status["audit"]) == (3, 1, None)
    assert "none yet" in run("server", "status", env={"EXPUNGE_OFFICE": str(place.office)}).stdout


def test_the_office_is_found_or_asked_for(
    place: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place.folder)
    run("server", "status")
    monkeypatch.chdir(place.office)
    run("server", "status")
    monkeypatch.chdir(place.path)
    assert "no office is given. Give --office DIR" in run("server", "status", code=1).stderr
    assert (
        "is not an office"
        in run("server", "status", "--office", place.folder / "tls", code=1).stderr
    )


def test_a_moved_office_works_once_it_was_told_where_the_server_is(place: Federation) -> None:
    moved = place.folder.rename(place.path / "moved")
    assert value("server", "status", "--office", moved)["samples"] == 0  # it is beside its server
    office = (moved / "operator").rename(place.path / "desk")
    server = moved.rename(place.path / "again")
    refused = run("server", "status", "--office", office, code=1).stderr.words
    assert f"there is no federation in {moved}" in refused
    assert "give --at URL" in refused
    assert "expunge init" not in refused
    (place.path / "other").mkdir()
    wrong = Federation.found(place.path / "other").folder
    assert (
        "now looks" not in run("server", "status", "--office", office, "--at", wrong, code=1).stderr
    )
    assert "no federation in" in run("server", "status", "--office", office, code=1).stderr
    told = run("server", "status", "--office", office, "--at", server)
    assert f"now looks for its server at {server}" in told.stderr
    assert value("server", "status", "--office", office)["samples"] == 0


def test_a_client_whose_server_has_moved_is_told_to_say_where_it_is(place: Federation) -> None:
    folder = place.client("clinic-a", ROWS_A)
    place.folder.rename(place.path / "moved")
    refused = run("client", "sync", "--dir", folder, code=1).stderr.words
    assert "give --at URL" in refused
    assert "expunge init" not in refused


def test_amendments_reach_clients_at_their_next_sync(place: Federation) -> None:
    folder = place.client("clinic-a", ROWS_A)
    assert (
        "nothing to amend"
        in run("server", "amend", "--yes", "--office", place.office, code=1).stderr
    )
    assert (
        "not confirmed"
        in run(
            "server", "amend", "--gamma", 2, "--office", place.office, code=1, given="n\n"
        ).stderr
    )
    told = value(
        "server", "amend", "--gamma", 0.5, "--add-label", "fox", "--yes", "--office", place.office
    )
    spec = Spec.from_dict(told["spec"])
    assert (spec.gamma, spec.labels) == (0.5, ("cat", "dog", "fox"))
    synced = value("client", "sync", "--dir", folder)
    assert (synced["amended"], synced["head"]) == (True, told["head"])
    more = place.file("more.csv", "id,label,x,y,z\nm1,fox,1,1,1\n")
    assert value("client", "add", more, "--dir", folder)["sync"]["receipts"][0]["added"] == 1
    refused = run("server", "amend", "--gamma", -1, "--yes", "--office", place.office, code=1)
    assert "must be positive" in refused.stderr


def test_a_vanished_client_is_forgotten(place: Federation) -> None:
    place.client("clinic-a", ROWS_A)
    b = place.client("clinic-b", ROWS_B)
    alone = value("client", "sync", "--dir", b)["head"]
    told = value("server", "forget-client", "clinic-a", "--yes", "--office", place.office)
    assert told == {"client": "clinic-a", "count": 3, "pending": False}
    assert place.samples() == 2
    assert value("client", "sync", "--dir", b)["head"] != alone
    assert (
        "is gone already"
        in run(
            "server", "forget-client", "clinic-a", "--yes", "--office", place.office, code=1
        ).stderr
    )


def test_a_rotated_key_links_old_and_new_evidence(place: Federation) -> None:
    folder = place.client("clinic-a", ROWS_A)
    old_receipt, new_receipt, rotation = (
        place.path / name for name in ("old.json", "new.json", "rotation.json")
    )
    run("client", "receipts", 1, "-o", old_receipt, "--dir", folder)
    old_key = place.file("old.pub", place.key.read_text())
    told = value("server", "rotate-key", "-o", rotation, "--yes", "--office", place.office)
    run("client", "forget", "--id", "a1", "--yes", "--dir", folder)
    run("client", "receipts", 2, "-o", new_receipt, "--dir", folder)
    for receipt, key, other in (
        (old_receipt, old_key, place.key),
        (new_receipt, place.key, old_key),
    ):
        run("verify", receipt, "--key", key)
        refused = run("verify", receipt, "--key", other, code=3)
        assert "add the rotation that leads to its key" in refused.stderr
        run("verify", receipt, "--key", other, "--rotation", rotation)
        run("verify", rotation, "--key", key)
        for knowing in (folder, place.office, place.folder):
            run("verify", receipt, "--trust", knowing)
            assert value("key", knowing)["key"] == told["key"]
    token = value("server", "token", "clinic-b", "--office", place.office)["token"]
    assert Token.from_text(token).server.text == told["key"]


def test_a_fold_erases_at_rest_at_once(place: Federation) -> None:
    folder = place.client("clinic-a", ROWS_A)
    run("client", "forget", "--id", "a1", "--yes", "--dir", folder)
    told = run("server", "fold", "--office", place.office).stdout
    assert "What was deleted has been erased at rest." in told
    folded = value("server", "fold", "--office", place.office)
    status = value("server", "status", "--office", place.office)
    assert (folded["samples"], status["journal"]) == (status["samples"], 0)
    assert folded["ledger"] in "".join(told.split())


def test_a_restored_backup_has_forgotten_what_was_deleted_since(place: Federation) -> None:
    folder = place.client("clinic-a", ROWS_A)
    run("server", "backup", "monday", "--office", place.office)
    assert (
        "choose another name"
        in run("server", "backup", "monday", "--office", place.office, code=1).stderr
    )
    head = value("client", "forget", "--id", "a1", "--yes", "--dir", folder)["sync"]["head"]
    backup, key = (
        place.folder / "server" / "backups" / "monday",
        place.folder / "server" / "server.key",
    )
    wrong = run(
        "server",
        "restore",
        place.path / "new",
        "--backup",
        backup,
        "--key",
        place.folder / "tls" / "tls.key",
        code=1,
    )
    assert "Ed25519" in wrong.stderr
    told = value("server", "restore", place.path / "new", "--backup", backup, "--key", key)
    assert told["waiting"] == ["clinic-a"]
    at = ["--at", place.path / "new"]
    assert "--accept-restored" in run("client", "sync", "--dir", folder, *at, code=3).stderr
    synced = value("client", "sync", "--accept-restored", "--dir", folder, *at)
    assert (synced["rejoined"], synced["head"]) == (True, head)
    assert value("server", "status", "--office", place.office, *at)["samples"] == 2


def test_a_folder_in_use_by_another_process_is_said_to_be_busy(
    place: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_waits(monkeypatch, patience=0.1)
    service = Service.open(place.folder / "server")
    try:
        assert (
            "is in use by process"
            in run("server", "status", "--office", place.office, code=5).stderr
        )
        assert (
            json.loads(run("server", "status", "--office", place.office, "--json", code=5).stdout)[
                "error"
            ]["kind"]
            == "store-busy"
        )
    finally:
        service.close()
