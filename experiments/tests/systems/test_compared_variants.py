"""Exact variants publish the head of retraining, bit for bit; float ones come close; messages are
what is counted.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from system_cases import one_feature_each, pool_of

import expunge
from expunge import Grid
from expunge.errors import InputError
from expunge.solvers.float64 import relative_deviation
from expunge.wire.messages import statistics_bytes
from expunge_experiments.pool import Pool
from expunge_experiments.systems.catalogue import build, settings_from
from expunge_experiments.systems.variants import VariantSettings

EXACT = ("a_exact", "b_exact")
FLOAT = ("a_float64", "b_float64", "a_float32", "b_float32")


def retrained(pool: Pool, retained: np.ndarray, gamma: float = 1.0, bits: int = 40) -> expunge.Head:
    spec = VariantSettings(gamma).spec(pool.dim, pool.classes).with_publication_bits(bits)
    return expunge.solve(
        expunge.Statistics.of(
            spec, pool.features[retained], pool.labels[retained], lost_columns="accept"
        )
    )


toggles = st.lists(st.sets(st.integers(0, 59), min_size=1, max_size=40), max_size=4)


@pytest.mark.parametrize("name", EXACT)
@settings(max_examples=15)
@given(stream=toggles, gamma=st.sampled_from([1e-3, 1.0, 1e3]))
def test_after_any_stream_the_digest_is_that_of_retraining(
    name: str, stream: list[set[int]], gamma: float
) -> None:
    pool = pool_of()
    system = build(name, pool, settings=VariantSettings(gamma))
    system.train(np.arange(40))
    for chosen in stream:  # whatever is retained is deleted, and whatever is not is added
        numbers = np.array(sorted(chosen))
        there = system.retained[numbers]
        system.delete(numbers[there])
        system.add(numbers[~there])
    reference = retrained(pool, system.retained, gamma)
    assert system.digest == reference.digest
    assert np.array_equal(system.weights, reference.weights)
    assert np.array_equal(system.predict(pool.features), reference.predict(pool.features))


@pytest.mark.parametrize("name", EXACT)
def test_partition_and_order_do_not_matter(name: str) -> None:
    pool = pool_of()
    other = Pool(pool.features, pool.labels, pool.owners[::-1].copy(), pool.classes, pool.clients)
    digests = set()
    for one in (pool, other):
        system = build(name, one)
        system.train(np.arange(20, 60))
        system.add(np.arange(20))
        system.delete_client(2)
        system.add(np.flatnonzero(~system.retained))
        digests.add(system.digest)
    assert digests == {retrained(pool, np.ones(60, dtype=bool)).digest}


@pytest.mark.parametrize("name", EXACT + FLOAT)
def test_every_operation_is_one_exchange(name: str) -> None:
    system = build(name, pool_of())
    costs = [
        system.train(np.arange(50)),
        system.delete(np.arange(10)),
        system.add(np.arange(50, 60)),
        system.delete_client(3),
    ]
    assert [cost.rounds for cost in costs] == [1, 1, 1, 1]
    assert all(cost.recomputed == cost.skipped == 0 for cost in costs)


@pytest.mark.parametrize("name", EXACT + FLOAT)
def test_nothing_retained_is_the_zero_head_from_which_it_goes_on(name: str) -> None:
    pool = pool_of()
    system = build(name, pool)
    system.train()
    for chunk in range(3):
        system.delete(np.arange(20 * chunk, 20 * chunk + 20))
    assert not system.weights.any()
    system.add(np.arange(30))
    assert relative_deviation(system.weights, retrained(pool, np.arange(60) < 30).weights) < 1e-5


@pytest.mark.parametrize(
    ("name", "most"),
    [("a_float64", 1e-13), ("b_float64", 1e-13), ("a_float32", 1e-5), ("b_float32", 1e-5)],
)
def test_float_variants_come_close_and_are_not_exact(name: str, most: float) -> None:
    pool = pool_of(samples=300, clients=7)
    system = build(name, pool)
    system.train()
    system.delete(np.arange(0, 200, 3))
    system.add(np.arange(0, 100, 3))
    system.delete_client(5)
    assert str(system.weights.dtype) == name[2:]
    assert (
        0.0
        < relative_deviation(system.weights, retrained(pool, system.retained, bits=50).weights)
        < most
    )


def test_bytes_are_those_of_the_messages() -> None:
    pool = pool_of(dim=40, samples=80)
    spec = VariantSettings().spec(40, 3)
    owned = [int((pool.owners == client).sum()) for client in range(4)]
    ups = {}
    for name in EXACT:
        system = build(name, pool)
        ups[name] = (system.train().bytes_up, system.delete(np.arange(1)).bytes_up)
    gram, header = statistics_bytes(spec), 128
    assert 4 * gram < ups["a_exact"][0] < 4 * (gram + header)
    assert gram < ups["a_exact"][1] < gram + header
    rows = [count * (32 + 8 * 40 + 4) for count in owned]
    assert sum(rows) < ups["b_exact"][0] < sum(rows) + 4 * header
    assert 32 + 8 * 40 + 4 < ups["b_exact"][1] < 32 + 8 * 40 + 4 + header


def test_b_sends_statistics_where_they_are_fewer_bytes() -> None:
    pool = pool_of(dim=4, samples=200, clients=2)
    system = build("b_exact", pool)
    gram = statistics_bytes(system.spec)
    assert system.train().bytes_up < 2 * (gram + 128)
    assert system.digest == retrained(pool, np.ones(200, dtype=bool)).digest
    assert system.delete(np.arange(1)).bytes_up < gram // 2


def test_many_rows_and_statistics_in_one_request() -> None:
    """Of one client so many that it sends statistics, of the others rows."""
    pool = pool_of(dim=4, samples=200, clients=4)
    owners = np.where(np.arange(200) < 150, 0, 1 + np.arange(200) % 3)
    pool = Pool(pool.features, pool.labels, owners, pool.classes, 4)
    system = build("b_exact", pool)
    system.train()
    system.delete(np.arange(10, 155))
    system.delete(np.arange(155, 190))
    assert system.digest == retrained(pool, system.retained).digest


@pytest.mark.parametrize("name", EXACT)
def test_large_features_are_taken_on_the_finest_grid_that_holds_the_whole_pool(name: str) -> None:
    pool = pool_of()
    large = Pool(pool.features * 100, pool.labels, pool.owners, pool.classes, pool.clients)
    system = build(name, large)
    bits = system.settings.fraction_bits
    assert (
        Grid(fraction_bits=bits + 1).limit
        <= np.abs(large.features).max()
        < Grid(fraction_bits=bits).limit
    )
    system.train(np.arange(50))
    system.delete(np.arange(10))
    system.add(np.arange(50, 55))
    spec = VariantSettings(fraction_bits=bits).spec(large.dim, large.classes)
    kept = system.retained
    statistics = expunge.Statistics.of(
        spec, large.features[kept], large.labels[kept], lost_columns="accept"
    )
    assert system.digest == expunge.solve(statistics).digest
    assert build(name, pool).settings.fraction_bits == 35


def test_a_grid_that_was_chosen_is_kept_and_refuses_what_is_beyond_it() -> None:
    pool = pool_of()
    large = Pool(pool.features * 100, pool.labels, pool.owners, pool.classes, pool.clients)
    with pytest.raises(InputError, match=r"beyond the range of Grid.*choose grid="):
        build("a_exact", large, settings=settings_from("a_exact", {"fraction_bits": 36})).train()
    system = build("a_exact", large, settings=settings_from("a_exact", {"fraction_bits": 25}))
    system.train()
    assert system.settings.fraction_bits == 25
    assert system.accuracy(large.features, large.labels) > 0.5


def test_resets_of_float_b_are_counted_and_kept(tmp_path: Path) -> None:
    alone = one_feature_each()
    system = build("b_float64", alone)
    system.train()
    system.delete(
        np.arange(12)
    )  # all samples that have anything in the first feature: the downdate is nearly infeasible
    assert system.solver.resets >= 1
    system.save(tmp_path)
    assert build("b_float64", alone).load(tmp_path).solver.resets == system.solver.resets
    assert relative_deviation(system.weights, build_central(alone, 12)) < 1e-7


def build_central(pool: Pool, first: int) -> np.ndarray:
    central = build("central", pool)
    central.train(np.arange(first, pool.size))
    return np.asarray(central.weights)
