"""FeMNIST as LEAF writes it: json files with `users`, `num_samples` and `user_data`, each image 784
numbers from 0 to 1.

LEAF has dark ink on white paper (the paper is 1), and images stay that way round: a pixel is
round(255 x), which gives back the very bytes that LEAF divided by 255. Labels are LEAF's: 0 to 9
digits, 10 to 35 capitals, 36 to 61 small letters.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.errors import FormatError, InputError
from expunge_experiments.datasets.dataset import Integers
from expunge_experiments.datasets.places import found
from expunge_experiments.datasets.raw import RawDataset

NAME, CLASSES = "femnist", 62
WRITERS = 100  # the paper's pool
HELD_OUT = 0.1  # of each writer, where LEAF has not split; as its own preprocessing does by default
_SIDE = 28
_ROOTS = ("femnist", "leaf/data/femnist/data")
_CANDIDATES = [
    f"{root}/{part}"
    for root in _ROOTS
    for part in ("train/*.json", "all_data/all_data_*.json", "all_data_*.json")
]

Drawings = tuple[NDArray[np.uint8], Integers]  # images (n, 28, 28) and labels of one writer


def read_femnist(folder: Path, *, writers: int = WRITERS, seed: int = 0) -> RawDataset:
    """The drawings of this many writers, who are the groups.

    Writers are chosen by the hash of seed and name, so the choice depends neither on files nor on
    their order, and a smaller choice is part of a larger one. Where LEAF has split into `train` and
    `test`, its split is kept: the test set is made of the same writers' test drawings, or, if LEAF
    has split by writer, of its test writers, as many as there are or as are wanted. Where it has
    not, a tenth of each writer's drawings, drawn at random, is the test set.
    """
    if writers < 1:
        raise InputError(f"writers={writers} must be at least 1")
    path = found(
        folder,
        _CANDIDATES,
        what="FeMNIST as LEAF writes it (json files with users, num_samples and user_data)",
        remedy="Clone LEAF (TalwalkarLab/leaf), run ./preprocess.sh -s niid --sf 1.0 -k 0 -t "
        "sample in its data/femnist, and put "
        f"what it makes in its data folder there as {_ROOTS[0]}.",
    )
    if path.name != "train":
        drawings = _chosen(path, writers, seed)
        parts = {name: _split(name, samples, seed) for name, samples in drawings.items()}
        train, test = ({name: pair[side] for name, pair in parts.items()} for side in (0, 1))
        how = f"a tenth of each writer's drawings is the test set, drawn with seed {seed}"
    else:
        train = _chosen(path, writers, seed)
        test = _chosen(path.parent / "test", writers, seed, among=frozenset(train))
        how = "train and test as LEAF has split each writer's drawings"
        if not test:
            test = _chosen(path.parent / "test", writers, seed)
            how = f"tested on {len(test)} other writers, as LEAF has split by writer"
    return _raw(train, test, f"FeMNIST, {len(train)} writers chosen with seed {seed}; {how}")


def _raw(train: Mapping[str, Drawings], test: Mapping[str, Drawings], source: str) -> RawDataset:
    names = sorted(train)
    return RawDataset(
        name=NAME,
        source=source,
        modality="image",
        classes=CLASSES,
        train=np.concatenate([train[name][0] for name in names]),
        train_labels=np.concatenate([train[name][1] for name in names]),
        test=np.concatenate([test[name][0] for name in sorted(test)]),
        test_labels=np.concatenate([test[name][1] for name in sorted(test)]),
        groups=np.repeat(np.arange(len(names)), [len(train[name][1]) for name in names]).astype(
            np.int64
        ),
    )


def _chosen(
    folder: Path, writers: int, seed: int, among: frozenset[str] | None = None
) -> dict[str, Drawings]:
    """The writers of lowest rank in a folder's files, of which only one is in memory at a time."""
    chosen: dict[str, Drawings] = {}
    files = sorted(folder.glob("*.json"))
    if not files:
        raise FormatError(f"{folder} has no json files; let LEAF's preprocess.sh come to its end")
    for file in files:
        for name, entry in _entries(file):
            if among is not None and name not in among:
                continue
            if name in chosen:
                raise FormatError(
                    f"{file}: the writer {name!r} is in another file as well; let LEAF make the "
                    "files again"
                )
            if (
                among is None
                and len(chosen) >= writers
                and _rank(name, seed) > max(_rank(writer, seed) for writer in chosen)
            ):
                continue
            drawings = _drawings(file, name, entry)
            if not len(drawings[1]):
                continue
            chosen[name] = drawings
            if among is None and len(chosen) > writers:
                del chosen[max(chosen, key=lambda writer: _rank(writer, seed))]
    if among is None and len(chosen) < writers and folder.name != "test":
        raise InputError(
            f"{folder} has {len(chosen)} writers, fewer than the {writers} wanted; take fewer, or "
            "let LEAF make all"
        )
    return chosen


def _rank(name: str, seed: int) -> str:
    return hashlib.sha256(f"{seed} {name}".encode()).hexdigest()


def _entries(file: Path) -> Iterator[tuple[str, Any]]:
    try:
        content = json.loads(file.read_bytes())
        users, counts, data = content["users"], content["num_samples"], content["user_data"]
        if len(users) != len(counts) or any(
            len(data[name]["y"]) != count for name, count in zip(users, counts, strict=True)
        ):
            raise FormatError(
                f"{file}: num_samples does not agree with user_data; let LEAF make it again"
            )
    except (ValueError, KeyError, TypeError, RecursionError) as problem:
        if isinstance(problem, FormatError):
            raise
        raise FormatError(
            f"{file} is not a file of LEAF ({type(problem).__name__}: {problem}), or damaged; let "
            "LEAF make it again"
        ) from problem
    for name in users:
        yield str(name), data[name]


def _drawings(file: Path, name: str, entry: Any) -> Drawings:
    try:
        rows = np.array(entry["x"], dtype=np.float64).reshape(len(entry["y"]), _SIDE * _SIDE)
        labels = np.array(entry["y"])
    except (ValueError, KeyError, TypeError) as problem:
        raise FormatError(
            f"{file}: the drawings of {name!r} are not {_SIDE} x {_SIDE} numbers each ({problem})"
        ) from problem
    if not (np.isfinite(rows).all() and (rows >= 0).all() and (rows <= 1).all()):
        raise FormatError(f"{file}: the drawings of {name!r} have values that are not from 0 to 1")
    if len(labels) and (labels.dtype.kind != "i" or labels.min() < 0 or labels.max() >= CLASSES):
        raise FormatError(
            f"{file}: the labels of {name!r} are not class numbers from 0 to {CLASSES - 1}"
        )
    return np.round(rows * 255).astype(np.uint8).reshape(-1, _SIDE, _SIDE), labels.astype(np.int64)


def _split(name: str, drawings: Drawings, seed: int) -> tuple[Drawings, Drawings]:
    """A writer's drawings for training and for the test; training keeps one at least."""
    images, labels = drawings
    draw = np.random.default_rng([seed, int(_rank(name, seed)[:15], 16)])
    held = np.zeros(len(labels), dtype=bool)
    held[draw.permutation(len(labels))[: min(round(HELD_OUT * len(labels)), len(labels) - 1)]] = (
        True
    )
    return (images[~held], labels[~held]), (images[held], labels[held])
