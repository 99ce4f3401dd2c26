"""Compared systems as Flower apps: on the in-process grid, and in Flower's own simulation, with
Ray.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from expunge.errors import ProtocolError
from expunge_experiments.flower import Job, JobRequest, measure
from job_cases import CLIENTS, WITH_CLIENTS, counted, in_process, job_of, shared_pool
from support.flower_processes import _MARK, Flower


@pytest.mark.parametrize("name", WITH_CLIENTS)
def test_a_job_on_the_in_process_grid_comes_to_the_heads_of_one_process(
    tmp_path: Path, name: str
) -> None:
    laid, job, seen = shared_pool(), job_of(name), []
    laid.write(tmp_path)
    outcome = measure(
        job,
        folder=tmp_path,
        clients=CLIENTS,
        simulated=False,
        report=lambda _, done, total: seen.append((done, total)),
    )
    costs, digests = in_process(laid, job)
    assert list(outcome.digests) == digests
    assert [counted(cost) for cost in (outcome.training, *outcome.requests)] == list(
        map(counted, costs)
    )
    assert seen[-1] == (len(costs), len(costs))
    assert [path.name for path in tmp_path.iterdir()] == ["shared-pool"]


def test_a_job_that_fails_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    shared_pool().write(tmp_path)
    job = Job("b_exact", requests=(JobRequest("delete", (3,)), JobRequest("delete", (3,))))
    with pytest.raises(
        ProtocolError, match=r"b_exact could not do its job on Flower: InputError: .*not retained"
    ):
        measure(job, folder=tmp_path, clients=CLIENTS, simulated=False)
    assert [path.name for path in tmp_path.iterdir()] == ["shared-pool"]


@pytest.mark.parametrize("name", ["b_exact", "fedavg"])
def test_a_job_in_a_simulation_comes_to_the_heads_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Flower's SuperLink, its simulation and two actors of Ray, none of which is there
    afterwards.
    """
    laid, job, seen = shared_pool(), job_of(name), []
    laid.write(tmp_path)
    watch = Flower(tmp_path, tmp_path)
    monkeypatch.setenv(_MARK, watch.mark)
    outcome = measure(
        job,
        folder=tmp_path,
        clients=CLIENTS,
        seconds=150.0,
        report=lambda _, done, total: seen.append((done, total)),
    )
    assert watch.found() == []
    costs, digests = in_process(laid, job)
    assert list(outcome.digests) == digests
    assert [counted(cost) for cost in (outcome.training, *outcome.requests)] == list(
        map(counted, costs)
    )
    assert outcome.training.orchestration_seconds > 0
    assert (seen[0], seen[-1]) == ((0, len(costs)), (len(costs), len(costs)))
    assert outcome.whole_seconds > outcome.training.seconds
    assert [path.name for path in tmp_path.iterdir()] == ["shared-pool"]


def test_a_simulation_that_cannot_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared_pool().write(tmp_path)
    watch = Flower(tmp_path, tmp_path)
    monkeypatch.setenv(_MARK, watch.mark)
    with pytest.raises(ProtocolError, match=r"not ended within 0\.5 seconds"):
        measure(job_of("fedavg"), folder=tmp_path, clients=CLIENTS, seconds=0.5)
    assert watch.found() == []
    assert [path.name for path in tmp_path.iterdir()] == ["shared-pool"]
