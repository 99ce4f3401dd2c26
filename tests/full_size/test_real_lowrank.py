"""Frequent directions at rank 64 on the real CIFAR-10 features, at their full width."""

from __future__ import annotations

import numpy as np
import pytest

from expunge import Spec, Statistics, solve
from expunge.approximate import ApproximateLedger, Batch, compress
from support.cifar import Cifar

pytestmark = pytest.mark.data


def test_frequent_directions_save_five_times_the_bytes_and_keep_their_bound() -> None:
    cifar = Cifar()
    spec = Spec(dim=cifar.features.shape[1], labels=tuple(range(10)), gamma=100.0)
    features, labels = cifar.features[:5500], cifar.labels[:5500]
    start, change = (
        Statistics.of(spec, features[part], labels[part])
        for part in (slice(0, 5000), slice(5000, None))
    )
    message = compress(Batch.of(spec, features[5000:], labels[5000:]), "frequent_directions", 64)
    assert spec.width == 1281
    assert 5 * len(message.to_bytes()) <= len(change.to_bytes())
    ledger = ApproximateLedger.of(spec, [start])
    ledger.add(message)
    head, exact = ledger.head(), solve(start + change)
    deviation = float(np.linalg.norm(head.weights - exact.weights))
    assert 0.0 < deviation <= head.bounds.frobenius
    assert deviation <= 0.5 * float(np.linalg.norm(exact.weights))
    ledger.reset([change])
    assert float(np.linalg.norm(ledger.head().weights - exact.weights)) <= 1e-9
