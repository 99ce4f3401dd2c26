"""The engine in one process: messages arrive, and what they cost is counted; pools and workers know
whose samples are whose.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge.errors import InputError
from expunge_experiments.engine import ProcessEngine, Worker
from expunge_experiments.message import ArrayMessage
from expunge_experiments.pool import Pool


class Counting(Worker):
    """Answers with how many samples it retains."""

    def answer(self, message: ArrayMessage) -> ArrayMessage:
        return ArrayMessage("count", {"retained": int(self.retained.sum()), "asked": message.task})


def pool_of(owners: list[int], clients: int) -> Pool:
    size = len(owners)
    features = np.arange(2 * size, dtype=np.float32).reshape(size, 2)
    return Pool(features, np.zeros(size, np.int64), np.array(owners, np.int64), 2, clients)


@given(st.lists(st.integers(0, 4), max_size=30))
def test_every_sample_has_one_owner(owners: list[int]) -> None:
    pool = pool_of(owners, 5)
    numbers = [pool.numbers_of(client) for client in range(5)]
    assert sorted(np.concatenate(numbers).tolist()) == list(range(len(owners)))
    for client, mine in enumerate(numbers):
        assert (np.diff(mine) > 0).all()
        assert (pool.owners[mine] == client).all()
        np.testing.assert_array_equal(pool.samples_of(client).features, pool.features[mine])


@pytest.mark.parametrize("owners", [[0, 2], [-1, 0]])
def test_an_owner_must_be_a_client(owners: list[int]) -> None:
    with pytest.raises(InputError, match="clients 0 to 1"):
        pool_of(owners, 2)


def test_answers_come_in_the_order_of_the_letters_and_bytes_are_counted() -> None:
    engine = ProcessEngine(pool_of([0, 0, 1, 2], 3), Counting)
    messages = [
        (1, ArrayMessage("add", {}, {"numbers": np.array([2])})),
        (0, ArrayMessage("add", {}, {"numbers": np.array([0, 1])})),
    ]
    answers = engine.ask(messages)
    assert [answer.settings["retained"] for answer in answers] == [1, 2]
    assert engine.usage.exchanges == 1
    assert engine.usage.bytes_down == sum(len(message.to_bytes()) for _, message in messages)
    assert engine.usage.bytes_up == sum(len(answer.to_bytes()) for answer in answers)
    assert (
        0
        < engine.usage.busiest_seconds
        <= engine.usage.client_seconds
        <= engine.usage.waited_seconds
    )


@pytest.mark.parametrize(
    ("task", "numbers", "words"),
    [
        ("add", [2], "not its own"),
        ("add", [7], "not its own"),
        ("forget", [0], "forget a sample twice"),
        ("add", [1], "add a sample twice"),
    ],
)
def test_a_worker_refuses_what_is_not_its_own_and_changes_nothing(
    task: str, numbers: list[int], words: str
) -> None:
    engine = ProcessEngine(pool_of([0, 0, 1, 1], 2), Counting)
    engine.ask([(0, ArrayMessage("add", {}, {"numbers": np.array([1])}))])
    with pytest.raises(InputError, match=words):
        engine.ask([(0, ArrayMessage(task, {}, {"numbers": np.array(numbers)}))])
    assert engine.workers[0].retained.tolist() == [False, True]


def test_a_state_brings_a_worker_back() -> None:
    pool = pool_of([0, 0, 1], 2)
    engine = ProcessEngine(pool, Counting)
    engine.ask([(0, ArrayMessage("add", {}, {"numbers": np.array([1])}))])
    other = ProcessEngine(pool, Counting)
    other.restore(engine.states())
    assert [worker.retained.tolist() for worker in other.workers] == [[False, True], [False]]
