"""`expunge aggregator`: a group under another server, from the token to a proof that a request has
reached the root.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from support.cli import ROWS_A, ROWS_B, Federation, run, value
from support.serving import Server


@pytest.fixture
def root(tmp_path: Path) -> Federation:
    return Federation.found(
        tmp_path, "--dim", 3, "--labels", "cat,dog", "--messages", "rows,gram,group"
    )


def group_under(root: Federation, *options: object) -> Path:
    token = root.path / "north.token"
    run("server", "token", "north", "-o", token, "--office", root.office)
    shown = run("aggregator", "found", root.path / "north", token, *options).output
    assert "Group north created" in shown
    return root.path / "north"


def client_of(group: Path, name: str, rows: str) -> Path:
    folder, token = group.parent / name, group.parent / f"{name}.token"
    run("server", "token", name, "-o", token, "--office", group / "operator")
    run("enroll", token, "--dir", folder)
    (group.parent / f"{name}.csv").write_text(rows)
    run("client", "add", group.parent / f"{name}.csv", "--dir", folder)
    return folder


def test_from_a_token_to_a_passage(root: Federation) -> None:
    group = group_under(root)
    client_of(group, "clinic-a", ROWS_A)
    client_of(group, "clinic-b", ROWS_B)
    shown = run("aggregator", "sync", group).output
    assert "5 samples added" in shown
    assert value("server", "status", "--office", root.office)["samples"] == 5
    assert "nothing has changed" in run("aggregator", "sync", group).output
    run("client", "forget", "--subject", "p1", "--yes", "--dir", root.path / "clinic-a")
    told = value("aggregator", "sync", group)
    assert (told["samples"], told["receipts"]) == (3, [2])
    proof = root.path / "passage.json"
    printed = run("aggregator", "passage", group, "clinic-a", 2, "-o", proof).output
    assert "clinic-a through north" in printed
    assert "2 samples" in run("verify", proof, "--key", root.key).output
    run("verify", proof, "--trust", group / "upstream")
    assert value("aggregator", "passage", group, "clinic-a", "last", "-o", proof)["sequence"] == 2
    refused = run("aggregator", "passage", group, "clinic-a", 3, "-o", proof, code=1).stderr
    assert "there is no request '3'; there are 2, 1" in refused
    proof.write_bytes(proof.read_bytes().replace(b"clinic-a", b"clinic-b", 1))
    run("verify", proof, "--key", root.key, code=3)


def test_an_order_of_the_root_reaches_the_group(root: Federation) -> None:
    group = group_under(root)
    clinic = client_of(group, "clinic-a", ROWS_A)
    run("aggregator", "sync", group)
    run("order", "file", "p1", "--office", root.office)
    assert "filed in the group" in run("aggregator", "sync", group).output
    run("client", "sync", "--dir", clinic)
    run("aggregator", "sync", group)
    (order,) = value("order", "list", "--office", root.office)["orders"]
    assert order["state"] == "complete"


def test_secure_aggregation_within_the_group(root: Federation) -> None:
    group = group_under(root, "--secure-aggregation", "--fewest", 4)
    assert (
        value("server", "spec", "--office", group / "operator")["spec"]["aggregation"]["fewest"]
        == 4
    )
    run("aggregator", "sync", group)


def test_refusals(root: Federation) -> None:
    assert "federation of its own" in run("aggregator", "sync", root.folder, code=None).output
    token = root.path / "south.token"
    run("server", "token", "south", "-o", token, "--office", root.office)
    mixed = ("--secure-aggregation", "--messages", "rows")
    run("aggregator", "found", root.path / "south", token, *mixed, code=2)
    run("aggregator", "found", root.folder, token, code=None)
    run("aggregator", "found", root.path / "south", token)
    run(
        "aggregator",
        "passage",
        root.path / "south",
        "nobody",
        1,
        "-o",
        root.path / "p.json",
        code=None,
    )
    assert not (root.path / "p.json").exists()


def test_a_root_that_allows_no_groups(tmp_path: Path) -> None:
    root = Federation.found(tmp_path)
    token = root.path / "north.token"
    run("server", "token", "north", "-o", token, "--office", root.office)
    shown = run("aggregator", "found", root.path / "north", token, code=None)
    assert shown.exit_code != 0
    assert "group" in shown.output
    assert not (root.path / "north").exists()


def test_a_served_group_keeps_itself_in_step(root: Federation) -> None:
    above = Server(root.folder)
    try:
        below = Server(group_under(root), "--forward-every", "0.2")
        try:
            client_of(root.path / "north", "clinic-a", ROWS_A)
            end = time.monotonic() + 20.0
            while value("server", "status", "--office", root.office)["samples"] != 3:
                assert time.monotonic() < end, "nothing was forwarded"
                time.sleep(0.1)
            told = run("aggregator", "sync", root.path / "north", code=None)
            assert told.exit_code != 0
            assert "that process keeps it up to date" in told.output
        finally:
            log = below.stop()
    finally:
        above.stop()
    assert "forwarded to the server above" in log
    assert below.process.returncode == 0
