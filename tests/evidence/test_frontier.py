"""The frontier of a log has the log's root, however it grew."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge.errors import FormatError
from expunge.evidence.log import Frontier
from expunge.evidence.merkle import leaf_hash, root_of

entries = st.lists(st.binary(max_size=4), max_size=40)


@given(entries, st.integers(0, 40))
def test_the_root_is_that_of_the_log(log: list[bytes], cut: int) -> None:
    frontier = Frontier().extended(log[:cut]).extended(log[cut:])
    assert frontier.size == len(log)
    assert frontier.root == root_of([leaf_hash(entry) for entry in log])


@given(entries)
def test_json_and_back(log: list[bytes]) -> None:
    frontier = Frontier().extended(log)
    assert Frontier.from_json(frontier.to_json()) == frontier


def test_a_frontier_has_one_hash_for_each_bit_of_its_size() -> None:
    with pytest.raises(FormatError, match="3 entries has 2 hashes"):
        Frontier(3, (b"\0" * 32,))
