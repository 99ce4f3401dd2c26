"""Features from files: the shared ones, and one's own.

An .npz file holds `train_features`, `train_labels`, `test_features` and `test_labels`; `scale` if features have 8 bits (they are
decoded as features * scale, one scale for each column); `train_groups` (or `train_writers`, `train_users`) if it is known whose
each sample is. Texts `dataset` and `source`, and an integer `classes`, may say more. A folder holds train and test as tables.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.client.loaders import load
from expunge.errors import InputError
from expunge_experiments.datasets.dataset import Dataset
from expunge_experiments.datasets.labels import grouped, numbered
from expunge_experiments.datasets.npz import Arrays, decoded, opened, require_finite

GROUPS = ("train_groups", "train_writers", "train_users")
TABLES = (".csv", ".parquet")


def load_features(path: Path, *, name: str | None = None, source: str | None = None) -> Dataset:
    """The dataset of an .npz file, or of a folder with train and test as .csv or .parquet. Its arrays cannot be written to.

    Without `name` and `source`, the dataset is called what the file says, or like the file.
    """
    if path.is_dir():
        return _frozen(_from_tables(path, name, source))
    if path.suffix.lower() != ".npz":
        raise InputError(
            f"{path} is no data that can be read: give an .npz file with {', '.join(_needed())}, or a folder with train and test "
            f"as {' or '.join(TABLES)}"
        )
    with opened(path) as arrays:
        return _frozen(_from_arrays(path, arrays, name, source))


def _needed() -> list[str]:
    return [f"{part}_{what}" for part in ("train", "test") for what in ("features", "labels")]


def _from_arrays(path: Path, arrays: Arrays, name: str | None, source: str | None) -> Dataset:
    scale = arrays["scale"] if "scale" in arrays.names else None
    train_labels, test_labels, classes = numbered(path, arrays["train_labels"], arrays["test_labels"], _classes(arrays))
    whose = next((one for one in GROUPS if one in arrays.names), None)
    return Dataset(
        name=name or arrays.text("dataset") or path.stem,
        source=source or arrays.text("source") or f"features from the file {path.name}",
        classes=classes,
        train_features=decoded(path, "train_features", arrays["train_features"], scale),
        train_labels=train_labels,
        test_features=decoded(path, "test_features", arrays["test_features"], scale),
        test_labels=test_labels,
        groups=None if whose is None else grouped(path, arrays[whose], len(train_labels)),
    )


def _classes(arrays: Arrays) -> int | None:
    if "classes" not in arrays.names:
        return None
    said = arrays["classes"]
    if said.shape != () or said.dtype.kind not in "iu" or said < 1:
        raise InputError(f"{arrays.path}: 'classes' must be one integer of at least 1")
    return int(said)


def _from_tables(folder: Path, name: str | None, source: str | None) -> Dataset:
    """Columns as the client's loaders know them: label, subject (the group), and all others or `features` for features."""
    parts = {}
    for part in ("train", "test"):
        file = next((folder / f"{part}{suffix}" for suffix in TABLES if (folder / f"{part}{suffix}").is_file()), None)
        if file is None:
            raise InputError(f"{folder} has no {' or '.join(f'{part}{suffix}' for suffix in TABLES)}; both parts must be there")
        parts[part] = file, load(file)
    (train_file, train), (test_file, test) = parts["train"], parts["test"]
    train_labels, test_labels, classes = numbered(folder, train.labels, test.labels)
    if train.subjects is not None and None in train.subjects:
        raise InputError(f"{train_file}: a sample has no subject; name one for all of them, or leave the column out")
    groups = None if train.subjects is None else grouped(train_file, np.array(train.subjects), len(train))
    return Dataset(
        name=name or folder.name,
        source=source or f"features from the folder {folder.name}",
        classes=classes,
        train_features=_single(train_file, train.features),
        train_labels=train_labels,
        test_features=_single(test_file, test.features),
        test_labels=test_labels,
        groups=groups,
    )


def _single(path: Path, features: NDArray[Any]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # an overflow becomes infinity and is refused below
        single = np.ascontiguousarray(features, dtype=np.float32)
    require_finite(path, "the features", single)
    return single


def _frozen(dataset: Dataset) -> Dataset:
    """Arrays that many experiments share cannot be changed by one of them."""
    for array in (dataset.train_features, dataset.train_labels, dataset.test_features, dataset.test_labels, dataset.groups):
        if array is not None:
            array.flags.writeable = False
    return dataset
