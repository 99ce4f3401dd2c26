"""`expunge statistics`: the exact statistics of a client's shards, computed on as many workers as
there are.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from expunge.cli._command import command
from expunge.cli._options import FILE, output_option
from expunge.cli._output import Screen, count, facts, short_path, title, unwrapped
from expunge.data import listed, shard_statistics
from expunge.data.engines import ENGINES
from expunge.errors import FormatError
from expunge.ridge.spec import Spec
from expunge.storage.files import write_whole


@command()
@click.argument("files", nargs=-1, required=True)
@click.option(
    "--spec",
    "spec_file",
    type=FILE,
    required=True,
    help="The federation's spec, as expunge server spec -o writes it.",
)
@click.option(
    "--feature-column",
    "features",
    multiple=True,
    metavar="NAME",
    help="A feature column. Repeatable. [default: feature]",
)
@click.option(
    "--label-column",
    "labels",
    multiple=True,
    metavar="NAME",
    help="The label column. Repeatable, for real targets. [default: label]",
)
@click.option("--label-indices", is_flag=True, help="Read integer labels as class indices, from 0.")
@click.option(
    "--on",
    type=click.Choice(ENGINES),
    default="threads",
    show_default=True,
    help="The engine to compute on.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    help="Shards to read at once. [default: one per processor]",
)
@output_option("Write the statistics to this file.")
def statistics(
    *, files: tuple[str, ...], spec_file: Path, output: Path | None, **given: Any
) -> None:
    """Compute the exact statistics of FILES, even of more samples than one machine holds.

    FILES are the shards of one client's data: Parquet files, .npz files, or pairs of .npy files
    (NAME-features.npy and NAME-labels.npy). Quoted patterns are expanded here. One worker reads
    each shard block by block; the statistics are added up as they arrive. The digest is the same on
    every machine, however the data are split into files.

    --on ray uses the Ray cluster at RAY_ADDRESS, which must see the files, or starts one on this
    machine. --on dask starts a Dask cluster on this machine.

    Example:
      expunge server spec -o spec.json --office federation/operator
      expunge statistics 'data/*.parquet' --spec spec.json -o sums.expunge
      expunge statistics part-*.npy --spec spec.json --on processes --workers 8
    """
    spec = _spec(spec_file)
    features, labels = _name(given["features"], "feature"), _name(given["labels"], "label")
    shards = listed(files, features=features, labels=labels)
    screen = Screen.current()
    with screen.progress("Reading shards", len(shards)) as progress:
        sums = shard_statistics(
            spec,
            shards,
            features=features,
            labels=labels,
            label_indices=given["label_indices"],
            on=given["on"],
            workers=given["workers"],
            progress=progress,
        )
    if output is not None:
        write_whole(output, sums.to_bytes())
    classes = {
        str(label): int(number)
        for label, number in zip(spec.labels or (), sums.class_counts, strict=True)
    }
    screen.result(
        {
            "digest": sums.digest,
            "samples": sums.count,
            "labels": classes if spec.is_classification else None,
            "shards": len(shards),
            "spec_digest": spec.digest,
            "file": None if output is None else str(output),
        },
        title(f"Statistics of {count(sums.count, 'sample')} in {count(len(shards), 'shard')}"),
        facts(
            [
                ("Digest", sums.digest),
                *(
                    [
                        (
                            "Labels",
                            ", ".join(f"{label}: {number:,}" for label, number in classes.items()),
                        )
                    ]
                    if classes
                    else []
                ),
                *([("Written to", unwrapped(short_path(output)))] if output is not None else []),
            ]
        ),
    )


def _name(names: tuple[str, ...], usual: str) -> str | tuple[str, ...]:
    """One column by its usual name, or those that were given."""
    return names if len(names) > 1 else (*names, usual)[0]


def _spec(path: Path) -> Spec:
    try:
        return Spec.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as problem:
        raise FormatError(
            f"{path} is not a spec: {problem}. expunge server spec -o FILE writes one"
        ) from problem
