"""`expunge verify`, `key`, `head` and `predict`: offline, and against any altered byte."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from expunge import Spec, Statistics, solve
from expunge.crypto import PublicKey, SigningKey
from expunge.export import load_onnx, load_safetensors
from support import seeds
from support.cli import ROWS_A, ROWS_B, Federation, features_of, run, value

SPEC = Spec(dim=3, labels=("cat", "dog"))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    """One federation for all: nothing here changes it."""
    place = Federation.found(tmp_path_factory.mktemp("evidence"))
    a, b = place.client("clinic-a", ROWS_A), place.client("clinic-b", ROWS_B)
    run("order", "file", "p1", "--office", place.office)
    for folder in (a, b, a):
        run("client", "sync", "--dir", folder)
    run("order", "bundle", "last", "-o", place.path / "order.html", "--office", place.office)
    run("client", "receipts", 2, "-o", place.path / "receipt.json", "--dir", a)
    run("head", "-o", place.path / "head.expunge", "--dir", a)
    return place


@pytest.mark.parametrize("name", ["order.html", "receipt.json", "head.expunge"])
def test_evidence_holds_and_any_altered_byte_is_found(
    place: Federation, tmp_path: Path, name: str
) -> None:
    shown = run("verify", place.path / name, "--key", place.key).stdout
    assert shown.startswith("Verified: ")
    for words in (
        "What this proves",
        "Assuming that",
        "What this does not prove",
        "the head forgets; a backbone trained on the",
    ):
        assert words in shown
    told = value("verify", place.path / name, "--trust", place.path / "clinic-b")
    assert told["holds"] is True
    assert told["proved"]
    data = (place.path / name).read_bytes()
    draw = seeds.chance(name)  # places to alter
    altered = tmp_path / name
    for position in draw.sample(range(len(data)), 8):
        altered.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
        assert "failed verification" in run("verify", altered, "--key", place.key, code=3).stderr, (
            position
        )
    altered.write_bytes(data[:-1])
    assert value("verify", altered, "--key", place.key, code=3)["error"]["kind"] == "evidence"


@pytest.mark.parametrize("short", ["-q", "--quiet"])
def test_quiet_prints_nothing_and_the_exit_code_is_the_same(
    place: Federation, tmp_path: Path, short: str
) -> None:
    altered, receipt = tmp_path / "receipt.json", place.path / "receipt.json"
    altered.write_bytes(receipt.read_bytes()[:-1])
    nowhere = ("--trust", tmp_path)
    for file, trust, code in (
        (receipt, ("--key", place.key), 0),
        (altered, ("--key", place.key), 3),
        (receipt, nowhere, 1),
        (receipt, ("--key", receipt), 1),
    ):
        assert run("verify", file, *trust, code=code).output != ""
        assert run("verify", file, *trust, short, code=code).output == ""
    told = run("verify", receipt, "--key", place.key, short, "--json", code=2).output
    assert "either --quiet" in told


def test_another_key_no_key_and_no_evidence(place: Federation, tmp_path: Path) -> None:
    (tmp_path / "other.pub").write_bytes(SigningKey(bytes(32)).public.pem)
    signer = PublicKey.from_pem(place.key.read_bytes()).id[:16]
    refused = run(
        "verify", place.path / "receipt.json", "--key", tmp_path / "other.pub", code=3
    ).stderr
    assert f"signed by key {signer}…, which" in refused
    assert "give either --key FILE" in run("verify", place.path / "receipt.json", code=2).stderr
    (tmp_path / "text").write_text("hello")
    assert (
        "failed verification" in run("verify", tmp_path / "text", "--key", place.key, code=3).stderr
    )
    assert (
        "is not a public key"
        in run("verify", place.path / "receipt.json", "--key", tmp_path / "text", code=1).stderr
    )
    assert (
        "it holds no key"
        in run("verify", place.path / "receipt.json", "--trust", tmp_path, code=1).stderr
    )
    (tmp_path / "plain.pub").write_text(PublicKey.from_pem(place.key.read_bytes()).text + "\n")
    run("verify", place.path / "receipt.json", "--key", tmp_path / "plain.pub")


def test_a_head_is_compared_with_what_the_evidence_is_about(
    place: Federation, tmp_path: Path
) -> None:
    told = value(
        "verify",
        place.path / "order.html",
        "--key",
        place.key,
        "--head",
        place.path / "head.expunge",
    )
    assert any("weight for weight" in one for one in told["proved"])
    other = Federation.found(tmp_path)
    folder = other.client("clinic-c", ROWS_A)
    run("head", "-o", tmp_path / "other.safetensors", "--export", "safetensors", "--dir", folder)
    refused = run(
        "verify",
        place.path / "order.html",
        "--key",
        place.key,
        "--head",
        tmp_path / "other.safetensors",
        code=3,
    )
    assert "this head has digest" in refused.stderr


def test_the_key_is_the_same_wherever_it_is_read(place: Federation, tmp_path: Path) -> None:
    folders = (place.folder, place.folder / "server", place.office, place.path / "clinic-a")
    keys = {value("key", folder)["key"] for folder in folders}
    assert keys == {PublicKey.from_pem(place.key.read_bytes()).text}
    run("key", place.office, "-o", tmp_path / "server.pub")
    assert (tmp_path / "server.pub").read_bytes() == place.key.read_bytes()
    assert run("key", place.folder).stdout.strip() == place.key.read_text().strip()


# -- heads -----------------------------------------------------------------------------------------


def expected() -> str:
    rows = [row for row in (ROWS_A + ROWS_B).splitlines() if row.split(",")[1] in ("p2", "p3")]
    return solve(Statistics.of(SPEC, *features_of("\n".join(["header", *rows])))).digest


def test_heads_are_exported_bit_for_bit(place: Federation, tmp_path: Path) -> None:
    folder = place.path / "clinic-a"
    assert (
        value("head", "--dir", folder)["digest"]
        == value("head", "--office", place.office)["digest"]
        == expected()
    )
    run("head", "-o", tmp_path / "h.safetensors", "--export", "safetensors", "--dir", folder)
    run("head", "-o", tmp_path / "h.onnx", "--export", "onnx", "--dir", folder)
    run("head", "-o", tmp_path / "h.npz", "--export", "npz", "--dir", folder)
    head = load_safetensors(tmp_path / "h.safetensors")
    assert head.digest == load_onnx(tmp_path / "h.onnx").digest == expected()
    with np.load(tmp_path / "h.npz") as arrays:
        assert (arrays["weights"] == head.weights).all()
        assert arrays["labels"].tolist() == ["cat", "dog"]
    assert "-o FILE" in run("head", "--export", "npz", "--dir", folder, code=2).stderr


def test_predictions_are_those_of_the_head(place: Federation, tmp_path: Path) -> None:
    features = np.array([[1.0, 2.0, 3.0], [2.0, 0.5, 0.25]])
    np.save(tmp_path / "x.npy", features)
    np.savez(tmp_path / "x.npz", features=features, ids=np.array(["n1", "n2"]))
    (tmp_path / "x.csv").write_text("id,x,y,z\nc1,1,2,3\nc2,2,0.5,0.25\n")
    run(
        "head",
        "-o",
        tmp_path / "h.safetensors",
        "--export",
        "safetensors",
        "--dir",
        place.path / "clinic-a",
    )
    head = load_safetensors(tmp_path / "h.safetensors")
    wanted = head.predict(features).tolist()
    for name, ids in (
        ("x.npy", ["x.npy#0", "x.npy#1"]),
        ("x.npz", ["n1", "n2"]),
        ("x.csv", ["c1", "c2"]),
    ):
        told = value("predict", tmp_path / name, "--dir", place.path / "clinic-a")
        assert [one["id"] for one in told["predictions"]] == ids
        assert [one["label"] for one in told["predictions"]] == wanted
        assert told["accuracy"] is None
    for source in (
        ["--head", tmp_path / "h.safetensors"],
        ["--head", place.path / "head.expunge", "--key", place.key],
    ):
        run("predict", tmp_path / "x.csv", *source, "--scores", "-o", tmp_path / "out.csv")
        with (tmp_path / "out.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert [float(rows[1]["score_cat"]), float(rows[1]["score_dog"])] == head.scores(features)[
            1
        ].tolist()
    shown = run(
        "predict", place.file("labelled.csv", ROWS_B), "--dir", place.path / "clinic-a"
    ).stdout
    assert "Accuracy" in shown


def test_predictions_that_cannot_be_made_are_refused(place: Federation, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("id,x,y\nc1,1,2\n")
    folder = place.path / "clinic-a"
    assert "give either --dir" in run("predict", tmp_path / "x.csv", code=2).stderr
    refusal = run("predict", tmp_path / "x.csv", "--dir", folder, code=1).stderr
    assert "x.csv has 2 columns of features, and the spec has 3" in refusal
    assert "add the columns that are missing" in refusal
    assert "--feature-column" not in refusal
    (tmp_path / "wide.csv").write_text("id,x,y,z,age\nc1,1,2,3,4\n")
    refusal = run("predict", tmp_path / "wide.csv", "--dir", folder, code=1).stderr
    assert "Say which columns are features (--feature-column)" in refusal
    assert "there is no file" in run("predict", tmp_path / "y.csv", "--dir", folder, code=1).stderr
    (tmp_path / "x.png").write_bytes(b"")
    assert "needs a backbone" in run("predict", tmp_path / "x.png", "--dir", folder, code=1).stderr
    assert (
        "public key (--key)"
        in run("predict", tmp_path / "x.csv", "--head", place.path / "head.expunge", code=1).stderr
    )
    (tmp_path / "z.csv").write_text("id,x,y,z\nc1,1,2,three\n")
    assert "line 2" in run("predict", tmp_path / "z.csv", "--dir", folder, code=1).stderr


def test_a_client_that_never_synced_has_no_head(tmp_path: Path) -> None:
    place = Federation.found(tmp_path)
    folder = place.enrol("clinic-a")
    assert "expunge client sync" in run("head", "--dir", folder, code=1).stderr
    assert (
        "expunge client sync"
        in run("predict", place.file("a.csv", ROWS_A), "--dir", folder, code=1).stderr
    )
