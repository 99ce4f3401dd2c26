"""Features from files: the shared ones, and one's own.

Files are opened by `expunge.data.formats`, with its errors.

An .npz file holds `train_features`, `train_labels`, `test_features` and `test_labels`; `scale` if
features have 8 bits (they are decoded as features * scale, one scale for each column);
`train_groups` (or `train_writers`, `train_users`) if it is known whose each sample is. Texts
`dataset` and `source`, and an integer `classes`, may say more. A folder holds train and test as
tables.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.data.formats import DataFile, matrix, open_file, require_alike
from expunge.data.readers import load
from expunge.errors import InputError, NotFiniteError, ShapeError
from expunge_experiments.datasets.dataset import Dataset, Integers


def numbered(
    where: object, train: NDArray[Any], test: NDArray[Any], classes: int | None = None
) -> tuple[Integers, Integers, int]:
    """Labels of training and test samples as integers, and the number of classes.

    Integers are class numbers and stay as they are; texts are numbered in their order. Without
    `classes`, there are as many as the largest label says.
    """
    for name, part in (("train_labels", train), ("test_labels", test)):
        if part.ndim != 1 or not part.size:
            raise ShapeError(
                f"{where}: {name} must have one label for each sample and at least one, not the "
                f"shape {part.shape}"
            )
        if part.dtype.kind not in "biuU" or (part.dtype.kind == "U") != (train.dtype.kind == "U"):
            raise InputError(
                f"{where}: {name} holds {part.dtype}; labels are class numbers from 0, or all of "
                "them texts"
            )
    if train.dtype.kind == "U":
        names, inverse = np.unique(np.concatenate([train, test]), return_inverse=True)
        return (
            inverse[: len(train)].astype(np.int64),
            inverse[len(train) :].astype(np.int64),
            classes or len(names),
        )
    lowest, highest = min(train.min(), test.min()), max(train.max(), test.max())
    if lowest < 0:
        raise InputError(f"{where}: a label is {lowest}; labels are class numbers from 0")
    if classes is None and highest >= len(train) + len(test):
        raise InputError(
            f"{where}: a label is {highest}, with only {len(train) + len(test)} samples; number "
            "the classes from 0, without gaps"
        )
    return (
        train.astype(np.int64),
        test.astype(np.int64),
        int(highest) + 1 if classes is None else classes,
    )


def grouped(where: object, groups: NDArray[Any], count: int) -> Integers:
    """Groups, named by integers or texts, numbered from 0 in the order of their names."""
    if groups.shape != (count,) or groups.dtype.kind not in "iuU":
        raise ShapeError(
            f"{where}: groups must be {count} integers or texts, one for each training sample, not "
            f"{groups.dtype} of shape {groups.shape}"
        )
    return np.unique(groups, return_inverse=True)[1].astype(np.int64)


# -- arrays in .npz files --------------------------------------------------------------------------


Array = NDArray[Any]
_BLOCK = 4096  # rows looked at in one go


def _array(file: DataFile, name: str) -> Array:
    """An array of texts or numbers."""
    file.require(name, remedy=f"Needed are {', '.join(_needed())}")
    return file.column(name).labels()


def _text(file: DataFile, name: str) -> str | None:
    """An array that is a single text, or None if there is none of that name."""
    return str(_array(file, name)) if name in file.names else None


def _features(file: DataFile, part: str, scale: Array | None) -> NDArray[np.float32]:
    """Features in float32, one row for each label."""
    name = f"{part}_features"
    file.require(name, remedy=f"Needed are {', '.join(_needed())}")
    return decoded(file.path, name, matrix([file.column(name)]), scale)


def decoded(path: Path, name: str, raw: Array, scale: Array | None) -> NDArray[np.float32]:
    """Features in float32: 8-bit ones times their column's scale, others as they are."""
    if not raw.shape[1]:
        raise ShapeError(f"{path}: {name} must be a matrix (n, dim), and has the shape {raw.shape}")
    if raw.dtype in (np.uint8, np.int8):
        if scale is None:
            raise InputError(
                f"{path}: {name} has 8 bits a value, and there is no array 'scale' to decode it "
                "with"
            )
        return np.multiply(raw, _checked_scale(path, scale, raw.shape[1]), dtype=np.float32)
    if raw.dtype.kind != "f":
        raise InputError(
            f"{path}: {name} holds {raw.dtype}; features are floats, or uint8 with an array 'scale'"
        )
    if scale is not None:
        raise InputError(
            f"{path}: {name} holds {raw.dtype}, and 'scale' is for features of 8 bits; leave it out"
        )
    with np.errstate(over="ignore"):  # an overflow becomes infinity and is refused below
        features = raw.astype(np.float32, copy=False)
    require_finite(path, name, features)
    return features


def _checked_scale(path: Path, scale: Array, dim: int) -> NDArray[np.float32]:
    if scale.dtype.kind != "f" or scale.shape != (dim,):
        raise ShapeError(
            f"{path}: 'scale' must have one float for each of {dim} columns, and is {scale.dtype} "
            f"of shape {scale.shape}"
        )
    with np.errstate(over="ignore"):
        scale = scale.astype(np.float32)
    if not (np.isfinite(scale).all() and (scale > 0).all()):
        raise NotFiniteError(f"{path}: 'scale' must be positive and finite in every column")
    return scale


def require_finite(path: Path, name: str, features: NDArray[np.float32]) -> None:
    """Raise NotFiniteError for the first row with a value that float32 has not."""
    for start in range(0, len(features), _BLOCK):
        bad = np.flatnonzero(~np.isfinite(features[start : start + _BLOCK]).all(axis=1))
        if bad.size:
            raise NotFiniteError(
                f"row {start + bad[0]} of {path}: a value of {name} is beyond float32. Mend or "
                "drop that sample"
            )


# -- datasets --------------------------------------------------------------------------------------


GROUPS = ("train_groups", "train_writers", "train_users")
TABLES = (".csv", ".parquet")


def load_features(path: Path, *, name: str | None = None, source: str | None = None) -> Dataset:
    """The dataset of an .npz file, or of a folder with train and test as .csv or .parquet.

    Its arrays cannot be written to.

    Without `name` and `source`, the dataset is called what the file says, or like the file.
    """
    if path.is_dir():
        return _frozen(_from_tables(path, name, source))
    if path.suffix.lower() != ".npz":
        raise InputError(
            f"{path} is of a kind that cannot be read: give an .npz file with "
            f"{', '.join(_needed())}, or a folder with train and test as {' or '.join(TABLES)}"
        )
    with open_file(path) as file:
        return _frozen(_from_arrays(file, name, source))


def _needed() -> list[str]:
    return [f"{part}_{what}" for part in ("train", "test") for what in ("features", "labels")]


def _from_arrays(file: DataFile, name: str | None, source: str | None) -> Dataset:
    path = file.path
    scale = _array(file, "scale") if "scale" in file.names else None
    labels = {part: _array(file, f"{part}_labels") for part in ("train", "test")}
    features = {part: _features(file, part, scale) for part in ("train", "test")}
    whose = next((key for key in GROUPS if key in file.names), None)
    groups = None if whose is None else _array(file, whose)
    for part in ("train", "test"):
        parts = {f"{part}_features": features[part].shape, f"{part}_labels": labels[part].shape}
        require_alike(path, parts)
    train_labels, test_labels, classes = numbered(
        path, labels["train"], labels["test"], _classes(file)
    )
    return Dataset(
        name=name or _text(file, "dataset") or path.stem,
        source=source or _text(file, "source") or f"features from the file {path.name}",
        classes=classes,
        train_features=features["train"],
        train_labels=train_labels,
        test_features=features["test"],
        test_labels=test_labels,
        groups=None if groups is None else grouped(path, groups, len(train_labels)),
    )


def _classes(file: DataFile) -> int | None:
    if "classes" not in file.names:
        return None
    classes = _array(file, "classes")
    if classes.shape != () or classes.dtype.kind not in "iu" or classes < 1:
        raise InputError(f"{file.path}: 'classes' must be one integer of at least 1")
    return int(classes)


def _from_tables(folder: Path, name: str | None, source: str | None) -> Dataset:
    """Columns as the client's loaders know them: label, subject (the group), and all others or
    `features` for features.
    """
    parts = {}
    for part in ("train", "test"):
        file = next(
            (
                folder / f"{part}{suffix}"
                for suffix in TABLES
                if (folder / f"{part}{suffix}").is_file()
            ),
            None,
        )
        if file is None:
            raise InputError(
                f"{folder} has no {' or '.join(f'{part}{suffix}' for suffix in TABLES)}; both "
                "parts must be there"
            )
        parts[part] = file, load(file)
    (train_file, train), (test_file, test) = parts["train"], parts["test"]
    train_labels, test_labels, classes = numbered(folder, train.labels, test.labels)
    if train.subjects is not None and None in train.subjects:
        raise InputError(
            f"{train_file}: a sample has no subject; name one for all of them, or leave the "
            "column out"
        )
    groups = (
        None
        if train.subjects is None
        else grouped(train_file, np.array(train.subjects), len(train))
    )
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
    for array in (
        dataset.train_features,
        dataset.train_labels,
        dataset.test_features,
        dataset.test_labels,
        dataset.groups,
    ):
        if array is not None:
            array.flags.writeable = False
    return dataset
