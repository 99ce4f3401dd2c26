"""accuracy: real systems on small features; and findings that say what results say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from expunge.errors import InputError
from expunge_experiments.datasets.catalogue import Library
from expunge_experiments.report import figures
from expunge_experiments.runs.accuracy import ANALYTIC, CENTRAL, Accuracy, AccuracySettings
from expunge_experiments.runs.base import Done, Results
from expunge_experiments.systems.catalogue import NAMES

SYSTEMS = ("central", "a_exact", "b_exact", "a_float64", "fedavg", "fats", "exactfun")


def digits_file(folder: Path) -> Path:
    """Features that stand where the library looks for tweets_by_user: three classes, told apart by
    their means.
    """
    draw = np.random.default_rng(0)
    labels = np.arange(240) % 2
    features = (draw.standard_normal((240, 6)) + 1.5 * labels[:, None]).astype(np.float16)
    path = folder / "tweets_by_user_mpnet.npz"
    arrays: dict[str, Any] = {}
    for part, rows in (("train", slice(0, 160)), ("test", slice(160, 240))):
        arrays |= {
            f"{part}_features": features[rows],
            f"{part}_labels": labels[rows],
            f"{part}_users": np.arange(240)[rows] % 9,
        }
    np.savez(path, **arrays)
    return path


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[AccuracySettings, Results]:
    """Real results on small features, with 20 clients."""
    folder = tmp_path_factory.mktemp("data")
    digits_file(folder)
    settings = AccuracySettings(
        datasets=("tweets_by_user",),
        systems=SYSTEMS,
        clients=20,
        seeds=(0, 1),
        analytic_seeds=(0, 1),
    )
    library = Library(folder)
    cells = Accuracy().cells(settings)
    return settings, Results(Done(cell.key, cell.run(library, lambda *_: None)) for cell in cells)


def test_variants_equal_central_ridge(measured: tuple[AccuracySettings, Results]) -> None:
    settings, results = measured
    central = results.where(system="central")[0].result
    for name in ("a_exact", "b_exact", "a_float64"):
        assert [one.result["correct"] for one in results.where(system=name)] == [
            central["correct"]
        ] * 2
    heads = {
        one.result["head"] for name in ("a_exact", "b_exact") for one in results.where(system=name)
    }
    assert len(heads) == 1
    claims = [one for one in Accuracy().findings(settings, results) if one.holds is not None]
    assert [one.holds for one in claims] == [True, True]


def test_every_system_is_in_every_table(measured: tuple[AccuracySettings, Results]) -> None:
    settings, results = measured
    accuracies, costs, chosen = Accuracy().tables(settings, results)
    for table in (accuracies, costs, chosen):
        assert len(table.rows) == len(SYSTEMS)
        assert {len(row) for row in table.rows} == {len(table.columns)}
    assert accuracies.columns[1:] == ("tweets_by_user", "paper: Sentiment140")
    assert accuracies.rows[0][2] == "0.8291"
    rounds = {row[0]: row[1] for row in costs.rows}
    assert rounds["Variant A, exact"] == "1"
    assert int(rounds["FedAvg retrain"]) >= 100


def test_what_fats_promises_is_told(measured: tuple[AccuracySettings, Results]) -> None:
    settings, results = measured
    (text,) = [one.text for one in Accuracy().findings(settings, results) if "rho_C" in one.text]
    found = [one.result["stability"] for one in results.where(system="fats")]
    assert f"draws b = {np.mean([one['b'] for one in found]):.1f} samples" in text
    assert 0 < found[0]["b"] <= 160 / 20 * 3
    assert all(one.result["stability"] is None for one in results if one.key["system"] != "fats")


def test_the_figure_is_drawn(measured: tuple[AccuracySettings, Results], tmp_path: Path) -> None:
    settings, results = measured
    (drawing,) = Accuracy().drawings(settings, results)
    for path in figures.render(drawing, tmp_path):
        assert path.stat().st_size > 1000
    assert Accuracy().drawings(settings, results.where(system="fats")) == []


def test_what_draws_nothing_at_random_is_run_as_often_as_it_can_differ() -> None:
    settings = Accuracy.full
    counts = {name: len(settings.seeds_of(name)) for name in NAMES}
    assert {counts[name] for name in CENTRAL} == {1}
    assert {counts[name] for name in ANALYTIC} == {2}
    assert counts["fedavg"] == counts["sisa"] == 5
    cells = Accuracy().cells(settings)
    assert len(cells) == 3 * sum(counts.values()) + 1
    (longer,) = [cell.key for cell in cells if "part" in cell.key]
    (usual,) = [
        cell.key
        for cell in cells
        if cell.key | {"part": "longer"} == longer | {"settings": cell.key["settings"]}
    ][:1]
    assert longer["settings"] == usual["settings"] | {"rounds": 4 * usual["settings"]["rounds"]}


def invented(system: str, accuracy: float, **result: Any) -> Done:
    key = {
        "dataset": "cifar10",
        "system": system,
        "seed": 0,
        "settings": {"rounds": 60, "steps": 1, "samples": 64},
    }
    key["settings"] |= {"clients_per_round": 5}  # type: ignore[operator]
    usual: Mapping[str, Any] = {
        "correct": round(1e4 * accuracy),
        "tested": 10_000,
        "predictions": "p",
        "head": "h",
    }
    return Done(key, {"accuracy": accuracy, **usual, **result})


def test_claims_fail_when_results_say_so() -> None:
    results = Results(
        [
            invented("central", 0.88),
            invented("a_exact", 0.88, predictions="q"),
            invented("b_exact", 0.88, head="g"),
        ]
    )
    results += [invented("fedavg", 0.87), invented("fats", 0.85), invented("exactfun", 0.91)]
    findings = Accuracy().findings(Accuracy.quick, results)
    assert [one.holds for one in findings] == [False, False, True, False, True, None]
    more = invented("fats", 0.879)
    more.key.update(part="longer", settings={**more.key["settings"], "rounds": 240})  # type: ignore[attr-defined]
    text = Accuracy().findings(Accuracy.quick, Results([*results, more]))[5].text
    assert "60 SGD steps" in text
    assert (
        "With 240 rounds instead of 60 and the same rate its accuracy is 0.8790 (0.10 below)"
        in text
    )


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"datasets": ("cifar11",)}, "Did you mean 'cifar10'"),
        ({"datasets": ()}, "at least one of cifar10"),
        ({"systems": ("fedavgg",)}, "there are: central"),
        ({"systems": ()}, "systems must name"),
        ({"clients": 0}, "clients = 0"),
        ({"seeds": (0, 0)}, "seeds"),
        ({"analytic_seeds": ()}, "seeds"),
    ],
)
def test_impossible_settings_are_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        replace(Accuracy.full, **wrong)
