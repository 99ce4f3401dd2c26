"""A small experiment for tests of the framework, and small features of its own to run others on."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from expunge.errors import InputError
from expunge_experiments.datasets.catalogue import Library
from expunge_experiments.report.figures import log_axis, look, name_ends, panels, seeds_line
from expunge_experiments.runs import base


@dataclass(frozen=True)
class ToySettings:
    """Settings of every kind."""

    dataset: str = "tiny"  # features of the test
    seeds: tuple[int, ...] = (0, 1, 2)
    factor: float = 2.0  # what everything is multiplied by
    steps: int = field(default=3, metadata={"help": "how many, for each seed"})
    exactly: bool = False
    mode: Literal["sum", "mean"] = "sum"
    limits: tuple[float, float] = (0.0, 1.0)
    cap: int | None = None
    flower: bool = False

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise InputError(f"steps = {self.steps} must be at least 1")


class Toy(base.Experiment[ToySettings]):
    """Sums of features, one cell for each seed; keeps count of what it measured."""

    name = "toy"
    title = "A toy: sums of features"
    question = "What do the features add up to?"
    paper = "nothing about it."
    full = ToySettings()
    quick = ToySettings(seeds=(0,))

    def __init__(self) -> None:
        self.measured: list[int] = []
        self.broken: set[int] = set()
        self.fatal: Path | None = None  # a file without which seed 1 kills the process
        self.result: dict[str, Any] | None = None

    def cells(self, settings: ToySettings) -> list[base.Cell]:
        common = {"dataset": settings.dataset, "factor": settings.factor, "mode": settings.mode}
        keys = [common | {"seed": seed} for seed in settings.seeds]
        cells = [base.Cell(key, partial(self._measure, key)) for key in keys]
        if settings.flower:
            cells.append(
                base.Cell(
                    common | {"seed": 9, "engine": "flower"},
                    partial(self._measure, common | {"seed": 9}),
                    "flower",
                )
            )
        return cells

    def _measure(self, key: base.Key, library: Library, report: base.Report) -> Mapping[str, Any]:
        if self.fatal is not None and key["seed"] == 1 and not self.fatal.exists():
            self.fatal.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if key["seed"] in self.broken:
            raise ZeroDivisionError("this seed is broken")
        self.measured.append(key["seed"])
        report("adding up", 1, 2)
        total = (
            float(library.load(key["dataset"]).train_features.sum()) * key["factor"] + key["seed"]
        )
        return {"total": np.float64(total)} if self.result is None else self.result

    def tables(self, _: ToySettings, results: base.Results) -> list[base.Table]:
        rows = [[str(one.key["seed"]), f"{one.result['total']:.1f} | x"] for one in results]
        return [
            base.Table("Totals", ("seed", "total"), rows, frozenset({"total"}), "Of all features.")
        ]

    def drawings(self, _: ToySettings, results: base.Results) -> list[base.Drawing]:
        return [base.Drawing("toy", "Totals by seed.", partial(_draw, results))]

    def findings(self, _: ToySettings, results: base.Results) -> list[base.Finding]:
        summary = base.over_seeds(one.result["total"] for one in results)
        assert summary is not None
        return [
            base.Finding("Totals are positive.", summary.mean > 0),
            base.Finding(f"There are {summary.count}."),
        ]


def _draw(results: base.Results) -> Any:
    figure, (left, right) = panels(2)
    for name in ("a_exact", "fedavg", "unheard-of"):
        totals = [[abs(one.result["total"]) + 1e-3, 2.0] for one in results]
        seeds_line(left, range(len(totals)), totals, label=look(name).label, **look(name).line())
        right.plot(
            range(1, len(totals) + 1),
            [0.0, *[1e-9] * (len(totals) - 1)],
            label=look(name).label,
            **look(name).line(),
        )
    log_axis(left)
    log_axis(right, zero=1e-12)
    name_ends(left)
    name_ends(right)
    return figure


def tiny_features(path: Path, *, seed: int = 0, samples: int = 60, dim: int = 5) -> Path:
    """A file of features, of two classes that can be told apart."""
    draw = np.random.default_rng(seed)
    labels = np.arange(samples) % 2
    features = (draw.standard_normal((samples, dim)) + labels[:, None]).astype(np.float32)
    np.savez(
        path,
        train_features=features[: samples // 2],
        train_labels=labels[: samples // 2],
        test_features=features[samples // 2 :],
        test_labels=labels[samples // 2 :],
    )
    return path


def tiny_library(folder: Path, **options: Any) -> Library:
    """A library whose dataset "tiny" is such a file."""
    return Library(folder, own={"tiny": tiny_features(folder / "tiny.npz", **options)})
