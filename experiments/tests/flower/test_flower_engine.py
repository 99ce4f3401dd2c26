"""The engine on Flower without Flower: its questions answered by nodes whose workers are made anew
for every message.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from expunge.errors import FormatError, InputError
from expunge.transport.flower.messages import Payload
from expunge_experiments.flower import Job, JobRequest, SharedPool
from expunge_experiments.flower.engine import FlowerEngine
from expunge_experiments.flower.job import Diary
from expunge_experiments.flower.node import Run, client_of, respond
from expunge_experiments.message import ArrayMessage
from expunge_experiments.systems.base import Cost
from expunge_experiments.systems.catalogue import build
from job_cases import (
    CLIENTS,
    WITH_CLIENTS,
    Direct,
    counted,
    in_process,
    job_of,
    perform,
    shared_pool,
)


def laid_out(folder: Path, job: Job) -> SharedPool:
    """A folder as nodes find it, and its pool as they read it."""
    shared_pool().write(folder)
    job.write(folder)
    return SharedPool.read(folder)


def engine_of(folder: Path) -> FlowerEngine:
    return FlowerEngine(Direct(folder), CLIENTS)


def message_to(client: int, task: str, number: int) -> tuple[int, ArrayMessage]:
    return client, ArrayMessage(task, {}, {"numbers": np.array([number])})


@pytest.mark.parametrize("name", WITH_CLIENTS)
def test_a_system_comes_to_the_same_heads_and_counts_the_same(tmp_path: Path, name: str) -> None:
    job = job_of(name)
    laid = laid_out(tmp_path, job)
    engine = engine_of(tmp_path)
    costs, digests = perform(
        build(name, laid.pool, settings=job.settings, seed=job.seed, engine=engine), job
    )
    expected, heads = in_process(shared_pool(), job)
    assert digests == heads
    assert list(map(counted, costs)) == list(map(counted, expected))
    assert engine.loading_seconds > 0


@pytest.mark.parametrize("name", ["a_exact", "b_exact"])
def test_nodes_and_server_agree_on_the_grid_for_large_features(tmp_path: Path, name: str) -> None:
    job, plain = job_of(name), shared_pool()
    large = replace(plain, pool=replace(plain.pool, features=plain.pool.features * 1000))
    large.write(tmp_path)
    job.write(tmp_path)
    system = build(
        name, large.pool, settings=job.settings, seed=job.seed, engine=engine_of(tmp_path)
    )
    assert system.settings.fraction_bits < 35
    assert perform(system, job)[1] == in_process(large, job)[1]


@pytest.mark.parametrize("name", ["fats", "exactfun", "b_exact"])
def test_a_system_goes_on_on_another_engine(tmp_path: Path, name: str) -> None:
    """What was saved on Flower is loaded in one process, and the other way round; both go on
    alike.
    """
    job = job_of(name)
    first, second = tmp_path / "first", tmp_path / "second"
    laid = laid_out(first, job)
    laid_out(second, job)
    made = {"settings": job.settings, "seed": job.seed}
    here = build(name, laid.pool, **made, engine=engine_of(first))
    here.train()
    here.save(tmp_path / "saved")
    there = build(name, laid.pool, **made).load(tmp_path / "saved")
    back = build(name, laid.pool, **made, engine=engine_of(second)).load(tmp_path / "saved")
    assert back.checkpoint_bytes == there.checkpoint_bytes == here.checkpoint_bytes
    for system in (here, there, back):
        system.delete(np.array([5, 6]))
    assert here.weights is not None
    for system in (there, back):
        assert system.weights is not None
        np.testing.assert_array_equal(system.weights, here.weights)


def test_letters_to_one_client_share_a_message_and_keep_their_order(tmp_path: Path) -> None:
    laid_out(tmp_path, job_of("fedavg"))
    nodes = Direct(tmp_path)
    engine = FlowerEngine(nodes, CLIENTS)
    nodes.asked.clear()
    messages = [
        message_to(0, "add", 0),
        message_to(2, "add", 2),
        message_to(0, "add", 5),
        message_to(0, "forget", 0),
    ]
    answers = engine.ask(messages)
    assert nodes.asked == [3, 1]
    assert [answer.settings["count"] for answer in answers] == [1, 1, 2, 1]
    assert engine.usage.exchanges == 1
    assert engine.usage.bytes_down == sum(len(message.to_bytes()) for _, message in messages)
    assert engine.usage.bytes_up == sum(len(answer.to_bytes()) for answer in answers)
    assert 0 < engine.usage.busiest_seconds <= engine.usage.client_seconds


def test_a_state_is_written_when_it_has_changed_and_only_then(tmp_path: Path) -> None:
    laid_out(tmp_path, job_of("fedavg"))
    engine = engine_of(tmp_path)
    path = tmp_path / "states" / "1.state"
    assert not path.exists()
    engine.ask([message_to(1, "add", 1)])
    before = path.stat()
    train = ArrayMessage("train", {"round": 0}, {"weights": np.zeros((7, 3), np.float32)})
    engine.ask([(1, train)])
    assert path.stat().st_ino == before.st_ino
    engine.ask([message_to(1, "forget", 1)])
    assert path.stat().st_ino != before.st_ino


def test_a_refused_letter_leaves_the_state_as_it_was(tmp_path: Path) -> None:
    laid_out(tmp_path, job_of("fedavg"))
    engine = engine_of(tmp_path)
    engine.ask([message_to(1, "add", 1)])
    with pytest.raises(InputError, match="add a sample twice"):
        engine.ask([message_to(1, "add", 6), message_to(1, "add", 1)])
    assert engine.states()[1]["retained"].sum() == 1


@pytest.mark.parametrize("clients", [(0, 1, 2, 3, 3), (0, 1, 2, 3, 4, 0)])
def test_every_client_is_one_node(tmp_path: Path, clients: tuple[int, ...]) -> None:
    laid_out(tmp_path, job_of("fedavg"))
    with pytest.raises(InputError, match="one node for each of 5 clients"):
        FlowerEngine(Direct(tmp_path, clients), CLIENTS)


def test_a_node_knows_what_it_is(tmp_path: Path) -> None:
    assert client_of({"partition-id": 3, "num-partitions": 9}) == 3
    with pytest.raises(InputError, match="does not know its client"):
        client_of({})
    laid_out(tmp_path, job_of("fedavg"))
    with pytest.raises(InputError, match="no client 5: start fewer nodes"):
        respond(Payload(b'{"ask":"client"}'), Run.of(tmp_path), 5)
    with pytest.raises(FormatError, match="no question of the engine"):
        respond(Payload(b'{"ask":"wages"}'), Run.of(tmp_path), 0)


# -- jobs and what comes of them -------------------------------------------------------------------


@pytest.mark.parametrize("name", WITH_CLIENTS)
def test_a_job_is_read_as_it_was_written(tmp_path: Path, name: str) -> None:
    job = job_of(name)
    job.write(tmp_path)
    assert Job.read(tmp_path) == job


def test_a_job_of_another_version_is_refused(tmp_path: Path) -> None:
    job_of("fedavg").write(tmp_path)
    path = tmp_path / "job.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": "0.0.1"}))
    with pytest.raises(InputError, match="install the same in both"):
        Job.read(tmp_path)
    path.write_text("[]")
    with pytest.raises(FormatError, match=r"job\.json"):
        Job.read(tmp_path)
    path.unlink()
    with pytest.raises(FormatError, match="cannot be read"):
        Job.read(tmp_path)


def test_requests_that_cannot_be_are_refused() -> None:
    with pytest.raises(InputError, match="no operation 'forget'"):
        JobRequest("forget", (1,))
    with pytest.raises(InputError, match="takes one client, not 2"):
        JobRequest("delete_client", (1, 2))
    assert JobRequest.delete(np.array([4, 2])) == JobRequest("delete", (4, 2))
    assert JobRequest.add(np.array([], dtype=np.int64)).numbers == ()


def test_a_diary_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert Diary.read(tmp_path).costs == []
    diary = replace(
        Diary.begin(tmp_path),
        costs=[Cost(1.0), Cost(2.0, rounds=3)],
        accuracies=[0.5, 0.25],
        digests=["a", "b"],
    )
    diary.write()
    assert Diary.read(tmp_path) == diary
    outcome = diary.outcome(9.0)
    assert (outcome.training, outcome.requests, outcome.accuracy, outcome.digest) == (
        Cost(1.0),
        (Cost(2.0, rounds=3),),
        0.25,
        "b",
    )
    assert json.loads(json.dumps(outcome.as_dict()))["requests"][0]["rounds"] == 3


def test_a_ground_is_read_as_it_was_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no pool: lay one out"):
        SharedPool.read(tmp_path)
    written = shared_pool()
    written.write(tmp_path)
    read = SharedPool.read(tmp_path)
    for name in ("features", "labels", "owners"):
        np.testing.assert_array_equal(getattr(read.pool, name), getattr(written.pool, name))
    np.testing.assert_array_equal(read.test_features, written.test_features)
    np.testing.assert_array_equal(read.test_labels, written.test_labels)
    assert (read.pool.classes, read.pool.clients) == (3, CLIENTS)
    assert not read.pool.features.flags.writeable
