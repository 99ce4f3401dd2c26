"""Sentiment140: polarity becomes a label, users become groups, neutral tweets are left out and
counted.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import raw_files

from expunge.errors import FormatError, InputError
from expunge_experiments.datasets.places import MissingDataError
from expunge_experiments.datasets.sentiment140 import ARCHIVE, TEST, TRAIN, read_sentiment140

TWEETS = [
    ("0", "ann", "awww, that's a bummer"),
    ("0", "bob", 'he said "no", twice'),
    ("4", "ann", "caf\xe9 \xbd off!"),
    ("4", "cid", "line one, line two &quot;quoted&quot;"),
    ("0", "cid", ""),
    ("4", "dan", "yes"),
]
JUDGED = [
    ("4", "eve", "love it"),
    ("2", "fay", "it exists"),
    ("0", "eve", "hate it"),
    ("2", "gus", "a fact"),
]


def official(folder: Path) -> Path:
    raw_files.tweets(folder / TRAIN, TWEETS)
    raw_files.tweets(folder / TEST, JUDGED)
    return folder


def test_tweets_come_back(tmp_path: Path) -> None:
    raw = read_sentiment140(official(tmp_path))
    assert (raw.name, raw.modality, raw.classes) == ("sentiment140", "text", 2)
    assert raw.train == [text for _, _, text in TWEETS]
    assert raw.train_labels.tolist() == [0, 0, 1, 1, 0, 1]
    assert raw.groups is not None
    assert raw.groups.tolist() == [0, 1, 0, 2, 2, 3]
    assert raw.test == ["love it", "hate it"]
    assert raw.test_labels.tolist() == [1, 0]
    assert "2 neutral tweets left out" in raw.source


def test_the_folder_and_the_archive_give_the_same(tmp_path: Path) -> None:
    digest = read_sentiment140(official(tmp_path / "a")).digest
    assert read_sentiment140(official(tmp_path / "b" / "sentiment140").parent).digest == digest
    (tmp_path / "c").mkdir()
    with zipfile.ZipFile(tmp_path / "c" / ARCHIVE, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in (TRAIN, TEST):
            archive.write(tmp_path / "a" / name, name)
    assert read_sentiment140(tmp_path / "c").digest == digest


def test_nobody_is_in_training_and_in_a_held_out_test(tmp_path: Path) -> None:
    rows = [
        ("4" if number % 3 else "0", f"user{number % 20}", f"{number % 20} says {number}")
        for number in range(100)
    ]
    raw_files.tweets(tmp_path / TRAIN, rows)  # no test file is needed
    raw = read_sentiment140(tmp_path, hold_out=0.25, seed=3)
    train, test = ({text.split()[0] for text in part} for part in (raw.train, raw.test))
    assert len(test) == 5
    assert not train & test
    assert len(raw.train) + len(raw.test) == 100
    assert raw.groups is not None
    assert set(raw.groups.tolist()) == set(range(15))
    assert raw.digest == read_sentiment140(tmp_path, hold_out=0.25, seed=3).digest
    assert raw.digest != read_sentiment140(tmp_path, hold_out=0.25, seed=4).digest
    for fraction in (0.0, 1.0, -1.0, 0.001, float("nan")):
        with pytest.raises(InputError, match="leaves none"):
            read_sentiment140(tmp_path, hold_out=fraction)


def test_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=rf"the training tweets .*{ARCHIVE}"):
        read_sentiment140(tmp_path)
    raw_files.tweets(tmp_path / TRAIN, TWEETS)
    with pytest.raises(MissingDataError, match=r"the test tweets .*--hold-out 0\.2"):
        read_sentiment140(tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('"0","1","d","q","u"\n', "line 1 of .* has 5 fields, not 6"),
        ('"0","1","d","q","u","t"\n"1","1","d","q","u","t"\n', "line 2 of .* polarity '1'"),
        ("polarity,id,date,query,user,text\n", "the polarity 'polarity"),
        ('"0","1","d","q","u","cut he', "is cut short"),
        ('"0","1","d","q","u","' + "x" * 200_000 + '"\n', "is not the official csv"),
    ],
)
def test_other_files_are_refused_by_line(tmp_path: Path, text: str, said: str) -> None:
    (official(tmp_path) / TRAIN).write_text(text)
    with pytest.raises(FormatError, match=said) as refusal:
        read_sentiment140(tmp_path)
    assert TRAIN in str(refusal.value)


def test_damaged_archives_are_refused_by_name(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / ARCHIVE, "w") as archive:
        archive.write(raw_files.tweets(tmp_path / "t.csv", TWEETS * 50), TRAIN)
    with pytest.raises(FormatError, match=f"{ARCHIVE} lacks {TEST}"):
        read_sentiment140(tmp_path)
    whole = bytearray((tmp_path / ARCHIVE).read_bytes())
    whole[500] ^= 1
    for data in (bytes(whole), bytes(whole[: len(whole) // 2]), b""):
        (tmp_path / ARCHIVE).write_bytes(data)
        with pytest.raises(FormatError, match=ARCHIVE):
            read_sentiment140(tmp_path)
