"""`expunge order` and `expunge audit`: from a person's request to evidence, and from the clients
back to a lost server.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread

import pytest

from expunge.client import ClientStore, Selection
from expunge.server.service import Service
from support.cli import ROWS_A, ROWS_B, Federation, run, set_waits, value


@pytest.fixture
def place(tmp_path: Path) -> Federation:
    return Federation.found(tmp_path)


def test_an_order_from_filing_to_closing(place: Federation) -> None:
    a, b = place.client("clinic-a", ROWS_A), place.client("clinic-b", ROWS_B)
    officer = ["--office", place.enrol("privacy", role="officer")]
    told = value("order", "file", "p1", "--days", 5, *officer)
    assert (told["state"], told["waiting"]) == ("open", ["clinic-a", "clinic-b"])
    order, page = told["order"], place.path / "order.html"

    assert value("client", "sync", "--dir", a)["orders"] == [{"order": order, "found": 2}]
    assert value("order", "bundle", order[:6], "-o", page, *officer, code=7)["state"] == "open"
    assert "not complete" in run("order", "close", order, "--yes", *officer, code=1).stderr
    value("client", "sync", "--dir", b)

    shown = run("order", "show", "last", *officer).stdout
    assert "complete" in shown
    assert "p1" not in shown
    assert value("order", "bundle", order, "-o", page, *officer)["receipts"] == 2
    run("verify", page, "--key", place.key)
    assert b"p1" in page.read_bytes()
    assert value("order", "close", order, "--yes", *officer) == {"order": order}
    assert (
        "has been forgotten" in run("order", "bundle", order, "-o", page, *officer, code=1).stderr
    )
    assert place.samples() == 2


def test_a_reference_is_shown_beside_the_order_and_in_its_bundle(place: Federation) -> None:
    folder, page = place.client("clinic-a", ROWS_A), place.path / "order.html"
    office = ["--office", place.office]
    assert "Reference" not in run("order", "file", "p2", *office).stdout
    assert "Reference" not in run("order", "list", *office).stdout
    assert "Reference" not in run("order", "show", "last", *office).stdout
    filed = run("order", "file", "p1", "--reference", "DPO-2026/0815", *office).stdout
    order = next(one for one in value("order", "list", *office)["orders"] if one["reference"])[
        "order"
    ]
    for shown in (
        filed,
        run("order", "list", *office).stdout,
        run("order", "show", order, *office).stdout,
    ):
        assert "Reference" in shown
        assert "DPO-2026/0815" in shown
    run("client", "sync", "--dir", folder)
    run("order", "bundle", order, "-o", page, *office)
    assert "DPO-2026/0815" in run("verify", page, "--key", place.key).stdout
    run("order", "close", order, "--yes", *office)
    assert value("order", "show", order, *office)["reference"] == "DPO-2026/0815"
    told = run("order", "file", "p1", "--reference", "x" * 201, *office, code=1).stderr
    assert "at most 200 characters" in told
    assert "Nothing personal" in run("order", "file", "--help").stdout


def test_subjects_may_have_other_names_at_some_clients_and_come_by_standard_input(
    place: Federation,
) -> None:
    a, b = place.client("clinic-a", ROWS_A), place.client("clinic-b", ROWS_B)
    order = value(
        "order", "file", "-", "--known-as", "clinic-b=p3", "--office", place.office, given="p2\n"
    )["order"]
    assert value("client", "sync", "--dir", a)["orders"] == [{"order": order, "found": 1}]
    assert value("client", "sync", "--dir", b)["orders"] == [{"order": order, "found": 1}]
    wrong = run("order", "file", "p1", "--known-as", "clinic-b", "--office", place.office, code=1)
    assert "must be CLIENT=SUBJECT" in wrong.stderr
    assert (
        "not enrolled: nobody"
        in run(
            "order", "file", "p1", "--known-as", "nobody=x", "--office", place.office, code=1
        ).stderr
    )
    assert (
        "the subject is empty"
        in run("order", "file", "-", "--office", place.office, code=1, given="\n").stderr
    )


def test_overdue_orders_come_first_and_make_a_script_notice(
    place: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = {"orders": [], "total": 0, "unknown": []}
    assert value("order", "list", "--office", place.office) == nothing
    assert "No orders yet" in run("order", "list", "--office", place.office).stdout
    place.client("clinic-a", ROWS_A)
    late = value("order", "file", "p1", "--days", 1, "--office", place.office)["order"]
    early = value("order", "file", "p2", "--days", 9, "--office", place.office)["order"]
    assert value("order", "list", "--overdue", "--office", place.office)["orders"] == []
    now = time.time() + 2 * 86400
    monkeypatch.setitem(Service.open.__func__.__kwdefaults__, "clock", lambda: now)  # type: ignore[attr-defined]
    found = value("order", "list", "--office", place.office)["orders"]
    assert [(one["order"], one["state"]) for one in found] == [(late, "overdue"), (early, "open")]
    told = value("order", "list", "--overdue", "--office", place.office, code=7)
    assert [one["order"] for one in told["orders"]] == [late]


def test_orders_are_named_by_the_beginning_of_their_ids(place: Federation) -> None:
    first = value("order", "file", "p1", "--office", place.office)["order"]
    assert value("order", "show", first[:5], "--office", place.office)["order"] == first
    assert (
        "there is no order 'zz'"
        in run("order", "show", "zz", "--office", place.office, code=1).stderr
    )
    value("order", "file", "p2", "--office", place.office)
    assert "'' names 2 orders" in run("order", "show", "", "--office", place.office, code=1).stderr


def test_orders_are_named_by_their_reference_in_every_command(place: Federation) -> None:
    office, page = ["--office", place.office], place.path / "order.html"
    first = value("order", "file", "p1", "--reference", "T-1", *office)["order"]
    second = value("order", "file", "p2", "--reference", "T-2", *office)["order"]
    assert value("order", "show", "T-1", *office)["order"] == first
    assert value("order", "show", "last", *office)["order"] == second
    assert value("order", "bundle", "T-2", "-o", page, *office)["order"] == second
    assert value("order", "close", "T-2", "--yes", *office) == {"order": second}
    third = value("order", "file", "p3", "--reference", "T-1", *office)["order"]
    refused = run("order", "close", "T-1", "--yes", *office, code=1).stderr
    assert "'T-1' names 2 orders" in refused
    assert first[:8] in refused
    assert third[:8] in refused


def test_the_order_filed_last_is_last_even_within_one_second(
    place: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    monkeypatch.setitem(Service.open.__func__.__kwdefaults__, "clock", lambda: now)  # type: ignore[attr-defined]
    for number in range(6):
        filed = value("order", "file", f"p{number}", "--office", place.office)["order"]
        assert value("order", "show", "last", "--office", place.office)["order"] == filed


# -- audits ----------------------------------------------------------------------------------------


def test_an_audit_waits_for_clients_and_then_finds_the_ledger_equal(place: Federation) -> None:
    a, b = place.client("clinic-a", ROWS_A), place.client("clinic-b", ROWS_B)
    told = value("audit", "--client-dir", a, "--office", place.office, code=7)
    assert (told["result"], told["equal"], told["waiting"]) == (
        "under way",
        ["clinic-a"],
        ["clinic-b"],
    )
    assert value(
        "audit", "--show", "last", "--wait", "--timeout", 0.3, "--office", place.office, code=7
    )["waiting"] == ["clinic-b"]
    run("client", "sync", "--dir", b)
    told = value("audit", "--show", told["audit"][:6], "--office", place.office)
    assert (told["result"], told["count"]) == ("equal", 5)


def test_while_it_waits_clients_of_the_same_machine_can_answer(place: Federation) -> None:
    folder = place.client("clinic-a", ROWS_A)
    started = value("audit", "--office", place.office, code=7)["audit"]
    results = []
    waiting = Thread(
        target=lambda: results.append(
            value("audit", "--show", started, "--wait", "--office", place.office)
        )
    )
    waiting.start()
    sync = [
        sys.executable,
        "-c",
        "from expunge.cli.main import main; main()",
        "client",
        "sync",
        "--dir",
        str(folder),
    ]
    subprocess.run(sync, check=True, capture_output=True)  # noqa: S603 - our own program
    waiting.join()
    assert results[0]["result"] == "equal"


def test_an_audit_is_named_in_later_certificates(place: Federation) -> None:
    a, b = place.client("clinic-a", ROWS_A), place.client("clinic-b", ROWS_B)
    shown = run("audit", "--client-dir", a, "--client-dir", b, "--office", place.office).stdout
    assert "The ledger equals, bit for bit, the sum of what all clients recomputed" in shown
    assert value("head", "--office", place.office)["audit"]["result"] == "equal"
    assert (
        "there is no audit 'zz'"
        in run("audit", "--show", "zz", "--office", place.office, code=1).stderr
    )


def test_an_audit_names_the_client_whose_store_is_not_what_the_server_holds(
    place: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = place.client("clinic-a", ROWS_A), place.client("clinic-b", ROWS_B)
    with ClientStore.open(b) as store:
        fewer = store.statistics() - store.statistics()
    real = ClientStore.statistics

    def altered(store: ClientStore, *arguments: object, **options: object) -> object:
        return fewer if store.name == "clinic-b" else real(store, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(ClientStore, "statistics", altered)
    told = value("audit", "--client-dir", a, "--client-dir", b, "--office", place.office, code=3)
    assert (told["result"], told["equal"], told["different"]) == (
        "different",
        ["clinic-a"],
        ["clinic-b"],
    )


# -- rebuilding ------------------------------------------------------------------------------------


def test_a_lost_server_is_rebuilt_from_its_clients_with_the_same_head(place: Federation) -> None:
    a, b = place.client("clinic-a", ROWS_A), place.client("clinic-b", ROWS_B)
    run("client", "forget", "--id", "a2", "--yes", "--dir", a)
    head = value("client", "sync", "--dir", b)["head"]
    shutil.rmtree(place.folder)
    new = place.path / "rebuilt"
    told = value("audit", "--rebuild", new, "--client-dir", a, "--client-dir", b)
    assert (told["verdict"], told["head"], told["samples"]) == ("equal", head, 4)
    assert (
        value("audit", "--client-dir", a, "--client-dir", b, "--office", new)["result"] == "equal"
    )
    assert (
        value("client", "forget", "--id", "b2", "--yes", "--dir", b)["sync"]["receipts"][0][
            "deleted"
        ]
        == 1
    )
    receipts = value("client", "receipts", "--dir", a)["receipts"]  # of both servers
    assert [one["reset"] for one in receipts][:3] == [False, False, True]
    assert value("key", a)["key"] == told_key(new)


def told_key(folder: Path) -> str:
    return str(value("key", folder)["key"])


def test_clients_elsewhere_rejoin_by_a_token_and_until_then_the_head_is_not_called_equal(
    place: Federation,
) -> None:
    a, b = place.client("clinic-a", ROWS_A), place.client("clinic-b", ROWS_B)
    run("client", "sync", "--dir", a)
    shutil.rmtree(place.folder)
    told = value("audit", "--rebuild", place.path / "new", "--client-dir", a)
    assert (told["verdict"], told["samples"], told["old_samples"]) == ("changed", 3, 5)
    token = value("server", "token", "clinic-b", "--office", place.path / "new")["token"]
    run("enroll", token, "--dir", b, "--rejoin")
    told = value("audit", "--rebuild", place.path / "new", "--client-dir", a, "--client-dir", b)
    assert (told["verdict"], told["samples"]) == ("equal", 5)


def test_as_many_samples_with_another_head_are_called_different(place: Federation) -> None:
    a, b = place.client("clinic-a", ROWS_A), place.client("clinic-b", ROWS_B)
    run("client", "correct", "a1", "--label", "dog", "--dir", a)
    (
        a / "head"
    ).unlink()  # so that the head known to clinic-b, from before, is all there is to compare with
    shutil.rmtree(place.folder)
    refused = run(
        "audit", "--rebuild", place.path / "new", "--client-dir", a, "--client-dir", b, code=3
    )
    assert "as many samples and clients as the lost one, but another head" in refused.stderr


def test_what_became_of_an_earlier_command_is_shown_even_if_the_next_one_is_refused(
    place: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_waits(monkeypatch, attempts=1)
    office = ("--office", place.office)
    run("order", "file", "p1", *office, "--at", "http://127.0.0.1:9", code=4)
    refused = run("server", "forget-client", "nobody", "--yes", *office, code=1).stderr
    assert "the earlier command order, which had no answer, has been carried out" in refused
    assert "nobody" in refused
    assert len(value("order", "list", *office)["orders"]) == 1


def test_pending_deletions_are_not_brought_back_by_a_rebuild(place: Federation) -> None:
    a = place.client("clinic-a", ROWS_A)
    with ClientStore.open(a) as store:
        store.forget(Selection(subject="p1"))
    shutil.rmtree(place.folder)
    told = value("audit", "--rebuild", place.path / "new", "--client-dir", a)
    assert (told["verdict"], told["samples"]) == ("changed", 1)
    assert value("client", "status", "--dir", a)["deleting"] == 0


def test_a_rebuild_needs_clients_and_clients_of_one_federation(
    place: Federation, tmp_path: Path
) -> None:
    assert (
        "give at least one, --client-dir DIR"
        in run("audit", "--rebuild", place.path / "new", code=1).stderr
    )
    other = Federation.found(tmp_path / "elsewhere", "--dim", 2, "--labels", "cat,dog")
    stranger, ours = other.enrol("stranger"), place.client("clinic-a", ROWS_A)
    refused = run(
        "audit",
        "--rebuild",
        place.path / "new",
        "--client-dir",
        ours,
        "--client-dir",
        stranger,
        code=1,
    )
    assert "stranger is of another federation" in refused.stderr
    assert not (place.path / "new").exists()
