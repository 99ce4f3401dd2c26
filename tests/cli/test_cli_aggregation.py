"""Secure aggregation on the command line: founding, rounds of clients that come one after another,
what is told of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from expunge import Spec, Statistics, solve
from support.cli import Federation, features_of, run, value
from support.printed import WIDE
from support.serving import Server

HEADER = "id,subject,label,x,y,z\n"
ROWS = {
    "clinic-a": f"{HEADER}a1,p1,cat,1,2,3\na2,p2,dog,2,1,0.5\n",
    "clinic-b": f"{HEADER}b1,p1,cat,1,1,3\nb2,p3,dog,2,0,0.25\n",
    "clinic-c": f"{HEADER}c1,p1,dog,0,1,3\nc2,p4,cat,5,0,0.25\n",
    "clinic-d": f"{HEADER}d1,p5,dog,0,1,1\n",
}
MASKED = ("--dim", 3, "--labels", "cat,dog", "--secure-aggregation")
SPEC = Spec(dim=3, labels=("cat", "dog"), messages=("masked",))
PHASES = 8  # more turns than a round has phases, and what follows it


@pytest.fixture
def place(tmp_path: Path) -> Federation:
    return Federation.found(tmp_path, *MASKED)


@pytest.fixture
def served(place: Federation) -> Iterator[Federation]:
    server = Server(
        place.folder, "--gather-for", "600", "--phase-for", "600"
    )  # a round begins when all clients are in it
    yield place
    server.stop()


def joined(place: Federation, *names: str) -> list[Path]:
    """Clients that have added their rows, in as many turns as it took."""
    folders = [place.enrol(name) for name in names]
    for name, folder in zip(names, folders, strict=True):
        run("client", "add", place.file(f"{name}.csv", ROWS[name]), "--no-sync", "--dir", folder)
    take_turns(folders)
    return folders


def take_turns(folders: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """Let clients sync one after another, without waiting, until nobody has to wait; all that each
    has done.
    """
    done: dict[str, dict[str, Any]] = {
        folder.name: {"receipts": [], "orders": [], "audits": []} for folder in folders
    }
    for _ in range(PHASES):
        waiting = False
        for folder in folders:
            found = json.loads(
                run("client", "sync", "--no-wait", "--json", "--dir", folder, code=None).stdout
            )
            assert "error" not in found, found
            waiting = waiting or bool(found["waiting"])
            for name in ("receipts", "orders", "audits"):
                done[folder.name][name] += found[name]
        if not waiting:
            return done
    raise AssertionError("the clients wait for ever")


def head_of(*names: str, without: Sequence[str] = ()) -> str:
    """The head of retraining from the rows of some clients, but for some people."""
    rows = [
        row
        for name in names
        for row in ROWS[name].splitlines()[1:]
        if row.split(",")[1] not in without
    ]
    return solve(
        Statistics.of(SPEC, *features_of(HEADER + "\n".join(rows)), lost_columns="accept")
    ).digest


# -- founding --------------------------------------------------------------------------------------


def test_the_rules_are_those_of_the_options_and_what_follows_is_shown(tmp_path: Path) -> None:
    rules = ("--fewest", 5, "--dropouts", 20, "--colluding", 25)
    told = value("init", tmp_path / "a", *MASKED, *rules, "--clients", 100)
    spec = Spec.from_dict(told["spec"])
    assert spec.messages == ("masked",)
    assert spec.aggregation is not None
    assert (spec.aggregation.fewest, spec.aggregation.dropouts, spec.aggregation.colluding) == (
        5,
        20,
        25,
    )
    assert told["plan"]["clients"] == 100
    assert (told["plan"]["degree"], told["plan"]["threshold"], told["plan"]["quorum"]) == (
        99,
        80,
        63,
    )
    shown = run("init", tmp_path / "b", *MASKED, *rules, "--clients", 100).stdout.words
    assert "at least 5 clients; 20 % may drop out, 25 % may collude with the server" in shown
    assert "each shares masks with every other client; 80 shares open a mask" in shown
    assert "63 must agree on who is in a sum" in shown
    assert f"expunge serve {tmp_path / 'b'}" in shown
    run("server", "spec", "-o", tmp_path / "spec.json", "--office", tmp_path / "a")
    assert (
        Spec.from_dict(value("init", tmp_path / "c", "--spec", tmp_path / "spec.json")["spec"])
        == spec
    )
    assert (
        value("init", tmp_path / "d", "--dim", 3, "--labels", "cat,dog", "--messages", "masked")[
            "plan"
        ]
        is None
    )


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--fewest", 4], 2, "--fewest is a rule of secure aggregation"),
        (["--clients", 4], 2, "give --secure-aggregation"),
        (["--secure-aggregation", "--messages", "rows"], 2, "masked messages only"),
        (["--secure-aggregation", "--messages", "masked,rows"], 2, "masked messages only"),
        (["--secure-aggregation", "--dropouts", 60, "--colluding", 40], 1, "together 100 per cent"),
        (["--secure-aggregation", "--dropouts", 45], 1, "cannot both be allowed"),
        (["--secure-aggregation", "--fewest", 1], 2, "--fewest"),
    ],
)
def test_rules_that_cannot_be_leave_nothing_behind(
    tmp_path: Path, options: list[Any], code: int, message: str
) -> None:
    told = run(
        "init", tmp_path / "f", "--dim", 3, "--labels", "cat,dog", *options, code=code
    ).stderr
    assert message in told
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "caution"),
    [
        (["--fewest", 2], "each can compute the other's part"),
        (["--clients", 2], "No round can complete with 2 clients"),
        (["--clients", 3], "aborted if any of them drops out"),
        (["--clients", 5], "aborted if more than 1 of them drop out, not 2 (30 %)"),
    ],
)
def test_rules_that_protect_less_than_they_seem_to_are_pointed_out(
    tmp_path: Path, options: list[Any], caution: str
) -> None:
    assert caution in run("init", tmp_path / "f", *MASKED, *options).stderr


# -- rounds ----------------------------------------------------------------------------------------


def test_a_change_waits_for_enough_clients_and_then_takes_effect_once(served: Federation) -> None:
    a, b, c = (served.enrol(name) for name in ("clinic-a", "clinic-b", "clinic-c"))
    files = {name: served.file(f"{name}.csv", rows) for name, rows in ROWS.items()}
    result = run("client", "add", files["clinic-a"], "--no-wait", "--dir", a, code=7)
    shown = result.stdout.words
    assert "2 samples added to" in shown
    assert (
        "Pending 2 to be added Because the round has 1 of the 3 clients that it needs: it waits "
        "for 2 more"
    ) in shown
    assert f"expunge client sync --dir {a}" in shown
    assert "Start it first" not in shown
    standing = value("client", "status", "--dir", a)
    assert (standing["adding"], standing["composed"], standing["aggregation"]) == (
        2,
        1,
        {"in_round": True, "pins": 0},
    )
    assert "a round is under way" in run("client", "status", "--dir", a).stdout

    told = value("client", "add", files["clinic-b"], "--no-wait", "--dir", b, code=7)
    assert (told["pending"], told["sync"]["receipts"]) == (True, [])
    assert "waits for one more client" in told["sync"]["waiting"]
    value("client", "add", files["clinic-c"], "--no-wait", "--dir", c, code=7)
    done = take_turns([a, b, c])
    for one in done.values():
        (receipt,) = one["receipts"]
        assert (receipt["sequence"], receipt["added"], receipt["deleted"]) == (1, None, None)
        together = receipt["aggregation"]
        assert (together["clients"], together["added"], together["deleted"]) == (
            ["clinic-a", "clinic-b", "clinic-c"],
            6,
            0,
        )
    assert value("client", "status", "--dir", a)["aggregation"]["in_round"] is False
    assert value("client", "sync", "--dir", a)["head"] == head_of(
        "clinic-a", "clinic-b", "clinic-c"
    )
    assert served.samples() == 6


def test_an_order_is_answered_without_disclosing_how_many_samples(served: Federation) -> None:
    folders = joined(served, "clinic-a", "clinic-b", "clinic-c")
    office = ["--office", served.office]
    order = value("order", "file", "p1", *office)["order"]
    waiting = run("client", "sync", "--no-wait", "--dir", folders[0], code=7).stdout.words
    assert "carried out: 1 sample found and to be deleted in a round" in waiting
    assert "1 to be deleted, 1 erasure order to be answered" in waiting
    done = take_turns(folders)
    assert [len(one["receipts"]) for one in done.values()] == [
        2,
        2,
        2,
    ]  # of the round, and of the answer

    found = value("order", "show", order, *office)
    assert (found["state"], [one["found"] for one in found["answers"]]) == ("complete", [None] * 3)
    assert value("order", "list", *office)["orders"] == [found]
    assert run("order", "show", order, *office, env=WIDE).stdout.count("not disclosed") == 3
    assert "not disclosed" in run("order", "list", *office, env=WIDE).stdout
    assert (
        " -1 "
        not in run("order", "show", order, *office).stdout + run("order", "list", *office).stdout
    )
    page = served.path / "order.html"
    assert value("order", "bundle", order, "-o", page, *office)["state"] == "complete"
    run("verify", page, "--key", served.key)
    assert value("client", "sync", "--dir", folders[0])["head"] == head_of(
        "clinic-a", "clinic-b", "clinic-c", without=["p1"]
    )

    clients = value("server", "clients", *office)["clients"]
    assert {one["samples"] for one in clients if one["role"] == "client"} == {None}
    assert run("server", "clients", *office, env=WIDE).stdout.count("not disclosed") == 3


def test_receipts_of_rounds_are_told_as_such_and_hold(served: Federation) -> None:
    folder = joined(served, "clinic-a", "clinic-b", "clinic-c")[0]
    shown = run("client", "receipts", "--dir", folder).stdout
    assert "Clients" in shown
    assert "for all clients of a round together" in shown
    (receipt,) = value("client", "receipts", "--dir", folder)["receipts"]
    assert (receipt["added"], receipt["aggregation"]["added"]) == (None, 6)
    file = served.path / "receipt.json"
    run("client", "receipts", 1, "-o", file, "--dir", folder)
    assert "in a round of 3 clients" in run("verify", file, "--key", served.key).stdout
    file.write_bytes(file.read_bytes().replace(b"a", b"b", 1))
    run("verify", file, "--key", served.key, code=3)


def test_an_audit_needs_all_clients_and_compares_their_sum(served: Federation) -> None:
    folders = joined(served, "clinic-a", "clinic-b", "clinic-c")
    office = ["--office", served.office]
    told = value("server", "status", *office)["aggregation"]
    last = told.pop("last")
    receipt = value("client", "receipts", "--dir", folders[0])["receipts"][-1]
    assert last == {
        "round": 1,
        "clients": 3,
        "added": 6,
        "deleted": 0,
        "time": receipt["time"],
    }
    assert told == {
        "wanted": "change",
        "forgetting": [],
        "needed": [],
        "fewest": 3,
        "disputes": [],
        "barred": [],
        "culprits": [],
        "schedule": None,
    }
    assert "3 clients, 6 added, 0 deleted" in run("server", "status", *office).stdout.words
    under_way = run("audit", *office, code=7).stdout
    assert "needs all of them at the same time" in under_way
    told = value("server", "status", *office)["aggregation"]
    assert (told["wanted"], told["needed"]) == ("audit", ["clinic-a", "clinic-b", "clinic-c"])
    assert (
        "an audit: needs all of clinic-a, clinic-b, clinic-c"
        in run("server", "status", *office).stdout
    )
    at_hand = [option for folder in folders for option in ("--client-dir", folder)]
    found = value("audit", *at_hand, *office)  # both audits end in one round
    assert (found["result"], found["equal"], found["count"]) == (
        "equal",
        ["clinic-a", "clinic-b", "clinic-c"],
        6,
    )
    shown = run("audit", "--show", "last", *office).stdout
    assert "Sum of" in shown
    assert "Samples in the ledger" in shown
    assert value("server", "status", *office)["aggregation"]["wanted"] == "change"


def test_a_client_is_forgotten_when_the_others_have_added_up_what_they_hold(
    served: Federation,
) -> None:
    folders = joined(served, "clinic-a", "clinic-b", "clinic-c", "clinic-d")
    office = ["--office", served.office]
    result = run("server", "forget-client", "clinic-a", "--yes", *office, code=7)
    shown = result.stdout.words
    assert "its samples are still in the ledger" in shown
    assert (
        "All other clients (clinic-b, clinic-c, clinic-d) must now add up what they hold" in shown
    )
    assert served.samples() == 7
    told = value("server", "status", *office)["aggregation"]
    assert (told["wanted"], told["forgetting"], told["needed"]) == (
        "rebuild",
        ["clinic-a"],
        ["clinic-b", "clinic-c", "clinic-d"],
    )
    assert "a rebuild without clinic-a" in run("server", "status", *office).stdout
    waiting = run("client", "sync", "--no-wait", "--dir", folders[1], code=7).stdout.words
    assert "a round of all clients, in which this one changes nothing" in waiting
    take_turns(folders[1:])
    assert served.samples() == 5
    assert value("server", "status", *office)["aggregation"]["wanted"] == "change"
    assert value("client", "sync", "--dir", folders[1])["head"] == head_of(
        "clinic-b", "clinic-c", "clinic-d"
    )


def test_a_client_has_left_only_when_the_round_is_complete(served: Federation) -> None:
    folders = joined(served, "clinic-a", "clinic-b", "clinic-c")
    for folder, one in ((folders[1], "b1"), (folders[2], "c1")):
        run("client", "forget", "--id", one, "--yes", "--no-wait", "--dir", folder, code=7)
    told = value("client", "leave", "--yes", "--no-wait", "--dir", folders[0], code=7)
    assert (told["left"], told["count"]) == (False, 2)
    assert "is leaving" in run("client", "status", "--dir", folders[0]).stdout
    take_turns(folders)
    assert value("client", "status", "--dir", folders[0])["left"] is True
    assert served.samples() == 2


def test_a_client_whose_server_is_not_running_is_told_to_let_it_run(place: Federation) -> None:
    folder = place.enrol("clinic-a")
    shown = run(
        "client", "add", place.file("a.csv", ROWS["clinic-a"]), "--dir", folder, code=7
    ).stdout  # it does not wait
    assert "The server is not running, so no round can take place" in shown
    assert f"  expunge serve {place.folder}\n" in shown
    assert value("client", "status", "--dir", folder)["adding"] == 2


def test_a_lost_server_is_rebuilt_by_a_round_of_its_clients(served: Federation) -> None:
    folders = joined(served, "clinic-a", "clinic-b", "clinic-c")
    at_hand = [option for folder in folders for option in ("--client-dir", folder)]
    made = value("audit", "--rebuild", served.path / "new", *at_hand)
    assert (made["verdict"], made["samples"], made["waiting"]) == ("equal", 6, [])
    assert made["head"] == head_of("clinic-a", "clinic-b", "clinic-c")
