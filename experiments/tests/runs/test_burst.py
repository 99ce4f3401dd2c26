from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from unlearning_cases import NAME, as_file, library, measured

from expunge.errors import InputError
from expunge_experiments.report.figures import house_style
from expunge_experiments.runs.base import Done, Results
from expunge_experiments.runs.burst.report import Timing
from expunge_experiments.runs.burst.run import Burst, BurstSettings, columns
from expunge_experiments.runs.catalogue import EXPERIMENTS
from expunge_experiments.systems.base import Cost
from expunge_experiments.systems.catalogue import NAMES


def settings(**changed: Any) -> BurstSettings:
    return BurstSettings(
        **{"dataset": NAME, "clients": 4, "requests": 8, "marks": (4, 8)} | changed
    )


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    with pytest.MonkeyPatch.context() as patch:
        return measured(Burst(), settings(), library(tmp_path_factory.mktemp("data"), patch))


def of(results: Results, system: str) -> Any:
    return results.where(system=system)[0].result


def test_every_system_does_what_it_supports(results: Results) -> None:
    assert results.values("system") == list(NAMES)
    for done in results:
        name, result = done.key["system"], done.result
        assert (result["deleted"] is None) == (name in ("afl", "acil"))
        if result["deleted"] is not None:
            assert len(result["deleted"]["seconds"]) == 8
        if result["added"] is not None:
            assert len(result["added"]["seconds"]) == 8
    assert of(results, "acu")["added"] is None
    assert len(of(results, "acil")["added"]["seconds"]) == 8


def test_exact_variants_equal_retraining_at_every_mark(results: Results) -> None:
    wanted = [("delete", 4), ("delete", 8), ("add_back", 4), ("add_back", 0)]
    for name in ("a_exact", "b_exact"):
        marks = of(results, name)["marks"]
        assert [(mark["kind"], mark["gone"]) for mark in marks] == wanted
        assert all(mark["equal"] for mark in marks)
    for name in ("central", "a_float64", "b_float64"):
        assert max(mark["deviation"] for mark in of(results, name)["marks"]) < 1e-9
    assert [mark["gone"] for mark in of(results, "acil")["marks"]] == [4, 0]
    assert max(mark["deviation"] for mark in of(results, "acil")["marks"]) < 1e-9


def test_all_variants_ask_one_round_of_one_client(results: Results) -> None:
    for name in ("a_exact", "b_exact", "a_float64", "b_float64"):
        for kind in ("deleted", "added"):
            assert set(of(results, name)[kind]["rounds"]) == {1}
    assert set(of(results, "fedavg")["deleted"]["rounds"]) == {
        5
    }  # told of the deletion, then four rounds


def test_one_and_the_same_client_is_deleted_from_every_system(results: Results) -> None:
    found = [one.result["client"] for one in results if one.result["client"] is not None]
    assert len(found) >= 10
    assert len({one["client"] for one in found}) == 1
    whole = {
        one["samples"]
        for name in ("central", "a_exact", "b_exact", "fedavg")
        for one in [of(results, name)["client"]]
    }
    assert len(whole) == 1  # everything had been added back


def test_the_first_heads_have_digests_which_exact_variants_share(results: Results) -> None:
    a, b = of(results, "a_exact")["digests"], of(results, "b_exact")["digests"]
    assert a == b
    assert len(set(a)) == 9
    assert set(of(results, "sisa")["digests"]) == {""}


def test_a_slow_system_is_timed_in_part_and_its_total_is_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = settings(
        systems=("fedavg", "b_exact", "central"),
        least=2,
        budget=1e-9,
        least_back=2,
        budget_back=1e-9,
    )
    found = measured(Burst(), chosen, library(tmp_path, monkeypatch))
    assert len(of(found, "fedavg")["deleted"]["seconds"]) == 2
    assert (
        len(of(found, "b_exact")["deleted"]["seconds"]) == 8
    )  # ours are timed in full, whatever they take
    assert len(of(found, "b_exact")["marks"]) == 4
    assert len(of(found, "fedavg")["added"]["seconds"]) == 2
    assert of(found, "central")["marks"] == []  # two deleted and two back are not eight
    deleted = Burst().tables(chosen, found)[0]
    row = next(row for row in deleted.rows if row[0] == "FedAvg retrain")
    assert row[1] == "2"
    assert row[5].startswith("~")
    assert any("FedAvg retrain 2 of 8" in one.text for one in Burst().findings(chosen, found))


def test_totals_are_sums_where_all_is_timed_and_means_times_the_count_where_not() -> None:
    costs = columns([Cost(seconds=one) for one in (1.0, 2.0, 6.0)])
    assert Timing(costs, 3).total == 9.0
    assert Timing(costs, 3).complete
    assert Timing(costs, 30).total == 90.0
    assert not Timing(costs, 30).complete
    assert Timing(costs, 30).median == 2.0
    assert Timing(costs, 3).texts()[-1] == "9 s"
    assert Timing(costs, 6).texts()[-1] == "~18 s"


def test_tables_name_every_system_and_put_the_paper_beside(results: Results) -> None:
    deleted, added, deviations, clients = Burst().tables(settings(), results)
    for table in (deleted, added, deviations, clients):
        assert all(len(row) == len(table.columns) for row in table.rows)
    assert {row[0] for row in deleted.rows if row[1] == "unsupported"} == {"AFL", "ACIL"}
    assert next(row for row in added.rows if row[0] == "ACU")[1] == "unsupported"
    assert (
        next(row for row in deviations.rows if row[0] == "Variant A, exact")[1:]
        == ["0 (same digest)"] * 4
    )
    full = Burst().tables(settings(requests=200, marks=(100, 200)), results)[2]
    papers = [row for row in full.rows if "The paper" in row[0]]
    assert papers[0][1:] == ["2.72e-11", "3.18e-11", "3.14e-11", "3.81e-11"]
    assert papers[1][1:] == ["3.00e-11", "3.66e-11", "2.82e-11", "5.10e-12"]


def claims(results: Results, words: str) -> list[bool | None]:
    return [one.holds for one in Burst().findings(settings(), results) if words in one.text]


def altered(results: Results, system: str, change: Any) -> Results:
    made = Results(Done(one.key, copy.deepcopy(one.result)) for one in results)
    for one in made.where(system=system):
        change(one.result)
    return made


def test_claims_follow_the_results(results: Results) -> None:
    assert claims(results, "has the digest of one solved afresh") == [True]
    assert claims(results, "need one round for each request") == [True]
    wrong = altered(results, "a_exact", lambda result: result["marks"][-1].update(equal=False))
    assert claims(wrong, "has the digest of one solved afresh") == [False]
    many = altered(results, "b_exact", lambda result: result["deleted"]["rounds"].__setitem__(0, 2))
    assert claims(many, "need one round for each request") == [False]


@pytest.mark.parametrize(("seconds", "holds"), [(0.019, True), (0.021, False)])
def test_fifty_times_as_fast_as_fedavg_is_a_claim_that_can_fail(
    results: Results, seconds: float, holds: bool
) -> None:
    slow = altered(results, "fedavg", lambda result: result["deleted"].update(seconds=[1.0] * 8))
    ours = altered(slow, "b_exact", lambda result: result["deleted"].update(seconds=[seconds] * 8))
    assert claims(ours, "Variant B, exact, deletes a sample") == [holds]
    few = Burst().findings(settings(samples=50), ours)  # with fewer samples it is no claim
    assert [one.holds for one in few if "Variant B, exact, deletes a sample" in one.text] == [None]


def test_a_faster_fats_is_named_with_its_skips(results: Results) -> None:
    def fast(result: Any) -> None:
        result["deleted"].update(seconds=[1e-9] * 8, skipped=[1] * 7 + [0])

    texts = [one.text for one in Burst().findings(settings(), altered(results, "fats", fast))]
    assert any(text.startswith("FATS skips 7 of 8 requests") for text in texts)
    against = [
        text for text in texts if "FATS is" in text and "as fast as Variant B, exact" in text
    ]
    assert len(against) == 1
    assert "FATS skipped 7 of 8" in against[0]
    assert "Variant B, exact, is" not in against[0]

    slow = altered(
        results, "fats", lambda result: result["deleted"].update(seconds=[1e9] * 8, skipped=[0] * 8)
    )
    texts = [one.text for one in Burst().findings(settings(), slow)]
    assert not any("FATS is" in text for text in texts)
    assert sum("Variant B, exact, is" in text and "as fast as FATS" in text for text in texts) == 1


def on_flower(results: Results, system: str, count: int) -> Done:
    """A cell as a run on Flower would leave it: the first requests, and the heads of the run in
    process.
    """
    here = next(one for one in results if one.key["system"] == system)
    deleted = {name: values[:count] for name, values in here.result["deleted"].items()}
    key = {**here.key, "engine": "flower", "requests": count, "actors": 2}
    shared = {name: here.result[name] for name in ("training", "accuracy", "accuracy_after")}
    result = {**shared, "deleted": deleted, "digests": here.result["digests"][: count + 1]}
    return Done(key, as_file({**result, "loading_seconds": 1.0, "whole_seconds": 100.0}))


def test_results_on_flower_have_a_table_and_are_compared_head_by_head(results: Results) -> None:
    both = Results([*results, on_flower(results, "b_exact", 5), on_flower(results, "fedavg", 5)])
    table = Burst().tables(settings(), both)[-1]
    assert [row[:2] for row in table.rows] == [["Variant B, exact", "5"], ["FedAvg retrain", "5"]]
    assert claims(both, "Variant B, exact: 6 of 6 heads on Flower") == [True]
    assert claims(both, "FedAvg retrain: 6 of 6 heads on Flower") == [None]
    both[-2].result["digests"][3] = "another"  # type: ignore[index]
    assert claims(both, "Variant B, exact: 5 of 6 heads on Flower") == [False]


def test_figures_have_a_point_for_every_timed_request_and_a_panel_for_each_engine(
    results: Results,
) -> None:
    for part, panels in ((results, 1), (Results([*results, on_flower(results, "b_exact", 5)]), 2)):
        stream, summary = Burst().drawings(settings(), part)
        with house_style():
            figure, bars = stream.draw(), summary.draw()
        assert len(figure.axes) == panels
        drawn = {str(line.get_label()): len(line.get_xdata()) for line in figure.axes[0].lines}
        assert drawn == dict.fromkeys(drawn, 8)
        assert len(drawn) == len(NAMES) - 2
        assert len(bars.axes[0].get_yticklabels()) == len(NAMES) - 2
        if panels == 2:
            assert [len(line.get_xdata()) for line in figure.axes[1].lines] == [5]


def test_tables_and_findings_are_made_of_any_part_of_the_results(results: Results) -> None:
    experiment = Burst()
    for count in range(len(results)):
        part = Results(results[:count])
        assert len(experiment.tables(settings(), part)) == 4
        assert all(one.text for one in experiment.findings(settings(), part))


def test_cells_on_flower_are_marked_and_come_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library(tmp_path, monkeypatch)
    cells = Burst().cells(settings(systems=("central", "b_exact")))
    assert [cell.engine for cell in cells] == ["process"] * 2 + ["flower"] * 5
    assert all(cell.key["engine"] == cell.engine for cell in cells)
    assert {cell.key["requests"] for cell in cells if cell.engine == "flower"} == {5}


def test_the_stream_is_a_function_of_the_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = library(tmp_path, monkeypatch)
    chosen = settings(systems=("b_exact",))
    digests = [of(measured(Burst(), chosen, data), "b_exact")["digests"] for _ in range(2)]
    other = of(measured(Burst(), settings(systems=("b_exact",), seed=1), data), "b_exact")[
        "digests"
    ]
    assert digests[0] == digests[1]
    assert digests[0][0] == other[0]  # nothing is deleted yet, and partitions do not matter
    assert not np.intersect1d(digests[0][1:], other[1:]).size


def test_quick_has_the_same_clients_and_systems() -> None:
    experiment = EXPERIMENTS["burst"]
    assert isinstance(experiment, Burst)
    assert experiment.quick.clients == experiment.full.clients == 100
    assert experiment.quick.systems == experiment.full.systems == NAMES
    assert experiment.full.least >= 10
    assert experiment.full.flower_requests >= 5


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"requests": 0}, "requests = 0"),
        ({"least": 0}, "least = 0"),
        ({"budget": 0.0}, "budget = 0"),
        ({"budget_back": float("inf")}, "budget_back"),
        ({"marks": (8, 4)}, "marks"),
        ({"marks": ()}, "marks"),
        ({"marks": (9,)}, "marks"),
        ({"flower_systems": ("nonesuch",)}, "nonesuch"),
    ],
)
def test_impossible_settings_are_refused_by_name(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        settings(**changed)
