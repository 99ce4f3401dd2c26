"""CIFAR-10 and CIFAR-100 from their standard files (the Python version): the archive as it is, or
the folder in it.
"""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.errors import FormatError
from expunge_experiments.datasets.dataset import Integers
from expunge_experiments.datasets.pickles import read_pickle
from expunge_experiments.datasets.places import found
from expunge_experiments.datasets.raw import RawDataset

_PIXELS = (3, 32, 32)  # an image's row: all red pixels, then green, then blue
_LARGEST = 1 << 29  # bytes; the largest of the official files has 155 MB
_DAMAGED = (tarfile.TarError, EOFError, OSError, zlib.error)


@dataclass(frozen=True)
class Form:
    """The names of one of the two datasets."""

    name: str
    title: str
    classes: int
    labels: bytes
    folder: str
    archive: str
    train: Sequence[str]
    test: str


CIFAR10 = Form(
    "cifar10_raw",
    "CIFAR-10",
    10,
    b"labels",
    "cifar-10-batches-py",
    "cifar-10-python.tar.gz",
    [f"data_batch_{number}" for number in range(1, 6)],
    "test_batch",
)
CIFAR100 = Form(
    "cifar100",
    "CIFAR-100",
    100,
    b"fine_labels",
    "cifar-100-python",
    "cifar-100-python.tar.gz",
    ["train"],
    "test",
)


def read_cifar(form: Form, folder: Path) -> RawDataset:
    """All images as uint8 arrays (n, 32, 32, 3), in the order of the files."""
    path = found(
        folder,
        [form.folder, form.archive],
        what=f"{form.title} (the folder {form.folder} or the archive {form.archive})",
        remedy=(
            f'Get the official archive {form.archive} ("{form.title} python version") and put '
            "it there as it is."
        ),
    )
    names = [*form.train, form.test]
    files = _from_folder(path, names) if path.is_dir() else _from_archive(path, form.folder, names)
    batches = [_batch(form, path, name, files[name]) for name in names]
    return RawDataset(
        name=form.name,
        source=f"{form.title}, images of 32 x 32 pixels",
        modality="image",
        classes=form.classes,
        train=np.concatenate([images for images, _ in batches[:-1]]),
        train_labels=np.concatenate([labels for _, labels in batches[:-1]]),
        test=batches[-1][0],
        test_labels=batches[-1][1],
    )


def _from_folder(folder: Path, names: Sequence[str]) -> dict[str, bytes]:
    absent = [name for name in names if not (folder / name).is_file()]
    if absent:
        raise FormatError(
            f"{folder} lacks {', '.join(absent)}; unpack the archive again, or put it beside the "
            "folder's place"
        )
    return {name: (folder / name).read_bytes() for name in names}


def _from_archive(archive: Path, folder: str, names: Sequence[str]) -> dict[str, bytes]:
    """The files by their names; nothing is written to the disk."""
    wanted = {f"{folder}/{name}": name for name in names}
    files: dict[str, bytes] = {}
    try:
        with gzip.open(archive) as stream, tarfile.open(fileobj=stream, mode="r:") as content:
            for member in content:
                name = wanted.get(member.name)
                file = content.extractfile(member) if name is not None and member.isfile() else None
                if name is not None and file is not None:
                    if member.size > _LARGEST:
                        raise FormatError(
                            f"{archive}: {member.name} is too large to be the official file; get "
                            "the archive again"
                        )
                    files[name] = file.read()
            while stream.read(1 << 20):  # to the end, where the checksum is
                pass
    except _DAMAGED as problem:
        raise FormatError(
            f"{archive} cannot be read ({problem}): it is damaged; get it again"
        ) from problem
    absent = sorted(set(names) - set(files))
    if absent:
        raise FormatError(
            f"{archive} lacks {', '.join(absent)} in {folder}; get the official archive again"
        )
    return files


def _batch(form: Form, path: Path, name: str, data: bytes) -> tuple[NDArray[np.uint8], Integers]:
    where = f"{path / name}"
    batch: Any = read_pickle(data, where)
    if not isinstance(batch, Mapping):
        raise FormatError(
            f"{where} holds no batch of {form.title}, but a {type(batch).__name__}; get the "
            "official file again"
        )
    values = {key.encode() if isinstance(key, str) else key: value for key, value in batch.items()}
    rows, labels = values.get(b"data"), values.get(form.labels)
    if (
        not isinstance(rows, np.ndarray)
        or rows.dtype != np.uint8
        or rows.ndim != 2
        or rows.shape[1] != np.prod(_PIXELS)
    ):
        raise FormatError(
            f"{where} has no array 'data' of bytes with {np.prod(_PIXELS)} columns; get the "
            "official file again"
        )
    if (
        not isinstance(labels, list)
        or len(labels) != len(rows)
        or not all(type(label) is int for label in labels)
    ):
        raise FormatError(
            f"{where} has no list {form.labels.decode()!r} with one class number an image; get "
            "the file again"
        )
    if labels and not 0 <= min(labels) <= max(labels) < form.classes:
        raise FormatError(
            f"{where} has labels from {min(labels)} to {max(labels)}, not 0 to {form.classes - 1}"
        )
    return rows.reshape(-1, *_PIXELS).transpose(0, 2, 3, 1), np.array(labels, dtype=np.int64)
