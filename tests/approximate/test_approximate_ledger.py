from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge import Spec, Statistics, solve
from expunge.approximate import ApproximateLedger, ApproximateMessage, Batch, Interval, compress
from expunge.errors import ImpossibleDeletionError, InputError, NotAGramError, SpecMismatchError
from support.approximate import facts, sums_of

SPEC = Spec(dim=12, labels=(0, 1, 2), gamma=0.5)


class Client:
    """Samples that a client has added since the last reset, and what it says about them."""

    def __init__(self, seed: int, count: int = 20) -> None:
        rng = np.random.default_rng(seed)
        self.features, self.labels = rng.normal(size=(count, 12)), rng.integers(3, size=count)

    def message(
        self, part: slice = slice(None), rank: int = 4, method: str = "truncated"
    ) -> ApproximateMessage:
        return compress(Batch.of(SPEC, self.features[part], self.labels[part]), method, rank)

    def statistics(self, part: slice = slice(None)) -> Statistics:
        return Statistics.of(SPEC, self.features[part], self.labels[part])


def test_a_reset_leaves_only_the_rounding_of_float64() -> None:
    clients = [Client(seed) for seed in range(3)]
    ledger = ApproximateLedger(SPEC)
    for client in clients:
        ledger.add(client.message())
    rough = ledger.head().bounds
    ledger.reset([client.statistics() for client in clients])
    head = ledger.head()
    assert rough.frobenius > 0.1
    assert head.bounds.frobenius < 1e-9
    exact = solve(sum((client.statistics() for client in clients), Statistics.zero(SPEC)))
    assert np.linalg.norm(
        head.weights - exact.weights
    ) <= head.bounds.frobenius + 2.0**-41 * np.sqrt(exact.weights.size)
    assert (head.predict(clients[0].features) == exact.predict(clients[0].features)).all()


@given(seed=st.integers(0, 2**32 - 1), cycles=st.integers(1, 4))
def test_changes_since_the_last_reset_are_enough(seed: int, cycles: int) -> None:
    """However many resets there were, the ledger afterwards is that of the retained samples, and
    its error stays tiny.
    """
    rng = np.random.default_rng(seed)
    ledger, total = ApproximateLedger(SPEC), Statistics.zero(SPEC)
    client = Client(seed, 80)
    for cycle in range(cycles):
        added, gone = (
            slice(20 * cycle, 20 * cycle + 20),
            slice(20 * cycle, 20 * cycle + int(rng.integers(1, 20))),
        )
        ledger.add(client.message(added, 20))
        ledger.delete(client.message(gone, 20))
        change = client.statistics(added) - client.statistics(gone)
        total = total + change
        ledger.reset([change])
        assert ledger.count == total.count
        assert np.allclose(
            np.triu(sums_of(ledger).gram), np.triu(total.gram_float()), rtol=0, atol=1e-11
        )
        assert ledger.error.norm < 1e-11
    weights = solve(total).weights
    assert np.linalg.norm(ledger.head().weights - weights) <= ledger.head().bounds.frobenius + 1e-10


def test_a_ledger_may_begin_with_exact_statistics() -> None:
    clients = [Client(1), Client(2)]
    begun = ApproximateLedger.of(SPEC, [client.statistics() for client in clients], reset_every=3)
    reset = ApproximateLedger(SPEC, reset_every=3)
    for client in clients:
        reset.add(client.message())
    reset.reset([client.statistics() for client in clients])
    assert facts(begun)[:-1] == facts(reset)[:-1]
    assert begun.traffic.reset_bytes == reset.traffic.reset_bytes > 0
    assert not begun.reset_due


def test_every_byte_is_counted() -> None:
    ledger = ApproximateLedger(SPEC)
    clients = [Client(1), Client(2)]
    messages = [client.message(rank=rank) for client, rank in zip(clients, (3, 7), strict=True)]
    for message in messages:
        ledger.add(message)
    assert ledger.traffic.message_bytes == sum(len(message.to_bytes()) for message in messages)
    assert ledger.traffic.messages == 2
    assert ledger.traffic.reset_bytes == 0
    statistics = [client.statistics() for client in clients]
    ledger.reset(statistics)
    assert ledger.traffic.reset_bytes == sum(len(one.to_bytes()) for one in statistics)
    assert (ledger.traffic.resets, ledger.traffic.statistics) == (1, 2)
    assert ledger.traffic.total_bytes == ledger.traffic.message_bytes + ledger.traffic.reset_bytes


def test_resets_are_due_after_so_many_requests() -> None:
    ledger, client = ApproximateLedger(SPEC, reset_every=2), Client(3)
    assert not ledger.reset_due
    ledger.add(client.message(slice(0, 10)))
    assert not ledger.reset_due
    ledger.add(client.message(slice(10, 20)))
    assert ledger.reset_due
    ledger.reset([client.statistics()])
    assert not ledger.reset_due


def test_resets_are_due_when_the_bound_is_exceeded() -> None:
    client = Client(4)
    bound = _bound(client)
    for above, due in ((bound * 1.01, False), (bound * 0.99, True)):
        ledger = ApproximateLedger(SPEC, reset_above=above)
        ledger.add(client.message())
        assert ledger.reset_due is due
    ledger.reset([client.statistics()])
    assert not ledger.reset_due
    assert not ApproximateLedger(SPEC).reset_due


def _bound(client: Client) -> float:
    ledger = ApproximateLedger(SPEC)
    ledger.add(client.message())
    return ledger.head().bounds.frobenius


def test_a_deletion_that_leaves_no_positive_definite_system_is_refused() -> None:
    """Approximate additions may bring less in some direction than a later deletion takes away."""
    ledger, client = ApproximateLedger(SPEC), Client(5)
    ledger.add(client.message(rank=1))
    before = facts(ledger)
    with pytest.raises(NotAGramError, match=r"(?s)nothing was deleted.*Reset"):
        ledger.delete(client.message(slice(0, 10), rank=10))
    assert facts(ledger) == before
    ledger.reset([client.statistics()])
    ledger.delete(client.message(slice(0, 10), rank=10))
    assert ledger.count == 10


@pytest.mark.parametrize("method", ["truncated", "randomized", "frequent_directions"])
def test_after_a_reset_deletions_by_low_rank_are_feasible(method: str) -> None:
    """They take away no more than the truth, so S_ap stays above what is left."""
    ledger, client = ApproximateLedger(SPEC), Client(6, 40)
    ledger.add(client.message())
    ledger.reset([client.statistics()])
    for start in range(0, 40, 8):
        ledger.delete(client.message(slice(start, start + 8), 3, method))
        assert ledger.head().bounds.error.above < 1e-3
    assert ledger.count == 0


def test_the_zero_ledger_has_the_zero_head() -> None:
    head = ApproximateLedger(SPEC).head()
    assert not head.weights.any()
    assert head.bounds.frobenius == pytest.approx(0.0, abs=1e-200)
    assert head.bounds.floor == pytest.approx(0.5, rel=1e-3)


def test_impossible_counts_are_refused() -> None:
    ledger, client = ApproximateLedger(SPEC), Client(7)
    ledger.add(client.message(slice(0, 5)))
    before = facts(ledger)
    with pytest.raises(ImpossibleDeletionError, match="nothing was deleted"):
        ledger.delete(client.message())
    assert facts(ledger) == before


def test_other_specs_are_refused() -> None:
    ledger = ApproximateLedger(SPEC)
    other = Spec(dim=12, labels=(0, 1, 2), backbone="another")
    client = Client(8)
    message = compress(Batch.of(other, client.features, client.labels), "truncated", 2)
    with pytest.raises(SpecMismatchError):
        ledger.add(message)
    with pytest.raises(SpecMismatchError):
        ledger.reset([Statistics.zero(other)])


def test_statistics_that_are_not_those_of_the_messages_are_refused() -> None:
    ledger, client = ApproximateLedger(SPEC), Client(9)
    ledger.add(client.message())
    before = facts(ledger)
    shuffled = Statistics.of(SPEC, client.features[::-1], client.labels)
    for wrong, told in (
        ([], "leave 0 samples"),
        ([client.statistics(slice(0, 19))], "leave 19 samples"),
        ([shuffled], "moment"),
    ):
        with pytest.raises(InputError, match=told):
            ledger.reset(wrong)
        assert facts(ledger) == before


def test_a_false_bound_is_found_at_the_reset() -> None:
    ledger, client = ApproximateLedger(SPEC), Client(10)
    true = client.message(rank=1)
    parts = (true.moment, true.count, true.class_counts)
    ledger.add(
        ApproximateMessage(
            SPEC, true.method, true.factor, *parts, Interval(0.0, 1e-3), true.moment_error
        )
    )
    with pytest.raises(InputError, match="bound was false"):
        ledger.reset([client.statistics()])


def test_bad_settings_are_refused() -> None:
    for settings in ({"reset_every": 0}, {"reset_above": 0.0}, {"reset_above": float("nan")}):
        with pytest.raises(InputError):
            ApproximateLedger(SPEC, **settings)
