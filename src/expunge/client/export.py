"""Export of samples to .npz, .csv or .parquet files: everything that a store holds of each, for a
person who asks what is held.

Laws: every number is written so that reading it gives the very same one; an .npz or .parquet file
can be added again (`load`). A feature that is not kept is left out: empty in .csv, null in
.parquet, a row of NaN in .npz.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.client.samples import StoredSample, UnsealedSample
from expunge.errors import InputError, MissingExtraError
from expunge.ridge.spec import Spec
from expunge.wire.schema import time_text

FORMS = (".npz", ".csv", ".parquet")
Held = Sequence[tuple[StoredSample, UnsealedSample]]


def require_form(path: Path) -> None:
    """Refuse a name that does not end in one of the forms."""
    if path.suffix.lower() not in FORMS:
        raise InputError(
            f"{path} is of a kind that cannot be written: name a file that ends in "
            f"{', '.join(FORMS)}"
        )


def file_of(path: Path, held: Held, spec: Spec) -> bytes:
    """The content of a file of this name: id, subject, label, time (UTC), state, source and feature
    of each sample.
    """
    require_form(path)
    suffix = path.suffix.lower()
    return (
        _npz(held, spec)
        if suffix == ".npz"
        else _csv(held, spec)
        if suffix == ".csv"
        else _parquet(held, spec)
    )


def _npz(held: Held, spec: Spec) -> bytes:
    texts = {
        name: np.array([text or "" for text in column], dtype=np.str_)
        for name, column in _texts(held).items()
    }
    file = io.BytesIO()
    np.savez(
        file,
        ids=texts["id"],
        subjects=texts["subject"],
        labels=np.array(_labels(held, spec)),
        added=texts["added"],
        states=texts["state"],
        sources=texts["source"],
        features=_matrix(held, spec),
    )
    return file.getvalue()


def _csv(held: Held, spec: Spec) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    labels = _labels(held, spec)
    several = (
        [f"label_{column}" for column in range(spec.columns)]
        if labels and isinstance(labels[0], list)
        else ["label"]
    )
    writer.writerow(
        [
            "id",
            "subject",
            *several,
            "added",
            "state",
            "source",
            *(f"feature_{column}" for column in range(spec.dim)),
        ]
    )
    columns = _texts(held)
    for row, (_, sample) in enumerate(held):
        label = labels[row] if isinstance(labels[row], list) else [labels[row]]
        feature = (
            [""] * spec.dim if sample.content.feature is None else sample.content.feature.tolist()
        )
        first, rest = ("id", "subject"), ("added", "state", "source")
        writer.writerow(
            [
                *(columns[name][row] for name in first),
                *label,
                *(columns[name][row] for name in rest),
                *feature,
            ]
        )
    return text.getvalue().encode("utf-8", "backslashreplace")


def _parquet(held: Held, spec: Spec) -> bytes:
    try:
        pa, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as problem:
        raise MissingExtraError(
            "Parquet files are written by pyarrow, which is missing: pip install "
            "'expunge[parquet]', or name a .csv or .npz file"
        ) from problem
    texts = {
        name: pa.array([_utf8(text) for text in column], pa.string())
        for name, column in _texts(held).items()
    }
    labels = _labels(held, spec)
    real = bool(labels) and isinstance(labels[0], list)
    named = labels if real else [_utf8(str(label)) for label in labels]
    features = [
        None if sample.content.feature is None else sample.content.feature.tolist()
        for _, sample in held
    ]
    kind = pa.float64() if _matrix(held, spec).dtype.kind == "f" else pa.int64()
    table = pa.table(
        {
            "id": texts["id"],
            "subject": texts["subject"],
            "label": pa.array(named, pa.list_(pa.float64()) if real else pa.string()),
            "added": texts["added"],
            "state": texts["state"],
            "source": texts["source"],
            "features": pa.array(features, pa.list_(kind)),
        }
    )
    sink = pa.BufferOutputStream()
    parquet.write_table(table, sink)
    return bytes(sink.getvalue())


def _texts(held: Held) -> dict[str, list[str | None]]:
    return {
        "id": [stored.names.id for stored, _ in held],
        "subject": [stored.names.subject for stored, _ in held],
        "added": [time_text(stored.added) for stored, _ in held],
        "state": [stored.shown_state for stored, _ in held],
        "source": [stored.names.source for stored, _ in held],
    }


def _labels(held: Held, spec: Spec) -> list[Any]:
    """Labels as the spec names them; rows of numbers if any sample has those, where a hard label is
    a one among zeros.
    """
    targets = [sample.content.target for _, sample in held]
    if all(isinstance(target, int) for target in targets):
        names = spec.labels or ()
        return [names[target] for target in targets if isinstance(target, int)]
    rows = np.zeros((len(targets), spec.columns))
    for row, target in zip(rows, targets, strict=True):
        if isinstance(target, int):
            row[target] = 1.0
        else:
            row[: target.size] = _exactly(target, np.dtype(np.float64))
    return list(rows.tolist())


def _matrix(held: Held, spec: Spec) -> NDArray[Any]:
    """The features, of one type that holds them all."""
    features = [sample.content.feature for _, sample in held]
    present = [feature for feature in features if feature is not None]
    kinds = {feature.dtype for feature in present} or {np.dtype(np.float64)}
    kind = np.result_type(*kinds, *([] if len(present) == len(features) else [np.float32]))
    missing = np.full(spec.dim, np.nan) if kind.kind == "f" else np.zeros(spec.dim, kind)
    rows = [missing if feature is None else _exactly(feature, kind) for feature in features]
    return np.array(rows, dtype=kind).reshape(len(rows), spec.dim)


def _exactly(values: NDArray[Any], kind: np.dtype[Any]) -> NDArray[Any]:
    """The same numbers of another type."""
    converted = values.astype(kind)
    if not np.array_equal(converted.astype(values.dtype), values):
        raise InputError(
            f"the numbers of some samples are of type {values.dtype}, those of others are not, "
            "and no type holds all of them "
            "exactly: export them apart from one another, or to a .csv file"
        )
    return converted


def _utf8(text: str | None) -> str | None:
    return None if text is None else text.encode("utf-8", "backslashreplace").decode("utf-8")
