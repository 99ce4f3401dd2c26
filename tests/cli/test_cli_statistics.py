"""`expunge statistics`: the digest of one machine, whatever the data are cut into; refusals name
the shard.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from expunge import Spec, Statistics
from support.cli import run, value

SPEC = Spec(dim=3, labels=("cat", "dog"))
FEATURES = np.random.default_rng(5).standard_normal((20, 3))
LABELS = np.array(SPEC.labels)[np.arange(20) % 2]
EXPECTED = Statistics.of(SPEC, FEATURES, LABELS)


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(SPEC.to_dict()))
    return path


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    paths = []
    for place, start in enumerate((0, 6, 13)):
        paths.append(tmp_path / f"part-{place}.npz")
        end = (6, 13, 20)[place]
        np.savez(paths[-1], features=FEATURES[start:end], labels=LABELS[start:end])
    return paths


def test_the_statistics_are_written_and_their_digest_is_shown(
    tmp_path: Path, spec: Path, shards: list[Path]
) -> None:
    out = tmp_path / "statistics.expunge"
    shown = run("statistics", *shards, "--spec", spec, "-o", out).output
    assert EXPECTED.digest in shown
    assert "20 samples in 3 shards" in shown
    assert Statistics.from_bytes(SPEC, out.read_bytes()) == EXPECTED
    found: dict[str, Any] = value(
        "statistics", tmp_path / "*.npz", "--spec", spec, "--on", "processes", "--workers", 1
    )
    assert (found["digest"], found["samples"], found["shards"]) == (EXPECTED.digest, 20, 3)
    assert (found["labels"], found["file"]) == ({"cat": 10, "dog": 10}, None)


def test_columns_by_other_names(tmp_path: Path, spec: Path) -> None:
    np.savez(tmp_path / "other.npz", vectors=FEATURES, kinds=np.arange(20) % 2)
    options = ("--spec", spec, "--feature-column", "vector", "--label-column", "kind")
    told = value("statistics", tmp_path / "other.npz", *options, code=1)
    assert "--label-indices" in told["error"]["message"]
    assert (
        value("statistics", tmp_path / "other.npz", *options, "--label-indices")["digest"]
        == EXPECTED.digest
    )
    np.save(tmp_path / "vector-1.npy", FEATURES)
    np.save(tmp_path / "kind-1.npy", LABELS)
    assert value("statistics", tmp_path / "vector-*.npy", *options)["digest"] == EXPECTED.digest


def test_a_regression_has_no_labels(tmp_path: Path) -> None:
    real, targets = Spec(dim=3, outputs=1), FEATURES[:, 0] * 2
    (tmp_path / "spec.json").write_text(json.dumps(real.to_dict()))
    np.savez(tmp_path / "a.npz", features=FEATURES, labels=targets)
    found = value("statistics", tmp_path / "a.npz", "--spec", tmp_path / "spec.json")
    assert (found["digest"], found["labels"]) == (
        Statistics.of(real, FEATURES, targets).digest,
        None,
    )
    assert (
        "Labels"
        not in run("statistics", tmp_path / "a.npz", "--spec", tmp_path / "spec.json").output
    )


def test_a_bad_shard_is_named_and_nothing_is_written(
    tmp_path: Path, spec: Path, shards: list[Path]
) -> None:
    shards[1].write_bytes(shards[1].read_bytes()[:300])
    out = tmp_path / "statistics.expunge"
    told = value("statistics", *shards, "--spec", spec, "--output", out, code=1)
    assert (told["error"]["kind"], out.exists()) == ("format", False)
    assert "part-1.npz" in told["error"]["message"]


@pytest.mark.parametrize("text", ["{}", "nonsense", "[]"])
def test_a_file_that_holds_no_spec(tmp_path: Path, shards: list[Path], text: str) -> None:
    (tmp_path / "other.json").write_text(text)
    told = value("statistics", *shards, "--spec", tmp_path / "other.json", code=1)
    assert "expunge server spec -o" in told["error"]["message"]
