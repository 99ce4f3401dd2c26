"""The library: names lead to files, each read once; what is missing says how to get it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import raw_files
from threadpoolctl import threadpool_limits

from expunge.errors import InputError
from expunge_experiments.datasets.catalogue import SHARED, Library
from expunge_experiments.datasets.extract import extract
from expunge_experiments.datasets.originals import ORIGINALS, read_original
from expunge_experiments.datasets.places import MissingDataError

NAMES = (
    "cifar10",
    "digits_by_writer",
    "tweets_by_user",
    "cifar10_raw",
    "cifar100",
    "femnist",
    "sentiment140",
)


def small(path: Path, *, seed: int = 0, **more: np.ndarray) -> Path:
    draw = np.random.default_rng(seed)
    arrays = {
        "train_features": draw.integers(0, 256, (6, 3), np.uint8),
        "train_labels": np.arange(6, dtype=np.uint8) % 2,
        "test_features": draw.integers(0, 256, (2, 3), np.uint8),
        "test_labels": np.array([0, 1], np.uint8),
        "scale": np.ones(3, np.float32),
    }
    np.savez(path, **(arrays | more))
    return path


def test_all_names_are_there(tmp_path: Path) -> None:
    assert Library(tmp_path).names() == NAMES
    assert Library(tmp_path, {"mine": tmp_path / "x.npz"}).names() == ("mine", *NAMES)


def test_shared_features_are_read_once(tmp_path: Path) -> None:
    small(
        tmp_path / "digits_by_writer_efficientnet_lite0.npz",
        train_writers=np.array([4, 4, 2, 2, 2, 4], np.uint16),
    )
    library = Library(tmp_path)
    dataset = library.load("digits_by_writer")
    assert dataset.name == "digits_by_writer"
    assert "EfficientNet-Lite0" in dataset.source
    assert dataset.groups is not None
    assert dataset.groups.tolist() == [1, 1, 0, 0, 0, 1]
    assert library.load("digits_by_writer") is dataset
    library.forget("digits_by_writer")
    assert library.load("digits_by_writer") is not dataset
    assert np.array_equal(library.load("digits_by_writer").train_features, dataset.train_features)


def test_the_environment_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(tmp_path / SHARED["cifar10"].file)
    monkeypatch.setenv("EXPUNGE_DATA", str(tmp_path))
    assert Library().load("cifar10").dim == 3


@pytest.mark.parametrize("name", SHARED)
def test_missing_shared_features_say_how_to_make_others(tmp_path: Path, name: str) -> None:
    with pytest.raises(MissingDataError, match=f"the file of the dataset {name}") as refusal:
        Library(tmp_path).load(name)
    original = SHARED[name].instead
    said = str(refusal.value)
    assert str(tmp_path / SHARED[name].file) in said
    assert f"expunge experiment features {original} --backbone FOLDER" in said
    assert ORIGINALS[original].files in said
    assert "EXPUNGE_DATA" in said


@pytest.mark.parametrize("name", ORIGINALS)
def test_missing_features_of_originals_say_how_to_make_them(tmp_path: Path, name: str) -> None:
    with pytest.raises(
        MissingDataError, match=rf"features of {ORIGINALS[name].title} cannot be found"
    ) as refusal:
        Library(tmp_path).load(name)
    assert f"expunge experiment features {name} --backbone FOLDER" in str(refusal.value)
    assert ORIGINALS[name].files in str(refusal.value)


def test_features_of_an_original_are_found_without_it(tmp_path: Path) -> None:
    raw_files.cifar10(tmp_path / "originals")
    raw = read_original("cifar10_raw", tmp_path / "originals")
    path = extract(raw, raw_files.backbone(), tmp_path / "data")
    library = Library(tmp_path / "data")
    dataset = library.load("cifar10_raw")
    assert dataset.name == "cifar10_raw"
    assert np.array_equal(dataset.train_labels, raw.train_labels)
    assert library.load(str(path)).name == "cifar10_raw"
    second = extract(raw.drawn(5, 0), raw_files.backbone(), tmp_path / "data")
    with pytest.raises(InputError, match="several files of features of CIFAR-10") as refusal:
        Library(tmp_path / "data").load("cifar10_raw")
    assert str(path) in str(refusal.value)
    assert str(second) in str(refusal.value)
    assert len(library.load(str(second)).train_labels) == 5


def test_ones_own_files(tmp_path: Path) -> None:
    path = small(tmp_path / "mine.npz")
    library = Library(
        tmp_path / "nothing", {"other": path, "cifar10": small(tmp_path / "c.npz", seed=1)}
    )
    assert library.load("other").name == "other"
    assert library.load("cifar10").name == "cifar10"  # one's own file comes before the catalogue's
    assert library.load(str(path)).name == str(
        path
    )  # as it was asked for: settings are found by this name
    assert not np.array_equal(
        library.load("other").train_features, library.load("cifar10").train_features
    )


def test_unknown_names_are_refused_with_the_list(tmp_path: Path) -> None:
    with pytest.raises(
        InputError,
        match=r"there is no dataset 'cifar'; there are cifar10, digits_by_writer, .*sentiment140",
    ):
        Library(tmp_path).load("cifar")
    with pytest.raises(InputError, match=r"there is no file or folder nowhere/x\.npz"):
        Library(tmp_path).load("nowhere/x.npz")


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "shape", "classes", "groups", "accuracy"),
    [
        ("digits_by_writer", (11291, 1280), 10, 100, 0.9280),
        ("tweets_by_user", (15126, 768), 2, 13772, 0.7923),
    ],
)
def test_the_shared_features_are_those_that_were_described(
    name: str, shape: tuple[int, int], classes: int, groups: int, accuracy: float
) -> None:
    """Read through the library, they have the accuracy of central ridge (gamma = 10) that their
    description gives.
    """
    if not os.environ.get("EXPUNGE_DATA"):
        pytest.fail("set EXPUNGE_DATA to the folder that holds the real features")
    dataset = Library().load(name)
    assert (dataset.train_features.shape, dataset.classes) == (shape, classes)
    assert dataset.groups is not None
    assert np.array_equal(np.unique(dataset.groups), np.arange(groups))
    with threadpool_limits(1):
        F = np.column_stack([dataset.train_features, np.ones(shape[0], np.float32)]).astype(
            np.float64
        )
        W = np.linalg.solve(
            F.T @ F + 10 * np.eye(shape[1] + 1), F.T @ np.eye(classes)[dataset.train_labels]
        )
        guessed = (dataset.test_features @ W[:-1] + W[-1]).argmax(axis=1)
    assert abs((guessed == dataset.test_labels).mean() - accuracy) < 5e-4
