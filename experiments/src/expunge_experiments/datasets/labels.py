"""Labels and groups as integers from 0."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.errors import InputError, ShapeError
from expunge_experiments.datasets.dataset import Integers


def numbered(
    where: object, train: NDArray[Any], test: NDArray[Any], classes: int | None = None
) -> tuple[Integers, Integers, int]:
    """Labels of training and test samples as integers, and the number of classes.

    Integers are class numbers and stay as they are; texts are numbered in their order. Without `classes`, there are as many as
    the largest label says.
    """
    for name, part in (("train_labels", train), ("test_labels", test)):
        if part.ndim != 1 or not part.size:
            raise ShapeError(f"{where}: {name} must have one label for each sample and at least one, not the shape {part.shape}")
        if part.dtype.kind not in "biuU" or (part.dtype.kind == "U") != (train.dtype.kind == "U"):
            raise InputError(f"{where}: {name} holds {part.dtype}; labels are class numbers from 0, or all of them texts")
    if train.dtype.kind == "U":
        names, inverse = np.unique(np.concatenate([train, test]), return_inverse=True)
        return inverse[: len(train)].astype(np.int64), inverse[len(train) :].astype(np.int64), classes or len(names)
    lowest, highest = min(train.min(), test.min()), max(train.max(), test.max())
    if lowest < 0:
        raise InputError(f"{where}: a label is {lowest}; labels are class numbers from 0")
    if classes is None and highest >= len(train) + len(test):
        raise InputError(
            f"{where}: a label is {highest}, with only {len(train) + len(test)} samples; number the classes from 0, without gaps"
        )
    return train.astype(np.int64), test.astype(np.int64), int(highest) + 1 if classes is None else classes


def grouped(where: object, groups: NDArray[Any], count: int) -> Integers:
    """Groups, named by integers or texts, numbered from 0 in the order of their names."""
    if groups.shape != (count,) or groups.dtype.kind not in "iuU":
        raise ShapeError(
            f"{where}: groups must be {count} integers or texts, one for each training sample, not {groups.dtype} of shape "
            f"{groups.shape}"
        )
    return np.unique(groups, return_inverse=True)[1].astype(np.int64)
