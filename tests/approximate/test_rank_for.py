from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge import Spec, Statistics
from expunge.approximate import METHODS, ApproximateLedger, Batch, allowed_error, compress, rank_for
from expunge.errors import InputError

SPEC = Spec(dim=16, labels=(0, 1), gamma=2.0)
RNG = np.random.default_rng(0)
FEATURES, LABELS = RNG.normal(size=(40, 16)) * np.geomspace(3, 0.05, 16), RNG.integers(2, size=40)
BATCH = Batch.of(SPEC, FEATURES, LABELS)


@pytest.mark.parametrize("method", ["truncated", "randomized", "frequent_directions"])
@pytest.mark.parametrize("wanted", [100.0, 10.0, 1.0, 0.1])
def test_the_rank_is_the_smallest_that_will_do(method: str, wanted: float) -> None:
    message = rank_for(BATCH, method, wanted)
    assert message.error.norm <= wanted
    if message.rank > 1:
        assert compress(BATCH, method, message.rank - 1).error.norm > wanted


def test_more_is_wanted_at_a_higher_rank() -> None:
    ranks = [rank_for(BATCH, "truncated", wanted).rank for wanted in (500.0, 50.0, 5.0, 0.5)]
    assert ranks == sorted(ranks)
    assert len(set(ranks)) > 2


def test_projections_keep_what_they_find() -> None:
    assert rank_for(BATCH, "gaussian", 1e6).rank == 1
    with pytest.raises(InputError, match="no rank up to 17"):
        rank_for(BATCH, "gaussian", 1e-3)


def test_what_no_rank_can_give_is_refused() -> None:
    with pytest.raises(InputError, match="float64"):
        rank_for(BATCH, "truncated", 1e-9)
    assert rank_for(BATCH, "truncated", 1e-9, precision="float64").rank == 17
    with pytest.raises(InputError, match="exact statistics"):
        rank_for(BATCH, "truncated", 1e-30, precision="float64")
    for wanted in (0.0, -1.0, float("nan")):
        with pytest.raises(InputError, match="positive"):
            rank_for(BATCH, "truncated", wanted)
    with pytest.raises(InputError, match="positive"):
        allowed_error(0.1, 0.0, 1.0)


@given(deviation=st.floats(1e-6, 1e3), gamma=st.floats(1e-6, 1e6), norm=st.floats(1e-3, 1e3))
def test_the_allowed_error_is_where_the_bound_meets_the_wish(
    deviation: float, gamma: float, norm: float
) -> None:
    eps = allowed_error(deviation, gamma, norm)
    assert eps / np.sqrt(gamma * (gamma + eps)) * norm == pytest.approx(deviation, rel=1e-9)
    assert allowed_error(deviation, gamma, norm, sign=-1) / gamma * norm == pytest.approx(
        deviation, rel=1e-9
    )
    assert eps >= allowed_error(deviation, gamma, norm, sign=-1)


@pytest.mark.parametrize("method", ["truncated", "frequent_directions"])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("deviation", [3.0, 0.3, 0.01])
def test_a_wanted_head_is_had(method: str, sign: int, deviation: float) -> None:
    """From an exact ledger, one update of the chosen rank keeps the bound within the wish, measured
    by the new head's norm.
    """
    base = np.random.default_rng(1).normal(size=(60, 16))
    features, labels = np.concatenate([FEATURES, base]), np.concatenate([LABELS, np.arange(60) % 2])
    start = (features, labels) if sign < 0 else (base, labels[40:])
    ledger = ApproximateLedger.of(SPEC, [Statistics.of(SPEC, *start)])
    norm = float(np.linalg.norm(ledger.head().weights))
    eps = allowed_error(deviation, SPEC.gamma, norm, sign=sign)
    message = rank_for(BATCH, method, eps)
    (ledger.add if sign > 0 else ledger.delete)(message)
    head = ledger.head()
    assert (
        head.bounds.frobenius
        <= deviation * float(np.linalg.norm(head.weights)) / norm * 1.001 + 1e-9
    )
    assert method in METHODS
