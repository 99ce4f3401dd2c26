from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unlearning_cases import NAME, library

from expunge import Spec, Statistics, solve
from expunge.errors import InputError
from expunge.solvers.float64 import relative_deviation
from expunge_experiments.datasets.dataset import Dataset
from expunge_experiments.pool import Pool, partition
from expunge_experiments.runs.retraining import Retraining, finest
from expunge_experiments.runs.streams import (
    PartitionedDataset,
    check_federation,
    chunks_of,
    client_of,
    singles_of,
    subset,
)
from expunge_experiments.systems import catalogue
from expunge_experiments.systems.linear import gram_and_moment, ridge


@given(
    st.integers(5, 300),
    st.integers(0, 5),
    st.lists(st.integers(1, 99), min_size=1, max_size=6, unique=True),
)
def test_chunks_are_disjoint_and_come_to_the_share_that_is_to_be_gone(
    size: int, seed: int, percents: list[int]
) -> None:
    deleted = [percent / 100 for percent in sorted(percents)] + [1.0]
    chunks = chunks_of(size, deleted, seed)
    gone = np.cumsum([len(chunk) for chunk in chunks])
    assert list(gone) == [round(share * size) for share in deleted]
    assert np.array_equal(np.sort(np.concatenate(chunks)), np.arange(size))


@given(st.integers(1, 300), st.integers(0, 5), st.data())
def test_single_deletions_are_different_samples_and_a_shorter_stream_begins_alike(
    size: int, seed: int, data: st.DataObject
) -> None:
    count = data.draw(st.integers(0, size))
    stream = singles_of(size, count, seed)
    assert len(set(stream.tolist())) == count
    assert all(0 <= sample < size for sample in stream)
    assert np.array_equal(singles_of(size, count // 2, seed), stream[: count // 2])


def test_streams_depend_on_the_seed() -> None:
    assert not np.array_equal(singles_of(500, 50, 0), singles_of(500, 50, 1))
    assert not np.array_equal(chunks_of(500, [0.5], 0)[0], chunks_of(500, [0.5], 1)[0])
    assert len({client_of(1000, seed) for seed in range(20)}) > 10


def test_a_federations_systems_have_its_partition_and_their_own_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = library(tmp_path, monkeypatch)
    federation = PartitionedDataset.of(data, NAME, 4, 3)
    assert np.array_equal(federation.pool.owners, partition(federation.dataset, 4, 3))
    assert not np.array_equal(
        federation.pool.owners, PartitionedDataset.of(data, NAME, 4, 2).pool.owners
    )
    for seed in (0, 5):
        system = federation.system("fats", seed)
        assert system.seed == seed
        assert system.pool is federation.pool
        assert {worker.seed for worker in system.engine.workers} == {seed}  # type: ignore[attr-defined]


def test_more_deletions_than_samples_are_refused() -> None:
    with pytest.raises(InputError, match="11 single deletions"):
        singles_of(10, 11, 0)


@pytest.mark.parametrize(
    ("clients", "seeds", "systems", "samples", "said"),
    [
        (0, [0], [], 0, "clients = 0"),
        (1, [], [], 0, "seeds"),
        (1, [1, 1], [], 0, "seeds"),
        (1, [-1], [], 0, "seeds"),
        (1, [0], ["nonesuch"], 0, "nonesuch"),
        (1, [0], [], -1, "samples = -1"),
    ],
)
def test_impossible_federations_are_refused_by_name(
    clients: int, seeds: list[int], systems: list[str], samples: int, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        check_federation(clients, seeds, systems, samples)


def dataset(seed: int = 0) -> Dataset:
    draw = np.random.default_rng(seed)
    features = draw.normal(size=(40, 3)).astype(np.float32)
    labels = (np.arange(40) % 2).astype(np.int64)
    return Dataset(
        "tiny", "made here", 2, features, labels, features[:5], labels[:5], np.arange(40) % 4
    )


def test_a_subset_has_rows_of_the_dataset_with_their_labels_and_groups() -> None:
    whole = dataset()
    part = subset(whole, 12, 3)
    places = [
        int(np.flatnonzero((whole.train_features == row).all(axis=1))[0])
        for row in part.train_features
    ]
    assert places == sorted(set(places))
    assert len(places) == 12
    assert whole.groups is not None
    assert part.groups is not None
    assert np.array_equal(part.train_labels, whole.train_labels[places])
    assert np.array_equal(part.groups, whole.groups[places])
    with pytest.raises(InputError, match="samples = 41"):
        subset(whole, 41, 0)


def test_references_are_the_heads_of_what_is_retained_and_of_nothing_else() -> None:
    data = dataset()
    pool = Pool.of(data, partition(data, 4, 0), 4)
    system = catalogue.build("a_exact", pool)
    pieces = [np.arange(0, 10), np.arange(10, 25), np.arange(25, 40)]
    references = Retraining().references(system, data, pieces)
    assert references is not None
    spec: Spec = system.spec  # type: ignore[attr-defined]
    for gone, reference in zip((0, 10, 25, 40), references, strict=True):
        afresh = solve(Statistics.of(spec, data.train_features[gone:], data.train_labels[gone:]))
        assert reference.head is not None
        assert reference.head.digest == afresh.digest
        assert np.allclose(reference.weights, afresh.weights, rtol=1e-8, atol=1e-9)
    assert not references[-1].weights.any()


def test_the_finest_head_is_closer_to_float64_than_what_is_published() -> None:
    data = dataset()
    statistics = Statistics.of(
        Spec(dim=3, labels=(0, 1), gamma=1.0), data.train_features, data.train_labels
    )
    head, weights = (
        solve(statistics),
        ridge(*gram_and_moment(data.train_features, data.train_labels, 2), 1.0),
    )
    fine = finest(head, statistics)
    assert (
        relative_deviation(weights, fine.weights)
        < 1e-14
        < relative_deviation(weights, head.weights)
    )
    assert int(np.abs(fine.integers).max()) >= 2**51
    nothing = Statistics.zero(statistics.spec)
    assert not finest(solve(nothing), nothing).weights.any()


def test_what_is_remembered_of_a_stream_is_never_given_for_another() -> None:
    memory, data = Retraining(), dataset()
    pool = Pool.of(data, partition(data, 4, 0), 4)
    pieces = [np.arange(0, 10), np.arange(10, 40)]
    other = dataset(1)
    systems = [
        catalogue.build(
            "central", pool, settings=catalogue.settings_from("central", {"gamma": one})
        )
        for one in (1.0, 2.0)
    ]
    cases = [
        (systems[0], data, pieces),
        (systems[1], data, pieces),
        (systems[1], other, pieces),
        (systems[1], other, pieces[::-1]),
        (systems[0], data, pieces),
    ]
    for system, where, what in cases:
        found, afresh = (
            memory.references(system, where, what),
            Retraining().references(system, where, what),
        )
        assert found is not None
        assert afresh is not None
        assert all(np.array_equal(a.weights, b.weights) for a, b in zip(found, afresh, strict=True))


def test_a_head_that_was_changed_by_one_bit_is_not_equal() -> None:
    data = dataset()
    pool = Pool.of(data, partition(data, 4, 0), 4)
    system = catalogue.build("b_exact", pool)
    references = Retraining().references(system, data, [np.arange(40)])
    assert references is not None
    system.train()
    found = references[0].distance(system)
    assert found.equal is True
    assert found.deviation is not None
    assert found.deviation < 1e-8
    system.delete(np.array([3]))
    assert references[0].distance(system).equal is False


def test_systems_without_one_ridge_head_have_no_reference() -> None:
    data = dataset()
    pool = Pool.of(data, partition(data, 4, 0), 4)
    for name in ("fedavg", "sisa"):
        assert Retraining().references(catalogue.build(name, pool), data, [np.arange(40)]) is None


def test_a_subset_keeps_all_test_samples() -> None:
    whole = dataset()
    part = subset(whole, 12, 0)
    changed = {"train_features", "train_labels", "groups"}
    same = [one.name for one in dataclasses.fields(Dataset) if one.name not in changed]
    assert all(getattr(part, name) is getattr(whole, name) for name in same)
