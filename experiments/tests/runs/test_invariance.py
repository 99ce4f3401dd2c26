"""invariance: exact variants are equal by digest; what fails or is refused is a result; claims that
can fail.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiment_cases import tiny_features
from expunge import Statistics
from expunge.errors import InputError
from expunge.solvers.system import is_well_conditioned
from expunge_experiments.datasets.catalogue import Library
from expunge_experiments.datasets.dataset import Dataset
from expunge_experiments.report import figures
from expunge_experiments.runs.base import Done, Results
from expunge_experiments.runs.invariance.run import (
    SYSTEMS,
    CentralReference,
    Invariance,
    InvarianceSettings,
)
from expunge_experiments.systems import variants
from expunge_experiments.systems.base import Cost
from expunge_experiments.systems.variants import VariantBExact, VariantSettings

GAMMAS = (1e-20, 1e-9, 1e-3, 1e-1, 1.0, 1e2, 1e4)


def settings_on(path: Path) -> InvarianceSettings:
    return InvarianceSettings(
        dataset=str(path), clients=(2, 5), seeds=(0, 1), gammas=GAMMAS, gamma_clients=(3,)
    )


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[InvarianceSettings, Results]:
    """Real results on features of which two columns are the same: without gamma the system is
    singular.
    """
    path = tiny_features(tmp_path_factory.mktemp("data") / "own.npz", samples=80)
    with np.load(path) as content:
        arrays = dict(content)
    for part in ("train", "test"):
        arrays[f"{part}_features"] = np.concatenate(
            [arrays[f"{part}_features"], arrays[f"{part}_features"][:, :1]], axis=1
        )
    np.savez(path, **arrays)
    settings, experiment = settings_on(path), Invariance()
    library = Library(path.parent)
    return settings, Results(
        Done(cell.key, cell.run(library, lambda *_: None)) for cell in experiment.cells(settings)
    )


def test_exact_variants_are_equal_to_central_ridge_by_digest(
    measured: tuple[InvarianceSettings, Results],
) -> None:
    _, results = measured
    for name in ("a_exact", "b_exact"):
        found = results.where(part="clients", system=name)
        assert len(found) == 4
        assert all(one.result["equal"] for one in found)


def test_floating_point_deviates_by_its_precision(
    measured: tuple[InvarianceSettings, Results],
) -> None:
    _, results = measured
    for name, most in (("float64", 1e-12), ("float32", 1e-4)):
        found = [
            one.result["deviation"]
            for one in results.where(part="clients")
            if name in one.key["system"]
        ]
        assert len(found) == 8
        assert max(found) < most
    smallest = max(
        one.result["deviation"] for one in results.where(part="clients", system="a_float32")
    )
    assert smallest > 1e-9


def test_the_rounding_of_published_weights_does_not_hide_what_float64_is_off_by(
    measured: tuple[InvarianceSettings, Results],
) -> None:
    settings, results = measured
    for one in results.where(part="clients", system="a_float64"):
        assert one.result["central_from_exact"] < 1e-13 < one.result["publication"] < 1e-10
        assert one.result["from_exact"] < 1e-13
    exactly = Invariance().tables(settings, results)[1]
    assert "in steps of 2^-40" in exactly.note


def test_gammas_that_an_arithmetic_cannot_take_are_results(
    measured: tuple[InvarianceSettings, Results],
) -> None:
    _, results = measured
    points = {one.key["system"]: one.result["points"] for one in results.where(part="gammas")}
    assert set(points) == set(SYSTEMS)
    for found in points.values():
        assert [point["gamma"] for point in found] == list(GAMMAS)
        assert all(point["failed"] is None for point in found[2:])
    assert "ill-conditioned" in points["a_exact"][0]["failed"]
    assert "ill-conditioned" in points["b_exact"][0]["failed"]
    assert points["a_float32"][0]["failed"]
    assert all(point["equal"] for point in points["b_exact"] if point["failed"] is None)
    tables = Invariance().tables(*measured)
    deviations = tables[2]
    assert deviations.rows[0][deviations.columns.index("A, exact")] == "refused"
    assert deviations.rows[0][deviations.columns.index("A, float32")] == "fails"
    assert {
        len(row) for table in tables for row in table.rows if len(row) != len(table.columns)
    } == set()


def test_an_exact_variant_that_leaves_out_a_sample_is_not_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_features(tmp_path / "own.npz", samples=80)

    class Careless(VariantBExact):
        def train(self, numbers: Any = None) -> Cost:
            every = np.arange(self.pool.size) if numbers is None else numbers
            return super().train(every[1:])

    monkeypatch.setattr(variants, "VariantBExact", Careless)
    settings = replace(
        settings_on(path), clients=(2,), seeds=(0,), systems=("b_exact",), gammas=(1.0,)
    )
    results = Results(
        Done(cell.key, cell.run(Library(tmp_path), lambda *_: None))
        for cell in Invariance().cells(settings)
    )
    assert results.where(part="clients")[0].result["equal"] is False
    assert results.where(part="gammas")[0].result["points"][0]["equal"] is False
    assert Invariance().tables(settings, results)[0].rows[-1][-1] == "differs"


def test_the_smallest_gamma_is_where_the_rule_begins(tmp_path: Path) -> None:
    dataset: Dataset = Library(tmp_path).load(str(tiny_features(tmp_path / "own.npz")))
    smallest = CentralReference(dataset).smallest_gamma
    spec = VariantSettings().spec(dataset.dim, dataset.classes)
    trace = sum(Statistics.of(spec, dataset.train_features, dataset.train_labels).diagonal())
    assert is_well_conditioned(spec.with_gamma(smallest * (1 + 1e-6)), trace)
    assert not is_well_conditioned(spec.with_gamma(smallest * (1 - 1e-6)), trace)


def test_ours_stand_next_to_the_papers() -> None:
    cells = [
        cell.key for cell in Invariance().cells(Invariance.full) if cell.key["part"] == "clients"
    ]
    results = Results(
        Done(
            key,
            {
                "failed": None,
                "deviation": 1e-9,
                "from_exact": 2e-9,
                "equal": True,
                "publication": 1e-11,
            },
        )
        for key in cells
    )
    table = Invariance().tables(Invariance.full, results)[0]
    assert [row[0] for row in table.rows] == [
        "fp32, ours",
        "fp32, paper",
        "fp64, ours",
        "fp64, paper",
        "exact, ours",
    ]
    assert table.rows[3][1:] == [
        "1.47e-09",
        "1.42e-09",
        "1.42e-09",
        "6.18e-10",
        "1.37e-09",
        "1.42e-09",
    ]
    assert table.rows[4][1:] == ["0"] * 6


def test_claims_hold_or_not_by_the_results(measured: tuple[InvarianceSettings, Results]) -> None:
    settings, results = measured
    claims = {one.text: one.holds for one in Invariance().findings(settings, results)}
    assert [holds for text, holds in claims.items() if "by digest" in text] == [True, True]
    spoilt = Results(
        replace(one, result={**one.result, "equal": False, "deviation": 1e-3}) for one in results
    )
    claims = {one.text: one.holds for one in Invariance().findings(settings, spoilt)}
    assert [holds for text, holds in claims.items() if "for every number of clients" in text] == [
        False
    ]
    assert [holds for text, holds in claims.items() if text.startswith("In float64")] == [False]


def test_figures_are_drawn(measured: tuple[InvarianceSettings, Results], tmp_path: Path) -> None:
    drawings = Invariance().drawings(*measured)
    assert [one.name for one in drawings] == ["clients", "gamma-3"]
    for drawing in drawings:
        for path in figures.render(drawing, tmp_path):
            assert path.stat().st_size > 1000


@pytest.mark.parametrize(
    ("spoilt", "holds", "words"),
    [
        ({}, False, "loses more than 0.5 points to float64 at no gamma"),
        ({3: {"failed": "not positive definite"}}, True, "float32 fails at gamma = 0.1"),
        ({3: {"accuracy": 0.5}}, True, "loses more than 0.5 points to float64 at gamma = 0.1"),
        (
            {0: {"failed": "not positive definite"}},
            False,
            "float32 fails at gamma = 1e-20",
        ),  # no good gamma in float64, either
    ],
)
def test_the_remark_on_gamma_is_judged_by_gammas_that_do(
    spoilt: dict[int, Any], holds: bool, words: str
) -> None:
    def swept(name: str, changes: dict[int, Any]) -> Done:
        accuracies = [0.1, 0.7, 0.9, 0.9, 0.9, 0.9, 0.5]
        points = [
            {"gamma": gamma, "failed": None, "accuracy": one}
            for gamma, one in zip(GAMMAS, accuracies, strict=True)
        ]
        points = [point | changes.get(place, {}) for place, point in enumerate(points)]
        return Done(
            {"part": "gammas", "clients": 3, "system": name},
            {"points": points, "smallest_gamma": None},
        )

    results = Results([swept("a_float32", spoilt), swept("a_float64", {})])
    (finding,) = Invariance().findings(Invariance.full, results)
    assert finding.holds is holds
    assert words in finding.text


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"dataset": "digits"}, "Did you mean 'digits_by_writer'"),
        ({"systems": ("fedavg",)}, "must be some of a_float32"),
        ({"clients": ()}, r"such as \[10, 50, 100\]"),
        ({"clients": (0,)}, "clients = 0"),
        ({"gamma": 0.0}, "gamma"),
        ({"gammas": (1.0, -1.0)}, "gammas"),
        ({"seeds": ()}, "seeds"),
    ],
)
def test_impossible_settings_are_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        replace(Invariance.full, **wrong)
