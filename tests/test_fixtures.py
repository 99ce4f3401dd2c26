"""What earlier versions have written can be opened, and goes on as if it were of this version.

`tests/fixtures/write.py` has written one folder for each version. Only the command line and public
names are used here. Nothing depends on the date: orders may be overdue, tokens expired.
"""

from __future__ import annotations

import csv
import gzip
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import expunge
from expunge.approximate import ApproximateMessage
from expunge.cli.main import main
from fixtures.write import DONE, INCOMPLETE, PATIENT, PHASES, TRIO, Server

VERSIONS = sorted(path.parent for path in Path(__file__).parent.glob("fixtures/*/expected.json"))
UNSET = {"EXPUNGE_OFFICE": None, "EXPUNGE_CLIENT": None}
BROKEN = 3  # the exit code of evidence that does not hold
EVIDENCE = [  # a file, and the key that it was signed with, or one that rotations link to it
    ("head.expunge", "server-2.pub", "head"),
    ("head-float64.expunge", "float64.pub", "head"),
    ("order-closed.html.gz", "server-1.pub", "bundle"),
    ("order-complete.html.gz", "server-1.pub", "bundle"),
    ("order-masked.html.gz", "masked.pub", "bundle"),
    ("receipts-south/receipt-1.json", "server-1.pub", "receipt"),
    ("receipts-south/receipt-1.json", "server-2.pub", "receipt"),
    ("receipts-west/receipt-5.json", "server-1.pub", "receipt"),
    ("receipts-west/receipt-5.json", "server-2.pub", "receipt"),
    ("receipts-ash/receipt-1.json", "masked.pub", "receipt"),
    ("rotation.json", "server-1.pub", "rotation"),
    ("checkpoint.json", "crashed.pub", "checkpoint"),
    ("result.json", "crashed.pub", "result"),
    ("passage.json", "root.pub", "passage"),
]


@pytest.fixture(params=VERSIONS, ids=lambda path: path.name)
def version(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


@pytest.fixture
def files(version: Path) -> Path:
    return version / "files"


def run(*arguments: object, code: int | tuple[int, ...] = DONE) -> dict[str, Any]:
    """Run a command in this process; the JSON object that it prints."""
    given = [*map(str, arguments), "--json"]
    result = CliRunner(env=UNSET).invoke(main, given, prog_name="expunge")
    codes = code if isinstance(code, tuple) else (code,)
    assert result.exit_code in codes, f"{given}\n{result.output}\n{result.exception!r}"
    found: dict[str, Any] = json.loads(result.stdout)
    return found


class Copy:
    """One of a version's federations, unpacked where it may be changed."""

    def __init__(self, version: Path, story: str, place: Path, folder: str = "") -> None:
        with tarfile.open(version / f"{story}.tar.gz") as archive:
            archive.extractall(place, filter="tar")  # modes are kept, as stores have them
        self.path = place / folder
        self.federation = self.path / ("root" if story == "tree" else "federation")
        self.expected: dict[str, Any] = json.loads((version / "expected.json").read_text())[story]

    @property
    def office(self) -> tuple[object, ...]:
        """The operator, as options. The place that was enrolled at is not there any more."""
        return ("--office", self.federation / "operator", "--at", self.federation)

    def at(self, name: str) -> tuple[object, ...]:
        """A client, as options."""
        return ("--dir", self.path / name, "--at", self.federation)

    def folders(self, *names: str) -> list[Path]:
        return [self.path / name for name in names]

    def at_hand(self, *names: str) -> list[object]:
        """Clients, as options of an audit."""
        return [text for folder in self.folders(*names) for text in ("--client-dir", folder)]

    def sync(self, *names: str, code: int | tuple[int, ...] = DONE) -> list[dict[str, Any]]:
        return [run("client", "sync", *self.at(name), code=code) for name in names]

    def head(self) -> str:
        return str(run("head", *self.office)["digest"])

    def status(self) -> dict[str, Any]:
        return run("server", "status", *self.office)


def held(*folders: Path) -> dict[str, list[Any]]:
    """Label and feature of what clients export, by id, but for what is yet to be added."""
    return {one: row for folder in folders for one, row in _exported(folder)}


def _exported(folder: Path) -> Iterator[tuple[str, list[Any]]]:
    file = folder.with_suffix(".npz")
    run("client", "export", "--all", "--force", "-o", file, "--dir", folder)
    with np.load(file) as found:
        columns = [found[name].tolist() for name in ("ids", "labels", "features", "states")]
    for name, label, feature, state in zip(*columns, strict=True):
        if state != "adding":
            yield name, [label, *feature]


def retrained(spec: dict[str, Any], samples: dict[str, list[Any]]) -> expunge.Head:
    rows = list(samples.values())
    features, labels = np.array([row[1:] for row in rows]), [row[0] for row in rows]
    return expunge.solve(expunge.Statistics.of(expunge.Spec.from_dict(spec), features, labels))


def test_there_are_fixtures() -> None:
    assert "0.1.0" in [path.name for path in VERSIONS]


# -- a federation after a life --------------------------------------------------------------------


@pytest.fixture
def plain(version: Path, tmp_path: Path) -> Copy:
    return Copy(version, "plain", tmp_path)


def test_a_server_stands_where_it_stood(plain: Copy) -> None:
    status, expected = plain.status(), plain.expected
    names = ("clients", "federation", "head", "key", "samples", "spec")
    status["clients"] = {name: status["clients"][name] for name in expected["clients"]}
    assert {name: status[name] for name in names} == {name: expected[name] for name in names}
    assert status["log"] >= expected["log"]
    listed = run("order", "list", *plain.office)["orders"]
    orders = {one["order"]: one["state"].replace("overdue", "open") for one in listed}
    assert orders == {order: state for state, order in expected["orders_by_state"].items()}
    assert run("audit", "--show", "last", *plain.office)["result"] == "equal"


def test_the_ledger_is_that_of_what_the_clients_hold(plain: Copy) -> None:
    samples = held(*plain.folders(*TRIO))
    assert samples == plain.expected["retained"]
    head = run("head", *plain.office)
    assert head["digest"] == plain.expected["head"] == retrained(head["spec"], samples).digest


def test_clients_know_what_is_pending(plain: Copy) -> None:
    folders = plain.folders(*TRIO, "east")
    north, south, west, east = (run("client", "status", "--dir", folder) for folder in folders)
    assert (north["live"], north["adding"], north["deleting"]) == (2, 2, 1)
    assert (south["adding"], south["deleting"], south["message"]) == (0, 1, "gram")
    assert (west["adding"], west["deleting"], west["head"]) == (0, 0, plain.expected["head"])
    assert (east["left"], east["live"]) == (True, 0)


def test_pending_changes_and_an_open_order_go_through(plain: Copy, tmp_path: Path) -> None:
    plain.sync(*TRIO)
    assert plain.head() == plain.expected["after_sync"]
    officer = ("--office", plain.path / "officer", "--at", plain.federation)
    order, bundle = plain.expected["orders_by_state"]["open"], tmp_path / "order.html"
    assert run("order", "show", order, *officer)["state"] == "complete"
    run("order", "bundle", order, "-o", bundle, *officer)
    assert run("verify", bundle, "--key", plain.federation / "server.pub")["holds"]
    assert run("audit", *plain.at_hand(*TRIO), *plain.office)["result"] == "equal"


def test_a_client_goes_on(plain: Copy, tmp_path: Path) -> None:
    run("client", "forget", "--id", "west-0", "--yes", *plain.at("west"))
    left = {one: row for one, row in plain.expected["retained"].items() if one != "west-0"}
    head = run("head", *plain.office)
    assert head["digest"] == retrained(head["spec"], left).digest
    receipts = run("client", "receipts", "--dir", plain.path / "west")["receipts"]
    assert [one["sequence"] for one in receipts] == list(range(1, len(receipts) + 1))
    file = tmp_path / "receipt.json"
    run("client", "receipts", len(receipts), "-o", file, "--dir", plain.path / "west")
    assert run("verify", file, "--trust", plain.path / "west")["kind"] == "receipt"


def test_a_log_goes_on_in_the_second_version(plain: Copy, tmp_path: Path) -> None:
    """Receipts of both are of one log, and say what their digest of the ledger is of."""
    west = plain.path / "west"
    before = len(run("client", "receipts", "--dir", west)["receipts"])
    run("client", "forget", "--id", "west-0", "--yes", *plain.at("west"))
    found = []
    for number in (1, before, before + 1):
        file = tmp_path / f"{number}.json"
        run("client", "receipts", number, "-o", file, "--dir", west)
        facts = run("verify", file, "--trust", west)["facts"]
        found.append(facts["This digest is of"].split()[0])
    assert found == ["all", "all", "which"]  # sums; samples
    assert run("audit", *plain.at_hand(*TRIO), *plain.office)["result"] == "equal"
    assert plain.sync("west")[0]["status"] == "active"


def test_a_client_that_was_forgotten_learns_of_it(plain: Copy) -> None:
    assert [done["status"] for done in plain.sync("lost", code=(DONE, 1))] == ["gone"]
    assert run("client", "status", "--dir", plain.path / "lost")["gone"]
    assert plain.head() == plain.expected["head"]


def test_an_officer_goes_on(plain: Copy, tmp_path: Path) -> None:
    officer = ("--office", plain.path / "officer", "--at", plain.federation)
    orders, bundle = plain.expected["orders_by_state"], tmp_path / "order.html"
    run("order", "bundle", orders["complete"], "-o", bundle, *officer)
    assert b"person-2" in bundle.read_bytes()
    run("order", "bundle", orders["closed"], "-o", bundle, *officer, code=1)
    run("order", "close", orders["complete"], "--yes", *officer)
    assert plain.status()["orders"]["closed"] == 2


def test_a_backup_is_restored_without_what_was_deleted_since(plain: Copy, tmp_path: Path) -> None:
    old, new = plain.federation, tmp_path / "new"
    backup = ("--backup", plain.expected["backup"], "--key", old / "server" / "server.key")
    run("server", "restore", new, *backup, "--from", old)
    for folder in plain.folders(*TRIO):
        run("client", "sync", "--accept-restored", "--dir", folder, "--at", new)
    samples = held(*plain.folders(*TRIO))
    office = ("--office", plain.federation / "operator", "--at", new)
    head = run("head", *office)
    assert head["digest"] == retrained(head["spec"], samples).digest
    assert head["samples"] == len(samples)
    assert not {"west-4", "north-0", "south-4"} & set(samples)
    assert {"more-0", "more-1"} <= set(samples)


def test_a_lost_server_is_rebuilt_from_the_clients(plain: Copy, tmp_path: Path) -> None:
    plain.sync(*TRIO)
    made = run("audit", "--rebuild", tmp_path / "new", *plain.at_hand(*TRIO))
    assert (made["verdict"], made["head"]) == ("equal", plain.expected["after_sync"])


def test_the_oldest_key_leads_to_the_newest(plain: Copy, files: Path, tmp_path: Path) -> None:
    rotation, head = tmp_path / "rotation.json", tmp_path / "head.expunge"
    run("server", "rotate-key", "-o", rotation, "--yes", *plain.office)
    run("head", "-o", head, *plain.office)
    trust = ("--key", files / "server-1.pub", "--rotation", files / "rotation.json")
    run("verify", head, *trust, "--rotation", rotation)
    run("verify", head, *trust, code=BROKEN)


def test_the_certificate_is_renewed_by_the_same_authority(plain: Copy) -> None:
    before = (plain.federation / "tls" / "tls.pem").read_bytes()
    authority = (plain.federation / "tls" / "ca.pem").read_bytes()
    run("server", "renew-certificate", plain.federation)
    assert (plain.federation / "tls" / "tls.pem").read_bytes() != before
    assert (plain.federation / "tls" / "ca.pem").read_bytes() == authority


# -- a crash --------------------------------------------------------------------------------------


def test_what_a_killed_server_had_begun_is_finished(version: Path, tmp_path: Path) -> None:
    crashed = Copy(version, "crashed", tmp_path)
    assert crashed.head() == crashed.expected["head"]
    assert crashed.status()["samples"] == crashed.expected["samples"]
    late = ("--dir", crashed.path / "late", "--at", crashed.federation)
    run("enroll", crashed.path / "late.token", *late)
    (order,) = run("order", "list", *crashed.office)["orders"]  # its answer was lost
    assert run("client", "status", "--dir", crashed.path / "beta")["composed"] == 2
    (beta,) = crashed.sync("beta")
    assert beta["receipts"][0]["deleted"] == 1  # by the request whose answer was lost
    crashed.sync("alpha", "late")
    assert crashed.head() == crashed.expected["after_sync"]
    found = run("order", "show", order["order"], *crashed.office)
    assert found["state"] == "complete"


# -- secure aggregation ---------------------------------------------------------------------------


@pytest.fixture
def interrupted(version: Path, tmp_path: Path) -> Iterator[Copy]:
    copy = Copy(version, "masked", tmp_path, "interrupted")
    server = Server(copy.federation, *PATIENT)
    yield copy
    server.stop()


def test_clients_in_the_middle_of_a_round_begin_another_one(interrupted: Copy) -> None:
    names = interrupted.expected["names"]
    assert interrupted.head() == interrupted.expected["head"]
    for _ in range(PHASES):
        told = []
        for name in names:
            sync = ("client", "sync", "--no-wait", *interrupted.at(name))
            told.append(run(*sync, code=(DONE, INCOMPLETE)))
        if not any(one["waiting"] for one in told):
            break
    assert interrupted.head() == interrupted.expected["after_sync"]
    assert interrupted.status()["samples"] == interrupted.expected["samples"] - len(names)


def test_clients_learn_that_the_round_was_finished(version: Path, tmp_path: Path) -> None:
    finished = Copy(version, "masked", tmp_path, "finished")
    names = finished.expected["names"]
    assert finished.head() == finished.expected["after_sync"]
    for done in finished.sync(*names):
        assert (len(done["receipts"]), done["waiting"]) == (1, "")
    head, samples = run("head", *finished.office), held(*finished.folders(*names))
    assert head["digest"] == finished.expected["after_sync"]
    assert head["digest"] == retrained(head["spec"], samples).digest


def test_pins_and_keys_of_clients_are_read(version: Path, files: Path, tmp_path: Path) -> None:
    copy = Copy(version, "masked", tmp_path, "finished")
    ash = run("client", "status", "--dir", copy.path / "ash")
    assert ash["aggregation"]["pins"] == len(copy.expected["names"])
    cedar = ("--dir", copy.path / "cedar")
    run("client", "pin", files / "peers.json", *cedar)
    run("client", "pin", f"birch={files / 'birch.pub'}", *cedar)
    run("client", "peers", *copy.at("cedar"))


# -- a tree, and float64 --------------------------------------------------------------------------


def test_an_aggregator_forwards_what_has_changed_since(version: Path, tmp_path: Path) -> None:
    tree = Copy(version, "tree", tmp_path)
    assert tree.head() == tree.expected["head"]
    region = tree.path / "region"
    forwarded = run("aggregator", "sync", region, "--at", tree.federation)
    assert len(forwarded["receipts"]) == 1
    assert tree.head() == tree.expected["after_sync"]
    run("client", "sync", "--dir", tree.path / "clinic-1", "--at", region)
    proof = tmp_path / "passage.json"
    passage = ("clinic-0", 3, "-o", proof, "--at", tree.federation)
    run("aggregator", "passage", region, *passage)
    run("verify", proof, "--key", tree.federation / "server.pub")


def test_a_federation_in_float64_goes_on(version: Path, tmp_path: Path) -> None:
    copy = Copy(version, "float64", tmp_path)
    left = dict(copy.expected["retained"])
    for gone in ("", "delta-1"):
        if gone:
            run("client", "forget", "--id", gone, "--yes", *copy.at("delta"))
            del left[gone]
        spec = run("server", "spec", *copy.office)["spec"]
        file = tmp_path / f"head{gone}.npz"
        run("head", "-o", file, "--export", "npz", *copy.office)
        exact = retrained({**spec, "messages": ["rows"]}, left)
        with np.load(file) as found:
            weights = found["weights"]
        np.testing.assert_allclose(weights, exact.weights, atol=1e-9)
    assert copy.status()["samples"] == len(left)


# -- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "key", "kind"), EVIDENCE)
def test_evidence_holds(files: Path, tmp_path: Path, name: str, key: str, kind: str) -> None:
    trust = ["--key", files / key]
    trust += ["--rotation", files / "rotation.json"] if key.startswith("server") else []
    written, given = (files / name).read_bytes(), tmp_path / "evidence"
    data = bytearray(gzip.decompress(written) if name.endswith(".gz") else written)
    given.write_bytes(data)
    found = run("verify", given, *trust)
    assert (found["holds"], found["kind"]) == (True, kind)
    data[len(data) // 2] ^= 1
    given.write_bytes(data)
    run("verify", given, *trust, code=BROKEN)


@pytest.mark.parametrize("kind", ["expunge", "safetensors", "onnx"])
def test_heads_predict_what_they_predicted(files: Path, tmp_path: Path, kind: str) -> None:
    output = tmp_path / "predictions.csv"
    trust = ("--key", files / "server-2.pub") if kind == "expunge" else ()
    given = ("--head", files / f"head.{kind}", *trust, "-o", output)
    run("predict", files / "samples.csv", *given)
    texts = (one.read_text().splitlines() for one in (output, files / "predictions.csv"))
    now, then = (list(csv.DictReader(lines)) for lines in texts)
    assert [(one["id"], one["label"]) for one in now] == [(one["id"], one["label"]) for one in then]
    scores = ([float(one["score"]) for one in rows] for rows in (now, then))
    np.testing.assert_allclose(*scores, rtol=1e-12)  # runtimes sum in orders of their own


@pytest.mark.parametrize("suffix", ["npz", "csv", "parquet"])
def test_exported_samples_are_read(files: Path, suffix: str) -> None:
    columns = [text for i in range(4) for text in ("--feature-column", f"feature_{i}")]
    given = ("--head", files / "head.safetensors", *(columns if suffix == "csv" else ()))
    found = run("predict", files / f"export.{suffix}", *given)
    assert ([one["id"] for one in found["predictions"]], found["accuracy"]) == (["west-0"], 1.0)


@pytest.mark.parametrize("suffix", ["npz", "csv", "parquet"])
def test_files_of_samples_are_read(plain: Copy, files: Path, tmp_path: Path, suffix: str) -> None:
    token = tmp_path / "new.token"
    run("server", "token", "new", "-o", token, *plain.office)
    run("enroll", token, *plain.at("new"))
    added = run("client", "add", files / f"samples.{suffix}", *plain.at("new"))
    more = {f"new {one}": row for one, row in held(plain.path / "new").items()}
    assert added["added"] == len(more) == 6
    head = run("head", *plain.office)
    assert head["digest"] == retrained(head["spec"], plain.expected["retained"] | more).digest


def test_a_spec_and_statistics_are_as_they_were(files: Path, tmp_path: Path) -> None:
    spec = expunge.Spec.from_dict(json.loads((files / "spec.json").read_text()))
    data = (files / "statistics.expunge").read_bytes()
    assert expunge.Statistics.from_bytes(spec, data).to_bytes() == data
    output = tmp_path / "statistics.expunge"
    run("statistics", files / "shard.npz", "--spec", files / "spec.json", "-o", output)
    assert output.read_bytes() == data
    founded = run("init", tmp_path / "new", "--spec", files / "spec.json")
    assert founded["spec_digest"] == spec.digest
    message = (files / "approximate.expunge").read_bytes()
    assert ApproximateMessage.from_bytes(spec, message).to_bytes() == message
