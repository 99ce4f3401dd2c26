"""Features without labels, for predictions: from the same kinds of files as samples with labels."""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.backbones import Backbone
from expunge.cli._samples import (
    Keys,
    asking_for_backbone,
    features_of,
    header,
    is_raw,
    listed,
    read_features,
)
from expunge.data.columns import labels_of_texts, shown_names, usual_name
from expunge.data.readers import SUFFIXES, parquet_features, parsed_number, pyarrow
from expunge.errors import FormatError, InputError
from expunge.ridge.spec import Spec

_LABELS, _IDS, _SUBJECTS = ("label", "labels"), ("id", "ids"), ("subject", "subjects")


@dataclass(frozen=True)
class Inputs:
    """What is to be predicted; `labels` where the file says what the answer should be."""

    ids: list[str]
    features: NDArray[Any]
    labels: NDArray[Any] | None = None


def read_inputs(path: Path, spec: Spec, keys: Keys, backbone: Backbone | None) -> Inputs:
    """The inputs in a file of features, or raw ones through the backbone."""
    if is_raw(path, backbone) and backbone is not None:
        found = list(listed(path))
        labels = [one.label for one in found if one.label is not None]
        known = (
            labels_of_texts(labels, spec)
            if len(labels) == len(found) and spec.is_classification
            else None
        )
        return Inputs([one.id for one in found], features_of(found, backbone), known)
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(
            f"{path} needs a backbone to become a feature (--backbone), or must end in "
            f"{', '.join(SUFFIXES)}"
        )
    with asking_for_backbone(path, spec, keys, backbone):
        if _has_labels(path, keys):
            samples = read_features(path, spec, keys)
            return Inputs(samples.ids, samples.features, samples.labels)
        return _unlabelled(path, keys)


def _has_labels(path: Path, keys: Keys) -> bool:
    if keys.labels or keys.labels_file is not None or keys.last_columns:
        return True
    return path.suffix.lower() != ".npy" and usual_name(_names(path), _LABELS) is not None


def _names(path: Path) -> Sequence[str]:
    suffix = path.suffix.lower()
    if suffix == ".csv":
        return header(path)
    if suffix == ".parquet":
        return list(pyarrow()[1].read_schema(path).names)
    with _npz(path) as arrays:
        return list(arrays.files)


def _unlabelled(path: Path, keys: Keys) -> Inputs:
    suffix = path.suffix.lower()
    if suffix == ".npy":
        features = np.load(path, mmap_mode="r", allow_pickle=False)
        return Inputs(_numbered(path, len(features)), features)
    if suffix == ".npz":
        with _npz(path) as arrays:
            name = keys.features[0] if keys.features else "features"
            if name not in arrays.files:
                raise InputError(f"{path} has no array {name!r}; it has {', '.join(arrays.files)}")
            ids = next((arrays[one] for one in (keys.id, *_IDS) if one in arrays.files), None)
            features = arrays[name]
        return Inputs(
            _numbered(path, len(features)) if ids is None else [str(one) for one in ids], features
        )
    return _csv(path, keys) if suffix == ".csv" else _columns(path, keys)


def _chosen(path: Path, names: Sequence[str], keys: Keys) -> tuple[list[str], str | None]:
    """The columns of features, and that of ids."""
    ids = keys.id or next((name for name in _IDS if name in names), None)
    others = {ids, keys.subject, *_SUBJECTS}
    features = list(keys.features) or (
        ["features"] if "features" in names else [name for name in names if name not in others]
    )
    missing = [name for name in (*features, *filter(None, [ids])) if name not in names]
    if missing:
        raise InputError(f"{path} has no column {missing[0]!r}; it has {shown_names(names)}")
    return features, ids


def _csv(path: Path, keys: Keys) -> Inputs:
    features, ids = _chosen(path, header(path), keys)
    rows, names = [], []
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        try:
            for number, row in enumerate(reader):
                if None in row or None in row.values():
                    raise FormatError(
                        f"line {reader.line_num} of {path} has more or fewer fields than the header"
                    )
                rows.append(
                    [parsed_number(path, reader.line_num, name, row[name]) for name in features]
                )
                names.append(f"{path.name}#{number}" if ids is None else row[ids])
        except csv.Error as problem:
            raise FormatError(
                f"line {reader.line_num} of {path} cannot be read: {problem}"
            ) from problem
    return Inputs(names, np.array(rows, dtype=np.float64).reshape(len(rows), len(features)))


def _columns(path: Path, keys: Keys) -> Inputs:
    arrow, parquet = pyarrow()
    table = parquet.read_table(path)
    features, ids = _chosen(path, table.column_names, keys)
    array = parquet_features(arrow, path, table, features)
    return Inputs(
        _numbered(path, len(array))
        if ids is None
        else [str(one) for one in table.column(ids).to_pylist()],
        array,
    )


def _numbered(path: Path, count: int) -> list[str]:
    return [f"{path.name}#{row}" for row in range(count)]


def _npz(path: Path) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except (ValueError, OSError, zipfile.BadZipFile) as problem:
        raise FormatError(f"{path} cannot be read as .npz: {problem}") from problem
