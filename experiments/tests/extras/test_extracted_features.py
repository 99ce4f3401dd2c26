"""The paper's setting in small: originals through Hugging Face folders into features that the
library knows by name.
"""

from __future__ import annotations

import csv
import pickle
from pathlib import Path

import numpy as np

from expunge.backbones import HuggingFaceBackbone
from expunge_experiments.datasets.catalogue import Library
from expunge_experiments.datasets.extract import extract
from expunge_experiments.datasets.originals import read_original
from expunge_experiments.datasets.sentiment140 import TEST, TRAIN

SAID = [
    ("4", "ann", "what a lovely sunny morning, so happy"),
    ("0", "bob", "missed the bus again, I hate mondays"),
    ("4", "cid", "best concert ever, thank you all!"),
    ("0", "ann", "my poor cat is ill, feeling sad"),
]


def test_tweets_through_a_real_sentence_encoder(minilm: Path, tmp_path: Path) -> None:
    for name in (TRAIN, TEST):
        with (tmp_path / name).open("w", encoding="latin-1", newline="") as file:
            writer = csv.writer(file, quoting=csv.QUOTE_ALL)
            writer.writerows(
                [polarity, 1, "date", "NO_QUERY", user, text] for polarity, user, text in SAID
            )
    encoder = HuggingFaceBackbone(minilm, max_length=128)
    path = extract(read_original("sentiment140", tmp_path), encoder, tmp_path)
    dataset = Library(tmp_path).load("sentiment140")
    assert (
        dataset.train_features.tobytes()
        == encoder.features([text for _, _, text in SAID]).tobytes()
    )
    assert (dataset.dim, dataset.train_labels.tolist()) == (384, [1, 0, 1, 0])
    assert f"features by hf {minilm.name} (pooling=mean, max_length=128)" in dataset.source
    assert extract(read_original("sentiment140", tmp_path), encoder, tmp_path) == path


def test_images_through_dinov2(dinov2: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    rows = np.random.default_rng(0).integers(0, 256, (3, 3072), np.uint8)
    for name in ("train", "test"):
        (folder / name).write_bytes(
            pickle.dumps({b"data": rows, b"fine_labels": [4, 99, 0]}, protocol=2)
        )
    backbone = HuggingFaceBackbone(dinov2)
    extract(read_original("cifar100", tmp_path), backbone, tmp_path)
    dataset = Library(tmp_path).load("cifar100")
    pictures = rows.reshape(3, 3, 32, 32).transpose(0, 2, 3, 1)
    assert dataset.train_features.tobytes() == backbone.features(list(pictures)).tobytes()
    assert (dataset.dim, dataset.classes) == (48, 100)
