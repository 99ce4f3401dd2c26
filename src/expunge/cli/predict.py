"""`expunge predict`: run a head on files."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from numpy.typing import NDArray

from expunge.cli._agent import backbone_of, opened_backbone
from expunge.cli._command import command
from expunge.cli._connect import read_store, sync_command
from expunge.cli._evidence import chains_from, head_from, key_from, store_head
from expunge.cli._options import (
    FILE,
    PATH,
    backbone_option,
    feature_columns_option,
    fetched_head_option,
    id_column_option,
    output_option,
    trust_option,
)
from expunge.cli._output import Screen, count, facts, line, table, unwrapped
from expunge.cli._samples import read_inputs
from expunge.client import ClientStore
from expunge.data.columns import Keys
from expunge.data.readers import Inputs
from expunge.errors import InputError
from expunge.evidence import KeyChain
from expunge.ridge.encoding import checked_labels
from expunge.ridge.feature_names import FeatureNames
from expunge.ridge.head import Head
from expunge.storage.files import write_whole

if TYPE_CHECKING:
    from expunge.backbones import Backbone

_SHOWN = 20  # rows, where they are not written to a file


@command()
@click.argument("files", type=PATH, nargs=-1, required=True)
@fetched_head_option
@click.option(
    "--head",
    "head_file",
    type=FILE,
    help="Use the head in this file: published, .safetensors or .onnx.",
)
@click.option("--key", type=FILE, help="The server's public key, to verify a published head.")
@trust_option
@backbone_option()
@feature_columns_option
@id_column_option
@click.option(
    "--label-indices",
    is_flag=True,
    help="Read integer labels in the files as class indices, from 0.",
)
@click.option("--scores", is_flag=True, help="Also give the score of every label.")
@output_option("Write all predictions to this .csv file.")
def predict(*, files: tuple[Path, ...], output: Path | None, scores: bool, **given: Any) -> None:
    r"""Predict labels (or outputs) for FILES with the newest head.

    FILES are as for expunge client add, but need no labels. If they have labels, the accuracy is
    shown.

    Example:
      expunge predict new.csv --dir hospital-a -o predictions.csv
      expunge predict new.csv --head head.expunge --trust hospital-a
      expunge predict scan.png --dir hospital-a \
          --backbone 'onnx:model.onnx?size=224'
    """
    if (given["folder"] is None) == (given["head_file"] is None):
        raise click.UsageError("give either --dir (a client's folder) or --head (a file)")
    if given["key"] is not None and given["trust"] is not None:
        raise click.UsageError(
            "give either --key FILE (the server's public key) or --trust DIR (a folder that knows "
            "it)"
        )
    head, backbone, names = _from_client(given) if given["head_file"] is None else _from_file(given)
    keys = Keys(
        given["feature_columns"], id=given["id_column"], label_indices=given["label_indices"]
    )
    inputs = [read_inputs(path, head.spec, keys, backbone) for path in files]
    for path, batch in zip(files, inputs, strict=True):
        _require_names(path, batch, names)
    outputs = [_scores(head, path, batch) for path, batch in zip(files, inputs, strict=True)]
    rows = _rows(head, inputs, outputs, scores=scores)
    if output is not None:
        write_whole(output, _csv(head, rows, scores=scores))
    accuracy = _accuracy(head, inputs, outputs)
    titles = _columns(head, scores=scores)
    summary: list[Any] = [
        ("Head", f"{head.digest[:16]}…"),
        ("Predicted", count(len(rows), "input")),
    ]
    summary += [("Accuracy", f"{accuracy:.4f}")] if accuracy is not None else []
    summary += [("Written to", output)] if output is not None else []
    shown = (
        []
        if output is not None
        else [line(), table(titles, [_text(row) for row in rows[:_SHOWN]], right=titles[2:])]
    )
    more = (
        [line(f"and {len(rows) - _SHOWN:,} more: -o FILE writes them all", indent=2)]
        if not output and len(rows) > _SHOWN
        else []
    )
    Screen.current().result(
        {
            "head": head.digest,
            "accuracy": accuracy,
            "file": None if output is None else str(output),
            "predictions": [dict(zip(titles, row, strict=True)) for row in rows],
        },
        unwrapped(f"Predictions for {', '.join(str(path) for path in files)}", "bold"),
        facts(summary),
        *shown,
        *more,
    )


_Source = tuple[Head, "Backbone | None", FeatureNames]


def _require_names(path: Path, inputs: Inputs, names: FeatureNames) -> None:
    """Refuse a file whose columns of features are not those that the client added."""
    try:
        names.require(inputs.feature_names)
    except InputError as problem:
        raise type(problem)(f"{path}: {problem}") from problem


def _from_client(given: dict[str, Any]) -> _Source:
    def ask(store: ClientStore) -> _Source:
        held = store_head(store)
        if held is None:
            raise InputError(
                "this client has not fetched a head yet: "
                f"{sync_command(given['folder'], store.address)}"
            )
        names = FeatureNames(store.feature_names)
        return held[1], backbone_of(store, given["backbone"]), names

    return read_store(ClientStore, given["folder"], ask)[0]


def _from_file(given: dict[str, Any]) -> _Source:
    chains = [] if given["key"] is None else [KeyChain(key_from(given["key"]))]
    chains = chains if given["trust"] is None else chains_from(given["trust"])
    head = head_from(given["head_file"], chains)
    description = given["backbone"]
    backbone = None if description is None else opened_backbone(head.spec, description)
    return head, backbone, FeatureNames()


def _scores(head: Head, path: Path, inputs: Inputs) -> NDArray[Any]:
    try:
        return head.scores(inputs.features)
    except InputError as problem:
        raise type(problem)(f"{path}: {problem}") from problem


def _columns(head: Head, *, scores: bool) -> tuple[str, ...]:
    labels = head.spec.labels
    if labels is None:
        return ("id", *(f"output_{column}" for column in range(head.spec.columns)))
    return ("id", "label", *((f"score_{label}" for label in labels) if scores else ("score",)))


def _rows(
    head: Head, inputs: list[Inputs], outputs: list[NDArray[Any]], *, scores: bool
) -> list[tuple[Any, ...]]:
    labels, rows = head.spec.labels, []
    for batch, values in zip(inputs, outputs, strict=True):
        for name, row in zip(batch.ids, values.tolist(), strict=True):
            if labels is None:
                rows.append((name, *row))
            else:
                best = int(np.argmax(row))
                rows.append((name, labels[best], *(row if scores else [row[best]])))
    return rows


def _text(row: tuple[Any, ...]) -> list[str]:
    return [f"{value:.4f}" if isinstance(value, float) else str(value) for value in row]


def _accuracy(head: Head, inputs: list[Inputs], outputs: list[NDArray[Any]]) -> float | None:
    """The share of inputs whose label is predicted, if all have hard labels."""
    if not head.spec.is_classification or any(batch.labels is None for batch in inputs):
        return None
    right = total = 0
    for batch, values in zip(inputs, outputs, strict=True):
        truth = checked_labels(head.spec, batch.labels, len(values))
        if truth.ndim != 1:
            return None
        right += int((values.argmax(axis=1) == truth).sum())
        total += len(truth)
    return right / total if total else None


def _csv(head: Head, rows: list[tuple[Any, ...]], *, scores: bool) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_columns(head, scores=scores))
    writer.writerows(rows)
    return text.getvalue().encode("utf-8")
