from __future__ import annotations

import json
import math
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest

from expunge.approximate import METHODS
from expunge.errors import InputError
from expunge_experiments.datasets.dataset import Dataset
from expunge_experiments.report.figures import house_style
from expunge_experiments.runs.base import Done, Results
from expunge_experiments.runs.lowrank.report import holds
from expunge_experiments.runs.lowrank.run import LowRank, LowRankSettings

SETTINGS = replace(
    LowRank.quick,
    gamma=1.0,
    ranks=(4, 64),
    base=120,
    batch=40,
    deleted=20,
    clients=2,
    requests=4,
    reset_every=3,
    seeds=(0,),
)


class SmallLibrary:
    """One small dataset, whatever is asked for."""

    def load(self, name: str) -> Dataset:
        rng = np.random.default_rng(0)
        features = (rng.normal(size=(320, 20)) * np.geomspace(2, 0.2, 20)).astype(np.float32)
        labels = (features[:, :3].argmax(axis=1)).astype(np.int64)
        return Dataset(
            name, "made up", 3, features[:260], labels[:260], features[260:], labels[260:]
        )


@pytest.fixture(scope="module")
def results() -> Results:
    experiment = LowRank()
    cells = experiment.cells(SETTINGS)
    return Results(Done(cell.key, cell.run(SmallLibrary(), lambda *_: None)) for cell in cells)  # type: ignore[arg-type]


def test_results_are_values_of_json_and_cells_have_keys_of_their_own(results: Results) -> None:
    assert json.loads(json.dumps([one.result for one in results], allow_nan=False)) == [
        one.result for one in results
    ]
    assert len({json.dumps(one.key) for one in results}) == len(results) == 2 * len(METHODS)


def test_bounds_hold_and_resets_bring_the_exact_head_back(results: Results) -> None:
    for one in results:
        steps = one.result["steps"]
        assert [step["sign"] for step in steps] == [1, 1, -1, 1]
        assert all(map(holds, steps))
        after = [step["after_reset"] for step in steps if "after_reset" in step]
        assert after or one.result["refused"]  # an early reset puts the next one off
        assert all(map(holds, after))
        assert all(step["deviation"] < 1e-10 for step in after)
        assert min(step["deviation"] for step in steps) > 1e-10
    assert sum(one.result["refused"] == 0 for one in results) > len(results) // 2


def test_bytes_add_up(results: Results) -> None:
    for one in results:
        steps = one.result["steps"]
        assert (
            sum(step["size"] + step["refused_bytes"] for step in steps)
            == one.result["message_bytes"]
        )
        assert [step["refused_bytes"] > 0 for step in steps] == [
            step["early_reset"] for step in steps
        ]
        assert steps[-1]["bytes"] == one.result["message_bytes"] + one.result["reset_bytes"]
        assert sum(step["exact_size"] for step in steps) == one.result["exact_bytes"]
    assert any(
        one.result["refused"] for one in results
    )  # so that refused messages are among those counted
    plain = next(one for one in results if one.result["refused"] == 0)
    assert (
        plain.result["reset_bytes"] == 2 * plain.result["steps"][0]["exact_size"]
    )  # two clients, one reset


def test_the_same_cell_gives_the_same_result(results: Results) -> None:
    experiment = LowRank()
    cell = experiment.cells(SETTINGS)[-1]
    assert cell.run(SmallLibrary(), lambda *_: None) == results[-1].result  # type: ignore[arg-type]


def test_tables_findings_and_figures(results: Results) -> None:
    experiment = LowRank()
    for table in experiment.tables(SETTINGS, results):
        assert len(table.rows) == len(results)
        assert {len(row) for row in table.rows} == {len(table.columns)}
    findings = experiment.findings(SETTINGS, results)
    assert sum(finding.holds is True for finding in findings) >= 2
    with house_style():
        for drawing in experiment.drawings(SETTINGS, results):
            assert drawing.draw().axes
    empty = Results()
    assert (
        experiment.tables(SETTINGS, empty)
        == experiment.findings(SETTINGS, empty)
        == experiment.drawings(SETTINGS, empty)
        == []
    )


def test_claims_can_fail(results: Results) -> None:
    """A deviation above its bound, one left after a reset, and messages that save little are each
    said to be so.
    """
    experiment = LowRank()

    def failing(change: dict[str, object], *, after: bool = False) -> int:
        broken = deepcopy(list(results))
        for one in broken:
            for step in one.result["steps"]:
                (step.get("after_reset", {}) if after else step).update(change)
        return sum(
            finding.holds is False for finding in experiment.findings(SETTINGS, Results(broken))
        )

    whole = sum(finding.holds is False for finding in experiment.findings(SETTINGS, results))
    assert failing({"deviation": math.inf}) > whole
    assert failing({"paper_bound": 0.0}) > whole
    assert failing({"deviation": 1e-3, "bound": 1e-2}, after=True) > whole
    assert failing({"exact_size": 1}) >= 1
    assert failing({"deviation": 0.0}) == whole


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"methods": ("magic",)}, "magic"),
        ({"ranks": ()}, "ranks"),
        ({"ranks": (0,)}, "ranks"),
        ({"gamma": 0.0}, "gamma"),
        ({"precision": "float16"}, "float16"),
        ({"requests": 0}, "requests"),
        ({"dataset": "cifar11"}, "cifar11"),
        ({"seeds": ()}, "seeds"),
    ],
)
def test_impossible_settings_are_refused(change: dict[str, object], told: str) -> None:
    with pytest.raises(InputError, match=told):
        replace(LowRankSettings(), **change)


def test_a_stream_longer_than_the_data_is_refused() -> None:
    settings = replace(SETTINGS, batch=100)
    with pytest.raises(InputError, match="fewer requests"):
        LowRank().cells(settings)[0].run(SmallLibrary(), lambda *_: None)  # type: ignore[arg-type]


def test_quick_never_has_a_smaller_width() -> None:
    """It has fewer requests, ranks and seeds, and the same dataset and methods as the full run."""
    full, quick = LowRank.full, LowRank.quick
    assert (full.dataset, full.methods, full.batch) == (quick.dataset, quick.methods, quick.batch)
    assert quick.requests < full.requests
    assert 64 in quick.ranks
