"""Chosen settings: the package's own, or a sweep of one's own; sizes are the paper's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from expunge.errors import FormatError, InputError
from expunge_experiments import tuned
from expunge_experiments.runs.sweep import SYSTEMS as SWEPT
from expunge_experiments.systems.catalogue import NAMES, SYSTEMS

SHARED = ("cifar10", "digits_by_writer", "tweets_by_user")


def results(path: Path, dataset: str = "mine", **settings: Any) -> Path:
    """What a sweep of FedAvg writes."""
    result = {
        "settings": settings,
        "accuracy": 0.5,
        "points": [{"settings": settings, "accuracy": 0.5}],
    }
    content = {
        "experiment": "sweep",
        "results": [{"key": {"dataset": dataset, "system": "fedavg"}, "result": result}],
    }
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dataset", [*SHARED, *tuned.STAND_INS])
def test_every_system_has_settings_for_every_dataset(dataset: str, name: str) -> None:
    assert isinstance(tuned.settings_for(dataset, name), SYSTEMS[name].find("settings"))


@pytest.mark.parametrize("dataset", SHARED)
@pytest.mark.parametrize("system", SWEPT)
def test_what_was_chosen_was_tried_and_is_near_the_best(dataset: str, system: str) -> None:
    one = tuned._packaged()[dataset][system]
    tried = [point["accuracy"] for point in one["points"] if point["settings"] == one["settings"]]
    assert tried == [one["accuracy"]]
    assert one["accuracy"] >= max(point["accuracy"] for point in one["points"]) - 0.015
    assert len(one["points"]) == 16


def test_all_ridge_systems_share_one_gamma() -> None:
    for dataset in SHARED:
        assert len({tuned.settings_for(dataset, name).gamma for name in tuned.RIDGE}) == 1


@pytest.mark.parametrize(
    ("dataset", "fedavg", "fats"),
    [
        ("cifar10", (120, 20), (60, 5, 64, 1)),
        ("cifar100", (120, 20), (60, 5, 64, 1)),
        ("femnist", (120, 20), (120, 5, 50, 1)),
        ("digits_by_writer", (120, 20), (120, 5, 50, 1)),
        ("tweets_by_user", (100, 20), (100, 5, 300, 1)),
    ],
)
def test_sizes_are_those_of_the_paper(
    dataset: str, fedavg: tuple[int, ...], fats: tuple[int, ...]
) -> None:
    for name in ("fedavg", "exactfun"):
        found = tuned.settings_for(dataset, name)
        assert (found.rounds, found.clients_per_round) == fedavg
    found = tuned.settings_for(dataset, "fats")
    assert (found.rounds, found.clients_per_round, found.samples, found.steps) == fats
    assert tuned.settings_for(dataset, "exactfun").alpha == 0.08


def test_originals_borrow_by_name() -> None:
    assert tuned.basis_of("cifar100") == "cifar10"
    assert tuned.basis_of("cifar10") == "cifar10"
    assert tuned.settings_for("femnist", "fedavg") == tuned.settings_for(
        "digits_by_writer", "fedavg"
    )


def test_an_unknown_dataset_is_refused_with_what_to_do() -> None:
    with pytest.raises(InputError, match=r"'my/features.npz'.*experiment sweep.*EXPUNGE_SWEEP"):
        tuned.settings_for("my/features.npz", "fedavg")
    with pytest.raises(InputError, match="no system 'fedprox'"):
        tuned.settings_for("cifar10", "fedprox")


def test_a_sweep_of_ones_own_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = results(tmp_path / "results.json", rate=0.7, epochs=2, batch=8)
    assert tuned.settings_for("mine", "fedavg", path).rate == 0.7
    assert tuned.basis_of("mine", path) == "mine"
    monkeypatch.setenv(tuned.VARIABLE, str(path))
    assert tuned.settings_for("mine", "fedavg").batch == 8
    assert (
        tuned.settings_for("cifar10", "fedavg").batch
        == tuned._packaged()["cifar10"]["fedavg"]["settings"]["batch"]
    )
    with pytest.raises(InputError, match="fats for mine"):
        tuned.settings_for("mine", "fats")


def test_a_file_of_an_originals_features_has_its_settings_and_no_other_path_has_any() -> None:
    path = "data/features/femnist-e0fa820705cb90a9.npz"
    for name in ("fedavg", "fats", "a_exact"):
        assert tuned.settings_for(path, name) == tuned.settings_for("femnist", name)
    with pytest.raises(InputError, match=r"sweep --dataset 'my data/cifar10\.npz'"):
        tuned.settings_for("my data/cifar10.npz", "fedavg")


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    chosen = tuned.read(results(tmp_path / "results.json", rate=0.7, epochs=2, batch=8))
    (tmp_path / "own.json").write_text(tuned.written(chosen))
    assert tuned.read(tmp_path / "own.json") == chosen


def test_files_that_are_no_sweep_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="experiment sweep"):
        tuned.read(tmp_path / "missing.json")
    for content in (
        "{",
        "[]",
        "{}",
        '{"experiment": "sweep"}',
        '{"experiment": "sweep", "results": [{}]}',
    ):
        (tmp_path / "bad.json").write_text(content)
        with pytest.raises(FormatError, match=r"bad.json holds no results of a sweep"):
            tuned.read(tmp_path / "bad.json")


def test_two_choices_for_one_system_are_refused() -> None:
    cell = ({"dataset": "d", "system": "fats"}, {"settings": {}, "accuracy": 1.0, "points": []})
    with pytest.raises(InputError, match="twice for fats"):
        tuned.chosen_of([cell, cell])
