"""`expunge experiment features`: features of the paper's datasets from a user's originals, made
once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from expunge.backbones import backbone_from
from expunge.backbones.base import written
from expunge.cli._command import command
from expunge.cli._options import FOLDER
from expunge.cli._output import Screen, count, facts, next_steps, short_path, title, unwrapped
from expunge_experiments.datasets.extract import extract
from expunge_experiments.datasets.originals import ORIGINALS, Subset, read_original
from expunge_experiments.datasets.places import data_folder


@command()
@click.argument("dataset", type=click.Choice(list(ORIGINALS)))
@click.option(
    "--backbone",
    required=True,
    metavar="FOLDER|DESCRIPTION",
    help=(
        "The folder of a Hugging Face model, or any backbone, such as hf:FOLDER?pooling=cls, "
        "timm:FOLDER or onnx:MODEL?size=224."
    ),
)
@click.option(
    "--data",
    "folder",
    type=FOLDER,
    help="The folder with data. [default: EXPUNGE_DATA, or the user's data folder]",
)
@click.option(
    "--writers", type=click.IntRange(min=1), help="femnist: number of writers. [default: 100]"
)
@click.option(
    "--hold-out",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help=(
        "sentiment140: test on this fraction of the training tweets' users. [default: the "
        "official test tweets]"
    ),
)
@click.option(
    "--samples",
    type=click.IntRange(min=1),
    help="Number of training samples to draw. [default: all]",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="The seed of all random choices above.",
)
def features(*, dataset: str, backbone: str, folder: Path | None, **given: Any) -> None:
    """Turn the original files of DATASET into features, which experiments use by that name.

    Reads the original files in the data folder, as they are distributed: cifar-10-python.tar.gz
    (cifar10_raw), cifar-100-python.tar.gz, LEAF's json files in femnist/, and
    trainingandtestdata.zip (sentiment140), or the unpacked archives. Writes the features to
    features/ in the same folder. If interrupted, run the same command again to resume.

    Example:
      export EXPUNGE_DATA=~/data
      hf download facebook/dinov2-base --local-dir dinov2-base
      expunge experiment features cifar10_raw --backbone dinov2-base
      echo 'accuracy.datasets = ["cifar10_raw"]' > my.toml
      expunge experiment accuracy --config my.toml
    """
    where = data_folder() if folder is None else folder
    raw = read_original(dataset, where, Subset(**given))
    opened = backbone_from(written("hf", backbone, {}, {}) if Path(backbone).is_dir() else backbone)
    screen = Screen.current()
    with screen.bars() as report:
        file = extract(raw, opened, where, report=report)
    screen.result(
        {
            "dataset": dataset,
            "source": raw.source,
            "train": len(raw.train_labels),
            "test": len(raw.test_labels),
            "classes": raw.classes,
            "dim": opened.dim,
            "backbone": opened.fingerprint,
            "raw_digest": raw.digest,
            "file": str(file),
        },
        title(
            f"{count(opened.dim, 'feature')} of each of {len(raw.train_labels):,} + "
            f"{count(len(raw.test_labels), 'sample')}"
        ),
        facts(
            [
                ("Dataset", unwrapped(f"{dataset}: {raw.source}")),
                ("Backbone", opened.fingerprint),
                ("Written to", unwrapped(short_path(file))),
            ]
        ),
        next_steps(
            f"""echo 'accuracy.datasets = ["{dataset}"]' > my.toml""",
            "expunge experiment accuracy --config my.toml",
        ),
    )
