"""CIFAR-10 and CIFAR-100 out of their folders and archives."""

from __future__ import annotations

import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import raw_files

from expunge.errors import FormatError
from expunge_experiments.datasets.cifar import CIFAR10, CIFAR100, read_cifar
from expunge_experiments.datasets.places import MissingDataError


def pictures(rows: Any) -> Any:
    """Images as one would see them, pixel by pixel."""
    made = np.zeros((len(rows), 32, 32, 3), np.uint8)
    for colour in range(3):
        for line in range(32):
            begin = 1024 * colour + 32 * line
            made[:, line, :, colour] = rows[:, begin : begin + 32]
    return made


def test_all_batches_in_their_order(tmp_path: Path) -> None:
    batches = raw_files.cifar10(tmp_path)
    raw = read_cifar(CIFAR10, tmp_path)
    train = [batches[name] for name in raw_files.BATCHES[:-1]]
    assert (raw.name, raw.modality, raw.classes, raw.groups) == ("cifar10_raw", "image", 10, None)
    assert np.array_equal(raw.train, pictures(np.concatenate([batch["data"] for batch in train])))
    assert raw.train_labels.tolist() == [label for batch in train for label in batch["labels"]]
    assert np.array_equal(raw.test, pictures(batches["test_batch"]["data"]))
    assert raw.test_labels.tolist() == batches["test_batch"]["labels"]


def test_the_archive_gives_the_same_and_is_not_unpacked(tmp_path: Path) -> None:
    raw_files.cifar10(tmp_path)
    before = read_cifar(CIFAR10, tmp_path).digest
    raw_files.packed(tmp_path, CIFAR10.folder, CIFAR10.archive)
    assert read_cifar(CIFAR10, tmp_path).digest == before
    assert [file.name for file in tmp_path.iterdir()] == [CIFAR10.archive]


def test_cifar100_has_its_fine_labels(tmp_path: Path) -> None:
    parts = raw_files.cifar100(tmp_path)
    raw = read_cifar(CIFAR100, tmp_path)
    assert (raw.name, raw.classes) == ("cifar100", 100)
    assert raw.train_labels.tolist() == [0, 99, 3, 4, 50]
    assert raw.test_labels.tolist() == [0, 99, 3, 4, 51]
    assert np.array_equal(raw.test, pictures(parts["test"][b"data"]))


def test_missing_files_are_named_with_the_official_archive(tmp_path: Path) -> None:
    with pytest.raises(
        MissingDataError, match=r"CIFAR-100 .*cifar-100-python\.tar\.gz.* looked for at"
    ):
        read_cifar(CIFAR100, tmp_path)
    raw_files.cifar10(tmp_path)
    (tmp_path / CIFAR10.folder / "data_batch_3").unlink()
    with pytest.raises(FormatError, match="lacks data_batch_3"):
        read_cifar(CIFAR10, tmp_path)
    raw_files.packed(tmp_path, CIFAR10.folder, CIFAR10.archive)
    with pytest.raises(FormatError, match="lacks data_batch_3 in cifar-10-batches-py"):
        read_cifar(CIFAR10, tmp_path)


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ([1, 2], "holds no batch of CIFAR-10, but a list"),
        ({"labels": [1]}, "no array 'data'"),
        ({"data": np.zeros((1, 3071), np.uint8), "labels": [1]}, "with 3072 columns"),
        ({"data": np.zeros((1, 3072), np.float32), "labels": [1]}, "no array 'data' of bytes"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": [1, 2]}, "one class number an image"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": ["1"]}, "one class number an image"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": [10]}, "labels from 10 to 10"),
        ({"data": np.zeros((1, 3072), np.uint8), "fine_labels": [1]}, "no list 'labels'"),
    ],
)
def test_a_batch_that_is_none_is_refused_by_name(tmp_path: Path, batch: Any, said: str) -> None:
    raw_files.cifar10(tmp_path)
    (tmp_path / CIFAR10.folder / "data_batch_2").write_bytes(pickle.dumps(batch))
    with pytest.raises(FormatError, match=f"data_batch_2 .*{said}"):
        read_cifar(CIFAR10, tmp_path)


def test_a_malicious_batch_is_refused(tmp_path: Path) -> None:
    raw_files.cifar10(tmp_path)
    (tmp_path / CIFAR10.folder / "test_batch").write_bytes(
        pickle.dumps({"data": raw_files.Payload(tmp_path / "ran"), "labels": [1]})
    )
    with pytest.raises(
        FormatError, match=r"test_batch cannot be read \(it asks for posix\.mkdir\)"
    ):
        read_cifar(CIFAR10, tmp_path)
    assert not (tmp_path / "ran").exists()


def test_a_damaged_archive_is_refused_by_name(tmp_path: Path) -> None:
    raw_files.cifar10(tmp_path)
    path = raw_files.packed(tmp_path, CIFAR10.folder, CIFAR10.archive)
    whole = path.read_bytes()
    for end in (0, 10, len(whole) // 2, len(whole) - 2000):
        path.write_bytes(whole[:end])
        with pytest.raises(FormatError, match=r"cifar-10-python\.tar\.gz"):
            read_cifar(CIFAR10, tmp_path)
    middle = bytearray(whole)
    middle[len(whole) // 2] ^= 0xFF
    path.write_bytes(middle)
    with pytest.raises(FormatError, match=r"cifar-10-"):
        read_cifar(CIFAR10, tmp_path)


def test_links_in_an_archive_are_not_followed(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / CIFAR10.archive, "w:gz") as content:
        for name in raw_files.BATCHES:
            link = tarfile.TarInfo(f"{CIFAR10.folder}/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
            content.addfile(link)
    with pytest.raises(FormatError, match="lacks data_batch_1"):
        read_cifar(CIFAR10, tmp_path)
