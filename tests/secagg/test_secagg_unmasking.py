"""Which sums may be unmasked one after another: no combination of them shows one client."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge.ridge.spec import Aggregation
from expunge.secagg import plan
from expunge.secagg.plan import share_of
from expunge.secagg.unmasking import (
    MOST_UNEXPLAINED,
    AgreedSum,
    Decision,
    Narrowed,
    Part,
    choose,
    covering_quorum,
    follows,
    hides_enough,
    may_follow,
    narrowed,
    remaining,
    rows,
    unexplained,
    without_silent,
)

FEWEST = 3
RULES = Aggregation(fewest=FEWEST)
NAMES = tuple("abcdefgh")
Rule = Callable[[Set[Part], Set[Part]], bool]
subsets = st.sets(st.sampled_from(NAMES), min_size=FEWEST)


def parts(names: Set[str], number: int = 1) -> frozenset[Part]:
    return frozenset((name, number) for name in names)


def one_sum(earlier: Set[Part], proposed: Set[Part]) -> bool:
    return may_follow(AgreedSum(frozenset(earlier)), earlier, proposed, fewest=FEWEST)


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


some = st.sets(st.sampled_from(NAMES))


@given(subsets, subsets, some, st.tuples(some, some, some))
def test_what_follows_is_the_same_sum_without_those_that_left(
    earlier: set[str], proposed: set[str], gone: set[str], exposed: tuple[set[str], ...]
) -> None:
    """Or what is left of it, if that is few, with enough others that were not in it, and that are
    not exposed; what was exposed when it was agreed to says whether it is few.
    """
    (before, marked, shown), rest = exposed, earlier - gone
    is_covered = len(proposed - earlier - marked - shown) >= FEWEST
    is_apart = not (proposed & earlier) - rest - marked
    expected = (
        proposed == rest
        if len(rest - before) >= FEWEST
        else rest < proposed and is_apart and is_covered
    )
    assert expected == may_follow(
        AgreedSum(parts(earlier), parts(before)),
        parts(rest),
        parts(proposed),
        fewest=FEWEST,
        marked=parts(marked),
        shown=parts(shown),
    )


@given(subsets, some, some, st.integers(0, 30))
def test_those_that_must_agree_are_enough_without_the_exposed(
    roster: set[str], marked: set[str], shown: set[str], colluding: int
) -> None:
    """A server that says of more clients that they were shown gets no sum that it would not get
    otherwise; without exposed clients, the quorum is that of the plan.
    """
    rules, everybody = Aggregation(fewest=FEWEST, colluding=colluding), parts(roster)
    needed = covering_quorum(everybody, rules, parts(marked))
    assert 2 * needed > len(roster - marked) + share_of(colluding, len(roster))
    assert covering_quorum(everybody, rules, frozenset()) == plan(rules, len(roster)).quorum
    hides = hides_enough(everybody, everybody, rules, marked=parts(marked), shown=parts(shown))
    assert hides == (len(roster - marked - shown) >= max(FEWEST, needed))


@given(subsets, st.lists(subsets, max_size=4), some, some, some)
def test_those_chosen_may_all_agree(
    joined: set[str], attempts: list[set[str]], gone: set[str], odd: set[str], marked: set[str]
) -> None:
    """Whatever was attempted before, where attempts have nobody in common, and whoever says to be
    exposed now, or said so then.
    """
    apart: list[set[str]] = []
    for attempt in attempts:
        if all(attempt.isdisjoint(other) for other in apart):
            apart.append(attempt)
    present = parts(joined - gone)
    few = {name for one in apart if len(one - gone) < FEWEST for name in one}
    exposed = parts(few | odd)
    sums = [AgreedSum(parts(one), parts(one & marked)) for one in apart]
    chosen = choose(present, sums, gone=gone, rules=RULES, exposed=exposed)
    assert chosen <= present
    for attempt in sums:
        if chosen & remaining(attempt.parts, gone):
            assert follows(attempt, chosen, gone=gone, rules=RULES, exposed=exposed)
    if chosen and all(chosen != parts(one - gone) for one in apart):
        assert hides_enough(chosen, chosen, RULES, marked=exposed)


@pytest.mark.parametrize(
    ("joined", "attempts", "expected"),
    [
        ("abcdef", ["abc"], "abc"),  # the same sum again, though more have joined
        ("abdefg", ["abc"], "defg"),  # c is away: the others go on
        ("abde", ["abc"], ""),  # and are too few
        ("abcdef", ["xyz", "def"], "def"),
        ("abcdef", [], "abcdef"),
        ("abcdef", ["abz"], "abcdef"),  # z has left: a and b hide among enough others
        ("abcd", ["abz"], ""),
        ("abcdefg", ["abz", "cdz"], "abcdefg"),
        ("abcdef", ["abz", "cdz"], ""),  # neither hides the other, nor e and f
        # c and d were hidden by z in the second sum, since a and b were exposed: all four are few
        ("abcdefg", ["abz", "abcdz"], "abcdefg"),
    ],
)
def test_what_is_chosen(joined: str, attempts: list[str], expected: str) -> None:
    few = {name for one in attempts if "z" in one and len(one) <= FEWEST for name in one}
    chosen = choose(
        parts(set(joined)),
        [AgreedSum(parts(set(one)), parts(few & set(one))) for one in attempts],
        gone={"z"},
        rules=RULES,
        exposed=parts(few),
    )
    assert chosen == parts(set(expected))


def test_those_that_are_free_have_their_turn() -> None:
    """So that a round that always fails does not hold up others."""
    joined, attempts = parts(set("abcdef")), [AgreedSum(parts(set("abc")))]
    nobody = frozenset[str]()
    assert choose(joined, attempts, gone=nobody, rules=RULES) == attempts[0].parts
    free = choose(joined, attempts, gone=nobody, rules=RULES, repeat=False)
    assert free == parts(set("def"))
    four = parts(set("abcd"))
    assert choose(four, attempts, gone=nobody, rules=RULES, repeat=False) == attempts[0].parts


# -- false sums ------------------------------------------------------------------------------------

ROUND = "0123456789abcdef0123456789abcdef"
some_rules = st.builds(Aggregation, fewest=st.integers(2, 6), colluding=st.integers(0, 30))


def parts_of(count: int) -> frozenset[Part]:
    return frozenset((f"c{number}", 1 + number % 3) for number in range(count))


def voided(
    everybody: frozenset[Part],
    round_id: str = ROUND,
    *,
    unsigned: Set[str] = frozenset(),
    size: int | None = None,
) -> Decision:
    """A sum that was false, to which all but some have agreed."""
    signers = frozenset(name for name, _ in everybody if name not in unsigned)
    return Decision("voided", round_id, everybody, signers=signers, size=size or len(everybody))


def names_of(everybody: Set[Part]) -> frozenset[str]:
    return frozenset(name for name, _ in everybody)


@given(st.data(), st.integers(2, 60), some_rules)
def test_rows_are_a_partition_into_rows_that_hide_their_clients(
    data: st.DataObject, count: int, rules: Aggregation
) -> None:
    """Even if all that collude are in one row, `fewest` others are in it that signed the sum, and
    so agree to nothing else.
    """
    everybody = parts_of(count)
    unsigned = data.draw(st.sets(st.sampled_from(sorted(names_of(everybody)))))
    decision = voided(everybody, unsigned=unsigned)
    cut = rows(decision, rules)
    assert sorted(part for row in cut for part in row) == sorted(everybody)
    smallest = rules.fewest + share_of(rules.colluding, count)
    if len(cut) > 1:
        assert min(len(names_of(row) & decision.signers) for row in cut) >= smallest
    assert max(map(len, cut)) - min(map(len, cut)) <= 1
    assert len(decision.signers) < (len(cut) + 1) * smallest


@given(st.data(), st.integers(3, 40), some_rules)
def test_whatever_is_added_and_subtracted_hides_honest_clients(
    data: st.DataObject, count: int, rules: Aggregation
) -> None:
    """The sums that can be unmasked after a false one, as often as rows are false, tell apart no
    set of fewer than `fewest` honest clients; nor do sums to which those have agreed that never
    signed the false one. (As many as may collude lie.)
    """
    everybody = parts_of(count)
    most = share_of(rules.colluding, count)
    liars = data.draw(st.sets(st.sampled_from(sorted(everybody)), max_size=most))
    quorum = (count + most) // 2 + 1
    others = data.draw(st.sets(st.sampled_from(sorted(everybody)), max_size=count - quorum))
    void = voided(everybody, unsigned=names_of(others))
    sums, decisions = {everybody}, [void]
    if others:
        sums |= data.draw(st.sets(st.frozensets(st.sampled_from(sorted(others)), min_size=1)))
    cut = rows(void, rules)
    for row in cut:
        sums.add(row)
        if row & liars:
            decisions.append(voided(row, unsigned=names_of(others), size=count))
            decisions.append(Decision("judged", ROUND, row, names_of(row & liars)))
    for name, sequence in sorted(everybody - liars):
        ended = narrowed(everybody, name, decisions, rules)
        assert (name, sequence) in ended.parts
        assert bool(ended.disputed) == (not liars and len(cut) == 1)
        assert not ended.parts & liars
        sums.add(ended.parts)
    blocks: dict[tuple[bool, ...], set[Part]] = {}
    ordered = sorted(sums, key=sorted)
    for part in everybody - liars - others:
        blocks.setdefault(tuple(part in one for one in ordered), set()).add(part)
    if quorum >= rules.fewest + most:
        assert min(map(len, blocks.values())) >= rules.fewest


def test_decisions_about_other_sums_change_nothing() -> None:
    everybody, rules = parts_of(6), Aggregation()
    others = [
        voided(everybody - {("c0", 1)}),
        Decision("judged", ROUND, frozenset({("c0", 1), ("c1", 2)}), frozenset({"c0"})),
        Decision("excluded", ROUND, parts_of(7), frozenset({"c1"})),
    ]
    assert narrowed(everybody, "c1", others, rules) == Narrowed(everybody)


def test_who_was_excluded_keeps_its_own_part_alone() -> None:
    everybody, rules = parts_of(6), Aggregation()
    out = [Decision("excluded", ROUND, everybody, frozenset({"c5"}))]
    assert narrowed(everybody, "c5", out, rules) == Narrowed(frozenset({("c5", 3)}))
    assert narrowed(everybody, "c1", out, rules) == Narrowed(everybody - {("c5", 3)})


def test_few_exclude_many_of_a_false_sum_only() -> None:
    everybody, rules = parts_of(4), Aggregation(fewest=3)
    out = Decision("excluded", ROUND, everybody, frozenset({"c2", "c3"}))
    assert narrowed(everybody, "c0", [out], rules) == Narrowed(everybody)
    assert narrowed(everybody, "c2", [out], rules) == Narrowed(everybody)
    left = narrowed(everybody, "c0", [voided(everybody), out], rules)
    assert left == Narrowed(frozenset({("c0", 1), ("c1", 2)}))


def test_few_exclude_many_of_a_row_of_a_false_sum() -> None:
    """Also for who has agreed to the sum of the row since."""
    everybody, rules = parts_of(21), Aggregation(fewest=3)
    void = voided(everybody)
    row, *_ = rows(void, rules)
    (own, number), *others = sorted(row)
    out = Decision("excluded", ROUND, row, names_of(frozenset(others)))
    alone = Narrowed(frozenset({(own, number)}))
    assert narrowed(everybody, own, [void, out], rules) == alone
    assert narrowed(row, own, [void, out], rules) == alone


def test_too_few_for_two_rows_are_in_dispute() -> None:
    everybody, rules = parts_of(6), Aggregation(fewest=3)
    void = [voided(everybody)]
    assert narrowed(everybody, "c1", void, rules) == Narrowed(everybody, ROUND)
    judged = [*void, Decision("judged", ROUND, everybody, frozenset({"c2"}))]
    assert narrowed(everybody, "c1", judged, rules) == Narrowed(everybody - {("c2", 3)})


def test_a_row_is_not_cut_again() -> None:
    """All that collude may be in it."""
    everybody, rules = parts_of(21), Aggregation(fewest=2, colluding=10)
    row, *_ = rows(voided(everybody), rules)
    assert len(rows(voided(row), rules)) > 1
    assert rows(voided(row), rules, [everybody]) == [row]
    decisions = [voided(everybody), voided(row, "ab" * 16)]
    disputed = Narrowed(row, "ab" * 16)
    for name, _ in row:
        assert narrowed(everybody, name, decisions, rules) == disputed
        assert narrowed(row, name, decisions, rules) == disputed


@pytest.mark.parametrize(
    ("log", "count"),
    [
        ("", 0),
        ("voided:a voided:b voided:c", 3),
        ("voided:a voided:b judged:b voided:c", 1),
        ("voided:a voided:b excluded:b", 0),
        ("voided:a voided:b excluded:row-of-a judged:z", 2),
        ("voided:a restored: voided:b judged:a", 1),
    ],
)
def test_a_false_sum_is_explained_by_what_ends_a_dispute(log: str, count: int) -> None:
    entries = [
        dict(zip(("kind", "aggregation"), one.split(":"), strict=True)) for one in log.split()
    ]
    assert unexplained(entries) == count


def test_the_parts_of_one_false_sum_too_many_are_all_in_dispute() -> None:
    """If there is an arbiter who can say whose part was false."""
    everybody, rules = parts_of(21), Aggregation(fewest=2, arbiter="ab" * 64)
    again = replace(voided(everybody), unexplained=MOST_UNEXPLAINED)
    assert len(rows(replace(again, unexplained=MOST_UNEXPLAINED - 1), rules)) > 1
    assert rows(again, rules) == [everybody]
    assert narrowed(everybody, "c1", [again], rules) == Narrowed(everybody, ROUND)
    assert len(rows(again, replace(rules, arbiter=""))) > 1


def test_what_is_in_dispute_is_not_repeated() -> None:
    everybody = parts_of(5)
    attempts = [AgreedSum(everybody)]
    assert choose(everybody, attempts, gone=frozenset(), rules=RULES) == everybody
    disputed = choose(everybody, attempts, gone=frozenset(), rules=RULES, disputed=[everybody])
    assert disputed == frozenset()
    rest = everybody - {("c4", 2)}
    assert choose(rest, attempts, gone={"c4"}, rules=RULES, disputed=[everybody]) == rest


names = st.sampled_from(NAMES)


owed = st.dictionaries(names, st.sets(names))  # by client that complained, who did not answer


@given(st.sets(names), owed)
def test_nobody_meets_again_who_did_not_answer_it(
    present: set[str], unanswered: dict[str, set[str]]
) -> None:
    """Unless too few would be left; and nobody goes that owes nobody an answer."""
    left = without_silent(parts(present), unanswered, ROUND, fewest=FEWEST)
    assert left <= parts(present)
    owing = {name for client, dealers in unanswered.items() for name in dealers - {client}}
    assert parts(present - owing) <= left
    together = {name for name, _ in left}
    if len(left) > FEWEST:
        assert all(unanswered.get(name, set()).isdisjoint(together - {name}) for name in together)
    assert len(left) >= min(FEWEST, len(present))


@given(st.sets(names), owed, st.lists(st.sets(names), max_size=3))
def test_who_must_be_summed_up_together_stays_or_goes_together(
    present: set[str], unanswered: dict[str, set[str]], bound: list[set[str]]
) -> None:
    together = [parts(one & present) for one in bound]
    left = without_silent(parts(present), unanswered, ROUND, fewest=FEWEST, together=together)
    assert all(one <= left or one.isdisjoint(left) for one in together)
    if left != parts(present):  # the others hide them
        assert len(left.difference(*together)) >= FEWEST


def test_of_two_that_do_not_answer_each_other_each_has_its_turn() -> None:
    unanswered, everybody = {"a": {"b"}, "b": {"a"}}, parts(set(NAMES))
    rounds = [without_silent(everybody, unanswered, f"{n}", fewest=FEWEST) for n in range(32)]
    assert set(rounds) == {everybody - parts({"a"}), everybody - parts({"b"})}


def test_a_client_that_owes_answers_to_a_thousand_is_left_out() -> None:
    crowd = frozenset((f"c{number}", 1) for number in range(1000))
    unanswered = {name: {"c0"} for name, _ in crowd if name not in ("c0", "c1")}
    left = without_silent(crowd, unanswered, ROUND, fewest=FEWEST)
    assert left == crowd - {("c0", 1)}
