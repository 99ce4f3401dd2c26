"""`expunge experiment features`: one command from the originals to a dataset that experiments know
by name.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from expunge.backbones import CallableBackbone
from expunge.errors import BackboneError
from expunge_experiments.cli.features import features
from expunge_experiments.datasets.catalogue import Library
from expunge_experiments.datasets.places import MissingDataError
from expunge_experiments.datasets.sentiment140 import TEST, TRAIN

BACKBONE = CallableBackbone(
    lambda texts: [[len(text), text.count("a")] for text in texts],
    name="lengths",
    version="1",
    dim=2,
)
DESCRIPTION = f"callable:{__name__}:BACKBONE"


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Some tweets, in the folder of data."""
    for name, count in ((TRAIN, 30), (TEST, 6)):
        with (tmp_path / name).open("w", encoding="latin-1", newline="") as file:
            writer = csv.writer(file, quoting=csv.QUOTE_ALL)
            writer.writerows(
                [4 * (one % 2), one, "date", "q", f"u{one % 7}", "a" * one] for one in range(count)
            )
    monkeypatch.setenv("EXPUNGE_DATA", str(tmp_path))
    return tmp_path


def run(*arguments: object) -> str:
    result = CliRunner().invoke(features, [str(one) for one in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def value(*arguments: object) -> dict[str, Any]:
    found = json.loads(run(*arguments, "--json"))
    assert isinstance(found, dict)
    return found


def test_features_are_made_and_known_by_name(data: Path) -> None:
    found = value("sentiment140", "--backbone", DESCRIPTION)
    assert (found["train"], found["test"], found["classes"], found["dim"]) == (30, 6, 2, 2)
    assert found["backbone"] == BACKBONE.fingerprint
    assert Path(found["file"]).parent == data / "features"
    dataset = Library().load("sentiment140")
    assert np.array_equal(dataset.train_features, np.repeat(np.arange(30.0), 2).reshape(30, 2))
    assert dataset.groups is not None
    assert np.array_equal(dataset.groups, np.arange(30) % 7)
    assert value("sentiment140", "--backbone", DESCRIPTION) == found


def test_people_are_told_what_to_do_next(data: Path) -> None:
    told = run("sentiment140", "--backbone", DESCRIPTION, "--samples", 10, "--seed", 3)
    assert "2 features of each of 10 + 6 samples" in told
    assert "10 of 30 training samples drawn with seed 3" in told
    assert """echo 'accuracy.datasets = ["sentiment140"]' > my.toml""" in told
    assert "experiment accuracy --config my.toml" in told


def test_choices_and_another_folder(data: Path, tmp_path: Path) -> None:
    (data / TRAIN).rename(tmp_path / TRAIN)
    found = value("sentiment140", "--backbone", DESCRIPTION, "--data", tmp_path, "--hold-out", 0.3)
    assert found["train"] + found["test"] == 30
    assert "drawn with seed 0" in found["source"]


def test_refusals(data: Path) -> None:
    with pytest.raises(MissingDataError, match="CIFAR-100"):
        run("cifar100", "--backbone", DESCRIPTION)
    with pytest.raises(BackboneError, match="describes no backbone"):
        run("sentiment140", "--backbone", "nowhere")
    (data / "model").mkdir()
    with pytest.raises(
        BackboneError, match="model has no preprocessor_config"
    ):  # a folder is a Hugging Face model
        run("sentiment140", "--backbone", data / "model")
    for wrong in (
        ["imagenet"],
        ["femnist", "--writers", 0],
        ["sentiment140", "--hold-out", 1],
        ["sentiment140"],
    ):
        assert (
            CliRunner()
            .invoke(
                features,
                [*map(str, wrong), *(["--backbone", DESCRIPTION] if len(wrong) > 1 else [])],
            )
            .exit_code
            == 2
        )
    assert not (data / "features").exists()
