"""`expunge arbiter`, and what operators do about false sums: from a lie to a verdict."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from expunge.cli._aggregation import held_up
from expunge.cli._format import show_synced
from expunge.client import SyncResult
from expunge.federation import Federation as Embedded
from expunge.server.secagg import SecureAggregation
from expunge.storage.files import erase
from support.cli import Federation, value
from support.disputes import LIAR, NAMES, RULES, liar, lied_to, sync
from support.printed import Printed, run
from support.wrong_shares import called_irrecoverable, dealing_wrong


def test_from_a_lie_to_a_verdict(tmp_path: Path) -> None:
    federation = lied_to(tmp_path)
    office, dispute, verdict = federation.office, tmp_path / "dispute", tmp_path / "verdict.json"
    (listed,) = value("server", "disputes", "--office", office)["disputes"]
    assert listed["clients"] == listed["opened"] == ["a", "b", "c", "d"]
    assert "False sum" in run("server", "status", "--office", office).stdout
    written = value("server", "dispute", "-o", dispute, "--office", office)
    assert (written["opened"], written["missing"]) == (["a", "b", "c", "d"], [])
    judged = value("arbiter", "judge", dispute, "--dir", tmp_path / "arbiter", "-o", verdict)
    assert list(judged["false"]) == ["c"]
    assert judged["found"]["a"] is None
    shown = run("arbiter", "judge", dispute, "--dir", tmp_path / "arbiter").stdout
    assert "c: false. The others can go on." in shown
    done = value("server", "judge", verdict, "--yes", "--office", office)
    assert list(done["false"]) == ["c"]
    assert value("server", "disputes", "--office", office, code=6) == {"disputes": []}
    sync(federation, without="c")
    assert federation.samples() == 3
    assert "1 barred" in run("server", "status", "--office", office).stdout
    refused = run("server", "judge", verdict, "--yes", "--office", office, code=1)
    assert "no such sum is in dispute" in refused.output


def test_who_has_not_opened_its_part_is_named(tmp_path: Path) -> None:
    """Nobody is found false while the liar's opening is missing, which is not held against it."""
    federation = lied_to(tmp_path)
    dispute = tmp_path / "dispute"
    run("server", "dispute", "-o", dispute, "--office", federation.office)
    erase(dispute / "c.opening")
    judged = value("arbiter", "judge", dispute, "--dir", tmp_path / "arbiter", code=7)
    assert (judged["false"], judged["missing"], judged["verdict"]) == ({}, ["c"], None)
    named = value("arbiter", "judge", dispute, "--dir", tmp_path / "arbiter", "--false", "d")
    assert list(named["false"]) == ["d"]


def test_a_sum_that_cannot_be_unmasked_is_called_so(tmp_path: Path) -> None:
    federation = lied_to(tmp_path, lambda: dealing_wrong("c", "seed"))
    dispute, keys = tmp_path / "dispute", tmp_path / "arbiter"
    run("server", "dispute", "-o", dispute, "--office", federation.office)
    shown = run("arbiter", "judge", dispute, "--dir", keys).stdout
    assert "A sum of 4 clients that cannot be unmasked" in shown
    assert "c: false. The others can go on." in shown
    judged = value("arbiter", "judge", dispute, "--dir", keys)
    assert judged["reason"] == "irrecoverable"
    assert "dealt other shares" in judged["false"]["c"]


def test_a_server_that_says_so_without_reason_gets_no_verdict(tmp_path: Path) -> None:
    federation = lied_to(tmp_path, called_irrecoverable)
    dispute, keys = tmp_path / "dispute", tmp_path / "arbiter"
    run("server", "dispute", "-o", dispute, "--office", federation.office)
    shown = run("arbiter", "judge", dispute, "--dir", keys, code=1).stdout
    assert "the server says what is not true" in " ".join(shown.split())
    assert value("arbiter", "judge", dispute, "--dir", keys, code=1)["verdict"] is None


def test_bad_input_is_explained(tmp_path: Path) -> None:
    federation = lied_to(tmp_path)
    dispute, keys = tmp_path / "dispute", tmp_path / "arbiter"
    run("server", "dispute", "-o", dispute, "--office", federation.office)
    assert "is not empty" in run("arbiter", "create", keys, code=1).output
    again = run("server", "dispute", "-o", dispute, "--office", federation.office, code=1)
    assert "is not empty" in again.output
    other = tmp_path / "other"
    run("arbiter", "create", other)
    assert "not for this arbiter" in run("arbiter", "judge", dispute, "--dir", other, code=3).output
    nobody = run("arbiter", "judge", dispute, "--dir", tmp_path / "none", code=1).output
    assert "expunge arbiter create" in nobody
    stranger = run("arbiter", "judge", dispute, "--dir", keys, "--false", "zoo", code=1).output
    assert "zoo had no part in this sum" in stranger
    assert "expunge server dispute" in run("arbiter", "judge", keys, "--dir", keys, code=1).output
    (dispute / "dispute.json").write_text("{")
    assert "is not JSON" in run("arbiter", "judge", dispute, "--dir", keys, code=1).output
    round_id = run(
        "server", "dispute", "nothing", "-o", tmp_path / "d", "--office", federation.office, code=1
    )
    assert "beginning of its id" in round_id.output
    wrong = tmp_path / "wrong.pub"
    wrong.write_text("arbiter\n")
    refused = run("init", tmp_path / "f", *RULES, "--arbiter", wrong, code=1).output
    assert "expunge arbiter create" in refused
    wrong.write_text("expunge-arbiter-public-1." + "0" * 128)
    refused = run("init", tmp_path / "f", *RULES, "--arbiter", wrong, code=1).output
    assert "small order" in refused
    secret = keys / "arbiter.key"
    refused = run("init", tmp_path / "f", *RULES, "--arbiter", secret, code=1).output
    assert "keep its arbiter.key secret" in refused
    assert secret.read_text().strip()[-64:] not in refused
    assert not (tmp_path / "f").exists()


def test_files_that_are_damaged_or_others_are_named(tmp_path: Path) -> None:
    federation = lied_to(tmp_path)
    dispute, keys = tmp_path / "dispute", tmp_path / "arbiter"
    run("server", "dispute", "-o", dispute, "--office", federation.office)
    nowhere = tmp_path / "no" / "verdict.json"
    refused = run("arbiter", "judge", dispute, "--dir", keys, "-o", nowhere, code=1).output
    assert "make it, or choose another" in refused
    secret = keys / "arbiter.key"
    for text in ("expunge-arbiter-secret-1.zz", "expunge-arbiter-secret-1.00", "00"):
        secret.write_text(text)
        refused = run("arbiter", "judge", dispute, "--dir", keys, code=1).output
        assert "put it back from a copy" in refused
    opening = dispute / "a.opening"
    opening.write_bytes(opening.read_bytes()[:200])
    refused = run("arbiter", "judge", dispute, "--dir", keys, code=1).output
    assert "a.opening is damaged: ask the operator for it again" in refused
    for text in ("", "[]", "{}"):
        other = tmp_path / "other.json"
        other.write_text(text)
        refused = run(
            "server", "judge", other, "--yes", "--office", federation.office, code=1
        ).output
        assert "is no verdict: give the file that" in refused


def test_without_secure_aggregation_there_are_no_disputes(tmp_path: Path) -> None:
    federation = Federation.found(tmp_path)
    refused = run("server", "disputes", "--office", federation.office, code=1).output
    assert "does not use secure aggregation" in refused
    assert (
        "--arbiter is a rule"
        in run(
            "init", tmp_path / "x", "--dim", 3, "--outputs", 1, "--arbiter", __file__, code=2
        ).output
    )


# -- what the clients of a false sum are told ------------------------------------------------------


def told(federation: Federation) -> list[str]:
    """All that honest clients hear while a sum is found to be false."""
    heard: list[str] = []
    with Embedded.open(federation.folder) as embedded:
        for _ in range(8):
            heard += [embedded.client(name).sync().waiting for name in NAMES if name != LIAR]
            embedded.client(LIAR).sync()
    return heard


def test_honest_clients_of_a_false_sum_are_not_blamed(tmp_path: Path) -> None:
    federation = Federation.found(tmp_path, *RULES)
    with Embedded.open(federation.folder) as embedded:
        for number, name in enumerate(NAMES):
            store = embedded.client(name).store
            store.add([f"{name}{number}"], [[1.0, number, 0.5]], ["cat"], now=0)
    with liar():
        heard = [one for one in told(federation) if "cannot tell which client's" in one]
    assert heard
    for one in heard:
        assert "Delete only samples that were added" not in one
        assert "open their parts to the arbiter" not in one  # there is none
        assert one.lower().count("nothing was changed") == 1
        assert one.endswith("the next sync goes on")


def test_from_the_opening_of_a_part_to_the_bar_everybody_is_told_what_to_do(tmp_path: Path) -> None:
    federation = lied_to(tmp_path)
    office, dispute, keys = ("--office", federation.office), tmp_path / "dispute", "arbiter"
    honest, false = (federation.folder / "clients" / name for name in ("a", LIAR))
    shown = run("client", "status", "--dir", honest).stdout
    assert "this client has opened its part to the arbiter, and waits for the verdict" in shown
    assert "smaller groups" not in shown

    run("server", "dispute", "-o", dispute, *office)
    verdict = tmp_path / "verdict.json"
    judge = ("arbiter", "judge", dispute, "--dir", tmp_path / keys)
    assert run(*judge, "--false", "a").stderr == ""  # it is the arbiter's word against a part
    for name in ("b", "d"):
        erase(dispute / f"{name}.opening")
    caution = run(*judge, "--false", "a").stderr
    assert "although what they opened passes: a. Not opened yet: b, d" in caution
    assert run(*judge, "-o", verdict).stderr == ""  # c is found false, whatever others opened

    run("server", "judge", verdict, "--yes", *office)
    waits = "c barred by the arbiter: forget it (expunge server forget-client)"
    assert waits in run("audit", *office, code=7).stdout
    shown = run("server", "status", *office).stdout
    assert "needs all of a, b, d at the same time" not in shown
    assert f"changes of 3 clients or more. An audit must wait: {waits}" in shown
    rounds = {"needed": ["a", "d"], "barred": ["c"], "culprits": [], "fewest": 3}
    assert held_up(rounds) == f"{waits}; 2 active, and 3 needed: enrol more clients"

    barred = run("client", "sync", "--no-wait", "--dir", false, code=1).stdout
    assert "This client is barred" in barred
    assert "Ask the operator, who can forget this client" in barred
    assert "Nothing is lost" not in barred
    assert "Pending 1 to be added" in barred
    assert value("client", "sync", "--no-wait", "--dir", false, code=1)["status"] == "barred"
    sync(federation, without=LIAR)
    assert "waits for the verdict" not in run("client", "status", "--dir", honest).stdout


def test_who_dealt_wrong_shares_is_in_the_status_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = Federation.found(tmp_path, *RULES, "--set-aside-after", "2d")
    with Embedded.open(federation.folder) as embedded:
        for name in NAMES:
            embedded.client(name)
    monkeypatch.setattr(SecureAggregation, "culprits", frozenset({"c"}))
    office = ("--office", federation.office)
    remedy = (
        "c dealt wrong shares, so no join of it is taken: restart the server to try again, or "
        "forget it (expunge server forget-client)"
    )
    assert f"Wrong shares {remedy}" in run("server", "status", *office).stdout
    assert f"Must wait {remedy}" in run("audit", *office, code=7).stdout
    assert f"An audit must wait: {remedy}" in run("server", "status", *office).stdout
    assert "go on without a client after 2d" in run("server", "spec", *office).stdout


def printed(*parts: RenderableType) -> Printed:
    console = Console(file=(file := StringIO()), width=200)
    for part in parts:
        console.print(part)
    return Printed(file.getvalue())


def test_a_cover_is_a_round_of_changes(tmp_path: Path) -> None:
    federation = Federation.found(tmp_path, *RULES)
    with Embedded.open(federation.folder) as embedded:
        status = embedded.client("a").store.status()
    waiting = SyncResult("active", waiting="it waits for others")
    for composed, words in ((None, "a round of all clients"), (2, "a round of changes")):
        rows = show_synced(waiting, replace(status, composed=composed))
        assert f"{words}, in which this one changes nothing" in printed(*rows)
