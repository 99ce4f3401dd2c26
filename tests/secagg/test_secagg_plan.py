"""Degree and threshold: the smallest that the rules allow, by formulas that are held against chance
itself.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge.errors import InputError
from expunge.ridge.spec import Aggregation
from expunge.secagg import Plan, plan
from expunge.secagg.plan import completion_failure, security_failure, share_of, tails


def exact_tail(others: int, marked: int, degree: int, x: int) -> Fraction:
    ways = sum(
        math.comb(marked, hit) * math.comb(others - marked, degree - hit)
        for hit in range(x, degree + 1)
    )
    return Fraction(ways, math.comb(others, degree))


@given(st.data())
def test_tails_are_the_exact_ones_rounded_up(data: st.DataObject) -> None:
    others = data.draw(st.integers(1, 60))
    marked, degree = data.draw(st.integers(0, others)), data.draw(st.integers(1, others))
    found = tails(others, marked, degree)
    assert len(found) == degree + 1
    for x, chance in enumerate(found):
        exact = exact_tail(others, marked, degree, x)
        assert exact <= Fraction(chance) <= min(Fraction(1), exact * (1 + Fraction(1, 10**30)))


def test_the_degree_grows_as_the_logarithm() -> None:
    rules = Aggregation(dropouts=10, colluding=5)
    degrees = [plan(rules, 10**power).degree for power in (3, 4, 5, 6)]
    assert degrees == sorted(degrees)
    assert degrees[-1] < 120
    steps = np.diff(degrees)  # each factor of ten costs the same few neighbours, or fewer
    assert steps.max() <= 25
    assert steps.min() >= 5


@pytest.mark.parametrize(
    "rules",
    [
        Aggregation(),
        Aggregation(dropouts=20, colluding=5),
        Aggregation(security_bits=3, completion_bits=3),
    ],
)
@pytest.mark.parametrize("clients", [129, 300, 1000])
def test_a_plan_keeps_both_promises_and_no_smaller_degree_does(
    rules: Aggregation, clients: int
) -> None:
    found = plan(rules, clients)
    dropped, colluding = share_of(rules.dropouts, clients), share_of(rules.colluding, clients)

    def keeps(degree: int, threshold: int) -> bool:
        completes = completion_failure(clients, degree, threshold, dropped) <= Fraction(
            1, 2**rules.completion_bits
        )
        failure = security_failure(clients, degree, threshold, dropped, colluding)
        return bool(completes and failure <= Fraction(1, 2**rules.security_bits))

    assert found.survivors == clients - dropped > found.quorum
    assert found.colluders == colluding
    assert keeps(found.degree, found.threshold)
    assert not keeps(found.degree, found.threshold + 1)
    assert not any(keeps(found.degree - 2, threshold) for threshold in range(1, found.degree))


def plain_plan(rules: Aggregation, clients: int) -> tuple[int, int]:
    """Degree and threshold beyond 128 clients by trying all of them; (0, 0) if none of up to 512
    neighbours will do.
    """
    dropped, colluding = share_of(rules.dropouts, clients), share_of(rules.colluding, clients)
    completes = Fraction(1, 2**rules.completion_bits)
    is_safe = Fraction(1, 2**rules.security_bits)
    for degree in range(2, min(clients - 1, 513), 2):
        for threshold in range(degree, 0, -1):
            if completion_failure(clients, degree, threshold, dropped) <= completes:
                if security_failure(clients, degree, threshold, dropped, colluding) <= is_safe:
                    return degree, threshold
                break
    return 0, 0


@pytest.mark.parametrize("clients", [129, 130, 163, 211])
@pytest.mark.parametrize(
    "rules",
    [
        Aggregation(),
        Aggregation(dropouts=20, colluding=5),
        Aggregation(dropouts=0, colluding=10),
        Aggregation(dropouts=10, colluding=0),
        Aggregation(dropouts=5, colluding=60),
        Aggregation(dropouts=40, colluding=15),
        Aggregation(security_bits=128, completion_bits=1),
        Aggregation(security_bits=1, completion_bits=128),
    ],
)
def test_the_plan_is_that_of_trying_all_degrees_and_thresholds(
    rules: Aggregation, clients: int
) -> None:
    found, (degree, threshold) = plan(rules, clients), plain_plan(rules, clients)
    if degree:
        assert (found.degree, found.threshold) == (degree, threshold)
    else:
        assert found.degree == clients - 1


@pytest.mark.parametrize(
    ("dropouts", "colluding", "clients", "expected"),
    [
        (30, 10, 300, Plan(182, 107, 166, 210, 30)),
        (30, 10, 1000, Plan(410, 245, 551, 700, 100)),
        (30, 10, 2000, Plan(552, 330, 1101, 1400, 200)),
        (30, 10, 20000, Plan(828, 495, 11001, 14000, 2000)),
        (20, 5, 1000, Plan(150, 92, 526, 800, 50)),
        (20, 5, 20000, Plan(208, 127, 10501, 16000, 1000)),
        (10, 5, 2000, Plan(82, 55, 1051, 1800, 100)),
        (30, 20, 1000, Plan(640, 408, 601, 700, 200)),
        (40, 10, 2000, Plan(1522, 858, 1101, 1200, 200)),
        (5, 60, 1000, Plan(318, 283, 801, 950, 600)),
        (0, 0, 2000, Plan(2, 2, 1001, 2000, 0)),
    ],
)
def test_plans_of_large_rounds_stay_what_they_were(
    dropouts: int, colluding: int, clients: int, expected: Plan
) -> None:
    assert plan(Aggregation(dropouts=dropouts, colluding=colluding), clients) == expected


def test_few_degrees_of_a_large_round_are_computed_in_decimals() -> None:
    """Most are passed over by float64, at a small part of the time."""
    plan.cache_clear()
    tails.cache_clear()
    plan(Aggregation(), 1000)
    assert tails.cache_info().misses <= 9


@pytest.mark.parametrize(
    ("clients", "expected"),
    [
        (
            2,
            Plan(degree=1, threshold=2, quorum=2, survivors=2, colluders=1),
        ),  # each of two knows the other's part from the sum anyway
        (3, Plan(degree=2, threshold=3, quorum=3, survivors=3, colluders=1)),
        (4, Plan(degree=3, threshold=3, quorum=3, survivors=3, colluders=1)),
        (5, Plan(degree=4, threshold=4, quorum=4, survivors=4, colluders=1)),
        (8, Plan(degree=7, threshold=5, quorum=5, survivors=5, colluders=1)),
        (100, Plan(degree=99, threshold=70, quorum=56, survivors=70, colluders=10)),
        (128, Plan(degree=127, threshold=89, quorum=71, survivors=89, colluders=13)),
    ],
)
def test_up_to_128_clients_all_mask_with_one_another(clients: int, expected: Plan) -> None:
    assert plan(Aggregation(fewest=2), clients) == expected


@given(st.integers(2, 140), st.integers(0, 60), st.integers(0, 39))
def test_every_plan_has_the_threshold_and_the_quorum_against_a_server_that_lies(
    clients: int, dropouts: int, colluding: int
) -> None:
    rules = Aggregation(dropouts=dropouts, colluding=colluding)
    found = plan(rules, clients)
    colluders = min(clients - 1, share_of(colluding, clients))
    assert found.degree == clients - 1 or (clients > 128 and found.degree % 2 == 0)
    # Two lists of survivors with a quorum each have an honest signer in common.
    assert 2 * found.quorum - clients > colluders == found.colluders
    assert found.quorum <= found.survivors or clients < rules.fewest
    assert found.survivors >= max(rules.fewest, clients - share_of(dropouts, clients))
    if found.degree == clients - 1:
        assert 2 * found.threshold > found.degree + 1 + colluders
        assert found.threshold <= found.survivors
    assert found.threshold <= found.degree + 1


def test_harsh_rules_end_in_the_complete_graph_or_near_it() -> None:
    assert plan(Aggregation(dropouts=60, colluding=39), 300) == Plan(
        degree=299, threshold=209, quorum=209, survivors=209, colluders=117
    )
    assert 512 < plan(Aggregation(dropouts=30, colluding=20), 3000).degree < 2999


def test_one_client_is_no_round() -> None:
    with pytest.raises(InputError, match="two at least"):
        plan(Aggregation(), 1)


# -- chance itself ---------------------------------------------------------------------------------


def neighbourhood(clients: int, degree: int) -> np.ndarray:
    """Who neighbours whom on the ring."""
    apart = np.abs(np.subtract.outer(np.arange(clients), np.arange(clients)))
    apart = np.minimum(apart, clients - apart)
    return (apart > 0) & (apart <= degree // 2)


def connected(near: np.ndarray, alive: np.ndarray) -> bool:
    reached = np.zeros_like(alive)
    reached[np.flatnonzero(alive)[:1]] = True
    while True:
        more = (near[:, reached].any(axis=1) | reached) & alive
        if (more == reached).all():
            return bool((reached == alive).all())
        reached = more


def draws(
    clients: int, dropped: int, colluding: int, trials: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(20200923)
    found = []
    for _ in range(trials):
        order = rng.permutation(clients)
        out, bad = np.zeros(clients, dtype=bool), np.zeros(clients, dtype=bool)
        out[order[:dropped]] = True
        bad[order[dropped : dropped + colluding]] = True
        found.append((out, bad))
    return found


def test_the_formulas_count_what_chance_does() -> None:
    clients, degree, threshold, dropped, colluding, trials = 30, 6, 4, 9, 6, 4000
    excess = 2 * threshold - degree - 1  # colluding neighbours with whom the threshold is too low
    near = neighbourhood(clients, degree)
    lacking, opened, parted = [], [], []
    for out, bad in draws(clients, dropped, colluding, trials):
        holders = (near & ~out).sum(axis=1) + ~out
        lacking.append((holders < threshold).sum())
        opened.append(((near & bad).sum(axis=1) >= excess)[~bad].sum())
        parted.append(not connected(near, ~out & ~bad))
    expected = [
        float(completion_failure(clients, degree, threshold, dropped)),
        (clients - colluding) * float(exact_tail(clients - 1, colluding, degree, excess)),
    ]
    for counts, mean in zip(
        (lacking, opened), expected, strict=True
    ):  # union bounds are expected numbers, which are exact
        assert abs(np.mean(counts) - mean) < 5 * np.std(counts) / math.sqrt(trials)
    bound = float(security_failure(clients, degree, degree + 1, dropped, colluding))
    assert 0 < np.mean(parted) < bound


def test_a_plan_of_few_bits_fails_as_seldom_as_it_promises() -> None:
    rules, clients, trials = Aggregation(security_bits=3, completion_bits=3), 150, 1500
    found = plan(rules, clients)
    near = neighbourhood(clients, found.degree)
    stuck = learnt = 0
    for out, bad in draws(clients, share_of(30, clients), share_of(10, clients), trials):
        stuck += bool(((near & ~out).sum(axis=1) + ~out < found.threshold).any())
        excess = 2 * found.threshold - found.degree - 1
        opened = ((near & bad).sum(axis=1) >= excess)[~bad].any()
        learnt += bool(opened or not connected(near, ~out & ~bad))
    most = trials / 8 + 4 * math.sqrt(trials / 8)
    assert 0 < stuck < most
    assert learnt < most
