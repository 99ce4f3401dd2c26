"""Sentiment140 from its csv files, or straight out of the official archive: polarity, id, date,
query, user, text; Latin-1.

Polarity 0 is label 0 (negative) and 4 is label 1 (positive). The official test file also has
neutral tweets (2), which the training file has none of: they are left out, and the dataset's source
says how many. Texts stay as they are. Users become numbered groups; their names are not kept.
"""

from __future__ import annotations

import csv
import io
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from expunge.errors import FormatError, InputError
from expunge_experiments.datasets.dataset import Integers
from expunge_experiments.datasets.places import found
from expunge_experiments.datasets.raw import RawDataset

NAME = "sentiment140"
TRAIN, TEST = "training.1600000.processed.noemoticon.csv", "testdata.manual.2009.06.14.csv"
ARCHIVE = "trainingandtestdata.zip"
_FIELDS = 6
_LABELS = {"0": 0, "4": 1}
_NEUTRAL = "2"
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError)


@dataclass(frozen=True)
class _Tweets:
    texts: list[str]
    labels: Integers
    users: Integers
    neutral: int


def read_sentiment140(folder: Path, *, hold_out: float | None = None, seed: int = 0) -> RawDataset:
    """All tweets with a polarity. Training samples have their users as groups.

    The test set is the official one; with `hold_out`, it is this fraction of the training file's
    users instead, drawn at random, so that nobody is in both.
    """
    train = _read(folder, TRAIN)
    if hold_out is None:
        test, how = _read(folder, TEST), "tested on the official test tweets"
    else:
        train, test = _by_user(train, hold_out, seed)
        how = f"tested on the tweets of {hold_out:g} of the users, drawn with seed {seed}"
    left = f"; {test.neutral} neutral tweets left out" if test.neutral else ""
    return RawDataset(
        name=NAME,
        source=f"Sentiment140, {how}{left}",
        modality="text",
        classes=2,
        train=train.texts,
        train_labels=train.labels,
        test=test.texts,
        test_labels=test.labels,
        groups=np.unique(train.users, return_inverse=True)[1].astype(np.int64),
    )


def _read(folder: Path, name: str) -> _Tweets:
    remedy = (
        f"Get the official archive {ARCHIVE} (Sentiment140, for academics) and put it there "
        "as it is."
    )
    if name == TEST:
        remedy += " Or test on users who are held out of the training tweets (--hold-out 0.2)."
    what = f"the {'test' if name == TEST else 'training'} tweets of Sentiment140 ({name})"
    path = found(
        folder, [f"{NAME}/{name}", name, f"{NAME}/{ARCHIVE}", ARCHIVE], what=what, remedy=remedy
    )
    where = path if path.suffix == ".csv" else path / name
    try:
        with _opened(path, name) as file:
            return _tweets(where, file)
    except KeyError as problem:
        raise FormatError(f"{path} lacks {name}; get the official archive again") from problem
    except csv.Error as problem:
        raise FormatError(f"{where} is not the official csv: {problem}; get it again") from problem
    except _DAMAGED as problem:
        raise FormatError(
            f"{where} cannot be read ({problem}): it is damaged; get it again"
        ) from problem


@contextmanager
def _opened(path: Path, name: str) -> Iterator[IO[str]]:
    if path.suffix == ".csv":
        with path.open(encoding="latin-1", newline="") as file:
            yield file
        return
    with zipfile.ZipFile(path) as archive, archive.open(name) as member:
        yield io.TextIOWrapper(member, encoding="latin-1", newline="")


def _tweets(where: Path, file: IO[str]) -> _Tweets:
    """The tweets of a file, whose last line must be whole."""
    texts: list[str] = []
    labels: list[int] = []
    users: list[int] = []
    names: dict[str, int] = {}
    neutral = 0
    reader = csv.reader(_whole_lines(where, file))
    for row in reader:
        if len(row) != _FIELDS:
            raise FormatError(
                f"line {reader.line_num} of {where} has {len(row)} fields, not {_FIELDS}; get the "
                "official file again"
            )
        polarity, _, _, _, user, text = row
        if polarity == _NEUTRAL:
            neutral += 1
            continue
        if polarity not in _LABELS:
            raise FormatError(
                f"line {reader.line_num} of {where}: the polarity {polarity!r:.9} is none of 0, 2 "
                "and 4"
            )
        texts.append(text)
        labels.append(_LABELS[polarity])
        users.append(names.setdefault(user, len(names)))
    return _Tweets(
        texts, np.array(labels, dtype=np.int64), np.array(users, dtype=np.int64), neutral
    )


def _whole_lines(where: Path, file: IO[str]) -> Iterator[str]:
    line = "\n"
    for line in file:
        yield line
    if not line.endswith(("\n", '"')):
        raise FormatError(f"the last line of {where} is cut short; get the official file again")


def _by_user(tweets: _Tweets, fraction: float, seed: int) -> tuple[_Tweets, _Tweets]:
    users = np.unique(tweets.users)
    count = round(fraction * len(users)) if 0 < fraction < 1 else 0
    if not 0 < count < len(users):
        raise InputError(
            f"holding out {fraction} of {len(users)} users leaves none to train or to test on; "
            "give one like 0.2"
        )
    held = np.random.default_rng([seed, 0x7573_72]).permutation(users)[:count]
    out = np.isin(tweets.users, held)
    train, test = (_part(tweets, np.flatnonzero(which)) for which in (~out, out))
    return train, test


def _part(tweets: _Tweets, numbers: Integers) -> _Tweets:
    return _Tweets(
        [tweets.texts[number] for number in numbers],
        tweets.labels[numbers],
        tweets.users[numbers],
        tweets.neutral,
    )
