"""What a file or a store says of a person is never in an error: the file and the row are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from expunge.backbones import CallableBackbone
from expunge.backbones.images import read_image
from expunge.client import ClientStore
from expunge.errors import BackboneError, FormatError
from support.cli import ROWS_A, Federation, run

TOLD = "crushing pain in the chest"
HEADER = "id,subject,label,x,y,z\n"
GOOD = "a1,p1,cat,1,2,3\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    return Federation.found(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def client(place: Federation) -> Path:
    return place.client("clinic-a", ROWS_A)


def refused(*arguments: object, code: int = 1, given: str | None = None) -> str:
    """All that a refused command printed, on one line; nothing of what a person told."""
    result = run(*arguments, code=code, given=given)
    printed = result.output.words
    for word in (TOLD, TOLD[:12], "crushing"):
        assert word not in printed
    return printed


def failing_on_texts(samples: list[Any]) -> Any:
    return [[float(text)] for text in samples]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (HEADER + GOOD + f"a2,p1,cat,1,{TOLD},3\n", "line 3 of"),
        (
            HEADER + f"a8,p,cat,1,2,3\na9,p1,{TOLD},1,2,3\n",
            "row 1 (counted from 0) cannot be taken",
        ),
        (HEADER + f"{TOLD},p1,cat,1e300,2,3\n", "the sample cannot be taken"),
        (HEADER + f"{TOLD},p1,cat,1,2,3\n" * 2, "rows 0 and 1 (counted from 0) have the same id"),
        (HEADER + f"a7,{TOLD * 400},cat,1,2,3\n", "the subject of row 0"),
        (HEADER.replace("label", "kind") + f"a7,p,{TOLD},1,2,3\n", "no column 'label'"),
        (f"a1,{TOLD},cat,1,2,3\n", "line of column names"),
        (f"a1,{TOLD},{TOLD},1,2,3\n", "occurs twice in the first line"),
        (HEADER + f'a7,p,cat,1,2,"{TOLD}" x\n', "cannot be read as CSV"),
    ],
    ids=[
        "feature",
        "label",
        "id",
        "doubled id",
        "subject",
        "other label column",
        "no header",
        "no header, doubled",
        "quotes",
    ],
)
def test_a_csv_file_that_is_refused(place: Federation, client: Path, rows: str, words: str) -> None:
    assert words in refused("client", "add", place.file("some.csv", rows), "--dir", client)


def test_files_that_are_refused_are_named_with_the_row(place: Federation, client: Path) -> None:
    file = place.file("named.csv", HEADER + GOOD.replace("a1", "a8") + f"{TOLD},p1,cat,1,2,1e300\n")
    assert f"{file}: row 1" in refused("client", "add", file, "--dir", client)


@pytest.mark.parametrize("command", ["add", "predict"])
def test_a_parquet_file_that_is_refused(place: Federation, client: Path, command: str) -> None:
    file = place.path / "some.parquet"
    columns = {"id": ["1"], "x": [1.0], "y": [2.0], "z": [TOLD]} | (
        {"label": ["cat"]} if command == "add" else {}
    )
    parquet.write_table(pa.table(columns), file)
    command_words = ("client", "add") if command == "add" else ("predict",)
    assert "column 'z' holds string" in refused(*command_words, file, "--dir", client)
    columns = {"id": [{"of": TOLD}], "x": [1.0], "y": [2.0], "z": [1.0], "label": ["cat"]}
    parquet.write_table(pa.table(columns), file)
    if command == "add":
        assert "row 0" in refused(*command_words, file, "--dir", client)


def test_a_file_of_arrays_that_is_refused(place: Federation, client: Path) -> None:
    file = place.path / "some.npz"
    np.savez(file, features=np.array([[TOLD, "1", "2"]]), labels=np.array(["cat"]))
    assert "holds texts, where real numbers are needed" in refused(
        "client", "add", file, "--dir", client
    )
    np.savez(file, features=np.ones((1, 3)), labels=np.array(["cat"]), ids=np.array([3.5]))
    assert "row 0 of" in refused("client", "add", file, "--dir", client)


@pytest.mark.parametrize(
    "rows", [f"id,x,y,z\n1,2,{TOLD},3\n", f"id,x,y,z\n1,2,3\n{TOLD}", f"id,x,y\n{TOLD},1,2\n"]
)
def test_predictions_that_are_refused(place: Federation, client: Path, rows: str) -> None:
    file = place.file("new.csv", rows)
    assert str(file) in refused("predict", file, "--dir", client)


def test_an_id_that_is_not_unicode(client: Path) -> None:
    with (
        ClientStore.open(client) as store,
        pytest.raises(FormatError, match="half of a surrogate pair") as caught,
    ):
        store.add([f"{TOLD}\ud800"], np.ones((1, 3)), ["cat"], now=1.0)
    assert TOLD not in str(caught.value)


def test_samples_that_are_not_there(place: Federation, client: Path) -> None:
    listing = place.file("ids.txt", f"a1\n{TOLD}\n")
    assert "1 of the 2 ids is not in the store" in refused(
        "client", "forget", "--ids-from", listing, "--dir", client
    )
    passed = ("--ignore-missing", "--dry-run", "--dir", client)
    assert "1 id not in the store" in refused(
        "client", "forget", "--ids-from", listing, *passed, code=0
    )
    refused(
        "client", "forget", "--subject", "-", "--yes", "--dir", client, given=f"{TOLD}\n", code=6
    )
    refused(
        "client",
        "export",
        "--subject",
        "-",
        "-o",
        place.path / "out.csv",
        "--dir",
        client,
        given=f"{TOLD}\n",
        code=6,
    )


def test_what_was_typed_about_a_person(place: Federation, client: Path) -> None:
    refused("order", "file", "p1", "--known-as", f"={TOLD}", "--office", place.office)
    refused("client", "correct", "a1", "--feature", TOLD, "--dir", client)


def test_where_a_backbone_is_pinned_and_none_was_given_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing_for_tests.py").write_text(
        "from test_cli_confidential import failing_on_texts\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    described = "callable:failing_for_tests:failing_on_texts?name=failing&version=1&dim=1"
    place = Federation.found(tmp_path, "--backbone", described, "--labels", "ill,well")
    token = place.path / "t"
    run("server", "token", "clinic", "-o", token, "--office", place.office)
    run("enroll", token, "--dir", place.path / "clinic")
    client = place.path / "clinic"
    run("client", "add", place.file("f.csv", "id,label,x\n1,ill,1\n2,well,2\n"), "--dir", client)
    for name, rows in (
        ("texts.csv", f"id,text,label\n3,{TOLD},ill\n"),
        ("notes.csv", f"id,note,label\n3,{TOLD},ill\n"),
    ):
        file = place.file(name, rows)
        unlabelled = place.file(f"new-{name}", rows.replace(",label", "").replace(",ill", ""))
        for command in (("client", "add", file), ("predict", file), ("predict", unlabelled)):
            words = refused(*command, "--dir", client)
            assert "this federation pins a backbone" in words.lower()
            assert "--backbone" in words
    given = ("--backbone", described, "--dir", client)
    assert "failed with ValueError" in refused(
        "client", "add", place.file("l.csv", f"id,text,label\n3,{TOLD},ill\n"), *given
    )
    unlabelled = place.file("u.csv", f"id,text\n{TOLD},1\n")
    assert f"row 0 of {unlabelled} has no label" in refused("client", "add", unlabelled, *given)


def test_a_text_that_is_taken_for_the_path_of_an_image_is_not_shown() -> None:
    with pytest.raises(BackboneError, match=r"^sample 4 cannot be read as an image; ") as caught:
        read_image(TOLD, 4, extra="onnx")
    assert TOLD not in str(caught.value)


def test_a_function_that_fails_is_named_without_the_words_of_its_error() -> None:
    backbone = CallableBackbone(failing_on_texts, name="failing", version="1", dim=1)
    with pytest.raises(BackboneError, match="failed with ValueError") as caught:
        backbone.features([TOLD])
    assert TOLD not in str(caught.value)
