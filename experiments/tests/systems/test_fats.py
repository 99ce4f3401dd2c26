"""FATS: after a deletion, draws and heads are distributed as after training on the rest; nothing of
what is gone is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from system_cases import goes_on_elsewhere, pool_of

from expunge.errors import InputError
from expunge_experiments.engine import ProcessEngine
from expunge_experiments.pool import Pool
from expunge_experiments.systems.base import UnsupportedError
from expunge_experiments.systems.catalogue import Maker, build
from expunge_experiments.systems.check import check_system
from expunge_experiments.systems.fats import Fats, FatsSettings, FatsWorker

SMALL = FatsSettings(rounds=4, clients_per_round=3, samples=4, steps=3, rate=0.2)
# The probability that a right FATS fails one of the tests of distributions; seeds are fixed, so it
# is decided once
ALARM = 1e-4


def trained(
    pool: Pool, settings: FatsSettings = SMALL, seed: int = 0, kind: type[Fats] = Fats
) -> Fats:
    plain = cast("Fats", build("fats", pool, settings=settings, seed=seed))
    system = kind(pool, plain.engine, settings, seed)
    system.train()
    return system


def workers(system: Fats) -> list[FatsWorker]:
    return cast("list[FatsWorker]", cast("ProcessEngine", system.engine).workers)


def drawn(system: Fats) -> tuple[Any, ...]:
    """Every draw that is kept: clients of each round, and the samples of each copy's steps."""
    batches = {}
    for worker in workers(system):
        for at, step in worker.steps.items():
            batches[at] = tuple(worker.samples.numbers[step.batch].tolist())
    return tuple(map(tuple, system.drawn.tolist())), tuple(sorted(batches.items()))


def replayed(system: Fats) -> NDArray[np.float32]:
    """The head that the draws that are kept lead to."""
    settings, weights = system.settings, np.zeros_like(np.asarray(system.weights))
    for round_ in range(settings.rounds):
        ends = []
        for copy, client in enumerate(system.drawn[round_].tolist()):
            worker, local = workers(system)[client], weights.astype(np.float64)
            for step in range(settings.steps):
                batch = worker.steps[round_, copy, step].batch
                rows, labels = worker.rows[batch].astype(np.float64), worker.samples.labels[batch]
                scores = np.exp(rows @ local)
                shares = scores / scores.sum(axis=1, keepdims=True) - np.eye(local.shape[1])[labels]
                local = local - settings.rate / len(batch) * rows.T @ shares
            ends.append(local)
        weights = np.mean(ends, axis=0)
    return weights.astype(np.float32)


# -- what is kept ----------------------------------------------------------------------------------


@given(st.lists(st.sets(st.integers(0, 59), min_size=1, max_size=8), max_size=4), st.integers(0, 9))
@examples(max_examples=25)
def test_what_is_kept_is_whole_and_leads_to_the_head(requests: list[set[int]], seed: int) -> None:
    pool = pool_of()
    system = trained(pool, seed=seed)
    for request in requests:
        chosen = np.array([one for one in sorted(request) if system.retained[one]], dtype=np.int64)
        cost = system.delete(chosen)
        assert bool(cost.recomputed) != bool(cost.skipped) or not len(chosen)
    clients, batches = drawn(system)
    wanted = {(round_, copy, step) for round_, copy, step in product(range(4), range(3), range(3))}
    assert {at for at, _ in batches} == wanted
    for (round_, copy, _), batch in batches:
        assert system.retained[list(batch)].all()
        assert set(pool.owners[list(batch)]) == {clients[round_][copy]}
        held = int(system.retained[pool.numbers_of(clients[round_][copy])].sum())
        assert len(set(batch)) == min(4, held)
    np.testing.assert_allclose(system.weights, replayed(system), rtol=1e-4, atol=1e-5)


def test_a_deletion_that_no_draw_concerns_changes_nothing_but_what_is_retained() -> None:
    system = trained(pool_of(samples=400))
    seen = {sample for _, batch in drawn(system)[1] for sample in batch}
    unseen = next(sample for sample in range(400) if sample not in seen)
    before, draws = np.array(system.weights), drawn(system)
    cost = system.delete(np.array([unseen]))
    assert (cost.skipped, cost.recomputed, cost.rounds) == (1, 0, 1)
    assert np.array_equal(system.weights, before)
    assert drawn(system) == draws


def test_a_deletion_resumes_in_the_middle_of_a_round_and_keeps_what_was_before() -> None:
    pool = pool_of(samples=400)
    system = trained(pool)
    clients, batches = drawn(system)
    at, batch = next((at, batch) for at, batch in batches if at[0] == 2 and at[2] == 1)
    earlier = {
        sample
        for (round_, _, step), found in batches
        if (round_, step) < (2, 1)
        for sample in found
    }
    sample = next(one for one in batch if one not in earlier)
    cost = system.delete(np.array([sample]))
    assert cost.recomputed == (4 * 3) - (2 * 3 + 1)
    after_clients, after = drawn(system)
    assert after_clients[:3] == clients[:3]
    old, new = dict(batches), dict(after)
    assert all(new[one] == old[one] for one in old if (one[0], one[2]) < (2, 1))
    assert new[at] != old[at]


def test_a_deleted_client_is_drawn_no_more_and_keeps_nothing() -> None:
    system = trained(pool_of())
    first = int(np.flatnonzero((system.drawn == 1).any(axis=1))[0])
    before = system.drawn[:first].copy()
    cost = system.delete_client(1)
    assert cost.recomputed == (4 - first) * 3
    assert not (system.drawn == 1).any()
    assert np.array_equal(system.drawn[:first], before)
    assert not workers(system)[1].steps


def test_the_emptied_federation_has_the_zero_head_and_keeps_no_draws() -> None:
    system = trained(pool_of())
    system.delete(np.arange(60))
    assert not np.asarray(system.weights).any()
    assert not any(worker.steps for worker in workers(system))
    assert system.stability == {"rho_C": 0.0, "rho_S": 0.0, "b": 0.0}


def test_centring_changes_no_score_of_the_head() -> None:
    """The head's columns sum to zero, so it is one for features as they are."""
    system = trained(
        pool_of(), FatsSettings(rounds=4, clients_per_round=3, samples=4, rate=0.2, centred=True)
    )
    np.testing.assert_allclose(np.asarray(system.weights)[:-1].sum(axis=0), 0.0, atol=1e-6)


def test_bounds_are_those_of_the_paper() -> None:
    pool = Pool(np.zeros((40, 2), np.float32), np.arange(40) % 2, np.repeat(np.arange(4), 10), 2, 4)
    system = trained(pool, FatsSettings(rounds=6, clients_per_round=2, samples=5, steps=2))
    assert system.stability == {"rho_C": 2 * 6 / 4, "rho_S": 5 * 2 * 6 * 2 / (4 * 10), "b": 5.0}
    system.delete(np.arange(1, 10))
    assert system.stability["b"] == (1 + 5 + 5 + 5) / 4  # a client that has fewer draws all it has


def test_it_cannot_add() -> None:
    system = trained(pool_of())
    system.delete(np.array([3]))
    with pytest.raises(UnsupportedError, match="add"):
        system.add(np.array([3]))


@pytest.mark.parametrize(
    "wrong", [{"rounds": 0}, {"samples": 0}, {"steps": 0}, {"clients_per_round": 0}, {"rate": -1.0}]
)
def test_impossible_settings_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        FatsSettings(**wrong)


def test_rounds_of_several_steps_keep_the_laws_of_all_systems() -> None:
    check_system(
        Maker("fats", FatsSettings(rounds=8, clients_per_round=3, samples=6, steps=3)),
        exact=False,
        process=False,
    )


_GO_ON = """
import sys
from pathlib import Path
import numpy as np
sys.path.insert(0, sys.argv[2])
from system_cases import pool_of
from expunge_experiments.systems.catalogue import build
from expunge_experiments.systems.check import fingerprint
from expunge_experiments.systems.fats import FatsSettings
settings = FatsSettings(rounds=4, clients_per_round=3, samples=4, steps=3, rate=0.2)
system = build("fats", pool_of(), settings=settings, seed=0).load(Path(sys.argv[1]))
system.delete(np.array([4, 9]))
system.delete_client(1)
sys.stdout.write(fingerprint(system))
"""


def test_another_process_goes_on_bit_for_bit(tmp_path: Path) -> None:
    goes_on_elsewhere(trained(pool_of()), _GO_ON, tmp_path)


# -- distributions ---------------------------------------------------------------------------------
# A federation of two clients, small enough that every history of draws can be listed. All histories
# of the retained samples are equally likely, so their counts over many seeds are compared with that
# by chi-square.

TINY = FatsSettings(rounds=2, clients_per_round=1, samples=1, steps=2, rate=0.1, centred=False)
RUNS = 500


def tiny_pool(sizes: tuple[int, ...]) -> Pool:
    owners = np.repeat(np.arange(len(sizes)), sizes)
    features = np.random.default_rng(0).standard_normal((len(owners), 1)).astype(np.float32)
    return Pool(features, np.arange(len(owners)) % 2, owners, 2, len(sizes))


def history(system: Fats) -> tuple[int, ...]:
    """The samples of each step; they say whose they are."""
    return tuple(batch[0] for _, batch in drawn(system)[1])


def p_value(
    sizes: tuple[int, ...], change: Callable[[Fats], object], kind: type[Fats] = Fats
) -> float:
    """Of the hypothesis that histories after the change are those of training on the rest."""
    pool, counts = tiny_pool(sizes), Counter[tuple[int, ...]]()
    for seed in range(RUNS):
        system = trained(pool, TINY, seed, kind)
        change(system)
        counts[history(system)] += 1
    retained = [
        pool.numbers_of(client)[system.retained[pool.numbers_of(client)]].tolist()
        for client in range(pool.clients)
    ]
    alive = [mine for mine in retained if mine]
    rounds = {
        pair: 1.0 / len(alive) / len(mine) ** 2 for mine in alive for pair in product(mine, mine)
    }
    expected = {
        first + second: rounds[first] * rounds[second] * RUNS
        for first, second in product(rounds, rounds)
    }
    assert set(counts) <= set(expected)
    return float(stats.chisquare([counts[one] for one in expected], list(expected.values())).pvalue)


def one_sample(system: Fats) -> None:
    system.delete(np.array([0]))


def samples_of_both(system: Fats) -> None:
    system.delete(np.array([0, 4]))


def one_after_another(system: Fats) -> None:
    system.delete(np.array([2]))
    system.delete(np.array([0]))


def a_client(system: Fats) -> None:
    system.delete_client(1)


def test_clients_are_drawn_with_replacement() -> None:
    """Of three clients two are drawn: each of the nine pairs, equal ones among them, is as likely
    as any other.
    """
    settings = FatsSettings(rounds=60, clients_per_round=2, samples=1, centred=False)
    pairs = Counter(
        tuple(pair)
        for seed in range(15)
        for pair in trained(tiny_pool((2, 3, 4)), settings, seed).drawn.tolist()
    )
    assert len(pairs) == 9
    assert float(stats.chisquare(list(pairs.values())).pvalue) > ALARM


@pytest.mark.parametrize("change", [one_sample, samples_of_both, one_after_another, a_client])
def test_histories_are_distributed_as_those_of_training_on_the_rest(
    change: Callable[[Fats], object],
) -> None:
    sizes = (2, 2, 2) if change is a_client else (3, 2)
    assert p_value(sizes, change) > ALARM


class SameDraws(Fats):
    """Wrong: fresh draws repeat the random numbers of the old ones."""

    def _resume(self, first: int, step: int, *, redraw: bool) -> int:
        for worker in workers(self):
            for at, kept in list(worker.steps.items()):
                worker.steps[at] = type(kept)(-1, kept.batch, kept.start)
        self._generation = 0
        return super()._resume(first, step, redraw=redraw)


class OtherClients(Fats):
    """Wrong: a round that a sample's deletion concerns draws its clients anew."""

    def _resume(self, first: int, step: int, *, redraw: bool) -> int:  # noqa: ARG002 - that is what is wrong
        return super()._resume(first, 0, redraw=True)


@pytest.mark.parametrize("kind", [SameDraws, OtherClients])
def test_wrong_couplings_are_found_out(kind: type[Fats]) -> None:
    assert p_value((3, 2), one_sample, kind) < ALARM
