"""Changes of few samples on the command line: what waits, why and until when, and what a sum of few
shows.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from expunge import Spec
from expunge.ridge.spec import recommended_fewest_samples
from expunge.wire.schema import time_seconds
from support.cli import Federation, run, value
from support.serving import Server

HEADER = "id,subject,label,x,y,z\n"
GRAM = ("--dim", 3, "--labels", "cat,dog", "--messages", "gram")
FEWEST = 4
FIVE = (
    f"{HEADER}a1,p1,cat,1,2,3\na2,p1,dog,2,1,5\na3,p2,cat,4,1,1\na4,p3,dog,1,1,2\na5,p4,dog,2,3,1\n"
)
TWO = f"{HEADER}b1,p7,cat,1,2,3\nb2,p8,cat,2,1,5\n"
USUAL = 7.5 * 86400  # seconds that a deletion without an order waits


@pytest.fixture
def place(tmp_path: Path) -> Federation:
    return Federation.found(tmp_path, *GRAM, "--fewest-samples", FEWEST)


# -- founding --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [["--messages", "gram"], ["--secure-aggregation"]])
def test_the_rule_is_part_of_the_spec(tmp_path: Path, kind: list[str]) -> None:
    options = ("--dim", 3, "--labels", "cat,dog", *kind, "--fewest-samples", 8)
    printed = run("init", tmp_path / "a", *options)
    assert "A change waits until it is of 8 samples" in printed.stdout.words
    assert "--fewest-samples" not in printed.stderr.words  # 8 is twice the width
    told = value("init", tmp_path / "b", *options)
    assert told["spec"]["fewest_samples"] == 8
    assert Spec.from_dict(told["spec"]).fewest_samples == 8


@pytest.mark.parametrize("kind", [["--messages", "gram"], ["--secure-aggregation"]])
@pytest.mark.parametrize(("dim", "fewest"), [(3, 8), (768, 1024)])
def test_founding_names_the_rule_where_there_is_none(
    tmp_path: Path, kind: list[str], dim: int, fewest: int
) -> None:
    assert recommended_fewest_samples(dim + 1) == fewest
    options = ("--dim", dim, "--labels", "cat,dog", *kind)
    warned = run("init", tmp_path / "a", *options).stderr.words
    assert "Clients send changes of any size, and the server can compute samples" in warned
    assert f"--fewest-samples {fewest}" in warned
    warned = run("init", tmp_path / "b", *options, "--fewest-samples", 7).stderr.words
    assert "Clients send changes of 7 samples" in warned
    assert f"--fewest-samples {fewest}" in warned


def test_no_warning_where_the_server_sees_single_samples(tmp_path: Path) -> None:
    printed = run("init", tmp_path / "a", "--dim", 3, "--labels", "cat,dog")
    assert "--fewest-samples" not in printed.stderr.words


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--fewest-samples", 8], 1, "hides nothing where rows messages show single samples"),
        (["--messages", "gram", "--fewest-samples", -1], 2, "--fewest-samples"),
        (["--spec", "spec.json", "--fewest-samples", 8], 2, "leave out --fewest-samples"),
    ],
)
def test_rules_that_cannot_be_leave_nothing_behind(
    tmp_path: Path, options: list[Any], code: int, message: str
) -> None:
    (tmp_path / "spec.json").write_text(json.dumps(Spec(dim=3, outputs=1).to_dict()))
    given = [tmp_path / one if one == "spec.json" else one for one in options]
    spec = () if "--spec" in options else ("--dim", 3, "--labels", "cat,dog")
    printed = run("init", tmp_path / "new", *spec, *given, code=code)
    assert message in printed.stderr.words
    assert not (tmp_path / "new").exists()


# -- waiting ---------------------------------------------------------------------------------------


def test_few_samples_wait_and_the_remedy_sends_them(place: Federation) -> None:
    folder = place.enrol("clinic-a")
    printed = run("client", "add", place.file("b.csv", TWO), "--dir", folder, code=7).stdout
    assert "Not complete yet: the change is of too few samples." in printed.words
    assert "2 of 4 samples pending: the sum of fewer can reveal them" in printed.words
    assert "Goes out when 4 are pending" in printed.words
    assert f"expunge client sync --dir {folder} --now" in printed.words
    waits = {"samples": 2, "fewest": 4, "due": None, "uncounted": 0}
    done = value("client", "sync", "--dir", folder, code=7)
    assert (done["backlog"], done["waiting"], done["receipts"]) == (waits, "", [])
    assert value("client", "status", "--dir", folder)["backlog"] == waits
    shown = run("client", "status", "--dir", folder).stdout.words
    assert "2 of 4 samples pending" in shown
    assert f"expunge client sync --dir {folder} --now" in shown
    done = value("client", "sync", "--now", "--dir", folder)
    assert (done["backlog"], len(done["receipts"])) == (None, 1)
    assert value("client", "status", "--dir", folder)["backlog"] is None


def test_a_deletion_says_when_it_goes_out_at_the_latest(place: Federation) -> None:
    folder = place.client("clinic-a", FIVE)
    forget = ("client", "forget", "--yes", "--dir", folder)
    before = time.time()
    told = value(*forget, "--subject", "p2", code=7)
    assert told["pending"] is True
    assert told["backlog"] == told["sync"]["backlog"]
    assert int(before + USUAL) <= time_seconds(told["backlog"]["due"]) <= time.time() + USUAL
    shown = run(*forget, "--subject", "p3", "--no-sync").stdout.words
    assert "2 of 4 samples pending" in shown
    assert "or with the first sync after" in shown
    assert f"expunge client sync --dir {folder} --now" in shown
    told = value(*forget, "--subject", "p1")  # two more are enough
    assert told["backlog"] is None
    assert place.samples() == 1


def test_an_order_is_carried_out_when_its_quarter_is_over(place: Federation) -> None:
    folder = place.client("clinic-a", FIVE)
    run("order", "file", "p2", "--days", 8, "--office", place.office)
    printed = run("client", "sync", "--dir", folder, code=7).stdout
    assert "carried out: 1 sample found and to be deleted" in printed.words
    told = value("client", "status", "--dir", folder)["backlog"]
    assert abs(time_seconds(told["due"]) - time.time() - 2 * 86400) < 600


def test_without_the_rule_nothing_waits(tmp_path: Path) -> None:
    folder = Federation.found(tmp_path, *GRAM).client("clinic-a", TWO)
    assert value("client", "status", "--dir", folder)["backlog"] is None
    assert value("client", "sync", "--now", "--dir", folder)["backlog"] is None


def test_a_round_carries_few_samples_only_if_the_client_says_so(tmp_path: Path) -> None:
    place = Federation.found(
        tmp_path,
        *("--dim", 3, "--labels", "cat,dog", "--secure-aggregation", "--fewest-samples", FEWEST),
    )
    server = Server(place.folder, "--gather-for", "600", "--phase-for", "600")
    try:
        folders = [place.enrol(name) for name in ("clinic-a", "clinic-b", "clinic-c")]
        file = place.file("b.csv", TWO)
        add = ("client", "add", file, "--no-wait", "--dir", folders[0])
        told = value(*add, code=7)
        assert (told["backlog"]["samples"], told["sync"]["waiting"]) == (2, "")
        told = value("client", "sync", "--now", "--no-wait", "--dir", folders[0], code=7)
        assert (told["backlog"], "it waits for" in told["waiting"]) == (None, True)
        for _ in range(8):
            for folder in folders:
                run("client", "sync", "--no-wait", "--dir", folder, code=None)
        run("order", "file", "nobody", "--office", place.office)
        printed = run("client", "sync", "--no-wait", "--dir", folders[1]).stdout
        assert "Orders 1 to be answered after a round, when a quarter" in printed.words
        listed = value("client", "receipts", "--dir", folders[0])
        assert [one["samples_in_sum"] for one in listed["receipts"]] == [2]
        shown = run("client", "receipts", "--dir", folders[0]).stdout.words
        assert "Receipt 1 went out in a sum of 2 samples, fewer than the 4" in shown
        run("client", "receipts", "last", "-o", tmp_path / "r.json", "--dir", folders[0])
        verified = run("verify", tmp_path / "r.json", "--trust", folders[0]).stdout.words
        assert "2 samples, fewer than the 4 that a change waits for: a sum over so few" in verified
    finally:
        server.stop()


# -- receipts --------------------------------------------------------------------------------------


def test_receipts_say_with_how_many_samples_a_change_went_out(place: Federation) -> None:
    folder = place.client("clinic-a", FIVE)
    run("client", "forget", "--id", "a3", "--yes", "--dir", folder, code=7)
    run("client", "sync", "--now", "--dir", folder)
    listed = value("client", "receipts", "--dir", folder)
    assert listed["fewest_samples"] == FEWEST
    assert [one["samples_in_sum"] for one in listed["receipts"]] == [5, 1]
    few = "1 sample, fewer than the 4 that a change waits for: a sum over so few can reveal them"
    shown = run("client", "receipts", "--dir", folder).stdout.words
    assert f"Receipt 2 went out in a sum of {few}." in shown
    assert "Receipt 1 went out" not in shown
    run("client", "receipts", "-o", place.path / "all", "--dir", folder)
    first, second = (place.path / "all" / f"receipt-{number}.json" for number in (1, 2))
    assert f"Went out in a sum of {few}" in run("verify", second, "--trust", folder).stdout.words
    shown = run("verify", first, "--trust", folder).stdout.words
    assert "Went out in a sum of 5 samples" in shown
    assert "fewer than" not in shown
    shown = run("verify", second, "--key", place.key).stdout.words  # which does not know the rule
    assert "Went out in a sum of 1 sample" in shown
    assert "fewer than" not in shown


def test_receipts_of_single_samples_speak_of_no_sum(tmp_path: Path) -> None:
    place = Federation.found(tmp_path)
    folder = place.client("clinic-a", TWO)
    (receipt,) = value("client", "receipts", "--dir", folder)["receipts"]
    assert receipt["samples_in_sum"] is None


# -- what few samples have -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [["--messages", "gram"], ["--secure-aggregation"]])
def test_rare_columns_and_labels_are_noted(tmp_path: Path, kind: list[str]) -> None:
    place = Federation.found(tmp_path, "--dim", 3, "--labels", "cat,dog,eel", *kind)
    folder = place.enrol("clinic-a")
    rows = f"{HEADER}a1,p1,cat,1,2,0\na2,p1,cat,2,1,0\na3,p2,cat,4,1,0\na4,p3,eel,1,1,2.75\n"
    add = ("client", "add", place.file("a.csv", rows), "--no-sync", "--dir", folder)
    noted = run(*add).stderr.words
    assert (
        "Few of the 4 pending samples have 1 feature column and label eel (1): the sum shows the "
        "server those samples, however many are sent together" in noted
    )
    assert all(personal not in noted for personal in ("2.75", "a4", "p3"))
    told = value(*add)
    assert told["rare"] == {"columns": 1, "labels": {"eel": 1}}


def test_dense_features_of_one_label_are_not_noted(tmp_path: Path) -> None:
    place = Federation.found(tmp_path, *GRAM)
    folder = place.enrol("clinic-a")
    printed = run("client", "add", place.file("b.csv", TWO), "--dir", folder)
    assert "Few of" not in printed.stderr.words


def test_nothing_is_noted_where_the_server_sees_every_sample(tmp_path: Path) -> None:
    place = Federation.found(tmp_path)
    rows = f"{HEADER}a1,p1,cat,1,2,0\na2,p1,cat,2,1,0\na3,p2,cat,4,1,0\na4,p3,dog,1,1,2.75\n"
    printed = run("client", "add", place.file("a.csv", rows), "--dir", place.enrol("clinic-a"))
    assert "Few of" not in printed.stderr.words
