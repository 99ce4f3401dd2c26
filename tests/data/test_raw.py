"""Images and texts as they are listed: by a file, a folder, or a .csv."""

from __future__ import annotations

from pathlib import Path

import pytest

from expunge.data.raw import Raw, holds_raw, list_raw, raw_column
from expunge.errors import FormatError, InputError


def listing(folder: Path, text: str) -> Path:
    path = folder / "list.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_list_names_files_and_texts(tmp_path: Path) -> None:
    path = listing(tmp_path, 'id,file,text,label,subject\na,x/1.png,,ham,eve\n,,"buy, now",,\n')
    assert list(list_raw(path)) == [
        Raw("a", tmp_path / "x/1.png", f"row 0 of {path}", "ham", "eve"),
        Raw("list.csv#1", "buy, now", f"row 1 of {path}"),
    ]
    assert (raw_column(path), holds_raw(path)) == ("file", True)


def test_folders_name_their_labels(tmp_path: Path) -> None:
    for name in ("ham/1.txt", "spam/2.txt", "3.txt", ".hidden"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [(one.id, one.label) for one in list_raw(tmp_path)] == [
        ("3.txt", None),
        ("ham/1.txt", "ham"),
        ("spam/2.txt", "spam"),
    ]
    (alone,) = list_raw(tmp_path / "3.txt")
    assert alone.what == tmp_path / "3.txt"
    assert holds_raw(tmp_path)


def test_a_comma_without_quotation_marks_does_not_cut_a_text_off(tmp_path: Path) -> None:
    path = listing(tmp_path, "label,text\nham,see you\nspam,buy, now\n")
    with pytest.raises(FormatError, match=r"^line 3 of .* has 3 fields, but the header has 2$"):
        list(list_raw(path))


@pytest.mark.parametrize(
    ("text", "words"),
    [("id,file\na,\n", "row 0 of .* names no file and has no text"), (None, "there is no file")],
)
def test_what_is_not_there_is_named(tmp_path: Path, text: str | None, words: str) -> None:
    path = tmp_path / "list.csv" if text is None else listing(tmp_path, text)
    with pytest.raises(InputError, match=words):
        list(list_raw(path))


def test_tables_of_features_are_not_raw(tmp_path: Path) -> None:
    assert not holds_raw(listing(tmp_path, "label,x\nham,1\n"))
    assert not holds_raw(tmp_path / "x.npz")
    assert raw_column(tmp_path / "x.png") is None
    assert holds_raw(tmp_path / "x.png")
