"""Which sums may be unmasked one after another: no combination of them shows one client."""

from __future__ import annotations

from collections.abc import Callable, Set

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge.ridge.spec import Aggregation
from expunge.secagg import plan
from expunge.secagg.unmasking import Part, choose, may_follow

FEWEST = 3
RULES = Aggregation(fewest=FEWEST)
NAMES = tuple("abcdefgh")
Rule = Callable[[Set[Part], Set[Part]], bool]
subsets = st.sets(st.sampled_from(NAMES), min_size=FEWEST)


def parts(names: Set[str], number: int = 1) -> frozenset[Part]:
    return frozenset((name, number) for name in names)


def one_sum(earlier: Set[Part], proposed: Set[Part]) -> bool:
    return may_follow(earlier, proposed, gone=frozenset(), fewest=FEWEST)


def pairwise_apart(earlier: Set[Part], proposed: Set[Part]) -> bool:
    """The rule of version 1."""
    return earlier == proposed or len(earlier ^ proposed) >= FEWEST


def unmasked(asked: list[frozenset[Part]], rule: Rule) -> list[frozenset[Part]]:
    """The sums that a server gets which asks for these, one after another, and applies none."""
    agreed: dict[Part, list[frozenset[Part]]] = {}
    sums = []
    for proposed in asked:
        willing = [
            part
            for part in proposed
            if all(rule(earlier, proposed) for earlier in agreed.get(part, ()))
        ]
        for part in willing:
            agreed.setdefault(part, []).append(proposed)
        if len(willing) >= plan(RULES, len(proposed)).quorum:
            sums.append(proposed)
    return sums


def shown(sums: list[frozenset[Part]]) -> list[str]:
    """The clients whose part alone is a combination of these sums."""
    if not sums:
        return []
    rows = np.array([[(name, 1) in one for name in NAMES] for one in sums], dtype=float)
    rank = np.linalg.matrix_rank(rows)
    units = zip(NAMES, np.eye(len(NAMES)), strict=True)
    return [name for name, unit in units if np.linalg.matrix_rank([*rows, unit]) == rank]


@given(st.lists(subsets, max_size=12))
def test_no_combination_of_sums_shows_a_client(asked: list[set[str]]) -> None:
    assert shown(unmasked([parts(names) for names in asked], one_sum)) == []


def test_pairs_of_sums_that_are_apart_do_not_protect() -> None:
    asked = [parts(set(names)) for names in ("abc", "def", "abcdefg")]
    assert shown(unmasked(asked, pairwise_apart)) == ["g"]
    assert unmasked(asked, one_sum) == asked[:2]


@given(subsets, subsets, st.sets(st.sampled_from(NAMES)))
def test_what_follows_is_the_same_sum_without_those_that_left(
    earlier: set[str], proposed: set[str], gone: set[str]
) -> None:
    rest = earlier - gone
    expected = (
        proposed == rest
        if len(rest) >= FEWEST
        else rest < proposed and len(proposed - rest) >= FEWEST
    )
    assert may_follow(parts(earlier), parts(proposed), gone=gone, fewest=FEWEST) == expected


@given(subsets, st.lists(subsets, max_size=4), st.sets(st.sampled_from(NAMES)))
def test_those_chosen_may_all_agree(
    joined: set[str], attempts: list[set[str]], gone: set[str]
) -> None:
    """Whatever was attempted before, where attempts have nobody in common."""
    apart: list[set[str]] = []
    for attempt in attempts:
        if all(attempt.isdisjoint(other) for other in apart):
            apart.append(attempt)
    present = parts(joined - gone)
    chosen = choose(present, [parts(one) for one in apart], gone=gone, fewest=FEWEST)
    assert chosen <= present
    if len(chosen) < FEWEST:
        return
    for attempt in apart:
        if chosen & parts(attempt - gone):
            assert may_follow(parts(attempt), chosen, gone=gone, fewest=FEWEST)


@pytest.mark.parametrize(
    ("joined", "attempts", "expected"),
    [
        ("abcdef", ["abc"], "abc"),  # the same sum again, though more have joined
        ("abdefg", ["abc"], "defg"),  # c is away: the others go on
        ("abde", ["abc"], "de"),  # and are too few
        ("abcdef", ["xyz", "def"], "def"),
        ("abcdef", [], "abcdef"),
        ("abcdef", ["abz"], "abcdef"),  # z has left: a and b hide among enough others
        ("abcd", ["abz"], "cd"),
        # a and b would need three others by the first sum, and just c and d by the second
        ("abcdefg", ["abz", "abcdz"], "efg"),
    ],
)
def test_what_is_chosen(joined: str, attempts: list[str], expected: str) -> None:
    chosen = choose(
        parts(set(joined)), [parts(set(one)) for one in attempts], gone={"z"}, fewest=FEWEST
    )
    assert chosen == parts(set(expected))


def test_those_that_are_free_have_their_turn() -> None:
    """So that a round that always fails does not hold up others."""
    joined, attempts = parts(set("abcdef")), [parts(set("abc"))]
    arguments = {"gone": frozenset[str](), "fewest": FEWEST}
    assert choose(joined, attempts, repeat=True, **arguments) == attempts[0]
    assert choose(joined, attempts, repeat=False, **arguments) == parts(set("def"))
    assert choose(parts(set("abcd")), attempts, repeat=False, **arguments) == attempts[0]
