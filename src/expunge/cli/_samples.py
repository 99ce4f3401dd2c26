"""Samples from what was typed: files of features, or images and texts that go through a
backbone.
"""

from __future__ import annotations

import csv
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.backbones import Backbone, PrecomputedBackbone, backbone_from, require_fingerprint
from expunge.cli._output import Screen
from expunge.client.samples import FILE_SOURCE, TEXT_SOURCE
from expunge.data.columns import labels_of_texts, require_names
from expunge.data.readers import SUFFIXES, load
from expunge.errors import FormatError, InputError
from expunge.ridge.spec import Spec

_SHOWN = 12  # names of columns

Recompute = Callable[[Sequence[str]], NDArray[Any]]


@dataclass(frozen=True)
class Keys:
    """Which columns of a table are what."""

    features: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    id: str | None = None
    subject: str | None = None
    labels_file: Path | None = None
    last_columns: int = 0
    label_indices: bool = False


@dataclass(frozen=True)
class Samples:
    """Samples to be added: one entry of each part for each sample."""

    ids: list[str]
    features: NDArray[Any]
    labels: NDArray[Any]
    subjects: list[str | None] | None
    sources: list[str | None] | None = None
    notes: tuple[str, ...] = ()  # what was made up or left out
    origin: str = ""  # the files that they are from

    @property
    def nobodys(self) -> int:
        """How many are about nobody in particular."""
        return len(self) if self.subjects is None else self.subjects.count(None)

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Raw:
    """One image or text before the backbone.

    `what` is a path, or the text itself; `origin` is where it was found.
    """

    id: str
    what: Path | str
    origin: str
    label: str | None = None
    subject: str | None = None

    @property
    def source(self) -> str:
        """From which the feature can be computed again."""
        return (
            f"{TEXT_SOURCE}{self.what}"
            if isinstance(self.what, str)
            else f"{FILE_SOURCE}{self.what.absolute()}"
        )


def opened_backbone(spec: Spec, description: str | Mapping[str, Any]) -> Backbone:
    """The backbone of a description, if it is the one that the spec pins."""
    backbone = backbone_from(description)
    require_fingerprint(spec, backbone)
    return backbone


def backbone_argument(spec: Spec, description: str | None = None) -> str:
    """`--backbone` for a command to type next, where the spec pins a backbone; else nothing."""
    return f" --backbone {shlex.quote(description or 'DESCRIPTION')}" if spec.backbone else ""


def recomputing(backbone: Backbone | None) -> Recompute | None:
    """What computes features again from their sources."""
    if backbone is None:
        return None

    def recompute(sources: Sequence[str]) -> NDArray[Any]:
        given = [
            Path(one.removeprefix(FILE_SOURCE))
            if one.startswith(FILE_SOURCE)
            else one.removeprefix(TEXT_SOURCE)
            for one in sources
        ]
        return np.asarray(backbone.features(given))

    return recompute


def is_raw(path: Path, backbone: Backbone | None) -> bool:
    """Whether a file holds raw samples: an image, a text, a folder of them, or a list of them (a
    .csv with `file` or `text`).
    """
    if backbone is None or isinstance(backbone, PrecomputedBackbone):
        return False
    if path.suffix.lower() == ".csv":
        return bool({"file", "text"} & set(header(path)))
    return path.suffix.lower() not in SUFFIXES


@contextmanager
def asking_for_backbone(
    path: Path, spec: Spec, keys: Keys, backbone: Backbone | None
) -> Iterator[None]:
    """Around reading a file of features: if it may hold texts or images instead, the backbone is
    asked for.
    """
    pinned = (
        "this federation pins a backbone"
        if spec.backbone
        else "only a backbone makes features of them"
    )
    if backbone is None and not keys.features and path.suffix.lower() == ".csv" and path.is_file():
        raw = sorted({"file", "text"} & set(header(path)))
        if raw:
            raise InputError(
                f"{path} has a column {raw[0]!r}, and so holds texts or files: {pinned}. Pass "
                "--backbone "
                "DESCRIPTION, or name the columns of features (--feature-column)"
            )
    try:
        yield
    except InputError as problem:
        if backbone is None and spec.backbone:
            problem.add_note(
                "This federation pins a backbone: if the file holds texts or images, pass "
                "--backbone "
                "DESCRIPTION; if not, it must hold features that were made by that backbone"
            )
        raise


def read_features(path: Path, spec: Spec, keys: Keys) -> Samples:
    """The samples in a file of features."""
    loaded = load(
        path,
        feature_keys=list(keys.features) or None,
        label_keys=list(keys.labels) or None,
        id_key=keys.id,
        subject_key=keys.subject,
        labels=keys.labels_file,
        label_columns=keys.last_columns,
        label_indices=keys.label_indices,
        spec=spec,
    )
    notes = []
    if loaded.ignored:
        shown = ", ".join(repr(name) for name in loaded.ignored[:_SHOWN]) + (
            ", ..." if len(loaded.ignored) > _SHOWN else ""
        )
        notes.append(f"{path}: not read: {shown}")
    if loaded.made_ids and len(loaded):
        named = "" if path.suffix.lower() == ".npy" else " (another column: --id-column)"
        notes.append(
            f"{path} has no ids: they are made of its name and the number of the row, such as "
            f"{loaded.ids[0]}{named}"
        )
    return Samples(
        loaded.ids,
        loaded.features,
        loaded.labels,
        loaded.subjects,
        notes=tuple(notes),
        origin=str(path),
    )


def read_raw(
    paths: Sequence[Path],
    spec: Spec,
    backbone: Backbone,
    *,
    label: str | None,
    subject: str | None,
    label_indices: bool = False,
) -> Samples:
    """Raw samples with their features; `label` and `subject` are for those that have none of their
    own.
    """
    found = [
        replace(
            one,
            label=label if one.label is None else one.label,
            subject=subject if one.subject is None else one.subject,
        )
        for path in paths
        for one in listed(path)
    ]
    for one in found:
        if one.label is None:
            raise InputError(
                f"{one.origin} has no label: give --label, or a .csv with the columns file and "
                "label"
            )
    labels = labels_of_texts([str(one.label) for one in found], spec)
    require_names(paths[0], labels, spec, label_indices=label_indices)
    return Samples(
        [one.id for one in found],
        features_of(found, backbone),
        labels,
        [one.subject for one in found],
        [one.source for one in found],
        origin=", ".join(str(path) for path in paths),
    )


def features_of(found: Sequence[Raw], backbone: Backbone) -> NDArray[Any]:
    """The features of raw samples, with a progress bar."""
    with Screen.current().progress("Computing features", len(found)) as progress:
        return np.asarray(backbone.features([one.what for one in found], progress=progress))


def listed(path: Path) -> Iterator[Raw]:
    """The raw samples of a file, of a folder (a sample's label is the name of its folder), or of a
    .csv that lists them.
    """
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            if file.is_file() and not file.name.startswith("."):
                label = None if file.parent == path else file.parent.name
                yield Raw(file.relative_to(path).as_posix(), file, str(file), label)
    elif path.suffix.lower() == ".csv":
        yield from _from_list(path)
    elif path.is_file():
        yield Raw(path.as_posix(), path, str(path))
    else:
        raise InputError(f"there is no file {path}")


def header(path: Path) -> list[str]:
    """The column names of a .csv file."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return next(csv.reader(file), [])
    except (UnicodeDecodeError, csv.Error) as problem:
        raise FormatError(f"{path} cannot be read as CSV in UTF-8: {problem}") from problem


def _from_list(path: Path) -> Iterator[Raw]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            for number, row in enumerate(csv.DictReader(file, strict=True)):
                name = row.get("id") or f"{path.name}#{number}"
                what: Path | str | None = (
                    path.parent / row["file"] if row.get("file") else row.get("text")
                )
                origin = f"row {number} of {path}"
                if what is None:
                    raise InputError(f"{origin} names no file and has no text")
                yield Raw(name, what, origin, row.get("label") or None, row.get("subject") or None)
    except (UnicodeDecodeError, csv.Error) as problem:
        raise FormatError(f"{path} cannot be read as CSV in UTF-8: {problem}") from problem
