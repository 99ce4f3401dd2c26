"""Samples from what was typed: files of features, or images and texts that go through a
backbone; what is said about them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge import backbones
from expunge.cli._output import Screen
from expunge.client.samples import FILE_SOURCE, TEXT_SOURCE
from expunge.data.columns import Keys, Loaded, labels_of_texts, require_names
from expunge.data.formats import SUFFIXES, shown_names
from expunge.data.raw import Raw, holds_raw, list_raw, raw_column
from expunge.data.readers import Inputs, load_inputs, load_samples
from expunge.errors import InputError
from expunge.ridge.spec import Spec


@dataclass(frozen=True)
class LoadedSamples(Loaded):
    """Samples to be added: what was read, where from, and what to say about it."""

    sources: list[str | None] | None = None
    notes: tuple[str, ...] = ()  # what was made up or left out
    origin: str = ""  # the files that they are from

    @property
    def nobodys(self) -> int:
        """How many have no subject."""
        return len(self) if self.subjects is None else self.subjects.count(None)


def is_raw(path: Path, backbone: backbones.Backbone | None) -> bool:
    """Whether a file goes through the backbone."""
    return (
        backbone is not None
        and not isinstance(backbone, backbones.PrecomputedBackbone)
        and holds_raw(path)
    )


@contextmanager
def asking_for_backbone(
    path: Path, spec: Spec, keys: Keys, backbone: backbones.Backbone | None
) -> Iterator[None]:
    """Around reading a file of features: if it may hold texts or images instead, the backbone is
    asked for.
    """
    if backbone is None and not keys.features:
        column = raw_column(path)
        if column is not None:
            pinned = (
                "this federation pins a backbone"
                if spec.backbone
                else "only a backbone turns them into features"
            )
            raise InputError(
                f"{path} has a column {column!r}, and so holds texts or files: {pinned}. Pass "
                "--backbone DESCRIPTION, or name the columns of features (--feature-column)"
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
        elif backbone is None and path.suffix.lower() not in SUFFIXES:
            problem.add_note("An image or a text needs a backbone (--backbone DESCRIPTION)")
        raise


def read_features(path: Path, spec: Spec, keys: Keys) -> LoadedSamples:
    """The samples in a file of features."""
    loaded = load_samples(path, keys, spec)
    notes = []
    if loaded.ignored:
        notes.append(f"{path}: ignored: {shown_names(loaded.ignored)}")
    if loaded.made_ids and len(loaded):
        named = "" if path.suffix.lower() == ".npy" else " (another column: --id-column)"
        notes.append(
            f"{path} has no ids: they are made from its name and the row number, such as "
            f"{loaded.ids[0]}{named}"
        )
    return LoadedSamples(**vars(loaded), notes=tuple(notes), origin=str(path))


def read_inputs(path: Path, spec: Spec, keys: Keys, backbone: backbones.Backbone | None) -> Inputs:
    """The inputs in a file of features, or raw ones through the backbone."""
    if backbone is not None and is_raw(path, backbone):
        samples = list(list_raw(path))
        labels = [sample.label for sample in samples if sample.label is not None]
        label_array = (
            labels_of_texts(labels, spec)
            if len(labels) == len(samples) and spec.is_classification
            else None
        )
        return Inputs(
            [sample.id for sample in samples], features_of(samples, backbone), label_array
        )
    with asking_for_backbone(path, spec, keys, backbone):
        return load_inputs(path, keys, spec)


def read_raw(
    paths: Sequence[Path],
    spec: Spec,
    backbone: backbones.Backbone,
    *,
    label: str | None,
    subject: str | None,
    label_indices: bool = False,
) -> LoadedSamples:
    """Raw samples with their features; `label` and `subject` are for those that have none of their
    own.
    """
    samples = [
        replace(
            sample,
            label=label if sample.label is None else sample.label,
            subject=subject if sample.subject is None else sample.subject,
        )
        for path in paths
        for sample in list_raw(path)
    ]
    for sample in samples:
        if sample.label is None:
            raise InputError(
                f"{sample.origin} has no label: give --label, or a .csv with the columns file and "
                "label"
            )
    labels = labels_of_texts([str(sample.label) for sample in samples], spec)
    require_names(paths[0], labels, spec, label_indices=label_indices)
    return LoadedSamples(
        [sample.id for sample in samples],
        features_of(samples, backbone),
        labels,
        [sample.subject for sample in samples],
        sources=[source_of(sample) for sample in samples],
        origin=", ".join(str(path) for path in paths),
    )


def features_of(samples: Sequence[Raw], backbone: backbones.Backbone) -> NDArray[Any]:
    """The features of raw samples, with a progress bar."""
    with Screen.current().progress("Computing features", len(samples)) as progress:
        return np.asarray(backbone.features([sample.what for sample in samples], progress=progress))


def source_of(raw: Raw) -> str:
    """From which the feature can be computed again."""
    if isinstance(raw.what, str):
        return f"{TEXT_SOURCE}{raw.what}"
    return f"{FILE_SOURCE}{raw.what.absolute()}"
