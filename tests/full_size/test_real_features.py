"""Full-size laws on the real features (make test-data). A missing file is a failure, not a skip."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

import expunge
from support import real_features

pytestmark = pytest.mark.data

CIFAR = "cifar10_efficientnet_lite0.npz"
# File, and the accuracies of central ridge that its description gives for gamma = 1, 10, 100.
ACCURACIES = [
    (CIFAR, (0.8828, 0.8830, 0.8834)),
    ("digits_by_writer_efficientnet_lite0.npz", (0.9247, 0.9280, 0.9263)),
    ("tweets_by_user_mpnet.npz", (0.7947, 0.7923, 0.7902)),
]

load = cache(real_features.load)


@cache
def cifar() -> tuple[expunge.Spec, Any, Any, expunge.Statistics]:
    data = load(CIFAR)
    spec = expunge.Spec(dim=1280, labels=tuple(range(10)))
    features, labels = data["train_features"], data["train_labels"]
    return spec, features, labels, expunge.Statistics.of(spec, features, labels)


@pytest.mark.parametrize(
    ("name", "expected"), ACCURACIES, ids=[name.split("_")[0] for name, _ in ACCURACIES]
)
def test_accuracy_is_that_of_central_ridge(name: str, expected: tuple[float, ...]) -> None:
    data = load(name)
    labels = int(data["train_labels"].max()) + 1
    spec = expunge.Spec(dim=data["train_features"].shape[1], labels=tuple(range(labels)))
    statistics = expunge.Statistics.of(spec, data["train_features"], data["train_labels"])
    for gamma, accuracy in zip((1.0, 10.0, 100.0), expected, strict=True):
        head = expunge.solve(statistics.under(spec.with_gamma(gamma)))
        assert float(
            (head.predict(data["test_features"]) == data["test_labels"]).mean()
        ) == pytest.approx(accuracy, abs=5.1e-4)


@pytest.mark.parametrize("variant", [expunge.CholeskySolver, expunge.WoodburySolver])
def test_two_hundred_deletions_and_adding_back(variant: type[expunge.CholeskySolver]) -> None:
    spec, features, labels, statistics = cifar()
    chosen = np.random.default_rng(1).choice(len(labels), 200, replace=False)
    solver = variant(spec, statistics)
    first = solver.head().digest
    assert first == expunge.solve(statistics).digest
    deleted = np.zeros(len(labels), dtype=bool)
    seen = {first}
    for step, row in enumerate(chosen, 1):
        solver.delete(features[row : row + 1], labels[row : row + 1])
        deleted[row] = True
        seen.add(solver.head().digest)
        if step in (1, 100, 200):
            retrained = expunge.Statistics.of(spec, features[~deleted], labels[~deleted])
            assert solver.statistics == retrained
            assert solver.head().digest == expunge.solve(retrained).digest
    assert len(seen) == 201  # every deletion showed
    for step, row in enumerate(chosen[::-1], 1):
        solver.add(features[row : row + 1], labels[row : row + 1])
        deleted[row] = False
        head = solver.head()
        if step in (1, 100):
            retrained = expunge.Statistics.of(spec, features[~deleted], labels[~deleted])
            assert head.digest == expunge.solve(retrained).digest
    assert solver.head().digest == first
    assert solver.statistics == statistics


def test_one_digest_for_every_split_order_batching_and_thread_count() -> None:
    spec, features, labels, statistics = cifar()
    order = np.random.default_rng(2).permutation(len(labels))
    owner = np.random.default_rng(3).integers(0, 100, len(labels))
    clients = sum(
        expunge.Statistics.of(spec, features[owner == k], labels[owner == k]) for k in range(100)
    )
    assert clients == statistics
    assert expunge.Statistics.of(spec, features[order], labels[order]) == statistics
    batches = (
        (features[start : start + 3333], labels[start : start + 3333])
        for start in range(0, len(labels), 3333)
    )
    assert expunge.Statistics.of(spec, batches) == statistics
    digests = set()
    for threads in (1, 2):
        with threadpool_limits(threads):
            digests.add(expunge.solve(expunge.Statistics.of(spec, features, labels)).digest)
    assert digests == {expunge.solve(statistics).digest}


def test_a_head_found_by_chunks_of_a_fifth() -> None:
    """The paper's chunked deletions: four of a fifth of the original data, and a fifth that leaves
    nothing.
    """
    spec, features, labels, statistics = cifar()
    chunks = np.array_split(np.random.default_rng(4).permutation(len(labels)), 5)
    solver = expunge.WoodburySolver(spec, statistics)
    for index, chunk in enumerate(chunks):
        solver.delete(features[chunk], labels[chunk])
        kept = np.concatenate(chunks[index + 1 :]) if index < 4 else np.zeros(0, dtype=np.int64)
        assert (
            solver.head().digest
            == expunge.solve(expunge.Statistics.of(spec, features[kept], labels[kept])).digest
        )
    assert solver.count == 0
    assert not solver.head().weights.any()
