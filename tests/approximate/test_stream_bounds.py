"""Streams of approximate updates: after every one, the head's true error is below each of its
printed bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest

from expunge import Spec
from expunge.approximate import (
    METHODS,
    ApproximateHead,
    ApproximateLedger,
    ApproximateMessage,
    Batch,
    compress,
)
from expunge.errors import NotAGramError
from support.approximate import Long, batch_of, exact_weights, extremes, long_gram, spec_of, sums_of

UPDATES = 500
SEEDS = 9


@dataclass
class Truth:
    """What is retained, in extended precision."""

    spec: Spec
    gram: Long = field(init=False)
    moment: Long = field(init=False)

    def __post_init__(self) -> None:
        self.gram = np.zeros((self.spec.width, self.spec.width), dtype=np.longdouble)
        self.moment = np.zeros((self.spec.width, self.spec.columns), dtype=np.longdouble)

    def change(self, batch: Batch, sign: int) -> None:
        self.gram = self.gram + sign * long_gram(batch.features)
        features, targets = (
            batch.features.astype(np.longdouble),
            batch.targets.astype(np.longdouble),
        )
        self.moment = self.moment + sign * np.einsum("ki,kj->ij", features, targets)


def check(ledger: ApproximateLedger, head: ApproximateHead, truth: Truth) -> None:
    upper = np.triu(sums_of(ledger).gram)
    approximate = (upper + np.triu(upper, 1).T).astype(np.longdouble)
    low, high = extremes(truth.gram - approximate)
    bounds = head.bounds
    assert -bounds.error.below <= low
    assert high <= bounds.error.above
    missed = exact_weights(truth.gram, truth.moment, head.gamma) - head.weights
    assert float(np.sqrt(np.square(missed).sum())) <= bounds.frobenius
    spectral = float(np.linalg.norm(missed.astype(np.float64), 2))
    assert spectral * (1 - 1e-12) <= bounds.spectral
    assert bounds.spectral <= bounds.paper_spectral * (1 + 1e-9)
    assert bounds.inverse <= bounds.paper_inverse * (1 + 1e-9)
    identity = np.eye(len(upper))
    systems = [
        (one + np.longdouble(head.gamma) * identity).astype(np.float64)
        for one in (truth.gram, approximate)
    ]
    values = np.linalg.eigvalsh(systems[1])
    conditioning = (
        1e-14 * float(values[-1]) / min(float(values[0]), head.gamma) ** 2
    )  # of computing the inverses for this test
    assert bounds.floor <= float(values[0]) + 1e-14 * float(values[-1])
    inverses = [np.linalg.inv(system) for system in systems]
    assert np.linalg.norm(inverses[0] - inverses[1], 2) <= bounds.inverse + conditioning


def update(
    ledger: ApproximateLedger, truth: Truth, retained: list[Batch], rng: np.random.Generator
) -> tuple[ApproximateMessage, bool]:
    """Add a batch, delete one, or delete some rows of one: the message, and whether it was
    refused.
    """
    deletes = bool(retained) and rng.random() < 0.4
    batch = retained[int(rng.integers(len(retained)))] if deletes else batch_of(ledger.spec, rng)
    rest = None
    if deletes and len(batch) > 1 and rng.random() < 0.5:
        cut = int(rng.integers(1, len(batch)))
        rest, batch_part = _cut(batch, slice(cut, None)), _cut(batch, slice(0, cut))
    else:
        batch_part = batch
    method = list(METHODS)[int(rng.integers(len(METHODS)))]
    precision = ("float32", "float64")[int(rng.integers(2))]
    message = compress(
        batch_part,
        method,
        int(rng.integers(1, 12)),
        seed=int(rng.integers(2**31)),
        precision=precision,
    )
    try:
        (ledger.delete if deletes else ledger.add)(message)
    except NotAGramError:
        return message, True
    truth.change(batch_part, -1 if deletes else 1)
    if deletes:
        retained[:] = [one for one in retained if one is not batch]
        retained += [] if rest is None else [rest]
    else:
        retained.append(batch)
    return message, False


def _cut(batch: Batch, part: slice) -> Batch:
    labels = batch.targets[part].argmax(axis=1)
    return Batch.of(batch.spec, batch.features[part, : batch.spec.dim], labels)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_true_deviation_lies_below_every_bound(seed: int) -> None:
    rng = np.random.default_rng([seed, 77])
    heads = refused = finite = 0
    while heads < UPDATES:
        spec = spec_of(rng)
        ledger, truth, retained = ApproximateLedger(spec), Truth(spec), list[Batch]()
        for _ in range(20):
            _, infeasible = update(ledger, truth, retained, rng)
            refused += infeasible
            head = ledger.head()
            check(ledger, head, truth)
            heads += 1
            finite += math.isfinite(head.bounds.paper_spectral)
    assert refused > 0  # the stream does meet deletions that approximation makes infeasible
    assert heads // 10 < finite < heads  # and the paper's premise sometimes holds, sometimes not


def test_other_gammas_have_bounds_of_their_own() -> None:
    rng = np.random.default_rng(9)
    spec = Spec(dim=6, labels=(0, 1, 2), gamma=1.0)
    ledger, truth, retained = ApproximateLedger(spec), Truth(spec), list[Batch]()
    for _ in range(10):
        update(ledger, truth, retained, rng)
    frobenius = []
    for gamma in (1.0, 10.0, 1000.0):
        head = ledger.head(gamma)
        check(ledger, head, truth)
        frobenius.append(head.bounds.frobenius)
    assert frobenius[0] > frobenius[1] > frobenius[2]
