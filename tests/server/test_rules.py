"""The rules of the ledger: pure, in order, and each refusal leaves the account as it was."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge import Grid, Spec
from expunge.errors import FormatError, RefusedError
from expunge.exact import wide
from expunge.server.rules import Account, judge, require_next, require_spec
from expunge.wire import request
from expunge.wire.messages import GramPart, Message
from expunge.wire.request import Header, OrderAnswer, Request
from support.federation import make_key
from support.samples import Sample, commitments_of, part_of, statistics_of

KEY = make_key()
SPEC = Spec(dim=2, labels=("a", "b"), grid=Grid(2, 20))


def samples(count: int, seed: int = 0, spec: Spec = SPEC) -> list[Sample]:
    rng = np.random.default_rng(seed)
    return [
        Sample(rng.normal(size=spec.dim), int(rng.integers(spec.columns))) for _ in range(count)
    ]


def asked(
    added: list[Sample],
    deleted: list[Sample],
    spec: Spec = SPEC,
    kind: str = "rows",
    **changes: object,
) -> Request:
    fixed = {
        "federation": "0" * 32,
        "client": "clinic",
        "sequence": 1,
        "nonce": "0" * 64,
        "data_digest": spec.data_digest,
        "labels_digest": spec.labels_digest,
        "message": kind,
        "added": len(added),
        "deleted": len(deleted),
    }
    header = Header(**(fixed | changes))  # type: ignore[arg-type]
    return request.read(
        request.write(header, commitments_of(spec, added), commitments_of(spec, deleted), b"", KEY)
    )


def message(
    added: list[Sample], deleted: list[Sample], kind: str = "rows", spec: Spec = SPEC
) -> Message:
    return Message(kind, part_of(spec, kind, added), part_of(spec, kind, deleted))


def account_of(held: list[Sample], spec: Spec = SPEC) -> Account:
    return Account.empty(spec).changed(GramPart(statistics_of(spec, held)), 1)


def same(one: Account, other: Account) -> bool:
    return one.to_bytes() == other.to_bytes()


def judged(
    account: Account,
    held: list[Sample],
    added: list[Sample],
    deleted: list[Sample],
    kind: str = "rows",
) -> Account:
    live = set(commitments_of(SPEC, held))
    return judge(
        SPEC,
        account,
        asked(added, deleted, kind=kind),
        message(added, deleted, kind),
        live.intersection,
    )


@given(
    st.lists(
        st.tuples(st.booleans(), st.sampled_from(["rows", "gram"]), st.integers(0, 5)), max_size=8
    )
)
def test_an_account_is_a_function_of_what_is_held(steps: list[tuple[bool, str, int]]) -> None:
    held: list[Sample] = []
    account = Account.empty(SPEC)
    for number, (adding, kind, count) in enumerate(steps):
        added = samples(count, number) if adding else []
        deleted = [] if adding else held[:count]
        account = judged(account, held, added, deleted, kind)
        held = held[len(deleted) :] + added
        assert same(account, account_of(held))
        assert same(Account.from_bytes(account.to_bytes()), account)
        assert account.count == len(held)


def test_nothing_is_changed_by_asking() -> None:
    held = samples(3)
    account = account_of(held)
    before = account.to_bytes()
    after = judged(account, held, samples(1, 5), held[:1])
    assert account.to_bytes() == before != after.to_bytes()
    with pytest.raises(RefusedError):
        judged(account, held, [], samples(1, 9))
    assert account.to_bytes() == before


def code_of(account: Account, held: list[Sample], ask: Request, told: Message) -> str:
    with pytest.raises(RefusedError) as refusal:
        judge(SPEC, account, ask, told, set(commitments_of(SPEC, held)).intersection)
    assert len(refusal.value.reason) > 20
    return refusal.value.code


def test_refusals_by_code() -> None:
    held, new, strange = samples(3), samples(2, 1), samples(2, 2)
    account = account_of(held)
    assert code_of(account, held, asked(held[:1], []), message(held[:1], [])) == "already-live"
    assert code_of(account, held, asked([], strange), message([], strange)) == "not-live"
    assert (
        code_of(account, held, asked(new[:1] * 2, []), message(new[:1] * 2, [])) == "wrong-counts"
    )
    assert (
        code_of(account, held, asked(held[:1], held[:1]), message(held[:1], held[:1]))
        == "wrong-counts"
    )
    assert code_of(account, held, asked(new, []), message(new[:1], [])) == "wrong-counts"
    assert code_of(account, held, asked([], held[:1]), message([], [])) == "wrong-counts"
    assert code_of(account, held, asked(new, []), message(new[::-1], [])) == "not-opened"
    assert code_of(account, held, asked([], held[:1]), message([], strange[:1])) == "not-opened"
    assert (
        code_of(account, held, asked([], held[:2], leave=True), message([], held[:2]))
        == "wrong-counts"
    )
    found = (OrderAnswer("0" * 32, 2),)
    assert (
        code_of(account, held, asked([], held[:1], orders=found), message([], held[:1]))
        == "wrong-counts"
    )


def test_what_is_impossible_by_count_label_or_square() -> None:
    held = [Sample(np.array([1.0, 2.0]), 0), Sample(np.array([1.0, 0.0]), 0)]
    account = account_of(held)

    def deleting(*others: Sample) -> str:
        told = Message("gram", None, GramPart(statistics_of(SPEC, list(others))))
        return code_of(account, held, asked([], held[: len(others)], kind="gram"), told)

    assert deleting(Sample(np.array([1.0, 0.0]), 1)) == "impossible"  # there is none of that label
    assert deleting(Sample(np.array([3.0, 0.0]), 0)) == "impossible"  # the square would be negative
    assert (
        deleting(held[0], Sample(np.array([0.0, 0.0]), 0)) == "impossible"
    )  # none left, but squares are
    few = Account(1, account.class_counts, account.diagonal)
    told = Message("gram", None, GramPart(statistics_of(SPEC, held)))
    assert code_of(few, held, asked([], held, kind="gram"), told) == "impossible"


def test_a_count_that_contradicts_the_constant_feature_is_impossible() -> None:
    held, new = samples(2), samples(1, 4)
    wrong = account_of(held)
    wrong = Account(wrong.count + 1, wrong.class_counts, wrong.diagonal)
    assert code_of(wrong, held, asked(new, []), message(new, [])) == "impossible"
    plain = Spec(dim=2, labels=("a", "b"), intercept=False)
    held = samples(2, spec=plain)
    account = account_of(held, plain)
    account = Account(account.count + 1, account.class_counts, account.diagonal)
    ask, told = asked(new, [], plain), message(new, [], spec=plain)
    assert (
        judge(plain, account, ask, told, set().intersection).count == 4
    )  # without it there is nothing to contradict


def test_a_leave_that_empties_the_account_is_taken() -> None:
    held = samples(3)
    ask = asked([], held, leave=True)
    after = judge(
        SPEC, account_of(held), ask, message([], held), set(commitments_of(SPEC, held)).intersection
    )
    assert same(after, Account.empty(SPEC))


@pytest.mark.parametrize(
    ("sequence", "code"), [(5, "sequence-gap"), (3, "sequence-reused"), (1, "sequence-reused")]
)
def test_numbers_follow_one_another(sequence: int, code: str) -> None:
    with pytest.raises(RefusedError) as refusal:
        require_next(3, sequence)
    assert refusal.value.code == code
    assert refusal.value.details == {"expected": 4}
    require_next(3, 4)


def test_specs_and_kinds() -> None:
    require_spec(SPEC, asked([], []))
    require_spec(SPEC, asked([], [], kind="none"))
    other = Spec(dim=3, labels=("a", "b"))
    for ask, code in (
        (asked([], [], data_digest=other.data_digest), "wrong-spec"),
        (asked([], [], labels_digest=SPEC.with_labels("c").labels_digest), "wrong-spec"),
        (asked([], [], kind="factor"), "not-allowed"),
    ):
        with pytest.raises(RefusedError) as refusal:
            require_spec(SPEC, ask)
        assert refusal.value.code == code
    require_spec(
        SPEC.with_gamma(9.0), asked([], [])
    )  # which is no business of those who send samples


def test_appended_labels_have_no_samples() -> None:
    held = samples(3)
    grown = SPEC.with_labels("c")
    account = account_of(held).under(grown)
    assert same(account, account_of(held, grown))
    assert account.under(grown) is account
    assert account.class_counts.tolist()[-1] == 0


@given(st.binary(max_size=60), st.integers(0, 10**6))
def test_a_damaged_account_is_refused(more: bytes, place: int) -> None:
    data = account_of(samples(2)).to_bytes()
    for damaged in (data[: place % len(data)], data + more + b"\0", b"\2" + data[1:]):
        with pytest.raises(FormatError, match="account of a client"):
            Account.from_bytes(damaged)


def test_the_largest_squares_fit() -> None:
    spec = Spec(dim=1, labels=("a",), intercept=False)
    top = float((1 << spec.grid.bits) - 1)
    most = Account(1 << 44, np.array([1 << 44]), wide.from_ints([(1 << 44) * int(top) ** 2]))
    row = [Sample(np.ldexp(np.array([top]), -spec.grid.fraction_bits), 0)]
    after = most.changed(part_of(spec, "rows", row), -1)
    assert wide.to_ints(after.diagonal) == [((1 << 44) - 1) * int(top) ** 2]
