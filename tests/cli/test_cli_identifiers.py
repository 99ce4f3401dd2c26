"""How orders, audits and receipts are named: whole ids, beginnings, references, `last`."""

from __future__ import annotations

import pytest

from expunge.cli._identifiers import Identifier, resolve
from expunge.errors import InputError, UnknownSampleError

ORDERS = [
    Identifier("ab12", "T-1"),
    Identifier("ab34"),
    Identifier("cd56", "ab"),
    Identifier("ef78", "T-1"),
]


@pytest.mark.parametrize(
    ("given", "found"),
    [("ab12", "ab12"), ("AB3", "ab34"), ("c", "cd56"), ("last", "ef78"), ("ef", "ef78")],
)
def test_what_fits_one_is_that_one(given: str, found: str) -> None:
    assert resolve(given, ORDERS, "order") == found


@pytest.mark.parametrize(("given", "number"), [("T-1", 2), ("", 4), ("ab", 3)])
def test_what_fits_several_is_refused_and_they_are_listed(given: str, number: int) -> None:
    with pytest.raises(
        InputError, match=f"names {number} orders: .*Give more of the id"
    ) as refusal:
        resolve(given, ORDERS, "order")
    assert "ab12 (T-1)" in str(refusal.value)


def test_a_whole_id_is_never_doubtful() -> None:
    assert (
        resolve("ab", [Identifier("ab"), Identifier("ab1"), Identifier("cd", "ab")], "order")
        == "ab"
    )


def test_numbers_are_not_abbreviated() -> None:
    known = [Identifier(str(number)) for number in (10, 11, 12)]
    assert resolve("12", known, "receipt", abbreviated=False) == "12"
    with pytest.raises(UnknownSampleError, match="there is no receipt '1'; there are 12, 11, 10"):
        resolve("1", known, "receipt", abbreviated=False)


def test_what_is_unknown_names_what_there_is_newest_first() -> None:
    with pytest.raises(
        UnknownSampleError, match=r"there is no order 'zz'; there are ef78 \(T-1\), cd56"
    ):
        resolve("zz", ORDERS, "order")
    with pytest.raises(
        UnknownSampleError, match="there is no audit 'last'; there are no audits yet"
    ):
        resolve("last", [], "audit")
    with pytest.raises(UnknownSampleError, match=r"are 9, 8, 7, 6, 5, 4, 3, 2, \.\.\."):
        resolve("x", [Identifier(str(number)) for number in range(10)], "receipt")
